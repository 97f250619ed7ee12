"""An index of the steps that ended with a verb: the gate asks for the last ten, under its lock."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "run_log_verbs",
        "run_log",
        ["seq"],
        postgresql_where=sa.text("event IN ('done', 'failed') AND doc -> 'data' ->> 'verb' IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("run_log_verbs", "run_log")
