"""Evidence names its source: what named none counted as the kernel's, a drain of Slurm's too."""

from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_SENSE = """
    CASE WHEN coalesce(one ->> 'line', '') <> '' THEN 'kernel'
         WHEN doc ->> 'fault' ~ '^(person-drain$|healer-drain$|slurm-drain:|foreign-drain:)' THEN 'slurm'
         ELSE 'history' END
"""


def upgrade() -> None:
    # Nothing of it is news to a page.
    op.execute("ALTER TABLE incidents DISABLE TRIGGER incidents_tell")
    for table in ("incidents", "findings"):
        op.execute(
            f"""
            UPDATE {table} SET doc = jsonb_set(doc, '{{evidence}}', (
                SELECT jsonb_agg(
                    CASE WHEN one ? 'sense' THEN one ELSE one || jsonb_build_object('sense', {_SENSE}) END
                    ORDER BY place
                ) FROM jsonb_array_elements(doc -> 'evidence') WITH ORDINALITY AS each(one, place)
            ))
            WHERE jsonb_path_exists(doc, '$.evidence[*] ? (!exists(@.sense))')
            """  # noqa: S608 - our own words
        )
    op.execute("ALTER TABLE incidents ENABLE TRIGGER incidents_tell")


def downgrade() -> None:
    """An earlier version knows no `history`; it reads what names nothing as the kernel's."""
    op.execute("ALTER TABLE incidents DISABLE TRIGGER incidents_tell")
    for table in ("incidents", "findings"):
        op.execute(
            f"""
            UPDATE {table} SET doc = jsonb_set(doc, '{{evidence}}', (
                SELECT jsonb_agg(CASE WHEN one ->> 'sense' = 'history' THEN one - 'sense' ELSE one END
                                 ORDER BY place)
                FROM jsonb_array_elements(doc -> 'evidence') WITH ORDINALITY AS each(one, place)
            ))
            WHERE doc @> '{{"evidence": [{{"sense": "history"}}]}}'
            """  # noqa: S608 - our own words
        )
    op.execute("ALTER TABLE incidents ENABLE TRIGGER incidents_tell")
