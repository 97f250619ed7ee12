"""`healer up`: the whole product in one process tree."""

import os

import typer

from healer.commands import Failed
from healer.settings import Settings, load


def register(app: typer.Typer) -> None:
    app.command("up")(up)


def up(
    data_dir: str = typer.Option(None, "--data-dir", help="Logs, keys and the embedded servers' files."),
    listen: str = typer.Option(None, "--listen", help="Address and port, like 127.0.0.1:8080."),
) -> None:
    """Run everything: database, broker, API and console, detector, scheduler, worker. Ctrl-C stops it."""
    run_tree(load(data_dir=data_dir, listen=listen))


def run_tree(settings: Settings) -> None:
    """Blocks until a signal asks for the end."""
    from setproctitle import setproctitle

    from healer.embedded.tree import Tree
    from healer.embedded.user import EmbeddedError

    setproctitle("healer up")
    try:
        Tree(settings, os.environ, say=_say).run()
    except EmbeddedError as error:
        raise Failed(str(error)) from None


def _say(text: str) -> None:
    print(f"healer: {text}" if not text.startswith("healer is ready") else text, flush=True)
