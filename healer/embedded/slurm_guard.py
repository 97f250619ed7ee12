"""The guardian of an embedded Slurm: starts its daemons, and kills all of them when it ends.

Runs as its own process: `python -m healer.embedded.slurm_guard DIRECTORY`. It is the subreaper of everything
it starts, so slurmstepd and jobs, which detach from their parents, remain its descendants. It ends when its
standard input closes or its parent has died (also by SIGKILL), and kills them first.

It reads one order per line from standard input and answers each with one line:

    start NAME    start `munged`, `slurmctld` or the slurmd of a node; `ok`
    start-all     start the slurmd of every node in `DIRECTORY/nodes`; `ok`

Imports only the standard library, to start in milliseconds and to fork safely.
"""

import contextlib
import ctypes
import os
import select
import signal
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Guardian:
    """Daemons by name, in a directory prepared by `RealSlurm`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.pids: dict[str, int] = {}
        self.env = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C",
            "SLURM_CONF": str(directory / "slurm.conf"),
        }

    def command(self, name: str) -> list[str]:
        """The command that starts this daemon in the foreground."""
        run = self.directory / "run"
        if name == "munged":
            return [
                "munged", "--foreground", "--force", "--num-threads=4",
                f"--key-file={run}/munge.key", f"--socket={run}/munge.sock", f"--pid-file={run}/munged.pid",
                f"--log-file={run}/munged.log", f"--seed-file={run}/munge.seed",
            ]  # fmt: skip
        if name == "slurmctld":
            return ["slurmctld", "-D", "-i"]
        return ["slurmd", "-D", "-N", name]

    def start(self, name: str, *options: str) -> None:
        if name in self.pids:
            return
        command = [*self.command(name), *options]
        pid = os.fork()
        if pid:
            self.pids[name] = pid
            return
        try:
            os.setsid()
            # If the guardian is killed, the kernel kills the daemons.
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            null = os.open(os.devnull, os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.chdir("/")
            os.execvpe(command[0], command, self.env)  # noqa: S606
        finally:
            os._exit(127)

    def reap(self) -> None:
        """Reaps dead processes, including adopted ones."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, _ = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                self.pids = {name: running for name, running in self.pids.items() if running != pid}

    def kill_all(self) -> None:
        """Kills descendants until none is left, because daemons may fork meanwhile."""
        deadline = time.monotonic() + 8
        while time.monotonic() < deadline:
            left = descendants(os.getpid())
            if not left:
                return
            for pid in left:
                kill_process(pid)
            time.sleep(0.02)
            self.reap()

    def obey(self, order: str) -> str:
        verb, _, name = order.partition(" ")
        if verb == "start":
            self.start(name)
        elif verb == "start-all":
            for node in (self.directory / "nodes").read_text().split():
                self.start(node)
        else:
            return f"unknown order: {order}"
        return "ok"


def descendants(root: int) -> list[int]:
    """The ids of all processes below `root`, without zombies."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The command name may contain blanks and brackets, so fields count from the last bracket.
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            if fields[0] not in (b"Z", b"X"):
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    todo = [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def kill_process(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def main(guardian: Guardian) -> int:
    """Executes orders until standard input closes or the parent has died."""
    parent = os.getppid()
    _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ending = False

    def end(_signal: int, _frame: object) -> None:
        nonlocal ending
        ending = True

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    waiting = b""
    try:
        while not ending and os.getppid() == parent:
            guardian.reap()
            readable, _, _ = select.select([0], [], [], 0.5)
            if not readable:
                continue
            chunk = os.read(0, 4096)
            if not chunk:
                break
            *orders, waiting = (waiting + chunk).split(b"\n")
            for order in orders:
                os.write(1, guardian.obey(order.decode()).encode() + b"\n")
    finally:
        guardian.kill_all()
    return 0


if __name__ == "__main__":
    sys.exit(main(Guardian(Path(sys.argv[1]))))
