"""Guard `reserved`: what Slurm's reservations promise. Spares are handed over at a restart; a node that is
kept for somebody is not taken away while it is of use to them."""

from collections.abc import Iterator
from datetime import datetime, timedelta

from healer.decisions.answers import allow, hold
from healer.decisions.guards import unknown_node
from healer.decisions.places import node_of, rides, settings_of
from healer.decisions.spares import spared
from healer.model import RESTARTING_VERBS, Answer, GateFacts, Guard, Proposal, Reservation, Ruleset, SlurmNode
from healer.model.reserved import is_our_reservation

#: A reservation that begins later than this leaves time to repair what is faulty, and to bring it back.
BEGINS_WITHIN = timedelta(hours=1)

#: Slurm itself puts another node in the place of one that is taken out.
_REPLACED = frozenset({"REPLACE", "REPLACE_DOWN"})


def reserved(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Of a job the spares, of a node what it is promised for.

    A node whose fault ended its work is no capacity, so no promise keeps it; a slow or ageing one is. A
    person who asks by name, or approved it, answers for that.
    """
    if proposal.verb in RESTARTING_VERBS:
        return spared(proposal, facts, rules, now)
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.reserved, proposal, facts)
    kept = next(_promised(node, facts, rules, now), None)
    if kept is None:
        return allow(Guard.reserved, f"No reservation counts on {node.name}.")
    here = [facts.snapshot.nodes[name] for name in kept.nodes if name in facts.snapshot.nodes]
    standing = sum(one.in_service for one in here)
    figures = f"reservation {kept.name} counts on {len(kept.nodes)} nodes, {standing} are in service"
    told = {"limit": len(kept.nodes), "used": standing}
    if rides(proposal, facts) or not node.in_service:
        return allow(Guard.reserved, f"{node.name} is out already: {figures}.", **told)
    if proposal.unusable or proposal.fatal:
        return allow(Guard.reserved, f"{figures}: with this fault {node.name} is of no use to it.", **told)
    if person := proposal.by or proposal.approved_by:
        return allow(Guard.reserved, f"{figures}; {person} takes {node.name} from it.", **told)
    why = f"{figures}: {node.name} stays until it ends, or until a person takes it."
    return hold(Guard.reserved, why, frees_at=kept.until, **told)


def _promised(node: SlurmNode, facts: GateFacts, rules: Ruleset, now: datetime) -> Iterator[Reservation]:
    """The reservations that keep this very node for somebody, now or soon; the one that lasts longest first.

    Planned work is none (guard `maintenance`), nor are our own tests, nor the spares.
    """
    spares = settings_of(rules, facts.cluster).spares
    known = facts.snapshot.reservations.values() if facts.snapshot else ()
    standing = [
        one
        for one in known
        if node.name in one.nodes
        and not one.maintenance
        and not is_our_reservation(one)
        and not (spares is not None and one.name == spares.reservation)
        and _REPLACED.isdisjoint(one.flags)
        and (one.until is None or one.until > now)
        and (one.since is None or one.since <= now + BEGINS_WITHIN)
    ]
    last = datetime.max.replace(tzinfo=now.tzinfo)
    return iter(sorted(standing, key=lambda one: (one.until or last, one.name), reverse=True))
