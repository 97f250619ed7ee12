"""One suite for the ledger in memory and the one on PostgreSQL: who holds a run, and what is written."""

import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.engine import alone, make_engine
from healer.adapters.postgres.inbox import PostgresInbox
from healer.adapters.postgres.loops import DEAD_AFTER_S, FrozenWorkers, lock_held
from healer.adapters.postgres.node_rows import save_reference
from healer.model import (
    CommandKind,
    Component,
    GateFacts,
    IncidentState,
    Observation,
    ObservationKind,
    Reference,
    Remedy,
    RemedyUse,
    RequeueUse,
    RunState,
    StepEvent,
    Ticket,
)
from healer.ports.transactions import GateTx, LeaseLost, LedgerAway, RunClaim
from tests.support.ledgers import (
    CLUSTER,
    LEASE_S,
    START,
    Bench,
    Broken,
    PostgresBench,
    begin,
    bench_of,
    claimed,
    command,
    decision,
    entry,
    facts,
    free,
    incident,
    lock_waits,
    message,
    node,
    pass_lease,
    record,
    run,
    slot,
)
from tests.support.wait import wait_until


@pytest.fixture(params=["memory", "postgres"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return bench_of(request)


@pytest.fixture
def real(fresh_database: sa.Engine) -> PostgresBench:
    """For what only a database with several sessions can show."""
    return PostgresBench(fresh_database)


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
        pass_lease(bench)
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


def test_unknown_run_is_not_claimed(bench: Bench) -> None:
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
        claim.gate(lambda tx: tx.write(written[0]))
        for one in written[1:]:
            claim.write(one, audit=record())
    pass_lease(bench)
    with ExitStack() as stack:
        read = claimed(stack, bench).log()
    assert [msgspec.structs.replace(one, seq=0) for one in read] == written
    assert bench.audited() == ["node.drained"] * 2


def test_a_log_takes_what_a_command_printed_though_the_database_cannot_hold_it(real: PostgresBench) -> None:
    """A NUL, and half of a surrogate pair: else a step that was done would fail inside healer."""
    begin(real, run())
    said = {"output": "slot\x003 \ud83d \\u0000", "passed": True}
    with ExitStack() as stack:
        claim = claimed(stack, real)
        claim.gate(lambda tx: tx.write(entry(event=StepEvent.started, text=said["output"])))
        claim.write(entry(text=said["output"], data=said), audit=record())
    pass_lease(real)
    with ExitStack() as stack:
        read = claimed(stack, real).log()
    kept = "slot\ufffd3 \ufffd \\u0000"
    assert [one.text for one in read] == [kept] * 2
    assert read[1].data == {"output": kept, "passed": True}


def test_a_claim_sees_its_incident_as_it_is_now(bench: Bench) -> None:
    begin(bench, run(incident=incident().id))
    with bench.ledger.transaction() as tx:
        tx.save_incident(incident())
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        assert claim.incident() == incident()
        with bench.ledger.transaction() as tx:
            tx.save_incident(incident(title="more is known"))
        claimed_incident = claim.incident()
        assert claimed_incident is not None
        assert claimed_incident.title == "more is known"


def test_a_claim_of_a_run_without_incident_has_none(bench: Bench) -> None:
    begin(bench, run())
    with ExitStack() as stack:
        assert claimed(stack, bench).incident() is None


def test_a_claim_knows_the_bad_nodes_that_must_stay_in_service(bench: Bench) -> None:
    begin(bench, run())
    kept = {"known_bad_in_service": True}
    with bench.ledger.transaction() as tx:
        tx.save_incident(incident(2, **kept))
        tx.save_incident(incident(3))
        tx.save_incident(incident(4, state=IncidentState.resolved, **kept))
        tx.save_incident(incident(5, root=Component(cluster=CLUSTER, job="1"), **kept))
    with ExitStack() as stack:
        assert claimed(stack, bench).known_bad() == {node(2)}


def test_a_claim_knows_which_nodes_are_on_probation(bench: Bench) -> None:
    begin(bench, run())
    now = bench.clock.now()
    back = {"state": IncidentState.resolved, "closed": now - timedelta(days=1)}
    with bench.ledger.transaction() as tx:
        tx.save_incident(incident(2, probation_until=now + timedelta(days=6), **back))
        tx.save_incident(incident(3, probation_until=now - timedelta(hours=1), **back))
        tx.save_incident(incident(4, **back))
    with ExitStack() as stack:
        assert claimed(stack, bench).on_probation() == {node(2): now + timedelta(days=6)}


def test_a_claim_knows_what_its_node_has_had(bench: Bench) -> None:
    begin(bench, run())
    here = {"root": Component(cluster=CLUSTER, node=node(1), gpu=3)}
    days = [START - timedelta(days=number) for number in range(30)]
    ended = {"state": IncidentState.resolved, **here}
    with bench.ledger.transaction() as tx:
        tx.save_incident(incident(1, opened=days[3], **here))
        tx.save_incident(incident(2, opened=days[20], closed=days[9], **ended))
        tx.save_incident(incident(3, opened=days[25], closed=days[20], **ended))
        tx.save_incident(incident(4, opened=days[2], closed=days[1], merged_into=incident(1).id, **ended))
        tx.save_incident(incident(5, opened=days[2]))
        ticket = Ticket(id="t", cluster=CLUSTER, node=node(1), incident=incident(2).id, title="RMA", text="")
        tx.queue_message(ticket)
    with ExitStack() as stack:
        found = claimed(stack, bench).history(node(1), days[14])
    assert [one.id for one in found.incidents] == [incident(2).id, incident(1).id]
    assert found.ticketed == {incident(2).id}


def test_a_claim_knows_the_good_nodes_of_its_cluster(real: PostgresBench) -> None:
    begin(real, run())
    good = Reference(
        cluster=CLUSTER,
        kind="h100",
        node=node(1),
        at=START,
        by="ann",
        facts={"driver": "580"},
        figures={"a": 1.5},
    )
    with real.engine.begin() as conn:
        for one in (good, msgspec.structs.replace(good, cluster="other")):
            save_reference(conn, one)
    with ExitStack() as stack:
        assert claimed(stack, real).references() == [good]


def test_a_claim_knows_the_number_on_a_gpu_that_its_node_does_not_list_any_more(real: PostgresBench) -> None:
    begin(real, run())
    board = {"index": 3, "pci": "0000:9b:00", "uuid": "GPU-3", "serial": "1652922"}
    other = board | {"index": 2, "pci": "0000:5d:00", "uuid": "GPU-2", "serial": "1652921"}
    for number, gpus in enumerate(([other, board], [other])):
        beat = Observation(
            kind=ObservationKind.heartbeat, component=Component(cluster=CLUSTER, node=node(1)),
            event_at=START, arrived_at=START, digest=f"{number:032x}", data={"gpus": gpus},
        )  # fmt: skip
        PostgresInbox(real.engine, CLUSTER).add([beat])
    with ExitStack() as stack:
        claim = claimed(stack, real)
        for place in ({"gpu": 3}, {"gpu": 7, "pci": "0000:9b:00"}):
            assert claim.reported_gpu(Component(cluster=CLUSTER, node=node(1), **place)) == board
        for nowhere in ({"gpu": 5}, {}):
            assert claim.reported_gpu(Component(cluster=CLUSTER, node=node(1), **nowhere)) == {}
        assert claim.reported_gpu(Component(cluster=CLUSTER, node=node(2), gpu=3)) == {}


def test_state_set_by_a_claim_is_visible_to_other_readers(bench: Bench) -> None:
    begin(bench, run())
    with ExitStack() as stack:
        claimed(stack, bench).set_state(RunState.stuck, why="no", question="What now?")
    with bench.ledger.transaction() as tx:
        (one,) = tx.active_runs()
    assert (one.state, one.question) == (RunState.stuck, "What now?")


def test_commands_reach_the_detectors_inbox(bench: Bench) -> None:
    begin(bench, run())
    commands = [command(jobs=["4711"]), command(CommandKind.run_changed, run="r1", state="waiting")]
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        for one in commands:
            claim.send_command(one)
        claim.write(entry())
    assert bench.commands() == commands


def _says(claim: RunClaim) -> None:
    """All that waits for what is written next."""
    claim.keep(entry("jobs", StepEvent.done))
    claim.send_command(command())
    claim.queue_message(message("told"))
    claim.release_slot(node(), why="it is back")


NEXT: dict[str, Callable[[RunClaim], None]] = {
    "write": lambda claim: claim.write(entry("ticket", StepEvent.started)),
    "gate": lambda claim: claim.gate(lambda tx: tx.write(entry("ticket", StepEvent.started))),
    "set_state": lambda claim: claim.set_state(RunState.waiting, why="for the repair"),
}


@pytest.mark.parametrize("following", NEXT)
def test_pending_commands_and_messages_are_stored_with_the_next_write(bench: Bench, following: str) -> None:
    begin(bench, run())
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot())
    with ExitStack() as stack:
        claim = claimed(stack, bench)
        _says(claim)
        assert (bench.commands(), bench.messages(), len(facts(bench).slots)) == ([], [], 1)
        NEXT[following](claim)
        assert (bench.commands(), bench.messages()) == ([command()], ["told"])
        assert facts(bench).slots == ()
        claim.set_state(RunState.running, why="at once", wake_at=START)
        assert bench.commands() == [command()]
    with ExitStack() as stack:
        steps = [one.step for one in claimed(stack, bench).log()]
    assert steps == ["jobs", "ticket"][: 1 if following == "set_state" else 2]


def test_of_a_worker_that_dies_before_it_writes_nothing_was_said(bench: Bench) -> None:
    begin(bench, run())
    with bench.ledger.transaction() as tx:
        tx.grant_slot(slot())
    with ExitStack() as stack:
        _says(claimed(stack, bench))
    assert (bench.commands(), bench.messages(), len(facts(bench).slots)) == ([], [], 1)
    pass_lease(bench)
    with ExitStack() as stack:
        assert claimed(stack, bench).log() == []


def test_next_write_stores_commands_that_a_failed_gate_left(bench: Bench) -> None:
    begin(bench, run())

    def breaks(tx: GateTx) -> None:
        raise Broken

    with ExitStack() as stack:
        claim = claimed(stack, bench)
        claim.send_command(command())
        with pytest.raises(Broken):
            claim.gate(breaks)
        assert bench.commands() == []
        claim.write(entry())
    assert bench.commands() == [command()]


def test_the_gate_of_a_claim_is_one_transaction(bench: Bench) -> None:
    begin(bench, run())
    with ExitStack() as stack:
        claim = claimed(stack, bench)

        def breaks(tx: GateTx) -> None:
            assert tx.facts.running == {node(): "r1"}
            tx.add_decision(decision())
            tx.grant_slot(slot())
            tx.add_requeue(RequeueUse(job="1", restarts=0, at=START))
            tx.write(entry())
            tx.audit(record())
            raise Broken

        with pytest.raises(Broken):
            claim.gate(breaks)
    pass_lease(bench)
    with ExitStack() as stack:
        assert claimed(stack, bench).log() == []
    assert (facts(bench).slots, facts(bench).requeues) == ((), ())
    assert bench.decisions() == bench.audited() == []


USE = RemedyUse(node=node(), remedy=Remedy.reboot_node, rule="gpu-lost", at=START, incident="i")
WRITES: dict[str, Callable[[RunClaim], None]] = {
    "write": lambda claim: claim.write(entry(), audit=record("late")),
    "gate": lambda claim: claim.gate(lambda tx: tx.write(entry())),
    "set_state": lambda claim: claim.set_state(RunState.done, why="late"),
    "said": lambda claim: (_says(claim), claim.write(entry()))[1],
    "drained": lambda claim: claim.write(entry(), drained=USE),
    "said, and asked the gate": lambda claim: (_says(claim), claim.gate(lambda _: None))[1],
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
    assert not {"late", "told"} & {*bench.audited(), *bench.messages()}
    assert bench.commands() == []


# --- what only a database can show --------------------------------------------------------------------------


def test_a_run_whose_worker_died_is_taken_over_after_its_lease(real: PostgresBench) -> None:
    begin(real, run())
    with pytest.raises((LeaseLost, LedgerAway)), real.ledger.claim("r1") as dead:
        assert dead is not None
        dead.write(entry("drain", StepEvent.started))
        kill_workers(real)
        assert not free(real)
        assert real.ledger.due_runs(real.clock.now()) == []
        real.clock.advance(3)
        assert real.ledger.due_runs(real.clock.now()) == ["r1"]
        assert not free(real), "it was seen to be left only now"
        real.clock.advance(LEASE_S)
        with ExitStack() as stack:
            claim = claimed(stack, real)
            assert claim.run.epoch > dead.run.epoch
            assert [one.event for one in claim.log()] == [StepEvent.started]
            with pytest.raises((LeaseLost, LedgerAway)):
                dead.fence()
            claim.write(entry("drain", StepEvent.done))
        dead.write(entry("drain", StepEvent.failed))
    pass_lease(real)
    with ExitStack() as stack:
        assert [one.event for one in claimed(stack, real).log()] == [StepEvent.started, StepEvent.done]


def test_the_run_of_a_frozen_worker_is_taken_over_and_its_claim_is_lost(real: PostgresBench) -> None:
    """Its session lives, and with it the lock of the run."""
    begin(real, run())
    with pytest.raises((LeaseLost, LedgerAway)), real.ledger.claim("r1") as held:
        assert held is not None
        held.write(entry("drain", StepEvent.started))
        other, watch = second_worker(real), FrozenWorkers(real.engine)
        for _ in range(int(DEAD_AFTER_S)):
            watch.look(["r1"])
        assert not free(other)
        watch.look(["r1"])
        wait_until(lambda: not lock_held_by_any(real), 5, what="the server ends the session")
        pass_lease(other)
        with ExitStack() as stack:
            claim = claimed(stack, other)
            assert [one.event for one in claim.log()] == [StepEvent.started]
            real.clock.advance(3)
            with pytest.raises((LeaseLost, LedgerAway)):
                held.fence()
            claim.write(entry("drain", StepEvent.done))
        held.write(entry("drain", StepEvent.failed))


def test_a_worker_that_uses_its_session_keeps_its_runs_however_long_a_step_takes(real: PostgresBench) -> None:
    begin(real, run())
    with ExitStack() as stack:
        claim, watch = claimed(stack, real), FrozenWorkers(real.engine)
        for look in range(3 * int(DEAD_AFTER_S)):
            if look % (int(DEAD_AFTER_S) - 5) == 0:
                real.ledger.pulse()
            watch.look(["r1"])
        real.clock.advance(3600)
        assert claim.fence()


def second_worker(real: PostgresBench) -> PostgresBench:
    other = PostgresBench(make_engine(real.engine.url.render_as_string(hide_password=False)))
    other.clock = real.clock
    return other


def lock_held_by_any(real: PostgresBench) -> bool:
    with real.engine.connect() as conn:
        return lock_held(conn, "r1")


def test_a_persons_word_hands_over_nothing_that_a_lost_worker_may_be_doing(real: PostgresBench) -> None:
    begin(real, run())
    with pytest.raises((LeaseLost, LedgerAway)), real.ledger.claim("r1") as dead:
        assert dead is not None
        kill_workers(real)
        with real.ledger.transaction() as tx:
            tx.set_run_state("r1", RunState.running, why="ann retries", at=START)
        assert not free(real)
        real.clock.advance(LEASE_S)
        assert free(real)
        dead.write(entry("drain", StepEvent.started))


def test_a_worker_that_learns_of_a_persons_word_gives_the_run_back_at_once(real: PostgresBench) -> None:
    begin(real, run())
    with pytest.raises(LeaseLost), real.ledger.claim("r1") as held:
        assert held is not None
        with real.ledger.transaction() as tx:
            tx.set_run_state("r1", RunState.running, why="ann retries", at=START)
        held.write(entry("drain", StepEvent.started))
    assert free(real)


def test_news_reach_the_detector_with_the_state_or_not_at_all(bench: Bench) -> None:
    begin(bench, run())
    sent = command(CommandKind.run_changed, run="r1", state="waiting")
    with ExitStack() as stack:
        claimed(stack, bench).set_state(RunState.waiting, why="for the repair", command=sent)
    assert bench.commands() == [sent]
    with bench.ledger.transaction() as tx:
        assert [one.state for one in tx.active_runs()] == [RunState.waiting]
        known = tx.run("r1")
        assert known is not None
        assert (known.state, tx.run("nobody")) == (RunState.waiting, None)


def kill_workers(real: PostgresBench) -> None:
    """Ends every session that holds a run, as the death of its process does."""
    with real.engine.connect() as conn:
        holders = sa.text(
            "SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' "
            "AND database = (SELECT oid FROM pg_database WHERE datname = current_database())"
        )
        assert conn.execute(holders).all()


def test_before_an_effect_a_lease_that_has_aged_is_renewed_or_lost(real: PostgresBench) -> None:
    begin(real, run())
    with ExitStack() as stack:
        claim = claimed(stack, real)
        before = claim.run.lease_until
        real.clock.advance(15)
        assert claim.fence(), "it was proven again: no one took it meanwhile"
        assert not claim.fence()
        assert before is not None
        assert claim.run.lease_until is not None
        assert claim.run.lease_until > before
        with real.ledger.transaction() as tx:
            tx.set_run_state("r1", RunState.cancelled, why="ann", at=START)
        real.clock.advance(5)
        with pytest.raises(LeaseLost):
            claim.fence()


def test_run_is_not_taken_over_while_its_session_lives(real: PostgresBench) -> None:
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
    with real.ledger.transaction() as tx, alone(real.engine).connect() as looking:
        tx.lock_gate()
        other.start()
        wait_until(lambda: lock_waits(looking) > 0, what="the second waits for the gate")
        assert seen == []
        tx.grant_slot(slot())
    other.join(timeout=10)
    assert [one.node for one in seen[0].slots] == [node()]


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
