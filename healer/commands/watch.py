"""`healer watch`: a site's Prometheus and Slurm in healer's console, read-only, with nothing installed."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from healer.commands import Failed, say
from healer.commands.up import copy_rules, have_users, no_place, say_own, temporary_folder
from healer.settings import ON, Settings, load, rules_folder

if TYPE_CHECKING:
    from healer.embedded.running import Running
    from healer.model import SlurmSnapshot

#: Settings of the caller that say how to read Slurm and Prometheus. No other counts: neither the site's
#: database nor its sinks are used.
KEPT = ("HEALER_SLURM_", "HEALER_CLUSTER", "HEALER_PROMETHEUS_", "HEALER_RULES_DIR", "HEALER_LISTEN")
FOLLOW_S = 15
#: Names of series that were seen in this time.
SEEN = timedelta(minutes=15)


def register(app: typer.Typer) -> None:
    app.command("watch")(watch)


def watch(
    prometheus: str = typer.Option(..., "--prometheus", metavar="URL", help="Prometheus or compatible."),
    slurm: bool = typer.Option(False, "--slurm", help="Read nodes and jobs from this machine's Slurm."),
    match: str = typer.Option("", "--match", help='Only these series, like cluster="pod1".'),
    token_file: Path = typer.Option(None, "--token-file", help="File with Prometheus' bearer token."),
    listen: str = typer.Option(None, "--listen", help="Address and port, like 127.0.0.1:8080."),
) -> None:
    """Watch a cluster read-only from a laptop or login node: no agent, no root, nothing left behind."""
    from healer.embedded.user import FolderUnusable, usable

    if not slurm:
        raise Failed("add --slurm: healer learns nodes and jobs from scontrol and squeue of this machine.")
    _set_environ(prometheus, match, token_file)
    wanted = load(listen=listen)
    snapshot = _first_picture(wanted)
    signals = _known_signals(wanted)
    have_users()
    folder = temporary_folder("watch")
    try:
        with usable(folder):
            _fill(folder, wanted)
            settings = load(listen=listen)
            say_own(f"Slurm: {len(snapshot.nodes)} nodes, {len(snapshot.jobs)} jobs")
            say_own(f"Prometheus: {signals} names of series that healer knows; read every {FOLLOW_S} s")
            _run(settings)
    except FolderUnusable as error:
        raise no_place(f"{folder} {error.why}") from None
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _set_environ(prometheus: str, match: str, token_file: Path | None) -> None:
    ignored = [name for name in os.environ if name.startswith("HEALER_") and not name.startswith(KEPT)]
    for name in ignored:
        del os.environ[name]
    if ignored:
        say_own(f"ignored here, as only Slurm and Prometheus are read: {', '.join(sorted(ignored))}")
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
        raise Failed("this machine has no scontrol: run it on a login node, or set HEALER_SLURM_REST_URL.")
    try:
        return bootstrap.slurm_reads(settings).snapshot()
    except SchedulerError as error:
        raise Failed(f"Slurm cannot be read: {error}") from None


def _known_signals(settings: Settings) -> int:
    """How many names of series the server has that the catalogue knows. Failed says what is missing."""
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
        raise Failed(f"--prometheus: {error}") from None
    finally:
        client.close()
    found = names & signals_by_series_name(load_rules(rules_folder(settings)).catalogue).keys()
    if not found:
        raise Failed(
            f"--prometheus: of its {len(names)} names of series healer knows none. Exporters such as "
            "dcgm-exporter and node_exporter are known; rules/signals.yaml takes other names as aliases."
        )
    return len(found)


def _fill(folder: Path, settings: Settings) -> None:
    """The rules with a scraper that follows the server, and the data directory below `folder`."""
    rules = copy_rules(rules_folder(settings), folder)
    (rules / "scrape.yaml").write_text(f"follow_interval_s: {FOLLOW_S}\n")
    os.environ |= {"HEALER_RULES_DIR": str(rules), "HEALER_DATA_DIR": str(folder / "data")}


def _run(settings: Settings) -> None:
    from setproctitle import setproctitle

    from healer.bootstrap import tree_parts
    from healer.commands.cli import main
    from healer.embedded.tree import Calls, Tree, healer_parts

    setproctitle("healer watch")
    calls = Calls(say=say_own, load=tree_parts.preload, on_ready=partial(_ready, settings))
    Tree(settings, os.environ, healer_parts(settings, main), calls).run()


def _ready(settings: Settings, running: "Running") -> None:
    from healer.bootstrap import sign_in_link
    from healer.model import Role

    link = sign_in_link(settings, running.database_url, running.url, name="watch", role=Role.viewer)
    say(f"\n  Open   {link}\n  (signs you in to look, once)\n", lines=True)
    say_own(
        "first figures come within a minute. healer changes nothing here. Ctrl-C ends it and leaves nothing"
    )
