"""Since when each node has had its state, in PostgreSQL: written from the difference of two snapshots."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.exc import ProgrammingError

from healer.adapters.postgres.incident_rows import open_at
from healer.adapters.postgres.node_rows import PostgresSnapshots
from healer.adapters.postgres.report_charts import chart_figures
from healer.adapters.postgres.retention import tidy
from healer.adapters.postgres.roles import login_url
from healer.adapters.postgres.state_rows import states_at
from healer.adapters.postgres.tables import node_states, verdicts
from healer.model import Cause, IncidentState, IncidentVerdict, SlurmNode, SlurmSnapshot, Verdict
from healer.ports.answers import Buckets
from healer.text import no_words, to_stored
from tests.support.api import incident, save_incident

START = datetime(2026, 11, 20, 2, 40, tzinfo=UTC)
CLUSTER = "pod1"
IDLE, BUSY, DRAINED = ("IDLE",), ("ALLOCATED",), ("IDLE", "DRAIN")
Nodes = Mapping[str, tuple[str, ...]]


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def put(writer: PostgresSnapshots, minutes: float, nodes: Nodes) -> None:
    shown = {
        name: SlurmNode(name=name, state=state, reason="bad fan" if "DRAIN" in state else "")
        for name, state in nodes.items()
    }
    writer.put(SlurmSnapshot(cluster=CLUSTER, taken_at=at(minutes), nodes=shown))


def rows(engine: sa.Engine) -> list[tuple[Any, ...]]:
    """Node, state, minutes since and until."""
    with engine.connect() as conn:
        query = sa.select(node_states).order_by(node_states.c.node, node_states.c.since)
        return [
            (row.node, row.state, _minutes(row.since), row.until and _minutes(row.until))
            for row in conn.execute(query)
        ]


def _minutes(moment: datetime) -> float:
    return (moment - START).total_seconds() / 60


def known_at(engine: sa.Engine, minutes: float) -> dict[str, str]:
    with engine.connect() as conn:
        return {
            name: f"{state.condition.value}/{state.holder.value}{'/busy' if state.busy else ''}"
            for name, state in states_at(conn, CLUSTER, at(minutes)).items()
        }


def test_a_change_ends_one_row_and_begins_another(fresh_database: sa.Engine) -> None:
    writer = PostgresSnapshots(fresh_database)
    put(writer, 0, {"n1": IDLE, "n2": IDLE})
    put(writer, 1, {"n1": IDLE, "n2": IDLE})
    put(writer, 2, {"n1": IDLE, "n2": DRAINED})
    put(writer, 3, {"n2": DRAINED})
    assert rows(fresh_database) == [
        ("n1", "in_service", 0, 3),
        ("n2", "in_service", 0, 2),
        ("n2", "drained", 2, None),
    ]
    assert known_at(fresh_database, 1.5) == {"n1": "in_service/none", "n2": "in_service/none"}
    assert known_at(fresh_database, 2) == {"n1": "in_service/none", "n2": "drained/person"}
    assert known_at(fresh_database, 4) == {"n2": "drained/person"}
    assert known_at(fresh_database, -1) == {} == known_at(fresh_database, 20)


def test_fifty_changes_of_many_nodes_are_one_statement_and_none_are_none(fresh_database: sa.Engine) -> None:
    written: list[str] = []

    @event.listens_for(fresh_database, "before_cursor_execute")
    def _(conn: Any, cursor: Any, statement: str, *rest: Any) -> None:
        if "INTO node_states" in statement:
            written.append(statement)

    writer = PostgresSnapshots(fresh_database)
    nodes: dict[str, tuple[str, ...]] = {f"n{number:04}": IDLE for number in range(1250)}
    put(writer, 0, nodes)
    put(writer, 1, nodes | dict.fromkeys(list(nodes)[:50], DRAINED))
    assert len(written) == 2 and len(rows(fresh_database)) == 1300
    other = SlurmSnapshot(cluster="pod2", taken_at=START)
    writer.put(other)
    assert len(written) == 2


def test_a_restart_goes_on_with_the_rows_that_last(fresh_database: sa.Engine) -> None:
    put(PostgresSnapshots(fresh_database), 0, {"n1": IDLE, "n2": IDLE})
    put(PostgresSnapshots(fresh_database), 2, {"n1": IDLE, "n2": DRAINED})
    assert rows(fresh_database) == [
        ("n1", "in_service", 0, None),
        ("n2", "in_service", 0, 2),
        ("n2", "drained", 2, None),
    ]


def test_jobs_that_come_and_go_are_recorded_once_in_five_minutes(fresh_database: sa.Engine) -> None:
    writer = PostgresSnapshots(fresh_database)
    for second in range(0, 600, 20):
        put(writer, second / 60, {"n1": BUSY if second % 60 else IDLE})
    assert [row[2] for row in rows(fresh_database)] == [0, pytest.approx(4 + 2 / 3)]
    assert known_at(fresh_database, 5) == {"n1": "in_service/none/busy"}


def test_a_job_that_started_between_two_steps_is_on_the_map_of_the_next(fresh_database: sa.Engine) -> None:
    writer = PostgresSnapshots(fresh_database)
    put(writer, 0, {"n1": IDLE})
    for minutes in (1, 2, 3, 4.5, 6, 9.5):
        put(writer, minutes, {"n1": BUSY})
    assert known_at(fresh_database, 3) == {"n1": "in_service/none"}
    assert known_at(fresh_database, 5) == {"n1": "in_service/none/busy"}
    assert len(rows(fresh_database)) == 2, "once recorded, nothing is written while it lasts"


def test_a_drain_is_recorded_at_once(fresh_database: sa.Engine) -> None:
    writer = PostgresSnapshots(fresh_database)
    put(writer, 1, {"n1": IDLE, "n2": IDLE})
    put(writer, 2, {"n1": ("ALLOCATED", "DRAIN"), "n2": BUSY})
    assert known_at(fresh_database, 2) == {"n1": "draining/person/busy", "n2": "in_service/none"}


def test_the_scheduler_may_write_and_tidy_it_and_the_api_may_read_it(fresh_database: sa.Engine) -> None:
    owner = fresh_database.url.render_as_string(hide_password=False)
    scheduler, api = (sa.create_engine(login_url(owner, role)) for role in ("healer_scheduler", "healer_api"))
    writer = PostgresSnapshots(scheduler)
    put(writer, 0, {"n1": IDLE})
    put(writer, 1, {"n1": DRAINED})
    assert known_at(api, 1) == {"n1": "drained/person"}
    tidy(scheduler, START + timedelta(days=40))
    assert [row[1] for row in rows(api)] == ["drained"]
    with pytest.raises(ProgrammingError, match="permission denied"):
        put(PostgresSnapshots(api), 2, {"n1": IDLE})
    for engine in (scheduler, api):
        engine.dispose()


def test_two_writers_take_turns(fresh_database: sa.Engine) -> None:
    one, other = PostgresSnapshots(fresh_database), PostgresSnapshots(fresh_database)
    put(one, 0, {"n1": IDLE})
    put(other, 1, {"n1": DRAINED})
    put(one, 2, {"n1": IDLE})
    assert [row[1:] for row in rows(fresh_database)] == [
        ("in_service", 0, 1),
        ("drained", 1, 2),
        ("in_service", 2, None),
    ]


@pytest.mark.parametrize("restarted", [False, True])
def test_a_time_without_snapshots_is_a_gap(fresh_database: sa.Engine, restarted: bool) -> None:
    writer = PostgresSnapshots(fresh_database)
    put(writer, 0, {"n1": DRAINED})
    put(writer, 1, {"n1": DRAINED})
    put(PostgresSnapshots(fresh_database) if restarted else writer, 60, {"n1": DRAINED})
    assert [row[1:] for row in rows(fresh_database)] == [("drained", 0, 1), ("drained", 60, None)]
    assert known_at(fresh_database, 30) == {}


def test_a_clock_that_was_set_back_ends_no_state_before_it_began(fresh_database: sa.Engine) -> None:
    writer = PostgresSnapshots(fresh_database)
    put(writer, 0, {"n1": IDLE})
    put(writer, -30, {"n1": DRAINED})
    put(writer, -29, {"n1": DRAINED})
    assert [row[1:] for row in rows(fresh_database)] == [("drained", -30, None), ("in_service", 0, 0)]


def test_report_sums_node_hours_out_of_service_by_actor(fresh_database: sa.Engine) -> None:
    """By the hour. What lasts counts up to the latest snapshot, and a gap does not count."""
    writer = PostgresSnapshots(fresh_database)
    put(writer, -20, {"n1": DRAINED, "n2": IDLE, "n3": ("IDLE", "MAINTENANCE")})
    for minutes in range(-17, 91, 3):
        put(writer, minutes, {"n1": DRAINED, "n2": IDLE, "n3": ("IDLE", "MAINTENANCE")})
    put(writer, 93, {"n1": IDLE, "n2": ("DOWN",), "n3": IDLE})
    put(writer, 97, {"n1": IDLE, "n2": ("DOWN",), "n3": IDLE})
    put(writer, 112, {"n1": IDLE, "n2": ("DOWN",), "n3": IDLE})
    put(writer, 115, {"n1": IDLE, "n2": ("DOWN",), "n3": IDLE})
    hours = Buckets(start=START, step_s=3600, count=3)
    with fresh_database.connect() as conn:
        found = chart_figures(conn, CLUSTER, hours, hours).out
    assert [(each.bucket, each.name, round(each.value * 60)) for each in found] == [
        (0, "person", 60),
        (0, "planned", 60),
        (1, "person", 33),
        (1, "planned", 33),
        (1, "slurm", 4 + 3),
    ]


@pytest.mark.parametrize(
    ("days", "free", "kept"),
    [
        (6, None, ["drained", "in_service"]),
        (8, None, ["drained"]),
        (2, 0.05, ["drained"]),
        (401, None, []),
    ],
)
def test_ended_node_states_are_pruned_by_kind_and_current_ones_kept(
    fresh_database: sa.Engine, days: int, free: float | None, kept: list[str]
) -> None:
    writer = PostgresSnapshots(fresh_database)
    for minutes, state in enumerate((IDLE, DRAINED, BUSY)):
        put(writer, minutes, {"n1": state})
    tidy(fresh_database, START + timedelta(days=days), free=free)
    ended = [row for row in rows(fresh_database) if row[3] is not None]
    assert sorted(row[1] for row in ended) == kept
    assert len(rows(fresh_database)) == len(kept) + 1


def test_the_past_has_the_incidents_that_were_open_then_with_the_verdicts_of_then(
    fresh_database: sa.Engine,
) -> None:
    shut = incident(60, state=IncidentState.resolved)
    shut = msgspec.structs.replace(shut, closed=shut.opened + timedelta(minutes=20))
    still = incident(50)
    moments = {30: Verdict.watch, 5: Verdict.isolate}
    now = still.opened + timedelta(minutes=50)
    with fresh_database.begin() as conn:
        save_incident(conn, shut)
        save_incident(conn, still)
        for minutes, verdict in moments.items():
            found = IncidentVerdict(
                nodes={"gpu0001": verdict}, cause=Cause.unclear, certainty=1, sentence=no_words()
            )
            values = {"incident": still.id, "at": now - timedelta(minutes=minutes), "doc": to_stored(found)}
            conn.execute(sa.insert(verdicts).values(values))

    def open_then(minutes: float) -> list[tuple[str, dict[str, Verdict]]]:
        with fresh_database.connect() as conn:
            found = open_at(conn, still.cluster, now - timedelta(minutes=minutes))
            return [(one.id, one.nodes) for one in found]

    assert open_then(61) == []
    assert open_then(45) == [(still.id, {}), (shut.id, {})]
    assert open_then(20) == [(still.id, {"gpu0001": Verdict.watch})]
    assert open_then(0) == [(still.id, {"gpu0001": Verdict.isolate})]
