"""Guards over people's word and Slurm's picture: pause, stale, ownership, protected, maintenance.

Every guard is `(proposal, facts, rules, now) -> Answer`: it reads nothing else, never raises on missing data
(unknown is a hold with its reason) and gives the figure it compared. `gate.GUARDS` is the list in order.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from healer.decisions.answers import allow, at, hold, refuse
from healer.decisions.places import (
    job_of,
    matches,
    node_of,
    planned_window,
    settings_of,
    settings_of_job,
    settings_of_node,
)
from healer.model import (
    JOB_VERBS,
    RETURNING_VERBS,
    Answer,
    GateFacts,
    Guard,
    Pause,
    Proposal,
    Ruleset,
    SlurmJob,
    SlurmNode,
    Verb,
)
from healer.model.permits import permit_for
from healer.model.reasons import is_ours, slurm_kind
from healer.model.reserved import our_reservation


def unknown_node(guard: Guard, proposal: Proposal, facts: GateFacts) -> Answer:
    """What a guard answers that needs the node and has none."""
    if facts.snapshot is None:
        return hold(guard, "There is no picture of Slurm yet.")
    if proposal.node is None:
        return hold(guard, "The request names no node.")
    return hold(guard, f"Slurm's picture shows no node {proposal.node}.")


def pause(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """A pause holds everybody, the person who asks too: whoever wants to act ends it first, by name."""
    standing = _standing(proposal, facts, now)
    if not standing:
        return allow(Guard.pause, "No pause concerns this.")
    first = standing[0]
    ends = [one.until for one in standing]
    frees_at = max((end for end in ends if end is not None), default=None) if all(ends) else None
    what = f"{first.scope} {first.name}".strip()
    more = f" ({len(standing) - 1} more)" if len(standing) > 1 else ""
    why = f"Paused ({what}) by {first.by}: {first.reason}{more}."
    return hold(Guard.pause, why, used=len(standing), limit=0, frees_at=frees_at)


def is_paused(proposal: Proposal, facts: GateFacts, now: datetime) -> bool:
    return bool(_standing(proposal, facts, now))


def _standing(proposal: Proposal, facts: GateFacts, now: datetime) -> list[Pause]:
    return [one for one in facts.pauses if concerns(one, proposal, facts, now)]


def concerns(one: Pause, proposal: Proposal, facts: GateFacts, now: datetime) -> bool:
    """Whether this pause holds the proposal back."""
    if one.until is not None and one.until <= now:
        return False
    if one.cluster and one.cluster != proposal.cluster:
        return False
    node, job = node_of(proposal, facts), job_of(proposal, facts)
    match one.scope:
        case "all":
            return True
        case "cluster":
            return (one.name or one.cluster) == proposal.cluster
        case "partition":
            partitions = node.partitions if node else ()
            return one.name in partitions or (job is not None and job.partition == one.name)
        case "node":
            return one.name == proposal.node or (
                proposal.node is None and job is not None and one.name in job.nodes
            )
        case "rule":
            return one.name == proposal.rule
        case "playbook":
            return one.name == proposal.playbook
    # A scope that this version does not know: somebody wanted healer to stand still.
    return True


def stale(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Actions fail closed: nobody acts on an old picture of Slurm, a person neither."""
    limit_s = settings_of(rules, facts.cluster).stale_s
    if facts.snapshot is None:
        return hold(Guard.stale, "There is no picture of Slurm yet.", limit=limit_s)
    age_s = (now - facts.snapshot.taken_at).total_seconds()
    if age_s > limit_s:
        why = f"Slurm's picture is {age_s:.0f} s old; the bound is {limit_s:g} s."
        return hold(Guard.stale, why, limit=limit_s, used=age_s)
    if age_s < -limit_s:
        why = f"Slurm's picture is dated {-age_s:.0f} s in the future: the clocks disagree."
        return hold(Guard.stale, why, limit=limit_s, used=age_s)
    return allow(Guard.stale, f"Slurm's picture is {max(0.0, age_s):.1f} s old.", limit=limit_s, used=age_s)


def ownership(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Law 5: a person's drain is theirs, only ours is lifted, and a person's resume of ours is a veto."""
    node = node_of(proposal, facts)
    if node is None:
        return unknown_node(Guard.ownership, proposal, facts)
    if proposal.verb in RETURNING_VERBS:
        return _may_return(node, facts)
    if foreign := _foreign(node, proposal, facts):
        return refuse(Guard.ownership, foreign)
    if proposal.by is None:
        vetoes = [veto for veto in facts.vetoes if veto.node == node.name and veto.until > now]
        if vetoes:
            last = max(vetoes, key=lambda veto: veto.until)
            why = (
                f"{last.by} resumed our drain of {node.name}; healer leaves it alone until {at(last.until)}."
            )
            return hold(Guard.ownership, why, used=1, limit=0, frees_at=last.until)
    return allow(Guard.ownership, f"Nobody else holds {node.name}.")


def _foreign(node: SlurmNode, proposal: Proposal, facts: GateFacts) -> str | None:
    """Why the reason that stands on the node is not ours to replace, or None."""
    if not node.held or is_ours(node.reason):
        return None
    slurms_own = slurm_kind(node.reason) is not None or (not node.reason and not node.drain)
    if not slurms_own:
        who = node.reason_user or "somebody"
        text = node.reason or "without a reason"
        return f"{node.name} was taken out by {who} ({text}); a person's reason is never replaced."
    # Slurm's own DOWN returns by itself when the node registers: our drain on top of it takes nothing from
    # anybody. Its own DRAIN stays, unless a hook of ours caused it, or a playbook that is made to adopt it
    # asks, or a person.
    ours = proposal.adopts or permit_for(node, facts.permits) is not None
    if node.drain and proposal.by is None and not ours:
        return f"Slurm itself drained {node.name} ({node.reason}); healer adopts it only when a person asks."
    return None


def _may_return(node: SlurmNode, facts: GateFacts) -> Answer:
    if node.held and is_ours(node.reason):
        return allow(Guard.ownership, f"healer drained {node.name}.")
    if not node.held and (kept := our_reservation(facts.snapshot, node.name)):
        return allow(Guard.ownership, f"{node.name} is out for healer's tests ({kept.name}).")
    slot = facts.held.get(node.name)
    if not node.held and slot is not None:
        # Slurm's picture may be older than our drain; the step itself reads the node again before it acts.
        return allow(Guard.ownership, f"healer holds {node.name} (run {slot.run}).")
    if not node.held:
        return refuse(Guard.ownership, f"{node.name} is not drained: there is nothing to return.")
    who = "Slurm itself" if slurm_kind(node.reason) else node.reason_user or "somebody else"
    text = node.reason or "no reason given"
    return refuse(
        Guard.ownership, f"{node.name} was taken out by {who} ({text}); healer lifts only its own drains."
    )


def protected(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """The site's lists of what healer never touches, whoever asks: nodes, and the work of jobs by QOS."""
    if proposal.verb in JOB_VERBS:
        return _protected_jobs(proposal, [job_of(proposal, facts)], facts, rules)
    node = node_of(proposal, facts)
    if node is None:
        return unknown_node(Guard.protected, proposal, facts)
    lists = (settings_of(rules, facts.cluster), *settings_of_node(rules, facts.cluster, node))
    for pattern in (pattern for settings in lists for pattern in settings.protected):
        if matches(pattern, node):
            why = f"{node.name} is protected by {pattern} in rules/guards.yaml."
            return refuse(Guard.protected, why)
    if proposal.verb in _ENDS_JOBS and facts.snapshot is not None:
        return _protected_jobs(proposal, facts.snapshot.jobs_on(node.name), facts, rules)
    return allow(Guard.protected, f"{node.name} is not protected.")


#: What takes a node without waiting for its jobs. A drain lets them run, all else wants the node empty.
_ENDS_JOBS = frozenset({Verb.down, Verb.power_cycle})


def _protected_jobs(
    proposal: Proposal, jobs: Sequence[SlurmJob | None], facts: GateFacts, rules: Ruleset
) -> Answer:
    for job in jobs:
        if job is None:
            continue
        lists = (settings_of(rules, facts.cluster), settings_of_job(rules, facts.cluster, job))
        if any(job.qos in settings.protected_qos for settings in lists):
            why = f"Job {job.id} has QOS {job.qos}, which is protected in rules/guards.yaml."
            return refuse(Guard.protected, why)
    return allow(Guard.protected, f"{proposal.job or proposal.node} is not protected.")


def maintenance(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Planned work is no fault: healer waits for its end. A named person knows of it and may go on."""
    node = node_of(proposal, facts)
    if node is None:
        return unknown_node(Guard.maintenance, proposal, facts)
    window = planned_window(rules, facts.cluster, node, now, facts.snapshot)
    if window is None:
        return allow(Guard.maintenance, f"No work is planned on {node.name} now.")
    why = f"Planned work on {node.name}: {window.why}."
    if proposal.by is not None:
        return allow(Guard.maintenance, f"{why} {proposal.by} asks all the same.")
    return hold(Guard.maintenance, why, used=1, limit=0, frees_at=window.until)


def recent(moments: list[datetime], now: datetime, span: timedelta) -> list[datetime]:
    """Those within the span before now, oldest first. A moment that is exactly `span` old has left it."""
    return sorted(moment for moment in moments if moment > now - span)
