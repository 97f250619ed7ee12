"""The tables in SQLAlchemy Core. `migrations/` creates them; a test compares the two.

Structs are stored as JSON in `doc`; columns hold only what is searched, sorted or constrained.
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
#: Text, or text with key and arguments (`healer.text`).
_sentences = partial(_columns, JSONB(none_as_null=True))
_bytes = partial(_columns, BYTEA)


def _keys(*names: str) -> list[sa.Column]:
    """The text columns of a primary key."""
    return [sa.Column(name, sa.Text, primary_key=True) for name in names]


def _serial(name: str = "id") -> sa.Column:
    return sa.Column(name, sa.BigInteger, sa.Identity(), primary_key=True)


def _tries() -> list[sa.Column]:
    count = sa.Column("tries", sa.Integer, nullable=False, server_default="0")
    return [count, *_moments("next_try_at?")]


def _of_incident() -> sa.Column:
    return sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), nullable=False, index=True)


def _index(name: str, *columns: str, where: str | None = None, unique: bool = False) -> sa.Index:
    """An index. A name that starts with a parenthesis is an expression."""
    parts = [sa.text(column) if column.startswith("(") else column for column in columns]
    return sa.Index(name, *parts, unique=unique, postgresql_where=None if where is None else sa.text(where))


# Accepted signals and commands. The walk sets `consumed_at` in its own transaction. Pending rows are found by
# the partial index, never by "id greater than the last one": rows commit out of order.
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
    """PostgreSQL's 64-bit transaction id, which never wraps."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


# Packed reports and step times in a ring of partitions. Expired partitions are truncated (`samples.slot_of`),
# so no row is deleted and no vacuum is needed. By `tx` a reader gets each row exactly once.
SAMPLE_SLOTS = 8
samples = _table(
    "samples",
    sa.Column("id", sa.BigInteger, sa.Identity(cache=100), nullable=False),
    sa.Column("tx", Xid8, nullable=False, server_default=sa.text("pg_current_xact_id()")),
    *_texts("cluster", "kind", "subject"),
    *_moments("at", "arrived_at"),
    *_columns(sa.SmallInteger, "slot"),
    *_bytes("body"),
    # For metrics: the relay that sent them; empty: the node itself; null: stored by an earlier version.
    sa.Column("relayed_by", sa.Text),
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

# The number of each series of a node, the same for all nodes.
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

# Series that the catalogue does not know. The number of names is bounded; the rest is one row, `…`.
unknown_series = _table(
    "unknown_series",
    *_keys("cluster", "name"),
    *_sentences("why"),
    *_numbers("count"),
    *_moments("first_seen", "last_seen"),
    *_json("example"),
)

# Signals that were sent and not stored, counted by reason and sender.
losses = _table(
    "losses",
    *_keys("cluster", "source", "reason", "who"),
    *_numbers("count"),
    *_moments("first_seen", "last_seen"),
    *_sentences("example"),
)

# Senders by token and route; `node` is the node that the token is bound to.
senders = _table(
    "senders",
    *_keys("cluster", "who", "source"),
    *_texts("node"),
    *_numbers("requests", "bytes"),
    *_moments("first_seen", "last_seen"),
)

# The last state of each cluster's scraper (msgpack, zlib). One row, so that 1,250 targets are one write.
scrapes = _table("scrapes", *_keys("cluster"), *_moments("at"), *_bytes("body"))

# The latest Slurm snapshot of each cluster; `body` is msgpack, written only when it changed.
snapshots = _table(
    "snapshots",
    *_keys("cluster"),
    *_moments("taken_at"),
    *_numbers("version"),
    *_bytes("body"),
    *_texts("error?"),
)

# Since when each node has been in or out of service, and who held it; `until` is null while that lasts.
node_states = _table(
    "node_states",
    _serial(),
    *_texts("cluster", "node", "state", "held_by"),
    *_flags("busy"),
    *_moments("since", "until?"),
    _index("node_states_open", "cluster", "node", unique=True, where="until IS NULL"),
    _index("node_states_until", "cluster", "until"),
    # For reports, which reach further back than what is in service.
    _index("node_states_out", "cluster", "until", where="state <> 'in_service'"),
)

# What the goodput ledger counts from: lives of jobs as Slurm showed them, and stretches of their steps.
job_lives = _table(
    "job_lives",
    *_keys("cluster", "job"),
    sa.Column("restart", sa.Integer, primary_key=True),
    *_moments("ended_at?", "counted_at?"),
    *_json("doc"),
    _index("job_lives_open", "cluster", where="ended_at IS NULL"),
    _index("job_lives_ended", "cluster", "ended_at"),
)

job_stretches = _table(
    "job_stretches",
    *_keys("cluster", "job"),
    sa.Column("restart", sa.Integer, primary_key=True),
    sa.Column("began_at", sa.DateTime(timezone=True), primary_key=True),
    *_moments("ended_at"),
    *_numbers("first", "last"),
    _index("job_stretches_ended", "ended_at"),
)

# What GPU-time was spent on. The rows of a job are replaced each time that it is counted.
goodput = _table(
    "goodput",
    _serial(),
    *_texts("cluster", "job"),
    *_integers("restart", "held?"),
    *_moments("hour"),
    *_texts("spent", "cause", "incident", "user_name", "account", "partition"),
    *_columns(sa.Float, "gpu_s"),
    _index("goodput_hour", "cluster", "hour"),
    _index("goodput_job", "cluster", "job"),
)

controllers = _table("controllers", *_keys("cluster"), *_moments("at"), *_json("doc"))

# Hooks that the gate permitted to fail, and hooks that failed without an answer: they identify the drains
# that Slurm makes of them as healer's.
permits = _table(
    "permits",
    _serial(),
    *_texts("cluster", "node", "hook", "report"),
    *_moments("at"),
    *_json("doc"),
    sa.UniqueConstraint("cluster", "node", "hook", "report", name="permits_once"),
    _index("permits_recent", "cluster", "at"),
)

#: What reports count, generated from the document so that they need not unpack it. Moments stay text: a cast
#: to a time is not immutable.
_COUNTED = {
    "cause": "doc ->> 'cause'",
    "fault_class": "doc ->> 'fault_class'",
    "review": "doc ->> 'review'",
    "merged_into": "doc ->> 'merged_into'",
    "seen_at": "doc #>> '{evidence,0,at}'",
    "drained_at": "doc ->> 'drained_at'",
    "probation_until": "doc ->> 'probation_until'",
}

incidents = _table(
    "incidents",
    *_keys("id"),
    *_texts("cluster", "rule", "state", "severity", "node?"),
    *_moments("opened", "updated", "closed?"),
    *_json("doc"),
    *(sa.Column(name, sa.Text, sa.Computed(made_of, persisted=True)) for name, made_of in _COUNTED.items()),
    sa.Column("hit", JSONB, sa.Computed("doc -> 'hit'", persisted=True)),
    _index("incidents_cluster_opened", "cluster", "opened"),
    _index("incidents_open", "cluster", "opened", where="state <> 'resolved'"),
    _index("incidents_node", "cluster", "node", "opened"),
    _index("incidents_opened", "opened"),
    # For similar incidents: the same fault, newest first.
    _index("incidents_fault", "cluster", "(doc ->> 'fault')", "opened"),
    _index(
        "incidents_merged", "(doc ->> 'merged_into')", "opened", where="(doc ->> 'merged_into') IS NOT NULL"
    ),
    # For those whose node is on probation.
    _index("incidents_closed", "cluster", "closed"),
    # For the pages of nodes and jobs. Without `fastupdate` no walk waits while a list of new rows is merged.
    sa.Index(
        "incidents_named",
        sa.text("(doc -> 'nodes')"),
        sa.text("(doc -> 'jobs_hit')"),
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
    ),
)

# Literal, as in the indexes: a parameter would not match them.
#: The incident that an incident was merged into.
part_of = sa.literal_column("(incidents.doc ->> 'merged_into')", sa.Text)
#: The nodes that an incident gives a verdict on, as keys; the jobs that it hit, as a list.
nodes_named = sa.literal_column("(incidents.doc -> 'nodes')", JSONB)
jobs_named = sa.literal_column("(incidents.doc -> 'jobs_hit')", JSONB)

findings = _table("findings", _serial(), _of_incident(), *_moments("at"), *_json("doc"))

# Healer's verdict on an incident and the time from which it held: a row for each change.
verdicts = _table("verdicts", _serial(), _of_incident(), *_moments("at"), *_json("doc"))

# Fault bursts of components, for rules on repeats over days. One row for each burst, updated while it lasts.
fault_bursts = _table(
    "fault_bursts",
    *_keys("cluster", "node", "part", "fault"),
    sa.Column("began_at", sa.DateTime(timezone=True), primary_key=True),
    *_moments("last_at"),
    *_json("doc"),
    _index("fault_bursts_last", "cluster", "last_at"),
)

# Forecasts for components and their outcome.
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

# Two weeks of the trends behind forecasts, packed; one row for each rule, rewritten every hour.
trends = _table(
    "trends",
    *_keys("cluster", "rule"),
    *_moments("saved_at"),
    sa.Column("packed", sa.LargeBinary, nullable=False),
)

# The latest lemon score of each node; all scores of a cluster are written together.
lemon_scores = _table("lemon_scores", *_keys("cluster", "node"), *_moments("at"), *_json("doc"))

# The rank of each node among nodes of its model, by its test results; written together for a cluster.
node_standings = _table("node_standings", *_keys("cluster", "node"), *_moments("at"), *_json("doc"))

# The reference inventory (driver, firmware, settings) of each kind of node, from `healer learn`.
references = _table("node_references", *_keys("cluster", "kind"), *_moments("at"), *_json("doc"))

# The last inventory that each node reported (driver, firmware, settings).
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
    # One run per node at a time; shadow runs and read-only runs do not count.
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
    _index("runs_node", "node", "cluster"),
    _index("runs_active", "cluster", where="state NOT IN ('done', 'undone', 'rejected', 'cancelled')"),
)

run_log = _table(
    "run_log",
    _serial("seq"),
    sa.Column("run", sa.Text, sa.ForeignKey("runs.id"), nullable=False, index=True),
    *_moments("at"),
    *_texts("step", "event"),
    *_json("doc"),
    # The gate reads under its lock how the last removing steps ended.
    _index(
        "run_log_verbs", "seq", where="event IN ('done', 'failed') AND doc -> 'data' ->> 'verb' IS NOT NULL"
    ),
    # The order of sweeps follows the tests that passed or failed.
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
    # One requeue per life of a job, however many runs ask for it.
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

#: The text of each rule and playbook, by digest. `left`: the number of first runs that still need approval.
rule_texts = _table(
    "rule_texts",
    *_keys("cluster", "name", "digest"),
    *_moments("since"),
    *_integers("left"),
    _index("rule_texts_on_trial", "cluster", where='"left" > 0'),
)

# Changes of rule files that are replayed over recordings. `seen_at`: the last progress report of the runner.
rehearsals = _table(
    "rehearsals",
    *_keys("id"),
    *_texts("cluster", "state"),
    *_moments("created_at", "seen_at"),
    *_json("doc"),
    _index("rehearsals_newest", "cluster", "created_at"),
    _index("rehearsals_one", "cluster", unique=True, where="state IN ('queued', 'running')"),
)

#: Incidents that this text of a rule opened in a replay and that a person accepted as proof.
replay_proofs = _table(
    "replay_proofs", *_keys("rule", "digest", "incident"), *_texts("rehearsal", "by"), *_moments("at")
)

notes = _table("notes", _serial(), _of_incident(), *_moments("at"), *_texts("by", "text"))

# Every page, note and ticket, and its delivery to the generic webhook.
messages = _table(
    "messages",
    *_keys("id"),
    *_texts("cluster", "kind"),
    sa.Column("incident", sa.Text, index=True),
    *_flags("page"),
    *_moments("at"),
    *_texts("state"),
    *_tries(),
    *_sentences("error?"),
    *_texts("reference?"),
    *_json("doc"),
    # Whether its channels were decided; `state` is that of the generic webhook.
    sa.Column("routed", sa.Boolean, nullable=False, server_default=sa.false()),
    _index("messages_due", "next_try_at", where="state = 'due'"),
    _index("messages_unrouted", "cluster", "at", where="NOT routed"),
    _index("messages_failed", "cluster", "at", where="state = 'failed'"),
    _index("messages_at", "at", "cluster"),
)

# Channels of rules/notifications.yaml; a channel gets messages from `since` on.
channels = _table(
    "channels",
    *_keys("cluster", "name"),
    *_moments("since"),
    # The channel asked for a pause until then.
    *_moments("held_until?"),
)

# The severity and stage of each incident that channels were last notified of.
told_incidents = _table(
    "told_incidents",
    sa.Column("incident", sa.Text, sa.ForeignKey("incidents.id"), primary_key=True),
    *_texts("cluster", "severity", "stage"),
    _index("told_incidents_open", "cluster", where="stage <> 'resolved'"),
)

# The delivery of a message to a channel.
deliveries = _table(
    "deliveries",
    _serial(),
    *_texts("cluster", "channel"),
    sa.Column("message", sa.Text, sa.ForeignKey("messages.id"), nullable=False),
    # The incident, or the message itself: a thread is one message where the channel can edit messages.
    *_texts("thread", "alarm", "how", "stage"),
    *_moments("at"),
    *_texts("state"),
    sa.Column("tries", sa.Integer, nullable=False, server_default="0"),
    *_moments("next_try_at?", "ended_at?"),
    *_sentences("error?"),
    *_texts("reference?"),
    sa.UniqueConstraint("message", "channel"),
    _index("deliveries_waiting", "cluster", "channel", where="state IN ('due', 'digest')"),
    _index("deliveries_thread", "thread", "channel"),
    _index("deliveries_state", "state", "id"),
    _index("deliveries_at", "at", "cluster"),
)

# A channel's reference for the thread of an incident, and the last notice sent there.
threads = _table(
    "threads",
    *_keys("cluster", "channel", "thread"),
    *_texts("stage", "reference"),
    *_moments("told_at"),
    *_json("doc"),
)

# Alarms at a channel, for alarms that are raised repeatedly.
raised_alarms = _table(
    "raised_alarms", *_keys("cluster", "channel", "alarm"), *_integers("again"), *_moments("last_at")
)

# The last heartbeat of each part of healer, by the database's clock.
beats = _table("beats", *_keys("cluster", "part"), *_moments("at"))

# Every delivery attempt and its outcome.
delivery_log = _table(
    "delivery_log",
    _serial(),
    sa.Column("delivery", sa.BigInteger, sa.ForeignKey("deliveries.id"), nullable=False, index=True),
    *_moments("at"),
    *_texts("outcome"),
    *_sentences("text"),
)

tokens = _table(
    "tokens",
    *_keys("id"),
    sa.Column("digest", BYTEA, nullable=False, unique=True),
    *_texts("role", "name", "node?", "job?", "cluster?"),
    *_moments("created_at", "expires_at?", "revoked_at?"),
    # A sign-in link, which works once and becomes a session.
    sa.Column("once", sa.Boolean, nullable=False, server_default=sa.false()),
    *_moments("used_at?"),
    # A factor on the usual quota of signals.
    sa.Column("quota", sa.Float, nullable=False, server_default="1"),
    # `kernel`: its kernel lines are the nodes' own reports.
    sa.Column("vouches", sa.Text, nullable=False, server_default=""),
    # For a service account: the person who owns it, and the groups of routes that it may use.
    sa.Column("owner", sa.Text, nullable=False, server_default=""),
    sa.Column("routes", sa.Text, nullable=False, server_default=""),
    *_moments("last_used_at?"),
    _index("tokens_owner", "owner", where="owner <> ''"),
    sa.CheckConstraint(
        "owner = '' OR (starts_with(name, owner || '/') AND NOT once AND expires_at IS NOT NULL"
        " AND (role IN ('viewer', 'signals') OR expires_at <= created_at + interval '90 days'))",
        name="tokens_account",
    ),
    # For a sign-in through the identity provider: its groups, as a JSON list.
    *_texts("groups?"),
)

# Who has signed in by the identity provider, or is known to this site alone (`local`). A name stays with
# its subject.
people = _table(
    "people",
    *_keys("name"),
    *_texts("issuer", "subject", "groups"),
    *_moments("created_at", "seen_at"),
    sa.UniqueConstraint("issuer", "subject", name="people_issuer_subject_key"),
)

# How a person of a site without an identity provider signs in: the hash of a password, and either a role or
# groups, as a JSON list. The secret of the codes is in no table.
accounts = _table(
    "accounts",
    *_keys("id"),
    sa.Column("name", sa.Text, sa.ForeignKey("people.name"), nullable=False),
    *_texts("password", "role?", "groups"),
    *_moments("created_at"),
    *_texts("created_by"),
    *_moments("ended_at?"),
    _index("accounts_in_force", "name", where="ended_at IS NULL", unique=True),
)

# The key that the digests of tokens and sessions are made with, by its fingerprint: one row.
token_key = _table("token_key", *_keys("fingerprint"), *_moments("since"))

sessions = _table(
    "sessions",
    sa.Column("digest", BYTEA, primary_key=True),
    sa.Column("token", sa.Text, sa.ForeignKey("tokens.id"), nullable=False),
    *_moments("created_at", "expires_at", "ended_at?"),
    # Its name in lists; when it was used last, and when its person last proved who they are.
    *_texts("id"),
    *_moments("seen_at", "proven_at"),
    # The provider's own session, and the browser.
    sa.Column("sid", sa.Text, nullable=False, server_default=""),
    sa.Column("agent", sa.Text, nullable=False, server_default=""),
    _index("sessions_id", "id"),
)

# Seals of break-glass: one is in force until it is used or replaced.
break_glass = _table(
    "break_glass",
    *_keys("id"),
    sa.Column("digest", BYTEA, nullable=False, unique=True),
    *_texts("sealed_by"),
    *_moments("sealed_at", "used_at?", "ended_at?"),
    sa.Column("reason", sa.Text, nullable=False, server_default=""),
    sa.Column("token", sa.Text, sa.ForeignKey("tokens.id")),
    sa.Column("ended_by", sa.Text, nullable=False, server_default=""),
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

# Records that are not sealed yet. A trigger on audit_records fills it.
audit_unsealed = _table(
    "audit_unsealed", sa.Column("record", sa.BigInteger, primary_key=True, autoincrement=False)
)
unsealed_records = audit_unsealed.join(audit_records, audit_records.c.id == audit_unsealed.c.record)

audit_chain = _table(
    "audit_chain",
    *_keys("cluster"),
    sa.Column("seq", sa.BigInteger, primary_key=True),
    sa.Column("record", sa.BigInteger, nullable=False, unique=True),
    *_bytes("prev", "hash"),
)

# The position of the event feed in the audit chain.
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

# Features of the nodes of one class (GPU model, load) at one time: float16, (nodes, features), zlib.
feature_rows = _table(
    "feature_rows",
    _serial(),
    *_texts("cluster", "hardware", "load"),
    *_moments("at"),
    *_json("nodes", "features"),
    *_bytes("matrix"),
    _index("feature_rows_class", "cluster", "hardware", "load", "at"),
)

# The latest anomaly score of each node, for pages.
unusual_nodes = _table("unusual_nodes", *_keys("cluster", "node"), *_moments("at"), *_json("doc"))

# Evidence bundles collected on nodes: gzip in pieces, shown when complete.
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
