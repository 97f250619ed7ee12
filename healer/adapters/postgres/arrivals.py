"""Senders, losses, unknown series, and the latest reports of scrapers."""

import zlib
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, insert

from healer.adapters.postgres.engine import (
    PostgresStore,
    matches,
    read_structs,
    reading,
    storable,
    storable_doc,
    upsert,
    writing,
)
from healer.adapters.postgres.tables import losses, scrapes, senders, unknown_series
from healer.model import Loss, LossReason, ScrapeState, Sender, UnknownSeries
from healer.ports.answers import HeardSender, SendersHeard
from healer.ports.callers import enrolled_name
from healer.text import Said, from_stored, quoted, read_said, say, stored

T = TypeVar("T")
S = TypeVar("S", bound=msgspec.Struct)

#: Names of unknown series kept for a cluster; the others are counted under `REST`.
MOST = 2000
REST = "…"

#: Characters of a reason or of an example.
SENTENCE_MAX = 500

#: Advisory lock, with the cluster's hash, so that the bound is exact with several processes.
_LOCK = 0x756E6B6E

_LOSS_KEY = ("cluster", "source", "reason", "who")
_SENDER_KEY = ("cluster", "who", "source")

#: A token is silent after so long, and after so many of its usual intervals: some report events alone.
SILENT_S, SILENT_INTERVALS = 900.0, 10

_encode = msgspec.msgpack.Encoder(enc_hook=stored).encode
_decode = msgspec.msgpack.Decoder(ScrapeState, dec_hook=read_said).decode


class PostgresLosses(PostgresStore):
    """`healer.ports.signal_stores.LossBook`. Bounded by the number of senders: the other keys are enums."""

    def add(self, counts: Sequence[Loss]) -> None:
        with writing(self._engine) as conn:
            for loss in _sorted(counts, _LOSS_KEY):
                row = msgspec.structs.asdict(loss)
                row["reason"] = loss.reason.value
                row["example"] = _sentence(loss.example)
                statement = insert(losses).values(**row)
                fresh = statement.excluded
                values = {**_added(losses, fresh, "count"), "example": fresh.example}
                conn.execute(statement.on_conflict_do_update(index_elements=list(_LOSS_KEY), set_=values))

    def losses(self, clusters: Sequence[str] | None, limit: int) -> list[Loss]:
        wanted = _latest(losses, clusters, _LOSS_KEY)
        with reading(self._engine) as conn:
            rows = conn.execute(wanted.limit(limit)).mappings()
            known_reasons = [row for row in rows if row["reason"] in LossReason.__members__]
        return [_read(row, Loss) for row in known_reasons]


class PostgresSenders(PostgresStore):
    """`healer.ports.signal_stores.SenderBook`. Rows of silent tokens stay for a week (`retention`)."""

    def add(self, counts: Sequence[Sender]) -> None:
        if not counts:
            return
        rows = _sorted(counts, _SENDER_KEY)
        columns = list(senders.c)
        arrays = [
            sa.cast([getattr(sender, column.name) for sender in rows], ARRAY(column.type))
            for column in columns
        ]
        fresh = sa.func.unnest(*arrays).table_valued(*(column.name for column in columns)).render_derived()
        statement = insert(senders).from_select([column.name for column in columns], sa.select(*fresh.c))
        new = statement.excluded
        values = {**_added(senders, new, "requests", "bytes"), "node": new.node}
        once = statement.on_conflict_do_update(index_elements=list(_SENDER_KEY), set_=values)
        with writing(self._engine) as conn:
            conn.execute(once)

    def senders(self, clusters: Sequence[str] | None, limit: int, *, node: str | None = None) -> list[Sender]:
        wanted = _latest(senders, clusters, _SENDER_KEY).where(matches(senders.c.node, node))
        with reading(self._engine) as conn:
            return read_structs(conn, wanted.limit(limit), Sender)

    def heard(self, cluster: str, limit: int, now: datetime) -> SendersHeard:
        here, who = senders.c.cluster == cluster, senders.c.who
        routes = sa.select(
            senders,
            sa.func.sum(senders.c.requests).over(partition_by=who).label("all_requests"),
            sa.func.min(senders.c.first_seen).over(partition_by=who).label("first"),
            sa.func.max(senders.c.last_seen).over(partition_by=who).label("last"),
        ).where(here)
        of = routes.subquery().c
        usual_s = sa.extract("epoch", of.last - of.first) / sa.func.greatest(of.all_requests - 1, 1)
        silent_s = sa.extract("epoch", now - of.last)
        is_job = of.who.startswith(enrolled_name("job", cluster, ""), autoescape=True)
        is_late = silent_s > sa.func.greatest(SILENT_S, SILENT_INTERVALS * usual_s)
        silent = sa.and_(of.all_requests > 1, is_late, ~is_job)
        kept = [of[column.name] for column in senders.c]
        wanted = sa.select(*kept, silent.label("silent")).order_by(
            sa.desc("silent"), of.last_seen.desc(), of.who, of.source
        )
        count = sa.func.count(sa.distinct(of.who))
        with reading(self._engine) as conn:
            tokens, quiet = conn.execute(sa.select(count, count.filter(silent))).one()
            rows = conn.execute(wanted.limit(limit)).mappings()
            heard = [HeardSender(_sender(row), row["silent"]) for row in rows]
        return SendersHeard(tokens, quiet, heard)


def _sender(row: sa.RowMapping) -> Sender:
    return Sender(**{name: row[name] for name in Sender.__struct_fields__})


def _sentence(text: Said) -> Any:
    """As the column keeps it. Of an overlong one only the English: a sender chooses parts of it."""
    return storable_doc(text if len(text) <= SENTENCE_MAX else quoted(text[:SENTENCE_MAX]))


def _read(row: sa.RowMapping, kind: type[S]) -> S:
    """A struct with a sentence in it."""
    return from_stored({name: row[name] for name in kind.__struct_fields__}, kind)


def _sorted(items: Sequence[T], key: Sequence[str]) -> list[T]:
    """By key, as every process writes them, so that two processes cannot deadlock."""
    return sorted(items, key=lambda item: [getattr(item, name) for name in key])


def _latest(table: sa.Table, clusters: Sequence[str] | None, key: Sequence[str]) -> sa.Select:
    order = table.c.last_seen.desc(), *(table.c[name] for name in key)
    return sa.select(table).where(matches(table.c.cluster, clusters)).order_by(*order)


class PostgresUnknownSeries:
    """`healer.ports.signal_stores.UnknownBook`."""

    def __init__(self, engine: sa.Engine, *, most: int = MOST) -> None:
        self._engine, self._most = engine, most

    def add(self, series: Sequence[UnknownSeries]) -> None:
        clusters = sorted({entry.cluster for entry in series})
        with writing(self._engine) as conn:
            for cluster in clusters:
                lock = sa.text("SELECT pg_advisory_xact_lock(:kind, hashtext(:cluster))")
                conn.execute(lock, {"kind": _LOCK, "cluster": cluster})
                names = sa.select(unknown_series.c.name).where(unknown_series.c.cluster == cluster)
                stored = set(conn.execute(names).scalars())
                of_cluster = [entry for entry in series if entry.cluster == cluster]
                for row in _bounded(of_cluster, stored, self._most):
                    _add(conn, row)

    def series(self, clusters: Sequence[str] | None, limit: int) -> list[UnknownSeries]:
        table = unknown_series.c
        wanted = sa.select(unknown_series).where(matches(table.cluster, clusters))
        wanted = wanted.order_by(table.count.desc(), table.cluster, table.name).limit(limit)
        with reading(self._engine) as conn:
            return [_read(row, UnknownSeries) for row in conn.execute(wanted).mappings()]


def _bounded(series: Sequence[UnknownSeries], names: set[str], most: int) -> list[UnknownSeries]:
    """The series summed by name, sorted by name. Names beyond the bound are one row. `names`: those already
    stored; new ones are added."""
    kept: dict[str, UnknownSeries] = {}
    left = most - len(names - {REST})
    for entry in sorted(series, key=lambda entry: entry.name):
        named = msgspec.structs.replace(entry, name=storable(entry.name))
        if named.name not in names:
            if left > 0:
                left -= 1
                names.add(named.name)
            else:
                named = msgspec.structs.replace(
                    entry, name=REST, why=say("adapters.too_many_names", most=most), example={}
                )
        before = kept.get(named.name)
        kept[named.name] = msgspec.structs.replace(named, count=named.count + (before.count if before else 0))
    return [kept[name] for name in sorted(kept)]


def _add(conn: sa.Connection, entry: UnknownSeries) -> None:
    row = msgspec.structs.asdict(entry)
    row["why"] = _sentence(entry.why)
    row["example"] = {storable(key): storable(str(value)) for key, value in entry.example.items()}
    statement = insert(unknown_series).values(**row)
    fresh = statement.excluded
    values = {**_added(unknown_series, fresh, "count"), "why": fresh.why, "example": fresh.example}
    conn.execute(statement.on_conflict_do_update(index_elements=["cluster", "name"], set_=values))


def _added(table: sa.Table, fresh: Any, *counts: str) -> dict[str, Any]:
    """The updates of an upsert: these counts are added, and `last_seen` moves on."""
    last = {"last_seen": sa.func.greatest(table.c.last_seen, fresh.last_seen)}
    return {name: table.c[name] + fresh[name] for name in counts} | last


class PostgresScrapes(PostgresStore):
    """`healer.ports.measurements.ScrapeBook`."""

    def put(self, state: ScrapeState) -> None:
        row = {"at": state.at, "body": zlib.compress(_encode(state), 1)}
        with writing(self._engine) as conn:
            # The next one follows in seconds, so a crash may lose this commit.
            conn.execute(sa.text("SET LOCAL synchronous_commit = off"))
            conn.execute(upsert(scrapes, {"cluster": state.cluster}, row))

    def states(self, clusters: Sequence[str] | None) -> list[ScrapeState]:
        wanted = sa.select(scrapes.c.body).where(matches(scrapes.c.cluster, clusters))
        with reading(self._engine) as conn:
            return read_states(conn, wanted.order_by(scrapes.c.cluster))


def read_states(conn: sa.Connection, wanted: sa.Select) -> list[ScrapeState]:
    """The readable states: a row of another version is left out until its scraper writes again."""
    found: list[ScrapeState] = []
    for body in conn.scalars(wanted):
        try:
            found.append(_decode(zlib.decompress(body)))
        except (zlib.error, msgspec.DecodeError):
            continue
    return found
