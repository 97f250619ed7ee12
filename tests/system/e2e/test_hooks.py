"""Slurm's own hooks on a real Slurm: a fault that they see drains the node as ours, and healer's absence
never does."""

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from healer.embedded import embedded_slurm as embedded
from healer.embedded.embedded_slurm import RealSlurm
from healer.model import SlurmSnapshot
from healer.model.gate import is_held_after_launch
from tests.support.hooks import LOST, MOUNTS, unused_url
from tests.support.processes import descendants
from tests.support.site import Site, boot_of, keep_logs
from tests.support.up import UP
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm
NODES = 4


class Hooked(Site):
    """A site whose Slurm has healer's hooks; each node has files of its own that its probes read."""

    def __init__(self, cluster: RealSlurm, folder: Path) -> None:
        super().__init__(cluster, folder / "up", program=UP, HEALER_GUARD_MIN_SERVICE_SHARE="0.2")
        self.folder, self.conf = folder, folder / "hook.conf"
        self._lines = 0

    def install(self) -> None:
        """As a person does it, with settings for many nodes on one machine."""
        for node in self.slurm.node_names:
            root = self.folder / "nodes" / node
            for part in ("dev", "proc/sys/kernel/random", "tmp", "scratch"):
                (root / part).mkdir(parents=True)
            (root / "dev/kmsg").touch()
            (root / "proc/mounts").write_text(MOUNTS)
            (root / "proc/sys/kernel/random/boot_id").write_text(boot_of(node) + "\n")
        (self.folder / "spool").mkdir()
        (self.folder / "token").write_text(self.token("signals"))
        self.point_hooks_at(self.stack.url)
        self.stack.run(
            *(
                "hook",
                "install",
                "--slurm-conf",
                str(self.slurm.slurm_conf),
                "--to",
                str(self.folder / "lib"),
            ),
            *("--conf", str(self.conf), "--yes"),
        )
        self.slurm.run("scontrol", "reconfigure")

    def point_hooks_at(self, url: str) -> None:
        """Where the hooks find healer from now on."""
        settings = {
            "HEALER_URL": url,
            "HEALER_TOKEN_FILE": str(self.folder / "token"),
            "HEALER_HOOK_SPOOL": str(self.folder / "spool" / "%n"),
            "HEALER_HOOK_ROOT": str(self.folder / "nodes" / "%n"),
            "HEALER_HOOK_JITTER_S": "0",
        }
        text = "".join(f"{key}={value}\n" for key, value in settings.items())
        fresh = self.conf.with_suffix(".new")
        fresh.write_text(text)
        fresh.replace(self.conf)

    def without_health_checks(self) -> None:
        """They would be the first to see a fault."""
        text = self.slurm.slurm_conf.read_text()
        self.slurm.slurm_conf.write_text(text.replace("HealthCheckInterval=3\n", "HealthCheckInterval=0\n"))
        self.slurm.run("scontrol", "reconfigure")

    def plant(self, node: str) -> None:
        """The node's kernel says that a GPU is gone; its log is not shipped."""
        self._lines += 1
        micros = int(time.clock_gettime(time.CLOCK_MONOTONIC) * 1e6)
        with (self.folder / "nodes" / node / "dev/kmsg").open("a") as kmsg:
            kmsg.write(f"3,{self._lines},{micros},-;{LOST}\n")

    def spooled(self, node: str) -> list[Path]:
        return sorted((self.folder / "spool" / node).glob("*.json"))

    def heard(self, hook: str, node: str) -> list[Any]:
        """What this hook reported on the node: (job, time of the report) in the order of arrival."""
        return self.sql(
            "SELECT doc #>> '{component,job}', (doc ->> 'event_at')::timestamptz FROM inbox "
            "WHERE kind = 'hook' AND node = %s AND doc #>> '{data,hook}' = %s ORDER BY id",
            node,
            hook,
        )

    def short_job(self, node: str, script: str = "exit 0") -> str:
        """A job that ran on the node and is over, its epilog too."""
        job = sbatch(self.slurm, node, script)
        self.jobs.append(job)
        wait_until(lambda: self.is_over(job), 25, what=f"job {job} is over", every_s=0.1)
        return job

    def is_pictured(self, node: str, job: str) -> bool:
        """Whether healer's own picture shows what Slurm did after a prolog that failed."""
        picture = msgspec.msgpack.decode(self.sql("SELECT body FROM snapshots")[0][0], type=SlurmSnapshot)
        shown = picture.jobs.get(job)
        drained = picture.nodes[node].reason == "Prolog error"
        return drained and shown is not None and is_held_after_launch(shown)

    def is_over(self, job: str) -> bool:
        shown = self.job(job)
        return shown.state == "COMPLETED" and "COMPLETING" not in shown.flags


def sbatch(cluster: RealSlurm, node: str, script: str) -> str:
    command = [
        "sbatch",
        "--parsable",
        "--chdir=/",
        "--output=/dev/null",
        "--gres=gpu:8",
        f"--nodelist={node}",
    ]
    return cluster.run(*command, "--wrap", script).strip()


@pytest.fixture(scope="module")
def hooked() -> Iterator[Hooked]:
    why_not = embedded.available()
    if why_not:
        pytest.fail(f"These tests need a real Slurm. {why_not}", pytrace=False)
    folder = Path(tempfile.mkdtemp(prefix="hh-"))
    folder.chmod(0o711)
    settings = {"PrologEpilogTimeout": "20", "HealthCheckInterval": "3", "ReturnToService": "1"}
    cluster = RealSlurm(folder / "s", NODES, cred_expire_s=5, conf=settings)
    try:
        with cluster:
            (folder / "up").mkdir()
            site = Hooked(cluster, folder)
            try:
                with site:
                    site.install()
                    yield site
            except BaseException:
                keep_logs(site)
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def assert_drained_as_ours(site: Hooked, node: str) -> None:
    wait_until(lambda: site.drained_by_us(node), 15, what=f"{node} is drained as ours", every_s=0.1)
    assert [one["rule"] for one in site.incidents(node)] == ["gpu-lost"], "it is not taken for Slurm's drain"


@contextmanager
def stopped(*pids: int) -> Iterator[None]:
    """These processes stand still."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def test_every_hook_of_every_node_reports(hooked: Hooked) -> None:
    job = hooked.short_job("gpu0002")
    assert [job_seen for job_seen, _ in hooked.heard("prolog", "gpu0002")] == [job]
    wait_until(lambda: hooked.heard("epilog", "gpu0002"), what="the epilog has reported")
    wait_until(
        lambda: all(hooked.heard("health-check", node) for node in hooked.slurm.node_names),
        15,
        what="all health checks have reported",
    )
    assert hooked.sql("SELECT count(*) FROM permits") == [(0,)]


def test_healer_away_fails_no_hook_and_loses_no_report(hooked: Hooked) -> None:
    node = "gpu0003"
    hooked.point_hooks_at(unused_url())
    jobs = [hooked.short_job(node), hooked.short_job(node)]
    assert hooked.node(node).in_service
    assert len(hooked.spooled(node)) >= 4
    assert hooked.heard("prolog", node) == []
    hooked.point_hooks_at(hooked.stack.url)
    jobs.append(hooked.short_job(node))
    wait_until(lambda: not hooked.spooled(node), 15, what="the spool is sent", every_s=0.1)
    heard = dict(hooked.heard("prolog", node))
    assert sorted(heard) == jobs
    late = [job for job in heard if job in jobs[:2]]
    assert late == jobs[:2] and heard[late[0]] < heard[late[1]] < heard[jobs[2]], "in order, times of then"


def test_a_healer_that_hangs_fails_no_hook(hooked: Hooked) -> None:
    node, api = "gpu0004", hooked.stack.pids()["api"]
    with stopped(api):
        hooked.short_job(node)
        assert hooked.node(node).in_service
        assert hooked.spooled(node)


def test_a_fault_that_only_the_epilog_sees_drains_the_node_as_ours(hooked: Hooked) -> None:
    hooked.without_health_checks()
    node = "gpu0002"
    job = sbatch(hooked.slurm, node, "sleep 2")
    hooked.jobs.append(job)
    wait_until(lambda: job in dict(hooked.heard("prolog", node)), 20, what="its prolog is over")
    hooked.plant(node)
    assert_drained_as_ours(hooked, node)
    assert job in dict(hooked.heard("epilog", node))
    hooked.audit_holds()


def is_granted(hooked: Hooked, node: str) -> bool:
    """As the worker leaves it that stops between its grant and the call to Slurm."""
    made = hooked.sql(
        "INSERT INTO slots (cluster, node, incident, run, granted_at, unusable) "
        "SELECT cluster, node, doc ->> 'incident', id, now(), true FROM runs "
        "WHERE node = %s AND state = 'running' AND NOT shadow ON CONFLICT DO NOTHING RETURNING node",
        node,
    )
    return bool(made)


def test_a_refused_prologs_drain_becomes_ours_and_its_job_is_released_and_runs_elsewhere(
    hooked: Hooked,
) -> None:
    hooked.without_health_checks()
    node = "gpu0001"
    hooked.plant(node)  # nothing but the next prolog can see it
    # The worker stops right after its grant: Slurm drains first, and holds the job.
    with stopped(*descendants(hooked.stack.pids()["worker"])):
        job = hooked.slurm.run(
            *("sbatch", "--parsable", "--chdir=/", "--output=/dev/null", "--gres=gpu:8", "--requeue"),
            *("--exclude=gpu0002", "--wrap", "exec sleep 600"),
        ).strip()
        hooked.jobs.append(job)
        wait_until(lambda: is_granted(hooked, node), 20, what="a run holds the node", every_s=0.05)
        wait_until(
            lambda: hooked.node(node).reason == "Prolog error", 20, what="Slurm drains it", every_s=0.1
        )
        assert hooked.sql("SELECT doc ->> 'job' FROM permits WHERE node = %s AND hook = 'prolog'", node) == [
            (job,)
        ]
        wait_until(lambda: is_held_after_launch(hooked.job(job)), 20, what="Slurm holds the job", every_s=0.1)
        wait_until(lambda: hooked.is_pictured(node, job), 15, what="healer sees both")
    assert_drained_as_ours(hooked, node)
    wait_until(lambda: hooked.job(job).state == "RUNNING", 40, what="the job runs again", every_s=0.2)
    shown = hooked.job(job)
    assert node not in shown.nodes and shown.restarts == 1 and not shown.held_by
    hooked.audit_holds()
