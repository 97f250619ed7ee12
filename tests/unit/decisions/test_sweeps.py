"""Guard `sweep`: only idle and healthy nodes, wanted by no job, few at once, in turn."""

from typing import Any

import msgspec
import pytest

from healer.decisions import judge
from healer.decisions.capacity import ineffective_limits
from healer.decisions.sweeps import sweep_limit
from healer.model import (
    Answer,
    AnswerKind,
    Breaker,
    BreakerState,
    FaultClass,
    GateFacts,
    Guard,
    GuardSettings,
    Outcome,
    Proposal,
    Reservation,
    SlurmJob,
    Sweeps,
    SweepSettings,
    Verb,
)
from tests.support.gate import CLUSTER, NOW, ago, answer, facts, job, later, name, node, propose, rules

TESTED = {name(1): ago(days=6)}


def swept(**fields: Any) -> Proposal:
    return propose(Verb.sweep, **({"playbook": "sweep", "rule": "sweep", "incident": None} | fields))


def sweep_answer(known: GateFacts, **fields: Any) -> Answer:
    return answer(Guard.sweep, swept(**fields), known)


def idle(nodes: Any = 400, **sweeps: Any) -> GateFacts:
    given = {name_: sweeps.pop(name_) for name_ in list(sweeps) if name_ not in Sweeps.__struct_fields__}
    return facts(nodes, **given, sweeps=Sweeps(**sweeps))


def waiting(**fields: Any) -> SlurmJob:
    return job("9", **({"state": "PENDING", "nodes": (), "reason": "Resources"} | fields))


@pytest.mark.parametrize(("nodes", "limit"), [(1, 1), (32, 1), (100, 1), (250, 2), (400, 4), (1250, 4)])
def test_the_lower_of_share_and_number_binds_and_one_is_always_allowed(nodes: int, limit: int) -> None:
    assert sweep_limit(GuardSettings(), nodes) == limit


def test_few_at_once() -> None:
    running = {name(number): f"r{number}" for number in range(2, 6)}
    held = sweep_answer(idle(running=running))
    assert (held.kind, held.used, held.limit) == (AnswerKind.hold, 4, 4)
    allowed = sweep_answer(idle(running={name(2): "r2"}))
    assert (allowed.kind, allowed.used, allowed.limit) == (AnswerKind.allow, 1, 4)


@pytest.mark.parametrize(
    ("state", "says"),
    [
        (("ALLOCATED",), "busy"),
        (("IDLE", "PLANNED"), "planned"),
        (("IDLE", "DRAIN"), "drained"),
        (("DOWN",), "down"),
        (("IDLE", "MAINTENANCE"), "maintenance"),
        (("IDLE", "POWERED_DOWN"), "power_saving"),
        (("IDLE", "NOT_RESPONDING"), "silent"),
    ],
)
def test_idle_nodes_alone(state: tuple[str, ...], says: str) -> None:
    held = sweep_answer(idle([node(1, state=state), node(2)]))
    assert held.kind is AnswerKind.hold and f"is {says}" in held.why


@pytest.mark.parametrize("fault_class", [FaultClass.degraded, FaultClass.fatal])
def test_healthy_nodes_alone(fault_class: FaultClass) -> None:
    assert sweep_answer(idle(ailing={name(1): fault_class})).kind is AnswerKind.hold
    assert sweep_answer(idle(ailing={name(2): fault_class})).kind is AnswerKind.allow


def test_suspect_is_swept_despite_other_faults_but_not_with_a_fatal_one() -> None:
    suspect = {"borrows": True, "suspect": True}
    running = {name(number): f"r{number}" for number in range(2, 6)}
    milder = idle(ailing={name(1): FaultClass.degraded}, running=running)
    assert sweep_answer(milder, **suspect).kind is AnswerKind.allow
    assert sweep_answer(milder, borrows=True).kind is AnswerKind.hold
    assert sweep_answer(idle(ailing={name(1): FaultClass.fatal}), **suspect).kind is AnswerKind.hold
    assert sweep_answer(idle(jobs=[waiting()]), **suspect).kind is AnswerKind.hold


def test_not_beside_a_run_that_works_on_the_node() -> None:
    known = msgspec.structs.replace(idle(), running={name(1): "r9"})
    assert sweep_answer(known).why == f"Run r9 is active on {name(1)}."


def test_one_sweep_of_a_node() -> None:
    assert sweep_answer(idle(running={name(1): "other"})).kind is AnswerKind.hold
    assert sweep_answer(idle(running={name(1): "mine"}), run="mine").kind is AnswerKind.allow


def test_no_job_is_queued_for_the_node() -> None:
    held = sweep_answer(idle(jobs=[waiting()]))
    assert held.kind is AnswerKind.hold and "Job 9 is pending in train (Resources)" in held.why
    assert (
        sweep_answer(idle(jobs=[waiting(reason="Priority", partition="cpu,train")])).kind is AnswerKind.hold
    )


@pytest.mark.parametrize(
    "why",
    [
        {"reason": "Dependency"},
        {"reason": "QOSMaxGRESPerUser"},
        {"reason": "PartitionTimeLimit"},
        {"partition": "cpu"},
        {"excluded": (name(1),)},
        {"name": "healer-sweep-1a2b3c4d"},
        {"reservation": "class"},
    ],
)
def test_job_that_cannot_use_the_node_does_not_prevent_a_sweep(why: dict[str, Any]) -> None:
    known = idle(jobs=[waiting(**why)])
    assert known.snapshot is not None
    kept = {"class": Reservation(name="class", nodes=(name(2),))}
    known = msgspec.structs.replace(
        known, snapshot=msgspec.structs.replace(known.snapshot, reservations=kept)
    )
    assert sweep_answer(known).kind is AnswerKind.allow


def test_not_where_a_reservation_counts_on_the_node_soon() -> None:
    known = idle()
    for since, kind in ((None, "hold"), (later(minutes=50), "hold"), (later(hours=2), "allow")):
        kept = {"class": Reservation(name="class", nodes=(name(1),), since=since)}
        assert known.snapshot is not None
        shown = msgspec.structs.replace(known.snapshot, reservations=kept)
        assert sweep_answer(msgspec.structs.replace(known, snapshot=shown)).kind == kind


def test_in_its_turn_unless_a_person_asks() -> None:
    held = sweep_answer(idle(tested=TESTED))
    assert (held.kind, held.frees_at) == (AnswerKind.hold, later(days=1))
    assert sweep_answer(idle(tested={name(1): ago(days=7)})).kind is AnswerKind.allow
    assert sweep_answer(idle(begun={name(1): ago(minutes=59)})).frees_at == later(minutes=1)
    assert sweep_answer(idle(tested=TESTED), by="ann").kind is AnswerKind.allow


def test_a_run_that_has_begun_is_not_held_for_its_own_beginning() -> None:
    known = idle(running={name(1): "mine"}, begun={name(1): ago(seconds=1)})
    assert sweep_answer(known, run="mine").kind is AnswerKind.allow
    assert sweep_answer(idle(begun={name(1): ago(seconds=1)}), run="mine").kind is AnswerKind.hold


def test_a_person_passes_no_cap_and_takes_no_busy_node() -> None:
    assert sweep_answer(idle(jobs=[waiting()]), by="ann").kind is AnswerKind.hold
    assert sweep_answer(idle(32, running={name(2): "r2"}), by="ann").kind is AnswerKind.hold


@pytest.mark.parametrize("state", [BreakerState.open, BreakerState.half_open])
def test_not_in_a_storm(state: BreakerState) -> None:
    known = msgspec.structs.replace(idle(), breaker=Breaker(cluster=CLUSTER, state=state, why="a storm"))
    assert judge(swept(), known, rules(), NOW).outcome is Outcome.held


def test_never_a_protected_node() -> None:
    guards = GuardSettings(protected=("gpu*",))
    assert judge(swept(by="ann"), idle(), rules(guards), NOW).outcome is Outcome.refused


def test_unknown_is_held() -> None:
    assert sweep_answer(facts(4)).kind is AnswerKind.hold
    assert (
        sweep_answer(GateFacts(cluster=CLUSTER, snapshot=None, breaker=Breaker(cluster=CLUSTER))).kind
        is AnswerKind.hold
    )


# --- may it stay ---


def test_its_own_job_on_the_node_is_no_reason_to_go() -> None:
    known = idle(
        [node(1, state=("ALLOCATED",)), node(2)], tested=TESTED, running={name(1): "mine", name(2): "b"}
    )
    assert sweep_answer(known, granted=True, run="mine").kind is AnswerKind.allow


@pytest.mark.parametrize(
    "known",
    [
        idle(jobs=[waiting()]),
        idle([node(1, state=("ALLOCATED", "DRAIN")), node(2)]),
        idle([node(1, state=("DOWN",)), node(2)]),
        idle(ailing={name(1): FaultClass.fatal}),
    ],
)
def test_pending_job_drain_or_fatal_fault_ends_a_sweep(known: GateFacts) -> None:
    assert sweep_answer(known, granted=True).kind is AnswerKind.hold


def test_a_degraded_fault_may_be_its_own_doing_and_does_not_end_it() -> None:
    assert sweep_answer(idle(ailing={name(1): FaultClass.degraded}), granted=True).kind is AnswerKind.allow


# --- doctor ---


def test_cap_that_never_binds_is_reported_where_sweeps_are_scheduled() -> None:
    def said(nodes: int, **fields: Any) -> list[str]:
        known = facts(nodes)
        site = rules(GuardSettings(sweep=SweepSettings(**fields)))
        return [one.text for one in ineffective_limits(known, site, NOW) if one.guard is Guard.sweep]

    assert said(4, scheduled=True, max_share=1.0) == ["4 of 4 nodes can be in sweep at once"]
    assert said(4, max_share=1.0) == said(5, scheduled=True, max_share=1.0) == said(400, scheduled=True) == []


def test_no_other_proposal_is_asked() -> None:
    answers = judge(propose(Verb.drain), facts(32), rules(), NOW).answers
    assert Guard.sweep not in {one.guard for one in answers}
