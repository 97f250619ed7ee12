"""`healer db`: the database's tables."""

import typer

from healer.commands import Failed
from healer.settings import load


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="The database.", rich_markup_mode=None)
    group.command("upgrade")(upgrade)
    app.add_typer(group, name="db")


def upgrade() -> None:
    """Bring the database to the tables that this version needs."""
    import sqlalchemy as sa
    from sqlalchemy.exc import OperationalError

    from healer import bootstrap
    from healer.bootstrap import migrations

    engine = sa.create_engine(bootstrap.database_url(load()))
    try:
        before, after = migrations.upgrade(engine)
    except migrations.MigrationError as error:
        raise Failed(str(error)) from None
    except OperationalError as error:
        raise Failed(f"the database does not answer: {error.orig}".strip()) from None
    finally:
        engine.dispose()
    typer.echo(
        f"already at {after}" if before == after else f"upgraded from {before or 'nothing'} to {after}"
    )
