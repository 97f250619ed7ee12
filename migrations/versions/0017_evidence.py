"""Collected evidence; runs that only look stand beside the one that works on their node."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

_ONE_PER_NODE = "state = 'running' AND NOT shadow AND node IS NOT NULL"
_BESIDE = "(doc ->> 'beside') IS DISTINCT FROM 'true'"


def _text(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "evidence",
        *(_text(name) for name in ("id", "cluster")),
        _text("incident", nullable=True),
        _text("run"),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("finished", sa.Boolean(), nullable=False),
        sa.Column("doc", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("evidence_incident", "evidence", ["incident", "at"])
    op.create_index("evidence_at", "evidence", ["at"])
    op.create_index("ix_evidence_run", "evidence", ["run"])
    op.create_table(
        "evidence_pieces",
        _text("file"),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.ForeignKeyConstraint(["file"], ["evidence.id"], ondelete="CASCADE"),
        sa.PrimaryKeyConstraint("file", "start"),
    )
    _one_per_node(f"{_ONE_PER_NODE} AND {_BESIDE}")


def downgrade() -> None:
    _one_per_node(_ONE_PER_NODE)
    op.drop_table("evidence_pieces")
    op.drop_table("evidence")


def _one_per_node(where: str) -> None:
    op.drop_index("runs_one_per_node", "runs")
    op.create_index(
        "runs_one_per_node", "runs", ["cluster", "node"], unique=True, postgresql_where=sa.text(where)
    )
