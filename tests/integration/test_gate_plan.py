"""The gate's question costs as much on the millionth line of the runs' log as on the first, and a grant
on the millionth run."""

from contextlib import ExitStack
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event

from healer.adapters.postgres import gate_facts as gate
from healer.adapters.postgres.run_rows import GRANT
from healer.model import RequeueUse
from tests.support.ledgers import PostgresBench, begin, claimed, run
from tests.support.loop import CLUSTER, START


def test_the_last_removing_steps_come_from_an_index(fresh_database: sa.Engine) -> None:
    asked = {
        "cluster": CLUSTER,
        "now": START,
        "removing": gate.REMOVING,
        "permits_kept": gate.PERMITS_KEPT,
        "capacity": gate.CAPACITY,
        "ended": gate.ENDED,
        "counted": START,
    }
    with fresh_database.begin() as conn:
        conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
        plan = "\n".join(conn.execute(sa.text(f"EXPLAIN {gate.FACTS.text}"), asked).scalars())
    assert "run_log_verbs" in plan, plan


def test_a_grant_under_the_gates_lock_reads_one_run(fresh_database: sa.Engine) -> None:
    with fresh_database.begin() as conn:
        conn.execute(sa.text("SET LOCAL enable_seqscan = off"))
        asked = {"rows": "[]", "ended": gate.ENDED}
        plan = "\n".join(conn.execute(sa.text(f"EXPLAIN {GRANT.text}"), asked).scalars())
    assert "Index Cond: (id = slots.run)" in plan and "hashed" not in plan, plan


def test_a_restart_under_the_gates_lock_reads_one_run(fresh_database: sa.Engine) -> None:
    bench, found = PostgresBench(fresh_database), list[str]()
    begin(bench, run())

    def explain(conn: sa.Connection, _: object, statement: str, values: Any, *rest: object) -> None:
        if statement.startswith("INSERT INTO requeues"):
            found.extend(conn.exec_driver_sql(f"EXPLAIN {statement}", values).scalars())

    with ExitStack() as stack:
        claim = claimed(stack, bench)
        event.listen(fresh_database, "before_cursor_execute", explain)
        claim.gate(lambda tx: tx.add_requeue(RequeueUse(job="7", restarts=0, at=START)))
    plan = "\n".join(found)
    assert "Index Cond: (id = requeues.run)" in plan, plan
