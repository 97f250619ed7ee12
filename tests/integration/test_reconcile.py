"""Drift, on both ledgers: read in one look, repaired through the gate, each repair once and audited."""

from typing import Any

import msgspec
import pytest

from healer.model import Pause, Reservation, RunState, SlurmNode
from healer.model.node import DriftKind
from healer.ports.scheduling import SchedulerUnavailable, UnknownNode
from healer.sim.sim_slurm import SimScheduler
from tests.support.command_desk import Desk
from tests.support.ledgers import CLUSTER, Bench, bench_of
from tests.support.loop import name

OURS = "healer:gpu-lost inc:00000001 x"


class ReconcileDesk(Desk):
    def __init__(self, bench: Bench) -> None:
        super().__init__(bench)
        self.book = self.reconciler()

    def kinds(self) -> list[DriftKind]:
        return [one.kind for one in self.book.drifts(CLUSTER)]

    def repair(self, request: str = "q1") -> list[tuple[bool, str]]:
        found = self.book.repair(CLUSTER, by="ann", reason="tidy up", request=request)
        return [(one.done, one.text) for one in found]

    def age(self, seconds: float = 120) -> None:
        self.clock.advance(seconds)
        self.poll()


@pytest.fixture(params=["memory", "postgres"])
def desk(request: pytest.FixtureRequest) -> ReconcileDesk:
    return ReconcileDesk(bench_of(request))


def test_a_forgotten_drain_is_tested_and_returned_by_a_run_of_the_gate(desk: ReconcileDesk) -> None:
    desk.slurm.drain(name(1), OURS)
    desk.slurm.person_drain(name(2), "PSU", "bob")
    desk.age()
    assert desk.kinds() == [DriftKind.forgotten_drain]
    ((done, text),) = desk.repair()
    assert done and text.endswith("of validate: running")
    run = desk.poked[-1]
    for _ in range(60):
        desk.work(run, 1)
        for job in desk.slurm.snapshot().jobs.values():
            if job.state == "RUNNING":
                desk.slurm.complete(job.id)
    assert desk.state(run) is RunState.done
    assert desk.slurm.node(name(1)).in_service
    assert desk.slurm.node(name(2)).reason == "PSU", "a person's word is left alone"
    assert desk.kinds() == []


def test_the_same_repair_again_starts_nothing_new(desk: ReconcileDesk) -> None:
    desk.slurm.drain(name(1), OURS)
    desk.age()
    desk.repair()
    assert desk.kinds() == [], "its run speaks for it"
    desk.repair()
    assert len(desk.poked) == 1


def test_a_pause_holds_repairs_too(desk: ReconcileDesk) -> None:
    desk.slurm.annotate(name(1), extra='{"healer":{"incident":"00000001"}}')
    desk.age()
    pause = Pause(id="p1", scope="all", name="", by="bob", reason="hands off", since=desk.clock.now())
    desk.bench.pause(pause)
    ((done, text),) = desk.repair()
    assert not done and "of tidy: held: Paused (all) by bob" in text
    assert desk.poked == []
    assert desk.slurm.node(name(1)).extra


def test_notes_and_reservations_that_are_left_are_taken_away(desk: ReconcileDesk) -> None:
    desk.slurm.annotate(name(1), extra='{"healer":{"incident":"00000001"}}')
    desk.slurm.reserve(
        Reservation(name="healer_00000002", nodes=(name(2),), users=("root",), maintenance=True)
    )
    desk.age()
    assert desk.kinds() == [DriftKind.left_reservation, DriftKind.left_note]
    repairs = desk.repair()
    assert [done for done, _ in repairs] == [True, True]
    assert desk.slurm.node(name(1)).extra, "the API itself changes nothing in Slurm"
    assert [desk.work(run, 1) for run in desk.poked if run in repairs[1][1]] == [RunState.done]
    assert desk.slurm.node(name(1)).extra == ""
    assert desk.audited().count("run.started") == 2 and "node.tidied" in desk.audited()
    # The reservation ends with the run that tests its node: no user's job gets it before.
    assert list(desk.slurm.snapshot().reservations) == ["healer_00000002"]


class Gone:
    """A Slurm that lacks a node. An order to end a reservation may be lost, or its answer."""

    def __init__(self, slurm: SimScheduler, *, hears: bool = True, says: bool = True) -> None:
        self.slurm, self.hears, self.says = slurm, hears, says

    def __getattr__(self, call: str) -> Any:
        return getattr(self.slurm, call)

    def node(self, node: str) -> SlurmNode:
        raise UnknownNode(f"Slurm has no node {node}.")

    def unreserve(self, name: str) -> None:
        if self.hears:
            self.slurm.unreserve(name)
        if not self.says:
            raise SchedulerUnavailable("no answer in 4 s")


def left_on_a_gone_node(desk: ReconcileDesk, slurm: Gone) -> str:
    """The run that repairs it."""
    desk.slurm.reserve(
        Reservation(name="healer_00000002", nodes=(name(2),), users=("root",), maintenance=True)
    )
    desk.age()
    shown = desk.slurm.snapshot()
    nodes = {one: node for one, node in shown.nodes.items() if one != name(2)}
    desk.bench.show(msgspec.structs.replace(shown, nodes=nodes))
    desk.driver.tools = msgspec.structs.replace(desk.driver.tools, scheduler=slurm)
    ((done, _),) = desk.repair()
    assert done
    return desk.poked[-1]


def test_a_repair_that_slurm_did_not_hear_is_read_back_and_asks_a_person(desk: ReconcileDesk) -> None:
    run = left_on_a_gone_node(desk, Gone(desk.slurm, hears=False, says=False))
    assert desk.work(run, 60) is RunState.stuck
    assert "node.tidied" not in desk.audited()


@pytest.mark.parametrize("says", [True, False])
def test_a_reservation_on_a_node_that_is_gone_is_ended(desk: ReconcileDesk, says: bool) -> None:
    run = left_on_a_gone_node(desk, Gone(desk.slurm, says=says))
    assert desk.work(run, 60) is RunState.done
    assert desk.slurm.snapshot().reservations == {}
    assert "node.tidied" in desk.audited()


def test_a_note_on_a_node_that_healer_holds_stays(desk: ReconcileDesk) -> None:
    desk.slurm.annotate(name(1), extra='{"healer":{"incident":"00000001"}}')
    desk.age()
    desk.repair()
    desk.slurm.drain(name(1), OURS)
    assert desk.work(desk.poked[-1], 1) is RunState.done
    assert desk.slurm.node(name(1)).extra
