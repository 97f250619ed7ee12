"""Scores of lemons in PostgreSQL: reckoned from its incidents and tickets, read by pages."""

from datetime import timedelta
from typing import Any

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.node_rows import PostgresLemons, read_lemons
from healer.adapters.postgres.tables import incidents, messages
from healer.incidents.node_history import lemon_record
from healer.model import IncidentState, LemonPart, LemonScore
from healer.text import to_stored
from tests.unit.actions.test_verbs import CLUSTER, INCIDENT, NODE, START

DAY = timedelta(days=1)


def put(conn: sa.Connection, number: int, days: float, **fields: Any) -> str:
    one = msgspec.structs.replace(
        INCIDENT, id=f"{number:032x}", opened=START - days * DAY, closed=START - days * DAY,
        state=IncidentState.resolved, **fields,
    )  # fmt: skip
    columns = {column.name for column in incidents.c if column.computed is None}
    row = {name: getattr(one, name) for name in columns if hasattr(one, name)}
    row |= {"node": one.root.node, "doc": to_stored(one)}
    conn.execute(sa.insert(incidents).values({key: row[key] for key in row if key in columns}))
    return one.id


def test_node_history_comes_from_its_incidents_and_tickets(fresh_database: sa.Engine) -> None:
    with fresh_database.begin() as conn:
        filed = put(conn, 1, 3)
        put(conn, 2, 50)
        put(conn, 3, 1, merged_into=filed)
        put(conn, 4, 2, cluster="another")
        ticket = {"id": "1:ticket", "cluster": CLUSTER, "kind": "ticket", "incident": filed}
        ticket |= {"doc": {}, "state": "queued", "at": START, "page": False}
        conn.execute(
            sa.insert(messages).values({c.name: ticket[c.name] for c in messages.c if c.name in ticket})
        )
    histories = PostgresLemons(fresh_database, CLUSTER).histories(START - 42 * DAY)
    found = [lemon_record(history, node, START) for node, history in histories]
    assert [(one.node, len(one.faults), len(one.tickets)) for one in found] == [(NODE, 1, 1)]


def test_scores_are_written_together_and_read_by_node(fresh_database: sa.Engine) -> None:
    book = PostgresLemons(fresh_database, CLUSTER)
    part = LemonPart(signal="faults", count=2.0, points=2.0, text="2 faults")
    first = [LemonScore(cluster=CLUSTER, node=name, score=2.0, parts=(part,)) for name in ("n1", "n2")]
    book.keep(first, START)
    with fresh_database.connect() as conn:
        assert read_lemons(conn, CLUSTER) == {one.node: one for one in first}
        assert read_lemons(conn, CLUSTER, "n2") == {"n2": first[1]}
        assert read_lemons(conn, "another") == {}
    book.keep(first[:1], START)
    with fresh_database.connect() as conn:
        assert list(read_lemons(conn, CLUSTER)) == ["n1"]
    book.keep([], START)
    with fresh_database.connect() as conn:
        assert read_lemons(conn, CLUSTER) == {}
