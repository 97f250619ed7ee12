"""The command line. Light: what a command needs is imported when it runs (a test checks it)."""

import importlib
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from healer import __version__
from healer.commands.examples import add_examples

if TYPE_CHECKING:
    import typer

#: Modules, in the order in which `healer --help` lists their commands.
COMMANDS = (
    "up",
    "watch",
    "parts",
    "login",
    "token",
    "local_account",
    "who",
    "emergency_access",
    "person_access",
    "send",
    "nodes",
    "node_package",
    "learn",
    "incidents",
    "runs",
    "messages",
    "reconcile",
    "rules",
    "topology",
    "model",
    "import_history",
    "report_past",
    "replay",
    "simulate",
    "audit",
    "hook",
    "backup",
    "doctor",
    "support_bundle",
)


#: A package of this name that is missing is a fault of ours, and no installation mends it.
_OURS = frozenset({"healer", "workers"})


def _version(asked: bool) -> None:
    import typer

    if asked:
        from healer.commands.build_note import build_note

        typer.echo(f"healer {__version__} ({build_note()})")
        raise typer.Exit


def build() -> "typer.Typer":
    """The application with all commands."""
    import typer

    app = typer.Typer(
        name="healer",
        help="The self-healing control plane for GPU clusters under Slurm.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
    )

    @app.callback()
    def _root(
        version: bool = typer.Option(
            False, "--version", callback=_version, is_eager=True, help="Print the version and exit."
        ),
    ) -> None: ...

    for name in COMMANDS:
        importlib.import_module(f"healer.commands.{name}").register(app)
    add_examples(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status: 0 done, 1 failed, 2 wrong use, wrong settings or an installation that is not whole.
    `arguments` None: the process's own."""
    try:
        _run(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in _OURS:
            raise
        _end(f"the Python package {package} is missing: `tools/setup` installs all that healer needs.", 2)
    except BrokenPipeError:
        # The reader (`| head`) has gone; nothing more can be said.
        sys.stderr.close()
        sys.exit(1)


def _run(arguments: Sequence[str] | None) -> None:
    """What this imports may be missing too."""
    from healer.commands import Failed
    from healer.embedded.user import EmbeddedError
    from healer.model.shown import shown
    from healer.settings import SettingsError
    from healer.text import language

    given = sys.argv[1:] if arguments is None else arguments
    if "--json" not in given:  # programs read that, and get the same everywhere
        language.current.set(language.of_locale(os.environ))
    try:
        build()(arguments)
    except SettingsError as error:
        _end(shown(str(error), keep="\n"), 2)
    except (Failed, EmbeddedError) as error:
        _end(shown(str(error), keep="\n"), 1)


def _end(message: str, status: int) -> None:
    print(f"healer: {message}", file=sys.stderr)
    sys.exit(status)
