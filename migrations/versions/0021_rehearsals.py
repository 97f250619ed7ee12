"""Changes of rules that were tried over recordings, and what of it counts as proof for the rule as edited."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def _text(name: str) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=False)


def _moment(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def upgrade() -> None:
    op.create_table(
        "rehearsals",
        *(_text(name) for name in ("id", "cluster", "state")),
        _moment("created_at"),
        _moment("seen_at"),
        sa.Column("doc", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("rehearsals_newest", "rehearsals", ["cluster", "created_at"])
    op.create_index(
        "rehearsals_one",
        "rehearsals",
        ["cluster"],
        unique=True,
        postgresql_where=sa.text("state IN ('queued', 'running')"),
    )
    op.create_table(
        "replay_proofs",
        *(_text(name) for name in ("rule", "digest", "incident", "rehearsal", "by")),
        _moment("at"),
        sa.PrimaryKeyConstraint("rule", "digest", "incident"),
    )


def downgrade() -> None:
    op.drop_table("replay_proofs")
    op.drop_table("rehearsals")
