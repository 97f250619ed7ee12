"""The incidents that name a node or a job by an index: their pages read all incidents ever stored."""

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


def downgrade() -> None:
    op.drop_index("incidents_named", "incidents")
