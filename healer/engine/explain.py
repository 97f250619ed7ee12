"""What the walk notes so that an incident explains itself: what follows from it, its cost, its verdict."""

from collections.abc import Mapping
from datetime import datetime
from functools import partial

import msgspec

from healer.incidents import Correlator
from healer.incidents.aside import with_aside
from healer.incidents.entries import model_on
from healer.incidents.hit import hits_wait, with_hits
from healer.incidents.verdict import news
from healer.model import Incident, Ruleset, SetAside
from healer.observations import Picture
from healer.ports.transactions import WalkTx


def note_merged(work: Correlator, known: Mapping[str, Incident]) -> None:
    """What was merged stands on what explains it as set aside. `known`: incidents as the walk found them."""
    for one in list(work.changed.values()):
        before, root = known.get(one.id), work.by_id.get(one.merged_into or "")
        if root is None or (before is not None and before.merged_into == root.id):
            continue
        why = f"follows from this one (incident {one.short_id})"
        work.put(with_aside(root, SetAside(at=one.opened, what=one.title, why=why, component=one.root)))


def note_cost(work: Correlator, tx: WalkTx, picture: Picture, now: datetime) -> None:
    """How sure the surest finding is, and what the jobs hit have lost as far as Slurm shows it now."""
    for name, finding in work.placed:
        incident = work.by_id[name]
        if finding.confidence > (incident.confidence or 0.0):
            work.put(msgspec.structs.replace(incident, confidence=finding.confidence))
    for incident in [one for one in work.by_id.values() if one.is_open and hits_wait(one)]:
        noted = with_hits(incident, picture.slurm, tx.newest_durable, now)
        if noted is not incident:
            work.put(noted)


def keep_verdict(
    tx: WalkTx, before: Incident | None, incident: Incident, rules: Ruleset, picture: Picture, now: datetime
) -> None:
    """From now on, where it is news."""
    verdict = news(before, incident, rules, partial(model_on, rules, picture))
    if verdict is not None:
        tx.add_verdict(incident.id, verdict, at=now)
