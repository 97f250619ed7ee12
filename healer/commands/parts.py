"""The parts of a distributed installation, one process each, and its database's tables."""

from collections.abc import Sequence
from typing import TypeVar

import typer

from healer.commands import Failed, say
from healer.commands.remote import add_group
from healer.settings import Settings, load, load_executor

_CLUSTER = typer.Option(None, "--cluster", help="The cluster, if HEALER_CONFIG has tables of several.")


def register(app: typer.Typer) -> None:
    app.command("api")(api)
    app.command("detector")(detector)
    app.command("worker")(worker)
    app.command("scheduler")(scheduler)
    app.command("scraper")(scraper)
    add_group(app, "db", "The database.", {"upgrade": upgrade})


def _named(part: str) -> None:
    from setproctitle import setproctitle

    setproctitle(f"healer {part}")


S = TypeVar("S", bound=Settings)


def _part_of(part: str, cluster: str | None, whole: S) -> S:
    """Settings of this part's cluster; the process is named after it where there are several."""
    settings = whole.of(cluster)
    _named(f"{part} {settings.cluster}" if whole.clusters else part)
    return settings


def api() -> None:
    """Run the REST API and the console."""
    settings = load()
    _named("api")
    from healer import bootstrap

    bootstrap.run_api(settings)


def detector(cluster: str | None = _CLUSTER) -> None:
    """Run the detector: signals to incidents and decisions. One per cluster; a second one waits to take
    over."""
    settings = _part_of("detector", cluster, load())
    from healer.bootstrap.detector_part import run_detector

    run_detector(settings)


def worker(cluster: str | None = _CLUSTER) -> None:
    """Run a worker: it executes the steps of runs."""
    settings = _part_of("worker", cluster, load_executor())
    from healer.bootstrap.executor import run_worker

    run_worker(settings)


def scheduler(cluster: str | None = _CLUSTER) -> None:
    """Run the scheduler: it polls Slurm, resumes waiting runs and delivers messages."""
    settings = _part_of("scheduler", cluster, load())
    from healer import bootstrap

    bootstrap.run_scheduler(settings)


def scraper(cluster: str | None = _CLUSTER) -> None:
    """Run the scraper: it fetches the targets of rules/scrape.yaml. One per cluster; a second one waits to
    take over."""
    settings = _part_of("scraper", cluster, load())
    from healer.bootstrap.scraper_part import run_scraper

    run_scraper(settings)


def upgrade() -> None:
    """Upgrade the database schema to this version."""
    import sqlalchemy as sa
    from sqlalchemy.exc import OperationalError

    from healer import bootstrap
    from healer.bootstrap import database

    settings = load()
    engine = sa.create_engine(bootstrap.database_url(settings, database.OWNER))
    try:
        before, after = database.upgrade(engine, refused=_ask_for_roles)
        database.adopt_key(settings, engine)
    except database.MigrationError as error:
        raise Failed(str(error)) from None
    except OperationalError as error:
        raise Failed(f"the database does not answer: {error.orig}".strip()) from None
    finally:
        engine.dispose()
    say(f"already at {after}" if before == after else f"upgraded from {before or 'nothing'} to {after}")


def _ask_for_roles(statements: Sequence[str]) -> None:
    say(
        "healer: this login may not make the roles of healer's parts. An administrator of the server "
        "executes this, and gives each role its password; then `healer db upgrade` again:",
        err=True,
    )
    say(";\n".join(statements) + ";", lines=True)
