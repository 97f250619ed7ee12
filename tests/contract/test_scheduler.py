"""What every `ports.Scheduler` must do, on a real Slurm of 32 nodes and on the simulated one.

"Pitfall N" is number N of the list of Slurm's pitfalls in docs/slurm.md.
"""

from datetime import UTC, datetime, timedelta

import pytest

from healer.model import SlurmJob, SlurmNode
from healer.ports import SchedulerRefused, UnknownNode
from healer.sim.slurm import SimClient
from tests.contract.conftest import Bench
from tests.support.slurm import CRED_EXPIRE_S
from tests.support.wait import wait_until

OURS = "healer:gpu-lost inc:1a2b3c4d GPU 3 fell off the bus (Xid 79)"
ATTACKS = [
    "", "-a", "--version", "ALL", "all", "gpu[0001-0032]", "gpu0001,gpu0002", "gpu0001 State=DOWN",
    "gpu0001\n", "$(reboot)", "../gpu0001", "gpu0001=", "gpu0001\x00",
]  # fmt: skip


def job_of(bench: Bench, job: str) -> SlurmJob:
    found = bench.scheduler.job(job)
    assert found is not None
    return found


def wait_for(bench: Bench, job: str, *states: str, timeout_s: float = 15) -> SlurmJob:
    def there() -> SlurmJob | None:
        found = bench.scheduler.job(job)
        return found if found and found.state in states else None

    found = wait_until(there, timeout_s, what=f"job {job} {states}")
    assert found is not None
    return found


def mark(node: SlurmNode) -> tuple[object, ...]:
    """What a drain leaves on a node. (A node's boot time may move by a second when it registers again.)"""
    return node.state, node.reason, node.reason_user, node.reason_at


# --- reading


def test_a_snapshot_holds_every_node_with_its_gpus(bench: Bench) -> None:
    picture = bench.scheduler.snapshot()
    assert picture.cluster == bench.scheduler.cluster_name() == "pod1"
    assert sorted(picture.nodes) == [f"gpu{number:04d}" for number in range(1, 33)]
    for node in picture.nodes.values():
        assert (node.gpus, node.gpu_model, node.partitions) == (8, "h100", ("train",))
        assert node.state == ("IDLE",)
        assert node.in_service
        assert node.reason == node.reason_user == ""
        assert node.boot_at is not None and node.boot_at < datetime.now(UTC)
    assert abs(picture.taken_at - datetime.now(UTC)) < timedelta(seconds=10)


def test_one_node_reads_as_in_the_snapshot(bench: Bench) -> None:
    assert bench.scheduler.node("gpu0007") == bench.scheduler.snapshot().nodes["gpu0007"]


def test_it_says_what_it_is(bench: Bench) -> None:
    assert bench.scheduler.name in bench.scheduler.describe()


def test_jobs_on_a_node_come_with_their_gpus(bench: Bench) -> None:
    jobs = [bench.submit("gpu0001"), bench.submit("gpu0001")]
    for job in jobs:
        wait_for(bench, job, "RUNNING")
    found = bench.scheduler.jobs_on("gpu0001")
    assert sorted(job.id for job in found) == sorted(jobs)
    held = [job.gpus["gpu0001"] for job in found]
    assert all(len(indices) == 1 for indices in held)
    assert held[0] != held[1]
    in_snapshot = bench.scheduler.snapshot().jobs_on("gpu0001")
    assert {job.id: job.gpus for job in in_snapshot} == {job.id: job.gpus for job in found}
    assert bench.scheduler.node("gpu0001").busy


def test_a_job_without_gpus_is_known_to_hold_none(bench: Bench) -> None:
    cpu_only, other = bench.submit("gpu0001", gpus=0), bench.submit("gpu0001")
    assert wait_for(bench, cpu_only, "RUNNING").gpus == {"gpu0001": ()}
    assert len(wait_for(bench, other, "RUNNING").gpus["gpu0001"]) == 1
    in_snapshot = bench.scheduler.snapshot().jobs
    assert in_snapshot[cpu_only] == job_of(bench, cpu_only)


def test_a_job_on_two_nodes_holds_the_gpus_of_both(bench: Bench) -> None:
    job = bench.submit("gpu0002", "gpu0003", gpus=8, name="llama 70b", comment="healer:requeue a=b")
    found = wait_for(bench, job, "RUNNING")
    assert found.nodes == ("gpu0002", "gpu0003")
    assert found.gpus == {"gpu0002": tuple(range(8)), "gpu0003": tuple(range(8))}
    assert (found.name, found.comment, found.partition) == ("llama 70b", "healer:requeue a=b", "train")
    assert (found.requeue, found.batch, found.restarts) == (True, True, 0)
    assert found.start_at is not None and abs(found.start_at - datetime.now(UTC)) < timedelta(seconds=20)
    assert bench.scheduler.snapshot().jobs[job] == found


def test_a_pending_job_tells_why_and_what_it_avoids(bench: Bench) -> None:
    bench.person_drain("gpu0004", "alice: PSU")
    job = bench.submit("gpu0004", excluded=("gpu0005", "gpu0006"))
    found = wait_for(bench, job, "PENDING")
    assert found.excluded == ("gpu0005", "gpu0006")
    assert found.nodes == ()
    wait_until(lambda: job_of(bench, job).reason not in {"", "None"}, 10, what="a reason to wait")


def test_an_unknown_node_is_named_as_such(bench: Bench) -> None:
    for call in (
        lambda: bench.scheduler.node("gpu9999"),
        lambda: bench.scheduler.jobs_on("gpu9999"),
        lambda: bench.scheduler.drain("gpu9999", OURS),
        lambda: bench.scheduler.resume("gpu9999"),
    ):
        with pytest.raises(UnknownNode) as caught:
            call()
        assert caught.value.code == 2018


def test_an_unknown_job_is_none_and_refused(bench: Bench) -> None:
    assert bench.scheduler.job("999999") is None
    for call in (bench.scheduler.requeue, bench.scheduler.start_now):
        with pytest.raises(SchedulerRefused) as caught:
            call("999999")
        assert caught.value.code == 2017


@pytest.mark.parametrize("name", ATTACKS)
def test_a_name_that_attacks_the_command_line_is_refused(bench: Bench, name: str) -> None:
    for call in (
        lambda: bench.scheduler.node(name),
        lambda: bench.scheduler.jobs_on(name),
        lambda: bench.scheduler.drain(name, OURS),
        lambda: bench.scheduler.resume(name),
    ):
        with pytest.raises(UnknownNode):
            call()
    assert not any(node.drain for node in bench.scheduler.snapshot().nodes.values())


@pytest.mark.parametrize("job", ["", "-1", "--all", "1,2", "1 Hold", "1_[1-3]", "name=x", "1\n", "²"])
def test_a_job_id_that_attacks_the_command_line_is_refused(bench: Bench, job: str) -> None:
    for call in (bench.scheduler.job, bench.scheduler.requeue, bench.scheduler.start_now):
        with pytest.raises(SchedulerRefused):
            call(job)


# --- drain and resume


def test_a_drain_is_read_back_with_reason_user_and_time(bench: Bench) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    bench.scheduler.drain("gpu0001", OURS)
    node = bench.scheduler.node("gpu0001")
    assert node.drain and not node.in_service
    assert (node.reason, node.reason_user) == (OURS, "root")
    assert node.reason_at is not None and before <= node.reason_at <= datetime.now(UTC)
    assert mark(bench.scheduler.snapshot().nodes["gpu0001"]) == mark(node)


@pytest.mark.parametrize("reason", ["", "  "])
def test_pitfall_1_a_drain_without_a_reason_is_never_sent(bench: Bench, reason: str) -> None:
    bench.person_drain("gpu0001", "alice: PSU")
    for node in ("gpu0001", "gpu0002"):
        with pytest.raises(ValueError):
            bench.scheduler.drain(node, reason)
    assert bench.scheduler.node("gpu0001").reason == "alice: PSU"
    assert not bench.scheduler.node("gpu0002").drain


def test_pitfall_2_a_second_drain_replaces_reason_and_time_and_the_same_one_is_nothing(bench: Bench) -> None:
    bench.scheduler.drain("gpu0001", OURS)
    first = bench.scheduler.node("gpu0001")
    assert first.reason_at is not None
    later = first.reason_at + timedelta(seconds=1.2)
    wait_until(lambda: datetime.now(UTC) > later, 5)
    bench.scheduler.drain("gpu0001", OURS)
    assert mark(bench.scheduler.node("gpu0001")) == mark(first)
    bench.scheduler.drain("gpu0001", OURS + " again")
    second = bench.scheduler.node("gpu0001")
    assert second.reason == OURS + " again"
    assert second.reason_at is not None and second.reason_at > first.reason_at


def test_pitfall_2_what_a_person_wrote_stays_until_it_is_overwritten(bench: Bench) -> None:
    text = "alice: PSU [x] State=IDLE [bob@2020-01-01T00:00:00] 50% (rack 3)"
    bench.person_drain("gpu0001", text)
    first = bench.scheduler.node("gpu0001")
    assert (first.reason, first.reason_user, first.state) == (text, "root", ("IDLE", "DRAIN"))
    bench.scheduler.drain("gpu0002", OURS)
    bench.scheduler.resume("gpu0002")
    bench.scheduler.jobs_on("gpu0001")
    assert mark(bench.scheduler.node("gpu0001")) == mark(first)


def test_pitfall_4_resume_of_a_healthy_node_is_refused(bench: Bench) -> None:
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.resume("gpu0001")
    assert caught.value.code == 2180
    assert not isinstance(caught.value, UnknownNode)


def test_resume_clears_drain_and_reason(bench: Bench) -> None:
    bench.scheduler.drain("gpu0001", OURS)
    bench.scheduler.resume("gpu0001")
    node = bench.scheduler.node("gpu0001")
    assert not node.drain
    assert (node.reason, node.reason_user, node.reason_at) == ("", "", None)
    # Slurm calls it NOT_RESPONDING until it has answered once more.
    wait_until(lambda: bench.scheduler.node("gpu0001").state == ("IDLE",), 15, what="IDLE again")


def test_resume_brings_a_node_back_from_down(bench: Bench) -> None:
    bench.down("gpu0001")
    assert bench.scheduler.node("gpu0001").base == "DOWN"
    bench.scheduler.resume("gpu0001")
    wait_until(lambda: bench.scheduler.node("gpu0001").state == ("IDLE",), 15, what="IDLE again")


def test_a_drain_lets_the_job_run_and_draining_is_told_from_drained(bench: Bench) -> None:
    job = bench.submit("gpu0001")
    wait_for(bench, job, "RUNNING")
    bench.scheduler.drain("gpu0001", OURS)
    draining = bench.scheduler.node("gpu0001")
    assert draining.drain and draining.busy
    assert job_of(bench, job).state == "RUNNING"
    bench.finish(job)
    wait_until(lambda: not bench.scheduler.node("gpu0001").busy, 15, what="drained")
    assert bench.scheduler.node("gpu0001").state == ("IDLE", "DRAIN")


def test_a_node_that_is_down_and_drained_is_not_taken_for_a_drained_one(bench: Bench) -> None:
    bench.down("gpu0001")
    bench.scheduler.drain("gpu0001", OURS)
    node = bench.scheduler.node("gpu0001")
    assert node.base == "DOWN" and node.drain and not node.responding


def test_a_drained_node_is_never_chosen(bench: Bench) -> None:
    bench.scheduler.drain("gpu0001", OURS)
    stuck, free = bench.submit("gpu0001"), bench.submit()
    assert "gpu0001" not in wait_for(bench, free, "RUNNING").nodes
    assert job_of(bench, stuck).state == "PENDING"


def test_a_silent_node_is_seen_as_such_and_comes_back(bench: Bench) -> None:
    bench.silence("gpu0032")
    wait_until(lambda: not bench.scheduler.node("gpu0032").responding, 40, what="not responding", every_s=0.2)
    assert bench.scheduler.snapshot().nodes["gpu0032"].responding is False
    bench.revive("gpu0032")
    wait_until(lambda: bench.scheduler.node("gpu0032").in_service, 40, what="back", every_s=0.2)


# --- requeue and start


def test_a_requeue_restarts_exactly_once_pitfalls_10_and_11(bench: Bench) -> None:
    job = bench.submit("gpu0001")
    wait_for(bench, job, "RUNNING")
    bench.scheduler.requeue(job)
    assert job_of(bench, job).restarts == 1
    # While it is completing and while it is pending, a second request is nothing.
    bench.scheduler.requeue(job)
    waiting = wait_for(bench, job, "PENDING")
    bench.scheduler.requeue(job)
    assert job_of(bench, job).restarts == waiting.restarts == 1
    assert waiting.reason == "BeginTime"
    assert waiting.start_at is not None
    assert waiting.start_at > datetime.now(UTC) + timedelta(seconds=CRED_EXPIRE_S / 2)
    assert not waiting.active and waiting.nodes == ()


def test_start_now_lets_a_requeued_job_run_within_seconds_and_live(bench: Bench) -> None:
    # On the same node: there Slurm kills a job that comes back within the second in which it ended.
    job = bench.submit("gpu0001")
    wait_for(bench, job, "RUNNING")
    bench.scheduler.requeue(job)
    planned = wait_for(bench, job, "PENDING").start_at
    bench.scheduler.start_now(job)
    running = wait_for(bench, job, "RUNNING", timeout_s=10)
    assert planned is not None and running.start_at is not None and running.start_at < planned
    alive_after = datetime.now(UTC) + timedelta(seconds=1.5)
    wait_until(lambda: datetime.now(UTC) > alive_after, 5)
    assert job_of(bench, job).state == "RUNNING"
    assert job_of(bench, job).restarts == 1


def test_start_now_of_a_running_job_is_refused(bench: Bench) -> None:
    job = bench.submit("gpu0001")
    wait_for(bench, job, "RUNNING")
    with pytest.raises(SchedulerRefused):
        bench.scheduler.start_now(job)
    assert job_of(bench, job).state == "RUNNING"


def test_pitfall_9_a_job_that_must_not_be_requeued_is_refused(bench: Bench) -> None:
    job = bench.submit("gpu0001", requeue=False)
    assert wait_for(bench, job, "RUNNING").requeue is False
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.requeue(job)
    assert caught.value.code == 2037
    assert (job_of(bench, job).state, job_of(bench, job).restarts) == ("RUNNING", 0)


def test_pitfall_10_an_interactive_job_is_refused(bench: Bench) -> None:
    job = bench.submit("gpu0001", batch=False)
    assert wait_for(bench, job, "RUNNING").batch is False
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.requeue(job)
    assert caught.value.code == 2039


def test_pitfall_11_a_job_that_has_ended_is_not_run_again(bench: Bench) -> None:
    job = bench.submit("gpu0001")
    wait_for(bench, job, "RUNNING")
    bench.finish(job)
    wait_for(bench, job, "COMPLETED", "COMPLETING")
    bench.scheduler.requeue(job)
    ended = wait_for(bench, job, "COMPLETED")
    bench.scheduler.requeue(job)
    assert (job_of(bench, job).state, ended.restarts) == ("COMPLETED", 0)
    assert not ended.active


def test_pitfall_13_a_node_set_down_requeues_by_itself(bench: Bench) -> None:
    kept, lost = bench.submit("gpu0001"), bench.submit("gpu0001", requeue=False)
    for job in (kept, lost):
        wait_for(bench, job, "RUNNING")
    bench.down("gpu0001")
    assert wait_for(bench, kept, "PENDING").restarts == 1
    bench.scheduler.requeue(kept)
    assert job_of(bench, kept).restarts == 1
    assert wait_for(bench, lost, "NODE_FAIL").restarts == 0


def test_pitfall_14_a_requeued_job_does_not_come_back_to_a_drained_node(bench: Bench) -> None:
    job = bench.submit()
    (bad,) = wait_for(bench, job, "RUNNING").nodes
    bench.scheduler.drain(bad, OURS)
    bench.scheduler.requeue(job)
    wait_for(bench, job, "PENDING")
    bench.scheduler.start_now(job)
    assert bad not in wait_for(bench, job, "RUNNING").nodes


def test_the_simulated_slurm_runs_as_a_process(sim_process: SimClient) -> None:
    job = sim_process.submit(nodes=2, gpus=8)
    sim_process.drain("gpu0001", OURS)
    picture = sim_process.snapshot()
    assert len(picture.nodes) == 4
    assert picture.nodes["gpu0001"].reason == OURS
    assert picture.jobs[job].nodes == ("gpu0001", "gpu0002")
