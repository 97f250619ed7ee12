"""What each rule and playbook says, so that a changed one is known as changed."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "rule_texts",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("digest", sa.Text(), nullable=False),
        sa.Column("since", sa.DateTime(timezone=True), nullable=False),
        sa.Column("left", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "name", "digest"),
    )
    op.create_index("rule_texts_on_trial", "rule_texts", ["cluster"], postgresql_where=sa.text('"left" > 0'))


def downgrade() -> None:
    op.drop_table("rule_texts")
