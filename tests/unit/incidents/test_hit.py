"""What a fault cost the jobs that it hit."""

from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from healer.incidents import impact
from healer.incidents.impact import (
    has_unsettled_hits,
    loss_text,
    losses_by_restart,
    total_loss_text,
)
from healer.model import (
    Component,
    Evidence,
    FaultClass,
    HitBasis,
    Incident,
    JobCheckpoint,
    JobHit,
    Sense,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.observations import Picture
from tests.support.loop import CLUSTER, START, later

BEGAN = START - timedelta(hours=2)
HERE = Component(cluster=CLUSTER, node="gpu0001", gpu=3)


def incident(*, fatal: bool = True, **fields: Any) -> Incident:
    evidence = Evidence(digest="d", at=START, component=HERE, text="x", sense=Sense.kernel, fatal=fatal)
    given: dict[str, Any] = {
        "id": "a" * 32,
        "cluster": CLUSTER,
        "rule": "gpu-fatal",
        "fault": "xid-95",
        "fault_class": FaultClass.fatal if fatal else FaultClass.degraded,
        "title": "x",
        "root": HERE,
        "opened": START,
        "updated": START,
        "settle_until": START,
        "jobs_hit": ("4711",),
        "evidence": (evidence,),
    }
    return Incident(**(given | fields))


def job(**fields: Any) -> SlurmJob:
    given: dict[str, Any] = {
        "id": "4711",
        "state": "RUNNING",
        "nodes": ("gpu0001", "gpu0002"),
        "user": "alice",
        "start_at": BEGAN,
    }
    return SlurmJob(**(given | fields))


AGAIN = job(state="PENDING", nodes=(), restarts=1, start_at=None)


def shown(*jobs: SlurmJob) -> SlurmSnapshot:
    nodes = {name: SlurmNode(name=name, state=("ALLOCATED",), gpus=8) for name in ("gpu0001", "gpu0002")}
    return SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes=nodes, jobs={one.id: one for one in jobs})


def saved(at: datetime, restart: int = 0) -> JobCheckpoint:
    return JobCheckpoint(job="4711", restart=restart, step=1, path="/c", at=at, arrived_at=at)


def with_hits(one: Incident, snapshot: SlurmSnapshot | None, newest: Any, now: datetime) -> Incident:
    picture = Picture(CLUSTER, watching_since=START)
    if snapshot is not None:
        picture.show(snapshot)

    def kept(job: str, since: datetime | None) -> JobCheckpoint | None:
        found = newest(job)
        return found if found is None or since is None or found.arrived_at >= since else None

    return impact.with_hits(one, picture, kept, now)


def hit(
    one: Incident,
    *pictures: SlurmSnapshot | None,
    checkpoint: JobCheckpoint | None = None,
    now: datetime = START,
) -> JobHit:
    for picture in pictures:
        one = with_hits(one, picture, lambda _: checkpoint, now)
    (found,) = one.hit
    return found


def test_a_fatal_fault_costs_the_work_since_the_last_durable_checkpoint() -> None:
    found = hit(incident(), shown(job()), checkpoint=saved(START - timedelta(minutes=30)))
    assert (found.user, found.gpus, found.nodes) == ("alice", 16, 2)
    assert (found.basis, found.lost_gpu_hours, found.ended_at) == (HitBasis.checkpoint, 8.0, START)


def test_without_one_it_costs_at_most_all_since_the_life_began() -> None:
    found = hit(incident(), shown(job()), checkpoint=saved(START, restart=1))
    assert (found.basis, found.at_most, found.lost_gpu_hours) == (HitBasis.start, True, 32.0)


def test_a_checkpoint_of_an_earlier_job_of_that_number_saved_nothing_of_this_one() -> None:
    """slurmctld lost its state a month ago, and counts jobs from the first number again."""
    found = hit(incident(), shown(job()), checkpoint=saved(START - timedelta(days=40)))
    assert (found.basis, found.lost_gpu_hours) == (HitBasis.start, 32.0)


def test_a_heterogeneous_job_loses_the_work_of_all_its_components() -> None:
    """It is restarted as a whole."""
    leader = job(nodes=("gpu0001",), het_job="4711", het_offset=0)
    other = job(id="4712", nodes=("gpu0002",), het_job="4711", het_offset=1)
    found = hit(incident(), shown(leader, other), checkpoint=saved(START - timedelta(minutes=30)))
    assert (found.gpus, found.nodes, found.lost_gpu_hours) == (16, 2, 8.0)


def test_only_the_gpus_that_the_job_held_count() -> None:
    shared = job(gpus={"gpu0001": (3,), "gpu0002": ()})
    assert hit(incident(), shown(shared)).gpus == 1


def test_a_checkpoint_after_the_fault_shows_that_the_work_went_on() -> None:
    one = with_hits(incident(), shown(job()), lambda _: saved(later(60)), later(90))
    assert one.hit[0].basis is HitBasis.runs_on
    assert has_unsettled_hits(one)


def test_a_job_that_began_after_the_fault_lost_nothing_by_it() -> None:
    assert hit(incident(), shown(job(start_at=later(10)))).basis is HitBasis.runs_on


@pytest.mark.parametrize(
    ("then", "basis", "lost"),
    [
        (job(), HitBasis.runs_on, None),
        (job(state="COMPLETED", end_at=later(60)), HitBasis.ended, 0.0),
        (job(state="CANCELLED", end_at=later(60)), HitBasis.ended, 0.0),
        (job(state="NODE_FAIL", end_at=later(60)), HitBasis.start, 32.27),
        (job(state="FAILED", end_at=later(590)), HitBasis.ended, 0.0),
        (AGAIN, HitBasis.ended, 0.0),
        (None, HitBasis.unknown, None),
    ],
)
def test_degraded_fault_costs_gpu_hours_only_if_it_ends_the_job(
    then: SlurmJob | None, basis: HitBasis, lost: float | None
) -> None:
    pictures = (shown(job()), shown(then) if then else shown())
    found = hit(incident(fatal=False), *pictures, now=later(600))
    assert (found.basis, found.lost_gpu_hours, found.user) == (basis, lost, "alice")


def test_a_restart_that_healer_made_for_it_costs_the_work_before() -> None:
    found = hit(incident(fatal=False, run_count=1), shown(job()), shown(AGAIN), now=later(600))
    assert (found.basis, found.lost_gpu_hours) == (HitBasis.start, 34.67)


def test_a_job_that_waits_again_before_its_fault_is_known_lost_what_it_held_then() -> None:
    picture = Picture(CLUSTER, watching_since=START)
    for slurm in (shown(job()), msgspec.structs.replace(shown(AGAIN), taken_at=later(20))):
        picture.show(slurm)
    (found,) = impact.with_hits(incident(), picture, lambda *_: None, later(30)).hit
    assert (found.restart, found.gpus, found.nodes) == (0, 16, 2)
    assert (found.basis, found.lost_gpu_hours) == (HitBasis.start, 32.0)


def test_job_that_slurm_never_showed_is_settled_as_unknown() -> None:
    one = with_hits(incident(), shown(), lambda _: None, START)
    assert [(it.basis, it.lost_gpu_hours) for it in one.hit] == [(HitBasis.unknown, None)]
    assert not has_unsettled_hits(one)
    assert with_hits(incident(), None, lambda _: None, START).hit == one.hit


def test_a_job_that_was_not_hit_after_all_is_dropped() -> None:
    before = with_hits(incident(jobs_hit=("4711", "9")), shown(job(), job(id="9")), lambda _: None, START)
    final = incident(hit=before.hit, jobs_hit=("4711",))
    assert has_unsettled_hits(final)
    after = with_hits(final, shown(job(), job(id="9")), lambda _: None, START)
    assert [it.job for it in before.hit] == ["4711", "9"]
    assert [it.job for it in after.hit] == ["4711"]


def test_a_life_is_lost_once_however_many_incidents_hit_it() -> None:
    def lost(hours: float | None, restart: int = 0) -> Incident:
        return incident(
            hit=(JobHit(job="4711", basis=HitBasis.start, restart=restart, lost_gpu_hours=hours),)
        )

    found = losses_by_restart("4711", [lost(3.0), lost(5.0), lost(None), lost(1.0, 1)])
    assert {life: one.lost_gpu_hours for life, one in found.items()} == {0: 5.0, 1: 1.0}
    assert losses_by_restart("9", [lost(3.0)]) == {}


def test_the_loss_in_words() -> None:
    known = JobHit(job="1", basis=HitBasis.checkpoint, since=START, lost_gpu_hours=32.0)
    at_most = JobHit(job="2", basis=HitBasis.start, lost_gpu_hours=1200.5)
    unknown = JobHit(job="3", basis=HitBasis.unknown)
    assert loss_text(known) == "32 GPU-hours lost since the checkpoint of 20 Nov 03:00 UTC"
    assert loss_text(at_most) == "at most 1,200 GPU-hours lost: no durable checkpoint was reported"
    assert total_loss_text((known, at_most, unknown)) == "1,232 GPU-hours lost, up to 1,200 of them uncertain"
    assert total_loss_text((at_most,)) == "at most 1,200 GPU-hours lost"
    assert total_loss_text((unknown,)) == ""
