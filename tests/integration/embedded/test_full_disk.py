"""The disk is full: the tree goes on, and writes again once there is room."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from healer.embedded import running
from healer.embedded.tree import LOG_LIMIT_BYTES, Calls, Tree, rotate
from healer.settings import load

pytestmark = pytest.mark.heavy


def no_room(*_: object) -> NoReturn:
    raise OSError(errno.ENOSPC, "No space left on device")


def grown(folder: Path) -> Path:
    log = folder / "api.log"
    with log.open("wb") as file:
        file.truncate(LOG_LIMIT_BYTES + 1)
    return log


def test_a_log_that_cannot_be_copied_stays_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = grown(tmp_path)
    with monkeypatch.context() as full:
        full.setattr(Path, "write_bytes", no_room)
        rotate(tmp_path)
    assert log.stat().st_size > LOG_LIMIT_BYTES
    rotate(tmp_path)
    assert log.stat().st_size == 0


def test_what_runs_goes_on_though_it_cannot_be_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree = Tree(load({}, data_dir=str(tmp_path / "data")), {}, (), Calls(say=lambda _: None))
    tree._guardian = SimpleNamespace(revive=lambda: False)  # type: ignore[assignment]
    tree._ready, tree._rotated, changed = True, float("inf"), iter((True, False, False))
    monkeypatch.setattr(tree, "_restart_servers", lambda: next(changed))
    noted: list[running.Running] = []
    with monkeypatch.context() as full:
        full.setattr(running, "note", no_room)
        tree._tick()
    monkeypatch.setattr(running, "note", lambda _, one: noted.append(one))
    tree._tick()
    assert len(noted) == 1, "where its parts are now"
    tree._tick()
    assert len(noted) == 1
