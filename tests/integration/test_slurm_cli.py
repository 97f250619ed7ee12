"""What only a real Slurm can show: arrays, hostile texts, a controller that is away, what is left behind."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from healer.adapters.slurm.cli_client import CliScheduler
from healer.embedded import slurm_guard
from healer.embedded.embedded_slurm import RealSlurm, SlurmNotStarted
from healer.model import SlurmCall
from healer.ports.scheduling import NotAvailable, SchedulerRefused, SchedulerUnavailable
from tests.integration.benches import RealBench, job_of, wait_for
from tests.support import trixie
from tests.support.breakable_slurm import BreakableSlurm
from tests.support.slurm import hands, sbatch
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm


TREE = """\
SwitchName=leaf1 Nodes=gpu0001
SwitchName=leaf2 Nodes=gpu0002
SwitchName=spine Switches=leaf[1-2]
"""


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BreakableSlurm]:
    """Two nodes that a test may hurt, each under a switch of its own. The PrologSlurmctld of a job named
    `late` waits while the cluster's folder has a file `late`."""
    folder = tmp_path_factory.mktemp("s")
    prolog = tmp_path_factory.mktemp("hooks") / "prolog"
    prolog.write_text(
        f'#!/bin/sh\n[ "$SLURM_JOB_NAME" = late ] || exit 0\nwhile [ -e {folder}/late ]; do sleep 0.1; done\n'
    )
    prolog.chmod(0o755)
    prolog.parent.chmod(0o755)  # slurmctld may run as the user of healer's worker
    conf = {"TopologyPlugin": "topology/tree", "PrologSlurmctld": str(prolog)}
    with BreakableSlurm(folder, 2, conf=conf, files={"topology.conf": TREE}) as cluster:
        yield cluster


def test_switches_are_listed_leaf_first(small: RealSlurm) -> None:
    assert hands(small).topology() == {"gpu0001": ("leaf1", "spine"), "gpu0002": ("leaf2", "spine")}


def test_each_component_of_a_het_job_keeps_its_own_exclusions(small: RealSlurm) -> None:
    """Slurm keeps the first off the node that the second requires: with the list of the first, the second
    would wait for a node that it must not use, for good."""
    options = ["--parsable", "--chdir=/", "--output=/dev/null", "--begin=now+300"]
    job = small.run("sbatch", *options, "--nodes=1", ":", "--nodelist=gpu0002", "--wrap", "true").strip()
    slurm = hands(small)

    def excluded() -> list[tuple[str, ...]]:
        parts = [part for part in slurm.snapshot().jobs.values() if part.leader == job]
        return [part.excluded for part in sorted(parts, key=lambda part: part.het_offset or 0)]

    try:
        assert excluded() == [("gpu0002",), ()]
        slurm.exclude(job, ["gpu0002", "gpu0001"])
        assert [set(off) for off in excluded()] == [{"gpu0001", "gpu0002"}, {"gpu0001"}]
        slurm.exclude(job, ["gpu0002"])
        assert excluded() == [("gpu0002",), ()]
    finally:
        slurm.cancel(job)


def test_a_job_that_is_being_configured_holds_its_node(small: RealSlurm) -> None:
    """While PrologSlurmctld runs or a node boots for it, squeue calls a job CF and no longer R."""
    waits = small.directory / "late"
    waits.touch()
    job = sbatch(small, "--nodelist=gpu0001", name="late")
    shown = lambda: [(one.id, one.flags) for one in hands(small).jobs_on("gpu0001")]  # noqa: E731
    try:
        # Slurm may show the job a moment before it is configured.
        wait_until(lambda: shown() == [(job, ("CONFIGURING",))], 20, what=f"job {job} has its node")
    except AssertionError as error:
        for what in ("job", "node"):
            error.add_note(small.run("scontrol", "show", what))
        error.add_note(small.slurmctld_log.read_text()[-4000:])
        raise
    finally:
        waits.unlink()
        hands(small).cancel(job)


def test_pitfall_23_a_site_may_have_even_no_requeue_jobs_requeued_after_a_failed_prolog() -> None:
    """PrologFlags=ForceRequeueOnFail, which 22.05 does not know."""
    bench = RealBench(trixie.started(), hands(trixie.started()))
    node = bench.free()[0]
    bench.prolog_fails(node)
    job = bench.submit(node, requeue=False)
    try:
        wait_until(lambda: job_of(bench, job).held_by, 20, what="requeued and held", every_s=0.05)
        found = wait_for(bench, job, "PENDING")
        assert (found.requeue, found.restarts, found.held_by) == (False, 1, "admin")
        assert bench.scheduler.node(node).drain
    finally:
        bench.clean()


def test_commands_are_looked_for_in_the_given_folder_alone(small: RealSlurm, tmp_path: Path) -> None:
    (tmp_path / "scontrol").symlink_to("/usr/bin/scontrol")
    (tmp_path / "squeue").symlink_to("/usr/bin/squeue")
    scheduler = CliScheduler(str(small.slurm_conf), bin_dir=tmp_path)
    assert scheduler.node("gpu0002").in_service
    assert set(scheduler.unavailable()) == {SlurmCall.submit, SlurmCall.cancel, SlurmCall.signal}
    job = sbatch(small, "--hold")
    for call in (lambda: scheduler.cancel(job), lambda: scheduler.signal(job, "USR1")):
        with pytest.raises(NotAvailable, match="not available here: scancel is not installed"):
            call()
    controller = scheduler.controller()
    assert (controller.role, controller.threads) == ("primary", None), "without sdiag its queues are unknown"
    hands(small).cancel(job)


def test_array_tasks_that_wait_together_are_no_single_job_to_requeue(real_bench: RealBench) -> None:
    base = real_bench.submit(array=6, held=True)
    real_bench.scheduler.requeue(base)
    real_bench.scheduler.start_now(base)
    for call in (real_bench.scheduler.release, real_bench.scheduler.hold, real_bench.scheduler.cancel):
        with pytest.raises(SchedulerRefused, match="several pending array tasks"):
            call(base)
    found = real_bench.scheduler.job(base)
    assert found is not None and (found.state, found.restarts, found.held_by) == ("PENDING", 0, "user")


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
    node = real_bench.free()[0]
    job = real_bench.submit(node, name=name, comment="c\n   NodeList=gpu0009\n   Requeue=0 Restarts=9")
    scheduler = real_bench.scheduler
    found = wait_for(real_bench, job, "RUNNING")
    assert (found.nodes, found.gpus, found.restarts, found.requeue) == ((node,), {node: (0,)}, 0, True)
    assert scheduler.snapshot().jobs[job] == found
    assert not [job for job in scheduler.snapshot().jobs_on("gpu0009") if node != "gpu0009"]


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
    name = real_bench.free()[0]
    real_bench.person_drain(name, "alice: PSU\nState=IDLE\n   State=IDLE [bob@2020-01-01T00:00:00]")
    for node in (real_bench.scheduler.node(name), real_bench.scheduler.snapshot().nodes[name]):
        assert node.reason.split("\n")[0] == "alice: PSU"
        assert (node.reason_user, node.state) == ("root", ("IDLE", "DRAIN"))


def test_drain_is_in_the_slurmctld_log_with_milliseconds(real_bench: RealBench) -> None:
    name = real_bench.free()[0]
    real_bench.scheduler.drain(name, "healer:gpu-lost inc:0badcafe in the log")
    log = wait_until(
        lambda: [
            line
            for line in real_bench.cluster.slurmctld_log.read_text().splitlines()
            if f"{name} reason set to: healer:gpu-lost inc:0badcafe" in line
        ],
        5,
    )
    assert log[0][0] == "[" and log[0][20] == "." and log[0][21:24].isdigit()


def test_a_controller_that_hangs_is_unavailable_in_time(small: RealSlurm) -> None:
    scheduler = CliScheduler(str(small.slurm_conf), timeout_s=1)
    scheduler.node("gpu0001")
    pid = int((small.directory / "state/slurmctld.pid").read_text())
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(SchedulerUnavailable, match="did not answer within 1 s"):
            scheduler.drain("gpu0001", "healer:x")
    finally:
        os.kill(pid, signal.SIGCONT)
    # It was unknown whether it happened: in this case it did not, or it did; the read shows it.
    wait_until(lambda: scheduler.node("gpu0001").base == "IDLE", 10)


def test_a_controller_that_is_gone_is_unavailable(small: BreakableSlurm) -> None:
    scheduler = CliScheduler(str(small.slurm_conf), timeout_s=1)
    scheduler.node("gpu0001")
    small.kill_controller()
    try:
        for call in (
            lambda: scheduler.node("gpu0001"),
            lambda: scheduler.drain("gpu0001", "healer:x"),
            lambda: scheduler.job("1"),
            lambda: scheduler.jobs_on("gpu0001"),
            scheduler.snapshot,
            scheduler.controller,
        ):
            with pytest.raises(SchedulerUnavailable):
                call()
        # A write that only looked, and one that found no controller, have done nothing: another may try.
        patient = CliScheduler(str(small.slurm_conf), timeout_s=30)
        for write in (lambda: scheduler.requeue("1"), lambda: patient.drain("gpu0001", "healer:x")):
            with pytest.raises(SchedulerUnavailable) as caught:
                write()
            assert caught.value.sent is False
    finally:
        small.start_controller()


def test_without_a_configuration_slurm_is_unavailable(tmp_path: Path) -> None:
    scheduler = CliScheduler(str(tmp_path / "no.conf"), timeout_s=2)
    with pytest.raises(SchedulerUnavailable):
        scheduler.snapshot()


def test_a_path_too_long_for_a_socket_is_said_before_anything_starts(scratch: Path) -> None:
    with pytest.raises(SlurmNotStarted, match="too long"):
        RealSlurm(scratch / ("x" * 90), 1).start()


def test_a_directory_with_other_files_is_left_alone(scratch: Path) -> None:
    (scratch / "mine").touch()
    with pytest.raises(SlurmNotStarted, match="other files"):
        RealSlurm(scratch, 1).start()
    assert (scratch / "mine").exists()


@pytest.mark.crash
def test_nothing_is_left_when_the_process_that_started_slurm_is_killed(scratch: Path) -> None:
    program = (
        "import sys; from healer.embedded.embedded_slurm import RealSlurm\n"
        "from tests.support.slurm import sbatch\n"
        "s = RealSlurm(sys.argv[1], 2); s.start(); sbatch(s); print('up', flush=True); sys.stdin.read()"
    )
    starter = subprocess.Popen(
        [sys.executable, "-c", program, str(scratch / "s")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert starter.stdout is not None and starter.stdout.readline() == b"up\n"
        scheduler = CliScheduler(str(scratch / "s/slurm.conf"))
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


def test_nothing_is_left_after_a_stop(scratch: Path) -> None:
    before = set(slurm_guard.descendants(os.getpid()))
    cluster = RealSlurm(scratch / "s", 2)
    cluster.start()
    job = sbatch(cluster, "--nodelist=gpu0001")
    scheduler = CliScheduler(str(cluster.slurm_conf))
    wait_until(lambda: [found.id for found in scheduler.jobs_on("gpu0001")] == [job], 15)
    started = set(slurm_guard.descendants(os.getpid())) - before
    assert len(started) >= 6, "the guardian, munged, slurmctld, two slurmd, slurmstepd"
    cluster.stop()
    cluster.stop()
    assert not started.intersection(slurm_guard.descendants(os.getpid()))
    assert not [pid for pid in started if Path(f"/proc/{pid}").exists()]
