"""Verdicts, what parts have had, and what nodes are and should be."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def _moment(name: str) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=False)


def _text(name: str) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=False)


def _doc() -> sa.Column:
    return sa.Column("doc", postgresql.JSONB(), nullable=False)


def upgrade() -> None:
    op.create_table(
        "verdicts",
        sa.Column("id", sa.BigInteger(), sa.Identity(), primary_key=True),
        sa.Column("incident", sa.Text(), sa.ForeignKey("incidents.id"), nullable=False),
        _moment("at"),
        _doc(),
    )
    op.create_index("ix_verdicts_incident", "verdicts", ["incident"])
    op.create_index("incidents_fault", "incidents", ["cluster", sa.text("(doc ->> 'fault')"), "opened"])
    op.create_table(
        "fault_bursts",
        *(_text(name) for name in ("cluster", "node", "part", "fault")),
        _moment("began_at"),
        _moment("last_at"),
        _doc(),
        sa.PrimaryKeyConstraint("cluster", "node", "part", "fault", "began_at"),
    )
    op.create_index("fault_bursts_last", "fault_bursts", ["cluster", "last_at"])
    op.create_table(
        "node_references",
        _text("cluster"),
        _text("kind"),
        _moment("at"),
        _doc(),
        sa.PrimaryKeyConstraint("cluster", "kind"),
    )
    op.create_table(
        "inventories",
        _text("cluster"),
        _text("node"),
        _moment("at"),
        _doc(),
        sa.PrimaryKeyConstraint("cluster", "node"),
    )


def downgrade() -> None:
    op.drop_index("incidents_fault", "incidents")
    for name in ("inventories", "node_references", "fault_bursts", "verdicts"):
        op.drop_table(name)
