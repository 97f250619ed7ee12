"""One `healer up` per data directory, with its addresses in a private file there.

By this file commands such as `healer token create` find the embedded database without a setting.
"""

import fcntl
import os
import ssl
import time
from pathlib import Path

import msgspec

from healer.embedded.user import EmbeddedError
from healer.text import say

#: A killed healer's guardian ends everything within 9 s and holds the lock until then.
WAIT_S = 12.0


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """`pid` is the process of `healer up`; `parts` and `servers` (postgres, redis) are its children."""

    pid: int
    url: str
    database_url: str
    broker_url: str
    parts: dict[str, int] = {}
    servers: dict[str, int] = {}


def unchecked_tls() -> ssl.SSLContext:
    """For questions without a secret to a server of our own, at an address its certificate may not name."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def note(data_dir: Path, running: Running) -> None:
    """Writes the file atomically."""
    fresh = data_dir / "running.json.new"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(running))
    fresh.rename(data_dir / "running.json")


def forget(data_dir: Path) -> None:
    (data_dir / "running.json").unlink(missing_ok=True)


def find(data_dir: Path) -> Running:
    """The healer that runs on this data directory. Raises EmbeddedError if none does or it is unreadable."""
    try:
        running = msgspec.json.decode((data_dir / "running.json").read_bytes(), type=Running)
    except (FileNotFoundError, ValueError):  # a loss of power leaves an empty file
        raise EmbeddedError(say("embedded.no_runs_start_up", data_dir=str(data_dir))) from None
    except PermissionError:
        raise EmbeddedError(say("embedded.belongs_another_user_run", data_dir=str(data_dir))) from None
    try:
        os.kill(running.pid, 0)
    except ProcessLookupError:
        raise EmbeddedError(say("embedded.has_ended_start_up", data_dir=str(data_dir))) from None
    except PermissionError:
        pass  # it runs as another user
    return running


def lock(data_dir: Path) -> int:
    """Takes the data directory's lock and returns the descriptor that holds it. Raises EmbeddedError.

    The lock ends with the last process that has the descriptor: this one, or its guardian.
    """
    descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            if _lives(holder) or time.monotonic() > deadline:
                os.close(descriptor)
                raise EmbeddedError(
                    say(
                        "embedded.another_process_runs_stop",
                        holder=holder or say("embedded.unknown"),
                        data_dir=str(data_dir),
                    )
                ) from None
            time.sleep(0.1)
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor


def _lives(holder: str) -> bool:
    if not holder.isdecimal():
        return False
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # A zombie no longer holds the lock.
        return Path(f"/proc/{holder}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True
