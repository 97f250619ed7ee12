"""The gate's permit for a hook to fail.

A failing prolog or epilog makes Slurm drain its node. It is permitted only if healer is draining the node
anyway: the node's slot is granted to a run of an incident that isolates it, and every guard still allows the
drain. The permit takes no further capacity, and Slurm's drain of the node then counts as healer's.

There is no permit after the drain was read back: from then on only healer's own tests start there, and a
failing hook would drain the node during them.
"""

from datetime import datetime, timedelta
from typing import Any

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
from healer.text import Said, say

#: A drain later than this was not caused by the hook: the hook died, or did not fail.
PERMIT_LASTS = timedelta(seconds=60)


def permit_of(
    ask: HookRequest, incident: Incident, run: Run, facts: GateFacts, rules: Ruleset, now: datetime
) -> Permit | Said:
    """The permit for the run that holds the node's slot; else why there is none. Requires the gate's lock."""
    if ask.hook not in DRAINING_HOOKS:
        return say("decisions.never_asked_to_fail", hook=ask.hook)
    if not incident.is_open or incident.nodes.get(ask.node) is not Verdict.isolate:
        return say("decisions.does_not_isolate", incident=incident.short_id, node=ask.node)
    slot = facts.held.get(ask.node)
    if slot is None or slot.run != run.id:
        return say("decisions.does_not_hold", run=run.id, node=ask.node)
    if slot.drained_at is not None:
        return say("decisions.is_drained", run=run.id, node=ask.node)
    if run.shadow or run.state not in {RunState.running, RunState.waiting}:
        return say("decisions.run_is", run=run.id, state=say(f"words.run_{run.state}"))
    proposal = msgspec.structs.replace(proposal_of(run, Verb.drain, incident), ride=True)
    verdict = judge(proposal, facts, rules, now)
    if verdict.outcome is not Outcome.act:
        return verdict.why
    return _permit(ask, now, incident=incident.id, run=run.id)


def permit_of_local_check(ask: HookRequest, check: str, at: datetime) -> Permit:
    """The permit for a hook that got no answer at `at` and failed by the site's own list of certain
    faults."""
    return _permit(ask, at, check=check)


def _permit(ask: HookRequest, at: datetime, **cause: Any) -> Permit:
    return Permit(**msgspec.structs.asdict(ask), at=at, until=at + PERMIT_LASTS, **cause)
