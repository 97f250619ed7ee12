"""How many cases there are, by rule: for the page that shows the rules."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from healer.rulebook.source import Loader, rule_files


class CaseBook:
    """Callable: rule -> number of cases that name it. Read again when a file of `cases/` has changed.

    An unreadable file counts as empty here; `healer rules test` reports the problem.
    """

    def __init__(self, rules_dir: Path) -> None:
        self._folder = rules_dir / "cases"
        self._lock = threading.Lock()
        self._stamp: tuple = ()
        self._counts: dict[str, int] = {}

    def __call__(self) -> dict[str, int]:
        files = rule_files(self._folder, "*.yaml")
        stamp = tuple(filter(None, map(_stamp, files)))
        with self._lock:
            if stamp != self._stamp:
                self._stamp, self._counts = stamp, _count(files)
            return self._counts


def _stamp(path: Path) -> tuple[str, int, int] | None:
    """None: it has gone meanwhile, or is a link that leads nowhere."""
    try:
        status = path.stat()
    except OSError:
        return None
    return path.name, status.st_mtime_ns, status.st_size


def _count(files: list[Path]) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for path in files:
        try:
            cases = yaml.load(path.read_text(encoding="utf-8"), Loader=Loader)  # noqa: S506 - a safe one
        except (OSError, ValueError, yaml.YAMLError):
            continue
        for case in cases if isinstance(cases, list) else ():
            counts.update(set(_rules_in(case)))
    return dict(counts)


def _rules_in(value: Any) -> Iterator[str]:
    """Every text under a key `rule`, however deep."""
    if isinstance(value, dict):
        for key, inner in value.items():
            if key == "rule" and isinstance(inner, str):
                yield inner
            else:
                yield from _rules_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _rules_in(inner)
