"""The gate's permit for a hook to fail, and the drains that come of it.

A prolog or epilog that ends with a failure makes Slurm drain its node. So it is permitted only where healer
takes the node out anyway, now: the node's slot is granted to a run of an incident that isolates it, and every
guard still allows the drain. The permit takes nothing more; what Slurm then does with the node is ours.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta

import msgspec

from healer.decisions.decide import proposal_of
from healer.decisions.judge import judge
from healer.model import (
    GateFacts,
    HookAsk,
    Incident,
    Mode,
    Outcome,
    Permit,
    Ruleset,
    Run,
    RunState,
    Verb,
    Verdict,
)
from healer.model.gate import DRAINING_HOOKS, held_after_launch
from healer.model.run import run_id

#: Where nobody told the restart count of the job, its hold must be found so soon to be the prolog's.
RELEASE_WITHIN = timedelta(minutes=10)
#: A drain that comes later than this after the answer is not the hook's: the hook has died, or did not fail.
PERMIT_LASTS = timedelta(seconds=60)


def isolates(incident: Incident, node: str) -> bool:
    return incident.is_open and incident.nodes.get(node) is Verdict.isolate


def permit_of(
    ask: HookAsk, incident: Incident, run: Run, facts: GateFacts, rules: Ruleset, now: datetime
) -> Permit | str:
    """The permit for the run that holds the node's slot; else why there is none. Under the gate's lock."""
    if ask.hook not in DRAINING_HOOKS:
        return f"a {ask.hook} is never asked to fail"
    if not isolates(incident, ask.node):
        return f"incident {incident.short_id} does not isolate {ask.node}"
    slot = facts.held.get(ask.node)
    if slot is None or slot.run != run.id:
        return f"run {run.id} does not hold {ask.node}"
    if run.shadow or run.state not in {RunState.running, RunState.waiting}:
        return f"run {run.id} is {run.state}"
    proposal = msgspec.structs.replace(proposal_of(run, Verb.drain, incident), ride=True)
    verdict = judge(proposal, facts, rules, now)
    if verdict.outcome is not Outcome.act:
        return verdict.why
    return Permit(
        id=ask.id,
        cluster=ask.cluster,
        node=ask.node,
        hook=ask.hook,
        at=now,
        until=now + PERMIT_LASTS,
        incident=incident.id,
        run=run.id,
        job=ask.job,
        restarts=ask.restarts,
    )


def own_permit(ask: HookAsk, check: str, at: datetime) -> Permit:
    """For a hook that was not answered at `at` and failed by the site's own list: it has happened already."""
    return Permit(
        id=ask.id,
        cluster=ask.cluster,
        node=ask.node,
        hook=ask.hook,
        at=at,
        until=at + PERMIT_LASTS,
        job=ask.job,
        restarts=ask.restarts,
        check=check,
    )


def releases(
    facts: GateFacts, ran_on: Mapping[str, tuple[int, tuple[str, ...]]], rules: Ruleset, now: datetime
) -> list[Run]:
    """A run for each job that Slurm holds because a permitted prolog failed; its id is the permit's.

    Only the very next life of that job: a hold that comes later is somebody else's. Slurm forgets where a job
    was that it put back, so `ran_on` tells where it was seen last: restart count, and nodes. A job that was
    seen in that life on other nodes alone is not the report's. One too short for any picture stays possible.
    """
    if facts.snapshot is None:
        return []
    nodes, jobs = facts.snapshot.nodes, facts.snapshot.jobs
    found = []
    for permit in facts.permits:
        job, node = jobs.get(permit.job or ""), nodes.get(permit.node)
        if permit.hook != "prolog" or job is None or not held_after_launch(job):
            continue
        if node is None or not node.drain:
            continue  # no hook has failed there, whatever its report says
        if permit.restarts is None:
            if now - permit.at > RELEASE_WITHIN:
                continue
        elif job.restarts != permit.restarts + 1:
            continue
        life, where = ran_on.get(job.id, (None, ()))
        if life == job.restarts - 1 and permit.node not in where:
            continue
        mode = _mode(permit, facts, rules)
        told = f"release|{permit.cluster}|{permit.node}|{permit.hook}|{permit.id}"
        found.append(
            Run(
                id=run_id(told),
                cluster=permit.cluster,
                playbook="release-held",
                state=RunState.running,
                by="healer",
                reason=f"The prolog on {permit.node} was permitted to fail",
                created_at=now,
                job=job.id,
                mode=mode,
                shadow=mode in {Mode.shadow, Mode.off},
                input={"restarts": job.restarts},
            )
        )
    return found


def _mode(permit: Permit, facts: GateFacts, rules: Ruleset) -> Mode:
    """What the gate permitted is granted already; where a hook failed by itself, its check's rule says."""
    if permit.run is not None:
        return Mode.auto
    rule = rules.by_name.get(permit.check)
    return facts.modes.get(permit.check) or (rules.mode_of(rule) if rule else rules.default_mode)
