"""One child process of `healer up` that is started again when it dies."""

import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
#: A child that lived this long starts again at once; one that dies sooner waits longer each time.
STEADY_S = 10.0
LOG_LIMIT_BYTES = 20_000_000


class Child:
    """`name` is also that of its log file. Times are of time.monotonic()."""

    def __init__(self, name: str, arguments: Sequence[str], log_folder: Path) -> None:
        self.name = name
        self.arguments = list(arguments)
        self.log = log_folder / f"{name}.log"
        self.process: subprocess.Popen[Any] | None = None
        self._delay_s = FIRST_DELAY_S
        self._born = self._due = 0.0

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def start(self, environ: Mapping[str, str], popen: Mapping[str, Any]) -> None:
        options: dict[str, Any] = dict(popen)
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.arguments,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(environ),
                **options,
            )
        self._born = time.monotonic()

    def ended(self) -> str | None:
        """How it ended, if it has since the last call: `signal 9`, `exit status 1: last line of its log`."""
        if self.process is None or self.process.poll() is None:
            return None
        status, self.process = self.process.returncode, None
        if time.monotonic() - self._born > STEADY_S:
            self._delay_s = FIRST_DELAY_S
        self._due = time.monotonic() + self._delay_s
        self._delay_s = min(self._delay_s * 2, LONGEST_DELAY_S)
        if status < 0:
            return f"signal {-status}"
        return f"exit status {status}: {last_line(self.log)}"

    def due(self) -> bool:
        """Whether it is time to start it again."""
        return self.process is None and time.monotonic() >= self._due

    def send(self, number: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)

    def wait_until(self, deadline: float) -> None:
        """Waits for its end; SIGKILL at the deadline."""
        if self.process is None:
            return
        try:
            self.process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None


def last_line(log: Path) -> str:
    """The last line of a log that is not blank, cut to 300 characters."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 4000))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:300] if lines else f"nothing in {log}"


def rotate(log_folder: Path) -> None:
    """Keeps each log below its limit, with one older part. Writers append, so truncating is safe for them."""
    for log in log_folder.glob("*.log"):
        if log.stat().st_size > LOG_LIMIT_BYTES:
            older = log.with_suffix(".log.1")
            older.write_bytes(log.read_bytes())
            older.chmod(0o600)
            os.truncate(log, 0)
