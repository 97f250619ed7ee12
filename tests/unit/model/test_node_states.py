"""The state of a node as history keeps it, and what differs between two snapshots."""

from datetime import UTC, datetime, timedelta

import pytest

from healer.model import Reservation, SlurmNode, SlurmSnapshot
from healer.model.node_states import (
    GAP,
    Holder,
    NodeCondition,
    NodeState,
    StateChanges,
    changes,
    is_gap,
    node_states,
)

AT = datetime(2026, 11, 20, 2, 40, tzinfo=UTC)
IDLE = NodeState(NodeCondition.in_service, Holder.none, busy=False)
BUSY = NodeState(NodeCondition.in_service, Holder.none, busy=True)
DRAINED = NodeState(NodeCondition.drained, Holder.healer, busy=False)


def state_of(*state: str, reason: str = "", reserved: tuple[str, ...] = ()) -> tuple[str, str, bool]:
    node = SlurmNode(name="n1", state=state, reason=reason, reason_user="ann")
    held = {name: Reservation(name=name, nodes=("n1",), maintenance=True) for name in reserved}
    snapshot = SlurmSnapshot(cluster="pod1", taken_at=AT, nodes={"n1": node}, reservations=held)
    found = node_states(snapshot)["n1"]
    return found.condition.value, found.holder.value, found.busy


@pytest.mark.parametrize(
    ("state", "reason", "wanted"),
    [
        (("IDLE",), "", ("in_service", "none", False)),
        (("MIXED",), "", ("in_service", "none", True)),
        (("ALLOCATED", "DRAIN"), "healer:gpu-lost inc:01234567 GPU 3", ("draining", "healer", True)),
        (("IDLE", "DRAIN"), "bad fan", ("drained", "person", False)),
        (("IDLE", "DRAIN"), "NHC: no GPU", ("drained", "person", False)),
        (("IDLE", "DRAIN"), "Kill task failed", ("drained", "slurm", False)),
        (("DOWN", "DRAIN"), "Not responding", ("down", "slurm", False)),
        (("DOWN",), "", ("down", "slurm", False)),
        (("IDLE", "NOT_RESPONDING"), "", ("down", "none", False)),
        (("IDLE", "MAINTENANCE"), "", ("planned", "none", False)),
        (("IDLE", "POWERED_DOWN"), "", ("planned", "none", False)),
        (("DOWN", "POWERED_DOWN"), "ResumeTimeout reached", ("down", "slurm", False)),
        (("IDLE", "DRAIN", "POWERED_DOWN"), "Kill task failed", ("drained", "slurm", False)),
    ],
)
def test_a_state_says_whether_a_node_serves_and_who_holds_it(
    state: tuple[str, ...], reason: str, wanted: tuple[str, str, bool]
) -> None:
    assert state_of(*state, reason=reason) == wanted


def test_a_reservation_for_healers_tests_is_healers_and_not_planned() -> None:
    maintenance = ("IDLE", "MAINTENANCE")
    assert state_of(*maintenance, reserved=("healer_01234567",)) == ("drained", "healer", False)
    assert state_of(*maintenance, reserved=("healer_01234567", "work")) == ("planned", "none", False)


def test_only_what_differs_ends_and_begins() -> None:
    before = {"n1": IDLE, "n2": BUSY, "gone": IDLE}
    now = {"n1": IDLE, "n2": DRAINED, "new": IDLE}
    found = changes(before, now, gap=False)
    assert found == StateChanges(["n2", "gone"], {"n2": DRAINED, "new": IDLE})
    assert changes(now, now, gap=False) == StateChanges([], {})


def test_after_a_gap_every_state_ended_and_begins_again() -> None:
    states = {"n1": IDLE, "n2": BUSY}
    assert changes(states, states, gap=True) == StateChanges(["n1", "n2"], states)


def test_a_gap_is_longer_than_slurm_takes_to_answer() -> None:
    assert not is_gap(AT, AT + GAP)
    assert is_gap(AT, AT + GAP + timedelta(seconds=1))
    assert not is_gap(AT, AT - timedelta(hours=1)), "a clock that was set back"
