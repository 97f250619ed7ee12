"""Permissions in the database: one role per part, and the rights of each on each table.

The owner creates the tables, in `healer db upgrade`; no part connects as the owner. The matrix below is the
only list of rights: every upgrade grants what it says and revokes the rest
(docs/decisions/0066-privileges-and-people.md#privileges-users-and-walls).
"""

from collections.abc import Iterator, Mapping

import sqlalchemy as sa

from healer.adapters.postgres.tables import SAMPLE_SLOTS, metadata

#: The parts that have a role of their own.
PARTS = ("api", "detector", "scheduler", "worker", "scraper", "auditor")
_PREFIX = "healer_"
ROLES: tuple[str, ...] = tuple(f"{_PREFIX}{part}" for part in PARTS)
#: Nothing logs in as the auditor: the part that seals takes this role for its chain, and has no such right in
#: its other connections.
AUDITOR = f"{_PREFIX}auditor"
SEALERS = ("healer_worker",)
#: Celery's messages, where PostgreSQL carries them: tables in a schema of its own, and no other right.
BROKER = f"{_PREFIX}broker"

#: Of these only the API and what tidies read anything: digests and answers to requests.
_SECRET = ("tokens", "sessions", "people", "accounts", "idempotency")
_OF_API = ("token_key", "break_glass")
_READERS = ("api", "detector", "scheduler", "worker")
_SCRAPER_READS = (
    *("inbox", "samples", "signal_columns", "unknown_series", "losses", "scrapes", "snapshots"),
    *("controllers", "alembic_version"),
)
_AUDITOR_READS = ("audit_records", "audit_unsealed", "audit_chain", "audit_checkpoints", "alembic_version")

_LETTERS = {"s": "SELECT", "i": "INSERT", "u": "UPDATE", "d": "DELETE", "t": "TRUNCATE"}

#: Table -> part -> its write rights: i INSERT, u UPDATE, d DELETE, t TRUNCATE. Anything else is only read.
_WRITES: dict[str, dict[str, str]] = {
    # --- what arrives
    "inbox": {"api": "i", "detector": "iu", "worker": "i", "scraper": "i", "scheduler": "d"},
    "samples": {"api": "i", "scraper": "i", "scheduler": "t"},
    # Taking a number locks the table, which needs UPDATE.
    "signal_columns": dict.fromkeys(("api", "detector", "scraper"), "iu"),
    "unknown_series": {"api": "iu", "scraper": "iu", "scheduler": "d"},
    "losses": {"api": "iu", "detector": "iu", "scraper": "iu", "scheduler": "d"},
    "senders": {"api": "iu", "scheduler": "d"},
    "scrapes": {"scraper": "iu"},
    "permits": {"api": "i", "scheduler": "d"},
    # --- the cluster
    "snapshots": {"scheduler": "iu"},
    "controllers": {"scheduler": "iu"},
    "node_states": {"scheduler": "iud"},
    "job_lives": {"scheduler": "iud"},
    "job_stretches": {"scheduler": "iud"},
    "goodput": {"scheduler": "id"},
    "node_references": {"api": "iud"},
    "inventories": {"detector": "iu"},
    # --- incidents: append-only except the incident itself
    "incidents": {"detector": "iu"},
    "findings": {"detector": "i"},
    "verdicts": {"detector": "i"},
    "notes": {"api": "i"},
    "fault_bursts": {"detector": "iu", "scheduler": "d"},
    "forecasts": {"detector": "iu", "scheduler": "d"},
    "trends": {"detector": "iu"},
    "lemon_scores": {"detector": "id"},
    "node_standings": {"detector": "id"},
    # --- decisions and runs: append-only except the run itself
    "decisions": dict.fromkeys(("api", "detector", "worker"), "i"),
    "runs": {"api": "iu", "detector": "iu", "worker": "u"},
    "run_log": dict.fromkeys(("api", "worker"), "i"),
    # The gate's grants: only the worker writes the rows that limit how many nodes are out.
    "slots": {"worker": "iu"},
    "requeues": {"worker": "iud"},
    "remedies": {"worker": "i"},
    "gate": dict.fromkeys(("api", "detector", "worker"), "iu"),
    "pauses": {"api": "iu"},
    "vetoes": {"detector": "i"},
    "rule_modes": {"api": "iu"},
    "rule_texts": {"api": "u", "detector": "iu"},
    "rehearsals": {"api": "iud", "scheduler": "u"},
    "replay_proofs": {"api": "i"},
    "evidence": {"worker": "iud", "scheduler": "d"},
    "evidence_pieces": {"worker": "i"},
    # --- what goes out
    "messages": {"api": "iu", "detector": "i", "worker": "i", "scheduler": "iu"},
    "channels": {"scheduler": "iud"},
    "told_incidents": {"scheduler": "iu"},
    "deliveries": {"api": "u", "scheduler": "iu"},
    "threads": {"scheduler": "iu"},
    "raised_alarms": {"scheduler": "iud"},
    "delivery_log": {"scheduler": "id"},
    "event_feed": {"scheduler": "iu"},
    "beats": dict.fromkeys(("detector", "scheduler", "worker"), "iu"),
    # --- who asks
    "tokens": {"api": "iud"},
    "sessions": {"api": "iu", "scheduler": "d"},
    "people": {"api": "iu"},
    "accounts": {"api": "iu"},
    "break_glass": {"api": "iu"},
    "idempotency": {"api": "iud", "scheduler": "d"},
    # --- the audit: a trigger of the owner queues what was inserted
    "audit_records": dict.fromkeys(("api", "detector", "scheduler", "worker"), "i"),
    "audit_unsealed": {"auditor": "d"},
    "audit_chain": {"auditor": "i"},
    "audit_checkpoints": {"auditor": "i"},
    # --- models
    "feature_rows": {"detector": "i", "scheduler": "d"},
    "unusual_nodes": {"detector": "iu", "scheduler": "d"},
}

_RUN = ("state", "doc", "wake_at", "ended_at", "epoch")
_SLOT = ("run", "incident", "granted_at", "unusable", "drained_at", "released_at", "released_why")
#: (table, part) -> the only columns that it updates. A lease is the worker's; a shadow stays one.
_COLUMNS: dict[tuple[str, str], tuple[str, ...]] = {
    ("runs", "api"): _RUN,
    ("runs", "detector"): _RUN,
    ("runs", "worker"): (*_RUN, "lease_until"),
    ("inbox", "detector"): ("consumed_at",),
    ("node_states", "scheduler"): ("until",),
    ("slots", "worker"): _SLOT,
    **{("gate", part): ("breaker",) for part in ("api", "detector", "worker")},
    ("tokens", "api"): ("expires_at", "revoked_at", "used_at", "last_used_at"),
    ("sessions", "api"): ("ended_at", "seen_at"),
    ("people", "api"): ("groups", "seen_at"),
    ("accounts", "api"): ("ended_at", "password"),
    ("break_glass", "api"): ("used_at", "reason", "token", "ended_at", "ended_by"),
}

#: (table, part) -> the only columns that it reads: which tokens end soon, and nothing of their secrets.
_READ_COLUMNS: dict[tuple[str, str], tuple[str, ...]] = {
    ("tokens", "scheduler"): (
        "id", "role", "name", "owner", "cluster", "created_at", "expires_at", "revoked_at"
    ),
}  # fmt: skip


def read_columns(table: str, part: str) -> frozenset[str]:
    """The columns that a part reads of a table which it may not read as a whole."""
    return frozenset(_READ_COLUMNS.get((table, part), ()))


def rights(table: str, part: str) -> tuple[frozenset[str], frozenset[str]]:
    """A part's privileges on the whole table, and the columns that it updates where it may only some."""
    letters = _WRITES.get(table, {}).get(part, "")
    columns = frozenset(_COLUMNS.get((table, part), ()))
    if _reads(table, part):
        letters += "s"
    whole = letters.replace("u", "") if columns else letters
    return frozenset(_LETTERS[letter] for letter in whole), columns


def _reads(table: str, part: str) -> bool:
    if part == "scraper":
        return table in _SCRAPER_READS
    if part == "auditor":
        return table in _AUDITOR_READS
    if table in _OF_API:
        return part == "api"
    return part in _READERS and (table not in _SECRET or bool(_WRITES[table].get(part)))


def tables() -> list[str]:
    """Every table that the matrix speaks of, partitions apart."""
    return sorted([*metadata.tables, "alembic_version"])


def grants() -> Iterator[str]:
    """The statements that give every role its rights, and nothing else. The roles exist."""
    partitions = [f"samples_{slot}" for slot in range(SAMPLE_SLOTS)]
    for part, role in zip(PARTS, ROLES, strict=True):
        yield f"REVOKE ALL ON ALL TABLES IN SCHEMA public FROM {role}"
        together: dict[frozenset[str], list[str]] = {}
        for table in tables():
            whole, columns = rights(table, part)
            if columns:
                yield f"GRANT UPDATE ({', '.join(sorted(columns))}) ON {table} TO {role}"
            if readable := read_columns(table, part):
                yield f"GRANT SELECT ({', '.join(sorted(readable))}) ON {table} TO {role}"
            names = [table, *(partitions if table == "samples" else ())]
            together.setdefault(whole, []).extend(names)
        for whole, names in together.items():
            if whole:
                yield f"GRANT {', '.join(sorted(whole))} ON {', '.join(names)} TO {role}"
    yield f"CREATE SCHEMA IF NOT EXISTS {BROKER}"
    yield f"GRANT USAGE, CREATE ON SCHEMA {BROKER} TO {BROKER}"


def creation(present: Mapping[str, bool]) -> Iterator[str]:
    """The statements that make the roles which are not in `present`, and the sealers' membership."""
    for role in (*ROLES, BROKER):
        if role not in present:
            kind = "NOLOGIN" if role == AUDITOR else "LOGIN"
            inherits = " NOINHERIT" if role in SEALERS else ""
            yield f"CREATE ROLE {role} {kind} NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION{inherits}"
    if AUDITOR not in present or not all(present.get(role) for role in SEALERS):
        yield f"GRANT {AUDITOR} TO {', '.join(SEALERS)}"


def login_url(url: str, role: str) -> str:
    """The URL with another login: of an embedded database, which knows its callers by the kernel's word."""
    return sa.make_url(url).set(username=role).render_as_string(hide_password=False)


def present(conn: sa.Connection) -> dict[str, bool]:
    """The roles that exist, and whether each may take the auditor's role."""
    asked = (
        "SELECT rolname, EXISTS (SELECT FROM pg_auth_members JOIN pg_roles AS given ON given.oid = roleid "
        "WHERE member = pg_roles.oid AND given.rolname = :auditor) FROM pg_roles WHERE rolname = ANY(:names)"
    )
    rows = conn.execute(sa.text(asked), {"names": [*ROLES, BROKER], "auditor": AUDITOR})
    return {name: bool(member) for name, member in rows}


def missing(conn: sa.Connection) -> list[str]:
    """The statements that only an administrator of the server may execute, where this role may not."""
    return list(creation(present(conn)))


def bring_up(conn: sa.Connection) -> list[str]:
    """Makes the roles where this login may, and grants the matrix to them. Returns the statements that an
    administrator has to execute first; then nothing was granted, and a later call grants."""
    wanted = missing(conn)
    if wanted:
        if not conn.scalar(sa.text("SELECT rolcreaterole FROM pg_roles WHERE rolname = current_user")):
            return wanted
        for statement in wanted:
            conn.exec_driver_sql(statement)
    conn.exec_driver_sql(";\n".join(grants()))
    return []
