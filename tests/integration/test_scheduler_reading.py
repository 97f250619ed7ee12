"""What every `ports.Scheduler` reports, on real Slurms of 32 nodes and on the simulated one.

"Pitfall N" is number N of the list of Slurm's pitfalls in docs/slurm.md.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from healer.model import Reservation, SlurmCall
from healer.ports.scheduling import NotAvailable, Scheduler, SchedulerRefused, UnknownNode
from healer.sim.sim_slurm import SimClient
from tests.integration.benches import Bench, as_shown, job_of, running, submission, wait_for
from tests.support.wait import wait_until

OURS = "healer:gpu-lost inc:1a2b3c4d GPU 3 fell off the bus (Xid 79)"
NODE_ATTACKS = [
    "", "-a", "--version", "ALL", "all", "gpu[0001-0032]", "gpu0001,gpu0002", "gpu0001 State=DOWN",
    "gpu0001\n", "$(reboot)", "../gpu0001", "gpu0001=", "gpu0001\x00",
]  # fmt: skip
JOB_ATTACKS = ["", "-1", "--all", "1,2", "1 Hold", "1_[1-3]", "name=x", "1\n", "²"]
Call = Callable[[Scheduler, str], object]


def reserved(node: str, name: str = "healer_attack") -> Reservation:
    return Reservation(name=name, nodes=(node,), users=("root",), maintenance=True)


#: Each call that takes a node, and each that takes a job.
ON_NODES: dict[SlurmCall, Call] = {
    SlurmCall.node: lambda slurm, node: slurm.node(node),
    SlurmCall.jobs_on: lambda slurm, node: slurm.jobs_on(node),
    SlurmCall.drain: lambda slurm, node: slurm.drain(node, OURS),
    SlurmCall.undrain: lambda slurm, node: slurm.undrain(node),
    SlurmCall.resume: lambda slurm, node: slurm.resume(node),
    SlurmCall.down: lambda slurm, node: slurm.down(node, OURS),
    SlurmCall.reboot: lambda slurm, node: slurm.reboot(node, OURS),
    SlurmCall.cancel_reboot: lambda slurm, node: slurm.cancel_reboot(node),
    SlurmCall.annotate: lambda slurm, node: slurm.annotate(node, comment="x"),
    SlurmCall.reserve: lambda slurm, node: slurm.reserve(reserved(node)),
    SlurmCall.submit: lambda slurm, node: slurm.submit(submission(node)),
}
ON_JOBS: dict[SlurmCall, Call] = {
    SlurmCall.job: lambda slurm, job: slurm.job(job),
    SlurmCall.shrink: lambda slurm, job: slurm.shrink(job, "gpu0032"),
    SlurmCall.requeue: lambda slurm, job: slurm.requeue(job),
    SlurmCall.revive: lambda slurm, job: slurm.revive(job),
    SlurmCall.start_now: lambda slurm, job: slurm.start_now(job),
    SlurmCall.hold: lambda slurm, job: slurm.hold(job),
    SlurmCall.release: lambda slurm, job: slurm.release(job),
    SlurmCall.exclude: lambda slurm, job: slurm.exclude(job, ()),
    SlurmCall.signal: lambda slurm, job: slurm.signal(job, "USR1"),
    SlurmCall.notify: lambda slurm, job: slurm.notify(job, "a word"),
    SlurmCall.remark: lambda slurm, job: slurm.remark(job, "a word"),
    SlurmCall.cancel: lambda slurm, job: slurm.cancel(job),
}
ON_RESERVATIONS: dict[SlurmCall, Call] = {
    SlurmCall.change_reservation: lambda slurm, name: slurm.change_reservation(name, ["gpu0001"]),
    SlurmCall.unreserve: lambda slurm, name: slurm.unreserve(name),
}


def test_a_snapshot_holds_every_node_with_its_gpus(bench: Bench) -> None:
    (free,) = bench.free()
    picture = bench.scheduler.snapshot()
    assert picture.cluster == bench.scheduler.cluster_name() == "pod1"
    assert sorted(picture.nodes) == [f"gpu{number:04d}" for number in range(1, 33)]
    for node in picture.nodes.values():
        assert (node.gpus, node.gpu_model, node.partitions) == (8, "h100", ("train",))
    node = picture.nodes[free]
    assert node.state == ("IDLE",)
    assert node.in_service
    assert node.reason == node.reason_user == ""
    assert node.boot_at is not None and node.boot_at < datetime.now(UTC)
    assert abs(picture.taken_at - datetime.now(UTC)) < timedelta(seconds=10)
    assert bench.scheduler.node(free) == node


def test_it_says_what_it_is_and_who_answers(bench: Bench) -> None:
    assert bench.bare.name in bench.scheduler.describe()
    controller = bench.scheduler.controller()
    assert (controller.cluster, controller.role, controller.problem) == ("pod1", "primary", None)
    assert controller.host and controller.adapter == bench.bare.name
    assert controller.version.partition(".")[0] in {"22", "24"}
    assert controller.answer_s is not None and 0 <= controller.answer_s < 10
    assert controller.agent_queue == 0
    assert controller.dbd_queue == as_shown(bench, "dbd_queue", 0, None)
    assert controller.threads is not None and controller.threads >= 1


def test_a_flat_cluster_has_no_switches(bench: Bench) -> None:
    assert bench.scheduler.topology() == {}


def test_unavailable_calls_raise_not_available_and_change_nothing(bench: Bench) -> None:
    node = bench.free()[0]
    job = running(bench, node)

    def now() -> tuple[object, ...]:
        found = bench.scheduler.node(node)
        reservations = bench.scheduler.snapshot().reservations
        return found.held, found.reason, found.after_reboot, found.comment, job_of(bench, job), reservations

    before = now()
    lacking = bench.bare.unavailable()
    calls = {call: (ask, node) for call, ask in ON_NODES.items()}
    calls |= {call: (ask, job) for call, ask in ON_JOBS.items()}
    calls |= {call: (ask, "healer_none") for call, ask in ON_RESERVATIONS.items()}
    calls[SlurmCall.topology] = (lambda slurm, _: slurm.topology(), "")
    for call, why in lacking.items():
        ask, target = calls[call]
        with pytest.raises(NotAvailable) as caught:
            ask(bench.bare, target)
        assert str(caught.value) == f"not available here: {why}"
        assert caught.value.call == call
    assert now() == before
    assert bench.scheduler.unavailable() == {}


def test_jobs_on_a_node_come_with_their_gpus(bench: Bench) -> None:
    node = bench.free()[0]
    jobs = [running(bench, node), running(bench, node)]
    found = bench.scheduler.jobs_on(node)
    assert sorted(job.id for job in found) == sorted(jobs)
    held = [job.gpus.get(node) for job in found]
    assert sorted(map(len, filter(None, held))) == as_shown(bench, "gpus", [1, 1], [])
    assert (held[0] != held[1]) is as_shown(bench, "gpus", True, False)
    in_snapshot = bench.scheduler.snapshot().jobs_on(node)
    assert {job.id: job.gpus for job in in_snapshot} == {job.id: job.gpus for job in found}
    assert bench.scheduler.node(node).busy


def test_a_job_without_gpus_is_known_to_hold_none(bench: Bench) -> None:
    node = bench.free()[0]
    cpu_only, other = bench.submit(node, gpus=0), bench.submit(node)
    assert wait_for(bench, cpu_only, "RUNNING").gpus == as_shown(bench, "gpus", {node: ()}, {})
    assert len(wait_for(bench, other, "RUNNING").gpus.get(node, ())) == as_shown(bench, "gpus", 1, 0)
    assert bench.scheduler.snapshot().jobs[cpu_only] == job_of(bench, cpu_only)


def test_a_job_on_two_nodes_holds_the_gpus_of_both(bench: Bench) -> None:
    nodes = sorted(bench.free(2))
    job = bench.submit(*nodes, gpus=8, name="llama 70b", comment="healer:requeue a=b")
    found = wait_for(bench, job, "RUNNING")
    assert found.nodes == tuple(nodes)
    assert found.gpus == as_shown(bench, "gpus", {node: tuple(range(8)) for node in nodes}, {})
    assert (found.name, found.comment, found.partition) == ("llama 70b", "healer:requeue a=b", "train")
    assert (found.requeue, found.batch, found.restarts, found.user) == (True, True, 0, "root")
    for at in (found.start_at, found.submit_at):
        assert at is not None and abs(at - datetime.now(UTC)) < timedelta(seconds=30)
    assert bench.scheduler.snapshot().jobs[job] == found


def test_pending_job_shows_its_reason_and_excluded_nodes(bench: Bench) -> None:
    node, other, third = bench.free(3)
    bench.person_drain(node, "alice: PSU")
    job = bench.submit(node, excluded=sorted([other, third]))
    found = wait_for(bench, job, "PENDING")
    assert found.excluded == tuple(sorted([other, third]))
    assert (found.required, found.nodes) == ((node,), ())
    wait_until(lambda: job_of(bench, job).reason not in {"", "None"}, 10, what="a reason to wait")


def test_finished_job_shows_its_end_time_and_state(bench: Bench) -> None:
    node = bench.free()[0]
    good, bad = running(bench, node), running(bench, node)
    bench.finish(good)
    bench.fail(bad)
    ended, failed = wait_for(bench, good, "COMPLETED"), wait_for(bench, bad, "FAILED")
    assert (ended.exit_code, failed.exit_code) == ("0", "3")
    for job in (ended, failed):
        assert job.nodes == (node,) and not job.active
        assert job.end_at is not None and abs(job.end_at - datetime.now(UTC)) < timedelta(seconds=30)


def test_the_tasks_of_an_array_are_jobs_of_their_own(bench: Bench) -> None:
    node = bench.free()[0]
    base = bench.submit(node, array=2)
    found = {task: wait_for(bench, f"{base}_{task}", "RUNNING") for task in (0, 1)}
    assert {job.array_job for job in found.values()} == {base}
    assert {task: job.array_task for task, job in found.items()} == {0: 0, 1: 1}
    assert found[1].id == base, "the last task carries the id of the whole array"
    assert job_of(bench, found[0].id) == found[0]


def test_the_components_of_a_het_job_are_jobs_of_their_own(bench: Bench) -> None:
    first, second = bench.free(2)
    leader = bench.submit_het(first, second)
    found = [wait_for(bench, f"{leader}+{offset}", "RUNNING") for offset in (0, 1)]
    assert found[0].id == leader
    assert [(job.het_job, job.het_offset, job.nodes) for job in found] == [
        (leader, 0, (first,)),
        (leader, 1, (second,)),
    ]
    in_snapshot = bench.scheduler.snapshot().jobs
    assert [in_snapshot[job.id].het_offset for job in found] == [0, 1]


def test_an_unknown_node_is_named_as_such_by_every_call(bench: Bench) -> None:
    for call, ask in ON_NODES.items():
        with pytest.raises(UnknownNode) as caught:
            ask(bench.scheduler, "gpu9999")
        assert caught.value.code == 2018, call
    assert "healer_attack" not in bench.scheduler.snapshot().reservations


def test_an_unknown_job_is_none_and_refused_by_every_other_call(bench: Bench) -> None:
    assert bench.scheduler.job("999999") is None
    for call, ask in ON_JOBS.items():
        if call is not SlurmCall.job:
            with pytest.raises(SchedulerRefused) as caught:
                ask(bench.scheduler, "999999")
            assert caught.value.code == 2017, call


def test_an_unknown_reservation_is_refused(bench: Bench) -> None:
    for call, ask in ON_RESERVATIONS.items():
        for name in ("healer_none", "", "-a", "x y", "x\n", "x,y"):
            with pytest.raises(SchedulerRefused) as caught:
                ask(bench.scheduler, name)
            assert caught.value.code == 2053, (call, name)


def test_a_name_that_attacks_slurm_is_no_node_for_any_call(bench: Bench) -> None:
    for name in NODE_ATTACKS:
        for call, ask in ON_NODES.items():
            with pytest.raises(UnknownNode):
                ask(bench.scheduler, name)
                pytest.fail(f"{call} took {name!r}")
    picture = bench.scheduler.snapshot()
    assert not any(node.held or node.after_reboot or node.comment for node in picture.nodes.values())
    assert "healer_attack" not in picture.reservations


def test_a_name_that_attacks_slurm_is_no_job_for_any_call(bench: Bench) -> None:
    for job in JOB_ATTACKS:
        for call, ask in ON_JOBS.items():
            with pytest.raises(SchedulerRefused):
                ask(bench.scheduler, job)
                pytest.fail(f"{call} took {job!r}")


def test_a_text_that_is_no_line_is_never_sent(bench: Bench) -> None:
    node = bench.free()[0]
    job = running(bench, node)
    slurm = bench.scheduler
    for text in ("two\nlines", "a\x00zero", "\x1b[2J"):
        for call in (
            lambda text=text: slurm.drain(node, text),
            lambda text=text: slurm.down(node, text),
            lambda text=text: slurm.reboot(node, text),
            lambda text=text: slurm.annotate(node, comment=text),
            lambda text=text: slurm.remark(job, text),
            lambda text=text: slurm.notify(job, text),
        ):
            with pytest.raises(ValueError):
                call()
    with pytest.raises(ValueError):
        slurm.signal(job, "-9 1")
    found = slurm.node(node)
    assert not found.held and not found.comment
    assert (job_of(bench, job).state, job_of(bench, job).admin_comment) == ("RUNNING", "")


def test_the_simulated_slurm_runs_as_a_process(sim_process: SimClient) -> None:
    job = sim_process.add_job(nodes=2, gpus=8)
    sim_process.drain("gpu0001", OURS)
    picture = sim_process.snapshot()
    assert len(picture.nodes) == 4
    assert picture.nodes["gpu0001"].reason == OURS
    assert picture.jobs[job].nodes == ("gpu0001", "gpu0002")
