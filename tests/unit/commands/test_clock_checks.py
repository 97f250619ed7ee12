"""`healer doctor` on clocks: this machine's, and those of nodes by their heartbeats."""

import pytest

from healer.bootstrap.clock_checks import node_clocks, own_clock


@pytest.mark.parametrize(("synchronised", "state"), [(True, "ok"), (None, "ok"), (False, "note")])
def test_a_clock_that_nothing_keeps_is_noted(synchronised: bool | None, state: str) -> None:
    assert own_clock(synchronised).state == state


def test_nodes_whose_clocks_are_off_are_named_with_the_worst_first() -> None:
    skews = {"gpu0001": 0.02, "gpu0002": -7.0, "gpu0003": 61.4, "gpu0004": -4.9}
    found = node_clocks("pod1", skews)
    assert found.state == "fail" and "60 s" in found.repair
    assert found.text == "2 of 4 nodes of pod1 within 5 s of healer; not: gpu0003 +61 s, gpu0002 -7 s"
    assert node_clocks("pod1", {"gpu0001": 0.02}).state == "ok"
