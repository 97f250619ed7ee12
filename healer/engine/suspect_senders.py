"""Holds the claims of relays that accuse more nodes than one sender is believed for, and pages people with
their names."""

from collections.abc import Mapping, Sequence

import msgspec

from healer.decisions.accusations import denial_of, suspects
from healer.engine.second_looks import takes_a_node
from healer.engine.upkeep import Walk
from healer.incidents.certainty import unproven_senders
from healer.model import Incident
from healer.telling.news import sender_page
from healer.text import NO_WORDS, Said


def hold_suspects(walk: Walk) -> None:
    """Records on each open incident why its claims are in doubt, until a second sense proves them."""
    snapshot = walk.gate.snapshot
    accusing = {incident.id for incident in walk.open_incidents() if takes_a_node(walk, incident)}
    nodes = len(snapshot.gpu_nodes) if snapshot else 0
    found = suspects(walk.open_incidents(), accusing, nodes, walk.now)
    newly: dict[str, Said] = {}
    for incident in walk.open_incidents():
        senders = unproven_senders(incident)
        named = [sender for sender in senders if sender in found]
        doubt = _doubt(incident, named, found)
        if doubt == incident.doubt:
            continue
        if doubt:
            newly |= {sender: found[sender] for sender in named}
        walk.work.put(msgspec.structs.replace(incident, doubt=doubt, updated=walk.now))
    for sender, why in sorted(newly.items()):
        walk.tx.queue_message(sender_page(walk.picture.cluster, sender, why, walk.now))
        walk.audit("sender.suspect", f"sender/{sender}", why=why)


def _doubt(incident: Incident, named: Sequence[str], found: Mapping[str, Said]) -> Said:
    """Why the incident is in doubt; `named`: the suspects whose text alone it rests on."""
    if not named:
        return NO_WORDS
    denials = (denial_of(incident, sender) for sender in named)
    return next(filter(None, denials), incident.doubt or found[named[0]])
