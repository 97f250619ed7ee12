"""A drain that Slurm makes because a hook was permitted to fail is ours, and so is the hold on its job."""

from datetime import timedelta

import msgspec
import pytest

from healer.model import FaultClass, Mode, Observation, ObservationKind, Permit, RunState, SlurmNode
from healer.model.gate import is_held_after_launch, permit_for
from healer.observations.node_picture import CHECKS_KEPT
from healer.signals.hook_reports import arrivals, hook_reports
from tests.support.loop import CLUSTER, LOST, START, Site, later, name

NODE = name(1)


def permit(hook: str = "prolog", *, at_s: float = 0, job: str | None = "4711", **more: object) -> Permit:
    at = later(at_s)
    given = {"id": f"{job}.0", "restarts": 0, "incident": None, "run": "r"} | more
    return Permit(
        cluster=CLUSTER, node=NODE, hook=hook, at=at, until=at + timedelta(seconds=60), job=job, **given
    )  # fmt: skip


def drained(reason: str, at_s: float) -> SlurmNode:
    return SlurmNode(name=NODE, state=("IDLE", "DRAIN"), reason=reason, reason_at=later(at_s))


@pytest.mark.parametrize(
    ("reason", "at_s", "ours"),
    [
        ("Prolog error", 1, True),
        ("Prolog error", 60, True),
        ("Prolog error", 61, False),
        ("Prolog error", -6, False),
        ("Epilog error", 1, False),
        ("bob: Prolog error", 1, False),
        ("Kill task failed", 1, False),
    ],
)
def test_a_drain_is_ours_by_its_reason_and_its_moment(reason: str, at_s: float, ours: bool) -> None:
    assert (permit_for(drained(reason, at_s), [permit()]) is not None) is ours


def test_another_nodes_permit_says_nothing() -> None:
    other = SlurmNode(name=name(2), state=("IDLE", "DRAIN"), reason="Prolog error", reason_at=later(1))
    assert permit_for(other, [permit()]) is None


# --- through the loop, with a simulated Slurm -------------------------------------------------------------


def begun(site: Site) -> str:
    """A job that runs on the node; its id."""
    job = site.slurm.add_job()
    site.look()
    assert [one.id for one in site.slurm.jobs_on(NODE)] == [job]
    return job


def refused(site: Site, job: str, **more: object) -> None:
    """The prolog of a job on the node failed; Slurm drains the node and holds the job."""
    site.ledger.tables.permits.append(permit(job=job, at_s=(site.now - START).total_seconds(), **more))
    site.slurm.fail_launch(job)


def slurms_drains(site: Site) -> list[str]:
    return [one.fault for one in site.incidents if one.fault.startswith("slurm-drain")]


def test_our_reason_replaces_slurms_and_the_drain_stays_ours() -> None:
    site = Site()
    job = begun(site)
    site.walk(*site.say(1, LOST))
    site.clock.advance(3)
    site.walk()  # the run has begun and holds the node; its drain step has not come yet
    refused(site, job)
    assert site.slurm.node(NODE).reason == "Prolog error"
    site.run_for(5)
    shown = site.slurm.node(NODE)
    assert shown.drain and shown.reason.startswith("healer:gpu-lost inc:")
    assert slurms_drains(site) == []
    now = site.slurm.job(job)
    assert now is not None and not now.held_by


def test_without_a_permit_it_is_slurms_drain_and_the_job_stays_held() -> None:
    site = Site()
    job = begun(site)
    site.slurm.fail_launch(job)
    site.run_for(30)
    assert slurms_drains(site) == ["slurm-drain:prolog-error"]
    shown = site.slurm.job(job)
    assert shown is not None and is_held_after_launch(shown)


def test_a_hold_that_comes_in_a_later_life_of_the_job_is_not_lifted() -> None:
    site = Site()
    job = begun(site)
    site.walk(*site.say(1, LOST))
    refused(site, job, restarts=5)
    site.run_for(30)
    shown = site.slurm.job(job)
    assert shown is not None and shown.held_by


def test_a_hold_is_lifted_only_where_the_hooks_node_is_drained() -> None:
    site = Site()
    job = begun(site)
    site.slurm.fail_launch(job)
    elsewhere = msgspec.structs.replace(permit(job=job), node=name(2))
    site.ledger.tables.permits.append(elsewhere)
    site.run_for(30)
    shown = site.slurm.job(job)
    assert shown is not None and shown.held_by


@pytest.mark.parametrize("mode", [Mode.shadow, Mode.off])
def test_on_a_hooks_own_word_a_rule_that_is_only_watched_releases_nothing(mode: Mode) -> None:
    site = Site(mode=mode)
    job = begun(site)
    refused(site, job, run=None, check="gpu-count")
    site.run_for(20)
    shown = site.slurm.job(job)
    assert shown is not None and is_held_after_launch(shown)
    (run,) = [one for one in site.runs if one.playbook == "release-held"]
    assert (run.shadow, run.mode, run.state) == (True, mode, RunState.done)


def test_a_node_speaks_for_no_job_that_was_seen_on_another() -> None:
    site = Site()
    job = site.slurm.add_job(required=[name(2)])
    site.look()
    site.slurm.fail_launch(job)
    site.slurm.person_drain(NODE, "Prolog error", "root")
    site.ledger.tables.permits.append(permit(job=job, run=None, check="gpu-lost"))
    site.run_for(30)
    shown = site.slurm.job(job)
    assert shown is not None and is_held_after_launch(shown)


def test_a_persons_hold_is_not_lifted() -> None:
    site = Site()
    job = begun(site)
    site.walk(*site.say(1, LOST))
    refused(site, job)
    site.slurm.release(job)
    site.slurm.hold(job)
    site.run_for(30)
    shown = site.slurm.job(job)
    assert shown is not None and shown.held_by


def test_a_release_that_was_done_is_not_done_again() -> None:
    site = Site()
    job = begun(site)
    site.walk(*site.say(1, LOST))
    refused(site, job)
    site.run_for(60)
    runs = [run for run in site.runs if run.playbook == "release-held"]
    assert [run.state for run in runs] == ["done"]


def test_a_death_in_the_release_is_taken_up() -> None:
    site = Site()
    job = begun(site)
    site.walk(*site.say(1, LOST))
    site.clock.advance(3)
    site.walk()
    refused(site, job)
    site.clock.advance(5)  # the job was completing
    site.walk()
    site.drive_to("started:release")
    site.run_for(10)
    shown = site.slurm.job(job)
    assert shown is not None and not shown.held_by


def test_a_hook_that_failed_by_the_sites_list_while_healer_was_away_is_ours_afterwards() -> None:
    site = Site()
    job = begun(site)
    refused(site, job, run=None, check="gpu-lost")
    site.run_for(5, *site.say(1, LOST))
    assert site.slurm.node(NODE).reason.startswith("healer:gpu-lost inc:")


# --- checks of the node's own -------------------------------------------------------------------------------


def hook(
    site: Site, check: str, text: str, *, at_s: float = 0, hook: str = "health-check"
) -> list[Observation]:
    at = later(at_s)
    body = {"node": NODE, "time": at.isoformat(), "boot_id": "b1", "checks": [{"name": check, "text": text}]}
    seen = hook_reports(body, hook, lambda _c, _n: True, max(at, site.now), cluster=CLUSTER)
    assert not seen.rejected
    return [one for one, _ in arrivals(seen)]


def test_a_check_that_fails_is_an_incident_whose_drain_passes_the_gate() -> None:
    site = Site()
    site.run_for(10, *hook(site, "probe", "ERROR:  nhc:  Health check failed:  disk"))
    assert (site.incident.rule, site.incident.fault_class) == ("node-check", FaultClass.degraded)
    assert site.slurm.node(NODE).reason.startswith("healer:node-check inc:")


def test_a_check_of_a_kind_that_no_rule_takes_is_only_stored() -> None:
    site = Site()
    site.run_for(10, *hook(site, "odd-fans", "a fan of the site's own check"))
    assert site.incidents == []


def test_passing_check_ends_what_has_no_run() -> None:
    site = Site()
    site.pause()
    site.run_for(10, *hook(site, "fs-full", "/tmp is full"))
    assert site.incident.held_by == "pause"
    site.run_for(5, *hook(site, "fs-full", "", at_s=10))
    assert site.open_incidents == []


def relayed(seen: list[Observation]) -> list[Observation]:
    return [msgspec.structs.replace(one, digest=f"r {one.digest}", relayed_by="r (r1)") for one in seen]


def test_a_relay_s_pass_ends_no_failure_that_the_node_itself_reports() -> None:
    site = Site()
    site.pause()
    site.run_for(10, *hook(site, "fs-full", "/tmp is full"))
    site.run_for(5, *relayed(hook(site, "fs-full", "", at_s=10)))
    assert site.incident.held_by == "pause"


def test_a_relay_s_pass_hides_no_failure_that_the_node_itself_reports_later() -> None:
    site = Site()
    site.clock.advance(100)
    site.walk(*relayed(hook(site, "fs-full", "", at_s=100)))
    site.run_for(10, *hook(site, "fs-full", "/tmp is full", at_s=99))
    assert [one.fault for one in site.incidents] == ["hook:fs-full"]


def test_names_that_a_relay_makes_up_keep_no_check_of_the_node_away() -> None:
    """The pass would not be recorded, and its incident never end."""
    site = Site()
    site.pause()
    for number in range(CHECKS_KEPT):
        site.walk(*relayed(hook(site, f"made-up-{number}", "")))
    site.run_for(10, *hook(site, "fs-full", "/tmp is full"))
    assert len(site.open_incidents) == 1
    site.run_for(5, *hook(site, "fs-full", "", at_s=10))
    assert site.open_incidents == []


def test_an_old_failure_from_a_spool_opens_nothing_after_a_newer_pass() -> None:
    site = Site()
    site.clock.advance(100)
    both = [*hook(site, "fs-full", "/tmp is full", at_s=10), *hook(site, "fs-full", "", at_s=100)]
    site.run_for(10, *both)
    assert site.incidents == []


def test_a_hook_is_no_sender_that_could_fall_silent() -> None:
    site = Site()
    for second in range(0, 50, 10):
        site.run_for(10, *hook(site, "fs-full", "", at_s=second))
    site.run_for(600, step_s=10)
    assert site.incidents == []
    assert all(one.kind is ObservationKind.hook for one in hook(site, "fs-full", ""))
