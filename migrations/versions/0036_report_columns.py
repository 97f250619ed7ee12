"""What reports count, beside the document of an incident: they read 20,000 of them without unpacking one."""

from alembic import op

revision = "0036"
down_revision = "0035"
branch_labels = None
depends_on = None

COLUMNS = {
    "cause": "doc ->> 'cause'",
    "fault_class": "doc ->> 'fault_class'",
    "review": "doc ->> 'review'",
    "merged_into": "doc ->> 'merged_into'",
    "seen_at": "doc #>> '{evidence,0,at}'",
    "drained_at": "doc ->> 'drained_at'",
    "probation_until": "doc ->> 'probation_until'",
}


def upgrade() -> None:
    # One statement: the table is written again once.
    made = [f"ADD COLUMN {name} text GENERATED ALWAYS AS ({of}) STORED" for name, of in COLUMNS.items()]
    made.append("ADD COLUMN hit jsonb GENERATED ALWAYS AS (doc -> 'hit') STORED")
    op.execute(f"ALTER TABLE incidents {', '.join(made)}")
    op.create_index("incidents_cluster_opened", "incidents", ["cluster", "opened"])


def downgrade() -> None:
    op.drop_index("incidents_cluster_opened", "incidents")
    for name in (*COLUMNS, "hit"):
        op.drop_column("incidents", name)
