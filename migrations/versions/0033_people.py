"""People of the identity provider, and what their sessions need: an idle limit, a list, a proof's age.

A person's name is bound to the provider's subject for good, so that no one else can take the name.
"""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None

_TIME = sa.DateTime(timezone=True)


def upgrade() -> None:
    op.create_table(
        "people",
        sa.Column("name", sa.Text, primary_key=True),
        sa.Column("issuer", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("groups", sa.Text, nullable=False),
        sa.Column("created_at", _TIME, nullable=False),
        sa.Column("seen_at", _TIME, nullable=False),
        sa.UniqueConstraint("issuer", "subject", name="people_issuer_subject_key"),
    )
    op.add_column("tokens", sa.Column("groups", sa.Text))
    op.add_column("sessions", sa.Column("id", sa.Text))
    for name in ("seen_at", "proven_at"):
        op.add_column("sessions", sa.Column(name, _TIME))
    for name in ("sid", "agent"):
        op.add_column("sessions", sa.Column(name, sa.Text, nullable=False, server_default=""))
    op.execute(
        "UPDATE sessions SET id = substr(encode(digest, 'hex'), 1, 12), seen_at = created_at, "
        "proven_at = created_at"
    )
    for name in ("id", "seen_at", "proven_at"):
        op.alter_column("sessions", name, nullable=False)
    op.create_index("sessions_id", "sessions", ["id"])


def downgrade() -> None:
    op.drop_index("sessions_id", "sessions")
    for name in ("id", "seen_at", "proven_at", "sid", "agent"):
        op.drop_column("sessions", name)
    op.drop_column("tokens", "groups")
    op.drop_table("people")
