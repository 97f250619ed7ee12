"""Service accounts: tokens with an owner, an end and groups of routes; and when a token was used last."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None

_NAMES = ("owner", "routes")


def upgrade() -> None:
    for name in _NAMES:
        op.add_column("tokens", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.add_column("tokens", sa.Column("last_used_at", sa.DateTime(timezone=True)))
    # An account has its owner's name before the slash, ends, and opens no session.
    op.execute(
        """
        ALTER TABLE tokens ADD CONSTRAINT tokens_account CHECK (owner = '' OR (
            starts_with(name, owner || '/') AND NOT once AND expires_at IS NOT NULL
            AND (role IN ('viewer', 'signals') OR expires_at <= created_at + interval '90 days')
        ))
        """
    )
    op.execute("CREATE INDEX tokens_owner ON tokens (owner) WHERE owner <> ''")


def downgrade() -> None:
    op.execute("DROP INDEX tokens_owner")
    op.execute("ALTER TABLE tokens DROP CONSTRAINT tokens_account")
    for name in (*_NAMES, "last_used_at"):
        op.drop_column("tokens", name)
