"""Messages and deliveries by time: a page of messages and the metrics read all that were ever stored."""

import sqlalchemy as sa
from alembic import op

revision = "0046"
down_revision = "0045"
branch_labels = None
depends_on = None
keeps_older = True


def upgrade() -> None:
    op.create_index("messages_at", "messages", ["at", "cluster"])
    op.create_index(
        "messages_failed", "messages", ["cluster", "at"], postgresql_where=sa.text("state = 'failed'")
    )
    op.create_index("deliveries_at", "deliveries", ["at", "cluster"])


def downgrade() -> None:
    op.drop_index("deliveries_at", "deliveries")
    op.drop_index("messages_failed", "messages")
    op.drop_index("messages_at", "messages")
