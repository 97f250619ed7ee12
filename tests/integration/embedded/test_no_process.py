"""No process can be started, or a whole group was killed: what runs goes on, and it is tried again."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from healer.embedded.guardian import Guardian
from healer.embedded.tree import Calls, Child, Tree
from healer.settings import load
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy


def no_process(*_: object, **__: object) -> NoReturn:
    raise BlockingIOError(11, "Resource temporarily unavailable")


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.fixture
def guardian(tmp_path: Path) -> Iterator[Guardian]:
    one = Guardian(tmp_path / "guardian.log")
    yield one
    one.release()


def kill_all(guardian: Guardian) -> None:
    os.killpg(guardian.group, signal.SIGKILL)
    wait_until(
        lambda: os.waitid(os.P_PID, guardian.process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    )


def test_a_fork_that_fails_leaves_no_descriptor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", no_process)
    child, before = Child("api", lambda: None, tmp_path), descriptors()
    for _ in range(3):
        with pytest.raises(BlockingIOError):
            child.start(os.environ, group=0, not_its=())
    assert descriptors() == before
    assert child.pid is None


def test_a_start_without_a_descriptor_left_does_not_make_deaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was blocked for the fork is heard again: a tree that is deaf ends by `kill -9` alone."""
    monkeypatch.setattr("healer.embedded.tree._descriptors", no_process)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        with pytest.raises(BlockingIOError):
            Child("api", lambda: None, tmp_path).start(os.environ, group=0, not_its=())
        assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_a_guardian_whose_whole_group_was_killed_has_another_group(guardian: Guardian) -> None:
    before, kept = guardian.group, guardian.popen
    kill_all(guardian)
    assert guardian.revive()
    assert guardian.group == guardian.process.pid != before
    assert kept["process_group"] == guardian.group, "servers that are started again join it"
    assert not guardian.revive()


def test_a_guardian_that_cannot_be_started_is_tried_again(
    guardian: Guardian, monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_all(guardian)
    before = descriptors()
    with monkeypatch.context() as patched:
        patched.setattr(subprocess, "Popen", no_process)
        for _ in range(3):
            with pytest.raises(BlockingIOError):
                guardian.revive()
    assert descriptors() == before
    assert guardian.revive()


class _Server:
    """PostgreSQL, of which no process can be started at first."""

    def __init__(self) -> None:
        self.process: Any = None
        self.tries = 0

    def start(self) -> None:
        self.tries += 1
        if self.tries == 1:
            no_process()


def test_a_server_that_cannot_be_started_ends_nothing(tmp_path: Path) -> None:
    said: list[str] = []
    tree = Tree(load({}, data_dir=str(tmp_path / "data")), {}, (), Calls(say=said.append))
    server = _Server()
    tree.postgres = server  # type: ignore[assignment]
    for _ in range(2):
        assert tree._restart_servers()
    assert server.tries == 2
    assert said[:2] == [
        "_Server exited; restarting it",
        "it cannot be started: Resource temporarily unavailable. Trying again.",
    ]
