"""A run that the detector writes is healer's own: people's orders come through the API alone.

Else code in it could write a run by a person's name, or one that somebody approved, and mode, approval and
breaker would let it pass at the worker's gate.
"""

from alembic import op

revision = "0040"
down_revision = "0039"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE FUNCTION healer_refuse_person() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'what a person asked for or agreed to is written by the API'
                USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER runs_healers BEFORE INSERT ON runs FOR EACH ROW WHEN (
            current_user = 'healer_detector' AND (
                NEW.doc ->> 'by' IS DISTINCT FROM 'healer'
                OR NEW.doc ->> 'approved_by' IS NOT NULL
                OR NEW.doc -> 'input' ? 'restart'
            )
        ) EXECUTE FUNCTION healer_refuse_person()
        """
    )
    op.execute(
        """
        CREATE TRIGGER runs_persons BEFORE UPDATE OF doc ON runs FOR EACH ROW WHEN (
            current_user = 'healer_detector' AND
            ROW(NEW.doc ->> 'by', NEW.doc ->> 'approved_by', NEW.doc ->> 'job',
                COALESCE(NEW.doc -> 'input', '{}')) IS DISTINCT FROM
            ROW(OLD.doc ->> 'by', OLD.doc ->> 'approved_by', OLD.doc ->> 'job',
                COALESCE(OLD.doc -> 'input', '{}'))
        ) EXECUTE FUNCTION healer_refuse_person()
        """
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER runs_persons ON runs")
    op.execute("DROP TRIGGER runs_healers ON runs")
    op.execute("DROP FUNCTION healer_refuse_person()")
