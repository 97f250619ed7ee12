"""The ledger in memory: a transaction that fails leaves nothing, whatever it wrote; what is left is found in
the order of its coming."""

import copy

import msgspec
import pytest

from healer.model import (
    Breaker,
    BreakerState,
    CommandKind,
    IncidentState,
    Remedy,
    RemedyUse,
    RequeueUse,
    Run,
    RunState,
    StepEvent,
    Verb,
)
from healer.sim.ledger_tables import Rows, Tables, Undo
from healer.sim.memory_ledger import MemoryLedger, MemoryTx
from healer.sim.sim_clock import SimClock
from tests.support.ledgers import (
    CLUSTER,
    START,
    ago,
    command,
    decision,
    entry,
    incident,
    message,
    node,
    record,
    run,
    slot,
)


def story(tx: MemoryTx, number: int) -> None:
    """Writes into the tables, adds and takes away."""
    name = f"r{number}"
    tx.save_incident(incident(number))
    tx.create_run(run(name, number))
    tx.grant_slot(slot(number, run=name))
    use = RemedyUse(
        node=node(number), remedy=Remedy.reboot_node, rule="gpu-lost", at=START, incident=incident(number).id
    )
    tx.mark_drained(use)
    tx.run_id = name
    tx.add_requeue(RequeueUse(job=str(number), restarts=0, at=START))
    tx.add_decision(decision())
    tx.write(entry(run=name, data={"verb": Verb.drain}))
    tx.audit(record())
    tx.queue_message(message(f"m{number}"))
    tx.send_command(command(CommandKind.jobs_hit))
    tx.save_breaker(Breaker(cluster=CLUSTER, state=BreakerState.open, why=name))
    tx.set_run_state(name, RunState.done, why="", at=START)
    tx.release_slot(node(number), at=START, why="")
    tx.drop_requeue(str(number), 0)


def made() -> MemoryLedger:
    ledger = MemoryLedger(CLUSTER, SimClock(START))
    with ledger.transaction() as tx:
        story(tx, 1)
        tx.grant_slot(slot(9))
    return ledger


def test_failed_transaction_leaves_no_trace_in_any_table() -> None:
    ledger = made()
    kept = copy.deepcopy(ledger.tables)
    with pytest.raises(RuntimeError, match="torn"), ledger.transaction() as tx:
        story(tx, 2)
        tx.release_slot(node(9), at=START, why="")
        tx.save_incident(incident(1, title="otherwise"))
        assert ledger.tables != kept
        raise RuntimeError("torn")
    assert vars(ledger.tables) == vars(kept)


def test_committed_transaction_is_kept() -> None:
    tables = made().tables
    assert tables.breaker is not None
    assert tables.breaker.why == "r1"
    ended = [worked for _, worked in tables.ended]
    assert (list(tables.slots), ended, tables.logged) == ([node(9)], [True], 1)


def test_breaker_counts_the_last_steps_that_take_nodes() -> None:
    ledger = made()
    with ledger.transaction() as tx:
        for final in [True] * 9 + [False]:  # one that is tried again has not ended
            tx.write(entry(event=StepEvent.failed, data={"verb": Verb.drain, "final": final}))
        tx.write(entry("look", data={"verb": Verb.requeue}))
    assert ledger.facts().actions == (True, *[False] * 9)
    with ledger.transaction() as tx:
        tx.write(entry(data={"verb": Verb.drain}))
    assert ledger.facts().actions == (*[False] * 9, True)


def test_runs_that_are_left_come_in_their_order() -> None:
    def left(tables: Tables) -> list[str]:
        return [one.id for one in tables.active_runs()]

    def row(name: str, state: RunState = RunState.running) -> Run:
        return run(name, state=state)

    tables = Tables()
    tables.runs = {name: row(name) for name in ("r3", "r1", "r2")}
    tables.runs["r1"] = row("r1", RunState.done)
    tables.runs["r0"] = row("r0")
    assert left(tables) == ["r3", "r2", "r0"]
    tables.runs["r1"] = row("r1")  # it has not moved
    del tables.runs["r2"]
    assert left(tables) == left(copy.deepcopy(tables)) == ["r3", "r1", "r0"]


def test_closed_incident_rests_for_a_while_and_again_after_reopening() -> None:
    tables, one = Tables(), incident()
    over = msgspec.structs.replace(one, state=IncidentState.resolved, closed=START)
    tables.incidents[one.id] = over
    assert tables.recent_incidents(ago(1)) == [over]
    assert tables.recent_incidents(START) == []
    tables.incidents[one.id] = one
    assert tables.recent_incidents(START) == [one]


def test_undo_goes_back_through_what_was_written_twice() -> None:
    rows: dict[str, int] = Rows({"a": 1})
    listed, undo = [1, 2, 3], Undo()
    undo.put(rows, "a", 2)
    undo.put(rows, "b", 1)
    undo.drop(rows, "a")
    undo.put(rows, "a", 7)
    undo.add(listed, 4)
    undo.replace(listed, [4])
    undo.add(listed, 5, 6)
    assert (rows, listed) == ({"b": 1, "a": 7}, [4, 5, 6])
    undo()
    assert (rows, listed) == ({"a": 1}, [1, 2, 3])
