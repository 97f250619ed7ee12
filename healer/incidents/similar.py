"""Incidents like this one, and how they ended. Pure: whoever asks brings those that may be alike."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from healer.model import Component, Incident, Verb
from healer.model.similar_incident import Same, Similar

#: So many are told.
SIMILAR_SHOWN = 5
#: Of the same node, and of the same fault, so many are looked at, the newest.
MAY_BE_ALIKE = 50


#: Steps that may have made it well: what was done last before the end gets the credit.
_CURES = {
    Verb.restart_service: "a restart of the service",
    Verb.reset_gpu: "a GPU reset",
    Verb.reboot: "a reboot",
    Verb.power_cycle: "a power cycle",
    Verb.reroute: "a reroute",
}


def similar_to(
    incident: Incident,
    others: Iterable[Incident],
    model_of: Callable[[str], str],
    cures: Callable[[Sequence[str]], Mapping[str, Sequence[Verb]]] = lambda _: {},
    limit: int = SIMILAR_SHOWN,
) -> list[Similar]:
    """Those of the same part and node first, each group newest first.

    `model_of` gives a node's GPU model, empty where it is not known; `cures` the verbs that were done for
    incidents, oldest first. What was merged into another incident is told with that one.
    """
    found: dict[str, tuple[Same, Incident]] = {}
    for other in others:
        if other.id == incident.id or other.merged_into is not None:
            continue
        same = _same(incident, other, model_of)
        if same is not None:
            found[other.id] = (same, other)
    own = (Same.part, Same.node)
    alike = sorted(found.values(), key=lambda pair: pair[1].opened, reverse=True)
    told = [*(one for one in alike if one[0] in own), *(one for one in alike if one[0] not in own)][:limit]
    done = cures([other.id for _, other in told])
    return [_told(same, other, done.get(other.id, ())) for same, other in told]


def _same(incident: Incident, other: Incident, model_of: Callable[[str], str]) -> Same | None:
    here, there = incident.root, other.root
    if here.node is not None and here.node == there.node:
        if _part(here) and _part(here) & _part(there):
            return Same.part
        return Same.node if other.rule == incident.rule else None
    if here.device is not None and (here.device, here.part) == (there.device, there.part):
        return Same.part
    if other.fault != incident.fault:
        return None
    models = {model_of(one.node) if one.node else "" for one in (here, there)}
    if len(models) == 1:
        return Same.fault if models == {""} else Same.model
    return Same.fault if "" in models else None


def _part(root: Component) -> set[object]:
    """Names of a part of a node: its GPU goes by index and by address."""
    names = {("gpu", root.gpu), ("pci", root.pci), ("nic", root.nic), ("switch", root.switch)}
    return {one for one in names if one[1] is not None}


def _told(same: Same, other: Incident, verbs: Sequence[Verb]) -> Similar:
    helped = next((verb for verb in reversed(verbs) if verb in _CURES), None)
    return_s = None
    if other.probation_until is not None and other.drained_at is not None and other.closed is not None:
        return_s = (other.closed - other.drained_at).total_seconds()
    return Similar(
        id=other.id,
        cluster=other.cluster,
        same=same,
        rule=other.rule,
        fault=other.fault,
        title=other.title,
        root=other.root,
        opened=other.opened,
        closed=other.closed,
        state=other.state,
        severity=other.severity,
        review=other.review,
        review_cause=other.review_cause,
        ended=_ended(other, helped, return_s),
        helped=helped if other.closed is not None else None,
        return_s=return_s,
    )


def _ended(other: Incident, helped: Verb | None, return_s: float | None) -> str:
    if other.is_open:
        return "still open"
    parts = [(other.closed_why or "closed").rstrip(".")]
    if return_s is not None:
        parts.append(f"back {_span(return_s)} after the drain")
    if helped is not None:
        parts.append(f"after {_CURES[helped]}")
    if other.review is not None:
        cause = f" ({other.review_cause})" if other.review_cause else ""
        parts.append(f"reviewed: {other.review.value.replace('_', ' ')}{cause}")
    return "; ".join(parts)


def _span(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes < 2:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 120 else f"{minutes / 60:.1f} h"
