"""Whose word a signal is: the node's own, or a relay's (law 2)."""

from typing import Any

import pytest

from healer.model import Role
from healer.ports.callers import KERNEL, Caller


@pytest.mark.parametrize(
    ("bound", "node", "relay"),
    [
        ({"node": "gpu0001"}, "gpu0001", ""),
        ({"node": "gpu0001"}, "gpu0002", "vector (t1)"),
        ({"node": "gpu0001"}, None, "vector (t1)"),
        ({"vouches": KERNEL}, "gpu0002", ""),
        ({"job": "4711"}, "gpu0001", "vector (t1)"),
        ({}, "gpu0001", "vector (t1)"),
    ],
)
def test_caller_is_a_relay_unless_it_is_bound_to_the_node(
    bound: dict[str, Any], node: str | None, relay: str
) -> None:
    caller = Caller(id="t1", name="vector", role=Role.signals, cluster="pod1", **bound)
    assert caller.relay_of(node) == relay
