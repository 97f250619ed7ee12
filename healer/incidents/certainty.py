"""Law 2: what a claim of a dead node rests on. Pure.

Text that a relay sends may be anybody's. A claim is proven by the node's own word, by what healer or Slurm
saw of it, or by two independent senses: of two senders, as one token may send text, figures and step times
alike. What is not proven may take a node within the caps, and restarts no job that may still make steps.
"""

from collections.abc import Iterator

from healer.model import Evidence, Incident, Sense
from healer.observations.figure_senders import names_in

#: Senses that no relay's text can speak for: one alone proves what it says.
_FIRST_HAND = frozenset({Sense.kernel, Sense.hook, Sense.slurm, Sense.silence, Sense.step_times})
#: Conclusions from others: never a proof, nor a second sense.
_CONCLUDED = frozenset({Sense.alert, Sense.history})


def is_proven_unusable(incident: Incident) -> bool:
    """The node surely cannot be used, and not by one relay's text alone."""
    if not incident.unusable:
        return False
    claims = [evidence for evidence in _of_root(incident) if evidence.unusable]
    return bool(claims) and _is_proven(claims)


def is_proven_fatal(incident: Incident) -> bool:
    """A fatal fault has ended the work on its GPU, and not by one relay's text alone."""
    claims = [evidence for evidence in incident.evidence if evidence.fatal]
    return bool(claims) and _is_proven(claims)


def is_newly_proven(before: Incident, incident: Incident) -> bool:
    """Jobs may be restarted for it now: the node is surely unusable only since then, or what was claimed of
    it is proven."""
    if is_proven_unusable(incident) and not is_proven_unusable(before):
        return True
    claimed = any(evidence.fatal for evidence in before.evidence)
    return claimed and is_proven_fatal(incident) and not is_proven_fatal(before)


def unproven_senders(incident: Incident) -> tuple[str, ...]:
    """The relays on whose text alone the worst that is said of the incident rests; empty where something
    else says so too, and where no relay speaks of it."""
    worst = [evidence for evidence in incident.evidence if evidence.fatal or evidence.unusable]
    claims = worst or list(incident.evidence)
    if _is_proven(claims):
        return ()
    return tuple(sorted({evidence.relayed_by for evidence in claims if evidence.relayed_by}))


def unproven_claims(incident: Incident) -> list[Evidence]:
    """What relays say of the root's node, where the worst that is said of it rests on their text alone."""
    of_root = list(_of_root(incident))
    by_rank = (
        [evidence for evidence in of_root if evidence.unusable],
        [evidence for evidence in of_root if evidence.fatal],
        of_root,
    )
    worst = next((claims for claims in by_rank if claims), [])
    return [] if _is_proven(worst) else [evidence for evidence in worst if evidence.relayed_by]


def _of_root(incident: Incident) -> Iterator[Evidence]:
    node = incident.root.node
    return (evidence for evidence in incident.evidence if node is None or evidence.component.node == node)


def _is_proven(claims: list[Evidence]) -> bool:
    relays = _senders(*(evidence.relayed_by for evidence in claims))
    apart = [item for item in claims if not item.relayed_by and not _is_one(_senders(item.sent_by), relays)]
    senses = {evidence.sense for evidence in apart} - _CONCLUDED
    return bool(senses & _FIRST_HAND) or len(senses) > 1


#: In the place of a sender without a token's name.
_UNNAMED = ""


def _senders(*names: str) -> frozenset[str]:
    """Each by the name of its token, without the id: tokens of one name are one sender's."""
    return frozenset(name.rpartition(" (")[0] for name in names_in(names))


def _is_one(senders: frozenset[str], others: frozenset[str]) -> bool:
    """One of these is one of the others, or may be: who is not named may be any of them."""
    return bool(senders and others) and bool(senders & others or _UNNAMED in senders | others)
