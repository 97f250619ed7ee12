"""The goodput ledger beside `sacct` of a real Slurm with its accounting database.

Needs Debian's slurmdbd and mariadb-server besides Slurm. The ledger looks every 15 s, as the scheduler does.
"""

import argparse
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

from healer.adapters.slurm.cli_client import CliScheduler
from healer.embedded.embedded_slurm import RealSlurm
from healer.incidents.goodput_partition import partition
from healer.model.goodput import LifeSeen, Spent
from healer.observations.job_lives import changed_lives
from healer.ports.goodput_book import PastJob
from healer.processes.goodput_duty import FOLLOW_S, lives_of
from tests.support.accounting import accounting
from tests.support.slurm import sbatch

NODES = 6
_ZONE = {"TZ": "UTC", "SLURM_TIME_FORMAT": "%Y-%m-%dT%H:%M:%S"}
_FIELDS = "JobIDRaw,State,Submit,Eligible,Start,End,AllocTRES"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--slurmdbd", default="/usr/sbin/slurmdbd")
    parser.add_argument("--plugins", default="/usr/lib/x86_64-linux-gnu/slurm-wlm")
    parser.add_argument("--port", type=int, default=11819)
    asked = parser.parse_args()
    with accounted(asked.slurmdbd, asked.plugins, asked.port) as cluster:
        jobs = submitted(cluster)
        lives = followed(cluster, jobs)
        compare(cluster, lives)


@contextmanager
def accounted(slurmdbd: str, plugins: str, port: int) -> Iterator[RealSlurm]:
    folder = Path(tempfile.mkdtemp(prefix="gp-"))
    folder.chmod(0o755)
    try:
        with accounting(folder, slurmdbd, plugins, port) as conf:
            conf["AccountingStorageTRES"] = "gres/gpu"
            with RealSlurm(folder / "s", NODES, cred_expire_s=15, conf=conf) as cluster:
                yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def submitted(cluster: RealSlurm) -> dict[str, str]:
    """Jobs by what becomes of them. More than fits, so that some wait."""
    found = {
        sbatch(cluster, f"--nodes={nodes}", gpus=8, script=script): what
        for what, nodes, script in (
            ("completes", 2, "sleep 40"),
            ("fails", 2, "sleep 25; exit 3"),
            ("is requeued", 2, "sleep 50"),
            ("waits, then completes", 4, "sleep 33"),
            ("is cancelled", 1, "sleep 600"),
            ("is short", 1, "sleep 3"),
            ("is long", 3, "sleep 75"),
        )
    }
    found[sbatch(cluster, "--nodes=1", "--begin=now+40", gpus=4, script="sleep 12")] = "begins later"
    return found


def followed(cluster: RealSlurm, jobs: dict[str, str]) -> dict[tuple[str, int], LifeSeen]:
    scheduler = CliScheduler(str(cluster.slurm_conf))
    of = {what: job for job, what in jobs.items()}
    newest: dict[str, LifeSeen] = {}
    lives: dict[tuple[str, int], LifeSeen] = {}
    began, requeued, cancelled = time.monotonic(), False, False
    while time.monotonic() - began < 420:
        spent_s = time.monotonic() - began
        snapshot = scheduler.snapshot()
        for life in changed_lives(snapshot, newest):
            lives[life.job, life.restart] = life
            if life.restart >= newest.get(life.job, life).restart:
                newest[life.job] = life
        requeued = requeued or _do(cluster, spent_s > 20, "scontrol", "requeue", of["is requeued"])
        cancelled = cancelled or _do(cluster, spent_s > 100, "scancel", of["is cancelled"])
        ended = [newest[job].ended_at for job in jobs if job in newest]
        if len(ended) == len(jobs) and all(ended) and cancelled:
            return lives
        time.sleep(FOLLOW_S)
    raise SystemExit("the jobs did not end")


def _do(cluster: RealSlurm, due: bool, *command: str) -> bool:
    if due:
        cluster.run(*command)
    return due


def compare(cluster: RealSlurm, lives: dict[tuple[str, int], LifeSeen]) -> None:
    time.sleep(10)  # slurmctld sends its records a little later
    env = cluster.env | _ZONE
    command = ["sacct", "-D", "-a", "-X", "-P", "-n", "--starttime=now-1hour", "-o", _FIELDS]
    printed = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout
    rows: dict[str, list[list[str]]] = {}
    for line in printed.splitlines():
        cells = line.split("|")
        if "Unknown" not in cells[4:6] and "None" not in cells[4:6]:
            rows.setdefault(cells[0], []).append(cells)
    worst_held, worst_queue, count = 0.0, 0.0, 0
    for job, its in sorted(rows.items()):
        seen = [life for (name, _), life in sorted(lives.items()) if name == job and life.started_at]
        its.sort(key=lambda cells: cells[4])
        if len(seen) != len(its):
            raise SystemExit(f"job {job}: {len(its)} lives by sacct, {len(seen)} by the ledger")
        past = PastJob(lives=seen, stretches={}, saved={}, incidents=())
        slices = partition(lives_of(past), datetime.now(UTC))
        for life, cells in zip(seen, its, strict=True):
            gpus = int(cells[6].split("gres/gpu=")[1].split(",")[0])
            submit, eligible, start, end = (_time(cell) for cell in cells[2:6])
            held_s = sum(x.gpu_s for x in slices if x.restart == life.restart and x.spent is not Spent.queued)
            queue_s = sum(x.gpu_s for x in slices if x.restart == life.restart and x.spent is Spent.queued)
            queued = submit if life.restart else eligible
            off_held = held_s / gpus - (end - start) / timedelta(seconds=1)
            off_queue = queue_s / gpus - (start - queued) / timedelta(seconds=1)
            off = f"held {off_held:+.0f} s, in the queue {off_queue:+.0f} s"
            print(f"{job}/{life.restart} {cells[1]:12} {gpus} GPUs: {off}")
            worst_held, worst_queue = max(worst_held, abs(off_held)), max(worst_queue, abs(off_queue))
            count += 1
    print(f"{count} lives; largest difference: held {worst_held:.0f} s, in the queue {worst_queue:.0f} s")


def _time(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


if __name__ == "__main__":
    main()
