"""One suite for the ledger in memory and the one on PostgreSQL: transactions, runs, and what guards see."""

from contextlib import ExitStack
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.loops import returned_nodes
from healer.model import (
    BreakerState,
    Cause,
    Component,
    Evidence,
    FaultBurst,
    FaultClass,
    Finding,
    Guard,
    IncidentState,
    IncidentVerdict,
    Inventory,
    Mode,
    Observation,
    ObservationKind,
    Pause,
    Remedy,
    RemedyUse,
    RequeueUse,
    Retest,
    RuledOut,
    RunState,
    Sense,
    Severity,
    SlurmNode,
    SlurmSnapshot,
    StepEvent,
    Ticket,
    Verdict,
    VerdictAt,
    Veto,
)
from healer.ports.commanding import NodeTaken
from healer.ports.transactions import AlreadyRequeued, GateTx
from tests.support.ledgers import (
    CLUSTER,
    START,
    Bench,
    Broken,
    PostgresBench,
    ago,
    begin,
    bench_of,
    claimed,
    decision,
    entry,
    facts,
    free,
    incident,
    message,
    node,
    record,
    run,
    slot,
)


@pytest.fixture(params=["memory", "postgres"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return bench_of(request)


# --- one transaction, all or nothing ------------------------------------------------------------------------


def everything(bench: Bench, *, fail: bool = False) -> None:
    where = Component(cluster=CLUSTER, node=node())
    evidence = Evidence(digest="d", at=START, component=where, text="x", sense=Sense.kernel)
    finding = Finding(
        rule="gpu-lost",
        fault="xid-79",
        fault_class=FaultClass.fatal,
        component=Component(cluster=CLUSTER, node=node()),
        at=START,
        arrived_at=START,
        text="x",
        confidence=1.0,
        evidence=(evidence,),
    )
    with bench.ledger.transaction() as tx:
        known = tx.lock_gate()
        tx.save_incident(incident())
        tx.add_findings(incident().id, [finding])
        tx.add_decision(decision())
        tx.create_run(run())
        tx.grant_slot(slot())
        tx.save_breaker(msgspec.structs.replace(known.breaker, state=BreakerState.open, why="storm"))
        tx.add_veto(Veto(node=node(2), by="ann", at=START, until=START + timedelta(hours=24)))
        tx.queue_message(message())
        tx.audit(record())
        if fail:
            raise Broken


def test_all_of_a_transaction_becomes_true(bench: Bench) -> None:
    everything(bench)
    known = facts(bench)
    with bench.ledger.transaction() as tx:
        assert [one.id for one in tx.open_incidents()] == [incident().id]
        assert tx.incident(incident().id) == incident()
        assert [one.id for one in tx.active_runs()] == ["r1"]
        assert tx.has_active_runs()
    assert [one.node for one in known.slots] == [node()]
    assert (known.breaker.state, known.breaker.why) == (BreakerState.open, "storm")
    assert [one.node for one in known.vetoes] == [node(2)]
    assert known.running == {node(): "r1"}
    assert len(bench.decisions()) == len(bench.findings()) == 1
    assert bench.audited() == ["node.drained"]
    assert bench.messages() == ["m1"]


def test_or_none_of_it(bench: Bench) -> None:
    with pytest.raises(Broken):
        everything(bench, fail=True)
    known = facts(bench)
    with bench.ledger.transaction() as tx:
        assert tx.open_incidents() == tx.active_runs() == []
        assert not tx.has_active_runs()
        assert tx.incident(incident().id) is None
    assert (known.slots, known.vetoes, known.running) == ((), (), {})
    assert known.breaker.state is BreakerState.closed
    assert bench.decisions() == bench.findings() == bench.audited() == bench.messages() == []
    assert bench.ledger.due_runs(START) == []


def test_open_incidents_are_those_open_and_those_that_opened_within_five_minutes(bench: Bench) -> None:
    over = {"state": IncidentState.resolved, "closed": START}
    with bench.ledger.transaction() as tx:
        tx.save_incident(incident(1, opened=ago(hours=30)))
        tx.save_incident(incident(2, opened=ago(299), **over))
        tx.save_incident(incident(3, opened=ago(301), **over))
        tx.save_incident(incident(4, opened=ago(hours=30), state=IncidentState.mitigating))
    with bench.ledger.transaction() as tx:
        assert {one.root.node for one in tx.open_incidents()} == {node(1), node(2), node(4)}
        kept = tx.incident(incident(3).id)
        assert kept is not None
        assert kept.state is IncidentState.resolved


def test_saving_an_incident_again_replaces_it(bench: Bench) -> None:
    for title in ("one", "two"):
        with bench.ledger.transaction() as tx:
            tx.save_incident(incident(title=title, jobs_hit=("4711",)))
    with bench.ledger.transaction() as tx:
        (one,) = tx.open_incidents()
    assert one == incident(title="two", jobs_hit=("4711",))


def test_an_incident_saved_twice_in_one_transaction_is_as_the_second_time(bench: Bench) -> None:
    with bench.ledger.transaction() as tx:
        for title in ("one", "two"):
            tx.save_incident(incident(title=title))
    with bench.ledger.transaction() as tx:
        assert [one.title for one in tx.open_incidents()] == ["two"]


def test_a_transaction_reads_what_it_wrote(bench: Bench) -> None:
    with bench.ledger.transaction() as tx:
        tx.save_incident(incident())
        tx.create_run(run())
        assert tx.incident(incident().id) == incident()
        tx.set_run_state(run().id, RunState.cancelled, why="x", at=START)
        tx.save_incident(incident(title="later"))
        assert [one.title for one in tx.open_incidents()] == ["later"]
        assert tx.active_runs() == []


def verdict(sentence: str) -> IncidentVerdict:
    return IncidentVerdict(
        nodes={node(): Verdict.isolate},
        cause=Cause.unclear,
        certainty=0.9,
        sentence=sentence,
        why=("a line",),
        set_aside=(RuledOut(at=START, what="Xid 45", why="teardown", count=3),),
        retest=Retest(name="read_again", text="Read it again."),
    )


def test_verdicts_are_kept_in_their_order_with_their_incident(bench: Bench) -> None:
    for number, at in ((1, START), (2, START), (1, START + timedelta(seconds=2))):
        with bench.ledger.transaction() as tx:
            tx.save_incident(incident(number))
            tx.add_verdict(incident(number).id, verdict(f"{number} {at:%S}"), at=at)
    assert bench.verdicts(incident(1).id) == [
        VerdictAt(at=START, verdict=verdict("1 00")),
        VerdictAt(at=START + timedelta(seconds=2), verdict=verdict("1 02")),
    ]
    assert len(bench.verdicts(incident(2).id)) == 1


def test_a_verdict_of_a_walk_that_failed_is_none(bench: Bench) -> None:
    with pytest.raises(Broken), bench.ledger.transaction() as tx:
        tx.save_incident(incident())
        tx.add_verdict(incident().id, verdict("x"), at=START)
        raise Broken
    assert bench.verdicts(incident().id) == []


def test_latest_self_report_of_a_node_is_kept(bench: Bench) -> None:
    old = Inventory(node="gpu0001", at=START, facts={"driver": "570.86", "bios": "1.4"})
    new = msgspec.structs.replace(
        old, at=START + timedelta(hours=1), facts={"driver": "580.65", "bios": "1.4"}
    )
    changed = {"driver": ("580.65", START + timedelta(hours=1))}
    new = msgspec.structs.replace(new, changed=changed, booted_at=START + timedelta(minutes=59))
    other = Inventory(node="gpu0002", at=START, facts={"kernel": "6.8.0"})
    with bench.ledger.transaction() as tx:
        tx.save_inventories([old, other])
    with bench.ledger.transaction() as tx:
        tx.save_inventories([new])
        assert tx.references() == []
    assert sorted(bench.ledger.inventories(), key=lambda one: one.node) == [new, other]


def test_the_walk_knows_what_a_job_can_go_back_to(bench: Bench) -> None:
    for step, durable in ((100, True), (200, False)):
        bench.save(
            Observation(
                digest=f"{step:064x}",
                kind=ObservationKind.checkpoint,
                component=Component(cluster=CLUSTER, job="4711"),
                event_at=START,
                arrived_at=START,
                data={"restart": 0, "step": step, "path": "/c", "durable": durable},
            )
        )
    with bench.ledger.transaction() as tx:
        found = tx.newest_durable("4711")
        assert tx.newest_durable("4712") is None
    assert found is not None
    assert (found.step, found.at) == (100, START)


def test_the_same_message_again_is_one(bench: Bench) -> None:
    for _ in range(2):
        with bench.ledger.transaction() as tx:
            tx.queue_message(message())
    assert bench.messages() == ["m1"]


def test_a_decision_is_stored_whole(bench: Bench) -> None:
    given = decision(incident=incident().id, run="r1", facts={"gpu_nodes": 32})
    with bench.ledger.transaction() as tx:
        tx.add_decision(given)
    assert bench.decisions() == [given]


# --- runs ---------------------------------------------------------------------------------------------------


def test_the_same_run_again_is_nothing(bench: Bench) -> None:
    begin(bench, run())
    begin(bench, run(reason="another word"))
    with bench.ledger.transaction() as tx:
        (one,) = tx.active_runs()
    assert one.reason == "GPU fell off the bus"


@pytest.mark.parametrize("state", [RunState.done, RunState.undone, RunState.rejected, RunState.cancelled])
def test_a_run_that_has_ended_is_no_active_one(bench: Bench, state: RunState) -> None:
    begin(bench, run())
    with bench.ledger.transaction() as tx:
        tx.set_run_state("r1", state, why="because", at=START)
    with bench.ledger.transaction() as tx:
        assert tx.active_runs() == []
    assert not free(bench)


def test_one_running_run_per_node(bench: Bench) -> None:
    begin(bench, run())
    with pytest.raises(NodeTaken), bench.ledger.transaction() as tx:
        tx.save_incident(incident())
        tx.create_run(run("r2"))
    with bench.ledger.transaction() as tx:
        assert tx.open_incidents() == []
        assert [one.id for one in tx.active_runs()] == ["r1"]


def test_no_run_becomes_the_second_running_one_either(bench: Bench) -> None:
    begin(bench, run(), run("r2", state=RunState.held))
    with pytest.raises(NodeTaken), bench.ledger.transaction() as tx:
        tx.set_run_state("r2", RunState.running, why="may go", at=START)


def test_waiting_shadow_and_nodeless_runs_block_no_other(bench: Bench) -> None:
    begin(
        bench,
        run("r1", state=RunState.waiting),
        run("r2", shadow=True),
        run("r3"),
        run("r4", number=None, job="1"),
        run("r5", number=None, job="2"),
    )
    assert facts(bench).running == {node(): "r3"}


def test_due_are_running_runs_whose_moment_has_come(bench: Bench) -> None:
    begin(bench, run("now", 1), run("held", 2, state=RunState.held), run("later", 3), run("waits", 4))
    with ExitStack() as stack:
        claimed(stack, bench, "later").set_state(
            RunState.running, why="later", wake_at=START + timedelta(seconds=60)
        )
        claimed(stack, bench, "waits").set_state(RunState.waiting, why="for somebody")
    assert bench.ledger.due_runs(START) == ["now"]
    bench.clock.advance(60)
    assert sorted(bench.ledger.due_runs(bench.clock.now())) == ["later", "now"]


def test_a_run_does_not_sleep_until_a_moment_of_a_clock_that_was_ahead(bench: Bench) -> None:
    """It was to look again after 5 s, by a host whose clock was an hour ahead."""
    begin(bench, run("asleep", 1))
    with ExitStack() as stack:
        moment = START + timedelta(hours=1, seconds=5)
        claimed(stack, bench, "asleep").set_state(RunState.running, why="looks again", wake_at=moment)
    assert bench.ledger.due_runs(START) == ["asleep"]
    with bench.ledger.claim("asleep") as claim:
        assert claim is not None


# --- what guards may look at --------------------------------------------------------------------------------


def test_the_facts_of_an_empty_cluster(bench: Bench) -> None:
    known = facts(bench)
    assert (known.cluster, known.snapshot) == (CLUSTER, None)
    assert known.breaker.state is BreakerState.closed
    assert (known.slots, known.granted, known.pauses, known.requeues, known.remedies) == ((), (), (), (), ())
    assert (known.vetoes, known.modes, known.actions, known.running) == ((), {}, (), {})


def test_slurms_picture_is_the_latest(bench: Bench) -> None:
    for state in ("IDLE", "ALLOCATED"):
        shown = SlurmNode(name=node(), state=(state,), gpus=8, partitions=("train",))
        bench.show(SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes={node(): shown}))
    known = facts(bench)
    assert known.snapshot is not None
    assert known.snapshot.taken_at == START
    assert known.snapshot.nodes[node()].state == ("ALLOCATED",)


def test_a_node_has_one_slot_and_what_is_not_used_yet_goes_to_the_later_run(bench: Bench) -> None:
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot(run="r1"))
        tx.grant_slot(slot(run="r2"))
    known = facts(bench)
    assert [one.run for one in known.slots] == ["r2"]
    assert len(known.granted) == 1


@pytest.mark.parametrize("state", [RunState.waiting, RunState.done])
def test_a_drained_nodes_slot_goes_on_to_another_run_once_its_own_has_ended(
    bench: Bench, state: RunState
) -> None:
    with bench.ledger.transaction() as tx:
        tx.create_run(run("r1"))
        tx.grant_slot(slot(run="r1", drained_at=START))
    with bench.ledger.transaction() as tx:
        tx.set_run_state("r1", state, why="", at=START)
        tx.grant_slot(slot(run="r2", incident="i2"))
    (held,) = facts(bench).slots
    taken = state is RunState.done
    assert (held.run, held.incident == "i2") == (("r2", True) if taken else ("r1", False))
    assert held.drained_at is not None


def test_a_slot_that_took_its_node_still_counts_for_its_hour_when_it_is_released(bench: Bench) -> None:
    begin(bench, run())
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot())
    with ExitStack() as stack:
        use = RemedyUse(node=node(), remedy=Remedy.none, rule="gpu-lost", at=START)
        claimed(stack, bench).write(entry(), drained=use)
    with bench.ledger.transaction() as tx:
        tx.release_slot(node(), at=START, why="it returned")
    assert (facts(bench).slots, facts(bench).granted) == ((), (START,))
    bench.clock.advance(3601)
    assert facts(bench).granted == ()
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot(granted_at=bench.clock.now()))
    assert len(facts(bench).slots) == 1


def test_a_slot_is_read_as_its_run_left_it(bench: Bench) -> None:
    begin(bench, run())
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot())
        (granted,) = tx.lock_gate().slots
        assert tx.slot_of(node()) == granted
        assert tx.slot_of(node(2)) is None
    with ExitStack() as stack:
        use = RemedyUse(node=node(), remedy=Remedy.none, rule="gpu-lost", at=START)
        claimed(stack, bench).write(entry(), drained=use)
    (drained,) = facts(bench).slots
    with bench.ledger.transaction() as tx:
        assert tx.slot_of(node()) == drained != granted
        tx.release_slot(node(), at=START, why="it returned")
        assert tx.slot_of(node()) is None


def test_a_slot_that_took_nothing_is_no_slot_of_its_hour_once_it_is_released(bench: Bench) -> None:
    begin(bench, run())
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        claim.gate(lambda tx: tx.grant_slot(slot()))
        assert facts(bench).granted == (START,)
        why = "its run could not drain the node"
        claim.gate(lambda tx: tx.release_slot(node(), at=START, why=why))
    assert (facts(bench).slots, facts(bench).granted) == ((), ())


def test_a_restarted_detector_takes_no_node_for_returned_that_was_never_drained(
    fresh_database: sa.Engine,
) -> None:
    bench = PostgresBench(fresh_database)
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot(1, drained_at=START))
        tx.grant_slot(slot(2))
        for number in (1, 2):
            tx.release_slot(node(number), at=START + timedelta(minutes=1), why="x")
    with fresh_database.connect() as conn:
        assert [name for name, _ in returned_nodes(conn, CLUSTER)] == [node(1)]


def test_a_slot_granted_and_released_in_one_question_is_free(bench: Bench) -> None:
    begin(bench, run())

    def judge(tx: GateTx) -> None:
        tx.grant_slot(slot())
        tx.release_slot(node(), at=START, why="x")

    with ExitStack() as stack:
        claimed(stack, bench).gate(judge)
    assert facts(bench).slots == ()


def test_releasing_a_free_slot_is_a_no_op(bench: Bench) -> None:
    with bench.ledger.transaction() as tx:
        tx.release_slot(node(), at=START, why="it returned")
    assert facts(bench).slots == ()


def test_a_slot_by_law_two_uses_up_no_hourly_slot(bench: Bench) -> None:
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot(unusable=True))
    known = facts(bench)
    assert [one.unusable for one in known.slots] == [True]
    assert known.granted == ()


def test_confirmed_drain_is_stored_on_the_slot_with_its_remedy(bench: Bench) -> None:
    begin(bench, run())
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot())
    bench.clock.advance(5)
    use = RemedyUse(
        node=node(),
        remedy=Remedy.drain_then_reset,
        rule="gpu-lost",
        at=bench.clock.now(),
        incident=incident().id,
    )
    with ExitStack() as stack:
        claimed(stack, bench).write(entry(), drained=use)
    known = facts(bench)
    assert known.slots[0].drained_at == START + timedelta(seconds=5)
    assert known.remedies == (use,)
    bench.clock.advance(24 * 3600 + 1)
    assert facts(bench).remedies == ()


def test_pauses_count_until_their_end(bench: Bench) -> None:
    ends = START + timedelta(minutes=10)
    bench.pause(Pause(id="p1", scope="all", name="", by="ann", reason="x", since=START))
    bench.pause(
        Pause(
            id="p2", scope="node", name=node(), by="ann", reason="x", since=START, until=ends, cluster=CLUSTER
        )
    )
    assert {one.id for one in facts(bench).pauses} == {"p1", "p2"}
    bench.clock.advance(600)
    assert [one.id for one in facts(bench).pauses] == ["p1"]


def test_vetoes_count_until_their_end(bench: Bench) -> None:
    veto = Veto(node=node(), by="ann", at=START, until=START + timedelta(hours=24))
    with bench.ledger.transaction() as tx:
        tx.add_veto(veto)
    assert facts(bench).vetoes == (veto,)
    bench.clock.advance(24 * 3600)
    assert facts(bench).vetoes == ()


def test_a_clock_that_is_ahead_ends_neither_a_pause_nor_a_veto_and_forgets_no_grant(
    fresh_database: sa.Engine,
) -> None:
    bench = PostgresBench(fresh_database)
    now = datetime.now(UTC)
    ends = now + timedelta(minutes=10)
    bench.pause(Pause(id="p1", scope="all", name="", by="ann", reason="x", since=now, until=ends))
    with bench.ledger.transaction() as tx:
        tx.create_run(run())
        tx.grant_slot(msgspec.structs.replace(slot(), granted_at=now))
        tx.add_veto(Veto(node=node(2), by="ann", at=now, until=ends))
    bench.clock.advance((now - START).total_seconds() + 7200)
    known = facts(bench)
    assert ([one.id for one in known.pauses], len(known.vetoes), len(known.granted)) == (["p1"], 1, 1)
    assert known.read_at is not None and abs(known.read_at - now) < timedelta(minutes=1)
    with ExitStack() as stack:
        assert claimed(stack, bench).paused()


def test_modes_set_while_running(bench: Bench) -> None:
    bench.mode("gpu-lost", Mode.suggest)
    assert facts(bench).modes == {"gpu-lost": Mode.suggest}


def test_the_breaker_is_kept_whole(bench: Bench) -> None:
    with bench.ledger.transaction() as tx:
        known = tx.lock_gate()
        opened = msgspec.structs.replace(
            known.breaker, state=BreakerState.half_open, since=START, reset_by="ann", canary="r7"
        )
        tx.save_breaker(opened)
    assert facts(bench).breaker == opened


def test_actions_are_how_the_last_ten_steps_that_took_a_node_ended(bench: Bench) -> None:
    """A step ends done, or failed for good: attempts between are no end, and a requeue takes no node."""
    begin(bench, run())
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        claim.write(entry("jobs", StepEvent.done))
        claim.write(entry("requeue:1", StepEvent.failed, data={"verb": "requeue", "final": True}))
        claim.write(entry("ticket", StepEvent.failed, data={"verb": "ticket", "final": True}))
        for number in range(12):
            at = START + timedelta(seconds=number)
            claim.write(entry("drain", StepEvent.started, at=at, data={"verb": "drain"}))
            claim.write(entry("drain", StepEvent.failed, at=at, data={"verb": "drain"}))
            if number % 3:
                claim.write(entry("drain", StepEvent.done, at=at, data={"verb": "drain"}))
            else:
                claim.write(entry("drain", StepEvent.failed, at=at, data={"verb": "drain", "final": True}))
    assert facts(bench).actions == tuple(number % 3 != 0 for number in range(2, 12))
    with bench.ledger.transaction() as tx:  # a person has reset it, and its canary did well
        closed = msgspec.structs.replace(tx.lock_gate().breaker, since=START + timedelta(seconds=8))
        tx.save_breaker(closed)
    assert facts(bench).actions == (False, True, True)


def test_runs_waiting_for_capacity_are_listed_with_their_urgency(bench: Bench) -> None:
    """A cap holds one run at its start and one at a step; runs that wait for people are not listed."""
    slots, asks, held, shadow = (incident(number) for number in range(1, 5))
    slots = msgspec.structs.replace(slots, held_by=Guard.slots, severity=Severity.P1, jobs_hit=("4711",))
    asks = msgspec.structs.replace(asks, held_by=Guard.approval)
    shadow = msgspec.structs.replace(shadow, held_by=Guard.slots)
    with bench.ledger.transaction() as tx:
        for one in (slots, asks, held, shadow):
            tx.save_incident(one)
    begin(
        bench,
        run("r1", 1, state=RunState.held, incident=slots.id),
        run("r2", 2, state=RunState.held, incident=asks.id),
        run("r3", 3, incident=held.id),
        run("r4", 4, state=RunState.held, incident=shadow.id, shadow=True),
        run("r5", 5),
    )
    with ExitStack() as stack:
        claim = claimed(stack, bench, "r3")
        wake = START + timedelta(seconds=1)
        claim.write(entry("drain", StepEvent.held, run="r3", data={"guard": "floor"}))
        claim.set_state(RunState.running, why="the floor", wake_at=wake, question="the floor")
    waiting = {one.run: one for one in facts(bench).waiting}
    assert set(waiting) == {"r1", "r3"}
    first = waiting["r1"]
    assert (first.node, first.guard, first.severity) == (node(), Guard.slots, Severity.P1)
    assert (first.since, first.jobs) == (slots.opened, ("4711",))
    assert waiting["r3"].guard is Guard.floor


# --- requeues -----------------------------------------------------------------------------------------------


def test_a_restart_that_came_to_nothing_counts_no_more_and_another_run_may_have_it(bench: Bench) -> None:
    begin(bench, run("r1", 1), run("r2", 2))
    life = RequeueUse(job="4711", restarts=0, at=START)
    with ExitStack() as stack:
        first, second = claimed(stack, bench, "r1"), claimed(stack, bench, "r2")
        for _ in range(2):  # the same run's is the same
            first.gate(lambda tx: tx.add_requeue(life))

        def another(tx: GateTx) -> None:
            tx.drop_requeue("4711", 0)  # not its own
            with pytest.raises(AlreadyRequeued) as taken:
                tx.add_requeue(life)
            assert taken.value.run == "r1"

        second.gate(another)
        first.gate(lambda tx: tx.drop_requeue("4711", 0))
        assert facts(bench).requeues == ()
        second.gate(lambda tx: tx.add_requeue(life))
    assert [(one.job, one.restarts) for one in facts(bench).requeues] == [("4711", 0)]


def test_a_restart_of_a_run_that_has_ended_is_the_next_ones(bench: Bench) -> None:
    begin(bench, run("r1", 1), run("r2", 2))
    life = RequeueUse(job="4711", restarts=0, at=START)
    with ExitStack() as stack:
        first, second = claimed(stack, bench, "r1"), claimed(stack, bench, "r2")
        first.gate(lambda tx: tx.add_requeue(life))
        first.set_state(RunState.done, why="x")
        again = RequeueUse(job="4711", restarts=0, at=bench.clock.now() + timedelta(hours=23), incident="i2")
        second.gate(lambda tx: tx.add_requeue(again))
        assert facts(bench).requeues == (again,), "its day begins again, and it is of the next run's incident"

        def another(tx: GateTx) -> None:
            with pytest.raises(AlreadyRequeued) as taken:
                tx.add_requeue(life)
            assert taken.value.run == "r2"

        begin(bench, run("r3", 3))
        claimed(stack, bench, "r3").gate(another)


def test_job_life_is_requeued_once_regardless_of_requester(bench: Bench) -> None:
    begin(bench, run("r1", 1), run("r2", 2))
    with ExitStack() as stack:
        first, second = claimed(stack, bench, "r1"), claimed(stack, bench, "r2")
        first.gate(lambda tx: tx.add_requeue(RequeueUse(job="4711", restarts=0, at=START)))

        def another(tx: GateTx) -> None:
            with pytest.raises(AlreadyRequeued):
                tx.add_requeue(RequeueUse(job="4711", restarts=0, at=START))
            tx.write(entry("requeue:4711", StepEvent.skipped, run="r2"))  # the transaction goes on

        second.gate(another)
        for use in (("4711", 1), ("4712", 0)):
            life = RequeueUse(job=use[0], restarts=use[1], at=START)
            second.gate(lambda tx, life=life: tx.add_requeue(life))
    uses = {(one.job, one.restarts) for one in facts(bench).requeues}
    assert uses == {("4711", 0), ("4711", 1), ("4712", 0)}
    with bench.ledger.claim("r2") as again:
        assert again is None or [one.event for one in again.log()] == [StepEvent.skipped]
    bench.clock.advance(24 * 3600)
    assert facts(bench).requeues == ()


# --- what parts have had -----------------------------------------------------------------------------------


def burst(fault: str, minutes: float, **fields: object) -> FaultBurst:
    given = {
        "cluster": CLUSTER,
        "node": node(),
        "part": "GPU-1",
        "fault": fault,
        "fault_class": FaultClass.degraded,
        "began_at": ago(minutes=minutes),
        "last_at": ago(minutes=minutes),
    }
    return msgspec.convert(given | fields, FaultBurst)


def test_a_burst_that_goes_on_is_one_and_old_ones_stay_away(bench: Bench) -> None:
    first = burst("xid-31", 60, jobs=("7",), units=("GPC 1 TPC 2",), incident="i1")
    longer = msgspec.structs.replace(first, last_at=ago(minutes=30), count=9, users=("ann",))
    with bench.ledger.transaction() as tx:
        tx.save_bursts([first, burst("xid-63", 10), burst("xid-31", 600)])
        tx.save_bursts([])
    with bench.ledger.transaction() as tx:
        tx.save_bursts([longer])
    assert bench.ledger.bursts(ago(minutes=120)) == [longer, burst("xid-63", 10)]
    assert len(bench.ledger.bursts(ago(minutes=700))) == 3


def test_bursts_of_a_walk_that_failed_are_none(bench: Bench) -> None:
    with pytest.raises(Broken), bench.ledger.transaction() as tx:
        tx.save_bursts([burst("xid-31", 60)])
        raise Broken
    assert bench.ledger.bursts(ago(minutes=120)) == []


# --- tickets ------------------------------------------------------------------------------------------------


def test_the_ledger_knows_whether_a_ticket_was_filed(bench: Bench) -> None:
    filed = Ticket(
        id=f"{incident().id}:ticket",
        cluster=CLUSTER,
        node=node(),
        incident=incident().id,
        title="t",
        text="x",
    )
    with bench.ledger.transaction() as tx:
        assert not tx.has_ticket(incident().id)
        tx.queue_message(msgspec.structs.replace(message(), incident=incident().id))
        assert not tx.has_ticket(incident().id)
        tx.queue_message(filed)
        assert tx.has_ticket(incident().id)
        assert not tx.has_ticket(incident(2).id)


def test_steps_of_an_incident_are_those_of_its_runs_and_of_later_ones_on_its_node(bench: Bench) -> None:
    one = incident()
    before = run("before", created_at=ago(60), state=RunState.done)
    own = run("own", 2, incident=one.id, state=RunState.done)
    by_hand = run("hand", state=RunState.running)
    other = run("other", 3)
    watched = run("shadow", incident=one.id, shadow=True)
    with bench.ledger.transaction() as tx:
        tx.save_incident(one)
        tx.save_incident(incident(2))
    for made in (before, own, by_hand, other, watched):
        begin(bench, msgspec.structs.replace(made, state=RunState.running))
        with ExitStack() as stack:
            claimed(stack, bench, made.id).write(entry(f"step-of-{made.id}", run=made.id))
        if made.state is RunState.done:
            with bench.ledger.transaction() as tx:
                tx.set_run_state(made.id, RunState.done, why="x", at=START)
    with bench.ledger.transaction() as tx:
        assert [step.step for step in tx.steps_of(one)] == ["step-of-own", "step-of-hand"]
        device = incident(2, root=Component(cluster=CLUSTER, device="pdu-r01"))
        assert tx.steps_of(device) == []


# --- new and changed rules ----------------------------------------------------------------------------------


def test_changed_texts_are_on_trial_until_enough_runs_were_let_go(bench: Bench) -> None:
    ledger, first = bench.ledger, {"rule/a": "1", "playbook/p": "1"}
    assert ledger.note_texts(first, 2, START) == []
    assert ledger.note_texts({"rule/a": "2", "playbook/p": "1"}, 2, START) != []
    changed = {"rule/a": "2", "playbook/p": "1", "rule/new": "1"}
    noted = ledger.note_texts(changed, 2, ago(0))
    assert [(one.name, one.digest, one.left) for one in sorted(noted, key=lambda one: one.name)] == [
        ("rule/a", "2", 2), ("rule/new", "1", 2),
    ]  # fmt: skip
    assert {(one.name, one.left) for one in facts(bench).trials} == {("rule/a", 2), ("rule/new", 2)}
    assert bench.audited() == ["rules.changed", "rules.changed"]

    def began(id: str, **fields: object) -> None:
        begin(bench, msgspec.structs.replace(run(id), node=node(int(id[1:])), rule="a", **fields))

    began("r1")  # healer's own, which no person let go
    began("r2", approved_by="ann", shadow=True)
    began("r3", approved_by="ann", created_at=START - timedelta(hours=1))
    assert {one.left for one in ledger.note_texts(changed, 2, START)} == {2}
    began("r4", approved_by="ann")
    assert {one.name: one.left for one in ledger.note_texts(changed, 2, START)} == {
        "rule/a": 1,
        "rule/new": 2,
    }
    began("r5", by="ben")
    assert [one.name for one in ledger.note_texts(changed, 2, START)] == ["rule/new"]
    assert {one.name for one in facts(bench).trials} == {"rule/new"}
    assert ledger.note_texts(first | {"rule/new": "1"}, 2, START)[0].name == "rule/new"


def test_a_text_known_by_its_former_digest_keeps_its_record(bench: Bench) -> None:
    ledger = bench.ledger
    ledger.note_texts({"rule/a": "old a", "rule/b": "old b", "rule/c": "other c"}, 2, START)
    ledger.note_texts({"rule/a": "old a", "rule/b": "older b", "rule/c": "other c"}, 2, START)
    digests = {
        "rule/a": ("a", "old a"),
        "rule/b": ("b", "older b"),
        "rule/c": ("c", "old c"),
        "rule/d": ("d", "old d"),
    }
    for _ in range(2):
        ledger.rename_texts(digests)
    noted = ledger.note_texts({name: digest for name, (digest, _) in digests.items()}, 2, ago(0))
    assert [(one.name, one.digest, one.since) for one in sorted(noted, key=lambda one: one.name)] == [
        ("rule/b", "b", START), ("rule/c", "c", ago(0)), ("rule/d", "d", ago(0)),
    ]  # fmt: skip


def test_what_one_run_holds_alone_no_other_run_has(bench: Bench) -> None:
    begin(bench, run("one", 1), run("other", 2))
    with ExitStack() as stack:
        one, other = claimed(stack, bench, "one"), claimed(stack, bench, "other")
        with (
            one.alone("spares a") as first,
            other.alone("spares a") as second,
            other.alone("spares b") as third,
        ):
            assert (first, second, third) == (True, False, True)
        with other.alone("spares a") as then:
            assert then
