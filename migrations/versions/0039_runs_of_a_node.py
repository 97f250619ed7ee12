"""The runs of a node by an index: its page and its life line read a year of them."""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("runs_node", "runs", ["cluster", "node"])


def downgrade() -> None:
    op.drop_index("runs_node", "runs")
