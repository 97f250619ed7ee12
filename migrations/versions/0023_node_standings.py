"""The rank of each node among those of its model by what its tests measured, for the pages."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "node_standings",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("node", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("doc", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "node"),
    )


def downgrade() -> None:
    op.drop_table("node_standings")
