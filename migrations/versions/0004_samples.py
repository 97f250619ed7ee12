"""Samples in a ring of partitions, the columns they speak of, unknown series, checkpoints of jobs."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


class _Xid8(sa.types.UserDefinedType):
    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


def upgrade() -> None:
    op.create_table(
        "samples",
        sa.Column("id", sa.BigInteger(), sa.Identity(cache=100), nullable=False),
        sa.Column("tx", _Xid8(), server_default=sa.text("pg_current_xact_id()"), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("arrived_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("slot", sa.SmallInteger(), nullable=False),
        sa.Column("body", postgresql.BYTEA(), nullable=False),
        postgresql_partition_by="LIST (slot)",
    )
    op.execute("ALTER TABLE samples ALTER COLUMN body SET STORAGE EXTERNAL")
    op.create_index("samples_tx", "samples", ["tx"])
    op.create_index("samples_subject", "samples", ["cluster", "subject", "arrived_at"])
    for slot in range(8):
        op.execute(
            f"CREATE TABLE samples_{slot} PARTITION OF samples FOR VALUES IN ({slot}) "
            "WITH (autovacuum_enabled = false, toast_tuple_target = 8160)"
        )
    op.create_table(
        "signal_columns",
        sa.Column("id", sa.Integer(), sa.Identity(), nullable=False),
        sa.Column("signal", sa.Text(), nullable=False),
        sa.Column("gpu", sa.Integer(), nullable=True),
        sa.Column("link", sa.Integer(), nullable=True),
        sa.Column("port", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint(
            "signal", "gpu", "link", "port", name="signal_columns_once", postgresql_nulls_not_distinct=True
        ),
    )
    op.create_table(
        "unknown_series",
        sa.Column("cluster", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("why", sa.Text(), nullable=False),
        sa.Column("count", sa.BigInteger(), nullable=False),
        sa.Column("first_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("last_seen", sa.DateTime(timezone=True), nullable=False),
        sa.Column("example", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "name"),
    )
    op.execute(
        "CREATE INDEX inbox_checkpoints ON inbox (cluster, (doc #>> '{component,job}')) "
        "WHERE kind = 'checkpoint'"
    )


def downgrade() -> None:
    op.drop_index("inbox_checkpoints", "inbox")
    op.drop_table("unknown_series")
    op.drop_table("signal_columns")
    op.drop_table("samples")
