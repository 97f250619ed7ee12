"""The health of each cluster's slurmctld at the last poll; pages are notified when it changes."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "controllers",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("doc", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("cluster"),
    )
    # Its figures change with each poll; only its problems are news.
    op.execute(
        """
        CREATE FUNCTION healer_tell_controllers() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            IF TG_OP = 'UPDATE' AND (NEW.doc -> 'since') IS NOT DISTINCT FROM (OLD.doc -> 'since') THEN
                RETURN NULL;
            END IF;
            PERFORM pg_notify('healer_events', json_build_object(
                'seq', nextval('healer_event_seq'), 'kind', 'fleet',
                'data', json_build_object('cluster', NEW.cluster)
            )::text);
            RETURN NULL;
        END $$
        """
    )
    op.execute(
        "CREATE TRIGGER controllers_tell AFTER INSERT OR UPDATE ON controllers "
        "FOR EACH ROW EXECUTE FUNCTION healer_tell_controllers()"
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER controllers_tell ON controllers")
    op.execute("DROP FUNCTION healer_tell_controllers()")
    op.drop_table("controllers")
