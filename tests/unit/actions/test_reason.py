"""The reason that healer writes into Slurm, and whose a hold is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.actions.base import MAX_LENGTH, drain_reason, holder_of
from healer.model import SlurmNode
from healer.model.slurm import is_ours

INCIDENT = "0123456789abcdef0123456789abcdef"


def test_the_reason_has_the_contracts_form() -> None:
    given = drain_reason("gpu-lost", INCIDENT, "Xid 79: GPU fell off the bus")
    assert given == "healer:gpu-lost inc:01234567 Xid 79: GPU fell off the bus"


@given(text=st.text(max_size=300))
def test_it_is_ascii_in_one_line_without_what_breaks_parsers_and_always_the_same(text: str) -> None:
    reason = drain_reason("gpu-lost", INCIDENT, text)
    assert reason == drain_reason("gpu-lost", INCIDENT, text)
    assert reason.isascii()
    assert reason.isprintable()
    assert not set(reason) & set("\"'`,=\\;|")
    assert reason == reason.strip()
    assert len(reason) <= MAX_LENGTH
    assert is_ours(reason, INCIDENT)


def test_ours_is_what_starts_with_our_word() -> None:
    assert is_ours("healer:gpu-lost inc:01234567 x : Not responding", INCIDENT)
    assert is_ours("healer:gpu-lost inc:01234567 x")
    assert not is_ours("healer:gpu-lost inc:01234567 x", "f" * 32)
    assert not is_ours("see healer:gpu-lost inc:01234567")
    assert not is_ours("")


def node(*state: str, reason: str = "", user: str = "") -> SlurmNode:
    return SlurmNode(name="gpu0001", state=state, reason=reason, reason_user=user)


@pytest.mark.parametrize(
    ("reason", "holder"),
    [
        ("healer:gpu-lost inc:01234567 x", None),
        ("healer:gpu-lost inc:01234567 x : reboot issued", None),
        ("healer:gpu-lost inc:01234567 x RMA 4711", "ann holds"),
        ("healer:gpu-lost inc:01234567 x RMA 4711 : Not responding", "Someone holds"),
        ("healer:gpu-hot inc:89abcdef y", None),
    ],
)
def test_person_who_appends_to_the_reason_of_this_run_holds_the_node(reason: str, holder: str | None) -> None:
    """Only the reason that was read back earlier shows that this one is not ours."""
    shown = node("IDLE", "DRAIN", reason=reason, user="ann")
    assert holder_of(shown, "healer:gpu-lost inc:01234567 x") == holder
    assert holder_of(shown) is None


@pytest.mark.parametrize(
    ("shown", "holder"),
    [
        (node("IDLE"), None),
        (node("IDLE", reason="an old note", user="ann"), None),
        (node("IDLE", "DRAIN", reason="healer:gpu-lost inc:01234567 x"), None),
        (node("DOWN", reason="Not responding", user="slurm"), None),
        (node("DOWN"), None),
        (node("IDLE", "DRAIN", reason="PSU", user="ann"), "ann holds"),
        (node("IDLE", "DRAIN", reason="PSU"), "Someone holds"),
        (node("IDLE", "DRAIN"), "Someone holds"),
        (node("DOWN", reason="PSU", user="ann"), "ann holds"),
        (node("DOWN", "DRAIN", reason="PSU", user="ann"), "ann holds"),
        (node("IDLE", "FAIL", reason="PSU", user="ann"), "ann holds"),
        (node("IDLE", "DRAIN", reason="Kill task failed", user="root"), "root holds"),
    ],
)
def test_holder_of_a_node_is_read_from_its_state_and_reason(shown: SlurmNode, holder: str | None) -> None:
    assert holder_of(shown) == holder
