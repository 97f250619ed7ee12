"""The parts of an incident are found without a look at every other one."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    merged = sa.text("(doc ->> 'merged_into')")
    into = sa.text("(doc ->> 'merged_into') IS NOT NULL")
    op.create_index("incidents_merged", "incidents", [merged, "opened"], postgresql_where=into)


def downgrade() -> None:
    op.drop_index("incidents_merged", "incidents")
