"""Slurm in `benchmarks/slurm_day.py`: its users with their jobs and commands, and what slurmctld counts.

The users' commands run as a Unix user of their own. So `sdiag` counts them apart from healer's, which come
from `healer` and `healer-worker`, and from those of slurmd and the nodes, which come from root.
"""

import json
import math
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

USER, GROUP = "nobody", "nogroup"
HEALER = ("healer", "healer-worker")
#: Of jobs in nodes, and how many of a hundred have each: mostly small, with a long tail.
SIZES = {1: 58, 2: 17, 4: 12, 8: 8, 16: 3, 32: 1.5, 64: 0.5}
#: Shares of jobs: those that share their node, and those that requeue themselves once.
SHARING, REQUEUING = 0.15, 0.03
#: What owners write: nothing, that healer may restart the job, that it may not.
COMMENTS = {"": 50, "healer:requeue": 35, "healer:keep": 15}
NO_REQUEUE = 0.1
#: The users look at the queue and at a node so often.
BEAT_S = 1.0
_SCRIPT = (
    '[ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && exec sleep %(rest)d; sleep %(first)d; '
    'exec scontrol requeue "$SLURM_JOB_ID"'
)


class Users:
    """Keeps `jobs` jobs in Slurm: they come at random, and each ends after an exponential time. Writes a line
    of JSON for each command and each job to `record`, and the running jobs to `running`."""

    def __init__(self, env: Mapping[str, str], folder: Path, nodes: int, jobs: int, mean_s: float) -> None:
        self._env, self._jobs, self._mean_s = dict(env), jobs, mean_s
        self._nodes = [f"gpu{number:04d}" for number in range(1, nodes + 1)]
        self._sizes = [size for size in SIZES if size <= max(1, nodes // 8)]
        self._chance = random.Random()
        self._record = (folder / "users.jsonl").open("a", buffering=1)
        self._running = folder / "running.json"
        self._next_at = 0.0

    def live(self, seed: int) -> None:
        """Until SIGTERM."""
        self._chance.seed(seed)
        for _ in range(self._jobs):
            self._submit()
        self._next_at = time.monotonic()
        while True:
            due = time.monotonic() + BEAT_S
            self._look()
            while self._next_at < time.monotonic():
                self._submit()
                self._next_at += self._chance.expovariate(self._jobs / self._mean_s)
            time.sleep(max(0.0, due - time.monotonic()))

    def _look(self) -> None:
        listed = self._run("squeue", "--noheader", "--states=RUNNING", "--format=%A|%N")
        self._run("scontrol", "show", "node", self._chance.choice(self._nodes))
        fresh = self._running.with_suffix(".new")
        fresh.write_text(json.dumps(dict(line.split("|") for line in listed.split())))
        fresh.rename(self._running)

    def _submit(self) -> None:
        chance = self._chance
        shares = chance.random() < SHARING
        size = 1 if shares else chance.choices(self._sizes, [SIZES[size] for size in self._sizes])[0]
        comment = chance.choices([*COMMENTS], [*COMMENTS.values()])[0]
        again = chance.random() > NO_REQUEUE
        lasts = max(5, round(chance.expovariate(1 / self._mean_s)))
        script = f"exec sleep {lasts}"
        if again and chance.random() < REQUEUING:
            script = _SCRIPT % {"first": max(5, lasts // 2), "rest": max(5, lasts // 2)}
        job = self._run(
            "sbatch", "--parsable", "--chdir=/", "--output=/dev/null", "--job-name=day", f"--nodes={size}",
            f"--gres=gpu:{1 if shares else 8}", "--requeue" if again else "--no-requeue",
            f"--comment={comment}", "--wrap", script,
        )  # fmt: skip
        self._note(job=job.strip(), comment=comment, requeues=script.startswith("["))

    def _run(self, *command: str) -> str:
        """A command as their user. How long it took is what users feel of slurmctld."""
        begun = time.perf_counter()
        done = subprocess.run(
            ("setpriv", f"--reuid={USER}", f"--regid={GROUP}", "--clear-groups", *command),
            env=self._env, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120,
            check=False,
        )  # fmt: skip
        took_s = time.perf_counter() - begun
        failed = done.stderr.strip()[:300] if done.returncode else ""
        self._note(at=time.time(), command=command[0], took_s=took_s, failed=failed)
        return "" if failed else done.stdout

    def _note(self, **about: Any) -> None:
        self._record.write(json.dumps(about) + "\n")


def live(env: Mapping[str, str], folder: Path, counts: tuple[int, int, float], seed: int) -> None:
    """The process of the users. `counts`: nodes, jobs, mean seconds of a job."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Users(env, folder, *counts).live(seed)


class Noted(NamedTuple):
    """What the users wrote down: (command, seconds) within a window, failures in it, and all jobs by id."""

    took: dict[str, list[float]]
    failed: list[str]
    jobs: dict[str, dict[str, Any]]


def noted(folder: Path, since: float, until: float) -> Noted:
    lines = [json.loads(line) for line in (folder / "users.jsonl").read_text().splitlines()]
    inside = [line for line in lines if since <= line.get("at", -math.inf) < until]
    took: dict[str, list[float]] = {}
    for line in inside:
        took.setdefault(line["command"], []).append(line["took_s"])
    jobs = {line["job"]: line for line in lines if line.get("job")}
    return Noted(took, [f"{line['command']}: {line['failed']}" for line in inside if line["failed"]], jobs)


# --- what slurmctld counts ---


class Rpcs(NamedTuple):
    """Requests that slurmctld has worked on, and the microseconds that they took."""

    requests: int = 0
    micros: int = 0

    def since(self, before: "Rpcs") -> "Rpcs":
        return Rpcs(self.requests - before.requests, self.micros - before.micros)


class Counted(NamedTuple):
    """Requests by type and by user, since slurmctld began."""

    types: dict[str, Rpcs]
    users: dict[str, Rpcs]

    def since(self, before: "Counted") -> "Counted":
        return Counted(*(_since(*pair) for pair in zip(self, before, strict=True)))


_RPC = re.compile(r"^\s+(\S+)\s+\(\s*\d+\)\s+count:(\d+)\s+ave_time:\d+\s+total_time:(\d+)", re.MULTILINE)
_BY_USER = "Remote Procedure Call statistics by user"


def counted(sdiag: str) -> Counted:
    """From the text of `sdiag`."""
    types, _, users = sdiag.partition(_BY_USER)
    return Counted(dict(_rpcs(types)), dict(_rpcs(users)))


def _rpcs(text: str) -> Iterator[tuple[str, Rpcs]]:
    for name, count, micros in _RPC.findall(text):
        yield name, Rpcs(int(count), int(micros))


def _since(now: dict[str, Rpcs], before: dict[str, Rpcs]) -> dict[str, Rpcs]:
    changed = {name: value.since(before.get(name, Rpcs())) for name, value in now.items()}
    return {name: value for name, value in changed.items() if value.requests}


def total(rpcs: Iterable[Rpcs]) -> Rpcs:
    found = list(rpcs)
    return Rpcs(sum(each.requests for each in found), sum(each.micros for each in found))


def ended_jobs(path: Path) -> list[dict[str, str]]:
    """What Slurm's own record (jobcomp/filetxt) says of the users' jobs that have ended."""
    lines = path.read_text().splitlines() if path.exists() else []
    records = [dict(part.split("=", 1) for part in line.split() if "=" in part) for line in lines]
    return [record for record in records if record.get("Name") == "day"]
