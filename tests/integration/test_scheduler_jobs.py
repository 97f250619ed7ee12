"""What every `ports.Scheduler` does to jobs: requeue, revive, hold, exclude, signal, notify; read back.

"Pitfall N" is number N of the list of Slurm's pitfalls in docs/slurm.md.
"""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from healer.ports.scheduling import SchedulerRefused
from tests.integration.benches import PATIENCE_S, Bench, job_of, running, submission, wait_for
from tests.support.slurm import CRED_EXPIRE_S
from tests.support.wait import wait_until

OURS = "healer:gpu-lost inc:1a2b3c4d GPU 3 fell off the bus (Xid 79)"


def requeued(bench: Bench, job: str) -> None:
    bench.scheduler.requeue(job)
    wait_for(bench, job, "PENDING")


# --- requeue and start


def test_pitfall_10_and_11_a_requeue_restarts_exactly_once(bench: Bench) -> None:
    job = running(bench, *bench.free())
    bench.scheduler.requeue(job)
    assert job_of(bench, job).restarts == 1
    # While it is completing and while it is pending, a second request is nothing.
    bench.scheduler.requeue(job)
    waiting = wait_for(bench, job, "PENDING")
    bench.scheduler.requeue(job)
    assert job_of(bench, job).restarts == waiting.restarts == 1
    wait_until(lambda: job_of(bench, job).reason == "BeginTime", 10, what="its begin time")
    begins = job_of(bench, job).start_at
    assert begins is not None and begins > datetime.now(UTC) + timedelta(seconds=CRED_EXPIRE_S / 3)
    assert not waiting.active and waiting.nodes == ()


def test_trap_begin_time_start_now_lets_a_requeued_job_run_within_seconds_and_live(bench: Bench) -> None:
    # On the same node: there Slurm kills a job that comes back within the second in which it ended.
    job = running(bench, *bench.free())
    bench.scheduler.requeue(job)
    planned = wait_for(bench, job, "PENDING").start_at
    bench.scheduler.start_now(job)
    again = wait_for(bench, job, "RUNNING")
    assert planned is not None and again.start_at is not None and again.start_at < planned
    alive_after = datetime.now(UTC) + timedelta(seconds=1.5)
    wait_until(lambda: datetime.now(UTC) > alive_after, 5)
    assert (job_of(bench, job).state, job_of(bench, job).restarts) == ("RUNNING", 1)


def test_start_now_of_a_running_job_is_refused(bench: Bench) -> None:
    job = running(bench, *bench.free())
    with pytest.raises(SchedulerRefused):
        bench.scheduler.start_now(job)
    assert job_of(bench, job).state == "RUNNING"


def test_pitfall_09_a_job_that_must_not_be_requeued_is_refused(bench: Bench) -> None:
    job = running(bench, *bench.free(), requeue=False)
    assert job_of(bench, job).requeue is False
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.requeue(job)
    assert caught.value.code == 2037
    assert (job_of(bench, job).state, job_of(bench, job).restarts) == ("RUNNING", 0)


def test_pitfall_10_an_interactive_job_is_refused(bench: Bench) -> None:
    job = running(bench, *bench.free(), batch=False)
    assert job_of(bench, job).batch is False
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.requeue(job)
    assert caught.value.code == 2039


def test_pitfall_11_a_job_that_has_ended_well_is_not_run_again(bench: Bench) -> None:
    job = running(bench, *bench.free())
    bench.finish(job)
    bench.scheduler.requeue(wait_for(bench, job, "COMPLETED").id)
    with pytest.raises(SchedulerRefused):
        bench.scheduler.revive(job)
    assert (job_of(bench, job).state, job_of(bench, job).restarts) == ("COMPLETED", 0)


def test_pitfall_11_a_good_job_in_its_epilog_is_not_run_again(bench: Bench) -> None:
    node = bench.free()[0]
    bench.epilog_sticks(node)
    job = running(bench, node)
    bench.finish(job)
    wait_until(lambda: "COMPLETING" in job_of(bench, job).flags, PATIENCE_S, what="completing")
    bench.scheduler.requeue(job)
    assert job_of(bench, job).restarts == 0
    with pytest.raises(SchedulerRefused):
        bench.scheduler.revive(job)
    assert job_of(bench, job).restarts == 0


def test_trap_crash_a_job_that_failed_is_revived_once_and_a_requeue_does_nothing_to_it(bench: Bench) -> None:
    job = running(bench, *bench.free())
    bench.fail(job)
    assert wait_for(bench, job, "FAILED").restarts == 0
    bench.scheduler.requeue(job)
    assert (job_of(bench, job).state, job_of(bench, job).restarts) == ("FAILED", 0)
    bench.scheduler.revive(job)
    waiting = wait_for(bench, job, "PENDING")
    assert (waiting.restarts, waiting.nodes) == (1, ())
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.revive(job)
    assert caught.value.code == 2024
    bench.scheduler.start_now(job)
    assert wait_for(bench, job, "RUNNING").restarts == 1
    with pytest.raises(SchedulerRefused):
        bench.scheduler.revive(job)
    assert job_of(bench, job).restarts == 1


# --- shrink


def test_a_shrink_takes_the_one_node_out_of_the_running_job_and_again_it_is_nothing(bench: Bench) -> None:
    first, bad, last = sorted(bench.free(3))
    job = running(bench, first, bad, last)
    bench.scheduler.drain(bad, OURS)
    for _ in range(2):
        bench.scheduler.shrink(job, bad)
        found = job_of(bench, job)
        assert (found.state, found.nodes, found.restarts) == ("RUNNING", (first, last), 0)
    wait_until(lambda: bench.scheduler.node(bad).state == ("IDLE", "DRAIN"), PATIENCE_S, what="it is empty")
    assert bench.scheduler.jobs_on(bad) == []
    assert [each.id for each in bench.scheduler.jobs_on(last)] == [job]


def test_the_node_that_left_is_returned_and_used_while_the_job_runs(bench: Bench) -> None:
    first, bad = sorted(bench.free(2))
    job = running(bench, first, bad, gpus=8)
    bench.scheduler.drain(bad, OURS)
    bench.scheduler.shrink(job, bad)
    wait_until(lambda: bench.scheduler.node(bad).state == ("IDLE", "DRAIN"), PATIENCE_S, what="it is empty")
    bench.scheduler.resume(bad)
    other = running(bench, bad, gpus=8)
    assert job_of(bench, other).nodes == (bad,)
    assert (job_of(bench, job).state, job_of(bench, job).nodes) == ("RUNNING", (first,))


def test_a_requeue_after_a_shrink_asks_for_the_old_size(bench: Bench) -> None:
    first, left = sorted(bench.free(2))
    job = running(bench, first, left)
    bench.scheduler.shrink(job, left)
    bench.scheduler.requeue(job)
    wait_for(bench, job, "PENDING")
    bench.scheduler.start_now(job)
    again = wait_for(bench, job, "RUNNING")
    assert (again.nodes, again.restarts) == ((first, left), 1)


def test_a_shrink_never_takes_the_batch_host_the_last_node_or_a_node_of_others(bench: Bench) -> None:
    first, second, others = sorted(bench.free(3))
    job, alone = running(bench, first, second), running(bench, others)
    for target, node in ((job, first), (alone, others)):
        with pytest.raises(SchedulerRefused) as caught:
            bench.scheduler.shrink(target, node)
        assert caught.value.code == 2018
    bench.scheduler.shrink(job, others)
    assert (job_of(bench, job).nodes, job_of(bench, alone).nodes) == ((first, second), (others,))


def test_only_a_running_job_shrinks(bench: Bench) -> None:
    node, other = sorted(bench.free(2))
    waiting = bench.submit(node, other, held=True)
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.shrink(waiting, other)
    assert caught.value.code == 2020
    ended = running(bench, node, other)
    bench.finish(ended)
    wait_for(bench, ended, "COMPLETED")
    with pytest.raises(SchedulerRefused):
        bench.scheduler.shrink(ended, other)


def test_pitfall_12_a_requeue_of_one_array_task_leaves_the_others_alone(bench: Bench) -> None:
    node, blocked = bench.free(2)
    base = bench.submit(node, array=3)
    ids = [wait_for(bench, f"{base}_{task}", "RUNNING").id for task in range(3)]
    bench.finish(ids[0])
    wait_for(bench, ids[0], "COMPLETED")
    # The last task carries the id of the whole array: for Slurm that would be every task still in memory.
    assert ids[2] == base
    requeued(bench, base)
    requeued(bench, f"{base}_1")
    assert [job_of(bench, job).state for job in ids] == ["COMPLETED", "PENDING", "PENDING"]
    assert [job_of(bench, job).restarts for job in ids] == [0, 1, 1]
    bench.scheduler.start_now(base)
    assert wait_for(bench, base, "RUNNING").restarts == 1
    assert [job_of(bench, job).restarts for job in ids] == [0, 1, 1]
    # Tasks that never ran: nothing is to be requeued.
    bench.scheduler.drain(blocked, OURS)
    waiting = bench.submit(blocked, array=3)
    bench.scheduler.requeue(waiting)
    assert job_of(bench, waiting).restarts == 0


def test_pitfall_10_a_het_job_is_requeued_by_its_leader_and_comes_back_whole(bench: Bench) -> None:
    leader = bench.submit_het(*bench.free(2))
    component = wait_for(bench, f"{leader}+1", "RUNNING").id
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.requeue(component)
    assert caught.value.code == 2107
    bench.scheduler.requeue(leader)
    waiting = [wait_for(bench, job, "PENDING") for job in (leader, component)]
    bench.scheduler.start_now(leader)
    again = [wait_for(bench, job, "RUNNING") for job in (leader, component)]
    assert [job.restarts for job in (*waiting, *again)] == [1, 1, 1, 1]
    planned, started = waiting[1].start_at, again[1].start_at
    assert planned is not None and started is not None and started < planned


def test_pitfall_13_a_node_set_down_requeues_by_itself(bench: Bench) -> None:
    node = bench.free()[0]
    kept, lost = running(bench, node), running(bench, node, requeue=False)
    bench.down(node)
    assert wait_for(bench, kept, "PENDING").restarts == 1
    bench.scheduler.requeue(kept)
    assert job_of(bench, kept).restarts == 1
    assert wait_for(bench, lost, "NODE_FAIL").restarts == 0


def test_pitfall_14_a_requeued_job_does_not_come_back_to_a_drained_node(bench: Bench) -> None:
    job = running(bench)
    (bad,) = job_of(bench, job).nodes
    submitted = job_of(bench, job).submit_at
    bench.scheduler.drain(bad, OURS)
    requeued(bench, job)
    again = job_of(bench, job).submit_at
    assert submitted is not None and again is not None and again >= submitted
    bench.scheduler.start_now(job)
    assert bad not in wait_for(bench, job, "RUNNING").nodes


def test_pitfall_14_exclusions_are_replaced_as_a_whole_and_taken_back(bench: Bench) -> None:
    owners, bad = sorted(bench.free(2))
    job = running(bench, excluded=[owners])
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.exclude(job, [owners, bad])
    assert caught.value.code == 2073
    requeued(bench, job)
    assert job_of(bench, job).excluded == (owners,)
    bench.scheduler.exclude(job, [owners, bad])
    bench.scheduler.exclude(job, [owners, bad])
    assert job_of(bench, job).excluded == (owners, bad)
    bench.scheduler.exclude(job, [owners])
    assert job_of(bench, job).excluded == (owners,)
    bench.scheduler.exclude(job, [])
    assert job_of(bench, job).excluded == ()


def test_pitfall_14_dependencies_outlive_a_requeue(bench: Bench) -> None:
    node = bench.free()[0]
    first = running(bench, node, name="chain", dependency="singleton")
    second = bench.submit(node, name="chain", dependency="singleton")
    third = bench.submit(node, dependency=f"afterok:{first}")
    for job in (second, third):
        wait_until(lambda job=job: job_of(bench, job).reason == "Dependency", 10, what="waits for the first")
    requeued(bench, first)
    bench.scheduler.start_now(first)
    wait_for(bench, first, "RUNNING")
    for job in (second, third):
        assert (job_of(bench, job).state, job_of(bench, job).reason) == ("PENDING", "Dependency")
        assert job_of(bench, job).dependency


def test_pitfall_15_our_hold_is_distinguished_from_the_owners(bench: Bench) -> None:
    node = bench.free()[0]
    owners, ours = bench.submit(node, held=True), running(bench, node)
    requeued(bench, ours)
    bench.scheduler.hold(ours)
    bench.scheduler.hold(ours)
    assert [wait_for(bench, job, "PENDING").held_by for job in (owners, ours)] == ["user", "admin"]
    assert job_of(bench, ours).priority == 0
    bench.scheduler.start_now(ours)
    bench.scheduler.release(ours)
    bench.scheduler.release(ours)
    bench.scheduler.start_now(ours)
    assert wait_for(bench, ours, "RUNNING").held_by == ""
    assert job_of(bench, owners).held_by == "user"
    bench.scheduler.release(owners)
    wait_for(bench, owners, "RUNNING")


def test_pitfall_15_a_job_that_slurm_holds_after_a_failed_launch_is_released(bench: Bench) -> None:
    node = bench.free()[0]
    bench.prolog_fails(node)
    job = bench.submit(node)
    wait_until(lambda: job_of(bench, job).held_by, PATIENCE_S, what="held by Slurm", every_s=0.05)
    held = wait_for(bench, job, "PENDING")
    assert (held.held_by, held.restarts, held.reason) == ("admin", 1, "JobHeldUser")
    assert held.why == "launch failed requeued held"
    assert bench.scheduler.node(node).reason == "Prolog error"
    bench.scheduler.release(job)
    wait_until(lambda: not job_of(bench, job).held_by, 10, what="released")
    assert job_of(bench, job).state == "PENDING", "its only node is drained"


def test_pitfall_16_a_job_that_asked_for_no_kill_shrinks(bench: Bench) -> None:
    kept, lost = sorted(bench.free(2))
    job = running(bench, kept, lost, no_kill=True)
    bench.scheduler.down(lost, OURS)
    wait_until(lambda: job_of(bench, job).nodes == (kept,), PATIENCE_S, what="one node less")
    assert (job_of(bench, job).state, job_of(bench, job).restarts) == ("RUNNING", 0)


# --- signals, notices, remarks, ends


def test_pitfall_17_a_signal_reaches_the_batch_script(bench: Bench) -> None:
    node = bench.free()[0]
    job = running(bench, node)
    bench.wait_for_program(job)
    bench.scheduler.drain(node, OURS)
    bench.scheduler.signal(job, "USR1")
    ended = wait_for(bench, job, "COMPLETED")
    assert (ended.exit_code, ended.restarts) == ("0", 0)
    with pytest.raises(SchedulerRefused):
        bench.scheduler.signal(job, "USR1")


def test_trap_signal_a_pending_job_can_be_neither_signalled_nor_notified(bench: Bench) -> None:
    job = bench.submit(*bench.free(), held=True)
    for call in (lambda: bench.scheduler.signal(job, "USR1"), lambda: bench.scheduler.notify(job, "hello")):
        with pytest.raises(SchedulerRefused):
            call()
    assert job_of(bench, job).held_by == "user"


def test_notice_reaches_the_job_and_the_admin_comment_is_stored(bench: Bench) -> None:
    job = running(bench, *bench.free())
    text = "healer: GPU 3 of gpu0001 is lost, requeued from step 1200 (inc 1a2b3c4d), a=b"
    bench.wait_for_program(job)
    bench.scheduler.notify(job, text)
    wait_until(lambda: bench.heard(job, text), PATIENCE_S, what="the notice")
    bench.scheduler.remark(job, text)
    bench.scheduler.remark(job, text)
    assert job_of(bench, job).admin_comment == text
    assert bench.scheduler.snapshot().jobs[job].admin_comment == text
    bench.scheduler.remark(job, "")
    assert (job_of(bench, job).admin_comment, job_of(bench, job).comment) == ("", "")
    bench.finish(job)
    wait_for(bench, job, "COMPLETED")
    with pytest.raises(SchedulerRefused):
        bench.scheduler.remark(job, text)


def test_a_cancelled_job_ends_and_a_second_cancel_is_nothing(bench: Bench) -> None:
    job = running(bench, *bench.free())
    bench.scheduler.cancel(job)
    assert wait_for(bench, job, "CANCELLED").restarts == 0
    bench.scheduler.cancel(job)
    assert job_of(bench, job).state == "CANCELLED"


def test_our_nice_job_runs_after_all_others(bench: Bench) -> None:
    """Submitted before the others it has the lower priority, or the lowest that there is: without weights
    Slurm 24.11 gives that to all. In the partition that it names."""
    node = bench.free()[0]
    running(bench, node, gpus=8)
    nice = msgspec.structs.replace(submission(node), partition="train", nice=1_000_000)
    ours, theirs = bench.scheduler.submit(nice), bench.submit(node, gpus=8)
    seen = {job: job_of(bench, job) for job in (ours, theirs)}
    assert [one.state for one in seen.values()] == ["PENDING", "PENDING"]
    assert seen[ours].partition == "train"
    assert seen[ours].priority == 1 or (seen[ours].priority or 0) < (seen[theirs].priority or 0)
    bench.scheduler.cancel(ours)
    assert wait_for(bench, ours, "CANCELLED").nodes == ()


def test_a_partition_or_qos_that_is_no_name_is_never_sent(bench: Bench) -> None:
    asked = submission(bench.free()[0])
    for wrong in ({"partition": "a b"}, {"partition": "--uid=0"}, {"qos": "a,b"}):
        with pytest.raises(ValueError):
            bench.bare.submit(msgspec.structs.replace(asked, **wrong))
