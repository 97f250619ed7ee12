"""The disk is full: the tree goes on, and writes again once there is room."""

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest
import structlog

from healer.bootstrap import log_as_json
from healer.embedded import running
from healer.embedded.guardian import Guardian
from healer.embedded.tree import LOG_LIMIT_BYTES, Calls, Tree, rotate
from healer.processes.scheduler import Duty, run_duties
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


@pytest.fixture
def unwritable_log(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = structlog.get_config()
    with suppress(OSError), Path("/dev/full").open("w") as full:  # closing it fails too
        monkeypatch.setattr(sys, "stderr", full)
        log_as_json()
        yield
    structlog.configure(**before)


@pytest.mark.usefixtures("unwritable_log")
def test_a_duty_that_fails_goes_on_though_that_cannot_be_logged() -> None:
    stopped, tries = threading.Event(), list[int]()

    def fail() -> None:
        tries.append(1)
        if len(tries) == 3:
            stopped.set()
        raise RuntimeError("the database is away")

    threading.Timer(10, stopped.set).start()
    run_duties([Duty("deliver", 0.01, fail)], stopped)
    assert len(tries) == 3


def test_the_guardian_ends_all_though_that_cannot_be_logged() -> None:
    guardian = Guardian(Path("/dev/full"))
    part = subprocess.Popen(["sleep", "60"], **guardian.popen)
    try:
        os.close(guardian.pipe)  # as healer up does when it is killed
        guardian.process.wait(20)
        assert part.wait(5) < 0
    finally:
        part.kill()
        part.wait()
