"""A GPU is lost on a node that was drained for something milder: its jobs are not left to hang."""

from typing import Any

import msgspec
import pytest

from healer.decisions import decide
from healer.model import (
    FaultClass,
    Incident,
    Mode,
    Outcome,
    Remedy,
    RemedyUse,
    Run,
    RunState,
    Severity,
    SlurmNode,
)
from tests.support import gate
from tests.support.loop import FATAL, LOST, Site, name, rules_in
from tests.support.under_test import TestSite

ASKED = (
    "NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)"
)
OURS = "healer:driver-asks-drain inc:99999999 the driver asks"


def softly_drained(**fields: object) -> tuple[Site, str]:
    """The driver asked to let the job end; minutes later the GPU is gone and the job hangs."""
    site = Site(20, **fields)  # type: ignore[arg-type]
    job = site.slurm.add_job(nodes=2)
    site.run_for(5, *site.say(1, ASKED))
    (first,) = site.runs
    assert (first.playbook, first.state) == ("repair-at-job-end", RunState.waiting)
    shown = site.slurm.job(job)
    assert shown is not None and (shown.state, shown.restarts) == ("RUNNING", 0)
    site.clock.advance(300)
    return site, job


def runs_of(site: Site, incident: Incident) -> list[Run]:
    return [run for run in site.runs if run.incident == incident.id]


def lost(site: Site) -> Incident:
    (one,) = [one for one in site.open_incidents if one.fault == "xid-79"]
    return one


def test_its_jobs_are_requeued_once() -> None:
    site, job = softly_drained()
    reason = site.node(1).reason
    site.run_for(200, *site.say(1, LOST))
    shown = site.slurm.job(job)
    assert shown is not None and (shown.state, shown.restarts) == ("RUNNING", 1)
    assert name(1) not in shown.nodes
    (run,) = runs_of(site, lost(site))
    assert (run.playbook, run.state) == ("gpu-fatal", RunState.waiting)
    assert lost(site).jobs_hit == (job,)
    assert site.node(1).reason == reason
    site.run_for(60, *site.say(1, LOST))
    assert len(site.runs) == 2


def test_a_job_that_may_not_be_requeued_starts_no_run_after_run() -> None:
    site = Site(20)
    job = site.slurm.add_job(nodes=2, requeue=False)
    site.run_for(5, *site.say(1, ASKED))
    site.clock.advance(300)
    site.run_for(600, *site.say(1, LOST))
    shown = site.slurm.job(job)
    assert shown is not None and (shown.state, shown.restarts) == ("RUNNING", 0)
    (run,) = runs_of(site, lost(site))
    with site.ledger.transaction() as tx:  # a person took it over
        tx.set_run_state(run.id, RunState.done, why="taken over", at=site.now)
    site.run_for(60)
    assert len(site.runs) == 2


def test_a_job_that_has_ended_meanwhile_is_left_alone() -> None:
    site, job = softly_drained()
    site.slurm.complete(job)
    site.run_for(60, *site.say(1, LOST))
    assert [run.playbook for run in site.runs] == ["repair-at-job-end", "gpu-fatal"]
    shown = site.slurm.job(job)
    assert shown is not None and (shown.state, shown.restarts) == ("COMPLETED", 0)


@pytest.mark.parametrize("mode", [Mode.shadow, Mode.approve])
def test_the_mode_of_its_own_rule_binds(mode: Mode) -> None:
    given = rules_in()
    own = tuple(
        msgspec.structs.replace(rule, mode=mode) if rule.name == "gpu-lost" else rule for rule in given.rules
    )
    site, job = softly_drained(rules=msgspec.structs.replace(given, rules=own))
    site.run_for(60, *site.say(1, LOST))
    shown = site.slurm.job(job)
    assert shown is not None and shown.restarts == 0
    assert lost(site).severity is Severity.P0  # a person has to look
    (run,) = runs_of(site, lost(site))
    assert run.shadow is (mode is Mode.shadow)


@pytest.mark.parametrize("reports", [1, 3])
def test_a_node_that_a_person_had_drained_is_freed_of_its_job_and_left_to_them(reports: int) -> None:
    """Their run waits for the repair: healer resets, tests and returns nothing under their hands (law 5)."""
    site = TestSite()
    job = site.slurm.add_job(required=[name(1)])
    theirs = site.ask("drain", 1)
    site.run_for(5)
    for _ in range(reports):
        site.run_for(420, *site.say(1, FATAL), step_s=10)
    shown = site.slurm.job(job)
    assert shown is not None and shown.restarts == 1
    assert (site.node(1).drain, site.reservations(), site.nodes.resets(name(1))) == (True, {}, [])
    assert site.run_named(theirs).state is RunState.waiting
    (own,) = [run for run in site.runs if run.by == "healer"]
    assert (own.state, site.last(own.id).step, site.incident.run) == (RunState.done, "reset", None)


class TestDecide:
    DRAINED = gate.node(1, state=("MIXED", "DRAIN"), reason=OURS)

    def outcome(
        self,
        *,
        slot: str | None = "another",
        job: dict[str, Any] | None = None,
        drained: SlurmNode = DRAINED,
        kept: dict[str, str] | None = None,
        **about: Any,
    ) -> Outcome:
        held = (gate.slot(1, incident=slot),) if slot else ()
        fleet = [drained, *(gate.node(number) for number in range(2, 33))]
        known = gate.facts(fleet, jobs=[gate.job(**(job or {}))], slots=held, kept=kept or {})
        incident = gate.incident(**{"jobs_hit": ("4711",), **about})
        decision = decide(incident, gate.GPU_LOST, known, gate.rules(), gate.NOW, None)
        assert decision is not None
        return decision.outcome

    def test_it_acts_for_jobs_that_hang(self) -> None:
        assert self.outcome() is Outcome.act
        assert self.outcome(slot=None) is Outcome.act

    @pytest.mark.parametrize(
        "about",
        [
            {"fault_class": FaultClass.degraded},
            {"jobs_hit": ()},
            {"jobs_hit": ("5000",)},
            {"jobs_hit_final": True},
        ],
    )
    def test_else_the_drain_is_enough(self, about: dict[str, Any]) -> None:
        assert self.outcome(**about) is Outcome.nothing

    def test_a_persons_run_gives_way_to_none(self) -> None:
        own = gate.incident().id
        assert self.outcome(slot=own, kept={name(1): "ann"}, jobs_hit_final=True) is Outcome.nothing
        assert self.outcome(slot=own, kept={name(1): "ann"}) is Outcome.act, "its job hangs there"

    def test_its_own_drain_is_no_others(self) -> None:
        own = gate.incident().id
        drained = msgspec.structs.replace(self.DRAINED, reason=f"healer:gpu-lost inc:{own[:8]} text")
        assert self.outcome(slot=own, drained=drained) is Outcome.nothing

    def test_a_drain_that_was_left_to_it_is_gone_on_from(self) -> None:
        assert self.outcome(slot=gate.incident().id, jobs_hit=()) is Outcome.act

    @pytest.mark.parametrize("job", [{"state": "COMPLETED"}, {"flags": ("COMPLETING",)}, {"nodes": ("x",)}])
    def test_finished_job_needs_no_action(self, job: dict[str, object]) -> None:
        assert self.outcome(job=job) is Outcome.nothing

    def test_a_remedy_that_was_begun_is_not_begun_again(self) -> None:
        use = RemedyUse(node=name(1), remedy=Remedy.drain_then_reset, rule="x", at=gate.ago(hours=1))
        known = gate.facts(
            [self.DRAINED, *(gate.node(number) for number in range(2, 33))],
            jobs=[gate.job()],
            remedies=(use,),
        )
        about = gate.incident(jobs_hit=("4711",))
        decision = decide(about, gate.GPU_LOST, known, gate.rules(), gate.NOW, None)
        assert decision is not None and decision.proposal is not None
        assert decision.proposal.remedy is Remedy.reboot_node
