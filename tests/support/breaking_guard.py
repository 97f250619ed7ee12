"""The guardian of a Slurm that tests break: as `healer.embedded.slurm_guard`, with orders to kill and boot.

boot NAME     kill the slurmd of a node and start it as after a boot of the machine; `ok`
kill NAME     SIGKILL to that daemon; for a node also to its jobs; `ok`, or `none` if it was not running
"""

import contextlib
import os
import sys
import time
from pathlib import Path

from healer.embedded import slurm_guard
from healer.embedded.slurm_guard import descendants, kill_process


class BreakingGuardian(slurm_guard.Guardian):
    def kill(self, name: str) -> bool:
        pid = self.pids.get(name)
        if pid is None:
            return False
        kill_process(pid)
        if name not in {"munged", "slurmctld"}:
            self._kill_jobs(name)
        deadline = time.monotonic() + 5
        while self.pids.get(name) == pid and time.monotonic() < deadline:
            self.reap()
            time.sleep(0.01)
        return True

    def _kill_jobs(self, node: str) -> None:
        """Kills the processes of the node's jobs, slurmstepd first, so that it does not report their end.

        slurmstepd has no readable environment; it is the parent of processes with the node's name there."""
        below = descendants(os.getpid())
        jobs = [pid for pid in below if _runs_for(pid, node)]
        for pid in [parent for parent in map(_parent, jobs) if parent in below] + jobs:
            kill_process(pid)

    def obey(self, order: str) -> str:
        verb, _, name = order.partition(" ")
        if verb == "kill":
            return "ok" if self.kill(name) else "none"
        if verb == "boot":
            self.kill(name)
            self.start(name, "-b")
            return "ok"
        return super().obey(order)


def _runs_for(pid: int, node: str) -> bool:
    """Whether the process belongs to a job on this node, by its environment."""
    with contextlib.suppress(OSError):
        environment = Path("/proc", str(pid), "environ").read_bytes().split(b"\0")
        return f"SLURMD_NODENAME={node}".encode() in environment
    return False


def _parent(pid: int) -> int:
    with contextlib.suppress(OSError, ValueError, IndexError):
        return int(Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[1])
    return 0


if __name__ == "__main__":
    sys.exit(slurm_guard.main(BreakingGuardian(Path(sys.argv[1]))))
