"""One child process of `healer up` that is started again when it dies.

It is forked and starts no interpreter of its own: what `healer up` has imported it need not import again,
which is nearly all of a start, and it shares that memory with its siblings.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing.context import ForkProcess
from pathlib import Path

from setproctitle import setproctitle

FIRST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
#: A child that lived this long starts again at once; one that dies sooner waits longer each time.
STEADY_S = 10.0
LOG_LIMIT_BYTES = 20_000_000
_HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)


class Child:
    """It runs `run`. `name` is also that of its log file. Times are of time.monotonic()."""

    def __init__(self, name: str, run: Callable[[], None], log_folder: Path) -> None:
        self.name = name
        self.log = log_folder / f"{name}.log"
        self.process: ForkProcess | None = None
        self._run = run
        self._delay_s = FIRST_DELAY_S
        self._born = self._due = 0.0

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    def start(self, environ: Mapping[str, str], *, group: int, not_its: Sequence[int]) -> None:
        """`group`: the process group that it joins. `not_its`: descriptors of the parent's that it closes."""
        process = multiprocessing.get_context("fork").Process(
            target=self._become, args=(environ, group, not_its), name=self.name
        )
        ours = _descriptors()
        # Until the child has handlers of its own a signal to it would only reach its copy of ours.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED)
        try:
            process.start()
        except OSError:
            # multiprocessing leaves the pipes of a fork that failed open: soon none would be left.
            for descriptor in _descriptors() - ours:
                os.close(int(descriptor.name))
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self.process = process
        self._born = time.monotonic()

    def _become(self, environ: Mapping[str, str], group: int, not_its: Sequence[int]) -> None:
        """In the child: leaves behind what is the parent's, and runs."""
        setproctitle(f"healer {self.name}")
        os.setpgid(0, group)
        signal.set_wakeup_fd(-1)
        for number in _HANDLED:
            if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` asked
                signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED)
        for descriptor in not_its:
            os.close(descriptor)
        with Path(os.devnull).open("rb") as nothing, self.log.open("ab") as log:
            # Who read from a terminal behind our back would stop the whole group.
            os.dup2(nothing.fileno(), 0)
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        os.environ.clear()
        os.environ.update(environ)
        self._run()

    def ended(self) -> str | None:
        """How it ended, if it has since the last call: `signal 9`, `exit status 1: last line of its log`."""
        if self.process is None or (status := self.process.exitcode) is None:
            return None
        self.process = None
        if time.monotonic() - self._born > STEADY_S:
            self._delay_s = FIRST_DELAY_S
        self.later()
        if status < 0:
            return f"signal {-status}"
        return f"exit status {status}: {last_line(self.log)}"

    def later(self) -> None:
        """It is started again after a while, longer each time."""
        self._due = time.monotonic() + self._delay_s
        self._delay_s = min(self._delay_s * 2, LONGEST_DELAY_S)

    def due(self) -> bool:
        """Whether it is time to start it again."""
        return self.process is None and time.monotonic() >= self._due

    def send(self, number: signal.Signals) -> None:
        if self.pid is not None and self.process is not None and self.process.exitcode is None:
            os.kill(self.pid, number)

    def wait_until(self, deadline: float) -> None:
        """Waits for its end; SIGKILL at the deadline."""
        if self.process is None:
            return
        self.process.join(max(0.0, deadline - time.monotonic()))
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.process = None


def open_streams() -> None:
    """Who started us may have closed some of them (`healer up >&-`): then they lead to /dev/null. A child's
    lead to its log, and have to be there for that."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115 - it stays open


def _descriptors() -> set[Path]:
    """Those that are open, but that of the look itself. Without /proc none are known."""
    folder = Path("/proc/self/fd")
    names = list(folder.iterdir()) if folder.is_dir() else []
    return {path for path in names if path.is_symlink()}


def last_line(log: Path) -> str:
    """The last line of a log that is not blank, cut to 300 characters."""
    lines = list[str]()
    with suppress(OSError), log.open("rb") as file:
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
