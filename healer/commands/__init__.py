"""The command line, one module for each command, each with `register(app)`.

The modules are imported for `--help`, so they import nothing heavy at the top: no SQLAlchemy, FastAPI,
Celery, numpy or scikit-learn. What a command needs it imports when it runs.
"""

import getpass


class Failed(Exception):
    """The command did not succeed. One sentence, printed to standard error; the exit status is 1."""


def person() -> str:
    """Who types: the login name."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return "command line"
