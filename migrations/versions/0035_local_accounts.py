"""Local accounts, for sites without an identity provider."""

import sqlalchemy as sa
from alembic import op

revision = "0035"
down_revision = "0034"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "accounts",
        sa.Column("id", sa.Text, primary_key=True),
        sa.Column("name", sa.Text, sa.ForeignKey("people.name"), nullable=False),
        sa.Column("password", sa.Text, nullable=False),
        sa.Column("role", sa.Text),
        sa.Column("groups", sa.Text, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("created_by", sa.Text, nullable=False),
        sa.Column("ended_at", _TIME),
    )
    in_force = sa.text("ended_at IS NULL")
    op.create_index("accounts_in_force", "accounts", ["name"], unique=True, postgresql_where=in_force)
    op.execute(
        """
        CREATE FUNCTION healer_refuse_account_return() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'an account that ended stays ended: make another one'
                USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER accounts_end BEFORE UPDATE ON accounts FOR EACH ROW WHEN (OLD.ended_at IS NOT NULL)
        EXECUTE FUNCTION healer_refuse_account_return()
        """
    )


def downgrade() -> None:
    op.drop_table("accounts")
    op.execute("DROP FUNCTION healer_refuse_account_return()")
