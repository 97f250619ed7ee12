"""Numbers that senders write as text.

Python's own `float` and `int` also take `1_000` and the digits of every script, which are no numbers to
Prometheus, to JSON or to any exporter.
"""


def float_of(text: str) -> float:
    """Raises ValueError, also for what only Python calls a number."""
    _check(text)
    return float(text)


def int_of(text: str) -> int:
    """The same of a whole number."""
    _check(text)
    return int(text)


def is_plain(text: str) -> bool:
    """Whether nothing in it makes it a number to Python alone."""
    return "_" not in text and text.isascii()


def _check(text: str) -> None:
    if not is_plain(text):
        raise ValueError(f"not a number: {text[:40]!r}")
