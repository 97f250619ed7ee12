"""A token may vouch for the kernel: what such a relay sends as kernel lines is the nodes' own word."""

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("tokens", sa.Column("vouches", sa.Text, nullable=False, server_default=""))


def downgrade() -> None:
    op.drop_column("tokens", "vouches")
