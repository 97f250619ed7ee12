"""What every `ports.Scheduler` does with reservations, and the tested order of a validation in one.

"Pitfall N" is number N of the list of Slurm's pitfalls in docs/slurm.md.
"""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from healer.model import Reservation
from healer.ports.scheduling import SchedulerRefused, UnknownNode
from tests.integration.benches import PATIENCE_S, Bench, job_of, running, submission, wait_for
from tests.support.wait import wait_until

OURS = "healer:gpu-lost inc:1a2b3c4d GPU 3 fell off the bus (Xid 79)"
NAME = "healer_1a2b3c4d"


def maintenance(*nodes: str, name: str = NAME) -> Reservation:
    return Reservation(name=name, nodes=tuple(sorted(nodes)), users=("root",), maintenance=True)


def read(bench: Bench, name: str = NAME) -> Reservation | None:
    return bench.scheduler.snapshot().reservations.get(name)


def test_pitfall_18_maintenance_reservation_starts_over_jobs_and_is_listed_at_once(
    bench: Bench,
) -> None:
    node = bench.free()[0]
    job = running(bench, node)
    bench.scheduler.reserve(maintenance(node))
    # The list of reservations shows it now; the node's own flag comes seconds later on a real Slurm.
    found = read(bench)
    assert found is not None and found.maintenance and found.until is None
    assert (found.nodes, found.users) == ((node,), ("root",))
    assert found.since is not None and abs(found.since - datetime.now(UTC)) < timedelta(seconds=30)
    assert job_of(bench, job).state == "RUNNING"
    wait_until(
        lambda: "MAINTENANCE" in bench.scheduler.node(node).state, PATIENCE_S, what="its flag", every_s=0.1
    )
    assert bench.scheduler.node(node).planned
    bench.scheduler.unreserve(NAME)
    assert read(bench) is None
    wait_until(lambda: not bench.scheduler.node(node).planned, PATIENCE_S, what="no flag", every_s=0.1)


def test_the_same_name_again_is_refused_and_gone_is_gone(bench: Bench) -> None:
    node, other = bench.free(2)
    bench.scheduler.reserve(maintenance(node))
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.reserve(maintenance(other))
    assert caught.value.code == 2082
    assert read(bench) is not None and read(bench) == bench.scheduler.snapshot().reservations[NAME]
    bench.scheduler.unreserve(NAME)
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.unreserve(NAME)
    assert caught.value.code == 2053


def test_invalid_reservations_are_never_sent(bench: Bench) -> None:
    node = bench.free()[0]
    for wrong, error in (
        (maintenance(node, name="x y"), SchedulerRefused),
        (maintenance(node, name="-x"), SchedulerRefused),
        (maintenance(name="x"), ValueError),
        (maintenance(node, "gpu[1-3]", name="x"), UnknownNode),
        (Reservation(name="x", nodes=(node,)), ValueError),
        (Reservation(name="x", nodes=(node,), users=("a b",)), ValueError),
    ):
        with pytest.raises(error):
            bench.scheduler.reserve(wrong)
    with pytest.raises(ValueError):
        bench.scheduler.change_reservation(NAME, [])
    assert bench.scheduler.snapshot().reservations == {}


def test_trap_spares_are_kept_for_their_users_and_handed_over_one_by_one(bench: Bench) -> None:
    first, second, busy = bench.free(3)
    running(bench, busy)
    spares = Reservation(name="spares", nodes=tuple(sorted([first, second])), users=("root",))
    with pytest.raises(SchedulerRefused):
        bench.scheduler.reserve(Reservation(name="spares", nodes=(busy,), users=("root",)))
    bench.scheduler.reserve(spares)
    waiting = bench.submit(first)
    wait_until(lambda: job_of(bench, waiting).reason not in {"", "None", "Priority"}, 10, what="a reason")
    assert job_of(bench, waiting).state == "PENDING"
    bench.scheduler.change_reservation("spares", [second])
    bench.scheduler.change_reservation("spares", [second])
    found = read(bench, "spares")
    assert found is not None and (found.nodes, found.maintenance) == ((second,), False)
    assert wait_for(bench, waiting, "RUNNING").nodes == (first,)
    with pytest.raises(SchedulerRefused):
        bench.scheduler.change_reservation("spares", [second, "gpu9999"])
    found = read(bench, "spares")
    assert found is not None and found.nodes == (second,)


@pytest.mark.parametrize(
    ("script", "state", "code"), [("exit 0", "COMPLETED", "0"), ("exit 5", "FAILED", "5")]
)
def test_trap_validation_reserve_then_resume_then_test_inside(
    bench: Bench, script: str, state: str, code: str
) -> None:
    """The test waits while its node is drained; users' jobs stay out although the node is in service."""
    node = bench.free()[0]
    bench.scheduler.drain(node, OURS)
    bench.scheduler.reserve(maintenance(node))
    test = bench.scheduler.submit(submission(node, script=f"#!/bin/sh\n{script}\n", reservation=NAME))
    waiting = wait_for(bench, test, "PENDING")
    assert (waiting.reservation, waiting.name, waiting.comment) == (
        NAME,
        "healer-test-1a2b3c4d",
        "healer test",
    )
    assert waiting.requeue is False
    users = bench.submit(node)
    bench.scheduler.resume(node)
    bench.ends(test, int(code))
    ended = wait_for(bench, test, state)
    assert (ended.exit_code, ended.nodes) == (code, (node,))
    assert job_of(bench, users).state == "PENDING"
    if state == "COMPLETED":
        bench.scheduler.unreserve(NAME)
        assert wait_for(bench, users, "RUNNING").nodes == (node,)
    else:
        bench.scheduler.drain(node, OURS)
        bench.scheduler.unreserve(NAME)
        assert bench.scheduler.node(node).drain
        assert job_of(bench, users).state == "PENDING"


def test_a_job_of_a_flexible_reservation_has_a_partner_outside_of_it(bench: Bench) -> None:
    """Tests of two nodes: one in our reservation, and one in service."""
    node, partner = bench.free(2)
    bench.scheduler.reserve(msgspec.structs.replace(maintenance(node), flags=("FLEX",)))
    found = read(bench)
    assert found is not None and found.maintenance and "FLEX" in found.flags
    alone = submission(node, reservation=NAME, script="#!/bin/sh\nexec sleep 60\n")
    job = bench.scheduler.submit(msgspec.structs.replace(alone, nodes=(node, partner)))
    assert set(wait_for(bench, job, "RUNNING").nodes) == {node, partner}
    assert not bench.scheduler.node(partner).planned
    bench.scheduler.cancel(job)
    wait_for(bench, job, "CANCELLED")
    bench.scheduler.unreserve(NAME)


def test_a_submission_that_slurm_cannot_take_is_refused(bench: Bench) -> None:
    node = bench.free()[0]
    with pytest.raises(SchedulerRefused) as caught:
        bench.scheduler.submit(submission(node, reservation="healer_none"))
    assert caught.value.code == 2053
    with pytest.raises(ValueError):
        bench.scheduler.submit(submission(node, script="exit 0"))
    assert not [job for job in bench.scheduler.snapshot().jobs.values() if job.active and node in job.nodes]


def test_a_test_runs_on_a_node_that_is_one_of_the_sites_spares_too(bench: Bench) -> None:
    """As after a swap: the node has a place among the spares, and is tested there before it is one."""
    node = bench.free()[0]
    bench.scheduler.reserve(Reservation(name="spares", nodes=(node,), users=("nobody",)))
    bench.scheduler.reserve(maintenance(node))
    test = bench.scheduler.submit(submission(node, script="#!/bin/sh\nexit 0\n", reservation=NAME))
    bench.ends(test, 0)
    assert wait_for(bench, test, "COMPLETED").nodes == (node,)
