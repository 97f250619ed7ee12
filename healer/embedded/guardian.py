"""The guardian: a small process that stops everything when `healer up` is killed.

A parent-death signal is not enough: the kernel clears it when a child changes its user, as PostgreSQL does.
The guardian holds the read end of a pipe whose only write end is in `healer up`. All children are in its
process group, so that it finds even those that were forked last. It takes at most 9 s.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from healer.embedded.stopping import stop_postgres

PARTS_S = 3.0
REDIS_S = 1.0
LAST_S = 1.0


class Guardian:
    """The parent's side. Create it before any child, and start children with `popen`."""

    def __init__(self, log: Path, *, hold: Sequence[int] = ()) -> None:
        """`hold`: descriptors that it keeps open, such as the data directory's lock."""
        self._log = log
        self._hold = tuple(hold)
        self._roles: dict[str, int] = {}
        self._start(group=0)
        #: Arguments for subprocess that put a child into the guardian's group. Servers share this mapping.
        self.popen: dict[str, Any] = {"process_group": self.process.pid, "start_new_session": False}

    @property
    def group(self) -> int:
        return self.popen["process_group"]

    def add(self, role: str, pid: int) -> None:
        """Registers a server that is stopped in its own way: `postgres` or `redis`."""
        self._roles[role] = pid
        self._send(f"{role} {pid}")

    @property
    def pipe(self) -> int:
        """The write end. Children must close it, or the guardian would not notice our end."""
        return self._pipe

    def revive(self) -> bool:
        """Starts a new guardian for the same group if this one has died, and returns True then. Raises
        OSError if no process can be started; the next call tries again."""
        if self.process.poll() is None:
            return False
        before = self._pipe
        try:
            self._start(group=self.group)
        except PermissionError:  # the group no longer exists: all of it was killed
            self._start(group=0)
            self.popen["process_group"] = self.process.pid
        os.close(before)
        for role, pid in self._roles.items():
            self._send(f"{role} {pid}")
        return True

    def release(self) -> None:
        """Ends the guardian, and processes that the stopped children left behind."""
        self._send("done 0")
        os.close(self._pipe)
        self.process.wait()

    def _start(self, group: int) -> None:
        reading, writing = os.pipe()
        try:
            with self._log.open("ab") as log:
                self.process = subprocess.Popen(
                    [sys.executable, "-m", "healer.embedded.guardian", str(reading)],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=(reading, *self._hold),
                    process_group=group,
                )
        except OSError:
            os.close(writing)
            raise
        finally:
            os.close(reading)
        self._pipe = writing

    def _send(self, line: str) -> None:
        try:
            os.write(self._pipe, f"{line}\n".encode())
        except BrokenPipeError:
            return  # it has died: `revive` starts another one and sends everything again


# --- the guardian's side ---------------------------------------------------------------------------------


def watch(reading: int) -> None:
    """Returns when everything in our group has ended, after the parent has sent `done` or died."""
    roles: dict[str, int] = {}
    with os.fdopen(reading) as pipe:
        for line in pipe:
            role, _, pid = line.strip().partition(" ")
            if role == "done":
                _end(members, signal.SIGKILL, LAST_S)
                return
            roles[role] = int(pid)
    _say(f"healer up was killed; ending {len(members())} processes")
    end_all(roles)


def end_all(roles: dict[str, int]) -> None:
    """Stops healer's parts, then Redis, then PostgreSQL, like a clean stop; finally SIGKILL for the rest."""
    servers = set(roles.values())
    _end(lambda: members() - servers, signal.SIGTERM, PARTS_S)
    _end(lambda: members() - servers, signal.SIGKILL, LAST_S)
    _end(lambda: members() & {roles.get("redis", 0)}, signal.SIGTERM, REDIS_S)
    postgres = roles.get("postgres", 0)
    if postgres in members():
        stop_postgres(
            lambda number: os.kill(postgres, number), lambda s: _gone({postgres}, s), fast_s=2.0, last_s=1.0
        )
    _end(members, signal.SIGKILL, LAST_S)
    _say(f"ended; {len(members())} left")


def members() -> set[int]:
    """The other living processes of our process group; empty without /proc."""
    group, found = os.getpgrp(), set[int]()
    for entry in Path("/proc").glob("[0-9]*"):  # glob would raise for a `stat` that disappears meanwhile
        try:
            # The name in parentheses may contain anything; after it: state, parent, process group.
            state, _, its_group = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(its_group) == group and state not in "ZX":
            found.add(int(entry.name))
    return found - {os.getpid()}


def _end(whom: Callable[[], set[int]], number: signal.Signals, patience_s: float) -> None:
    for pid in whom():
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue
    deadline = time.monotonic() + patience_s
    while whom() and time.monotonic() < deadline:
        time.sleep(0.05)


def _gone(pids: set[int], patience_s: float) -> bool:
    deadline = time.monotonic() + patience_s
    while members() & pids:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _say(text: str) -> None:
    with suppress(OSError):  # a full disk must not keep it from its work
        print(f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {text}", flush=True)


def main() -> None:
    from setproctitle import setproctitle

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    setproctitle("healer guardian")
    watch(int(sys.argv[1]))


if __name__ == "__main__":
    main()
