"""Checkpoint events, with a checksum that a thread of its own makes.

The checksum of a file is its SHA-256. That of a folder is the SHA-256 of the lines that `sha256sum` prints of
its files, sorted by path in bytes:
`cd DIR && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | sha256sum`.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import deque
from typing import Any, Iterable, Union

from healer_steps._fork import after_fork, take_no_signals
from healer_steps._post import taken, utc
from healer_steps._sender import Sender

#: The most that is summed: a larger checkpoint is reported without a checksum.
FILES, BYTES, SECONDS = 10_000, 1 << 40, 3600.0
#: Checkpoints that wait while one is summed; further ones are reported without a checksum.
WAITING = 8
_CHUNK = 4 << 20

Folders = Union[str, "os.PathLike[str]", Iterable[Union[str, "os.PathLike[str]"]]]


class TooMuch(Exception):
    """More files, bytes or time than a checksum may take; or the end of the program."""


class Checkpoints:
    """Reports checkpoints through `sender`."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._reset()
        after_fork(self)

    def _reset(self) -> None:
        #: The first one is being summed, and stays until it is reported.
        self._waiting: deque[tuple[str, dict[str, Any]]] = deque()
        self._lock = threading.RLock()  # a signal's handler may save, while the program does
        self._thread: threading.Thread | None = None
        self._starting = False
        self.closing = False

    def record(self, path: str, step: int, durable: bool, checksum: bool) -> None:
        """Absolute paths: who reads them is elsewhere."""
        path = os.path.abspath(path)
        event = {"step": step, "path": path, "durable": durable, "time": utc(time.time())}
        with self._lock:
            if checksum and not self.closing and len(self._waiting) <= WAITING:
                self._waiting.append((path, event))
                self._start()
                return
        self._sender.put_checkpoint(event)

    def _start(self) -> None:
        if self._starting:  # this is a signal's handler, that came in the midst of it
            return
        self._starting = True
        try:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="healer-checksum", daemon=True)
                self._thread.start()
        except (RuntimeError, MemoryError) as error:
            self._thread = None
            self._sender.say("checksum", f"checkpoints have no checksum: {error!r}")
        finally:
            self._starting = False
        if self._thread is None:
            self._record_without()

    def close(self, timeout_s: float) -> None:
        """What is not summed after half of it is reported without a checksum."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(timeout_s / 2)
            self.closing = True
            thread.join(timeout_s / 4)
        self.closing = True
        self._record_without()

    def _record_without(self) -> None:
        with self._lock:
            left = taken(self._waiting, len(self._waiting))
        for _, event in left:
            self._sender.put_checkpoint(event)

    def _run(self) -> None:
        take_no_signals()
        while True:
            with self._lock:
                if not self._waiting:
                    self._thread = None
                    return
                one = self._waiting[0]
            path, event = one
            try:
                event = dict(event, sha256=checksum_of(path, self))
            except Exception as error:  # OSError, TooMuch; whatever it is, the others are still summed
                self._sender.say("checksum", f"{path} has no checksum: {error}")
            with self._lock:
                is_recorded = not self._waiting or self._waiting[0] is not one  # by `close`, without
                if not is_recorded:
                    self._waiting.popleft()
            if not is_recorded:
                self._sender.put_checkpoint(event)


def folders(paths: Folders) -> tuple[str, ...]:
    """One folder, or several."""
    return tuple(
        os.fspath(one) for one in ([paths] if isinstance(paths, (str, os.PathLike)) else paths or ())
    )


def lies_under(path: str, under: Folders) -> bool:
    """`path` lies in one of these folders, links followed."""
    whole = os.path.realpath(path)
    places = [os.path.realpath(one) for one in folders(under)]
    return any(whole.startswith(os.path.join(place, "")) for place in places)


def checksum_of(path: str, owner: Checkpoints | None = None) -> str:
    """Raises OSError, TooMuch."""
    until, left = time.monotonic() + SECONDS, [BYTES]

    def of_file(name: str) -> str:
        digest = hashlib.sha256()
        with open(name, "rb", buffering=0) as file:
            while True:
                chunk = file.read(_CHUNK)
                if not chunk:
                    return digest.hexdigest()
                digest.update(chunk)  # lets other threads run
                left[0] -= len(chunk)
                if left[0] < 0 or time.monotonic() > until:
                    raise TooMuch("more than %d bytes or %d s" % (BYTES, SECONDS))
                if owner is not None and owner.closing:
                    raise TooMuch("the program ends")

    if not os.path.isdir(path):
        return of_file(path)
    whole = hashlib.sha256()
    for name in sorted(_files(path)):
        whole.update(b"%s  ./%s\n" % (of_file(os.path.join(path, os.fsdecode(name))).encode(), name))
    return whole.hexdigest()


def _files(folder: str) -> list[bytes]:
    found = []
    for where, _, names in os.walk(folder):
        for name in names:
            whole = os.path.join(where, name)
            if os.path.isfile(whole) and not os.path.islink(whole):
                found.append(os.fsencode(os.path.relpath(whole, folder)))
                if len(found) > FILES:
                    raise TooMuch("more than %d files" % FILES)
    return found
