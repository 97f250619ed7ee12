"""The runs of a node by an index: its page and its life line read a year of them.

The node comes first: an index that begins with the cluster would look useful to queries of other kinds.
"""

from alembic import op

revision = "0039"
down_revision = "0038"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("runs_node", "runs", ["node", "cluster"])


def downgrade() -> None:
    op.drop_index("runs_node", "runs")
