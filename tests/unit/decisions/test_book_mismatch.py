"""Where healer's book and Slurm do not agree: each kind, and what suppresses it."""

from typing import Any

import msgspec
import pytest

from healer.decisions.book_mismatch import find_mismatches
from healer.model import (
    GateFacts,
    Incident,
    Reservation,
    Run,
    RunState,
    SlurmJob,
    SlurmNode,
    Veto,
)
from healer.model.node import Drift, DriftKind, Repair
from tests.support.gate import NOW, ago, facts, incident, job, later, name, node, slot

OURS = "healer:gpu-lost inc:00000001 x"
DRAINED: dict[str, Any] = {"state": ("IDLE", "DRAIN"), "reason": OURS, "reason_at": ago(hours=1)}
NOTE = '{"healer":{"incident":"00000001"}}'
KEPT = Reservation(name="healer_00000001", nodes=(name(1),), maintenance=True, since=ago(hours=1))


def known(*nodes: SlurmNode, jobs: tuple[SlurmJob, ...] = (), **fields: Any) -> GateFacts:
    rest = [node(number) for number in range(len(nodes) + 1, 5)]
    kept = fields.pop("reservations", ())
    found = facts([*nodes, *rest], jobs=jobs, **fields)
    assert found.snapshot is not None
    shown = msgspec.structs.replace(found.snapshot, reservations={one.name: one for one in kept})
    return msgspec.structs.replace(found, snapshot=shown)


def run(**fields: Any) -> Run:
    given = {
        "id": "r1",
        "cluster": "pod1",
        "playbook": "gpu-fatal",
        "state": RunState.waiting,
        "by": "healer",
        "reason": "x",
        "created_at": ago(hours=1),
        "node": name(1),
    }
    return Run(**(given | fields))


def found(facts: GateFacts, runs: tuple[Run, ...] = (), incidents: tuple[Incident, ...] = ()) -> list[Drift]:
    return find_mismatches(facts, runs, incidents, NOW)


def test_a_cluster_in_order_has_none() -> None:
    assert found(known()) == []
    assert found(facts(snapshot=None)) == []


# --- unexplained drains ---


def test_our_drain_without_run_and_incident_is_reported_with_its_age() -> None:
    (one,) = found(known(node(1, **DRAINED)))
    assert (one.kind, one.node, one.since, one.repair) == (
        DriftKind.forgotten_drain,
        name(1),
        ago(hours=1),
        Repair.validate,
    )


@pytest.mark.parametrize(
    "case",
    [
        {"runs": (run(),)},
        {"incidents": (incident(1),)},
        {"facts": {"slots": (slot(1, incident=incident(2).id),)}, "incidents": (incident(2),)},
        {"node": {"reason": "PSU"}},
        {"node": {"reason_at": ago(seconds=30)}},
    ],
    ids=["a run", "an incident", "a slot of an incident", "a person's", "young"],
)
def test_explained_drain_is_no_mismatch(case: dict[str, Any]) -> None:
    shown = node(1, **(DRAINED | case.get("node", {})))
    assert found(known(shown, **case.get("facts", {})), case.get("runs", ()), case.get("incidents", ())) == []


def test_shadow_run_and_its_mismatch_incident_justify_no_drain() -> None:
    mismatch = incident(1, fault="healer-drain", rule="forgotten-drain")
    (one,) = found(known(node(1, **DRAINED)), (run(shadow=True),), (mismatch,))
    assert one.kind is DriftKind.forgotten_drain


# --- slots ---


def test_slot_of_a_node_in_service_is_reported() -> None:
    (one,) = found(known(slots=(slot(1, drained_at=ago(hours=1)),)))
    assert (one.kind, one.node, one.repair) == (DriftKind.idle_slot, name(1), Repair.free_slot)


@pytest.mark.parametrize(
    "case",
    [
        {"slots": (slot(1),)},
        {"slots": (slot(1, drained_at=ago(seconds=5)),)},
        {
            "slots": (slot(1, drained_at=ago(hours=1)),),
            "vetoes": (Veto(node=name(1), by="ann", at=NOW, until=later(hours=1)),),
        },
    ],
    ids=["not drained yet", "young", "a veto"],
)
def test_a_slot_that_is_used_is_none(case: dict[str, Any]) -> None:
    assert found(known(**case)) == []


def test_a_slot_of_a_node_under_test_is_used() -> None:
    kept = msgspec.structs.replace(KEPT, since=ago(seconds=5))
    assert found(known(slots=(slot(1, drained_at=ago(hours=1)),), reservations=(kept,))) == []


# --- what is left in Slurm ---


def test_reservation_without_tests_is_reported() -> None:
    (one,) = found(known(reservations=(KEPT,)))
    assert (one.kind, one.name, one.node, one.repair) == (
        DriftKind.left_reservation,
        KEPT.name,
        name(1),
        Repair.validate,
    )
    gone = msgspec.structs.replace(KEPT, nodes=("gone",))
    (one,) = found(known(reservations=(gone,)))
    assert (one.node, one.repair) == ("gone", Repair.end_reservation)


@pytest.mark.parametrize("name_of_it", ["healer", "spares", "maint_healer_1"])
def test_a_reservation_that_is_not_ours_is_left_alone(name_of_it: str) -> None:
    assert found(known(reservations=(msgspec.structs.replace(KEPT, name=name_of_it),))) == []


def test_a_reservation_with_a_run_on_its_node_is_used() -> None:
    assert found(known(reservations=(KEPT,)), (run(state=RunState.running),)) == []


@pytest.mark.parametrize("field", ["extra", "comment"])
def test_note_on_a_returned_node_is_reported(field: str) -> None:
    (one,) = found(known(node(1, **{field: NOTE})))
    assert (one.kind, one.repair) == (DriftKind.left_note, Repair.clear_note)


@pytest.mark.parametrize("text", ["", "rack 7", '{"other": 1}', '{"healer": {}, "other": 1}', "{"])
def test_a_note_of_others_is_left_alone(text: str) -> None:
    assert found(known(node(1, extra=text))) == []


def test_note_beside_our_drain_is_in_place() -> None:
    assert found(known(node(1, extra=NOTE, **DRAINED)), (), (incident(1),)) == []


def test_job_kept_off_a_healthy_node_is_reported() -> None:
    waiting = job(state="PENDING", nodes=(), admin_comment=f"healer: waits; off:{name(1)}")
    (one,) = found(known(jobs=(waiting,)))
    assert (one.kind, one.name, one.repair) == (DriftKind.left_exclusion, "4711", Repair.release)
    assert found(known(jobs=(waiting,)), (), (incident(1, known_bad_in_service=True),)) == []
    assert found(known(jobs=(waiting,)), (run(node=None, job="4711"),)) == []


# --- runs ---


def test_run_on_a_node_unknown_to_slurm_is_reported() -> None:
    (one,) = found(known(), (run(node="gone", state=RunState.stuck),))
    assert (one.kind, one.name, one.repair) == (DriftKind.unknown_node, "r1", Repair.cancel_run)
    assert found(known(), (run(node="gone", created_at=ago(seconds=5)),)) == []
