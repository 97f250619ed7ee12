"""The tables, as SQLAlchemy Core sees them. `migrations/` builds them; a test holds the two together.

Nouns are stored as their JSON (`doc`) beside the few columns that are searched, sorted or constrained.
"""

from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import BYTEA, JSONB

metadata = sa.MetaData()


def _table(name: str, *columns: sa.schema.SchemaItem, **options: Any) -> sa.Table:
    return sa.Table(name, metadata, *columns, **options)


def _columns(kind: Any, *names: str) -> list[sa.Column]:
    """A name that ends in `?` may be null."""
    return [sa.Column(name.removesuffix("?"), kind, nullable=name.endswith("?")) for name in names]


_texts = partial(_columns, sa.Text)
_moments = partial(_columns, sa.DateTime(timezone=True))
_numbers = partial(_columns, sa.BigInteger)
_integers = partial(_columns, sa.Integer)
_flags = partial(_columns, sa.Boolean)
_json = partial(_columns, JSONB)
_bytes = partial(_columns, BYTEA)


def _keys(*names: str) -> list[sa.Column]:
    """Texts that are the primary key together."""
    return [sa.Column(name, sa.Text, primary_key=True) for name in names]


def _serial(name: str = "id") -> sa.Column:
    return sa.Column(name, sa.BigInteger, sa.Identity(), primary_key=True)


def _tries() -> list[sa.Column]:
    """How often it was tried, and when it is tried again."""
    count = sa.Column("tries", sa.Integer, nullable=False, server_default="0")
    return [count, *_moments("next_try_at?")]


def _of_incident() -> sa.Column:
    return sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), nullable=False, index=True)


def _index(name: str, *columns: str, where: str | None = None, unique: bool = False) -> sa.Index:
    """A column with a parenthesis is an expression."""
    parts = [sa.text(column) if column.startswith("(") else column for column in columns]
    return sa.Index(name, *parts, unique=unique, postgresql_where=None if where is None else sa.text(where))


# Signals as accepted. `consumed_at` is set by the walk in its own transaction; what is left is found by
# the partial index, never by "id greater than the last" (rows commit out of order).
inbox = _table(
    "inbox",
    _serial(),
    *_texts("cluster", "kind", "node?"),
    sa.Column("digest", BYTEA, nullable=False, unique=True),
    *_moments("arrived_at"),
    *_json("doc"),
    *_moments("consumed_at?"),
    _index("inbox_unconsumed", "cluster", "id", where="consumed_at IS NULL"),
    _index("inbox_arrived", "cluster", "arrived_at"),
    _index("inbox_checkpoints", "cluster", "(doc #>> '{component,job}')", where="kind = 'checkpoint'"),
    _index("inbox_alerts", "cluster", "node", "arrived_at", where="kind = 'alert'"),
)


class Xid8(sa.types.UserDefinedType):
    """PostgreSQL's number of a transaction that never comes again."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


# Reports and step times, packed. A ring of partitions: those that are wholly past are truncated (`samples.py`
# tells the slot of a moment), so nothing is deleted by row, and the tables never have to be vacuumed.
# `tx` tells a reader exactly once what became visible since its last look.
SAMPLE_SLOTS = 8
samples = _table(
    "samples",
    sa.Column("id", sa.BigInteger, sa.Identity(cache=100), nullable=False),
    sa.Column("tx", Xid8, nullable=False, server_default=sa.text("pg_current_xact_id()")),
    *_texts("cluster", "kind", "subject"),
    *_moments("at", "arrived_at"),
    *_columns(sa.SmallInteger, "slot"),
    *_bytes("body"),
    _index("samples_tx", "tx"),
    _index("samples_subject", "cluster", "subject", "arrived_at"),
    postgresql_partition_by="LIST (slot)",
)
for _slot in range(SAMPLE_SLOTS):
    event.listen(
        samples,
        "after_create",
        sa.DDL(f"CREATE TABLE samples_{_slot} PARTITION OF samples FOR VALUES IN ({_slot})"),
    )

# Each series of a node has a number, the same for all nodes.
signal_columns = _table(
    "signal_columns",
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    *_texts("signal"),
    *_integers("gpu?", "link?"),
    *_texts("port?"),
    sa.UniqueConstraint(
        "signal", "gpu", "link", "port", name="signal_columns_once", postgresql_nulls_not_distinct=True
    ),
)

# What arrives and the catalogue does not know. Bounded by name; what is more is one row, `…`.
unknown_series = _table(
    "unknown_series",
    *_keys("cluster", "name"),
    *_texts("why"),
    *_numbers("count"),
    *_moments("first_seen", "last_seen"),
    *_json("example"),
)

# What was sent and is not stored, counted by reason and sender.
losses = _table(
    "losses",
    *_keys("cluster", "source", "reason", "who"),
    *_numbers("count"),
    *_moments("first_seen", "last_seen"),
    *_texts("example"),
)

# Who sends what, by token and route; `node` is the one that the token is bound to, if any.
senders = _table(
    "senders",
    *_keys("cluster", "who", "source"),
    *_texts("node"),
    *_numbers("requests", "bytes"),
    *_moments("first_seen", "last_seen"),
)

# What the scraper of each cluster fetched last: msgpack, zlib. One row, so that 1,250 targets are one write.
scrapes = _table("scrapes", *_keys("cluster"), *_moments("at"), *_bytes("body"))

# Slurm's latest picture, one row per cluster; `body` is msgpack, written by the poller only when it changed.
snapshots = _table(
    "snapshots",
    *_keys("cluster"),
    *_moments("taken_at"),
    *_numbers("version"),
    *_bytes("body"),
    *_texts("error?"),
)

controllers = _table("controllers", *_keys("cluster"), *_moments("at"), *_json("doc"))

# Hooks that the gate let fail, and those that failed unanswered: by these the drains that Slurm makes of it
# are known as ours.
permits = _table(
    "permits",
    _serial(),
    *_texts("cluster", "node", "hook", "report"),
    *_moments("at"),
    *_json("doc"),
    sa.UniqueConstraint("cluster", "node", "hook", "report", name="permits_once"),
    _index("permits_recent", "cluster", "at"),
)

incidents = _table(
    "incidents",
    *_keys("id"),
    *_texts("cluster", "rule", "state", "severity", "node?"),
    *_moments("opened", "updated", "closed?"),
    *_json("doc"),
    _index("incidents_open", "cluster", "opened", where="state <> 'resolved'"),
    _index("incidents_node", "cluster", "node", "opened"),
    _index("incidents_opened", "opened"),
    # Similar ones: the same fault, newest first.
    _index("incidents_fault", "cluster", "(doc ->> 'fault')", "opened"),
    _index(
        "incidents_merged", "(doc ->> 'merged_into')", "opened", where="(doc ->> 'merged_into') IS NOT NULL"
    ),
)

#: What an incident is a part of. As the index has it: with a name that is a parameter none would fit.
part_of = sa.literal_column("(incidents.doc ->> 'merged_into')", sa.Text)

findings = _table("findings", _serial(), _of_incident(), *_moments("at"), *_json("doc"))

# What healer held to be true of an incident, from when on: a row for each change.
verdicts = _table("verdicts", _serial(), _of_incident(), *_moments("at"), *_json("doc"))

# What parts have had, by burst: repeats over days are judged by it. One row a burst, changed while it lasts.
fault_bursts = _table(
    "fault_bursts",
    *_keys("cluster", "node", "part", "fault"),
    sa.Column("began_at", sa.DateTime(timezone=True), primary_key=True),
    *_moments("last_at"),
    *_json("doc"),
    _index("fault_bursts_last", "cluster", "last_at"),
)

# What was foretold of parts, and what came of it.
forecasts = _table(
    "forecasts",
    *_keys("id"),
    *_texts("cluster", "rule", "outcome"),
    *_moments("told_at", "ended_at?"),
    *_json("doc"),
    _index("forecasts_open", "cluster", "told_at", where="ended_at IS NULL"),
    _index("forecasts_ended", "cluster", "ended_at"),
    _index("forecasts_rule", "rule", "outcome"),
)

# Two weeks of what forecasts follow, packed; one row a rule, rewritten each hour.
trends = _table(
    "trends",
    *_keys("cluster", "rule"),
    *_moments("saved_at"),
    sa.Column("packed", sa.LargeBinary, nullable=False),
)

# How much each node is a lemon, as the detector reckoned last; all of a cluster are written together.
lemon_scores = _table("lemon_scores", *_keys("cluster", "node"), *_moments("at"), *_json("doc"))

# How each node ranks among those of its model by what its tests measured; all of a cluster together.
node_standings = _table("node_standings", *_keys("cluster", "node"), *_moments("at"), *_json("doc"))

# What nodes of a kind should have (driver, firmware, settings), as `healer learn` took it from good ones.
references = _table("node_references", *_keys("cluster", "kind"), *_moments("at"), *_json("doc"))

# What each node last reported of itself (driver, firmware, settings).
inventories = _table("inventories", *_keys("cluster", "node"), *_moments("at"), *_json("doc"))

decisions = _table(
    "decisions",
    _serial(),
    *_texts("cluster", "outcome"),
    sa.Column("incident", sa.Text, index=True),
    sa.Column("run", sa.Text, index=True),
    *_moments("at"),
    *_json("doc"),
)

runs = _table(
    "runs",
    *_keys("id"),
    *_texts("cluster", "playbook", "node?", "job?"),
    sa.Column("incident", sa.Text, index=True),
    *_texts("state"),
    *_flags("shadow"),
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
    *_moments("created_at", "wake_at?", "lease_until?", "ended_at?"),
    *_json("doc"),
    # One run per node at a time; shadow runs and those that only look never count.
    _index(
        "runs_one_per_node",
        "cluster",
        "node",
        unique=True,
        where="state = 'running' AND NOT shadow AND node IS NOT NULL"
        " AND (doc ->> 'beside') IS DISTINCT FROM 'true'",
    ),
    _index("runs_due", "cluster", "wake_at", where="state IN ('running', 'waiting')"),
    _index("runs_created", "created_at"),
    _index("runs_active", "cluster", where="state NOT IN ('done', 'undone', 'rejected', 'cancelled')"),
)

run_log = _table(
    "run_log",
    _serial("seq"),
    sa.Column("run", sa.Text, sa.ForeignKey("runs.id"), nullable=False, index=True),
    *_moments("at"),
    *_texts("step", "event"),
    *_json("doc"),
    # The gate asks under its lock how the last removing steps ended.
    _index(
        "run_log_verbs", "seq", where="event IN ('done', 'failed') AND doc -> 'data' ->> 'verb' IS NOT NULL"
    ),
    # Whose turn it is to be swept goes by the tests that came to a verdict.
    _index("run_log_tests", "at", where="event = 'done' AND doc -> 'data' ->> 'passed' IS NOT NULL"),
)

slots = _table(
    "slots",
    _serial(),
    *_texts("cluster", "node", "incident?", "run"),
    *_flags("unusable"),
    *_moments("granted_at", "drained_at?", "released_at?"),
    *_texts("released_why?"),
    _index("slots_one_per_node", "cluster", "node", unique=True, where="released_at IS NULL"),
    _index("slots_granted", "cluster", "granted_at"),
)

requeues = _table(
    "requeues",
    _serial(),
    *_texts("cluster", "job"),
    *_integers("restarts"),
    *_texts("incident?", "run"),
    *_moments("at"),
    # A job is requeued once per life of it, whoever asks and however often.
    sa.UniqueConstraint("cluster", "job", "restarts", name="requeues_once"),
    _index("requeues_at", "cluster", "at"),
)

remedies = _table(
    "remedies",
    _serial(),
    *_texts("cluster", "node", "remedy", "rule", "incident?"),
    *_moments("at"),
    _index("remedies_at", "cluster", "at"),
)

pauses = _table(
    "pauses",
    *_keys("id"),
    *_texts("cluster?", "ended_by?", "scope", "name", "by", "reason"),
    *_moments("since", "until?", "ended_at?"),
)

# One row per cluster: its lock is the gate.
gate = _table("gate", *_keys("cluster"), *_json("breaker"))

vetoes = _table("vetoes", _serial(), *_texts("cluster", "node", "by"), *_moments("at", "until"))

rule_modes = _table("rule_modes", *_keys("rule"), *_texts("mode", "by", "reason"), *_moments("at"))

#: What each rule and playbook says, by digest. `left`: so many runs of it wait for a person first.
rule_texts = _table(
    "rule_texts",
    *_keys("cluster", "name", "digest"),
    *_moments("since"),
    *_integers("left"),
    _index("rule_texts_on_trial", "cluster", where='"left" > 0'),
)

# Changes of rule files that are tried over recordings. `seen_at`: when its runner last spoke of it.
rehearsals = _table(
    "rehearsals",
    *_keys("id"),
    *_texts("cluster", "state"),
    *_moments("created_at", "seen_at"),
    *_json("doc"),
    _index("rehearsals_newest", "cluster", "created_at"),
    _index("rehearsals_one", "cluster", unique=True, where="state IN ('queued', 'running')"),
)

#: Incidents that a rule, as this text of it, opened in a replay and that a person made proof.
replay_proofs = _table(
    "replay_proofs", *_keys("rule", "digest", "incident"), *_texts("rehearsal", "by"), *_moments("at")
)

notes = _table("notes", _serial(), _of_incident(), *_moments("at"), *_texts("by", "text"))

# Every page, note and ticket: healer's own list, and what still has to leave for a sink.
messages = _table(
    "messages",
    *_keys("id"),
    *_texts("cluster", "kind"),
    sa.Column("incident", sa.Text, index=True),
    *_flags("page"),
    *_moments("at"),
    *_texts("state"),
    *_tries(),
    *_texts("error?", "reference?"),
    *_json("doc"),
    # Whether it was looked at which channels take it; `state` is the generic webhook's.
    sa.Column("routed", sa.Boolean, nullable=False, server_default=sa.false()),
    _index("messages_due", "next_try_at", where="state = 'due'"),
    _index("messages_unrouted", "cluster", "at", where="NOT routed"),
)

# A channel of rules/notifications.yaml gets what comes after it was first seen there.
channels = _table(
    "channels",
    *_keys("cluster", "name"),
    *_moments("since"),
    # It asked for a pause.
    *_moments("held_until?"),
)

# How far channels have an incident.
told_incidents = _table(
    "told_incidents",
    sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), primary_key=True),
    *_texts("cluster", "severity", "stage"),
    _index("told_incidents_open", "cluster", where="stage <> 'resolved'"),
)

# One message's way to one channel.
deliveries = _table(
    "deliveries",
    _serial(),
    *_texts("cluster", "channel"),
    sa.Column("message", sa.Text, sa.ForeignKey("messages.id"), nullable=False),
    # The incident, or the message itself: all of a thread is one message where the channel can.
    *_texts("thread", "alarm", "how", "stage"),
    *_moments("at"),
    *_texts("state"),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    *_moments("next_try_at?", "ended_at?"),
    *_texts("error?", "reference?"),
    sa.UniqueConstraint("message", "channel"),
    _index("deliveries_waiting", "cluster", "channel", where="state IN ('due', 'digest')"),
    _index("deliveries_thread", "thread", "channel"),
    _index("deliveries_state", "state", "id"),
)

# Where a channel keeps an incident's message: its own name for it, and what it got last.
threads = _table(
    "threads",
    *_keys("cluster", "channel", "thread"),
    *_texts("stage", "reference"),
    *_moments("told_at"),
    *_json("doc"),
)

# Alarms at a channel, for those that are raised again and again.
raised_alarms = _table(
    "raised_alarms", *_keys("cluster", "channel", "alarm"), *_integers("again"), *_moments("last_at")
)

# When a part of healer last said that it works, by the database's clock.
beats = _table("beats", *_keys("cluster", "part"), *_moments("at"))

# Every try to deliver, and what came of it.
delivery_log = _table(
    "delivery_log",
    _serial(),
    sa.Column("delivery", sa.BigInteger, sa.ForeignKey("deliveries.id"), nullable=False, index=True),
    *_moments("at"),
    *_texts("outcome", "text"),
)

tokens = _table(
    "tokens",
    *_keys("id"),
    sa.Column("digest", BYTEA, nullable=False, unique=True),
    *_texts("role", "name", "node?", "job?", "cluster?"),
    *_moments("created_at", "expires_at?", "revoked_at?"),
    # A sign-in link: works once, then becomes a session.
    sa.Column("once", sa.Boolean, nullable=False, server_default=sa.false()),
    *_moments("used_at?"),
    # How many times the usual quota of signals it may send.
    sa.Column("quota", sa.Float, nullable=False, server_default="1"),
)

sessions = _table(
    "sessions",
    sa.Column("digest", BYTEA, primary_key=True),
    sa.Column("token", sa.Text, sa.ForeignKey("tokens.id"), nullable=False),
    *_moments("created_at", "expires_at", "ended_at?"),
)

idempotency = _table(
    "idempotency",
    *_keys("key", "who"),
    *_bytes("request"),
    *_moments("at"),
    *_integers("status?"),
    *_json("headers?"),
    *_bytes("body?"),
)

# Append-only; UPDATE, DELETE and TRUNCATE are refused by triggers.
audit_records = _table(
    "audit_records",
    _serial(),
    *_texts("cluster", "actor", "verb", "subject"),
    *_moments("at"),
    *_json("data"),
    _index("audit_records_subject", "subject", "id"),
)

# What the sealer has not chained yet, so that asking costs nothing. A trigger on audit_records fills it.
audit_unsealed = _table(
    "audit_unsealed", sa.Column("record", sa.BigInteger, primary_key=True, autoincrement=False)
)

audit_chain = _table(
    "audit_chain",
    *_keys("cluster"),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("record", sa.BigInteger, nullable=False, unique=True),
    *_bytes("prev", "hash"),
)

# How far the feed of events has brought the chain to its sink.
event_feed = _table("event_feed", *_keys("cluster"), *_numbers("seq"), *_tries())

audit_checkpoints = _table(
    "audit_checkpoints",
    *_keys("cluster"),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    *_bytes("hash"),
    *_moments("at"),
    *_texts("key"),
    *_bytes("signature"),
)

# What nodes of one class (GPU model, load) looked like at one moment: float16, (nodes, features), zlib.
feature_rows = _table(
    "feature_rows",
    _serial(),
    *_texts("cluster", "hardware", "load"),
    *_moments("at"),
    *_json("nodes", "features"),
    *_bytes("matrix"),
    _index("feature_rows_class", "cluster", "hardware", "load", "at"),
)

# A model is its data and parameters, never a pickle: float32, (rows, features), zlib. The forest grows again.
# Of each class that is in force which was put in force last; `judged` is how it did against the one before.
forest_models = _table(
    "forest_models",
    *_keys("id"),
    *_texts("cluster", "hardware", "load"),
    *_moments("trained_at"),
    *_json("doc"),
    *_bytes("data"),
    *_moments("in_force_at?"),
    *_texts("in_force_by?"),
    *_json("judged?"),
    _index("forest_models_class", "cluster", "hardware", "load", "trained_at"),
)

# What came of the last look whether a class's model is to be made again.
forest_classes = _table(
    "forest_classes", *_keys("cluster", "hardware", "load"), *_moments("at"), *_json("doc")
)

# How unusual each node was when its class was last kept: pages read it.
unusual_nodes = _table("unusual_nodes", *_keys("cluster", "node"), *_moments("at"), *_json("doc"))

# What was collected on nodes, for people: gzip in pieces. Shown once all of it is here.
evidence = _table(
    "evidence",
    *_keys("id"),
    *_texts("cluster", "incident?"),
    sa.Column("run", sa.Text, nullable=False, index=True),
    *_moments("at"),
    *_numbers("size_bytes"),
    *_flags("finished"),
    *_json("doc"),
    _index("evidence_incident", "incident", "at"),
    _index("evidence_at", "at"),
)

evidence_pieces = _table(
    "evidence_pieces",
    sa.Column("file", sa.Text, sa.ForeignKey("evidence.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("start", sa.BigInteger, primary_key=True),
    *_bytes("data"),
)
