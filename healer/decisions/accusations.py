"""Relays whose text or figures accuse more nodes than one sender is believed for (laws 2 and 3). Pure.

A relay that nothing vouches for may accuse a few nodes at a time until a second sense agrees. Beyond that the
relay lies or is broken, or something happened to the whole place: its claims are held for a person, who also
learns which relay it is. The same applies to a relay that reported what the node itself denies. Claims that a
second sense proved are not counted, so an honest relay never reaches the limit.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable
from datetime import datetime, timedelta

from healer.incidents.certainty import unproven_senders
from healer.model import HARDWARE, OF_FIGURES, Incident
from healer.observations.figure_senders import names_in
from healer.text import NO_WORDS, Said, quoted, say

#: As long as a storm and its cool-down.
WINDOW = timedelta(minutes=10)
#: At least the size of the smallest storm; on a large fleet half of the hourly cap (0.02), so that one relay
#: never uses up what honest senders need.
NODES_AT_LEAST, SHARE = 3, 0.01


def budget(nodes: int) -> int:
    """The number of distinct nodes that one relay may accuse within `WINDOW`. `nodes`: GPU nodes that Slurm
    knows."""
    return max(NODES_AT_LEAST, math.floor(SHARE * nodes))


def denial_of(incident: Incident, sender: str) -> Said:
    """Why this relay is not believed, if the node itself denies its claim; without a full stop."""
    denied = (claim for claim in incident.evidence if claim.denied and claim.relayed_by == sender)
    claim = next(denied, None)
    if claim is None:
        return NO_WORDS
    why = quoted(claim.denied or "")
    return say("decisions.relay_denied", sender=sender, node=claim.component.node, why=why)


def suspects(
    incidents: Iterable[Incident], accusing: Collection[str], nodes: int, now: datetime
) -> dict[str, Said]:
    """Sender -> why its claims are held, in one sentence without a full stop. A sender stays suspect while
    one of its claims is held. `accusing`: ids of incidents for which healer would take a node."""
    accused: defaultdict[str, set[str]] = defaultdict(set)
    found: dict[str, Said] = {}
    most = budget(nodes)
    for incident in incidents:
        if not incident.is_open or incident.fault_class not in HARDWARE:
            continue
        senders = unproven_senders(incident)
        is_shared = len(senders) > 1  # a wave, which may be held because of another one
        held = NO_WORDS if is_shared else incident.doubt
        for sender in senders:
            if why := denial_of(incident, sender) or held:
                found[sender] = why
            if now - incident.opened < WINDOW:
                accused[sender] |= _accused(
                    incident, sender, is_accusing=incident.id in accusing, is_shared=is_shared
                )
    relays = {sender: names_in([sender]) for sender in accused}
    for sender in sorted(relays, key=lambda name: len(relays[name])):
        # A claim of either relay rests on the text of both: together they have one budget.
        parts = [other for other in relays if relays[other] <= relays[sender]]
        named = set[str]().union(*(accused[part] for part in parts))
        if why := next((found[part] for part in parts if part in found), None):
            found[sender] = why
        elif len(named) > most:
            found[sender] = say("decisions.relay_accuses", sender=sender, nodes=len(named), most=most)
    return found


def _accused(incident: Incident, sender: str, *, is_accusing: bool, is_shared: bool) -> set[str]:
    """The nodes that the sender accuses in the incident; if others accuse too, only those that it names
    itself. An honest relay forwards the figures of the whole fleet, and many of those look unusual at times:
    they count only if healer would take the node because of them."""
    claims = [evidence for evidence in incident.evidence if evidence.relayed_by == sender]
    is_text = any(evidence.sense not in OF_FIGURES for evidence in claims)
    if is_text and not is_shared:
        return {part.node for part in (incident.root, *incident.affected) if part.node}
    if not is_text and (not is_accusing or incident.plan or incident.node_was_out):
        return set()
    return {evidence.component.node for evidence in claims if evidence.component.node}
