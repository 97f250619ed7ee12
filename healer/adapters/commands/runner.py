"""Runs one command in a process of its own, which outlives the worker that started it.

It reads `{"folder", "key", "argv", "timeout_s"}` from standard input, answers one word, and continues in the
background. It writes the record KEY.json before the command starts and when it has ended, and holds the lock
KEY.lock while it lives. The kernel releases the lock with the process, so a record in state `running` without
a lock was interrupted. Imports only the standard library; started by `command_runs.Commands`.
"""

import contextlib
import fcntl
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

#: The end of a command's output that is kept.
OUTPUT_BYTES = 64 * 1024
#: Records kept, besides those of running commands.
KEPT = 500
_SLICE_S = 0.5
#: How long background processes of an ended command may keep its output open.
_LINGER_S = 1.0


def main() -> None:
    asked = json.loads(sys.stdin.buffer.read())
    folder, key = Path(asked["folder"]), str(asked["key"])
    lock = locked(folder / f"{key}.lock")
    if lock is None:
        _answer("running")
    if (folder / f"{key}.json").exists():
        _answer("known")
    forget(folder)
    record = {"key": key, "argv": asked["argv"], "state": "running", "began_at": time.time()}
    write(folder, key, record)
    if os.fork() != 0:
        _answer("started")
    # Detaches from the terminal, the pipes and the signals of the caller.
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    record.update(run_command(asked["argv"], asked["timeout_s"], key), ended_at=time.time())
    write(folder, key, record)
    os._exit(0)


def _answer(word: str) -> None:
    os.write(1, word.encode())
    os._exit(0)


def locked(path: Path) -> int | None:
    """The open file with its lock; None if another process holds it."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def write(folder: Path, key: str, record: dict[str, Any]) -> None:
    """Writes the record with fsync: after a power loss the command must not start a second time."""
    new = folder / f"{key}.new"
    with new.open("w", encoding="utf-8") as file:
        json.dump(record, file)
        file.flush()
        os.fsync(file.fileno())
    new.rename(folder / f"{key}.json")
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def forget(folder: Path) -> None:
    """Deletes the oldest records of ended commands."""
    records = sorted(folder.glob("*.json"), key=lambda path: path.stat().st_mtime)
    for path in records[: max(0, len(records) - KEPT)]:
        fd = locked(path.with_suffix(".lock"))
        if fd is not None:
            path.unlink(missing_ok=True)
            path.with_suffix(".lock").unlink(missing_ok=True)
            os.close(fd)


def run_command(argv: list[str], timeout_s: float, key: str) -> dict[str, Any]:
    """Runs the command and returns `{"state", "code", "output"}`. Kills its process group at the end."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HEALER_KEY": key}
    try:
        child = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=env,
            cwd="/", start_new_session=True,
        )  # fmt: skip
    except OSError as error:
        return {"state": "ended", "code": 127, "output": f"could not be started: {error}"}
    try:
        output, in_time = read(child, time.monotonic() + timeout_s)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        code = child.wait()
    text = output.decode("utf-8", "replace")
    return {"state": "ended" if in_time else "timed_out", "code": code if in_time else None, "output": text}


def read(child: subprocess.Popen[bytes], until: float) -> tuple[bytes, bool]:
    """(the end of its output, whether it ended in time)"""
    assert child.stdout is not None
    output, ended_at = bytearray(), None
    with selectors.DefaultSelector() as selector:
        selector.register(child.stdout, selectors.EVENT_READ)
        while True:
            left_s = until - time.monotonic()
            if child.poll() is not None:
                ended_at = ended_at or time.monotonic()
            if ended_at is not None and time.monotonic() - ended_at > _LINGER_S:
                return bytes(output), True
            if ended_at is None and left_s <= 0:
                return bytes(output), False
            if selector.get_map() and not selector.select(min(max(left_s, 0.05), _SLICE_S)):
                continue
            chunk = os.read(child.stdout.fileno(), 65536) if selector.get_map() else b""
            if chunk:
                output += chunk
                del output[:-OUTPUT_BYTES]
            elif child.poll() is not None:
                return bytes(output), True
            else:  # it closed its output and continues
                if selector.get_map():
                    selector.unregister(child.stdout)
                time.sleep(0.05)


if __name__ == "__main__":
    main()
