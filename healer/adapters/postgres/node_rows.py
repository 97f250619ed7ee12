"""What is kept of nodes and their parts: Slurm's latest picture, faults, forecasts, inventories, what they
should be, scores."""

import secrets
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple, Protocol

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.engine import (
    Lane,
    ledger_errors,
    matches,
    read_doc,
    read_docs,
    upsert,
    write_docs,
)
from healer.adapters.postgres.tables import (
    controllers,
    fault_bursts,
    forecasts,
    incidents,
    inventories,
    lemon_scores,
    messages,
    node_standings,
    references,
    run_log,
    runs,
    snapshots,
    trends,
)
from healer.model import (
    Controller,
    FaultBurst,
    Figure,
    ForecastOutcome,
    ForecastScore,
    Incident,
    Inventory,
    LemonScore,
    NodeComparison,
    NodeFigures,
    NodeHistory,
    Reference,
    SlurmSnapshot,
    StepEvent,
    Verb,
    figures_in,
    rates_in,
)

# --- Slurm's latest picture: one row per cluster, decoded once per version and process
#
#  How its slurmctld does lies in a row of its own: those figures change with every poll, the picture does
#  not.

SNAPSHOT_CHANNEL = "healer_snapshot"
#: Stands in the body for the moment, which has a column of its own: an unchanged cluster has unchanged bytes.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SlurmSnapshot).decode


class _Written(NamedTuple):
    version: int
    body: bytes
    snapshot: SlurmSnapshot

    def shows(self, snapshot: SlurmSnapshot) -> bool:
        """The very same mappings: Slurm said that nothing changed, and so they need not be compared."""
        mine = self.snapshot
        same_jobs = mine.jobs is snapshot.jobs and mine.reservations is snapshot.reservations
        return same_jobs and mine.nodes is snapshot.nodes


class PostgresSnapshots:
    """`healer.ports.scheduling.Snapshots`. The body is written only when it changed; `taken_at` always."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        #: Who asks at the same time gets one answer.
        self._lane = Lane[str](engine, self._latest)
        self._known: dict[str, tuple[int, SlurmSnapshot]] = {}
        self._written: dict[str, _Written] = {}

    def put(self, snapshot: SlurmSnapshot) -> None:
        """A new moment is noted for the stored body only while that is the very one that was written here."""
        written = self._written.get(snapshot.cluster)
        if written is not None and written.shows(snapshot):
            body = written.body
        else:
            body = _encode(msgspec.structs.replace(snapshot, taken_at=_EPOCH))
        if written is not None and written.body == body and self._still(snapshot, written.version):
            self._written[snapshot.cluster] = _Written(written.version, body, snapshot)
            return
        # Random: readers keep bodies by version, so one that a crash took must not come back for another.
        version = secrets.randbits(63)
        row = {"version": version, "taken_at": snapshot.taken_at, "body": body, "error": None}
        with self._engine.begin() as conn:
            conn.execute(upsert(snapshots, {"cluster": snapshot.cluster}, row))
            conn.execute(sa.text(f"NOTIFY {SNAPSHOT_CHANNEL}"))
        self._written[snapshot.cluster] = _Written(version, body, snapshot)

    def _still(self, snapshot: SlurmSnapshot, version: int) -> bool:
        """Notes the moment at which the stored picture was still true. False: another one is stored.

        A crash that loses this commit only makes the picture look older than it is.
        """
        with self._engine.begin() as conn:
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            this = snapshots.c.cluster == snapshot.cluster, snapshots.c.version == version
            same = sa.update(snapshots).where(*this, snapshots.c.taken_at <= snapshot.taken_at)
            return conn.execute(same.values(taken_at=snapshot.taken_at, error=None)).rowcount == 1

    def failed(self, cluster: str, error: str) -> None:
        """Notes why the last poll gave nothing; the old picture stays and grows stale."""
        with self._engine.begin() as conn:
            conn.execute(sa.update(snapshots).where(snapshots.c.cluster == cluster).values(error=error))

    def put_controller(self, controller: Controller) -> None:
        """A crash that loses this commit only makes the figures look older than they are."""
        row = {"at": controller.at, "doc": msgspec.to_builtins(controller)}
        with self._engine.begin() as conn:
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            conn.execute(upsert(controllers, {"cluster": controller.cluster}, row))

    def controller(self, cluster: str) -> Controller | None:
        with self._engine.connect() as conn:
            return read_controller(conn, cluster)

    def latest(self, cluster: str) -> SlurmSnapshot | None:
        return self._lane.do(cluster)

    def _latest(self, conn: sa.Connection, clusters: Sequence[str]) -> Sequence[object]:
        with conn.begin():
            found = {cluster: self.read(conn, cluster) for cluster in set(clusters)}
        return [found[cluster] for cluster in clusters]

    def read(self, conn: sa.Connection, cluster: str) -> SlurmSnapshot | None:
        """The same inside a caller's transaction."""
        query = sa.select(snapshots.c.version, snapshots.c.taken_at).where(snapshots.c.cluster == cluster)
        head = conn.execute(query).first()
        if head is None:
            return None
        with self._lock:
            kept = self._known.get(cluster)
        if kept is None or kept[0] != head.version:
            row = conn.execute(query.add_columns(snapshots.c.body)).one()
            kept, head = (row.version, _kept(kept[1] if kept else None, _decode(row.body))), row
            with self._lock:
                self._known[cluster] = kept
        return msgspec.structs.replace(kept[1], taken_at=head.taken_at)


def read_controller(conn: sa.Connection, cluster: str) -> Controller | None:
    return read_doc(conn, sa.select(controllers.c.doc).where(controllers.c.cluster == cluster), Controller)


def _kept(before: SlurmSnapshot | None, now: SlurmSnapshot) -> SlurmSnapshot:
    """The mappings that say what they said before stay the same objects: a job that ended is no news of the
    nodes, and whoever looks at nodes alone has nothing to do."""
    if before is None:
        return now
    same = {
        name: getattr(before, name)
        for name in ("nodes", "jobs", "reservations")
        if getattr(before, name) == getattr(now, name)
    }
    return msgspec.structs.replace(now, **same)


# --- what parts have had, by burst: written by the walk that noted it, read when a detector starts

_SAVE_BURSTS = sa.text("""
INSERT INTO fault_bursts (cluster, node, part, fault, began_at, last_at, doc)
SELECT doc->>'cluster', doc->>'node', doc->>'part', doc->>'fault',
  (doc->>'began_at')::timestamptz, (doc->>'last_at')::timestamptz, doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS doc
ON CONFLICT (cluster, node, part, fault, began_at)
DO UPDATE SET last_at = excluded.last_at, doc = excluded.doc
""")


def save_bursts(conn: sa.Connection, bursts: Sequence[FaultBurst]) -> None:
    """A burst that goes on is the same row."""
    write_docs(conn, _SAVE_BURSTS, bursts)


def bursts_since(conn: sa.Connection, cluster: str, last_at: datetime) -> list[FaultBurst]:
    """Those that went on at `last_at` or later, the oldest first."""
    table = fault_bursts.c
    query = sa.select(table.doc).where(table.cluster == cluster, table.last_at >= last_at)
    return read_docs(conn, query.order_by(table.last_at, table.node, table.part, table.fault), FaultBurst)


# --- what was foretold of parts, what came of it, and the trends behind it

_SCORE_FIELDS = {
    ForecastOutcome.open: "open",
    ForecastOutcome.hit: "hits",
    ForecastOutcome.miss: "misses",
    ForecastOutcome.void: "void",
    ForecastOutcome.unforeseen: "unforeseen",
}


def forecast_scores(conn: sa.Connection) -> dict[str, ForecastScore]:
    """By rule, of all clusters."""
    key = (forecasts.c.rule, forecasts.c.outcome)
    found: dict[str, dict[str, int]] = {}
    for rule, outcome, count in conn.execute(sa.select(*key, sa.func.count()).group_by(*key)):
        found.setdefault(rule, {})[_SCORE_FIELDS[ForecastOutcome(outcome)]] = count
    return {rule: ForecastScore(**counts) for rule, counts in found.items()}


class PostgresTrends:
    """The trends of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def read(self) -> dict[str, bytes]:
        query = sa.select(trends.c.rule, trends.c.packed).where(trends.c.cluster == self._cluster)
        with ledger_errors(), self._engine.connect() as conn:
            return {row.rule: bytes(row.packed) for row in conn.execute(query)}

    def write(self, packed: Mapping[str, bytes], now: datetime) -> None:
        if not packed:
            return
        row = {"cluster": self._cluster, "saved_at": now}
        statement = insert(trends).values([{**row, "rule": rule, "packed": packed[rule]} for rule in packed])
        given = {"saved_at": statement.excluded.saved_at, "packed": statement.excluded.packed}
        with ledger_errors(), self._engine.begin() as conn:
            conn.execute(statement.on_conflict_do_update(index_elements=["cluster", "rule"], set_=given))


# --- what nodes reported of themselves, and what nodes of each kind should be

_SAVE_INVENTORIES = sa.text("""
INSERT INTO inventories (cluster, node, at, doc)
SELECT :cluster, doc->>'node', (doc->>'at')::timestamptz, doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS doc
ON CONFLICT (cluster, node) DO UPDATE SET at = excluded.at, doc = excluded.doc
""")


def save_inventories(conn: sa.Connection, cluster: str, many: Sequence[Inventory]) -> None:
    write_docs(conn, _SAVE_INVENTORIES, many, cluster=cluster)


def read_inventories(conn: sa.Connection, cluster: str, node: str | None = None) -> list[Inventory]:
    """Of one node, or of all."""
    mine = inventories.c.cluster == cluster, matches(inventories.c.node, node)
    return read_docs(conn, sa.select(inventories.c.doc).where(*mine).order_by(inventories.c.node), Inventory)


def changed_since(conn: sa.Connection, cluster: str, since: datetime) -> dict[str, Inventory]:
    """By node: those that have booted, or of which something changed, since then."""
    table = inventories.c
    booted = sa.cast(table.doc["booted_at"].astext, sa.DateTime(timezone=True))
    query = sa.select(table.doc).where(table.cluster == cluster, sa.or_(table.at >= since, booted >= since))
    return {inventory.node: inventory for inventory in read_docs(conn, query, Inventory)}


def read_references(conn: sa.Connection, cluster: str) -> list[Reference]:
    query = sa.select(references.c.doc).where(references.c.cluster == cluster)
    return read_docs(conn, query.order_by(references.c.kind), Reference)


def save_reference(conn: sa.Connection, reference: Reference) -> None:
    """In place of the one of its kind."""
    key = {"cluster": reference.cluster, "kind": reference.kind}
    row = {"at": reference.at, "doc": msgspec.to_builtins(reference)}
    conn.execute(upsert(references, key, row))


# --- what tests of nodes measured, scores of lemons, and what both are reckoned from


def read_histories(
    conn: sa.Connection, cluster: str, since: datetime, node: str | None = None
) -> dict[str, NodeHistory]:
    """By node, of one or of all: incidents that were open at `since` or later."""
    table = incidents.c
    mine = sa.select(table.id, table.node, table.doc).where(
        table.cluster == cluster,
        table.node.is_not(None) if node is None else table.node == node,
        sa.or_(table.closed.is_(None), table.closed >= since),
        table.doc["merged_into"].astext.is_(None),
    )
    found: dict[str, list[Incident]] = {}
    for row in conn.execute(mine.order_by(table.opened, table.id)):
        found.setdefault(row.node, []).append(msgspec.convert(row.doc, Incident))
    filed = sa.select(messages.c.incident).where(
        messages.c.kind == "ticket", messages.c.incident.in_(mine.with_only_columns(table.id))
    )
    ticketed = frozenset(conn.scalars(filed))
    return {name: NodeHistory(incidents=tuple(own), ticketed=ticketed) for name, own in found.items()}


def measured_figures(conn: sa.Connection, cluster: str, node: str) -> dict[str, float]:
    """What the node's newest test that passed with results has measured; empty where there is none."""
    data = run_log.c.doc["data"]
    newest = (
        sa.select(data["results"])
        .select_from(run_log.join(runs, run_log.c.run == runs.c.id))
        .where(
            runs.c.cluster == cluster,
            runs.c.node == node,
            run_log.c.event == StepEvent.done.value,
            data["verb"].astext == Verb.diagnose.value,
            data["passed"].astext == "true",
            data["results"].astext.is_not(None),
        )
        .order_by(run_log.c.seq.desc())
        .limit(1)
    )
    return figures_in(conn.execute(newest).scalar() or {})


#: By the index `run_log_tests`. The newest of a node's tests come last, and take the place of older figures.
_RESULTS = sa.text("""
SELECT runs.node, run_log.at, run_log.doc->'data'->'results' AS results
FROM run_log JOIN runs ON runs.id = run_log.run
WHERE run_log.event = 'done' AND run_log.doc->'data'->>'passed' IS NOT NULL AND run_log.at > :since
  AND run_log.doc->'data'->>'verb' = ANY(:tests) AND run_log.doc->'data'->'results' IS NOT NULL
  AND runs.cluster = :cluster AND runs.node IS NOT NULL
ORDER BY run_log.seq
""")
_TESTS = [str(Verb.diagnose), str(Verb.sweep)]


class PostgresLemons:
    """What the ledger holds of every node's last weeks, and the scores of lemons; of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def histories(self, since: datetime) -> list[tuple[str, NodeHistory]]:
        """By node, of those with an incident that was open at `since` or later."""
        with ledger_errors(), self._engine.connect() as conn:
            return sorted(read_histories(conn, self._cluster, since).items(), key=lambda found: found[0])

    def keep(self, scores: list[LemonScore], now: datetime) -> None:
        """In place of all that were kept."""
        with ledger_errors(), self._engine.begin() as conn:
            _replace_docs(conn, lemon_scores, self._cluster, scores, at=now)


class PostgresFleetFigures:
    """What tests of nodes measured, of the runs' logs, and where each node ranks by that; of one cluster."""

    def __init__(self, engine: sa.Engine, cluster: str) -> None:
        self._engine, self._cluster = engine, cluster

    def read(self, since: datetime) -> list[NodeFigures]:
        """Of each node the newest of each figure, whether the test passed or not."""
        asked = {"since": since, "tests": _TESTS, "cluster": self._cluster}
        found: dict[str, dict[str, Figure]] = {}
        with ledger_errors(), self._engine.connect() as conn:
            for row in conn.execute(_RESULTS, asked):
                rates = {name: Figure(value, row.at) for name, value in rates_in(row.results or {}).items()}
                found.setdefault(row.node, {}).update(rates)
        return [NodeFigures(node, figures) for node, figures in sorted(found.items())]

    def keep(self, standings: list[NodeComparison], now: datetime) -> None:
        """In place of all that were kept."""
        with ledger_errors(), self._engine.begin() as conn:
            _replace_docs(conn, node_standings, self._cluster, standings, at=now)


class _OfNode(Protocol):
    @property
    def node(self) -> str: ...


def _replace_docs(
    conn: sa.Connection, table: sa.Table, cluster: str, found: Sequence[_OfNode], *, at: datetime
) -> None:
    row = {"cluster": cluster, "at": at}
    rows = [{**row, "node": item.node, "doc": msgspec.to_builtins(item)} for item in found]
    conn.execute(sa.delete(table).where(table.c.cluster == cluster))
    if rows:
        conn.execute(sa.insert(table), rows)


def read_lemons(conn: sa.Connection, cluster: str, node: str | None = None) -> dict[str, LemonScore]:
    """By node, of one or of all that have any."""
    table = lemon_scores.c
    query = sa.select(table.doc).where(table.cluster == cluster, matches(table.node, node))
    return {score.node: score for score in read_docs(conn, query, LemonScore)}


def read_standing(conn: sa.Connection, cluster: str, node: str) -> NodeComparison | None:
    table = node_standings.c
    found = read_docs(
        conn, sa.select(table.doc).where(table.cluster == cluster, table.node == node), NodeComparison
    )
    return found[0] if found else None
