"""An index of the tests of nodes that came to a verdict: whose turn it is to be swept goes by them."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index(
        "run_log_tests",
        "run_log",
        ["at"],
        postgresql_where=sa.text("event = 'done' AND doc -> 'data' ->> 'passed' IS NOT NULL"),
    )


def downgrade() -> None:
    op.drop_index("run_log_tests", "run_log")
