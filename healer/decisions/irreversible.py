"""What cannot be undone needs people. One case does not: a node of ours is freed of jobs that cannot end."""

from datetime import datetime, timedelta

from healer.decisions.answers import allow, hold
from healer.decisions.places import node_of
from healer.model import Answer, GateFacts, Guard, Proposal, Verb
from healer.model.reasons import is_ours

#: DOWN without a person: the node's jobs have all been completing for so long (law 8).
STUCK_FOR = timedelta(seconds=30)


def irreversible(proposal: Proposal, facts: GateFacts, now: datetime) -> Answer:
    """One person whatever the mode, and a second one beside the requester unless the node is drained and
    empty. Time never approves."""
    if proposal.verb is Verb.down and (why := _only_frees(proposal, facts, now)):
        return allow(Guard.approval, why)
    people = {person for person in (proposal.by, proposal.approved_by) if person}
    needed = 1 if proposal.by is None or _drained_and_empty(proposal, facts) else 2
    if len(people) >= needed:
        return allow(
            Guard.approval, f"Agreed by {' and '.join(sorted(people))}.", used=len(people), limit=needed
        )
    what = f"{proposal.verb} cannot be undone"
    if not people:
        return hold(Guard.approval, f"{what}: it needs a person.", used=0, limit=needed)
    why = f"{what}: beside {proposal.by} a second person must approve."
    return hold(Guard.approval, why, used=len(people), limit=needed)


def _only_frees(proposal: Proposal, facts: GateFacts, now: datetime) -> str | None:
    """Why DOWN takes nothing from anybody: the node is drained by us, and no job on it is at work.

    Since when stands in the run's own log; that it is still so, the picture must say that was taken since.
    """
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None or not (node.drain and is_ours(node.reason)):
        return None
    jobs = facts.snapshot.jobs_on(node.name)
    if any("COMPLETING" not in job.flags for job in jobs):
        return None
    if not jobs and not node.busy:
        return f"healer drained {node.name}, and no job is on it."
    since = proposal.stuck_since
    if not jobs or since is None or now - since < STUCK_FOR or facts.snapshot.taken_at <= since:
        return None
    stuck_s = (now - since).total_seconds()
    return f"healer drained {node.name}, and its jobs have been completing for {stuck_s:.0f} s."


def _drained_and_empty(proposal: Proposal, facts: GateFacts) -> bool:
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return False
    return node.drain and not node.busy and not facts.snapshot.jobs_on(node.name)
