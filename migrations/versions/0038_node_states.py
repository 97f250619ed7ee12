"""Since when each node has been in or out of service, and who held it: for reports and the past map."""

import sqlalchemy as sa
from alembic import op

revision = "0038"
down_revision = "0037"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "node_states",
        sa.Column("id", sa.BigInteger, sa.Identity(), primary_key=True),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("cluster", "node", "state", "held_by")),
        sa.Column("busy", sa.Boolean, nullable=False),
        sa.Column("since", _TIME, nullable=False),
        sa.Column("until", _TIME),
    )
    lasts, out = sa.text("until IS NULL"), sa.text("state <> 'in_service'")
    op.create_index(
        "node_states_open", "node_states", ["cluster", "node"], unique=True, postgresql_where=lasts
    )
    op.create_index("node_states_until", "node_states", ["cluster", "until"])
    op.create_index("node_states_out", "node_states", ["cluster", "until"], postgresql_where=out)


def downgrade() -> None:
    op.drop_table("node_states")
