"""Rows about nodes: the Slurm snapshot, fault bursts, forecasts, inventories, test results and scores."""

import secrets
import threading
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert

from healer.adapters.postgres.engine import (
    ClusterStore,
    Lane,
    PostgresStore,
    alone,
    ledger_errors,
    ledger_reading,
    matches,
    read_doc,
    read_docs,
    reading,
    upsert,
    write_docs,
)
from healer.adapters.postgres.state_rows import WrittenStates, record_states
from healer.adapters.postgres.tables import (
    controllers,
    fault_bursts,
    forecasts,
    inbox,
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
    Component,
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
from healer.model.gate import CLOCKS_DIFFER
from healer.model.node_states import NodeState, is_busy_step, is_gap, node_states
from healer.model.slurm import with_unchanged
from healer.text import from_stored, to_stored

# --- the latest Slurm snapshot: one row per cluster, decoded once per version and process. Figures of
# slurmctld change with every poll and so have a row of their own.


def snapshot_channel(cluster: str) -> str:
    return f"healer_snapshot:{cluster}"


_WAKE = sa.text("SELECT pg_notify(:channel, '')")
#: The body's `taken_at`; the real one is a column, so that an unchanged cluster has an unchanged body.
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(SlurmSnapshot).decode


class _Written(NamedTuple):
    """`states`: those on record; `behind`: the snapshot's own differ until the next step."""

    version: int
    body: bytes
    snapshot: SlurmSnapshot
    states: Mapping[str, NodeState]
    behind: bool

    def has_mappings_of(self, snapshot: SlurmSnapshot) -> bool:
        """Whether both share their mappings: Slurm reported no change, and a comparison is not needed."""
        return all(
            getattr(self.snapshot, name) is getattr(snapshot, name)
            for name in ("nodes", "jobs", "reservations")
        )

    def must_record(self, now: datetime) -> bool:
        """Whether states are due though Slurm reported no change."""
        before = self.snapshot.taken_at
        return is_gap(before, now) or (self.behind and is_busy_step(before, now))


def _is_superseded(conn: sa.Connection, snapshot: SlurmSnapshot, written: _Written | None) -> bool:
    """Whether another writer has stored a later one: this process was held up while another took its place.
    One that is dated ahead of now is no later one, nor is one's own: a clock was set."""
    row = snapshots.c
    later = row.taken_at > snapshot.taken_at, row.taken_at <= sa.func.clock_timestamp() + CLOCKS_DIFFER
    query = sa.select(row.version, sa.and_(*later).label("is_later")).where(row.cluster == snapshot.cluster)
    # Locked: one that another writer is about to commit counts, too.
    stored = conn.execute(query.with_for_update()).first()
    if stored is None or not stored.is_later:
        return False
    return written is None or written.version != stored.version


#: What `read_of` needs to know whether its copy is the latest.
_HEAD = snapshots.c.version, snapshots.c.taken_at


class PostgresSnapshots:
    """`healer.ports.scheduling.Snapshots`. The body is written only when it changed; `taken_at` always."""

    def __init__(self, engine: sa.Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        #: One answer for all concurrent readers.
        self._lane = Lane[str](alone(engine), self._latest)
        self._decoded: dict[str, tuple[int, SlurmSnapshot]] = {}
        self._written: dict[str, _Written] = {}

    def put(self, snapshot: SlurmSnapshot) -> None:
        """Writes the body if it changed, and the states of nodes that did; otherwise only the time."""
        written = self._written.get(snapshot.cluster)
        if written is not None and written.has_mappings_of(snapshot):
            body = written.body
        else:
            body = _encode(msgspec.structs.replace(snapshot, taken_at=_EPOCH))
        same = written is not None and written.body == body and not written.must_record(snapshot.taken_at)
        if written and same and self._touch(snapshot, written.version):
            self._written[snapshot.cluster] = written._replace(body=body, snapshot=snapshot)
            return
        # Random, not counted: readers cache bodies by version, and a crash may lose a committed number.
        version = secrets.randbits(63)
        row = {"version": version, "taken_at": snapshot.taken_at, "body": body, "error": None}
        states = node_states(snapshot)
        before = WrittenStates(written.version, written.states) if written else None
        with self._engine.begin() as conn:
            if _is_superseded(conn, snapshot, written):
                return
            recorded = record_states(conn, snapshot.cluster, states, snapshot.taken_at, before)
            conn.execute(upsert(snapshots, {"cluster": snapshot.cluster}, row))
            conn.execute(_WAKE, {"channel": snapshot_channel(snapshot.cluster)})
        self._written[snapshot.cluster] = _Written(version, body, snapshot, recorded, recorded != states)

    def _touch(self, snapshot: SlurmSnapshot, version: int) -> bool:
        """Updates the time of the stored snapshot; False if another version is stored."""
        with self._engine.begin() as conn:
            # A crash that loses this commit only makes the snapshot look older than it is.
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            this = snapshots.c.cluster == snapshot.cluster, snapshots.c.version == version
            same = sa.update(snapshots).where(*this, snapshots.c.taken_at <= snapshot.taken_at)
            return conn.execute(same.values(taken_at=snapshot.taken_at, error=None)).rowcount == 1

    def failed(self, cluster: str, error: str) -> None:
        """Stores why the last poll failed; the old snapshot remains and becomes stale."""
        with self._engine.begin() as conn:
            conn.execute(sa.update(snapshots).where(snapshots.c.cluster == cluster).values(error=error))

    def put_controller(self, controller: Controller) -> None:
        row = {"at": controller.at, "doc": to_stored(controller)}
        with self._engine.begin() as conn:
            # As in `_touch`.
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            conn.execute(upsert(controllers, {"cluster": controller.cluster}, row))

    def controller(self, cluster: str) -> Controller | None:
        with reading(self._engine) as conn:
            return read_controller(conn, cluster)

    def latest(self, cluster: str) -> SlurmSnapshot | None:
        return self._lane.do(cluster)

    def _latest(self, conn: sa.Connection, clusters: Sequence[str]) -> Sequence[object]:
        found = {cluster: self.read(conn, cluster) for cluster in set(clusters)}
        return [found[cluster] for cluster in clusters]

    def read_all(
        self, conn: sa.Connection, clusters: Sequence[str] | None = None
    ) -> dict[str, SlurmSnapshot]:
        """The latest of these clusters, of all without names, in the caller's transaction."""
        heads = conn.execute(sa.select(snapshots.c.cluster, *_HEAD).order_by(snapshots.c.cluster)).all()
        wanted = [head for head in heads if clusters is None or head.cluster in clusters]
        found = {head.cluster: self.read_of(conn, head.cluster, head) for head in wanted}
        return {name: snapshot for name, snapshot in found.items() if snapshot is not None}

    def read(self, conn: sa.Connection, cluster: str) -> SlurmSnapshot | None:
        """The latest snapshot, in the caller's transaction."""
        head = conn.execute(sa.select(*_HEAD).where(snapshots.c.cluster == cluster)).first()
        return self.read_of(conn, cluster, head)

    def read_of(self, conn: sa.Connection, cluster: str, head: sa.Row | None) -> SlurmSnapshot | None:
        """The same, where `head` has its version and time already."""
        if head is None or head.version is None:
            return None
        with self._lock:
            decoded = self._decoded.get(cluster)
        if decoded is None or decoded[0] != head.version:
            whole = sa.select(*_HEAD, snapshots.c.body)
            head = conn.execute(whole.where(snapshots.c.cluster == cluster)).one()
            before = decoded[1] if decoded else None
            decoded = head.version, _reuse_unchanged(before, _decode(head.body))
            with self._lock:
                self._decoded[cluster] = decoded
        return msgspec.structs.replace(decoded[1], taken_at=head.taken_at)


class SnapshotStore(PostgresStore):
    """Base of the classes that read Slurm's snapshots too."""

    def __init__(self, engine: sa.Engine, snapshots: PostgresSnapshots) -> None:
        super().__init__(engine)
        self._snapshots = snapshots

    def snapshots(self) -> dict[str, SlurmSnapshot]:
        """The latest of each cluster."""
        with reading(self._engine) as conn:
            return self._snapshots.read_all(conn)


def cluster_names(conn: sa.Connection) -> list[str]:
    return list(conn.scalars(sa.select(snapshots.c.cluster).order_by(snapshots.c.cluster)))


def read_controller(conn: sa.Connection, cluster: str) -> Controller | None:
    return read_doc(conn, sa.select(controllers.c.doc).where(controllers.c.cluster == cluster), Controller)


def _reuse_unchanged(before: SlurmSnapshot | None, now: SlurmSnapshot) -> SlurmSnapshot:
    """`now` with what is unchanged in `before` as the same objects, so that readers see by identity which
    mappings and which nodes changed."""
    if before is None:
        return now
    same: dict[str, Any] = {
        name: getattr(before, name)
        for name in ("nodes", "jobs", "reservations")
        if getattr(before, name) == getattr(now, name)
    }
    if "nodes" not in same:
        same["nodes"] = with_unchanged(before.nodes, now.nodes)
    return msgspec.structs.replace(now, **same)


# --- fault bursts: written by the walk, read when a detector starts

#: Inserts bursts, or updates those that continue.
SAVE_BURSTS = sa.text("""
INSERT INTO fault_bursts (cluster, node, part, fault, began_at, last_at, doc)
SELECT doc->>'cluster', doc->>'node', doc->>'part', doc->>'fault',
  (doc->>'began_at')::timestamptz, (doc->>'last_at')::timestamptz, doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS doc
ON CONFLICT (cluster, node, part, fault, began_at)
DO UPDATE SET last_at = excluded.last_at, doc = excluded.doc
""")


def bursts_since(conn: sa.Connection, cluster: str, last_at: datetime) -> list[FaultBurst]:
    """Bursts that were active at `last_at` or later, oldest first."""
    table = fault_bursts.c
    query = sa.select(table.doc).where(table.cluster == cluster, table.last_at >= last_at)
    return read_docs(conn, query.order_by(table.last_at, table.node, table.part, table.fault), FaultBurst)


# --- forecasts, their outcomes, and the trends behind them

_SCORE_FIELDS = {
    ForecastOutcome.open: "open",
    ForecastOutcome.hit: "hits",
    ForecastOutcome.miss: "misses",
    ForecastOutcome.void: "void",
    ForecastOutcome.unforeseen: "unforeseen",
}


def forecast_scores(conn: sa.Connection) -> dict[str, ForecastScore]:
    """The outcomes of forecasts by rule, over all clusters."""
    key = (forecasts.c.rule, forecasts.c.outcome)
    found: dict[str, dict[str, int]] = {}
    for rule, outcome, count in conn.execute(sa.select(*key, sa.func.count()).group_by(*key)):
        found.setdefault(rule, {})[_SCORE_FIELDS[ForecastOutcome(outcome)]] = count
    return {rule: ForecastScore(**counts) for rule, counts in found.items()}


class PostgresTrends(ClusterStore):
    """The trends of one cluster, packed, by rule."""

    def read(self) -> dict[str, bytes]:
        query = sa.select(trends.c.rule, trends.c.packed).where(trends.c.cluster == self.cluster)
        with ledger_reading(self._engine) as conn:
            return {row.rule: bytes(row.packed) for row in conn.execute(query)}

    def write(self, packed: Mapping[str, bytes], now: datetime) -> None:
        if not packed:
            return
        row = {"cluster": self.cluster, "saved_at": now}
        statement = insert(trends).values([{**row, "rule": rule, "packed": packed[rule]} for rule in packed])
        given = {"saved_at": statement.excluded.saved_at, "packed": statement.excluded.packed}
        with ledger_errors(), self._engine.begin() as conn:
            conn.execute(statement.on_conflict_do_update(index_elements=["cluster", "rule"], set_=given))


# --- inventories that nodes reported, and the reference inventory of each kind of node

_SAVE_INVENTORIES = sa.text("""
INSERT INTO inventories (cluster, node, at, doc)
SELECT :cluster, doc->>'node', (doc->>'at')::timestamptz, doc
FROM jsonb_array_elements(CAST(:rows AS jsonb)) AS doc
ON CONFLICT (cluster, node) DO UPDATE SET at = excluded.at, doc = excluded.doc
""")


#: As long as the life line of a node looks back.
CHANGES_KEPT = timedelta(days=365)


def save_inventories(conn: sa.Connection, cluster: str, many: Sequence[Inventory]) -> None:
    """With the changes that a newer one of the same fact replaces."""
    if not many:
        return
    table = inventories.c
    nodes = [inventory.node for inventory in many]
    query = sa.select(table.doc).where(table.cluster == cluster, table.node.in_(nodes))
    before = {old.node: old for old in read_docs(conn, query, Inventory)}
    whole = [_with_earlier(each, before.get(each.node)) for each in many]
    write_docs(conn, _SAVE_INVENTORIES, whole, cluster=cluster)


def _with_earlier(new: Inventory, old: Inventory | None) -> Inventory:
    if old is None:
        return new
    replaced = [
        (fact, value, at)
        for fact, (value, at) in old.changed.items()
        if new.changed.get(fact, ("", at))[1] != at
    ]
    earlier = [change for change in (*old.earlier, *replaced) if new.at - change[2] < CHANGES_KEPT]
    return msgspec.structs.replace(new, earlier=earlier)


def read_inventories(conn: sa.Connection, cluster: str, node: str | None = None) -> list[Inventory]:
    """The inventory of one node, or of all."""
    table = inventories.c
    query = sa.select(table.doc).where(table.cluster == cluster, matches(table.node, node))
    return read_docs(conn, query.order_by(table.node), Inventory)


#: The last list of a node's GPUs is this old at most: heartbeats come every few seconds.
_HEARTBEAT_WINDOW = timedelta(minutes=5)


def listed_gpus(
    conn: sa.Connection, cluster: str, node: str | None, now: datetime, named: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """The GPUs in the newest of the node's heartbeats that lists any; with `named` that lists the GPU with
    these fields. Empty if there is none."""
    gpus = inbox.c.doc["data"]["gpus"]
    lists = inbox.c.doc["data"].has_key("gpus") if named is None else gpus.contains([named])
    newest = (
        sa.select(gpus)
        .where(
            inbox.c.cluster == cluster,
            inbox.c.node == node,
            inbox.c.kind == "heartbeat",
            inbox.c.arrived_at > now - _HEARTBEAT_WINDOW,
            lists,
        )
        .order_by(inbox.c.arrived_at.desc(), inbox.c.id.desc())
        .limit(1)
    )
    return conn.execute(newest).scalar() or []


def reported_gpu(conn: sa.Connection, root: Component, now: datetime) -> dict[str, Any]:
    """The entry of this GPU in the newest of its node's heartbeats that lists it: a lost GPU is missing from
    those that follow. Empty if there is none."""
    named = {"pci": root.pci} if root.pci else {"index": root.gpu}
    listed = listed_gpus(conn, root.cluster, root.node, now, named)
    return next((gpu for gpu in listed if named.items() <= gpu.items()), {})


def changed_since(conn: sa.Connection, cluster: str, since: datetime) -> dict[str, Inventory]:
    """By node: inventories of nodes that booted or changed since then."""
    table = inventories.c
    booted = sa.cast(table.doc["booted_at"].astext, sa.DateTime(timezone=True))
    query = sa.select(table.doc).where(table.cluster == cluster, sa.or_(table.at >= since, booted >= since))
    return {inventory.node: inventory for inventory in read_docs(conn, query, Inventory)}


def read_references(conn: sa.Connection, cluster: str) -> list[Reference]:
    query = sa.select(references.c.doc).where(references.c.cluster == cluster)
    return read_docs(conn, query.order_by(references.c.kind), Reference)


def save_reference(conn: sa.Connection, reference: Reference) -> None:
    """Replaces the reference of its kind."""
    key = {"cluster": reference.cluster, "kind": reference.kind}
    row = {"at": reference.at, "doc": to_stored(reference)}
    conn.execute(upsert(references, key, row))


# --- test results of nodes, lemon scores, and the histories behind them


def read_histories(
    conn: sa.Connection, cluster: str, since: datetime, node: str | None = None
) -> dict[str, NodeHistory]:
    """By node, for one or all: incidents that were open at `since` or later."""
    table = incidents.c
    query = sa.select(table.id, table.node, table.doc).where(
        table.cluster == cluster,
        table.node.is_not(None) if node is None else table.node == node,
        sa.or_(table.closed.is_(None), table.closed >= since),
        table.doc["merged_into"].astext.is_(None),
    )
    found: dict[str, list[Incident]] = {}
    for row in conn.execute(query.order_by(table.opened, table.id)):
        found.setdefault(row.node, []).append(from_stored(row.doc, Incident))
    filed = sa.select(messages.c.incident).where(
        messages.c.kind == "ticket", messages.c.incident.in_(query.with_only_columns(table.id))
    )
    ticketed = frozenset(conn.scalars(filed))
    return {name: NodeHistory(incidents=tuple(past), ticketed=ticketed) for name, past in found.items()}


def measured_figures(conn: sa.Connection, cluster: str, node: str) -> dict[str, float]:
    """The figures of the node's latest passed test with results; empty if there is none."""
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


#: Oldest first, by the index `run_log_tests`.
_RESULTS = sa.text("""
SELECT runs.node, run_log.at, run_log.doc->'data'->'results' AS results
FROM run_log JOIN runs ON runs.id = run_log.run
WHERE run_log.event = 'done' AND run_log.doc->'data'->>'passed' IS NOT NULL AND run_log.at > :since
  AND run_log.doc->'data'->>'verb' = ANY(:tests) AND run_log.doc->'data'->'results' IS NOT NULL
  AND runs.cluster = :cluster AND runs.node IS NOT NULL
ORDER BY run_log.seq
""")
TESTS = [str(Verb.diagnose), str(Verb.sweep)]


class _NodeScores(ClusterStore):
    """Base of the classes that keep a document for each node of one cluster."""

    _table: sa.Table

    def keep(self, found: Sequence[LemonScore | NodeComparison], now: datetime) -> None:
        """Replaces all rows of the cluster."""
        row = {"cluster": self.cluster, "at": now}
        rows = [{**row, "node": item.node, "doc": to_stored(item)} for item in found]
        with ledger_errors(), self._engine.begin() as conn:
            conn.execute(sa.delete(self._table).where(self._table.c.cluster == self.cluster))
            if rows:
                conn.execute(sa.insert(self._table), rows)


class PostgresLemons(_NodeScores):
    """Incident histories of the nodes of one cluster, and their lemon scores."""

    _table = lemon_scores

    def histories(self, since: datetime) -> list[tuple[str, NodeHistory]]:
        """By node: incidents that were open at `since` or later."""
        with ledger_reading(self._engine) as conn:
            return sorted(read_histories(conn, self.cluster, since).items(), key=lambda found: found[0])


class PostgresFleetFigures(_NodeScores):
    """Test results of the nodes of one cluster, from run logs, and the ranks of nodes by them."""

    _table = node_standings

    def read(self, since: datetime) -> list[NodeFigures]:
        """The latest value of each figure of each node, from passed and failed tests."""
        values = {"since": since, "tests": TESTS, "cluster": self.cluster}
        found: dict[str, dict[str, Figure]] = {}
        with ledger_reading(self._engine) as conn:
            for row in conn.execute(_RESULTS, values):
                rates = {name: Figure(value, row.at) for name, value in rates_in(row.results or {}).items()}
                found.setdefault(row.node, {}).update(rates)
        return [NodeFigures(node, figures) for node, figures in sorted(found.items())]


def read_lemons(conn: sa.Connection, cluster: str, node: str | None = None) -> dict[str, LemonScore]:
    """The lemon score of one node, or of all, by node."""
    table = lemon_scores.c
    query = sa.select(table.doc).where(table.cluster == cluster, matches(table.node, node))
    return {score.node: score for score in read_docs(conn, query, LemonScore)}


def read_standing(conn: sa.Connection, cluster: str, node: str) -> NodeComparison | None:
    table = node_standings.c
    query = sa.select(table.doc).where(table.cluster == cluster, table.node == node)
    return read_doc(conn, query, NodeComparison)
