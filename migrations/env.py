"""Alembic's environment. `healer.adapters.postgres.migrate` opens the connection; there is no ini file."""

from alembic import context
from alembic.runtime.migration import MigrationContext, MigrationInfo

from healer.adapters.postgres.tables import metadata

connection = context.config.attributes["connection"]
if connection is None:  # the statements alone, for `healer db upgrade --plan`
    context.configure(dialect_name="postgresql", literal_binds=True)
else:
    attributes = context.config.attributes

    def note(ctx: MigrationContext, step: MigrationInfo, heads: object, run_args: object) -> None:
        """In the transaction of the migration itself."""
        if step.is_upgrade:
            attributes["applied"](ctx.connection, step.up_revision_id)

    context.configure(
        connection=connection,
        target_metadata=metadata,
        transaction_per_migration=attributes["apart"],
        on_version_apply=note,
    )
with context.begin_transaction():
    context.run_migrations()
