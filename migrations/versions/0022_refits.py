"""Models: put in force, refitted on a schedule, withdrawn; how unusual nodes are."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def _keyed(name: str, *keys: str) -> None:
    op.create_table(
        name,
        *(sa.Column(key, sa.Text(), nullable=False) for key in keys),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("doc", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint(*keys),
    )


def upgrade() -> None:
    op.add_column("forest_models", sa.Column("in_force_at", sa.DateTime(timezone=True), nullable=True))
    op.add_column("forest_models", sa.Column("in_force_by", sa.Text(), nullable=True))
    op.add_column("forest_models", sa.Column("judged", postgresql.JSONB(), nullable=True))
    # Until now the newest was in force, and a person had trained it.
    op.execute("UPDATE forest_models SET in_force_at = trained_at, in_force_by = 'person'")
    _keyed("forest_classes", "cluster", "hardware", "load")
    _keyed("unusual_nodes", "cluster", "node")


def downgrade() -> None:
    op.drop_table("unusual_nodes")
    op.drop_table("forest_classes")
    for name in ("judged", "in_force_by", "in_force_at"):
        op.drop_column("forest_models", name)
