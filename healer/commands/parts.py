"""The parts of a distributed installation, one process each, and its database's tables."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeVar

import typer

from healer.commands import print_line
from healer.commands.remote import add_group, print_json, print_table
from healer.settings import Settings, load, load_executor
from healer.text import joined, say

if TYPE_CHECKING:
    from healer.bootstrap.database import Planned

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


def upgrade(
    plan: bool = typer.Option(
        False, "--plan", help="Only print the migrations and what they block; changes nothing."
    ),
    json: bool = typer.Option(False, "--json", help="With --plan: print JSON."),
) -> None:
    """Upgrade the database schema to this version."""
    import sqlalchemy as sa

    from healer import bootstrap
    from healer.bootstrap import database

    settings = load()
    engine = sa.create_engine(bootstrap.database_url(settings, database.OWNER))
    try:
        if plan:
            with engine.connect() as connection:
                _print_plan(database.plan(connection), as_json=json)
            return
        before, after = database.upgrade(engine, refused=_ask_for_roles)
        database.adopt_key(settings, engine)
    finally:
        engine.dispose()
    if before == after:
        print_line(say("commands.upgraded_already", revision=after))
    elif not before:
        print_line(say("commands.database_created", after=after))
    else:
        print_line(say("commands.upgraded", before=before, after=after))


def _print_plan(planned: "Sequence[Planned]", *, as_json: bool) -> None:
    if as_json:
        print_json(
            [{**made._asdict(), "touched": [table._asdict() for table in made.touched]} for made in planned]
        )
        return
    if not planned:
        print_line(say("commands.plan_nothing"))
        return
    for migration in planned:
        print_line(f"{migration.revision}  {migration.title}")
    rows = [
        (migration.revision, table.table, f"{table.rows:,}", f"{table.bytes / 1e6:,.1f}",
         joined([say(f"commands.table_{effect}") for effect in table.effects], "semicolon"))
        for migration in planned
        for table in migration.touched
    ]  # fmt: skip
    print_line()
    print_table(("REVISION", "TABLE", "ROWS", "MB", "MEANWHILE"), rows)
    if all(migration.keeps_older for migration in planned):
        print_line(say("commands.plan_keeps"))
    else:
        print_line(say("commands.plan_stops"))


def _ask_for_roles(statements: Sequence[str]) -> None:
    print_line(say("commands.upgrade_roles"), err=True)
    print_line(";\n".join(statements) + ";", lines=True)
