"""The tables, as SQLAlchemy Core sees them. `migrations/` builds them; a test holds the two together.

Nouns are stored as their JSON (`doc`) beside the few columns that are searched, sorted or constrained.
"""

from typing import Any

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import BYTEA, JSONB

metadata = sa.MetaData()


def _table(name: str, *columns: sa.schema.SchemaItem, **options: Any) -> sa.Table:
    return sa.Table(name, metadata, *columns, **options)


def _texts(*names: str, nullable: bool = False) -> list[sa.Column]:
    return [sa.Column(name, sa.Text, nullable=nullable) for name in names]


def _keys(*names: str) -> list[sa.Column]:
    """Texts that are the primary key together."""
    return [sa.Column(name, sa.Text, primary_key=True) for name in names]


def _moments(*names: str, nullable: bool = False) -> list[sa.Column]:
    return [sa.Column(name, sa.DateTime(timezone=True), nullable=nullable) for name in names]


def _json(name: str) -> sa.Column:
    return sa.Column(name, JSONB, nullable=False)


def _bytes(name: str) -> sa.Column:
    return sa.Column(name, BYTEA, nullable=False)


def _serial() -> sa.Column:
    return sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True)


# Signals as accepted. `consumed_at` is set by the walk in its own transaction; what is left is found by
# the partial index, never by "id greater than the last" (rows commit out of order).
inbox = _table(
    "inbox",
    _serial(),
    *_texts("cluster", "kind"),
    *_texts("node", nullable=True),
    sa.Column("digest", BYTEA, nullable=False, unique=True),
    *_moments("arrived_at"),
    _json("doc"),
    *_moments("consumed_at", nullable=True),
    sa.Index("inbox_unconsumed", "cluster", "id", postgresql_where=sa.text("consumed_at IS NULL")),
    sa.Index("inbox_arrived", "cluster", "arrived_at"),
    sa.Index(
        "inbox_checkpoints",
        "cluster",
        sa.text("(doc #>> '{component,job}')"),
        postgresql_where=sa.text("kind = 'checkpoint'"),
    ),
    sa.Index("inbox_alerts", "cluster", "node", "arrived_at", postgresql_where=sa.text("kind = 'alert'")),
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
    sa.Column("slot", sa.SmallInteger, nullable=False),
    _bytes("body"),
    sa.Index("samples_tx", "tx"),
    sa.Index("samples_subject", "cluster", "subject", "arrived_at"),
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
    sa.Column("gpu", sa.Integer),
    sa.Column("link", sa.Integer),
    *_texts("port", nullable=True),
    sa.UniqueConstraint(
        "signal", "gpu", "link", "port", name="signal_columns_once", postgresql_nulls_not_distinct=True
    ),
)

# What arrives and the catalogue does not know. Bounded by name; what is more is one row, `…`.
unknown_series = _table(
    "unknown_series",
    *_keys("cluster", "name"),
    *_texts("why"),
    sa.Column("count", sa.BigInteger, nullable=False),
    *_moments("first_seen", "last_seen"),
    _json("example"),
)

# What was sent and is not stored, counted by reason and sender.
losses = _table(
    "losses",
    *_keys("cluster", "source", "reason", "who"),
    sa.Column("count", sa.BigInteger, nullable=False),
    *_moments("first_seen", "last_seen"),
    *_texts("example"),
)

# Who sends what, by token and route; `node` is the one that the token is bound to, if any.
senders = _table(
    "senders",
    *_keys("cluster", "who", "source"),
    *_texts("node"),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    *_moments("first_seen", "last_seen"),
)

# What the scraper of each cluster fetched last: msgpack, zlib. One row, so that 1,250 targets are one write.
scrapes = _table("scrapes", *_keys("cluster"), *_moments("at"), _bytes("body"))

# Slurm's latest picture, one row per cluster; `body` is msgpack, written by the poller only when it changed.
snapshots = _table(
    "snapshots",
    *_keys("cluster"),
    *_moments("taken_at"),
    sa.Column("version", sa.BigInteger, nullable=False),
    _bytes("body"),
    *_texts("error", nullable=True),
)

controllers = _table("controllers", *_keys("cluster"), *_moments("at"), _json("doc"))

# Hooks that the gate let fail, and those that failed unanswered: by these the drains that Slurm makes of it
# are known as ours.
permits = _table(
    "permits",
    _serial(),
    *_texts("cluster", "node", "hook", "report"),
    *_moments("at"),
    _json("doc"),
    sa.UniqueConstraint("cluster", "node", "hook", "report", name="permits_once"),
    sa.Index("permits_recent", "cluster", "at"),
)

incidents = _table(
    "incidents",
    *_keys("id"),
    *_texts("cluster", "rule", "state", "severity"),
    *_texts("node", nullable=True),
    *_moments("opened", "updated"),
    *_moments("closed", nullable=True),
    _json("doc"),
    sa.Index("incidents_open", "cluster", "opened", postgresql_where=sa.text("state <> 'resolved'")),
    sa.Index("incidents_node", "cluster", "node", "opened"),
    sa.Index("incidents_opened", "opened"),
    # Similar ones: the same fault, newest first.
    sa.Index("incidents_fault", "cluster", sa.text("(doc ->> 'fault')"), "opened"),
    sa.Index(
        "incidents_merged",
        sa.text("(doc ->> 'merged_into')"),
        "opened",
        postgresql_where=sa.text("(doc ->> 'merged_into') IS NOT NULL"),
    ),
)

#: What an incident is a part of. As the index has it: with a name that is a parameter none would fit.
part_of = sa.literal_column("(incidents.doc ->> 'merged_into')", sa.Text)

findings = _table(
    "findings",
    _serial(),
    sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), nullable=False, index=True),
    *_moments("at"),
    _json("doc"),
)

# What healer held to be true of an incident, from when on: a row for each change.
verdicts = _table(
    "verdicts",
    _serial(),
    sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), nullable=False, index=True),
    *_moments("at"),
    _json("doc"),
)

# What parts have had, by burst: repeats over days are judged by it. One row a burst, changed while it lasts.
fault_bursts = _table(
    "fault_bursts",
    *_keys("cluster", "node", "part", "fault"),
    sa.Column("began_at", sa.DateTime(timezone=True), primary_key=True),
    *_moments("last_at"),
    _json("doc"),
    sa.Index("fault_bursts_last", "cluster", "last_at"),
)

# What was foretold of parts, and what came of it.
forecasts = _table(
    "forecasts",
    *_keys("id"),
    *_texts("cluster", "rule", "outcome"),
    *_moments("told_at"),
    *_moments("ended_at", nullable=True),
    _json("doc"),
    sa.Index("forecasts_open", "cluster", "told_at", postgresql_where=sa.text("ended_at IS NULL")),
    sa.Index("forecasts_ended", "cluster", "ended_at"),
    sa.Index("forecasts_rule", "rule", "outcome"),
)

# Two weeks of what forecasts follow, packed; one row a rule, written anew each hour.
trends = _table(
    "trends",
    *_keys("cluster", "rule"),
    *_moments("saved_at"),
    sa.Column("packed", sa.LargeBinary, nullable=False),
)

# How much each node is a lemon, as the detector reckoned last; all of a cluster are written together.
lemon_scores = _table("lemon_scores", *_keys("cluster", "node"), *_moments("at"), _json("doc"))

# How each node stands among those of its model by what its tests measured; all of a cluster together.
node_standings = _table("node_standings", *_keys("cluster", "node"), *_moments("at"), _json("doc"))

# What nodes of a kind should have (driver, firmware, settings), as `healer learn` took it from good ones.
references = _table("node_references", *_keys("cluster", "kind"), *_moments("at"), _json("doc"))

# What each node told of itself last (driver, firmware, settings).
inventories = _table("inventories", *_keys("cluster", "node"), *_moments("at"), _json("doc"))

decisions = _table(
    "decisions",
    _serial(),
    *_texts("cluster", "outcome"),
    sa.Column("incident", sa.Text, index=True),
    sa.Column("run", sa.Text, index=True),
    *_moments("at"),
    _json("doc"),
)

runs = _table(
    "runs",
    *_keys("id"),
    *_texts("cluster", "playbook"),
    *_texts("node", "job", nullable=True),
    sa.Column("incident", sa.Text, index=True),
    *_texts("state"),
    sa.Column("shadow", sa.Boolean, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
    *_moments("created_at"),
    *_moments("wake_at", "lease_until", "ended_at", nullable=True),
    _json("doc"),
    # One run per node at a time; shadow runs and those that only look never count.
    sa.Index(
        "runs_one_per_node",
        "cluster",
        "node",
        unique=True,
        postgresql_where=sa.text(
            "state = 'running' AND NOT shadow AND node IS NOT NULL"
            " AND (doc ->> 'beside') IS DISTINCT FROM 'true'"
        ),
    ),
    sa.Index("runs_due", "cluster", "wake_at", postgresql_where=sa.text("state IN ('running', 'waiting')")),
    sa.Index("runs_created", "created_at"),
    sa.Index(
        "runs_active",
        "cluster",
        postgresql_where=sa.text("state NOT IN ('done', 'undone', 'rejected', 'cancelled')"),
    ),
)

run_log = _table(
    "run_log",
    sa.Column("seq", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("run", sa.Text, sa.ForeignKey("runs.id"), nullable=False, index=True),
    *_moments("at"),
    *_texts("step", "event"),
    _json("doc"),
    # The gate asks under its lock how the last removing steps ended.
    sa.Index(
        "run_log_verbs",
        "seq",
        postgresql_where=sa.text("event IN ('done', 'failed') AND doc -> 'data' ->> 'verb' IS NOT NULL"),
    ),
    # Whose turn it is to be swept goes by the tests that came to a verdict.
    sa.Index(
        "run_log_tests",
        "at",
        postgresql_where=sa.text("event = 'done' AND doc -> 'data' ->> 'passed' IS NOT NULL"),
    ),
)

slots = _table(
    "slots",
    _serial(),
    *_texts("cluster", "node"),
    *_texts("incident", nullable=True),
    *_texts("run"),
    sa.Column("unusable", sa.Boolean, nullable=False),
    *_moments("granted_at"),
    *_moments("drained_at", "released_at", nullable=True),
    *_texts("released_why", nullable=True),
    sa.Index(
        "slots_one_per_node",
        "cluster",
        "node",
        unique=True,
        postgresql_where=sa.text("released_at IS NULL"),
    ),
    sa.Index("slots_granted", "cluster", "granted_at"),
)

requeues = _table(
    "requeues",
    _serial(),
    *_texts("cluster", "job"),
    sa.Column("restarts", sa.Integer, nullable=False),
    *_texts("incident", nullable=True),
    *_texts("run"),
    *_moments("at"),
    # A job is requeued once per life of it, whoever asks and however often.
    sa.UniqueConstraint("cluster", "job", "restarts", name="requeues_once"),
    sa.Index("requeues_at", "cluster", "at"),
)

remedies = _table(
    "remedies",
    _serial(),
    *_texts("cluster", "node", "remedy", "rule"),
    *_texts("incident", nullable=True),
    *_moments("at"),
    sa.Index("remedies_at", "cluster", "at"),
)

pauses = _table(
    "pauses",
    *_keys("id"),
    *_texts("cluster", "ended_by", nullable=True),
    *_texts("scope", "name", "by", "reason"),
    *_moments("since"),
    *_moments("until", "ended_at", nullable=True),
)

# One row per cluster: its lock is the gate.
gate = _table("gate", *_keys("cluster"), _json("breaker"))

vetoes = _table("vetoes", _serial(), *_texts("cluster", "node", "by"), *_moments("at", "until"))

rule_modes = _table("rule_modes", *_keys("rule"), *_texts("mode", "by", "reason"), *_moments("at"))

#: What each rule and playbook says, by digest. `left`: so many runs of it wait for a person first.
rule_texts = _table(
    "rule_texts",
    *_keys("cluster", "name", "digest"),
    *_moments("since"),
    sa.Column("left", sa.Integer, nullable=False),
    sa.Index("rule_texts_on_trial", "cluster", postgresql_where=sa.text('"left" > 0')),
)

# Changes of rule files that are tried over recordings. `seen_at`: when its runner last spoke of it.
rehearsals = _table(
    "rehearsals",
    *_keys("id"),
    *_texts("cluster", "state"),
    *_moments("created_at", "seen_at"),
    _json("doc"),
    sa.Index("rehearsals_newest", "cluster", "created_at"),
    sa.Index(
        "rehearsals_one",
        "cluster",
        unique=True,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    ),
)

#: Incidents that a rule, as this text of it, opened in a replay and that a person made proof.
replay_proofs = _table(
    "replay_proofs",
    *_keys("rule", "digest", "incident"),
    *_texts("rehearsal", "by"),
    *_moments("at"),
)

notes = _table(
    "notes",
    _serial(),
    sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), nullable=False, index=True),
    *_moments("at"),
    *_texts("by", "text"),
)

# Every page, note and ticket: healer's own list, and what still has to leave for a sink.
messages = _table(
    "messages",
    *_keys("id"),
    *_texts("cluster", "kind"),
    sa.Column("incident", sa.Text, index=True),
    sa.Column("page", sa.Boolean, nullable=False),
    *_moments("at"),
    *_texts("state"),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    *_moments("next_try_at", nullable=True),
    *_texts("error", "reference", nullable=True),
    _json("doc"),
    # Whether it was looked at which channels take it; `state` is the generic webhook's.
    sa.Column("routed", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("messages_due", "next_try_at", postgresql_where=sa.text("state = 'due'")),
    sa.Index("messages_unrouted", "cluster", "at", postgresql_where=sa.text("NOT routed")),
)

# A channel of rules/notifications.yaml is told what comes after it was first seen there.
channels = _table(
    "channels",
    *_keys("cluster", "name"),
    *_moments("since"),
    # It asked for a pause.
    *_moments("held_until", nullable=True),
)

# How far channels were told of an incident.
told_incidents = _table(
    "told_incidents",
    sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), primary_key=True),
    *_texts("cluster", "severity", "stage"),
    sa.Index("told_incidents_open", "cluster", postgresql_where=sa.text("stage <> 'resolved'")),
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
    *_moments("next_try_at", "ended_at", nullable=True),
    *_texts("error", "reference", nullable=True),
    sa.UniqueConstraint("message", "channel"),
    sa.Index(
        "deliveries_waiting", "cluster", "channel", postgresql_where=sa.text("state IN ('due', 'digest')")
    ),
    sa.Index("deliveries_thread", "thread", "channel"),
    sa.Index("deliveries_state", "state", "id"),
)

# Where a channel keeps an incident's message: its own name for it, and what it was told last.
threads = _table(
    "threads",
    *_keys("cluster", "channel", "thread"),
    *_texts("stage", "reference"),
    *_moments("told_at"),
    _json("doc"),
)

# Alarms at a channel, for those that are raised again and again.
raised_alarms = _table(
    "raised_alarms",
    *_keys("cluster", "channel", "alarm"),
    sa.Column("again", sa.Integer, nullable=False),
    *_moments("last_at"),
)

# When a part of healer told last that it works, by the database's clock.
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
    *_texts("role", "name"),
    *_texts("node", "job", "cluster", nullable=True),
    *_moments("created_at"),
    *_moments("expires_at", "revoked_at", nullable=True),
    # A sign-in link: works once, then becomes a session.
    sa.Column("once", sa.Boolean, nullable=False, server_default=sa.false()),
    *_moments("used_at", nullable=True),
    # How many times the usual quota of signals it may send.
    sa.Column("quota", sa.Float, nullable=False, server_default="1"),
)

sessions = _table(
    "sessions",
    sa.Column("digest", BYTEA, primary_key=True),
    sa.Column("token", sa.Text, sa.ForeignKey("tokens.id"), nullable=False),
    *_moments("created_at", "expires_at"),
    *_moments("ended_at", nullable=True),
)

idempotency = _table(
    "idempotency",
    *_keys("key", "who"),
    _bytes("request"),
    *_moments("at"),
    sa.Column("status", sa.Integer),
    sa.Column("headers", JSONB),
    sa.Column("body", BYTEA),
)

# Append-only; UPDATE, DELETE and TRUNCATE are refused by triggers.
audit_records = _table(
    "audit_records",
    _serial(),
    *_texts("cluster", "actor", "verb", "subject"),
    *_moments("at"),
    _json("data"),
    sa.Index("audit_records_subject", "subject", "id"),
)

# What the sealer has not chained yet, so that asking costs nothing. A trigger on audit_records fills it.
audit_unsealed = _table(
    "audit_unsealed",
    sa.Column("record", sa.BigInteger, primary_key=True, autoincrement=False),
)

audit_chain = _table(
    "audit_chain",
    *_keys("cluster"),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("record", sa.BigInteger, nullable=False, unique=True),
    _bytes("prev"),
    _bytes("hash"),
)

# How far the feed of events has told the chain to its sink.
event_feed = _table(
    "event_feed",
    *_keys("cluster"),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    *_moments("next_try_at", nullable=True),
)

audit_checkpoints = _table(
    "audit_checkpoints",
    *_keys("cluster"),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    _bytes("hash"),
    *_moments("at"),
    *_texts("key"),
    _bytes("signature"),
)

# What nodes of one class (GPU model, load) looked like at one moment: float16, (nodes, features), zlib.
feature_rows = _table(
    "feature_rows",
    _serial(),
    *_texts("cluster", "hardware", "load"),
    *_moments("at"),
    _json("nodes"),
    _json("features"),
    _bytes("matrix"),
    sa.Index("feature_rows_class", "cluster", "hardware", "load", "at"),
)

# A model is its data and parameters, never a pickle: float32, (rows, features), zlib. The forest grows anew.
# Of each class that is in force which was put in force last; `judged` is how it did against the one before.
forest_models = _table(
    "forest_models",
    *_keys("id"),
    *_texts("cluster", "hardware", "load"),
    *_moments("trained_at"),
    _json("doc"),
    _bytes("data"),
    *_moments("in_force_at", nullable=True),
    sa.Column("in_force_by", sa.Text, nullable=True),
    sa.Column("judged", JSONB, nullable=True),
    sa.Index("forest_models_class", "cluster", "hardware", "load", "trained_at"),
)

# What came of the last look whether a class's model is to be made anew.
forest_classes = _table(
    "forest_classes",
    *_keys("cluster", "hardware", "load"),
    *_moments("at"),
    _json("doc"),
)

# How unusual each node was when its class was last kept: pages read it.
unusual_nodes = _table("unusual_nodes", *_keys("cluster", "node"), *_moments("at"), _json("doc"))

# What was collected on nodes, for people: gzip in pieces. Shown once all of it is here.
evidence = _table(
    "evidence",
    *_keys("id"),
    *_texts("cluster"),
    *_texts("incident", nullable=True),
    sa.Column("run", sa.Text, nullable=False, index=True),
    *_moments("at"),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("finished", sa.Boolean, nullable=False),
    _json("doc"),
    sa.Index("evidence_incident", "incident", "at"),
    sa.Index("evidence_at", "at"),
)

evidence_pieces = _table(
    "evidence_pieces",
    sa.Column("file", sa.Text, sa.ForeignKey("evidence.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("start", sa.BigInteger, primary_key=True),
    _bytes("data"),
)
