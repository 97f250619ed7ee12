"""Why signals were not stored and messages not delivered is kept by key and arguments, for both languages.

Sentences of older versions stay as the text that they are."""

from alembic import op

revision = "0043"
down_revision = "0042"
branch_labels = None
depends_on = None

_SENTENCES = (
    ("losses", "example"),
    ("unknown_series", "why"),
    ("messages", "error"),
    ("deliveries", "error"),
    ("delivery_log", "text"),
)


def upgrade() -> None:
    for table, column in _SENTENCES:
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE jsonb USING to_jsonb({column})")


def downgrade() -> None:
    for table, column in _SENTENCES:
        text = f"coalesce({column} ->> 'text', {column} #>> '{{}}')"
        op.execute(f"ALTER TABLE {table} ALTER COLUMN {column} TYPE text USING {text}")
