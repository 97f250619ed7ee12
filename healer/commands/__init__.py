"""The command line, one module for each command, each with `register(app)`.

The modules are imported for `--help`, so they import nothing heavy at the top: no SQLAlchemy, FastAPI,
Celery, numpy or scikit-learn. What a command needs it imports when it runs.
"""

import getpass


class Failed(Exception):
    """The command did not succeed. One sentence, printed to standard error; the exit status is 1."""


def say(text: str = "", *, err: bool = False, lines: bool = False) -> None:
    """Prints a line to standard output, or to standard error, in the language of the terminal, with symbols
    for what cannot be seen: names and lines of others are in it. `lines`: the text has several lines."""
    import typer

    from healer.model.shown import shown
    from healer.text import Said, in_language
    from healer.text.language import current

    if isinstance(text, Said):
        text = in_language(text, current.get())
    typer.echo(shown(text, keep="\n\t" if lines else ""), err=err)


def say_json(document: str | bytes) -> None:
    """Prints a JSON document, with escapes for what cannot be seen."""
    import sys

    from healer.model.shown import shown_json

    text = document if isinstance(document, str) else document.decode()
    sys.stdout.flush()
    sys.stdout.buffer.write(shown_json(text).encode() + b"\n")
    sys.stdout.flush()


def person() -> str:
    """Who types: the login name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "command line"
