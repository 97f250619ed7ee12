"""Since when each node has had its state: a row for each, with `until` null while it lasts.

A node whose jobs come and go gets a row at each step of `BUSY_STEP` at most.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import NamedTuple

import sqlalchemy as sa

from healer.adapters.postgres.tables import snapshots
from healer.model.node_states import (
    GAP,
    Holder,
    NodeCondition,
    NodeState,
    StateChanges,
    as_recorded,
    changes,
    is_busy_step,
    is_gap,
)

_LASTING = sa.text(
    "SELECT node, state, held_by, busy FROM node_states WHERE cluster = :cluster AND until IS NULL"
)

# The insert waits for the update, because it reads `done`: a node has one row that lasts.
_WRITE = sa.text("""
WITH ended AS (
  UPDATE node_states SET until = greatest(since, :until)
  WHERE cluster = :cluster AND until IS NULL AND node = ANY(:ended) RETURNING node
), done AS (SELECT count(*) FROM ended)
INSERT INTO node_states (cluster, node, state, held_by, busy, since)
SELECT :cluster, began.*, :since
FROM done, unnest(CAST(:nodes AS text[]), CAST(:states AS text[]), CAST(:holders AS text[]),
  CAST(:busy AS boolean[])) AS began
""")


class WrittenStates(NamedTuple):
    """The states of a snapshot, and its version."""

    version: int
    states: Mapping[str, NodeState]


def record_states(
    conn: sa.Connection,
    cluster: str,
    now: Mapping[str, NodeState],
    at: datetime,
    written: WrittenStates | None,
) -> Mapping[str, NodeState]:
    """Writes what changed since the stored snapshot, and returns what is recorded now; call it before that
    snapshot is replaced.

    `written`: the caller's last ones, which need not be read while no other writer came in between.
    """
    query = sa.select(snapshots.c.version, snapshots.c.taken_at).where(snapshots.c.cluster == cluster)
    stored = conn.execute(query.with_for_update()).first()
    if stored is not None and written is not None and written.version == stored.version:
        before = written.states
    else:
        before = _states(conn, _LASTING, cluster=cluster)
    gap = stored is not None and is_gap(stored.taken_at, at)
    until = stored.taken_at if stored is not None and gap else at
    if stored is not None and not is_busy_step(stored.taken_at, at):
        now = as_recorded(before, now)
    changed = changes(before, now, gap=gap)
    if changed.ended or changed.began:
        _write(conn, cluster, changed, until, at)
    return now


def _write(
    conn: sa.Connection, cluster: str, changed: StateChanges, until: datetime, since: datetime
) -> None:
    began = changed.began.values()
    values = {
        "cluster": cluster,
        "until": until,
        "since": since,
        "ended": changed.ended,
        "nodes": list(changed.began),
        "states": [state.condition.value for state in began],
        "holders": [state.holder.value for state in began],
        "busy": [state.busy for state in began],
    }
    conn.execute(_WRITE, values)


# After a clock was set back two rows of a node may overlap: the later one counts.
_AT = sa.text("""
SELECT DISTINCT ON (node) node, state, held_by, busy FROM node_states
WHERE cluster = :cluster AND since <= :at AND (until > :at OR until IS NULL AND :at < (
  SELECT taken_at FROM snapshots WHERE cluster = :cluster) + CAST(:gap AS interval))
ORDER BY node, since DESC
""")


def states_at(conn: sa.Connection, cluster: str, at: datetime) -> dict[str, NodeState]:
    """By name: the states at that moment; empty in a gap. A state that lasts is known as far as the latest
    snapshot."""
    return _states(conn, _AT, cluster=cluster, at=at, gap=GAP)


def _states(conn: sa.Connection, query: sa.Executable, **values: object) -> dict[str, NodeState]:
    return {
        row.node: NodeState(NodeCondition(row.state), Holder(row.held_by), row.busy)
        for row in conn.execute(query, values)
    }
