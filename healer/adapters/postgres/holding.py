"""Who holds which run: taken, proven and given back for many runs at once, on one session of the process.

Every statement here speaks of many runs. Rows that somebody else has locked just now are passed over, so that
nobody who holds several ever waits for one; what was passed over gets a transaction of its own.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

import msgspec
import sqlalchemy as sa

from healer.model import Incident, LogEntry, Run
from healer.ports.lease import LEASE, Left

_encode = msgspec.json.Encoder().encode

_LOCK = sa.text(
    "SELECT id FROM unnest(CAST(:ids AS text[])) AS wanted (id) "
    "WHERE pg_try_advisory_lock(hashtextextended(id, 0))"
)
_UNLOCK = sa.text(
    "SELECT pg_advisory_unlock(hashtextextended(id, 0)) FROM unnest(CAST(:ids AS text[])) AS held (id)"
)
_TAKE = sa.text("""
WITH due AS (
  SELECT runs.id FROM runs
  JOIN unnest(CAST(:ids AS text[]), CAST(:lefts AS bigint[])) AS wanted (id, epoch) ON wanted.id = runs.id
  WHERE runs.state = 'running' AND (runs.wake_at IS NULL OR runs.wake_at <= :now)
    AND (runs.lease_until IS NULL OR runs.epoch = wanted.epoch)
  FOR NO KEY UPDATE OF runs SKIP LOCKED)
UPDATE runs SET epoch = runs.epoch + 1, lease_until = :until, wake_at = NULL
FROM due WHERE runs.id = due.id RETURNING runs.id, runs.epoch, runs.doc
""")
_LEFT = sa.text(
    "SELECT id, epoch FROM runs WHERE id = ANY(:ids) AND state = 'running' AND lease_until IS NOT NULL"
)
_LOGS = sa.text("SELECT run, seq, doc FROM run_log WHERE run = ANY(:ids) ORDER BY seq")
_INCIDENTS = sa.text("SELECT id, doc FROM incidents WHERE id = ANY(:ids)")
_FREE = sa.text("UPDATE runs SET lease_until = NULL WHERE id = ANY(:ids)")

_MINE = """
WITH mine AS (
  SELECT runs.id FROM runs
  JOIN unnest(CAST(:ids AS text[]), CAST(:epochs AS bigint[])) AS held (id, epoch)
    ON held.id = runs.id AND held.epoch = runs.epoch
  FOR NO KEY UPDATE OF runs {})
UPDATE runs SET lease_until = :until FROM mine WHERE runs.id = mine.id RETURNING runs.id
"""
_CHANGE = """
WITH mine AS (
  SELECT runs.id, given.doc AS told FROM runs
  JOIN jsonb_array_elements(CAST(:rows AS jsonb)) AS given (doc)
    ON runs.id = given.doc->>'id' AND runs.epoch = (given.doc->>'epoch')::bigint
  FOR NO KEY UPDATE OF runs {})
UPDATE runs SET state = told->>'state', wake_at = (told->>'wake_at')::timestamptz, lease_until = NULL,
  ended_at = (told->>'ended_at')::timestamptz, doc = told
FROM mine WHERE runs.id = mine.id RETURNING runs.id
"""
_MINE_NOW, _MINE_FREE = sa.text(_MINE.format("")), sa.text(_MINE.format("SKIP LOCKED"))
_CHANGE_NOW, _CHANGE_FREE = sa.text(_CHANGE.format("")), sa.text(_CHANGE.format("SKIP LOCKED"))


@dataclass(frozen=True)
class Taken:
    """A run under its new epoch, with its log and incident as they were then."""

    run: Run
    log: list[LogEntry]
    incident: Incident | None
    #: The session whose lock it is, and when by the stopwatch it was surely this one's.
    session: int
    since_s: float


class Locks:
    """The locks of one session, by its own book: the server counts a lock that it gives twice."""

    def __init__(self) -> None:
        self._session, self._locked, self._held = 0, set[str](), set[str]()

    def of(self, session: int) -> "Locks":
        """What an earlier session had is gone with it."""
        if session != self._session:
            self._session, self._locked, self._held = session, set(), set()
        return self

    def lock(self, conn: sa.Connection, runs: Sequence[str]) -> list[str]:
        """Those of these that nobody holds, here or elsewhere; their locks are ours now."""
        wanted = [one for one in dict.fromkeys(runs) if one not in self._held]
        new = [one for one in wanted if one not in self._locked]
        if new:
            self._locked.update(conn.execute(_LOCK, {"ids": new}).scalars())
        return [one for one in wanted if one in self._locked]

    def unlock(self, conn: sa.Connection, but: Mapping[str, object]) -> None:
        """Gives back all that is neither held nor among those just taken."""
        free = [one for one in self._locked if one not in self._held and one not in but]
        if free:
            conn.execute(_UNLOCK, {"ids": free})
            self._locked.difference_update(free)

    def hold(self, runs: Mapping[str, object]) -> None:
        self._held.update(runs)

    def release(self, run: str) -> None:
        self._held.discard(run)


def take(
    conn: sa.Connection, runs: Sequence[str], left: Left, now: datetime, *, session: int, since_s: float
) -> dict[str, Taken]:
    """Those of these runs, whose locks are ours, that are due: each under a new epoch."""
    asked = {"ids": list(runs), "lefts": [left.epoch(run) for run in runs], "now": now, "until": now + LEASE}
    rows = conn.execute(_TAKE, asked).all() if runs else []
    ids = [row.id for row in rows]
    if others := [run for run in runs if run not in set(ids)]:
        # The lock is ours, and so nobody holds the run: one that still has a lease was left without a word.
        for run, epoch in conn.execute(_LEFT, {"ids": others}):
            left.seen(run, epoch)
    logs: dict[str, list[LogEntry]] = {run: [] for run in ids}
    for run, seq, doc in conn.execute(_LOGS, {"ids": ids}) if ids else ():
        logs[run].append(msgspec.structs.replace(msgspec.convert(doc, LogEntry), seq=seq))
    known = {row.id: msgspec.convert(row.doc, Run) for row in rows}
    told = incidents_of(conn, [run.incident for run in known.values() if run.incident is not None])
    found = {}
    for row in rows:
        left.taken(row.id)
        run = msgspec.structs.replace(known[row.id], epoch=row.epoch, lease_until=now + LEASE, wake_at=None)
        found[row.id] = Taken(run, logs[row.id], told.get(run.incident or ""), session, since_s)
    return found


def incidents_of(conn: sa.Connection, names: Sequence[str]) -> dict[str, Incident]:
    if not names:
        return {}
    return {
        name: msgspec.convert(doc, Incident) for name, doc in conn.execute(_INCIDENTS, {"ids": list(names)})
    }


def prove(conn: sa.Connection, runs: Sequence[Run], until: datetime) -> set[str]:
    """Those that are still of this epoch: theirs until the transaction ends, and their leases go on.

    Of several, those that somebody has locked are not among them, whosever they are.
    """
    if not runs:
        return set()
    held = {"ids": [run.id for run in runs], "epochs": [run.epoch for run in runs], "until": until}
    return set(conn.execute(_MINE_FREE if len(runs) > 1 else _MINE_NOW, held).scalars())


def change(conn: sa.Connection, runs: Sequence[Run]) -> set[str]:
    """The same for runs that are given back in a new state, which is theirs then."""
    if not runs:
        return set()
    rows = {"rows": _encode(runs).decode()}
    return set(conn.execute(_CHANGE_FREE if len(runs) > 1 else _CHANGE_NOW, rows).scalars())


def free_leases(conn: sa.Connection, runs: Sequence[str]) -> None:
    """Nothing of these is under way any more: the next one need not wait for that."""
    conn.execute(_FREE, {"ids": list(runs)})
