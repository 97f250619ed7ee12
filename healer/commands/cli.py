"""The command line. Light: what a command needs is imported when it runs (a test checks it)."""

import errno
import gc
import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from healer import __version__
from healer.commands.examples import add_help

if TYPE_CHECKING:
    from typing import TypeGuard

    import typer
    from sqlalchemy.exc import DBAPIError

#: Modules with their commands, in the order in which `healer --help` lists them. `()`: the module registers
#: its groups itself.
COMMANDS: Mapping[str, Sequence[str]] = {
    "up": ("up", "demo"),
    "watch": ("watch",),
    "parts": (),
    "login": ("login", "logout"),
    "token": (),
    "local_account": (),
    "who": (),
    "emergency_access": (),
    "person_access": ("person",),
    "send": (),
    "nodes": ("nodes",),
    "goodput_sums": ("goodput",),
    "plan": (),
    "node_package": ("node-package", "node-keys"),
    "learn": ("learn",),
    "incidents": ("incidents", "evidence"),
    "runs": ("runs", "run", "approve", "reject", "cancel", "retry", "undo", "pause"),
    "messages": (),
    "reconcile": ("reconcile",),
    "rules": (),
    "topology": (),
    "import_history": (),
    "report_past": ("report",),
    "replay": ("replay", "recordings"),
    "simulate": ("simulate",),
    "audit": (),
    "hook": (),
    "backup": ("backup", "restore"),
    "doctor": ("doctor",),
    "support_bundle": ("support-bundle",),
}


#: A package of this name that is missing is a fault of ours, and no installation repairs it.
_OURS = frozenset({"healer", "workers"})
#: A disk, a quota or the largest file allowed is full.
_NO_ROOM = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def _version(asked: bool) -> None:
    import typer

    if asked:
        from healer.commands.build_note import build_note

        typer.echo(f"healer {__version__} ({build_note()})")
        raise typer.Exit


def build() -> "typer.Typer":
    """The application with all commands."""
    import typer

    from healer.commands.help_pages import HelpfulGroup

    app = typer.Typer(
        name="healer",
        cls=HelpfulGroup,
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

    for name, commands in COMMANDS.items():
        module = importlib.import_module(f"healer.commands.{name}")
        for command in commands:
            app.command(command)(getattr(module, command.replace("-", "_")))
        if not commands:
            module.register(app)
    add_help(app)
    return app


def main(arguments: Sequence[str] | None = None) -> None:
    """Exit status: 0 done, 1 failed, 2 wrong use, wrong settings or an installation that is not whole.
    `arguments` None: the process's own."""
    # Imported modules stay: at Python's default, collections that scan them take a fifth of a start.
    gc.set_threshold(50_000)
    if sys.stdout is None:  # `>&-`
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - as long as the process
    try:
        _run(arguments)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if not package or package in _OURS:
            raise
        # The catalogues need packages too.
        _end(f"the Python package {package} is missing: `tools/setup` installs all that healer needs.", 2)
    except BrokenPipeError:  # the reader (`| head`) has gone
        _forget_output()
        sys.exit(1)


def _run(arguments: Sequence[str] | None) -> None:
    """What this imports may be missing too."""
    from typer.exceptions import Abort, TyperException

    from healer.commands import Misused, local
    from healer.commands.help_pages import usage_problem
    from healer.model.shown import shown
    from healer.model.vocabulary import UserError
    from healer.settings import SettingsError
    from healer.text import language, said_by, say

    given = sys.argv[1:] if arguments is None else arguments
    if "--json" not in given:  # programs read that, and get the same everywhere
        language.current.set(language.of_locale(os.environ))
    try:
        try:
            sys.exit(build()(arguments, standalone_mode=False) or 0)
        finally:
            sys.stdout.flush()  # later, a failure cannot be caught
    except TyperException as error:
        for line in usage_problem(error):
            print(line, file=sys.stderr)
        sys.exit(error.exit_code)
    except Abort:
        print(local(say("commands.aborted")), file=sys.stderr)
        sys.exit(1)
    except (SettingsError, Misused) as error:
        _end(shown(local(said_by(error)), keep="\n"), 2)
    except UserError as error:
        _end(shown(local(said_by(error)), keep="\n"), 1)
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _NO_ROOM:
            _forget_output()
            why = error.strerror
            file = error.filename and say("commands.unwritable", name=str(error.filename), why=why)
            _end(local(file or say("commands.output_lost", why=why)), 1)
        if not _is_of_database(error):
            raise
        from healer.commands import database_problem

        if (problem := database_problem(error)) is None:
            raise
        _end(shown(local(problem)), 1)


def _is_of_database(error: Exception) -> "TypeGuard[DBAPIError]":
    """Only modules that are already imported may have raised it."""
    module = sys.modules.get("sqlalchemy.exc")
    return module is not None and isinstance(error, module.DBAPIError)


def _forget_output() -> None:
    """What is still to be printed goes nowhere: Python would fail over it again at the very end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(message: str, status: int) -> None:
    print(f"healer: {message}", file=sys.stderr)
    sys.exit(status)
