"""`make test-fast`: the unit tests that need no server, no process and no seconds. A pytest plugin.

It leaves out what is marked `heavy` and what uses a database, and holds the rest to it: a test that opens a
connection or starts a process fails here.
"""

import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

#: Audit events of Python (https://docs.python.org/3/library/audit_events.html) that a pure test never raises.
_IMPURE = frozenset(
    (
        "socket.bind",
        "socket.connect",
        "subprocess.Popen",
        "os.fork",
        "os.forkpty",
        "os.posix_spawn",
        "os.system",
    )
)
_running = False


def _refuse(event: str, _: tuple[Any, ...]) -> None:
    if _running and event in _IMPURE:
        raise RuntimeError(f"{event} in a test of `make test-fast`: mark its file `pytest.mark.heavy`")


def pytest_configure() -> None:
    sys.addaudithook(_refuse)


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """A file that is heavy as a whole is not even imported: each of the processes would."""
    heavy = (
        collection_path.suffix == ".py"
        and "\npytestmark = pytest.mark.heavy\n" in collection_path.read_text("utf-8")
    )
    return True if heavy else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def is_pure(item: pytest.Item) -> bool:
        fixtures = item.fixturenames if isinstance(item, pytest.Function) else ()
        return item.get_closest_marker("heavy") is None and "postgres" not in fixtures

    left_out = [item for item in items if not is_pure(item)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if is_pure(item)]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, Any, Any]:
    global _running  # noqa: PLW0603 - a hook of the interpreter has no other place to look
    _running = True
    try:
        return (yield)
    finally:
        _running = False
