"""The gate's permit for a hook to fail, and the drains that come of it.

A prolog or epilog that ends with a failure makes Slurm drain its node. So it is permitted only where healer
takes the node out anyway, now: the node's slot is granted to a run of an incident that isolates it, and every
guard still allows the drain. The permit takes nothing more; what Slurm then does with the node is ours.
"""

from datetime import datetime, timedelta

import msgspec

from healer.decisions.decide import proposal_of
from healer.decisions.guards import judge
from healer.model import (
    GateFacts,
    HookRequest,
    Incident,
    Outcome,
    Permit,
    Ruleset,
    Run,
    RunState,
    Verb,
    Verdict,
)
from healer.model.gate import DRAINING_HOOKS

#: A drain that comes later than this after the answer is not the hook's: the hook has died, or did not fail.
PERMIT_LASTS = timedelta(seconds=60)


def isolates(incident: Incident, node: str) -> bool:
    return incident.is_open and incident.nodes.get(node) is Verdict.isolate


def permit_of(
    ask: HookRequest, incident: Incident, run: Run, facts: GateFacts, rules: Ruleset, now: datetime
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


def permit_of_local_check(ask: HookRequest, check: str, at: datetime) -> Permit:
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
