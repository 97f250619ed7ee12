"""In the log of a run the API writes people's words alone: what a step was granted and did is the worker's.

And what is counted of a run, by its columns, is what the worker reads of it.
"""

from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE FUNCTION healer_refuse_step() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'what a step was granted and did is written by the worker'
                USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    # Approved, taken over, undone or retried, and by whom.
    op.execute(
        """
        CREATE TRIGGER run_log_people BEFORE INSERT ON run_log FOR EACH ROW WHEN (
            current_user = 'healer_api' AND (
                NEW.event NOT IN ('done', 'retry', 'skipped')
                OR NEW.event IS DISTINCT FROM NEW.doc ->> 'event'
                OR COALESCE(NEW.doc -> 'data', '{}') - '{by,restart}'::text[] <> '{}'
            )
        ) EXECUTE FUNCTION healer_refuse_step()
        """
    )
    op.execute(
        """
        CREATE TRIGGER runs_agree BEFORE INSERT ON runs FOR EACH ROW WHEN (
            ROW(NEW.id, NEW.cluster, NEW.playbook, NEW.node) IS DISTINCT FROM
            ROW(NEW.doc ->> 'id', NEW.doc ->> 'cluster', NEW.doc ->> 'playbook', NEW.doc ->> 'node')
        ) EXECUTE FUNCTION healer_refuse_other_run()
        """
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER runs_agree ON runs")
    op.execute("DROP TRIGGER run_log_people ON run_log")
    op.execute("DROP FUNCTION healer_refuse_step()")
