"""`healer db`: the database's tables."""

import typer

from healer.commands import Failed
from healer.settings import Settings, load


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The database.", rich_markup_mode=None)
    group.command("upgrade")(upgrade)
    app.add_typer(group, name="db")


def database_url(settings: Settings) -> str:
    """HEALER_DATABASE_URL, else the embedded database of the `healer up` that runs on the data directory."""
    from healer.embedded.running import find
    from healer.embedded.user import EmbeddedError

    if settings.database_url is not None:
        return settings.database_url
    try:
        return find(settings.data_dir).database_url
    except EmbeddedError as error:
        raise Failed(str(error)) from None


def upgrade() -> None:
    """Bring the database to the tables that this version needs."""
    url = database_url(load())
    import sqlalchemy as sa
    from sqlalchemy.exc import OperationalError

    from healer import migrate

    engine = sa.create_engine(url)
    try:
        before, after = migrate.upgrade(engine)
    except migrate.MigrationError as error:
        raise Failed(str(error)) from None
    except OperationalError as error:
        raise Failed(f"the database does not answer: {error.orig}".strip()) from None
    finally:
        engine.dispose()
    typer.echo(
        f"already at {after}" if before == after else f"upgraded from {before or 'nothing'} to {after}"
    )
