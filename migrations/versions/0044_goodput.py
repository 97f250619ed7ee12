"""The goodput ledger: lives of jobs, stretches of their steps, and what GPU-time was spent on."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0044"
down_revision = "0043"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def _texts(*names: str) -> list[sa.Column]:
    return [sa.Column(name, sa.Text, nullable=False) for name in names]


def _life() -> list[sa.Column]:
    keys = [sa.Column(name, sa.Text, primary_key=True) for name in ("cluster", "job")]
    return [*keys, sa.Column("restart", sa.Integer, primary_key=True)]


def upgrade() -> None:
    op.create_table(
        "job_lives",
        *_life(),
        *(sa.Column(name, _TIME) for name in ("ended_at", "counted_at")),
        sa.Column("doc", JSONB, nullable=False),
    )
    open_ = sa.text("ended_at IS NULL")
    op.create_index("job_lives_open", "job_lives", ["cluster"], postgresql_where=open_)
    op.create_index("job_lives_ended", "job_lives", ["cluster", "ended_at"])
    op.create_table(
        "job_stretches",
        *_life(),
        sa.Column("began_at", _TIME, primary_key=True),
        sa.Column("ended_at", _TIME, nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False) for name in ("first", "last")),
    )
    op.create_index("job_stretches_ended", "job_stretches", ["ended_at"])
    op.create_table(
        "goodput",
        sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
        *_texts("cluster", "job"),
        sa.Column("restart", sa.Integer, nullable=False),
        sa.Column("held", sa.Integer),
        sa.Column("hour", _TIME, nullable=False),
        *_texts("spent", "cause", "incident", "user_name", "account", "partition"),
        sa.Column("gpu_s", sa.Float, nullable=False),
    )
    op.create_index("goodput_hour", "goodput", ["cluster", "hour"])
    op.create_index("goodput_job", "goodput", ["cluster", "job"])


def downgrade() -> None:
    op.drop_table("goodput")
    op.drop_table("job_stretches")
    op.drop_table("job_lives")
