"""The tables, as SQLAlchemy Core sees them. `migrations/` builds them; a test holds the two together.

Nouns are stored as their JSON (`doc`) beside the few columns that are searched, sorted or constrained.
"""

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.dialects.postgresql import BYTEA, JSONB

metadata = sa.MetaData()


def _moment(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _serial() -> sa.Column:
    return sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True)


# Signals as accepted. `consumed_at` is set by the walk in its own transaction; what is left is found by
# the partial index, never by "id greater than the last" (rows commit out of order).
inbox = sa.Table(
    "inbox",
    metadata,
    _serial(),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("node", sa.Text),
    sa.Column("digest", BYTEA, nullable=False, unique=True),
    _moment("arrived_at"),
    sa.Column("doc", JSONB, nullable=False),
    _moment("consumed_at", nullable=True),
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
samples = sa.Table(
    "samples",
    metadata,
    sa.Column("id", sa.BigInteger, sa.Identity(cache=100), nullable=False),
    sa.Column("tx", Xid8, nullable=False, server_default=sa.text("pg_current_xact_id()")),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    _moment("at"),
    _moment("arrived_at"),
    sa.Column("slot", sa.SmallInteger, nullable=False),
    sa.Column("body", BYTEA, nullable=False),
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
signal_columns = sa.Table(
    "signal_columns",
    metadata,
    sa.Column("id", sa.Integer, sa.Identity(), primary_key=True),
    sa.Column("signal", sa.Text, nullable=False),
    sa.Column("gpu", sa.Integer),
    sa.Column("link", sa.Integer),
    sa.Column("port", sa.Text),
    sa.UniqueConstraint(
        "signal", "gpu", "link", "port", name="signal_columns_once", postgresql_nulls_not_distinct=True
    ),
)

# What arrives and the catalogue does not know. Bounded by name; what is more is one row, `…`.
unknown_series = sa.Table(
    "unknown_series",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("count", sa.BigInteger, nullable=False),
    _moment("first_seen"),
    _moment("last_seen"),
    sa.Column("example", JSONB, nullable=False),
)

# What was sent and is not stored, counted by reason and sender.
losses = sa.Table(
    "losses",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("reason", sa.Text, primary_key=True),
    sa.Column("who", sa.Text, primary_key=True),
    sa.Column("count", sa.BigInteger, nullable=False),
    _moment("first_seen"),
    _moment("last_seen"),
    sa.Column("example", sa.Text, nullable=False),
)

# Who sends what, by token and route; `node` is the one that the token is bound to, if any.
senders = sa.Table(
    "senders",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("who", sa.Text, primary_key=True),
    sa.Column("source", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("requests", sa.BigInteger, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    _moment("first_seen"),
    _moment("last_seen"),
)

# What the scraper of each cluster fetched last: msgpack, zlib. One row, so that 1,250 targets are one write.
scrapes = sa.Table(
    "scrapes",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    _moment("at"),
    sa.Column("body", BYTEA, nullable=False),
)

# Slurm's latest picture, one row per cluster; `body` is msgpack, written by the poller only when it changed.
snapshots = sa.Table(
    "snapshots",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    _moment("taken_at"),
    sa.Column("version", sa.BigInteger, nullable=False),
    sa.Column("body", BYTEA, nullable=False),
    sa.Column("error", sa.Text),
)

controllers = sa.Table(
    "controllers",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    _moment("at"),
    sa.Column("doc", JSONB, nullable=False),
)

# Hooks that the gate let fail, and those that failed unanswered: by these the drains that Slurm makes of it
# are known as ours.
permits = sa.Table(
    "permits",
    metadata,
    _serial(),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("hook", sa.Text, nullable=False),
    sa.Column("report", sa.Text, nullable=False),
    _moment("at"),
    sa.Column("doc", JSONB, nullable=False),
    sa.UniqueConstraint("cluster", "node", "hook", "report", name="permits_once"),
    sa.Index("permits_recent", "cluster", "at"),
)

incidents = sa.Table(
    "incidents",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("node", sa.Text),
    _moment("opened"),
    _moment("updated"),
    _moment("closed", nullable=True),
    sa.Column("doc", JSONB, nullable=False),
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

findings = sa.Table(
    "findings",
    metadata,
    _serial(),
    sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), nullable=False, index=True),
    _moment("at"),
    sa.Column("doc", JSONB, nullable=False),
)

# What healer held to be true of an incident, from when on: a row for each change.
verdicts = sa.Table(
    "verdicts",
    metadata,
    _serial(),
    sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), nullable=False, index=True),
    _moment("at"),
    sa.Column("doc", JSONB, nullable=False),
)

# What parts have had, by burst: repeats over days are judged by it. One row a burst, changed while it lasts.
fault_bursts = sa.Table(
    "fault_bursts",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("part", sa.Text, primary_key=True),
    sa.Column("fault", sa.Text, primary_key=True),
    sa.Column("began_at", sa.DateTime(timezone=True), primary_key=True),
    _moment("last_at"),
    sa.Column("doc", JSONB, nullable=False),
    sa.Index("fault_bursts_last", "cluster", "last_at"),
)

# What was foretold of parts, and what came of it.
forecasts = sa.Table(
    "forecasts",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("outcome", sa.Text, nullable=False),
    _moment("told_at"),
    _moment("ended_at", nullable=True),
    sa.Column("doc", JSONB, nullable=False),
    sa.Index("forecasts_open", "cluster", "told_at", postgresql_where=sa.text("ended_at IS NULL")),
    sa.Index("forecasts_ended", "cluster", "ended_at"),
    sa.Index("forecasts_rule", "rule", "outcome"),
)

# Two weeks of what forecasts follow, packed; one row a rule, written anew each hour.
trends = sa.Table(
    "trends",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("rule", sa.Text, primary_key=True),
    _moment("saved_at"),
    sa.Column("packed", sa.LargeBinary, nullable=False),
)

# How much each node is a lemon, as the detector reckoned last; all of a cluster are written together.
lemon_scores = sa.Table(
    "lemon_scores",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True),
    _moment("at"),
    sa.Column("doc", JSONB, nullable=False),
)

# How each node stands among those of its model by what its tests measured; all of a cluster together.
node_standings = sa.Table(
    "node_standings",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True),
    _moment("at"),
    sa.Column("doc", JSONB, nullable=False),
)

# What nodes of a kind should have (driver, firmware, settings), as `healer learn` took it from good ones.
references = sa.Table(
    "node_references",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    _moment("at"),
    sa.Column("doc", JSONB, nullable=False),
)

# What each node told of itself last (driver, firmware, settings).
inventories = sa.Table(
    "inventories",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True),
    _moment("at"),
    sa.Column("doc", JSONB, nullable=False),
)

decisions = sa.Table(
    "decisions",
    metadata,
    _serial(),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("incident", sa.Text, index=True),
    sa.Column("run", sa.Text, index=True),
    _moment("at"),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("doc", JSONB, nullable=False),
)

runs = sa.Table(
    "runs",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("playbook", sa.Text, nullable=False),
    sa.Column("node", sa.Text),
    sa.Column("job", sa.Text),
    sa.Column("incident", sa.Text, index=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("shadow", sa.Boolean, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False, server_default="0"),
    _moment("created_at"),
    _moment("wake_at", nullable=True),
    _moment("lease_until", nullable=True),
    _moment("ended_at", nullable=True),
    sa.Column("doc", JSONB, nullable=False),
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

run_log = sa.Table(
    "run_log",
    metadata,
    sa.Column("seq", sa.BigInteger, sa.Identity(), primary_key=True),
    sa.Column("run", sa.Text, sa.ForeignKey("runs.id"), nullable=False, index=True),
    _moment("at"),
    sa.Column("step", sa.Text, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("doc", JSONB, nullable=False),
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

slots = sa.Table(
    "slots",
    metadata,
    _serial(),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("incident", sa.Text),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("unusable", sa.Boolean, nullable=False),
    _moment("granted_at"),
    _moment("drained_at", nullable=True),
    _moment("released_at", nullable=True),
    sa.Column("released_why", sa.Text),
    sa.Index(
        "slots_one_per_node",
        "cluster",
        "node",
        unique=True,
        postgresql_where=sa.text("released_at IS NULL"),
    ),
    sa.Index("slots_granted", "cluster", "granted_at"),
)

requeues = sa.Table(
    "requeues",
    metadata,
    _serial(),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("job", sa.Text, nullable=False),
    sa.Column("restarts", sa.Integer, nullable=False),
    sa.Column("incident", sa.Text),
    sa.Column("run", sa.Text, nullable=False),
    _moment("at"),
    # A job is requeued once per life of it, whoever asks and however often.
    sa.UniqueConstraint("cluster", "job", "restarts", name="requeues_once"),
    sa.Index("requeues_at", "cluster", "at"),
)

remedies = sa.Table(
    "remedies",
    metadata,
    _serial(),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("remedy", sa.Text, nullable=False),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("incident", sa.Text),
    _moment("at"),
    sa.Index("remedies_at", "cluster", "at"),
)

pauses = sa.Table(
    "pauses",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("cluster", sa.Text),
    sa.Column("scope", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    _moment("since"),
    _moment("until", nullable=True),
    _moment("ended_at", nullable=True),
    sa.Column("ended_by", sa.Text),
)

# One row per cluster: its lock is the gate.
gate = sa.Table(
    "gate",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("breaker", JSONB, nullable=False),
)

vetoes = sa.Table(
    "vetoes",
    metadata,
    _serial(),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    _moment("at"),
    _moment("until"),
)

rule_modes = sa.Table(
    "rule_modes",
    metadata,
    sa.Column("rule", sa.Text, primary_key=True),
    sa.Column("mode", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    _moment("at"),
)

#: What each rule and playbook says, by digest. `left`: so many runs of it wait for a person first.
rule_texts = sa.Table(
    "rule_texts",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    _moment("since"),
    sa.Column("left", sa.Integer, nullable=False),
    sa.Index("rule_texts_on_trial", "cluster", postgresql_where=sa.text('"left" > 0')),
)

# Changes of rule files that are tried over recordings. `seen_at`: when its runner last spoke of it.
rehearsals = sa.Table(
    "rehearsals",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    _moment("created_at"),
    _moment("seen_at"),
    sa.Column("doc", JSONB, nullable=False),
    sa.Index("rehearsals_newest", "cluster", "created_at"),
    sa.Index(
        "rehearsals_one",
        "cluster",
        unique=True,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    ),
)

#: Incidents that a rule, as this text of it, opened in a replay and that a person made proof.
replay_proofs = sa.Table(
    "replay_proofs",
    metadata,
    sa.Column("rule", sa.Text, primary_key=True),
    sa.Column("digest", sa.Text, primary_key=True),
    sa.Column("incident", sa.Text, primary_key=True),
    sa.Column("rehearsal", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    _moment("at"),
)

notes = sa.Table(
    "notes",
    metadata,
    _serial(),
    sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), nullable=False, index=True),
    _moment("at"),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)

# Every page, note and ticket: healer's own list, and what still has to leave for a sink.
messages = sa.Table(
    "messages",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("incident", sa.Text, index=True),
    sa.Column("page", sa.Boolean, nullable=False),
    _moment("at"),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    _moment("next_try_at", nullable=True),
    sa.Column("error", sa.Text),
    sa.Column("reference", sa.Text),
    sa.Column("doc", JSONB, nullable=False),
    # Whether it was looked at which channels take it; `state` is the generic webhook's.
    sa.Column("routed", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Index("messages_due", "next_try_at", postgresql_where=sa.text("state = 'due'")),
    sa.Index("messages_unrouted", "cluster", "at", postgresql_where=sa.text("NOT routed")),
)

# A channel of rules/notifications.yaml is told what comes after it was first seen there.
channels = sa.Table(
    "channels",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    _moment("since"),
    # It asked for a pause.
    _moment("held_until", nullable=True),
)

# How far channels were told of an incident.
told_incidents = sa.Table(
    "told_incidents",
    metadata,
    sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), primary_key=True),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("severity", sa.Text, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Index("told_incidents_open", "cluster", postgresql_where=sa.text("stage <> 'resolved'")),
)

# One message's way to one channel.
deliveries = sa.Table(
    "deliveries",
    metadata,
    _serial(),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("message", sa.Text, sa.ForeignKey("messages.id"), nullable=False),
    # The incident, or the message itself: all of a thread is one message where the channel can.
    sa.Column("thread", sa.Text, nullable=False),
    sa.Column("alarm", sa.Text, nullable=False),
    sa.Column("how", sa.Text, nullable=False),
    sa.Column("stage", sa.Text, nullable=False),
    _moment("at"),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    _moment("next_try_at", nullable=True),
    _moment("ended_at", nullable=True),
    sa.Column("error", sa.Text),
    sa.Column("reference", sa.Text),
    sa.UniqueConstraint("message", "channel"),
    sa.Index(
        "deliveries_waiting", "cluster", "channel", postgresql_where=sa.text("state IN ('due', 'digest')")
    ),
    sa.Index("deliveries_thread", "thread", "channel"),
    sa.Index("deliveries_state", "state", "id"),
)

# Where a channel keeps an incident's message: its own name for it, and what it was told last.
threads = sa.Table(
    "threads",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("thread", sa.Text, primary_key=True),
    sa.Column("stage", sa.Text, nullable=False),
    sa.Column("reference", sa.Text, nullable=False),
    _moment("told_at"),
    sa.Column("doc", JSONB, nullable=False),
)

# Alarms at a channel, for those that are raised again and again.
raised_alarms = sa.Table(
    "raised_alarms",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("channel", sa.Text, primary_key=True),
    sa.Column("alarm", sa.Text, primary_key=True),
    sa.Column("again", sa.Integer, nullable=False),
    _moment("last_at"),
)

# When a part of healer told last that it works, by the database's clock.
beats = sa.Table(
    "beats",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("part", sa.Text, primary_key=True),
    _moment("at"),
)

# Every try to deliver, and what came of it.
delivery_log = sa.Table(
    "delivery_log",
    metadata,
    _serial(),
    sa.Column("delivery", sa.BigInteger, sa.ForeignKey("deliveries.id"), nullable=False, index=True),
    _moment("at"),
    sa.Column("outcome", sa.Text, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)

tokens = sa.Table(
    "tokens",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("digest", BYTEA, nullable=False, unique=True),
    sa.Column("role", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("node", sa.Text),
    sa.Column("job", sa.Text),
    sa.Column("cluster", sa.Text),
    _moment("created_at"),
    _moment("expires_at", nullable=True),
    _moment("revoked_at", nullable=True),
    # A sign-in link: works once, then becomes a session.
    sa.Column("once", sa.Boolean, nullable=False, server_default=sa.false()),
    _moment("used_at", nullable=True),
    # How many times the usual quota of signals it may send.
    sa.Column("quota", sa.Float, nullable=False, server_default="1"),
)

sessions = sa.Table(
    "sessions",
    metadata,
    sa.Column("digest", BYTEA, primary_key=True),
    sa.Column("token", sa.Text, sa.ForeignKey("tokens.id"), nullable=False),
    _moment("created_at"),
    _moment("expires_at"),
    _moment("ended_at", nullable=True),
)

idempotency = sa.Table(
    "idempotency",
    metadata,
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("who", sa.Text, primary_key=True),
    sa.Column("request", BYTEA, nullable=False),
    _moment("at"),
    sa.Column("status", sa.Integer),
    sa.Column("headers", JSONB),
    sa.Column("body", BYTEA),
)

# Append-only; UPDATE, DELETE and TRUNCATE are refused by triggers.
audit_records = sa.Table(
    "audit_records",
    metadata,
    _serial(),
    sa.Column("cluster", sa.Text, nullable=False),
    _moment("at"),
    sa.Column("actor", sa.Text, nullable=False),
    sa.Column("verb", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("data", JSONB, nullable=False),
    sa.Index("audit_records_subject", "subject", "id"),
)

# What the sealer has not chained yet, so that asking costs nothing. A trigger on audit_records fills it.
audit_unsealed = sa.Table(
    "audit_unsealed",
    metadata,
    sa.Column("record", sa.BigInteger, primary_key=True, autoincrement=False),
)

audit_chain = sa.Table(
    "audit_chain",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("record", sa.BigInteger, nullable=False, unique=True),
    sa.Column("prev", BYTEA, nullable=False),
    sa.Column("hash", BYTEA, nullable=False),
)

# How far the feed of events has told the chain to its sink.
event_feed = sa.Table(
    "event_feed",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    _moment("next_try_at", nullable=True),
)

audit_checkpoints = sa.Table(
    "audit_checkpoints",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("hash", BYTEA, nullable=False),
    _moment("at"),
    sa.Column("key", sa.Text, nullable=False),
    sa.Column("signature", BYTEA, nullable=False),
)

# What nodes of one class (GPU model, load) looked like at one moment: float16, (nodes, features), zlib.
feature_rows = sa.Table(
    "feature_rows",
    metadata,
    _serial(),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("hardware", sa.Text, nullable=False),
    sa.Column("load", sa.Text, nullable=False),
    _moment("at"),
    sa.Column("nodes", JSONB, nullable=False),
    sa.Column("features", JSONB, nullable=False),
    sa.Column("matrix", BYTEA, nullable=False),
    sa.Index("feature_rows_class", "cluster", "hardware", "load", "at"),
)

# A model is its data and parameters, never a pickle: float32, (rows, features), zlib. The forest grows anew.
# Of each class that is in force which was put in force last; `judged` is how it did against the one before.
forest_models = sa.Table(
    "forest_models",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("hardware", sa.Text, nullable=False),
    sa.Column("load", sa.Text, nullable=False),
    _moment("trained_at"),
    sa.Column("doc", JSONB, nullable=False),
    sa.Column("data", BYTEA, nullable=False),
    _moment("in_force_at", nullable=True),
    sa.Column("in_force_by", sa.Text, nullable=True),
    sa.Column("judged", JSONB, nullable=True),
    sa.Index("forest_models_class", "cluster", "hardware", "load", "trained_at"),
)

# What came of the last look whether a class's model is to be made anew.
forest_classes = sa.Table(
    "forest_classes",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("hardware", sa.Text, primary_key=True),
    sa.Column("load", sa.Text, primary_key=True),
    _moment("at"),
    sa.Column("doc", JSONB, nullable=False),
)

# How unusual each node was when its class was last kept: pages read it.
unusual_nodes = sa.Table(
    "unusual_nodes",
    metadata,
    sa.Column("cluster", sa.Text, primary_key=True),
    sa.Column("node", sa.Text, primary_key=True),
    _moment("at"),
    sa.Column("doc", JSONB, nullable=False),
)

# What was collected on nodes, for people: gzip in pieces. Shown once all of it is here.
evidence = sa.Table(
    "evidence",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("cluster", sa.Text, nullable=False),
    sa.Column("incident", sa.Text),
    sa.Column("run", sa.Text, nullable=False, index=True),
    _moment("at"),
    sa.Column("size_bytes", sa.BigInteger, nullable=False),
    sa.Column("finished", sa.Boolean, nullable=False),
    sa.Column("doc", JSONB, nullable=False),
    sa.Index("evidence_incident", "incident", "at"),
    sa.Index("evidence_at", "at"),
)

evidence_pieces = sa.Table(
    "evidence_pieces",
    metadata,
    sa.Column("file", sa.Text, sa.ForeignKey("evidence.id", ondelete="CASCADE"), primary_key=True),
    sa.Column("start", sa.BigInteger, primary_key=True),
    sa.Column("data", BYTEA, nullable=False),
)
