"""The gate's question costs as much on the millionth line of the runs' log as on the first."""

import sqlalchemy as sa

from healer.adapters.postgres import gate_facts as gate
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
