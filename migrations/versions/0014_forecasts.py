"""Forecasts and the trends behind them; runs that have not ended are found by an index."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def _moment(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=False)


def upgrade() -> None:
    op.create_table(
        "forecasts",
        *(_text(name) for name in ("id", "cluster", "rule", "outcome")),
        _moment("told_at"),
        _moment("ended_at", nullable=True),
        sa.Column("doc", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "forecasts_open", "forecasts", ["cluster", "told_at"], postgresql_where=sa.text("ended_at IS NULL")
    )
    op.create_index("forecasts_ended", "forecasts", ["cluster", "ended_at"])
    op.create_index("forecasts_rule", "forecasts", ["rule", "outcome"])
    op.create_table(
        "trends",
        _text("cluster"),
        _text("rule"),
        _moment("saved_at"),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "rule"),
    )
    op.create_index(
        "runs_active",
        "runs",
        ["cluster"],
        postgresql_where=sa.text("state NOT IN ('done', 'undone', 'rejected', 'cancelled')"),
    )


def downgrade() -> None:
    op.drop_index("runs_active", "runs")
    op.drop_table("trends")
    op.drop_table("forecasts")
