"""One suite for the ledger in memory and the one on PostgreSQL: both must mean the same."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres import tables
from healer.adapters.postgres.inbox import PostgresInbox
from healer.adapters.postgres.ledger import PostgresLedger
from healer.adapters.postgres.snapshots import PostgresSnapshots
from healer.model import (
    AuditRecord,
    BreakerState,
    Command,
    CommandKind,
    Component,
    Decision,
    Evidence,
    FaultClass,
    Finding,
    GateFacts,
    Incident,
    IncidentState,
    LogEntry,
    Message,
    Mode,
    Observation,
    ObservationKind,
    Outcome,
    Pause,
    Remedy,
    RemedyUse,
    RequeueUse,
    Run,
    RunState,
    Severity,
    Slot,
    SlurmNode,
    SlurmSnapshot,
    StepEvent,
    Veto,
)
from healer.ports import AlreadyRequeued, LeaseLost, Ledger, RunClaim
from healer.sim.clock import SimClock
from healer.sim.ledger import MemoryLedger
from tests.support.wait import wait_until

START = datetime(2026, 11, 20, 3, tzinfo=UTC)
CLUSTER = "pod1"
#: Longer than the lease of a worker that died.
LEASE_S = 16


class Bench(Protocol):
    """A ledger under test, and what others write into it or read from it."""

    ledger: Ledger
    clock: SimClock

    def show(self, snapshot: SlurmSnapshot) -> None: ...
    def pause(self, pause: Pause) -> None: ...
    def mode(self, rule: str, mode: Mode) -> None: ...
    def decisions(self) -> list[Decision]: ...
    def findings(self) -> list[tuple[str, Finding]]: ...
    def audited(self) -> list[str]: ...
    def messages(self) -> list[str]: ...
    def commands(self) -> list[Command]: ...


class MemoryBench:
    def __init__(self) -> None:
        self.clock = SimClock(START)
        self.ledger = MemoryLedger(CLUSTER, self.clock)

    def show(self, snapshot: SlurmSnapshot) -> None:
        self.ledger.snapshot = snapshot

    def pause(self, pause: Pause) -> None:
        self.ledger.tables.pauses.append(pause)

    def mode(self, rule: str, mode: Mode) -> None:
        self.ledger.tables.modes[rule] = mode

    def decisions(self) -> list[Decision]:
        return self.ledger.tables.decisions

    def findings(self) -> list[tuple[str, Finding]]:
        return self.ledger.tables.findings

    def audited(self) -> list[str]:
        return [one.verb for one in self.ledger.tables.audit]

    def messages(self) -> list[str]:
        return list(self.ledger.tables.messages)

    def commands(self) -> list[Command]:
        return self.ledger.tables.commands


class PostgresBench:
    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self.clock = SimClock(START)
        self.snapshots = PostgresSnapshots(engine)
        self.ledger = PostgresLedger(
            engine, CLUSTER, snapshots=self.snapshots, clock=self.clock, has_sink=False
        )

    def show(self, snapshot: SlurmSnapshot) -> None:
        self.snapshots.put(snapshot)

    def pause(self, pause: Pause) -> None:
        self._insert(tables.pauses, **msgspec.structs.asdict(pause))

    def mode(self, rule: str, mode: Mode) -> None:
        self._insert(tables.rule_modes, rule=rule, mode=mode, by="ann", reason="x", at=self.clock.now())

    def decisions(self) -> list[Decision]:
        rows = self._read(sa.select(tables.decisions.c.doc).order_by(tables.decisions.c.id))
        return [msgspec.convert(row.doc, Decision) for row in rows]

    def findings(self) -> list[tuple[str, Finding]]:
        rows = self._read(sa.select(tables.findings).order_by(tables.findings.c.id))
        return [(row.incident, msgspec.convert(row.doc, Finding)) for row in rows]

    def audited(self) -> list[str]:
        rows = self._read(sa.select(tables.audit_records.c.verb).order_by(tables.audit_records.c.id))
        return [row.verb for row in rows]

    def messages(self) -> list[str]:
        return [row.id for row in self._read(sa.select(tables.messages.c.id).order_by(tables.messages.c.at))]

    def commands(self) -> list[Command]:
        seen = PostgresInbox(self.engine, CLUSTER).unconsumed(100)
        return [msgspec.convert(one.data, Command) for one in seen if one.kind is ObservationKind.command]

    def _insert(self, table: sa.Table, **values: Any) -> None:
        with self.engine.begin() as conn:
            conn.execute(sa.insert(table).values(**values))

    def _read(self, query: Any) -> Sequence[Any]:
        with self.engine.connect() as conn:
            return conn.execute(query).all()


@pytest.fixture(params=["memory", "postgres"])
def bench(request: pytest.FixtureRequest) -> Bench:
    if request.param == "memory":
        return MemoryBench()
    return PostgresBench(request.getfixturevalue("fresh_database"))


@pytest.fixture
def real(fresh_database: sa.Engine) -> Iterator[PostgresBench]:
    """For what only a database with several sessions can show."""
    yield PostgresBench(fresh_database)


def node(number: int = 1) -> str:
    return f"gpu{number:04d}"


def ago(seconds: float = 0, **span: float) -> datetime:
    return START - timedelta(seconds=seconds, **span)


def incident(number: int = 1, **fields: Any) -> Incident:
    given: dict[str, Any] = {
        "id": f"{number:032x}",
        "cluster": CLUSTER,
        "rule": "gpu-lost",
        "fault": "xid-79",
        "fault_class": FaultClass.fatal,
        "title": "GPU fell off the bus",
        "root": Component(cluster=CLUSTER, node=node(number), gpu=3),
        "opened": START,
        "updated": START,
        "settle_until": START,
        "severity": Severity.P1,
    }
    return Incident(**(given | fields))


def run(name: str = "r1", number: int | None = 1, **fields: Any) -> Run:
    given: dict[str, Any] = {
        "id": name,
        "cluster": CLUSTER,
        "playbook": "gpu-fatal",
        "state": RunState.running,
        "by": "healer",
        "reason": "GPU fell off the bus",
        "created_at": START,
        "node": node(number) if number else None,
        "rule": "gpu-lost",
    }
    return Run(**(given | fields))


def slot(number: int = 1, **fields: Any) -> Slot:
    given: dict[str, Any] = {"cluster": CLUSTER, "node": node(number), "incident": None, "run": "r1"}
    return Slot(**(given | {"granted_at": START} | fields))


def entry(step: str = "drain", event: StepEvent = StepEvent.done, **fields: Any) -> LogEntry:
    given: dict[str, Any] = {"run": "r1", "at": START, "epoch": 1, "step": step, "event": event}
    return LogEntry(**(given | fields))


def record(verb: str = "node.drained") -> AuditRecord:
    return AuditRecord(cluster=CLUSTER, at=START, actor="healer", verb=verb, subject="node/gpu0001")


def decision(**fields: Any) -> Decision:
    given: dict[str, Any] = {"at": START, "cluster": CLUSTER, "incident": None, "playbook": "gpu-fatal"}
    return Decision(**(given | {"outcome": Outcome.act, "why": "every guard allows it"} | fields))


def message(name: str = "m1") -> Message:
    return Message(id=name, cluster=CLUSTER, title="t", text="x", severity=Severity.P0, page=True)


def command(kind: CommandKind = CommandKind.jobs_hit, **data: Any) -> Command:
    return Command(kind=kind, cluster=CLUSTER, at=START, by="healer", incident="i", data=data)


def begin(bench: Bench, *runs: Run) -> None:
    with bench.ledger.transaction() as tx:
        for one in runs:
            tx.create_run(one)


def facts(bench: Bench) -> GateFacts:
    with bench.ledger.transaction() as tx:
        return tx.lock_gate()


def claimed(stack: ExitStack, bench: Bench, name: str = "r1") -> RunClaim:
    claim = stack.enter_context(bench.ledger.claim(name))
    assert claim is not None
    return claim


def free(bench: Bench, name: str = "r1") -> bool:
    with bench.ledger.claim(name) as claim:
        return claim is not None


class Broken(Exception):
    """What goes wrong at the end of a transaction."""


# --- one transaction, all or nothing ------------------------------------------------------------------------


def everything(bench: Bench, *, fail: bool = False) -> None:
    evidence = Evidence(digest="d", at=START, component=Component(cluster=CLUSTER, node=node()), text="x")
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
    with pytest.raises(Exception, match=r"runs_one_per_node|another run"), bench.ledger.transaction() as tx:
        tx.save_incident(incident())
        tx.create_run(run("r2"))
    with bench.ledger.transaction() as tx:
        assert tx.open_incidents() == []
        assert [one.id for one in tx.active_runs()] == ["r1"]


def test_no_run_becomes_the_second_running_one_either(bench: Bench) -> None:
    begin(bench, run(), run("r2", state=RunState.held))
    with pytest.raises(Exception, match=r"runs_one_per_node|another run"), bench.ledger.transaction() as tx:
        tx.set_run_state("r2", RunState.running, why="may go", at=START)


def test_waiting_shadow_and_nodeless_runs_stand_in_nobodys_way(bench: Bench) -> None:
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


def test_a_node_has_one_slot_and_the_first_keeps_it(bench: Bench) -> None:
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot(run="r1"))
        tx.grant_slot(slot(run="r2"))
    known = facts(bench)
    assert [one.run for one in known.slots] == ["r1"]
    assert len(known.granted) == 1


def test_a_slot_that_was_released_still_counts_for_its_hour(bench: Bench) -> None:
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot())
    with bench.ledger.transaction() as tx:
        tx.release_slot(node(), at=START, why="it returned")
    assert (facts(bench).slots, facts(bench).granted) == ((), (START,))
    bench.clock.advance(3601)
    assert facts(bench).granted == ()
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot(granted_at=bench.clock.now()))
    assert len(facts(bench).slots) == 1


def test_releasing_a_slot_that_nobody_holds_is_nothing(bench: Bench) -> None:
    with bench.ledger.transaction() as tx:
        tx.release_slot(node(), at=START, why="it returned")
    assert facts(bench).slots == ()


def test_a_slot_by_law_two_uses_up_no_hourly_slot(bench: Bench) -> None:
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot(unusable=True))
    known = facts(bench)
    assert [one.unusable for one in known.slots] == [True]
    assert known.granted == ()


def test_a_drain_that_was_read_back_stands_on_the_slot_with_its_remedy(bench: Bench) -> None:
    begin(bench, run())
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot())
    bench.clock.advance(5)
    with ExitStack() as stack:
        use = RemedyUse(node=node(), remedy=Remedy.drain_then_reset, rule="gpu-lost", at=bench.clock.now())
        claimed(stack, bench).drained(node(), use)
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


def test_actions_are_how_the_last_ten_removing_steps_ended(bench: Bench) -> None:
    begin(bench, run())
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        claim.write(entry("jobs", StepEvent.done))
        claim.write(entry("ticket", StepEvent.failed, data={"verb": "ticket"}))
        claim.write(entry("drain", StepEvent.started, data={"verb": "drain"}))
        for number in range(12):
            ended = StepEvent.failed if number % 3 == 0 else StepEvent.done
            at = START + timedelta(seconds=number)
            claim.write(entry(f"requeue:{number}", ended, at=at, data={"verb": "requeue"}))
    assert facts(bench).actions == tuple(number % 3 != 0 for number in range(2, 12))


# --- requeues -----------------------------------------------------------------------------------------------


def test_a_life_of_a_job_is_requeued_once_whoever_asks(bench: Bench) -> None:
    begin(bench, run("r1", 1), run("r2", 2))
    with ExitStack() as stack:
        first, second = claimed(stack, bench, "r1"), claimed(stack, bench, "r2")
        with first.gate() as tx:
            tx.add_requeue(RequeueUse(job="4711", restarts=0, at=START))
        with second.gate() as tx:
            with pytest.raises(AlreadyRequeued):
                tx.add_requeue(RequeueUse(job="4711", restarts=0, at=START))
            tx.write(entry("requeue:4711", StepEvent.skipped, run="r2"))  # the transaction goes on
        with second.gate() as tx:
            tx.add_requeue(RequeueUse(job="4711", restarts=1, at=START))
            tx.add_requeue(RequeueUse(job="4712", restarts=0, at=START))
    uses = {(one.job, one.restarts) for one in facts(bench).requeues}
    assert uses == {("4711", 0), ("4711", 1), ("4712", 0)}
    with bench.ledger.claim("r2") as again:
        assert again is None or [one.event for one in again.log()] == [StepEvent.skipped]
    bench.clock.advance(24 * 3600)
    assert facts(bench).requeues == ()


# --- claims -------------------------------------------------------------------------------------------------


def test_one_claim_at_a_time(bench: Bench) -> None:
    begin(bench, run())
    with ExitStack() as stack:
        claimed(stack, bench)
        assert not free(bench)


def test_the_next_claim_has_a_higher_epoch(bench: Bench) -> None:
    begin(bench, run())
    epochs = []
    for _ in range(3):
        with ExitStack() as stack:
            epochs.append(claimed(stack, bench).run.epoch)
        bench.clock.advance(LEASE_S)
    assert epochs == sorted(set(epochs))


@pytest.mark.parametrize(
    "state",
    [
        RunState.proposed,
        RunState.waiting_approval,
        RunState.held,
        RunState.waiting,
        RunState.stuck,
        RunState.done,
        RunState.cancelled,
    ],
)
def test_only_a_running_run_is_claimed(bench: Bench, state: RunState) -> None:
    begin(bench, run(state=state))
    assert not free(bench)
    assert bench.ledger.due_runs(START) == []


def test_a_run_that_nobody_knows_is_not_claimed(bench: Bench) -> None:
    assert not free(bench, "nobody")


def test_a_run_sleeps_until_its_moment(bench: Bench) -> None:
    begin(bench, run())
    with ExitStack() as stack:
        claimed(stack, bench).set_state(
            RunState.running, why="again in 10 s", wake_at=START + timedelta(seconds=10)
        )
    assert not free(bench)
    bench.clock.advance(10)
    assert free(bench)


def test_the_log_comes_back_in_order_with_all_that_was_written(bench: Bench) -> None:
    begin(bench, run())
    written = [
        entry("drain", StepEvent.started),
        entry("drain", StepEvent.done, text="Drained", data={"reason": "healer:x"}, attempt=2),
        entry("jobs", StepEvent.done, data={"jobs": {"4711": 0}}),
    ]
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        with claim.gate() as tx:
            tx.write(written[0])
        for one in written[1:]:
            claim.write(one, audit=record())
    bench.clock.advance(LEASE_S)
    with ExitStack() as stack:
        read = claimed(stack, bench).log()
    assert [msgspec.structs.replace(one, seq=0) for one in read] == written
    assert bench.audited() == ["node.drained"] * 2


def test_a_claim_sees_its_incident_as_it_is_now(bench: Bench) -> None:
    begin(bench, run(incident=incident().id))
    with bench.ledger.transaction() as tx:
        tx.save_incident(incident())
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        assert claim.incident() == incident()
        with bench.ledger.transaction() as tx:
            tx.save_incident(incident(title="more is known"))
        told = claim.incident()
        assert told is not None
        assert told.title == "more is known"


def test_a_claim_of_a_run_without_incident_has_none(bench: Bench) -> None:
    begin(bench, run())
    with ExitStack() as stack:
        assert claimed(stack, bench).incident() is None


def test_what_a_claim_sets_is_what_others_read(bench: Bench) -> None:
    begin(bench, run())
    with ExitStack() as stack:
        claimed(stack, bench).set_state(RunState.stuck, why="no", question="What now?")
    with bench.ledger.transaction() as tx:
        (one,) = tx.active_runs()
    assert (one.state, one.question) == (RunState.stuck, "What now?")


def test_commands_reach_the_detectors_inbox(bench: Bench) -> None:
    begin(bench, run())
    told = [command(jobs=["4711"]), command(CommandKind.run_changed, run="r1", state="waiting")]
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        for one in told:
            claim.tell(one)
    assert bench.commands() == told


def test_the_gate_of_a_claim_is_one_transaction(bench: Bench) -> None:
    begin(bench, run())
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        with pytest.raises(Broken), claim.gate() as tx:
            assert tx.facts.running == {node(): "r1"}
            tx.add_decision(decision())
            tx.grant_slot(slot())
            tx.add_requeue(RequeueUse(job="1", restarts=0, at=START))
            tx.write(entry())
            tx.audit(record())
            raise Broken
    bench.clock.advance(LEASE_S)
    with ExitStack() as stack:
        assert claimed(stack, bench).log() == []
    assert (facts(bench).slots, facts(bench).requeues) == ((), ())
    assert bench.decisions() == bench.audited() == []


def gate_write(claim: RunClaim) -> None:
    with claim.gate() as tx:
        tx.write(entry())


WRITES: dict[str, Callable[[RunClaim], None]] = {
    "write": lambda claim: claim.write(entry(), audit=record("late")),
    "gate": gate_write,
    "set_state": lambda claim: claim.set_state(RunState.done, why="late"),
    "tell": lambda claim: claim.tell(command()),
    "queue_message": lambda claim: claim.queue_message(message("late")),
    "drained": lambda claim: claim.drained(node(), None),
    "release_slot": lambda claim: claim.release_slot(node(), why="late"),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("state", [RunState.cancelled, RunState.waiting])
def test_nothing_is_written_for_a_run_that_a_person_has_taken_away(
    bench: Bench, write: str, state: RunState
) -> None:
    begin(bench, run())
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot())
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        with bench.ledger.transaction() as tx:
            tx.set_run_state("r1", state, why="ann", at=START)
        with pytest.raises(LeaseLost):
            WRITES[write](claim)
    with bench.ledger.transaction() as tx:
        assert [one.state for one in tx.active_runs()] == ([state] if state is RunState.waiting else [])
    assert [one.drained_at for one in facts(bench).slots] == [None]
    assert "late" not in [*bench.audited(), *bench.messages()]
    assert bench.commands() == []


# --- what only a database can show --------------------------------------------------------------------------


def test_a_run_whose_worker_died_is_taken_over_after_its_lease(real: PostgresBench) -> None:
    begin(real, run())
    with ExitStack() as stack:
        dead = claimed(stack, real)
        dead.write(entry("drain", StepEvent.started))
        kill_workers(real)
        assert not free(real)
        assert real.ledger.due_runs(real.clock.now()) == []
        real.clock.advance(LEASE_S)
        assert real.ledger.due_runs(real.clock.now()) == ["r1"]
        with ExitStack() as next_one:
            claim = claimed(next_one, real)
            assert claim.run.epoch > dead.run.epoch
            assert [one.event for one in claim.log()] == [StepEvent.started]
            with pytest.raises(LeaseLost):
                dead.fence()
            with pytest.raises((LeaseLost, sa.exc.DBAPIError)):
                dead.write(entry("drain", StepEvent.done))
            claim.write(entry("drain", StepEvent.done))


def kill_workers(real: PostgresBench) -> None:
    """Ends every session that holds a run, as the death of its process does."""
    with real.engine.connect() as conn:
        holders = sa.text(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        assert conn.execute(holders).all()


def test_a_worker_that_was_slow_may_not_start_an_effect(real: PostgresBench) -> None:
    begin(real, run())
    with ExitStack() as stack:
        claim = claimed(stack, real)
        claim.fence()
        real.clock.advance(9)  # less is left of the lease than a call to Slurm may take
        with pytest.raises(LeaseLost):
            claim.fence()
        claim.write(entry())  # nobody took it: a write makes the lease new
        claim.fence()


def test_while_its_session_lives_nobody_takes_a_run_over(real: PostgresBench) -> None:
    begin(real, run())
    with ExitStack() as stack:
        claim = claimed(stack, real)
        real.clock.advance(3600)
        assert not free(real)
        claim.write(entry())


def test_two_who_judge_at_once_come_one_after_the_other(real: PostgresBench) -> None:
    """The second sees the slot that the first has granted: caps cannot be passed side by side."""
    facts(real)
    seen: list[GateFacts] = []

    def second() -> None:
        with real.ledger.transaction() as tx:
            seen.append(tx.lock_gate())

    other = threading.Thread(target=second)
    with real.ledger.transaction() as tx:
        tx.lock_gate()
        other.start()
        wait_until(lambda: blocked(real), what="the second waits for the gate")
        assert seen == []
        tx.grant_slot(slot())
    other.join(timeout=10)
    assert [one.node for one in seen[0].slots] == [node()]


def blocked(real: PostgresBench) -> bool:
    with real.engine.connect() as conn:
        waiting = sa.text(
            "SELECT count(*) FROM pg_stat_activity "
            "WHERE wait_event_type = 'Lock' AND datname = current_database()"
        )
        return conn.execute(waiting).scalar_one() > 0


def test_signals_are_consumed_with_the_walk_or_not_at_all(real: PostgresBench) -> None:
    inbox = PostgresInbox(real.engine, CLUSTER)
    seen = Observation(
        digest="ab" * 32,
        kind=ObservationKind.xid,
        component=Component(cluster=CLUSTER, node=node()),
        event_at=START,
        arrived_at=START,
        code=79,
    )
    assert inbox.add([seen]) == 1
    batch = inbox.unconsumed(10)
    with pytest.raises(Broken), real.ledger.transaction() as tx:
        tx.save_incident(incident())
        tx.consume(batch)
        raise Broken
    assert len(inbox.unconsumed(10)) == 1
    with real.ledger.transaction() as tx:
        tx.save_incident(incident())
        tx.consume(batch)
    assert inbox.unconsumed(10) == []
    assert inbox.add([seen]) == 0
