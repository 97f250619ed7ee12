"""Alerts of one node are found without reading what all the others sent."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "inbox_alerts",
        "inbox",
        ["cluster", "node", "arrived_at"],
        postgresql_where=sa.text("kind = 'alert'"),
    )


def downgrade() -> None:
    op.drop_index("inbox_alerts", table_name="inbox")
