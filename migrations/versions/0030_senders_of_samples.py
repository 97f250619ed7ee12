"""Stored figures name the relay that sent them. Rows of before have none: null."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("samples", sa.Column("relayed_by", sa.Text))


def downgrade() -> None:
    op.drop_column("samples", "relayed_by")
