"""Guards over what was done before: breaker, cool-down, repeat, and the caps on reboots and requeues."""

from datetime import datetime, timedelta

from healer.decisions.answers import allow, at, hold, refuse
from healer.decisions.guards import recent
from healer.decisions.places import job_of, node_of, settings_of_job, settings_of_node
from healer.model import (
    RESTARTING_VERBS,
    Answer,
    BreakerState,
    GateFacts,
    Guard,
    Proposal,
    Remedy,
    Ruleset,
    Verb,
)

DAY = timedelta(hours=24)

#: After the last root of a storm. A first wave of remedies often looks healthy before its second (law 10).
COOLDOWN = timedelta(minutes=10)

_REBOOTS = frozenset({Remedy.reboot_node, Remedy.power_cycle})


def breaker(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Open, nothing that healer starts takes capacity away; half-open, one canary may.

    A named person passes: it is a person who looks at the storm, and a person who resets the breaker.
    """
    state = facts.breaker
    if state.state is BreakerState.closed:
        return allow(Guard.breaker, "The breaker is closed.", used=0)
    roots = len({root.node for root in state.roots})
    if proposal.by is not None:
        return allow(
            Guard.breaker, f"The breaker is {_words(state.state)}; {proposal.by} asks by name.", used=roots
        )
    if proposal.ride and proposal.verb in RESTARTING_VERBS:
        # Its node is out already: held back, the job would only sit on a dead GPU (law 3 stops what is new).
        return allow(Guard.breaker, "The job's node is out of service already.", used=roots)
    if state.state is BreakerState.open:
        why = f"The breaker is open: {state.why or 'a storm'}. A person resets it."
        return hold(Guard.breaker, why, used=roots)
    if state.canary is None:
        return allow(Guard.breaker, "The breaker is half-open: this is its canary.", used=0, limit=1)
    if state.canary == proposal.run:
        return allow(Guard.breaker, "The breaker is half-open: this run is its canary.", used=1, limit=1)
    why = f"The breaker is half-open and run {state.canary} is its canary: the others wait for its end."
    return hold(Guard.breaker, why, used=1, limit=1)


def _words(state: BreakerState) -> str:
    return state.value.replace("_", "-")


def cooldown(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """10 minutes after a storm's last root nothing new starts, also when the canary did well."""
    if facts.breaker.state is not BreakerState.closed or not facts.breaker.roots:
        return allow(Guard.cooldown, "There was no storm.")
    over = max(root.at for root in facts.breaker.roots) + COOLDOWN
    if over <= now:
        return allow(Guard.cooldown, f"The last storm's cool-down ended at {at(over)}.")
    if proposal.by is not None or proposal.ride:
        return allow(
            Guard.cooldown, f"Cool-down after a storm until {at(over)}; this was asked for or begun."
        )
    return hold(Guard.cooldown, f"Cool-down after a storm until {at(over)}.", frees_at=over)


def repeat(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Law 10: the same remedy is not tried twice on a node within the hours; the ladder goes up instead."""
    if proposal.node is None or proposal.remedy is Remedy.none:
        return allow(Guard.repeat, "No remedy is repeated.")
    if proposal.ride and proposal.verb is Verb.drain:
        # Every remedy begins with a drain; which one comes after it was chosen when the run began.
        return allow(Guard.repeat, "The remedy was chosen when the run began.")
    node = node_of(proposal, facts)
    span = max(settings.repeat for settings in settings_of_node(rules, facts.cluster, node))
    tried = [
        use.at
        for use in facts.remedies
        if use.node == proposal.node
        and use.remedy is proposal.remedy
        # A later step of the run that tries it is that same try.
        and not (proposal.ride and use.incident == proposal.incident)
    ]
    last = recent(tried, now, span)
    hours = span.total_seconds() / 3600
    name = proposal.remedy.value
    if not last:
        why = f"{name} was not tried on {proposal.node} within {hours:g} h."
        return allow(Guard.repeat, why, limit=1, used=0)
    frees_at = last[-1] + span
    why = f"{name} was tried on {proposal.node} at {at(last[-1])}; it repeats after {hours:g} h."
    if proposal.by is not None:
        return allow(Guard.repeat, f"{why} {proposal.by} asks for it.", limit=1, used=len(last))
    return hold(Guard.repeat, why, limit=1, used=len(last), frees_at=frees_at)


def reboot_cap(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Reboots and power cycles of one node in 24 h, whoever asked."""
    if proposal.verb not in {Verb.reboot, Verb.power_cycle}:
        return allow(Guard.reboot_cap, "This reboots nothing.")
    if proposal.granted:
        return allow(Guard.reboot_cap, "This very reboot was granted, and is counted already.")
    node = node_of(proposal, facts)
    limit = min(one.reboots_per_node for one in settings_of_node(rules, facts.cluster, node))
    used = recent(
        [use.at for use in facts.remedies if use.node == proposal.node and use.remedy in _REBOOTS], now, DAY
    )
    figures = f"{proposal.node} was rebooted {len(used)} times in 24 h, the limit is {limit}"
    if len(used) >= limit:
        frees_at = used[len(used) - limit] + DAY if limit > 0 else None
        return refuse(Guard.reboot_cap, f"{figures}.", limit=limit, used=len(used), frees_at=frees_at)
    return allow(Guard.reboot_cap, f"{figures}.", limit=limit, used=len(used))


def requeue_cap(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Requeues of one job in 24 h, whoever asked. The requeue of this very restart count is this one."""
    limit = settings_of_job(rules, facts.cluster, job_of(proposal, facts)).requeues_per_job
    uses = [
        use.at
        for use in facts.requeues
        if use.job == proposal.job and (proposal.restarts is None or use.restarts != proposal.restarts)
    ]
    used = recent(uses, now, DAY)
    figures = f"Job {proposal.job} was requeued {len(used)} times in 24 h, the limit is {limit}"
    if len(used) >= limit:
        frees_at = used[len(used) - limit] + DAY if limit > 0 else None
        return refuse(Guard.requeue_cap, f"{figures}.", limit=limit, used=len(used), frees_at=frees_at)
    return allow(Guard.requeue_cap, f"{figures}.", limit=limit, used=len(used))
