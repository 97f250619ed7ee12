"""An open breaker is reset through the API, as a person does; the scraper writes nothing but measurements.

Else code in the detector could close the breaker that binds what it forges, and code in the scraper could
write kernel lines in the nodes' names, and people's commands.
"""

from alembic import op

revision = "0042"
down_revision = "0041"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE TRIGGER gate_reset BEFORE UPDATE OF breaker ON gate FOR EACH ROW WHEN (
            current_user IN ('healer_detector', 'healer_worker')
            AND OLD.breaker ->> 'state' = 'open' AND NEW.breaker ->> 'state' IS DISTINCT FROM 'open'
        ) EXECUTE FUNCTION healer_refuse_person()
        """
    )
    op.execute(
        """
        CREATE FUNCTION healer_refuse_word() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'the scraper writes measurements alone'
                USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER inbox_measured BEFORE INSERT ON inbox FOR EACH ROW WHEN (
            current_user = 'healer_scraper' AND NEW.kind NOT IN ('inventory', 'gpu_inventory')
        ) EXECUTE FUNCTION healer_refuse_word()
        """
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER inbox_measured ON inbox")
    op.execute("DROP FUNCTION healer_refuse_word()")
    op.execute("DROP TRIGGER gate_reset ON gate")
