"""Each part has a role of its own: what the database does by itself it does with the owner's rights.

The rights are no part of this revision: every upgrade grants those of healer/adapters/postgres/roles.py.
"""

from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None

_TOLD = (
    *("incidents", "runs", "run_log", "notes", "snapshots", "gate", "pauses", "audit_records"),
    "controllers",
)
_FUNCTIONS = ("healer_queue_for_sealing", *(f"healer_tell_{table}" for table in _TOLD))


def upgrade() -> None:
    for function in _FUNCTIONS:
        # The path is given: who calls it must not choose another table of that name.
        op.execute(
            f"ALTER FUNCTION {function}() SECURITY DEFINER SET search_path = pg_catalog, public, pg_temp"
        )
    op.execute(
        """
        CREATE FUNCTION healer_refuse_other_run() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'a run never becomes another: its playbook, node and cluster stay'
                USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER runs_same BEFORE UPDATE OF doc ON runs FOR EACH ROW WHEN (
            ROW(NEW.doc ->> 'id', NEW.doc ->> 'cluster', NEW.doc ->> 'playbook', NEW.doc ->> 'node')
            IS DISTINCT FROM
            ROW(OLD.doc ->> 'id', OLD.doc ->> 'cluster', OLD.doc ->> 'playbook', OLD.doc ->> 'node')
        ) EXECUTE FUNCTION healer_refuse_other_run()
        """
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER runs_same ON runs")
    op.execute("DROP FUNCTION healer_refuse_other_run()")
    for function in _FUNCTIONS:
        op.execute(f"ALTER FUNCTION {function}() SECURITY INVOKER RESET search_path")
