"""The seal of break-glass, as a keyed digest, and what became of it."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import BYTEA

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "break_glass",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("digest", BYTEA, nullable=False, unique=True),
        sa.Column("sealed_at", moment, nullable=False),
        sa.Column("sealed_by", sa.Text, nullable=False),
        sa.Column("used_at", moment),
        sa.Column("reason", sa.Text, nullable=False, server_default=""),
        sa.Column("token", sa.Text, sa.ForeignKey("tokens.id")),
        sa.Column("ended_at", moment),
        sa.Column("ended_by", sa.Text, nullable=False, server_default=""),
    )
    # A seal that was used or replaced stays so.
    op.execute(
        """
        CREATE FUNCTION healer_refuse_mended_seal() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'a seal that was used or replaced stays so'
                USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER break_glass_stays BEFORE UPDATE ON break_glass FOR EACH ROW WHEN (
            (OLD.used_at IS NOT NULL AND ROW(NEW.used_at, NEW.token, NEW.reason)
                IS DISTINCT FROM ROW(OLD.used_at, OLD.token, OLD.reason))
            OR (OLD.ended_at IS NOT NULL AND NEW.ended_at IS DISTINCT FROM OLD.ended_at)
        ) EXECUTE FUNCTION healer_refuse_mended_seal()
        """
    )


def downgrade() -> None:
    op.drop_table("break_glass")
    op.execute("DROP FUNCTION healer_refuse_mended_seal()")
