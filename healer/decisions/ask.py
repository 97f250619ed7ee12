"""The proposal that a run puts before the gate, and the decision that comes of it."""

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256

import msgspec

from healer.decisions.gate import JudgeResult, judge
from healer.decisions.slots import looks_first
from healer.incidents.senses import ended_work
from healer.model import (
    APPROVAL_LASTS,
    JOB_VERBS,
    REMOVING_VERBS,
    RESTARTING_VERBS,
    Decision,
    GateFacts,
    Incident,
    Mode,
    Outcome,
    Playbook,
    Proposal,
    Remedy,
    Ruleset,
    Run,
    RunState,
    Verb,
)


def first_verb(playbook: Playbook) -> Verb:
    """What the gate is asked about when a run is to begin: the first removing step, else the first act."""
    acts = [step.do for step in playbook.steps if step.do is not None]
    return next((verb for verb in acts if verb in REMOVING_VERBS), acts[0] if acts else Verb.notify)


def adopts(playbook: Playbook) -> bool:
    """Its drain takes over what Slurm itself drained or set down."""
    return any(step.do is Verb.drain and step.input.get("adopt") for step in playbook.steps)


def proposal_of(
    run: Run,
    verb: Verb,
    incident: Incident | None,
    *,
    job: str | None = None,
    restarts: int | None = None,
) -> Proposal:
    """`job` is one of several that a step works on; else it is the run's own."""
    life = run.input.get("restart", {}).get(job)
    agreed = life is not None and restarts in (None, life)
    return Proposal(
        cluster=run.cluster,
        verb=verb,
        node=run.node,
        job=job or (run.job if verb in JOB_VERBS else None),
        incident=run.incident,
        run=run.id,
        rule=run.rule,
        playbook=run.playbook,
        remedy=Remedy(run.input.get("remedy") or Remedy.none),
        mode=run.mode,
        unusable=incident.unusable if incident else False,
        fatal=incident is not None and ended_work(incident),
        by=None if run.by == "healer" else run.by,
        approved_by=run.approved_by,
        agreed_by=run.input["restart_by"][job] if agreed else None,
        restarts=restarts if restarts is not None else run.input.get("restarts"),
    )


def with_restarts(run: Run, jobs: Mapping[str, int], by: str) -> Run:
    """The run with what `by` agreed to: the restart of these jobs in these lives."""
    if not jobs:
        return run
    told = dict(run.input)
    told["restart"] = {**run.input.get("restart", {}), **jobs}
    told["restart_by"] = {**run.input.get("restart_by", {}), **dict.fromkeys(jobs, by)}
    return msgspec.structs.replace(run, input=told)


def restart_asked(run: Run, job: str, incident: Incident | None) -> Proposal:
    """What the gate is asked about a job whose restart was agreed to with the run."""
    return proposal_of(run, Verb.requeue, incident, job=job, restarts=run.input["restart"][job])


def restart_refused(
    run: Run, incident: Incident | None, facts: GateFacts, rules: Ruleset, now: datetime
) -> JudgeResult | None:
    """What the gate refuses now of the restarts that were agreed to with the run."""
    verdicts = (
        judge(restart_asked(run, job, incident), facts, rules, now) for job in run.input.get("restart", {})
    )
    return next((one for one in verdicts if one.outcome is Outcome.refused), None)


def beginning(run: Run, playbook: Playbook, incident: Incident | None) -> Proposal:
    """What the gate is asked when the run is to begin."""
    verb = first_verb(playbook)
    begins = looks_first(verb, playbook) and (verb not in RESTARTING_VERBS or run.by == "healer")
    return msgspec.structs.replace(proposal_of(run, verb, incident), begins=begins, adopts=adopts(playbook))


def new_run(
    incident: Incident,
    playbook: str,
    decision: Decision,
    state: RunState,
    mode: Mode,
    *,
    shadow: bool,
    beside: bool = False,
) -> Run:
    """Healer's own run for an incident. Its id follows from the incident's, so a second one is the same."""
    # In shadow an incident is gone through once.
    count = "shadow" if shadow else incident.run_count
    name = sha256(f"{incident.id}|{playbook}|{count}".encode()).hexdigest()
    waits = state is RunState.waiting_approval
    proposal = decision.proposal
    remedy = proposal.remedy if proposal else Remedy.none
    given: dict[str, object] = {"reason_text": incident.title, "remedy": str(remedy)}
    if proposal is not None and proposal.job is not None:
        given["restarts"] = proposal.restarts  # the life that it is about
    return Run(
        id=f"r{name[:23]}",
        cluster=incident.cluster,
        playbook=playbook,
        state=state,
        by="healer",
        reason=incident.title,
        created_at=decision.at,
        node=incident.root.node,
        job=proposal.job if proposal else None,
        incident=incident.id,
        rule=incident.rule,
        mode=mode,
        shadow=shadow,
        beside=beside,
        approve_until=decision.at + APPROVAL_LASTS if waits else None,
        # The remedy that this run tries is counted by `repeat`, so that the next one goes up the ladder.
        input=given,
    )


def decision_of(proposal: Proposal, verdict: JudgeResult, now: datetime) -> Decision:
    return Decision(
        at=now,
        cluster=proposal.cluster,
        incident=proposal.incident,
        playbook=proposal.playbook,
        outcome=verdict.outcome,
        why=verdict.why,
        proposal=proposal,
        answers=verdict.answers,
        guard=verdict.guard,
        run=proposal.run,
    )
