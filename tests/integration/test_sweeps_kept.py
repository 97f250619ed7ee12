"""What the guard over sweeps gets, from the ledger in memory and the one on PostgreSQL alike."""

from contextlib import ExitStack
from datetime import timedelta

import pytest
import sqlalchemy as sa

from healer.adapters.postgres import gate_facts as gate
from healer.model import FaultClass, IncidentState, RunState, Sweeps
from tests.support.ledgers import (
    CLUSTER,
    START,
    Bench,
    ago,
    begin,
    bench_of,
    claimed,
    entry,
    incident,
    node,
    run,
)

BOOKS = ("sweep", "sweep-by-night")


@pytest.fixture(params=["memory", "postgres"])
def bench(request: pytest.FixtureRequest) -> Bench:
    return bench_of(request)


def sweeps(bench: Bench, days: float = 14) -> Sweeps:
    with bench.ledger.transaction() as tx:
        return tx.sweeps(BOOKS, START - timedelta(days=days))


def test_running_and_stuck_sweeps_count_as_sweeping(bench: Bench) -> None:
    begin(
        bench,
        run("s1", 1, playbook="sweep", alongside=True),
        run("s2", 2, playbook="sweep-by-night", alongside=True, state=RunState.stuck),
        run("s3", 3, playbook="sweep", alongside=True, state=RunState.held),
        run("s4", 4, playbook="sweep", alongside=True, shadow=True),
        run("d5", 5, playbook="drain"),
    )
    assert sweeps(bench).running == {node(1): "s1", node(2): "s2"}


def test_nodes_with_hardware_faults_and_the_worst_of_each(bench: Bench) -> None:
    open_ = {
        1: (FaultClass.degraded, FaultClass.fatal),
        2: (FaultClass.degraded,),
        3: (FaultClass.application, FaultClass.unknown),
    }
    with bench.ledger.transaction() as tx:
        for number, classes in open_.items():
            for place, fault_class in enumerate(classes):
                tx.save_incident(
                    incident(number, id=f"{number}{place}".ljust(32, "0"), fault_class=fault_class)
                )
        tx.save_incident(incident(4, state=IncidentState.resolved, closed=START))
    assert sweeps(bench).ailing == {node(1): FaultClass.fatal, node(2): FaultClass.degraded}


def test_when_each_node_was_tested_and_tried(bench: Bench) -> None:
    begin(
        bench,
        run("s1", 1, playbook="sweep", alongside=True, created_at=ago(days=20)),
        run("s2", 1, playbook="sweep", alongside=True, created_at=ago(days=3)),
        run("v3", 3, playbook="validate", created_at=ago(days=2)),
        run("s4", 4, playbook="sweep", alongside=True, created_at=ago(days=1)),
    )
    tests_run = {
        "s1": ({"verb": "sweep", "passed": True}, ago(days=20)),
        "s2": ({"verb": "sweep", "passed": True}, ago(days=3)),
        "v3": ({"verb": "diagnose", "passed": False}, ago(days=2)),
        "s4": ({"verb": "sweep", "verdict": "none"}, ago(days=1)),
    }
    with ExitStack() as stack:
        for name, (data, at) in tests_run.items():
            claimed(stack, bench, name).write(entry("test", run=name, at=at, data=data))
    found = sweeps(bench)
    assert found.tested == {node(1): ago(days=3), node(3): ago(days=2)}
    assert found.begun == {node(1): ago(days=3), node(4): ago(days=1)}


def test_a_run_sees_the_gates_facts_without_its_lock(bench: Bench) -> None:
    begin(bench, run("s1", 1, playbook="sweep", alongside=True), run("d2", 2))
    with ExitStack() as stack:
        claim = claimed(stack, bench, "s1")
        known = claim.facts(BOOKS)
        assert known.sweeps is not None and known.sweeps.running == {node(1): "s1"}
        assert known.running == {node(2): "d2"}
        assert claim.gate(lambda tx: tx.sweeps(BOOKS, START)).running == {node(1): "s1"}


def test_tests_come_from_an_index(fresh_database: sa.Engine) -> None:
    """The log of a year is not read for the turn of a week."""
    asked = {"cluster": CLUSTER, "playbooks": list(BOOKS), "since": START, "hardware": [], "tests": []}
    with fresh_database.begin() as conn:
        conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
        plan = "\n".join(conn.execute(sa.text(f"EXPLAIN {gate.SWEEPS.text}"), asked).scalars())
    assert "run_log_tests" in plan and "runs_active" in plan, plan
