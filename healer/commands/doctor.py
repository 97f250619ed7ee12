"""`healer doctor`: checks an installation from this machine and says how to repair what is wrong."""

import json
import time
from typing import NamedTuple

import typer

from healer.settings import Settings, load, rules_folder

OLDEST_POSTGRES = 15
#: Clocks further apart than this make the order of evidence doubtful.
CLOCK_S = 1.0


class Check(NamedTuple):
    name: str
    ok: bool
    text: str
    repair: str = ""


def register(app: typer.Typer) -> None:
    app.command("doctor")(doctor)


def doctor(as_json: bool = typer.Option(False, "--json", help="One JSON document.")) -> None:
    """Check database, clocks, broker, Slurm, rules, nodes, BMCs, guards, tickets, channels, API; repairs."""
    settings = load()
    from healer.bootstrap import log_to_stderr

    log_to_stderr()
    looks = (_rules, _database, _broker, _adapters, _api)
    checks = [check for look in looks for check in look(settings)]
    if as_json:
        typer.echo(json.dumps({"ok": all(c.ok for c in checks), "checks": [c._asdict() for c in checks]}))
    else:
        for check in checks:
            typer.echo(f"{'ok  ' if check.ok else 'FAIL'} {check.name}: {check.text}")
            if check.repair:
                typer.echo(f"     -> {check.repair}")
    if not all(check.ok for check in checks):
        raise typer.Exit(1)


def _rules(settings: Settings) -> list[Check]:
    from healer.rulebook import ruleset

    folder = rules_folder(settings)
    try:
        rules = ruleset.load(folder)
    except ruleset.RulesInvalid as error:
        return [
            Check("rules", False, str(error), "Correct the file; `healer rules check` names every fault.")
        ]
    return [Check("rules", True, f"{len(rules.rules)} rules, {len(rules.playbooks)} playbooks in {folder}")]


def _database(settings: Settings) -> list[Check]:
    from sqlalchemy.exc import OperationalError

    from healer import bootstrap
    from healer.bootstrap import database
    from healer.embedded.user import EmbeddedError

    try:
        engine = bootstrap.engine(settings)
        with engine.connect() as connection:
            version, ahead_s = connection.exec_driver_sql(
                "SELECT current_setting('server_version'), extract(epoch FROM clock_timestamp())::float8"
            ).one()
            ahead_s -= time.time()
            revision = database.current(connection)
        engine.dispose()
    except EmbeddedError as error:
        return [Check("database", False, str(error))]
    except OperationalError as error:
        return [
            Check(
                "database",
                False,
                f"does not answer: {' '.join(str(error.orig).split())}",
                "Start PostgreSQL, or correct HEALER_DATABASE_URL.",
            )
        ]
    head = database.head()
    return [
        Check(
            "database",
            int(version.split(".")[0]) >= OLDEST_POSTGRES,
            f"PostgreSQL {version}",
            "" if int(version.split(".")[0]) >= OLDEST_POSTGRES else f"Use {OLDEST_POSTGRES} or newer.",
        ),
        Check(
            "tables",
            revision == head,
            f"revision {revision or 'none'}, this version needs {head}",
            "" if revision == head else "Run `healer db upgrade`.",
        ),
        Check(
            "clock",
            abs(ahead_s) < CLOCK_S,
            f"the database's clock is {ahead_s:+.3f} s from this machine's",
            "" if abs(ahead_s) < CLOCK_S else "Synchronise both by NTP.",
        ),
    ]


def _broker(settings: Settings) -> list[Check]:
    from healer import bootstrap
    from healer.embedded.user import EmbeddedError
    from workers.app import make_app

    repair = (
        "Start Redis, or correct HEALER_REDIS_URL; until then runs are found by the sweep, a little later."
    )
    try:
        url = bootstrap.broker_url(settings)
        with make_app(url, "doctor").connection_for_write() as connection:
            connection.ensure_connection(max_retries=1, interval_start=0, interval_step=0)
    except EmbeddedError as error:
        return [Check("broker", False, str(error))]
    except OSError as error:
        return [Check("broker", False, f"does not answer: {error}", repair)]
    except Exception as error:  # each transport of kombu has errors of its own
        return [Check("broker", False, f"does not answer: {type(error).__name__}: {error}", repair)]
    return [Check("broker", True, f"answers ({url.split(':', 1)[0]})")]


def _adapters(settings: Settings) -> list[Check]:
    """What is asked by the adapters of this site."""
    from healer.bootstrap.doctor_checks import LOOKS

    return [Check(*found) for look in LOOKS for found in look(settings)]


def _api(settings: Settings) -> list[Check]:
    import urllib.error
    import urllib.request

    url = f"http://{settings.listen}"
    if settings.database_url is None:
        from healer.embedded.running import find
        from healer.embedded.user import EmbeddedError

        try:
            url = find(settings.data_dir).url
        except EmbeddedError as error:
            return [Check("api", False, str(error))]
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=5):  # noqa: S310 - our own address
            return [Check("api", True, f"ready at {url}")]
    except urllib.error.HTTPError as error:
        return [Check("api", False, f"{url} is not ready: {error.read(2000).decode(errors='replace')}")]
    except OSError as error:
        return [Check("api", False, f"{url} does not answer: {error}", "Start `healer api` or `healer up`.")]
