"""Deliveries: what was sent where, and what came of it."""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None


def _moment(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.DateTime(timezone=True), nullable=nullable)


def _text(name: str, *, nullable: bool = False) -> sa.Column:
    return sa.Column(name, sa.Text(), nullable=nullable)


def _serial() -> sa.Column:
    return sa.Column("id", sa.BigInteger(), sa.Identity(), nullable=False)


def upgrade() -> None:
    # Messages from before the channels existed go to none of them.
    op.add_column("messages", sa.Column("routed", sa.Boolean(), nullable=False, server_default=sa.true()))
    op.alter_column("messages", "routed", server_default=sa.false())
    op.create_index(
        "messages_unrouted", "messages", ["cluster", "at"], postgresql_where=sa.text("NOT routed")
    )
    op.create_table(
        "channels",
        _text("cluster"),
        _text("name"),
        _moment("since"),
        _moment("held_until", nullable=True),
        sa.PrimaryKeyConstraint("cluster", "name"),
    )
    op.create_table(
        "told_incidents",
        *(_text(name) for name in ("incident", "cluster", "severity", "stage")),
        sa.ForeignKeyConstraint(["incident"], ["incidents.id"]),
        sa.PrimaryKeyConstraint("incident"),
    )
    op.create_index(
        "told_incidents_open", "told_incidents", ["cluster"], postgresql_where=sa.text("stage <> 'resolved'")
    )
    _deliveries()
    op.create_table(
        "threads",
        *(_text(name) for name in ("cluster", "channel", "thread", "stage", "reference")),
        _moment("told_at"),
        sa.Column("doc", postgresql.JSONB(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", "channel", "thread"),
    )
    op.create_table(
        "raised_alarms",
        *(_text(name) for name in ("cluster", "channel", "alarm")),
        sa.Column("again", sa.Integer(), nullable=False),
        _moment("last_at"),
        sa.PrimaryKeyConstraint("cluster", "channel", "alarm"),
    )
    op.create_table(
        "beats",
        _text("cluster"),
        _text("part"),
        _moment("at"),
        sa.PrimaryKeyConstraint("cluster", "part"),
    )


def _deliveries() -> None:
    op.create_table(
        "deliveries",
        _serial(),
        *(_text(name) for name in ("cluster", "channel", "message", "thread", "alarm", "how", "stage")),
        _moment("at"),
        _text("state"),
        sa.Column("tries", sa.Integer(), nullable=False, server_default="0"),
        _moment("next_try_at", nullable=True),
        _moment("ended_at", nullable=True),
        _text("error", nullable=True),
        _text("reference", nullable=True),
        sa.ForeignKeyConstraint(["message"], ["messages.id"]),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("message", "channel"),
    )
    op.create_index(
        "deliveries_waiting",
        "deliveries",
        ["cluster", "channel"],
        postgresql_where=sa.text("state IN ('due', 'digest')"),
    )
    op.create_index("deliveries_thread", "deliveries", ["thread", "channel"])
    op.create_index("deliveries_state", "deliveries", ["state", "id"])
    op.create_table(
        "delivery_log",
        _serial(),
        sa.Column("delivery", sa.BigInteger(), nullable=False),
        _moment("at"),
        _text("outcome"),
        _text("text"),
        sa.ForeignKeyConstraint(["delivery"], ["deliveries.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_delivery_log_delivery", "delivery_log", ["delivery"])


def downgrade() -> None:
    told = ("delivery_log", "deliveries", "raised_alarms", "threads", "told_incidents", "channels")
    for table in (*told, "beats"):
        op.drop_table(table)
    op.drop_index("messages_unrouted", "messages")
    op.drop_column("messages", "routed")
