"""`swap`: a job goes on without its bad node, or is requeued; the node is repaired while the job runs."""

from typing import Any

import msgspec
import pytest

from healer.model import JobOnNode, JobStacks, Mode, Run, RunState, StepEvent
from tests.support.asked import over, saves
from tests.support.deaths import MortalWorker
from tests.support.jobs import Lacking, job_of
from tests.support.loop import LOST, name, rules_in, shipped
from tests.support.recorders import BUSY, IDLE
from tests.support.under_test import TestSite

#: The site, its job, and the worker that died.
Died = tuple[TestSite, str, MortalWorker[TestSite]]

BAD = 3
NODE = name(BAD)
ALL = tuple(name(number) for number in range(1, 6))
REST = tuple(node for node in ALL if node != NODE)


def rules(mode: Mode = Mode.auto) -> Any:
    """As the site that wants swaps has them: its policies name this playbook."""
    policies = [
        msgspec.structs.replace(rule, playbook="swap") if rule.playbook == "gpu-fatal" else rule
        for rule in shipped().rules
    ]
    guards = msgspec.structs.replace(shipped().guards, min_service_share=0.5)
    return rules_in(mode, rules=tuple(policies), guards=guards)


def at_work(site: TestSite, job: str, *nodes: str, gpu: Any = BUSY) -> None:
    for node in nodes:
        shown = JobOnNode(processes=8, counted=True, gpus=(gpu,) * 8)
        site.nodes.put_job(node, job, shown, JobStacks(processes=8))


def leaves(site: TestSite, job: str, *, counted: bool = True) -> None:
    """The job's launcher goes on without the node."""
    site.nodes.put_job(NODE, job, JobOnNode(processes=0, counted=counted), JobStacks(processes=0))
    at_work(site, job, *REST)


def training(comment: str = "healer:swap=4", mode: Mode = Mode.auto, **fields: Any) -> tuple[TestSite, str]:
    """A job on five nodes of ten that needs four, at work on all of them."""
    site = TestSite(10, rules=rules(mode), **fields)
    job = site.slurm.add_job(nodes=5, comment=comment)
    site.look()
    at_work(site, job, *ALL)
    return site, job


def loses_a_gpu(site: TestSite, seconds: float = 10) -> Run:
    site.run_for(seconds, *site.say(BAD, LOST))
    (run,) = [run for run in site.runs if run.node == NODE]
    return run


def test_the_node_leaves_the_job_which_goes_on_and_the_node_is_free_to_be_repaired() -> None:
    site, job = training()
    saves(site, job, step=7)
    run = loses_a_gpu(site)
    assert site.node(BAD).drain and job_of(site, job).nodes == ALL, "the job is still there"
    assert over(site, run.id) == ["begin", "drain", "jobs", "spare"]
    leaves(site, job)
    site.run_for(10)
    found = job_of(site, job)
    assert (found.state, found.nodes, found.restarts) == ("RUNNING", REST, 0)
    assert site.slurm.jobs_on(NODE) == [] and site.node(BAD).drain
    assert (site.scheduler.writes.count("shrink"), site.scheduler.writes.count("requeue")) == (1, 0)
    (shrunk,) = [entry for entry in site.log(run.id) if entry.data.get("verb") == "shrink" and entry.text]
    assert shrunk.event is StepEvent.done and shrunk.data["nodes"] == list(REST)


def test_the_node_is_repaired_tested_and_returned_while_the_job_runs() -> None:
    site, job = training(test_s=10)
    loses_a_gpu(site)
    leaves(site, job)
    site.run_for(1200, step_s=3)
    assert not site.node(BAD).drain and site.ledger.tables.slots == {}
    assert {"reboot", "submit"} <= set(site.scheduler.writes), "it was booted and tested"
    found = job_of(site, job)
    assert (found.state, found.nodes, found.restarts) == ("RUNNING", REST, 0)


def test_the_decision_shows_both_costs() -> None:
    site, job = training()
    site.clock.advance(600)
    saves(site, job, step=7)
    site.clock.advance(240)
    run = loses_a_gpu(site)
    (spare,) = site.log(run.id, "spare")
    assert "4 of 5 nodes" in spare.text and "4 min of work on 5 nodes" in spare.text
    assert spare.data["idle"] == 5 and 230 < spare.data["lost_s"] < 260


@pytest.mark.parametrize("left", [False, True])
def test_a_job_that_is_not_at_work_without_the_node_in_time_is_requeued(left: bool) -> None:
    site, job = training()
    if left:
        leaves(site, job)
        at_work(site, job, *REST, gpu=IDLE)
    loses_a_gpu(site, 100)
    assert job_of(site, job).restarts == 0
    site.run_for(60)
    found = job_of(site, job)
    assert found.restarts == 1 and "shrink" not in site.scheduler.writes
    assert NODE not in found.nodes and len(found.nodes) == 5


@pytest.mark.parametrize(
    ("comment", "words"),
    [
        ("", "its comment must contain healer:swap=N"),
        ("healer:swap=5", "needs 5 of its 5 nodes"),
        ("healer:swap=0", "its comment must contain healer:swap=N"),
        ("healer:swap", "its comment must contain healer:swap=N"),
    ],
)
def test_without_consent_or_a_spare_the_job_is_requeued_at_once(comment: str, words: str) -> None:
    site, job = training(comment)
    leaves(site, job)
    run = loses_a_gpu(site, 20)
    (skipped,) = site.log(run.id, "spare")
    assert skipped.event is StepEvent.skipped and words in skipped.text
    assert job_of(site, job).restarts == 1 and "shrink" not in site.scheduler.writes


def test_keep_wins() -> None:
    site, job = training("healer:keep healer:swap=1")
    leaves(site, job)
    loses_a_gpu(site, 30)
    assert (job_of(site, job).nodes, job_of(site, job).restarts) == (ALL, 0)
    assert {"shrink", "requeue"}.isdisjoint(site.scheduler.writes)


def test_the_batch_host_is_never_taken() -> None:
    site, job = training()
    for node in (name(2), *ALL[2:]):
        at_work(site, job, node)
    site.run_for(20, *site.say(1, LOST))
    assert "shrink" not in site.scheduler.writes and job_of(site, job).restarts == 1


def test_a_node_that_cannot_say_what_runs_there_keeps_the_job() -> None:
    site, job = training()
    leaves(site, job, counted=False)
    loses_a_gpu(site, 100)
    assert job_of(site, job).nodes == ALL and "shrink" not in site.scheduler.writes
    site.run_for(60)
    assert job_of(site, job).restarts == 1


def test_a_node_that_answers_nothing_keeps_the_job_waiting_for_seconds_only() -> None:
    """Only the node can say that the job has left it. One that lost its network, or panicked, never does."""
    site, job = training()
    at_work(site, job, *REST)
    site.nodes.plant(NODE, "unreachable")
    run = loses_a_gpu(site)
    assert job_of(site, job).restarts == 0, "one call that fails is no silence"
    site.run_for(25)
    found = job_of(site, job)
    assert found.restarts == 1 and NODE not in found.nodes and "shrink" not in site.scheduler.writes
    assert "has not answered for 2" in site.log(run.id, "left")[-1].text


def test_a_node_that_answers_again_is_waited_for_as_before() -> None:
    site, job = training()
    site.nodes.plant(NODE, "unreachable")
    loses_a_gpu(site)
    site.nodes.mend(NODE)
    site.run_for(5)
    site.nodes.plant(NODE, "unreachable")
    site.run_for(15)
    assert job_of(site, job).restarts == 0, "it was heard 15 s ago"
    site.nodes.mend(NODE)
    leaves(site, job)
    site.run_for(10)
    assert (job_of(site, job).nodes, job_of(site, job).restarts) == (REST, 0)


@pytest.mark.parametrize("late", [False, True])
def test_a_node_that_slurm_does_not_reach_either_is_not_waited_for(late: bool) -> None:
    site, job = training()
    if late:
        loses_a_gpu(site)
        site.nodes.plant(NODE, "unreachable")
    site.slurm.silence(NODE)
    (run,) = [run for run in site.runs if run.node == NODE] if late else [loses_a_gpu(site, 2)]
    site.run_for(8)
    found = job_of(site, job)
    assert found.restarts == 1 and NODE not in found.nodes and "shrink" not in site.scheduler.writes
    assert "Slurm does not reach" in site.log(run.id, "left" if late else "spare")[-1].text


def test_an_adapter_that_cannot_shrink_leaves_it_to_the_requeue() -> None:
    class Never(Lacking):
        def unavailable(self) -> dict[str, str]:
            return {"shrink": "an old release"}

    site, job = training()
    site.scheduler = Never(site.slurm, RuntimeError("never called"), "shrink")
    tools = msgspec.structs.replace(site.driver.tools, scheduler=site.scheduler)
    site.driver.tools = tools
    leaves(site, job)
    run = loses_a_gpu(site, 20)
    assert "an old release" in site.log(run.id, "spare")[-1].text
    assert job_of(site, job).restarts == 1


def test_a_process_that_is_back_before_the_shrink_stops_it() -> None:
    """An approval or a pause may lie between the look and the effect."""
    site, job = training()
    leaves(site, job)
    site.on_checkpoint = lambda where: (
        at_work(site, job, NODE) if where.startswith("performed:left") else None
    )
    run = loses_a_gpu(site, 30)
    assert "shrink" not in site.scheduler.writes and job_of(site, job).nodes == ALL
    assert "still has 8 processes" in site.log(run.id)[-1].text
    leaves(site, job)
    site.on_checkpoint = lambda _: None
    site.run_for(10)
    assert job_of(site, job).nodes == REST


def test_mode_approve_waits_for_a_person_before_anything_is_taken() -> None:
    site, job = training(mode=Mode.approve)
    leaves(site, job)
    run = loses_a_gpu(site, 30)
    assert run.state is RunState.waiting_approval and not site.node(BAD).drain
    assert site.scheduler.writes == [] and job_of(site, job).nodes == ALL
    site.approve(run.id)
    site.run_for(20)
    assert job_of(site, job).nodes == REST


def test_a_pause_holds_the_shrink() -> None:
    site, job = training()
    loses_a_gpu(site)
    site.pause()
    leaves(site, job)
    site.run_for(20)
    assert job_of(site, job).nodes == ALL
    site.end_pause()
    site.run_for(10)
    assert job_of(site, job).nodes == REST


def swapped_with_death(commit: int | None = None, checkpoint: int | None = None) -> Died:
    site, job = training()
    snapshot = site.ledger.snapshot
    worker = MortalWorker(site)
    site.ledger.snapshot, site.ledger.checkpoints = snapshot, site.saved
    worker.ledger.dies_after, worker.dies_at = commit, checkpoint
    site.on_checkpoint = worker.checkpoint
    site.walk(*site.say(BAD, LOST))
    for second in range(70):
        if second == 5:
            leaves(site, job)
        worker.drive()
        site.walk()
        site.clock.advance(1)
    return site, job, worker


def test_a_worker_that_dies_at_any_commit_or_effect_takes_the_node_once_and_requeues_never() -> None:
    _, _, alive = swapped_with_death()
    moments: list[tuple[int | None, int | None]] = [(n, None) for n in range(1, alive.ledger.commits + 1)]
    moments += [(None, n) for n in range(1, alive.checkpoints + 1)]
    assert len(moments) > 20
    for commit, checkpoint in moments:
        site, job, worker = swapped_with_death(commit, checkpoint)
        found = job_of(site, job)
        assert worker.deaths == 1, (commit, checkpoint)
        assert (found.nodes, found.restarts) == (REST, 0), (commit, checkpoint)
        assert site.scheduler.writes.count("requeue") == 0, (commit, checkpoint)
