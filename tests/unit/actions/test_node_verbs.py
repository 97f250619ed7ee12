"""Verbs that give nodes back, each alone: what they wait for, refuse and leave as it is."""

from typing import Any

import msgspec
import pytest

from healer.actions import VERBS, Again, Done, Failed
from healer.actions.base import Context
from healer.model import LogEntry, Reservation, SlurmNode, StepEvent, Verb
from healer.sim.sim_slurm import SimScheduler
from healer.text import NO_WORDS
from tests.support.loop import CLUSTER, START
from tests.unit.actions.test_verbs import NODE, REASON, RUN, Desk

DRAIN, RESUME, UNDRAIN, DOWN, REBOOT, RESERVE = (
    VERBS[verb] for verb in (Verb.drain, Verb.resume, Verb.undrain, Verb.down, Verb.reboot, Verb.reserve)
)
KEPT = Reservation(name="healer_01234567", nodes=(NODE,), users=("root",), maintenance=True)


class Shown:
    """The simulated Slurm, but for more words in the state of its nodes."""

    def __init__(self, slurm: SimScheduler, *flags: str) -> None:
        self.slurm, self.flags = slurm, flags

    def __getattr__(self, call: str) -> Any:
        return getattr(self.slurm, call)

    def node(self, name: str) -> SlurmNode:
        node = self.slurm.node(name)
        return msgspec.structs.replace(node, state=(*node.state, *self.flags))


def drained(*flags: str, **run: Any) -> Desk:
    desk = Desk(run=msgspec.structs.replace(RUN, **run))
    desk.slurm.drain(NODE, REASON)
    desk.use(scheduler=Shown(desk.slurm, *flags))
    return desk


def silent() -> Desk:
    """Drained, then away for longer than SlurmdTimeout."""
    desk = drained()
    desk.slurm.silence(NODE)
    desk.clock.advance(3600)
    assert desk.slurm.node(NODE).state == ("DOWN", "DRAIN", "NOT_RESPONDING")
    return desk


# --- pitfalls of a return ---


@pytest.mark.parametrize("verb", [RESUME, UNDRAIN])
def test_pitfall_04_a_node_that_did_not_register_as_configured_is_waited_for(verb: Any) -> None:
    desk = drained("INVALID_REG")
    assert isinstance(desk.act(verb), Again)
    assert desk.slurm.node(NODE).drain


@pytest.mark.parametrize("flag", ["REBOOT_ISSUED", "REBOOT_REQUESTED"])
def test_pitfall_05_nothing_is_resumed_amid_a_reboot(flag: str) -> None:
    desk = drained(flag)
    assert isinstance(desk.act(RESUME), Again)
    assert desk.slurm.node(NODE).drain


def test_pitfall_22_healer_resumes_no_node_with_a_flag_that_it_does_not_know() -> None:
    desk = drained("QUARANTINED")
    failed = desk.act(RESUME)
    assert isinstance(failed, Failed) and failed.final
    assert "QUARANTINED" in failed.text
    assert desk.slurm.node(NODE).drain
    by_ann = drained("QUARANTINED", by="ann")
    by_ann.act(RESUME)
    assert not by_ann.slurm.node(NODE).drain, "a person may"


# --- undrain ---


def test_an_undrain_clears_drain_alone() -> None:
    desk = drained()
    desk.slurm.set_node_down(NODE, "Not responding")
    assert isinstance(desk.act(UNDRAIN), Done)
    shown = desk.slurm.node(NODE)
    assert (shown.drain, shown.base) == (False, "DOWN")
    assert desk.released == [], "it is not back yet"
    assert desk.commands_sent == []


def test_an_undrain_is_ours_alone() -> None:
    desk = Desk()
    desk.slurm.person_drain(NODE, "PSU", "ann")
    failed = desk.act(UNDRAIN)
    assert isinstance(failed, Failed) and failed.final
    assert desk.slurm.node(NODE).drain


def test_a_drain_that_is_undone_leaves_slurms_own_down() -> None:
    desk = drained()
    desk.slurm.set_node_down(NODE, "Not responding")
    assert DRAIN.undo is not None and isinstance(DRAIN.undo(desk.ctx), Done)
    assert (desk.slurm.node(NODE).drain, desk.slurm.node(NODE).base) == (False, "DOWN")


@pytest.mark.parametrize("lift", [UNDRAIN.do, DRAIN.undo])
def test_a_silent_node_whose_drain_is_lifted_keeps_no_reason_of_healer(lift: Any) -> None:
    """By any other reason than its own Slurm leaves the node DOWN when it answers again."""
    desk = silent()
    lift(desk.ctx)
    shown = desk.slurm.node(NODE)
    assert (shown.drain, shown.base, shown.reason) == (False, "DOWN", "Not responding")


def test_a_worker_that_died_between_reason_and_drain_is_followed_by_one_that_lifts_the_drain() -> None:
    desk = silent()
    desk.slurm.drain(NODE, "Not responding")
    assert DRAIN.undo is not None
    DRAIN.undo(msgspec.structs.replace(desk.ctx, asked=True))
    assert not desk.slurm.node(NODE).drain
    assert len(desk.released) == 1


def rebooted(*flags: str) -> tuple[Desk, Context]:
    """The run's own reboot has left the node DOWN, with healer's reason."""
    desk = Desk()
    desk.slurm.set_node_down(NODE, REASON)
    desk.use(scheduler=Shown(desk.slurm, *flags))
    about = {"run": RUN.id, "at": START, "epoch": 1, "step": "reboot", "text": NO_WORDS}
    booted = LogEntry(**about, event=StepEvent.done, data={"verb": "reboot"})
    return desk, msgspec.structs.replace(desk.ctx, log=(booted,))


def test_an_undo_after_a_boot_without_its_gpus_asks_a_person() -> None:
    """Slurm refuses to return a node that registers with less than it should have, and no wait ends that."""
    _, ctx = rebooted("INVALID_REG")
    assert DRAIN.undo is not None
    failed = DRAIN.undo(ctx)
    assert isinstance(failed, Failed) and failed.final
    assert "INVALID_REG" in failed.text
    _, ctx = rebooted("INVALID_REG", "REBOOT_ISSUED")
    assert isinstance(DRAIN.undo(ctx), Again), "it boots"


# --- undo of the others ---


def test_a_reboot_that_waits_is_taken_back() -> None:
    desk = Desk()
    desk.slurm.add_job(required=[NODE])
    desk.slurm.drain(NODE, REASON)
    desk.slurm.reboot(NODE, REASON)
    assert REBOOT.undo is not None and isinstance(REBOOT.undo(desk.ctx), Done)
    shown = desk.slurm.node(NODE)
    assert "REBOOT_REQUESTED" not in shown.state and shown.drain
    assert isinstance(REBOOT.undo(desk.ctx), Done), "nothing more to take back"


def test_a_reservation_is_taken_back_from_a_node_that_is_drained_again() -> None:
    desk = drained()
    desk.slurm.reserve(KEPT)
    desk.slurm.resume(NODE)
    assert RESERVE.undo is not None
    first = RESERVE.undo(desk.ctx)
    assert isinstance(first, Again) and len(desk.slurm.snapshot().reservations) == 1
    assert desk.slurm.node(NODE).drain, "no user's job starts in between"
    assert isinstance(RESERVE.undo(desk.ctx), Done)
    assert desk.slurm.snapshot().reservations == {}
    assert desk.slurm.node(NODE).drain


# --- down ---


def test_a_node_that_healer_did_not_drain_is_never_set_down() -> None:
    desk = Desk()
    job = desk.slurm.add_job(required=[NODE])
    failed = desk.act(DOWN)
    assert isinstance(failed, Failed) and failed.final
    desk.slurm.person_drain(NODE, "PSU", "ann")
    assert isinstance(desk.act(DOWN), Failed)
    found = desk.slurm.job(job)
    assert found is not None and found.state == "RUNNING"


# --- whose reservation ---


def test_pitfall_05_a_node_that_somebody_reboots_is_tested_after_its_boot() -> None:
    desk = Desk(users=lambda: ("root",))
    desk.slurm.drain(NODE, REASON)
    desk.act(RESERVE)
    desk.slurm.reboot(NODE, REASON)
    waits = desk.act(RESERVE)
    assert isinstance(waits, Again) and "REBOOT" in waits.text
    assert desk.slurm.node(NODE).drain and "REBOOT_ISSUED" in desk.slurm.node(NODE).state


def test_node_returned_by_a_person_is_not_taken_for_tests() -> None:
    desk = Desk(users=lambda: ("root",))
    failed = desk.act(RESERVE)
    assert isinstance(failed, Failed) and failed.final
    assert desk.slurm.snapshot() == SimScheduler(CLUSTER, desk.clock, 4).snapshot()
