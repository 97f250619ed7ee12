"""A token that was revoked, used up or has expired stays so, for all who may update these columns."""

from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        CREATE FUNCTION healer_refuse_token_return() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            RAISE EXCEPTION 'a token that ended stays ended: make another one'
                USING ERRCODE = 'insufficient_privilege';
        END $$
        """
    )
    op.execute(
        """
        CREATE TRIGGER tokens_end BEFORE UPDATE OF revoked_at, used_at, expires_at ON tokens
        FOR EACH ROW WHEN (
            NEW.revoked_at IS DISTINCT FROM COALESCE(OLD.revoked_at, NEW.revoked_at)
            OR NEW.used_at IS DISTINCT FROM COALESCE(OLD.used_at, NEW.used_at)
            OR COALESCE(NEW.expires_at, 'infinity') > COALESCE(OLD.expires_at, 'infinity')
        ) EXECUTE FUNCTION healer_refuse_token_return()
        """
    )


def downgrade() -> None:
    op.execute("DROP TRIGGER tokens_end ON tokens")
    op.execute("DROP FUNCTION healer_refuse_token_return()")
