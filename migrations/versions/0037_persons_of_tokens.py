"""Above viewer a token is a person's: at a site without an identity provider those who have one are persons.

Tokens without a name are called by their role and id; they may only read from now on."""

from alembic import op

revision = "0037"
down_revision = "0036"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """
        INSERT INTO people (name, issuer, subject, groups, created_at, seen_at)
        SELECT name, 'local', name, '[]', min(created_at), min(created_at) FROM tokens
        WHERE role IN ('responder', 'operator', 'admin') AND revoked_at IS NULL
          AND name <> role || '-' || id AND name NOT IN ('', 'healer')
          AND name NOT LIKE '%/%' AND name NOT LIKE 'break-glass (%'
          AND NOT EXISTS (SELECT FROM people WHERE issuer <> 'local')
        GROUP BY name ON CONFLICT DO NOTHING
        """
    )


def downgrade() -> None:
    pass  # who is a person stays one
