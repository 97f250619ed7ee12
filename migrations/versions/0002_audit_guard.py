"""The database itself guards the audit: no change, no deletion, and every record is queued for the sealer."""

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_GUARDED = ("audit_records", "audit_chain", "audit_checkpoints")


def upgrade() -> None:
    op.execute(
        """
        CREATE FUNCTION healer_refuse_change() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'audit rows are never changed or removed: % on % is refused', TG_OP, TG_TABLE_NAME
                USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    for table in _GUARDED:
        # One refusal per statement, also where no row matches. ALWAYS: in replication roles too.
        op.execute(
            f"CREATE TRIGGER {table}_guard BEFORE UPDATE OR DELETE OR TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION healer_refuse_change()"
        )
        op.execute(f"ALTER TABLE {table} ENABLE ALWAYS TRIGGER {table}_guard")
    op.execute(
        """
        CREATE FUNCTION healer_queue_for_sealing() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            INSERT INTO audit_unsealed (record) SELECT id FROM added;
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER audit_records_queue AFTER INSERT ON audit_records REFERENCING NEW TABLE AS added "
        "FOR EACH STATEMENT EXECUTE FUNCTION healer_queue_for_sealing()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER audit_records_queue ON audit_records")
    op.execute("DROP FUNCTION healer_queue_for_sealing()")
    for table in _GUARDED:
        op.execute(f"DROP TRIGGER {table}_guard ON {table}")
    op.execute("DROP FUNCTION healer_refuse_change()")
