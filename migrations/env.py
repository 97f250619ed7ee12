"""Alembic's environment. `healer.adapters.postgres.migrate` opens the connection; there is no ini file."""

from alembic import context

from healer.adapters.postgres.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transaction_per_migration=False,
)
with context.begin_transaction():
    context.run_migrations()
