"""Models of the forest are not stored any more: the detector makes the same ones from the history."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0041"
down_revision = "0040"
branch_labels = None
depends_on = None

_CLASS = ("cluster", "hardware", "load")


def upgrade() -> None:
    op.drop_table("forest_classes")
    op.drop_table("forest_models")


def downgrade() -> None:
    moment, document = sa.DateTime(timezone=True), postgresql.JSONB()

    op.create_table(
        "forest_models",
        sa.Column("id", sa.Text, primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in _CLASS),
        sa.Column("trained_at", moment, nullable=False),
        sa.Column("doc", document, nullable=False),
        sa.Column("data", postgresql.BYTEA, nullable=False),
        sa.Column("in_force_at", moment),
        sa.Column("in_force_by", sa.Text),
        sa.Column("judged", document),
    )
    op.create_index("forest_models_class", "forest_models", [*_CLASS, "trained_at"])
    op.create_table(
        "forest_classes",
        *(sa.Column(name, sa.Text, nullable=False) for name in _CLASS),
        sa.Column("at", moment, nullable=False),
        sa.Column("doc", document, nullable=False),
        sa.PrimaryKeyConstraint(*_CLASS),
    )
