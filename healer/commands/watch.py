"""`healer watch`: a site's Prometheus and Slurm in healer's console, read-only, with nothing installed."""

import os
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, Misused, print_line
from healer.commands.up import (
    copy_rules,
    forget_settings,
    have_users,
    parts_of,
    say_own,
    start,
    temporary_folder,
)
from healer.settings import ON, Settings, load, rules_folder
from healer.text import said_by, say

if TYPE_CHECKING:
    from healer.embedded.running import Running
    from healer.model import SlurmSnapshot

#: Settings of the caller that say how to read Slurm and Prometheus. No other counts: neither the site's
#: database nor its sinks are used.
KEPT = ("HEALER_SLURM_", "HEALER_CLUSTER", "HEALER_PROMETHEUS_", "HEALER_RULES_DIR", "HEALER_LISTEN")
FOLLOW_S = 15
#: Names of series that were seen in this time.
SEEN = timedelta(minutes=15)


def watch(
    prometheus: str = typer.Option(..., "--prometheus", metavar="URL", help="Prometheus or compatible."),
    slurm: bool = typer.Option(False, "--slurm", help="Read nodes and jobs from this machine's Slurm."),
    match: str = typer.Option("", "--match", help='Only these series, like cluster="pod1".'),
    token_file: Path = typer.Option(None, "--token-file", help="File with Prometheus' bearer token."),
    listen: str = typer.Option(None, "--listen", help="Address and port, like 127.0.0.1:8080."),
) -> None:
    """Watch a cluster read-only from a laptop or login node: no agent, no root, nothing left behind."""
    if not slurm:
        raise Misused(say("commands.watch_slurm"))
    _set_environ(prometheus, match, token_file)
    with temporary_folder("watch") as folder:
        os.environ["XDG_CACHE_HOME"] = str(folder / "cache")  # the caller's would keep proofs of rules
        wanted = load(listen=listen)
        snapshot = _first_picture(wanted)
        signals = _known_signals(wanted)
        have_users()
        _fill(folder, wanted)
        settings = load(listen=listen)
        say_own(say("commands.watch_picture", nodes=len(snapshot.nodes), jobs=len(snapshot.jobs)))
        say_own(say("commands.watch_series", count=signals, every=FOLLOW_S))
        start("watch", settings, parts_of(settings), on_ready=partial(_ready, settings))


def _set_environ(prometheus: str, match: str, token_file: Path | None) -> None:
    forget_settings(KEPT, say("commands.watch_only"))
    os.environ |= {
        "HEALER_PROMETHEUS_URL": prometheus,
        "HEALER_MODE": "shadow",
        "HEALER_READ_ONLY": ON,
    }
    if match:
        os.environ["HEALER_PROMETHEUS_MATCH"] = match
    if token_file is not None:
        os.environ["HEALER_PROMETHEUS_TOKEN_FILE"] = str(token_file.resolve())


def _first_picture(settings: Settings) -> "SlurmSnapshot":
    from healer import bootstrap
    from healer.ports.scheduling import SchedulerError

    if settings.slurm_adapters == ("sim",):
        raise Failed(say("commands.watch_no_scontrol"))
    try:
        return bootstrap.slurm_reads(settings).snapshot()
    except SchedulerError as error:
        raise Failed(say("commands.unreadable", name="Slurm", why=said_by(error))) from None


def _known_signals(settings: Settings) -> int:
    """The number of the server's series names that the catalogue knows. Raises Failed with the missing
    ones."""
    from healer.bootstrap.prometheus import prometheus_client
    from healer.ports.measurements import HistoryAway
    from healer.rulebook.ruleset import load as load_rules
    from healer.signals.promql import decode_names, signals_by_series_name
    from healer.signals.rejects import BadBody

    client, now = prometheus_client(settings), datetime.now(UTC)
    assert client is not None  # --prometheus is required
    try:
        names = set(decode_names(client.names(now - SEEN, now)))
    except (HistoryAway, BadBody) as error:
        raise Failed(say("commands.of_field", field="--prometheus", text=said_by(error))) from None
    finally:
        client.close()
    found = names & signals_by_series_name(load_rules(rules_folder(settings)).catalogue).keys()
    if not found:
        raise Failed(say("commands.watch_unknown", count=len(names)))
    return len(found)


def _fill(folder: Path, settings: Settings) -> None:
    """The rules with a scraper that follows the server, and the data directory below `folder`."""
    rules = copy_rules(rules_folder(settings), folder)
    (rules / "scrape.yaml").write_text(f"follow_interval_s: {FOLLOW_S}\n")
    os.environ |= {"HEALER_RULES_DIR": str(rules), "HEALER_DATA_DIR": str(folder / "data")}


def _ready(settings: Settings, running: "Running") -> None:
    from healer.bootstrap import sign_in_link
    from healer.model import Role

    link = sign_in_link(settings, running.database_url, running.url, name="watch", role=Role.viewer)
    print_line(say("commands.watch_open", link=link), lines=True)
    say_own(say("commands.watch_ready"))
