"""What only a real Slurm can show: arrays, hostile texts, a controller that is away, what is left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.adapters.slurm.cli import CliScheduler
from healer.embedded import slurm_guard
from healer.embedded.slurm import RealSlurm, SlurmNotStarted
from healer.ports import SchedulerUnavailable
from tests.contract.conftest import RealBench
from tests.support.slurm import sbatch
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealSlurm]:
    """Two nodes that a test may hurt."""
    with RealSlurm(tmp_path_factory.mktemp("s"), 2) as cluster:
        yield cluster


def test_pitfall_12_a_requeue_of_one_array_task_leaves_the_others_alone(real_bench: RealBench) -> None:
    base = sbatch(real_bench.cluster, "--array=0-2", "--nodelist=gpu0001", script="exec sleep 600")
    real_bench.jobs.append(base)
    scheduler = real_bench.scheduler

    def running() -> list[str]:
        return [job.id for job in scheduler.jobs_on("gpu0001") if job.state == "RUNNING"]

    wait_until(lambda: len(running()) == 3, 15, what="three tasks run")
    assert base in running(), "the last task carries the id of the whole array"
    scheduler.requeue(base)
    restarts = {job.id: job.restarts for job in scheduler.snapshot().jobs.values() if job.id in running()}
    assert set(restarts.values()) == {0}
    assert len(restarts) == 2
    task = scheduler.job(base)
    assert task is not None and task.restarts == 1
    # A task may also be named as people see it.
    other = scheduler.job(f"{base}_0")
    assert other is not None and other.id in restarts


def test_array_tasks_that_wait_together_are_no_single_job_to_requeue(real_bench: RealBench) -> None:
    base = sbatch(real_bench.cluster, "--array=0-5", "--hold")
    real_bench.jobs.append(base)
    real_bench.scheduler.requeue(base)
    real_bench.scheduler.start_now(base)
    found = real_bench.scheduler.job(base)
    assert found is not None and (found.state, found.restarts) == ("PENDING", 0)


@pytest.mark.parametrize(
    "name",
    [
        "x\n   JobState=FAILED Reason=None Dependency=(null)",
        "x\n   UserId=root(0) GroupId=root(0) MCS_label=N/A",
        "x\n     Nodes=gpu0009 CPU_IDs=0 Mem=0 GRES=gpu:h100:8(IDX:0-7)",
        "x\n\nJobId=1 JobName=y",
        "x\n",
    ],
)
def test_a_job_name_cannot_forge_what_slurm_says_of_the_job(real_bench: RealBench, name: str) -> None:
    job = real_bench.submit("gpu0001", name=name, comment="c\n   NodeList=gpu0009\n   Requeue=0 Restarts=9")
    scheduler = real_bench.scheduler

    def running() -> bool:
        found = scheduler.job(job)
        return found is not None and found.state == "RUNNING"

    wait_until(running, 15, what="the job runs")
    found = scheduler.job(job)
    assert found is not None
    assert (found.nodes, found.gpus, found.restarts, found.requeue) == (
        ("gpu0001",),
        {"gpu0001": (0,)},
        0,
        True,
    )
    assert scheduler.snapshot().jobs[job] == found
    assert [job.id for job in scheduler.jobs_on("gpu0009")] == []


def test_a_job_name_that_is_no_text_hides_nothing(real_bench: RealBench) -> None:
    done = subprocess.run(
        [b"sbatch", b"--parsable", b"--chdir=/", b"--output=/dev/null", b"--job-name=bad\xff\xfe", b"--hold",
         b"--wrap", b"true"],
        env=real_bench.cluster.env, capture_output=True, check=True, timeout=20,
    )  # fmt: skip
    job = done.stdout.decode().strip()
    real_bench.jobs.append(job)
    assert real_bench.scheduler.snapshot().jobs[job].name.startswith("bad")
    assert real_bench.scheduler.job(job) is not None


def test_a_reason_of_several_lines_by_a_person_is_read_whole(real_bench: RealBench) -> None:
    real_bench.person_drain("gpu0001", "alice: PSU\nState=IDLE\n   State=IDLE [bob@2020-01-01T00:00:00]")
    for node in (real_bench.scheduler.node("gpu0001"), real_bench.scheduler.snapshot().nodes["gpu0001"]):
        assert node.reason.split("\n")[0] == "alice: PSU"
        assert (node.reason_user, node.state) == ("root", ("IDLE", "DRAIN"))


def test_the_drain_stands_in_slurmctlds_log_with_milliseconds(real_bench: RealBench) -> None:
    real_bench.scheduler.drain("gpu0008", "healer:gpu-lost inc:0badcafe in the log")
    log = wait_until(
        lambda: [
            line
            for line in real_bench.cluster.slurmctld_log.read_text().splitlines()
            if "gpu0008 reason set to: healer:gpu-lost inc:0badcafe" in line
        ],
        5,
    )
    assert log[0][0] == "[" and log[0][20] == "." and log[0][21:24].isdigit()


def test_a_controller_that_hangs_is_unavailable_in_time(small: RealSlurm) -> None:
    scheduler = CliScheduler(str(small.slurm_conf), timeout_s=1)
    scheduler.node("gpu0001")
    pid = int((small.directory / "run/slurmctld.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        start = time.monotonic()
        with pytest.raises(SchedulerUnavailable, match="did not answer within 1 s"):
            scheduler.drain("gpu0001", "healer:x")
        assert time.monotonic() - start < 3
    finally:
        os.kill(pid, signal.SIGCONT)
    # Nobody knew whether it happened: in this case it did not, or it did; the read tells.
    wait_until(lambda: scheduler.node("gpu0001").base == "IDLE", 10)


def test_a_controller_that_is_gone_is_unavailable(small: RealSlurm) -> None:
    scheduler = CliScheduler(str(small.slurm_conf), timeout_s=3)
    scheduler.node("gpu0001")
    small.kill_controller()
    try:
        for call in (
            lambda: scheduler.node("gpu0001"),
            lambda: scheduler.drain("gpu0001", "healer:x"),
            lambda: scheduler.job("1"),
            lambda: scheduler.jobs_on("gpu0001"),
            scheduler.snapshot,
        ):
            with pytest.raises(SchedulerUnavailable):
                call()
    finally:
        small.start_controller()


def test_without_a_configuration_slurm_is_unavailable(tmp_path: Path) -> None:
    scheduler = CliScheduler(str(tmp_path / "no.conf"), timeout_s=5)
    with pytest.raises(SchedulerUnavailable):
        scheduler.snapshot()


def test_a_path_too_long_for_a_socket_is_said_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(SlurmNotStarted, match="too long"):
        RealSlurm(tmp_path / ("x" * 90), 1).start()


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine").touch()
    with pytest.raises(SlurmNotStarted, match="other files"):
        RealSlurm(tmp_path, 1).start()
    assert (tmp_path / "mine").exists()


@pytest.mark.crash
def test_nothing_is_left_when_the_process_that_started_slurm_is_killed(tmp_path: Path) -> None:
    program = (
        "import sys; from healer.embedded.slurm import RealSlurm; from tests.support.slurm import sbatch\n"
        "s = RealSlurm(sys.argv[1], 2); s.start(); sbatch(s); print('up', flush=True); sys.stdin.read()"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert starter.stdout is not None and starter.stdout.readline() == b"up\n"
        scheduler = CliScheduler(str(tmp_path / "s/slurm.conf"))
        wait_until(lambda: scheduler.node("gpu0001").busy, 15, what="a job runs")
        left = slurm_guard.descendants(starter.pid)
        assert len(left) >= 6, "the guardian, munged, slurmctld, two slurmd, slurmstepd"
    finally:
        starter.kill()
        starter.wait()
        for pipe in (starter.stdin, starter.stdout):
            if pipe:
                pipe.close()
    wait_until(lambda: not [pid for pid in left if Path(f"/proc/{pid}").exists()], 10, what="all gone")


def test_nothing_is_left_after_a_stop(tmp_path: Path) -> None:
    before = set(slurm_guard.descendants(os.getpid()))
    cluster = RealSlurm(tmp_path / "s", 2)
    cluster.start()
    job = sbatch(cluster)
    scheduler = CliScheduler(str(cluster.slurm_conf))
    wait_until(lambda: [found.id for found in scheduler.jobs_on("gpu0001")] == [job], 15)
    started = set(slurm_guard.descendants(os.getpid())) - before
    assert len(started) >= 6, "the guardian, munged, slurmctld, two slurmd, slurmstepd"
    cluster.stop()
    cluster.stop()
    assert not started.intersection(slurm_guard.descendants(os.getpid()))
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
