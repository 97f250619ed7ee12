"""Live events: NOTIFY announces changes to the pages, with a growing number."""

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

#: table -> (events, kind, the JSON of its data)
_TOLD = {
    "incidents": (
        "INSERT OR UPDATE",
        "incident",
        {"cluster": "NEW.cluster", "id": "NEW.id", "state": "NEW.state", "severity": "NEW.severity",
         "node": "NEW.node"},
    ),
    "runs": (
        "INSERT OR UPDATE OF state, doc",
        "run",
        {"cluster": "NEW.cluster", "id": "NEW.id", "state": "NEW.state", "node": "NEW.node",
         "incident": "NEW.incident"},
    ),
    "run_log": (
        "INSERT",
        "run",
        {"cluster": "(SELECT cluster FROM runs WHERE id = NEW.run)", "id": "NEW.run", "step": "NEW.step",
         "event": "NEW.event"},
    ),
    "notes": (
        "INSERT",
        "incident",
        {"cluster": "(SELECT cluster FROM incidents WHERE id = NEW.incident)", "id": "NEW.incident"},
    ),
    "snapshots": (
        "INSERT OR UPDATE OF body",
        "fleet",
        {"cluster": "NEW.cluster", "version": "NEW.version"},
    ),
    "gate": (
        "INSERT OR UPDATE OF breaker",
        "breaker",
        {"cluster": "NEW.cluster", "state": "NEW.breaker ->> 'state'"},
    ),
    "pauses": (
        "INSERT OR UPDATE",
        "pause",
        {"cluster": "NEW.cluster", "id": "NEW.id", "scope": "NEW.scope", "ended": "NEW.ended_at IS NOT NULL"},
    ),
    "audit_records": (
        "INSERT",
        "audit",
        {"cluster": "NEW.cluster", "subject": "left(NEW.subject, 200)"},
    ),
}  # fmt: skip


def upgrade() -> None:
    op.execute("CREATE SEQUENCE healer_event_seq")
    for table, (events, kind, fields) in _TOLD.items():
        data = ", ".join(f"'{name}', {value}" for name, value in fields.items())
        op.execute(
            f"""
            CREATE FUNCTION healer_tell_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
                IF TG_OP = 'UPDATE' AND NEW IS NOT DISTINCT FROM OLD THEN RETURN NULL; END IF;
                PERFORM pg_notify('healer_events', json_build_object(
                    'seq', nextval('healer_event_seq'), 'kind', '{kind}', 'data', json_build_object({data})
                )::text);
                RETURN NULL;
            END $$
            """
        )
        op.execute(
            f"CREATE TRIGGER {table}_tell AFTER {events} ON {table} "
            f"FOR EACH ROW EXECUTE FUNCTION healer_tell_{table}()"
        )


def downgrade() -> None:
    for table in _TOLD:
        op.execute(f"DROP TRIGGER {table}_tell ON {table}")
        op.execute(f"DROP FUNCTION healer_tell_{table}()")
    op.execute("DROP SEQUENCE healer_event_seq")
