"""The command line, one module for each command or group of commands; `cli.COMMANDS` lists them.

The modules are imported for `--help`, so they import nothing heavy at the top: no SQLAlchemy, FastAPI,
Celery, numpy or scikit-learn. What a command needs it imports when it runs.
"""

import getpass
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from healer.model.vocabulary import UserError
from healer.text import Said, in_language, joined, said_by, say
from healer.text.language import current

if TYPE_CHECKING:
    from sqlalchemy.exc import DBAPIError

T = TypeVar("T")

#: SQLSTATEs of PostgreSQL: there is no such table or column; this login lacks a right; a standby, which only
#: reads.
_NO_TABLE, _NO_RIGHT, _READ_ONLY = ("42P01", "42703"), "42501", "25006"


class Failed(UserError):
    """The command did not succeed. One sentence, printed to standard error; the exit status is 1."""


class Misused(Failed):
    """Options or settings that do not fit together, or cannot be used; the exit status is 2."""


@contextmanager
def reading(named: object = "", *, writes: bool = False) -> Iterator[None]:
    """Raises Failed for a file that cannot be read, or written. `named`: used if the error does not name
    it."""
    try:
        yield
    except OSError as error:
        name, why = str(error.filename or named), error.strerror or str(error)
        if Path(name).name == f".{Path(str(named)).name}.new":  # first written under this name
            name = str(named)
        text = say("commands.unwritable", name=name, why=why) if writes else _unreadable(name, why)
        raise Failed(text) from error
    except UnicodeDecodeError as error:
        raise Failed(_unreadable(str(named), str(error))) from error


def _unreadable(name: str, why: str) -> Said:
    return say("commands.unreadable", name=name, why=why)


def check_output(path: Path) -> None:
    """Raises Failed if `path` is a device, a pipe, a link (`/dev/stdout`) or a folder: a command that renames
    its whole output to `path` would replace it."""
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # writing it says why it fails
    if not stat.S_ISREG(mode):
        raise Failed(say("commands.output_replaces", name=str(path)))


def print_line(text: str = "", *, err: bool = False, lines: bool = False) -> None:
    """Prints a line to standard output, or to standard error, in the language of the terminal, with symbols
    for what cannot be seen: names and lines of others are in it. `lines`: the text has several lines. On a
    terminal a sentence of ours is wrapped, and what a program may paste (a link, a token) never is."""
    import typer

    from healer.model.shown import shown

    words = shown(local(text), keep="\n\t" if lines else "")
    if isinstance(text, Said) and text.key and not lines and (sys.stderr if err else sys.stdout).isatty():
        from healer.commands.help_pages import width, wrapped

        words = "\n".join(wrapped(words, width()))
    typer.echo(words, err=err)


def local(text: str) -> str:
    """A sentence in the language of the terminal; any other text as it is."""
    return in_language(text, current.get()) if isinstance(text, Said) else text


def database_problem(error: "DBAPIError") -> Said | None:
    """Why the database did not do what a command asked; None for a fault of ours."""
    from sqlalchemy.exc import OperationalError

    why = " ".join(str(error.orig).split())
    state = getattr(error.orig, "sqlstate", None)
    if state in _NO_TABLE:
        return say("commands.database_older", why=why)
    if state == _NO_RIGHT:
        return say("commands.database_login", why=why)
    is_away = isinstance(error, OperationalError) or state == _READ_ONLY
    return say("commands.database_away", why=why) if is_away else None


def not_one_of(given: str, choices: Iterable[str]) -> Said:
    return say("commands.not_one_of", given=given, known=joined(list(choices), "comma"))


def assumed(options: Sequence[str], kind: type[T], **given: object) -> T:
    """The figures of `--assume NAME=NUMBER` as this struct, with those given otherwise."""
    import msgspec
    import typer

    pairs = {name: value for name, _, value in (option.partition("=") for option in options)}
    try:
        return msgspec.convert(pairs | given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise typer.BadParameter(said_by(error), param_hint="--assume") from error


def say_json(document: str | bytes) -> None:
    """Prints a JSON document, with escapes for what cannot be seen."""
    from healer.model.shown import shown_json

    text = document if isinstance(document, str) else document.decode()
    sys.stdout.flush()
    sys.stdout.buffer.write(shown_json(text).encode() + b"\n")
    sys.stdout.flush()


def say_document(document: Any) -> None:
    """Prints a large document as JSON, a field on each line."""
    import msgspec

    from healer.text import to_text

    say_json(msgspec.json.format(msgspec.json.encode(document, enc_hook=to_text), indent=1))


def due_every(on_terminal_s: float, *, in_log_s: float | None = None) -> Callable[[], bool]:
    """Whether it is time for another line of progress on standard error, for people who watch."""
    every_s = on_terminal_s if in_log_s is None or sys.stderr.isatty() else in_log_s
    printed_s = time.monotonic()

    def is_due() -> bool:
        nonlocal printed_s
        if time.monotonic() - printed_s < every_s:
            return False
        printed_s = time.monotonic()
        return True

    return is_due


def person() -> str:
    """The login name of the user."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "command line"
