"""Runs, their logs and the decisions that were taken for them."""

from collections.abc import Callable, Sequence

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.engine import reading
from healer.adapters.postgres.paging import after
from healer.adapters.postgres.tables import decisions, run_log, runs
from healer.model import ENDED_RUN_STATES, Decision, LogEntry, Ruleset, Run
from healer.ports.answers import Page, RunRecord
from healer.ports.queries import RunQuery, encode_cursor

_RUN = (runs.c.doc, runs.c.state, runs.c.epoch, runs.c.wake_at, runs.c.lease_until, runs.c.ended_at)
#: Runs that want a person, and how many of them a page shows.
_ASKING = ("waiting_approval", "proposed", "stuck")
#: A storm holds many runs at a time: they hide none of those that ask.
_ASKING_SHOWN, _HELD_SHOWN = 200, 50


class PostgresRuns:
    """`healer.ports.queries.RunQueries`."""

    def __init__(self, engine: sa.Engine, rules: Callable[[], Ruleset]) -> None:
        self._engine, self._rules = engine, rules

    def page(self, query: RunQuery, *, limit: int, cursor: str | None = None) -> Page[Run]:
        where: list[sa.ColumnElement[bool]] = []
        if query.clusters is not None:
            where.append(runs.c.cluster.in_(query.clusters))
        if query.states:
            where.append(runs.c.state.in_(query.states))
        if query.node:
            where.append(runs.c.node == query.node)
        if query.incident:
            where.append(runs.c.incident == query.incident)
        if query.playbook:
            where.append(runs.c.playbook == query.playbook)
        with reading(self._engine) as conn:
            return run_page(conn, where, limit, cursor)

    def one(self, run: str) -> Run | None:
        with reading(self._engine) as conn:
            return _run_named(conn, run)

    def record(self, run: str) -> RunRecord | None:
        with reading(self._engine) as conn:
            found = _run_named(conn, run)
            if found is None:
                return None
            judged = decisions_where(conn, decisions.c.run == run)
            log = logs_of(conn, [run])[run]
        playbook = self._rules().playbooks.get(found.playbook)
        plan = tuple(step.title or step.id for step in playbook.steps) if playbook else ()
        return RunRecord(run=found, log=tuple(log), decisions=tuple(judged), plan=plan)

    def at_work(self, ids: Sequence[str]) -> dict[str, Run]:
        """One that acts stands before one that only shows."""
        wanted = (
            sa.select(*_RUN)
            .where(runs.c.incident.in_(ids), runs.c.state.not_in(list(ENDED_RUN_STATES)))
            .order_by(runs.c.shadow.desc(), runs.c.created_at, runs.c.id)
        )
        with reading(self._engine) as conn:
            return {run.incident: run for run in map(run_of, conn.execute(wanted)) if run.incident}


def run_page(
    conn: sa.Connection, where: Sequence[sa.ColumnElement[bool]], limit: int, cursor: str | None = None
) -> Page[Run]:
    statement = sa.select(runs.c.created_at, runs.c.id, *_RUN).where(*where)
    rows = conn.execute(after(statement, runs.c.created_at, runs.c.id, cursor).limit(limit + 1)).all()
    more = encode_cursor(rows[limit - 1].created_at, rows[limit - 1].id) if len(rows) > limit else None
    return Page(items=[run_of(row) for row in rows[:limit]], next_cursor=more)


def asking_runs(conn: sa.Connection, cluster: str) -> list[Run]:
    """Those that want a person, and those that are held, oldest first."""
    asking = sa.or_(
        runs.c.state.in_(_ASKING),
        sa.and_(runs.c.state.in_(("waiting", "running")), runs.c.doc["question"].astext.is_not(None)),
    )
    mine = runs.c.cluster == cluster
    asked = run_page(conn, [mine, asking], _ASKING_SHOWN).items
    held = run_page(conn, [mine, runs.c.state == "held"], _HELD_SHOWN).items
    return sorted([*asked, *held], key=lambda one: (one.created_at, one.id))


def run_of(row: sa.Row) -> Run:
    """The columns are what the claims write; they stand above the document."""
    run = msgspec.convert(row.doc, Run)
    return msgspec.convert(
        msgspec.to_builtins(run)
        | {
            "state": row.state,
            "epoch": row.epoch,
            "wake_at": row.wake_at,
            "lease_until": row.lease_until,
            "ended_at": row.ended_at,
        },
        Run,
    )


def _run_named(conn: sa.Connection, run: str) -> Run | None:
    row = conn.execute(sa.select(*_RUN).where(runs.c.id == run)).first()
    return None if row is None else run_of(row)


def records_of(conn: sa.Connection, incident: str, judged: Sequence[Decision]) -> list[RunRecord]:
    """The runs of an incident, oldest first; `judged`: its decisions."""
    rows = conn.execute(
        sa.select(*_RUN).where(runs.c.incident == incident).order_by(runs.c.created_at, runs.c.id)
    )
    found = [run_of(row) for row in rows]
    logs = logs_of(conn, [run.id for run in found])
    return [
        RunRecord(
            run=run,
            log=tuple(logs[run.id]),
            decisions=tuple(one for one in judged if one.run == run.id),
        )
        for run in found
    ]


def logs_of(conn: sa.Connection, names: Sequence[str]) -> dict[str, list[LogEntry]]:
    """run -> its log, oldest first."""
    logs: dict[str, list[LogEntry]] = {name: [] for name in names}
    if names:
        rows = conn.execute(
            sa.select(run_log.c.seq, run_log.c.run, run_log.c.doc)
            .where(run_log.c.run.in_(names))
            .order_by(run_log.c.seq)
        )
        for row in rows:
            logs[row.run].append(msgspec.structs.replace(msgspec.convert(row.doc, LogEntry), seq=row.seq))
    return logs


def decisions_where(conn: sa.Connection, where: sa.ColumnElement[bool]) -> list[Decision]:
    """Oldest first, 200 at most."""
    rows = conn.execute(
        sa.select(decisions.c.doc, decisions.c.run).where(where).order_by(decisions.c.id.desc()).limit(200)
    )
    found = [msgspec.structs.replace(msgspec.convert(row.doc, Decision), run=row.run) for row in rows]
    return found[::-1]
