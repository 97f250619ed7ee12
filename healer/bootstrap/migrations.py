"""Migrations of the database, for the commands: they choose no adapter themselves."""

from healer.adapters.postgres.migrate import MigrationError, current, head, upgrade

__all__ = ["MigrationError", "current", "head", "upgrade"]
