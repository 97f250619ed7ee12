"""Incidents by index: those that name a node or a job, for their pages, and those that ended lately, for the
states of nodes that hooks ask for. Each of these read all incidents ever stored."""

import sqlalchemy as sa
from alembic import op

revision = "0045"
down_revision = "0044"
branch_labels = None
depends_on = None
keeps_older = True


def upgrade() -> None:
    op.create_index(
        "incidents_named",
        "incidents",
        [sa.text("(doc -> 'nodes')"), sa.text("(doc -> 'jobs_hit')")],
        postgresql_using="gin",
        postgresql_with={"fastupdate": "off"},
    )
    op.create_index("incidents_closed", "incidents", ["cluster", "closed"])


def downgrade() -> None:
    op.drop_index("incidents_closed", "incidents")
    op.drop_index("incidents_named", "incidents")
