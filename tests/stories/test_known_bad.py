"""A node that is known bad and must stay in service: jobs that are put back are kept off it, for as long."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import msgspec
import pytest

from healer.model import Mode, Run, RunState, SlurmCall, SlurmJob
from healer.ports.scheduling import NotAvailable, Scheduler
from healer.sim.sim_slurm import SimScheduler
from tests.support.jobs import NODE, Lacking, guards, job_of, site_of
from tests.support.loop import LOST, Crash, Site, beat, equip, name

BAD, OWN = name(2), name(9)


def bad_in_service() -> tuple[Site, str]:
    """gpu0002 is lost and must stay: 8 of 10 nodes is the floor, and ann has two. A job has lost its place on
    gpu0001 to ann's next drain, and all others are full; (the site, the job)."""
    site = site_of(settings=guards(min_service_share=0.8, share_per_hour=1.0, max_share=0.5))
    for number in (9, 10):
        site.slurm.person_drain(name(number), "RMA", "ann")
    for number in (3, 4, 5, 6, 7, 8, 10):
        site.slurm.add_job(required=[name(number)])
    job = site.slurm.add_job(excluded=[OWN])
    assert job_of(site, job).nodes == (NODE,)
    site.slurm.remark(job, "ask bob")
    site.run_for(20, *site.say(2, LOST))
    assert [one.root.node for one in site.open_incidents if one.known_bad_in_service] == [BAD]
    site.slurm.person_drain(NODE, "cabling", "ann")
    by_hand(site, job)
    return site, job


def by_hand(site: Site, job: str) -> Run:
    """ann requeues the job."""
    run = Run(
        id=f"r-hand-{len(site.runs)}", cluster="pod1", playbook="requeue", state=RunState.running, by="ann",
        reason="hangs", created_at=site.now, job=job, input={"restarts": job_of(site, job).restarts},
    )  # fmt: skip
    with site.ledger.transaction() as tx:
        tx.create_run(run)
    return run


def test_pitfall_14_a_job_is_kept_off_a_known_bad_node_and_exactly_that_is_taken_back() -> None:
    site, job = bad_in_service()
    site.run_for(20)
    shown = job_of(site, job)
    assert (shown.state, shown.restarts, shown.excluded) == ("PENDING", 1, (OWN, BAD))
    assert shown.admin_comment == f"ask bob | healer: off:{BAD}"
    site.slurm.resume(name(9))
    site.slurm.resume(name(10))
    site.run_for(20)
    assert site.node(2).drain, "there is room now: it goes out"
    shown = job_of(site, job)
    assert (shown.state, shown.excluded, shown.admin_comment) == ("PENDING", (OWN,), "ask bob")
    (run,) = [one for one in site.runs if one.playbook == "release"]
    assert run.state is RunState.done
    assert site.audited("job.released") == 1


class Reasonless:
    """As a Slurm whose scheduler makes its next pass much later: a change of a waiting job clears its reason,
    but not its begin time (seen on 22.05)."""

    def __init__(self, slurm: SimScheduler) -> None:
        self.slurm, self.name, self.changed = slurm, "reasonless", set[str]()

    def __getattr__(self, call: str) -> Any:
        return getattr(self.slurm, call)

    def exclude(self, job: str, nodes: Sequence[str]) -> None:
        self.slurm.exclude(job, nodes)
        self.changed.add(job)

    def job(self, job: str) -> SlurmJob | None:
        found = self.slurm.job(job)
        waits = found is not None and found.id in self.changed and found.reason == "BeginTime"
        return msgspec.structs.replace(found, reason="") if found is not None and waits else found


def test_a_job_that_is_kept_off_a_known_bad_node_starts_at_once_too() -> None:
    site, job = bad_in_service()
    equip(site.driver, scheduler=cast(Scheduler, Reasonless(site.slurm)))
    (other,) = site.slurm.jobs_on(name(3))
    site.slurm.complete(other.id)
    site.run_for(20)
    shown = job_of(site, job)
    assert (shown.state, shown.nodes, shown.restarts) == ("RUNNING", (name(3),), 1)


def test_a_job_that_slurm_has_not_looked_at_again_is_not_said_to_start() -> None:
    """Slurm shows no reason yet, and there is no room: it may wait for hours."""
    site, job = bad_in_service()
    equip(site.driver, scheduler=cast(Scheduler, Reasonless(site.slurm)))
    site.run_for(20)
    assert job_of(site, job).state == "PENDING"
    (run,) = [one for one in site.runs if one.by == "ann"]
    said = site.log(run.id, "requeue")[-1].text
    assert said == f"Job {job} was requeued (restart 1) and waits for Slurm's next scheduling pass"


def test_job_that_starts_on_a_known_bad_node_is_hit_too() -> None:
    site, _ = bad_in_service()
    taken = site.slurm.add_job(required=[BAD])
    site.run_for(10)
    (incident,) = [one for one in site.open_incidents if one.root.node == BAD]
    assert taken in incident.jobs_hit
    assert not incident.jobs_hit_final


def test_a_job_that_was_requeued_off_a_known_bad_node_stays_hit_when_the_node_goes_out() -> None:
    """Its incident restarted it: the list that the run makes hours later, of an empty node, is no reason to
    forget whom the fault hit."""
    site = site_of(settings=guards(min_service_share=0.8, share_per_hour=1.0, max_share=0.5))
    for number in (9, 10):
        site.slurm.person_drain(name(number), "RMA", "ann")
    job = site.slurm.add_job(required=[BAD])
    site.clock.advance(60)
    site.run_for(20, *site.say(2, LOST))
    (held,) = [one for one in site.open_incidents if one.root.node == BAD]
    assert (held.known_bad_in_service, held.jobs_hit, job_of(site, job).restarts) == (True, (job,), 1)
    site.slurm.resume(name(9))
    site.slurm.resume(name(10))
    site.run_for(20)
    (taken,) = [one for one in site.open_incidents if one.root.node == BAD]
    assert site.node(2).drain
    assert (taken.jobs_hit, taken.jobs_hit_final) == ((job,), True)


def test_a_take_back_whose_job_began_to_run_meanwhile_is_over_and_blocks_no_later_one() -> None:
    site, job = bad_in_service()
    site.run_for(20)
    site.pause()
    site.slurm.resume(name(9))
    site.slurm.resume(name(10))
    site.run_for(5)
    with site.ledger.transaction() as tx:
        tx.save_incident(
            msgspec.structs.replace(
                next(one for one in site.open_incidents if one.root.node == BAD), known_bad_in_service=False
            )
        )
    site.run_for(2)
    (run,) = [one for one in site.runs if one.playbook == "release"]
    site.slurm.resume(NODE)  # the job starts
    site.end_pause()
    site.run_for(400, step_s=5)
    assert job_of(site, job).state == "RUNNING"
    assert site.ledger.tables.runs[run.id].state is RunState.done
    site.slurm.requeue(job)
    site.run_for(20)
    assert job_of(site, job).excluded == (OWN,)


def test_exclusion_of_a_running_job_is_withdrawn_when_it_is_pending_again() -> None:
    site, job = bad_in_service()
    site.run_for(20)
    site.slurm.resume(NODE)
    site.run_for(5)
    assert job_of(site, job).nodes == (NODE,)
    site.slurm.resume(name(9))
    site.slurm.resume(name(10))
    site.run_for(20)
    assert site.node(2).drain
    assert job_of(site, job).excluded == (OWN, BAD)
    assert [one for one in site.runs if one.playbook == "release"] == []
    site.slurm.requeue(job)
    site.run_for(20)
    assert job_of(site, job).excluded == (OWN,)


def kept_off_checkpoints() -> list[str]:
    site, _ = bad_in_service()
    site.run_for(20)
    site.slurm.resume(name(9))
    site.slurm.resume(name(10))
    site.run_for(20)
    return [one for one in dict.fromkeys(site.checkpoints) if "drain" not in one]


@pytest.mark.parametrize("where", kept_off_checkpoints())
def test_a_crash_at_any_line_leaves_no_exclusion_behind(where: str) -> None:
    site, job = bad_in_service()
    died = []

    def die(at: str) -> None:
        if at == where and not died:
            died.append(at)
            raise Crash(at)

    site.on_checkpoint = die
    for resumes in (False, True):
        if resumes:
            site.slurm.resume(name(9))
            site.slurm.resume(name(10))
        try:
            site.run_for(20)
        except Crash:
            site.run_for(20)
    assert died
    shown = job_of(site, job)
    assert (shown.restarts, shown.excluded, shown.admin_comment) == (1, (OWN,), "ask bob")


def test_without_exclusion_the_job_still_starts_and_it_is_reported() -> None:
    site, job = bad_in_service()
    error = NotAvailable(SlurmCall.remark, "Slurm 20.11 keeps no admin comment")
    equip(site.driver, scheduler=cast(Scheduler, Lacking(site.slurm, error, "remark")))
    site.run_for(20)
    assert job_of(site, job).nodes == (BAD,)
    (run,) = [one for one in site.runs if one.by == "ann"]
    said = [one.text for one in site.log(run.id, "requeue")]
    assert any("Could not exclude gpu0002 from job" in text for text in said)


@pytest.mark.parametrize("beats", [False, True])
def test_a_gpu_that_is_lost_in_the_next_boot_too_was_seen_again(beats: bool) -> None:
    """The line is the first of its boot, or was written before the first heartbeat of it. As if older than
    the boot it counted for nothing: after 30 minutes the incident of the dead GPU was resolved."""
    site = Site(4, mode=Mode.approve)
    site.run_for(4, *site.say(1, LOST, boot_id="b1"))
    site.clock.advance(300)
    written_at = site.now - timedelta(seconds=20)
    if beats:
        site.run_for(2, beat(name(1), site.now, boot_id="b2"))
    site.run_for(4, *site.say(1, LOST, boot_id="b2", event_at=written_at))
    site.run_for(3600, step_s=60)
    assert site.incident.is_open and site.incident.waits_since is None
    (run,) = site.runs
    assert run.state is RunState.waiting_approval
