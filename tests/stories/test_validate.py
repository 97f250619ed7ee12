"""A node is tested where no user's job can be, in the order that Slurm allows, whatever dies on the way."""

from datetime import timedelta

import msgspec
import pytest

from healer.model import LogEntry, Reservation, RunState, SlurmCall, SlurmNode, StepEvent, Submission
from healer.playbooks.advance import UNDO
from healer.ports.scheduling import NotAvailable, SchedulerRefused, SchedulerUnavailable
from tests.support.loop import LOST, Crash, equip, name
from tests.support.under_test import TestSite, Written

NODE = name(1)
PASSED = ["drain", "reserve", "resume", "submit", "unreserve"]
FAILED = ["drain", "reserve", "resume", "submit", "drain", "unreserve"]


def asked(**fields: object) -> tuple[TestSite, str]:
    site = TestSite(**fields)  # type: ignore[arg-type]
    return site, site.ask("validate", 1)


def in_test(**fields: object) -> tuple[TestSite, str]:
    """The test job runs."""
    site, run = asked(**fields)
    site.run_for(20)
    assert site.running_test()
    return site, run


# --- the order ---


def test_a_node_that_passes_is_back_when_its_reservation_is_gone() -> None:
    site, run = in_test()
    site.want()
    site.run_for(10)
    assert not site.runs_theirs(), "it takes tests alone"
    site.slurm.complete(site.running_test())
    site.run_for(20)
    assert site.run_named(run).state is RunState.done
    assert site.scheduler.writes == PASSED
    assert site.reservations() == {}
    assert site.runs_theirs()
    assert (site.ledger.tables.slots, site.ledger.tables.vetoes) == ({}, [])
    assert [site.audited(one) for one in ("node.reserved", "node.diagnosed", "node.resumed")] == [1, 1, 1]


def test_a_node_that_fails_is_drained_before_its_reservation_ends() -> None:
    site, run = in_test()
    site.want()
    site.slurm.fail_job(site.running_test(), "3:0")
    site.run_for(30)
    assert site.scheduler.writes == FAILED
    assert site.node(1).drain and site.reservations() == {}
    assert site.run_named(run).state is RunState.waiting
    (test,) = (one for one in site.log(run, "test") if one.event is StepEvent.done)
    assert (test.data["passed"], test.data["exit_code"]) == (False, "3:0")
    assert "ticket" in site.done(run)
    assert not site.runs_theirs()
    assert list(site.ledger.tables.slots) == [NODE]


def test_pitfall_18_the_list_of_reservations_is_asked_and_not_the_flag() -> None:
    """The flag MAINTENANCE may come seconds later: what was read back of the reservation lifts the drain."""
    seen: list[tuple[bool, tuple[str, ...]]] = []

    class Slow(Written):
        def resume(self, node: str) -> None:
            kept = self.slurm.snapshot().reservations
            seen.append((bool(kept), next(iter(kept.values())).nodes))
            self.slurm.resume(node)

    site, _ = asked(scheduler=Slow)
    site.run_for(20)
    assert seen == [(True, (NODE,))]


def test_the_job_is_the_script_and_takes_all_gpus_of_the_node() -> None:
    site, run = in_test()
    (job,) = site.test_jobs()
    assert (job.nodes, job.gpus[NODE], job.user) == ((NODE,), tuple(range(8)), "root")
    assert job.comment == f"{run}:test:0"
    assert [one.users for one in site.reservations().values()] == [("root",)]


def test_the_nodes_own_tests_come_first_where_healer_reaches_nodes() -> None:
    site, run = asked()
    site.nodes.plant(NODE, "slow-gpu-3")
    site.run_for(40)
    assert site.test_jobs() == [], "nothing more to learn"
    assert "test" in site.done(run) and site.node(1).drain
    assert site.run_named(run).state is RunState.waiting


def test_without_a_way_to_nodes_the_job_alone_decides() -> None:
    site, run = asked()
    equip(site.driver, nodes=None)
    site.run_for(5)
    site.slurm.complete(site.running_test())
    site.run_for(20)
    assert site.run_named(run).state is RunState.done


# --- whose node it is ---


class DefaultElsewhere(Written):
    """Slurm's default partition has other nodes; the answer is that of a real 22.05 and 24.11."""

    def submit(self, submission: Submission) -> str:
        if not submission.partition:
            raise SchedulerRefused("Requested node configuration is not available")
        return self.slurm.submit(submission)


def test_a_node_that_is_not_in_the_default_partition_is_tested_in_its_own() -> None:
    site, run = in_test(scheduler=DefaultElsewhere)
    assert [job.partition for job in site.test_jobs()] == ["train"]
    site.slurm.complete(site.running_test())
    site.run_for(20)
    assert site.run_named(run).state is RunState.done


def test_a_user_who_takes_the_name_of_our_test_is_not_believed() -> None:
    site, run = asked()
    site.slurm.add_job(
        required=[name(2)], name=f"healer-test-{run[:8]}", comment=f"{run}:test:0", runtime_s=1
    )
    site.run_for(20)
    assert site.running_test()
    assert site.run_named(run).state is RunState.running


class Rewriting(Written):
    """Slurm of a site whose job_submit plugin gives every job another comment; its answer may be lost."""

    lost = False

    def submit(self, asked: Submission) -> str:
        self.writes.append("submit")
        job = self.slurm.submit(msgspec.structs.replace(asked, comment="account=42"))
        if self.lost:
            raise SchedulerUnavailable("no answer in 4 s")
        return job


def test_test_job_is_found_by_id_even_if_the_site_changes_its_comment() -> None:
    site, run = in_test(scheduler=Rewriting)
    site.run_for(120)
    site.slurm.complete(site.running_test())
    site.run_for(30)
    assert site.run_named(run).state is RunState.done
    assert site.scheduler.writes == PASSED


def test_a_test_job_that_slurm_has_forgotten_asks_a_person_and_is_not_submitted_again() -> None:
    site, run = in_test()
    site.slurm.complete(site.running_test())
    site.clock.advance(3600)  # no poll for longer than Slurm keeps a job
    site.run_for(30)
    assert site.run_named(run).state is RunState.stuck
    assert "its result is unknown" in (site.run_named(run).question or "")
    assert site.scheduler.writes.count("submit") == 1


def test_a_submission_that_is_never_answered_nor_found_is_tried_a_few_times_only() -> None:
    site, run = asked(scheduler=Rewriting)
    site.scheduler.lost = True
    for _ in range(300):
        site.run_for(1)
        for job in site.slurm.snapshot().jobs.values():
            if job.state == "RUNNING":
                site.slurm.complete(job.id)
    assert site.run_named(run).state is RunState.stuck
    assert site.scheduler.writes.count("submit") == 2


def test_a_submission_that_was_not_answered_is_found_by_its_name() -> None:
    site, run = asked()
    submit = site.slurm.submit

    def unheard(given: Submission) -> str:
        submit(given)
        raise SchedulerUnavailable("no answer in 4 s")

    site.scheduler.submit = unheard
    site.run_for(60)
    site.slurm.complete(site.running_test())
    site.run_for(30)
    assert (site.run_named(run).state, len(site.test_jobs())) == (RunState.done, 1)


def test_our_own_reservation_is_no_planned_work_and_no_persons_resume() -> None:
    site, run = in_test()
    site.run_for(60)
    assert "MAINTENANCE" in site.node(1).state and not site.node(1).drain
    assert (site.ledger.tables.vetoes, list(site.ledger.tables.slots)) == ([], [NODE])
    assert site.run_named(run).state is RunState.running


def test_a_person_who_ends_our_reservation_has_given_the_node_back() -> None:
    site, run = in_test()
    (kept,) = site.reservations()
    site.slurm.cancel(site.running_test())
    site.slurm.unreserve(kept)
    site.run_for(20)
    assert [one.node for one in site.ledger.tables.vetoes] == [NODE]
    assert site.run_named(run).state is RunState.cancelled
    assert site.ledger.tables.slots == {}
    assert site.node(1).in_service


@pytest.mark.parametrize("passes", [True, False])
def test_a_persons_drain_amid_the_tests_ends_them_and_is_not_lifted(passes: bool) -> None:
    site, run = in_test()
    site.slurm.person_drain(NODE, "PSU", "ann")
    if passes:
        site.slurm.complete(site.running_test())
    else:
        site.slurm.fail_job(site.running_test(), "3:0")
    site.run_for(30)
    assert site.node(1).reason == "PSU"
    assert "resume" not in site.scheduler.writes[3:]
    assert site.run_named(run).state is RunState.done
    assert (site.reservations(), site.ledger.tables.slots) == ({}, {})
    assert [(one.fault, one.owner) for one in site.open_incidents] == [("person-drain", "ann")]


class TakenOut(Written):
    """Ann drains the node right before its test is submitted: the job never starts there."""

    def submit(self, submission: Submission) -> str:
        self.slurm.person_drain(NODE, "PSU", "ann")
        return self.slurm.submit(submission)


def test_a_persons_drain_before_the_test_begins_leaves_no_test_and_no_reservation_behind() -> None:
    site, run = asked(scheduler=TakenOut)
    site.run_for(30)
    assert site.node(1).reason == "PSU"
    assert site.run_named(run).state is RunState.done
    assert (site.reservations(), site.ledger.tables.slots) == ({}, {})
    assert [job.state for job in site.test_jobs()] == ["CANCELLED"]


@pytest.mark.parametrize("added", [" ; ann: RMA 4711", " RMA 4711"])
def test_a_person_who_adds_to_our_words_keeps_the_node(added: str) -> None:
    site = TestSite()
    site.theirs = site.slurm.add_job(required=[NODE])
    run = site.ask("validate", 1)
    site.run_for(10)
    words = site.node(1).reason + added
    site.slurm.person_drain(NODE, words, "ann")
    site.slurm.complete(site.theirs)
    site.run_for(60)
    assert (site.node(1).reason, site.node(1).drain) == (words, True)
    assert site.run_named(run).state is RunState.stuck
    assert "ann" in (site.run_named(run).question or "")
    assert site.scheduler.writes == ["drain"]


class Lagging(Written):
    """The flag MAINTENANCE does not show."""

    def node(self, node: str) -> SlurmNode:
        shown = self.slurm.node(node)
        return msgspec.structs.replace(shown, state=tuple(one for one in shown.state if one != "MAINTENANCE"))


def test_pitfall_18_a_return_ends_the_reservation_of_another_run_whose_flag_is_late() -> None:
    site, run = in_test(scheduler=Lagging)
    site.cancel(run)
    back = site.ask("resume", 1)
    site.run_for(20)
    assert site.run_named(back).state is RunState.done
    assert site.reservations() == {} and site.node(1).in_service


def test_a_drain_ends_the_tests_that_another_run_left() -> None:
    site, run = in_test()
    site.cancel(run)
    again = site.ask("validate", 1)
    site.run_for(20)
    assert site.scheduler.writes[4:] == ["drain", "cancel", "unreserve", "reserve", "resume", "submit"]
    site.slurm.complete(site.running_test())
    site.run_for(20)
    assert site.run_named(again).state is RunState.done
    assert site.reservations() == {} and site.node(1).in_service


def test_node_left_in_its_tests_is_reported() -> None:
    site, run = in_test()
    site.cancel(run)
    site.run_for(120, step_s=5)
    (one,) = site.open_incidents
    assert (one.fault, one.root.node) == ("healer-drain", NODE)
    assert "reservation" in one.title
    site.ask("resume", 1)
    site.run_for(20)
    assert site.open_incidents == []


def test_a_run_cancelled_during_its_tests_leaves_no_test_job_on_the_node() -> None:
    site, run = in_test()
    site.want()
    site.cancel(run)
    site.slurm.complete(site.running_test())
    site.run_for(120, step_s=5)
    assert len(site.reservations()) == 1 and not site.runs_theirs()
    again = site.ask("resume", 1)
    site.run_for(20)
    assert site.run_named(again).state is RunState.done
    assert site.reservations() == {} and site.runs_theirs()


# --- what cannot be done here ---


def test_validation_without_reservations_asks_a_person_and_keeps_the_node_out() -> None:
    class Old(Written):
        def reserve(self, reservation: Reservation) -> None:
            raise NotAvailable(SlurmCall.reserve, "Slurm 22.05 makes no reservations over REST")

    site = TestSite(scheduler=Old)
    run = site.ask("validate", 1)
    site.run_for(30)
    known = site.run_named(run)
    assert known.state is RunState.stuck
    assert "not available here: Slurm 22.05 makes no reservations over REST" in (known.question or "")
    assert site.node(1).drain and "resume" not in site.scheduler.writes


def test_cancelled_test_proves_nothing() -> None:
    site, run = in_test()
    site.slurm.cancel(site.running_test())
    site.run_for(30)
    assert site.run_named(run).state is RunState.stuck
    assert "not tested" in (site.run_named(run).question or "")
    assert not site.node(1).drain and len(site.reservations()) == 1, "out by the reservation"


def test_a_person_lets_it_try_again_and_a_new_job_runs() -> None:
    site, run = in_test()
    site.slurm.cancel(site.running_test())
    site.run_for(30)
    site.retry(run, "test")
    site.run_for(20)
    assert [job.comment for job in site.test_jobs()] == [f"{run}:test:0", f"{run}:test:1"]
    site.slurm.complete(site.running_test())
    site.run_for(20)
    assert site.run_named(run).state is RunState.done


def test_an_undo_after_failed_tests_ends_with_the_first_drain() -> None:
    site, run = in_test()
    site.slurm.fail_job(site.running_test(), "3:0")
    site.run_for(30)
    entry = LogEntry(run=run, at=site.now, epoch=99, step=UNDO, event=StepEvent.done, text="ann: no")
    site.ledger.tables.log[run].append(entry)
    with site.ledger.transaction() as tx:
        tx.set_run_state(run, RunState.running, why="ann: no", at=site.now)
    site.run_for(30)
    assert site.run_named(run).state is RunState.undone, site.run_named(run).question
    assert site.node(1).in_service and site.ledger.tables.slots == {}


def test_two_nodes_of_one_incident_are_tested_at_the_same_time() -> None:
    """As those under a switch are, once it is repaired."""
    site = TestSite(100)
    site.run_for(20, *site.say(9, LOST))
    runs = [site.ask("validate", number, incident=site.incident.id) for number in (1, 2)]
    site.run_for(30)
    assert [site.run_named(run).state for run in runs] == [RunState.running] * 2
    kept = {held.nodes for held in site.reservations().values()}
    assert {(name(1),), (name(2),)} <= kept
    for job in site.test_jobs():
        if job.state == "RUNNING":
            site.slurm.complete(job.id)
    site.run_for(30)
    assert [site.run_named(run).state for run in runs] == [RunState.done] * 2


def test_changed_reservation_is_not_trusted() -> None:
    site, run = asked()

    def changed(where: str) -> None:
        if where == "done:reserve" and len(site.reservations()) == 1:
            (kept,) = site.reservations().values()
            if kept.nodes == (NODE,):
                site.slurm.change_reservation(kept.name, [NODE, name(2)])

    site.on_checkpoint = changed
    site.run_for(20)
    assert site.run_named(run).state is RunState.stuck
    assert "Someone changed reservation" in (site.run_named(run).question or "")
    assert site.node(1).drain, "it was not let out"


# --- deaths ---

MOMENTS = [
    f"{at}:{step}"
    for step in ("drain", "jobs", "empty", "reserve", "test", "verify", "resume")
    for at in ("started", "done", "performed")
]


@pytest.mark.parametrize("passes", [True, False])
@pytest.mark.parametrize("moment", [*MOMENTS, "started:out", "done:out", "performed:out"])
def test_a_death_at_any_moment_lets_no_users_job_onto_an_untested_node(moment: str, passes: bool) -> None:
    """At each later visit of that line too: the reservation and the return are two effects of one step."""
    site, run = asked()
    died = 0

    def die(where: str) -> None:
        nonlocal died
        if site.node(1).drain and not site.theirs:
            site.want()
        assert not site.runs_theirs() or site.last(run).step == "resume", "it ran on a node under test"
        if where == moment and died < 3:
            died += 1
            raise Crash(where)

    site.on_checkpoint = die
    for _ in range(90):
        site.clock.advance(1)
        try:
            site.drive()
        except Crash:
            site.ledger._claimed.clear()
        for job in site.test_jobs():
            if job.state == "RUNNING" and site.now - (job.start_at or site.now) > timedelta(seconds=8):
                site.slurm.complete(job.id) if passes else site.slurm.fail_job(job.id)
        site.walk()
    after = {"out": False, "verify": True, "resume": True}
    assert bool(died) is (after.get(moment.partition(":")[2], passes) is passes)
    assert len(site.test_jobs()) == 1
    assert site.reservations() == {}
    assert site.ledger.tables.vetoes == []
    assert site.runs_theirs() is passes
    assert site.node(1).drain is not passes
    assert site.run_named(run).state is (RunState.done if passes else RunState.waiting)
