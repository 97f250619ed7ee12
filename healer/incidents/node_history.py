"""A node's history in a sentence and as a record for the lemon score; and similar incidents. Pure."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

from healer.incidents.lifecycle import ended_by_itself
from healer.model import HARDWARE, Component, Incident, NodeHistory, NodeRecord, Review, Severity, Verb
from healer.model.faults import Trait, fault_is
from healer.model.incident import Similar, Similarity
from healer.text import Said, joined, quoted, say, unstopped

#: The most similar incidents that are shown.
SIMILAR_SHOWN = 5


#: Verbs that may have cured a fault; the last one before the end gets the credit.
_CURES = frozenset({Verb.restart_service, Verb.reset_gpu, Verb.reboot, Verb.power_cycle, Verb.reroute})


def similar_to(
    incident: Incident,
    others: Iterable[Incident],
    model_of: Callable[[str], str],
    cures: Callable[[Sequence[str]], Mapping[str, Sequence[Verb]]] = lambda _: {},
) -> list[Similar]:
    """Similar incidents: those of the same part and node first, each group newest first.

    `model_of`: a node's GPU model, empty if unknown; `cures`: the verbs carried out for incidents, oldest
    first. Merged incidents are left out, because their root is listed.
    """
    found: dict[str, tuple[Similarity, Incident]] = {}
    for other in others:
        if other.id == incident.id or other.merged_into is not None:
            continue
        same = _same(incident, other, model_of)
        if same is not None:
            found[other.id] = (same, other)
    nearest = (Similarity.part, Similarity.node)
    alike = sorted(found.values(), key=lambda pair: pair[1].opened, reverse=True)
    shown = [
        *(pair for pair in alike if pair[0] in nearest),
        *(pair for pair in alike if pair[0] not in nearest),
    ][:SIMILAR_SHOWN]
    done = cures([other.id for _, other in shown])
    return [_as_similar(same, other, done.get(other.id, ())) for same, other in shown]


def _same(incident: Incident, other: Incident, model_of: Callable[[str], str]) -> Similarity | None:
    here, there = incident.root, other.root
    if here.node is not None and here.node == there.node:
        if _part(here) and _part(here) & _part(there):
            return Similarity.part
        return Similarity.node if other.rule == incident.rule else None
    if here.device is not None and (here.device, here.part) == (there.device, there.part):
        return Similarity.part
    if other.fault != incident.fault:
        return None
    models = {model_of(member.node) if member.node else "" for member in (here, there)}
    if len(models) == 1:
        return Similarity.fault if models == {""} else Similarity.model
    return Similarity.fault if "" in models else None


def _part(root: Component) -> set[object]:
    """Names of the part: a GPU has an index and an address."""
    names = {("gpu", root.gpu), ("pci", root.pci), ("nic", root.nic), ("switch", root.switch)}
    return {name for name in names if name[1] is not None}


def _as_similar(same: Similarity, other: Incident, verbs: Sequence[Verb]) -> Similar:
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


def _ended(other: Incident, helped: Verb | None, return_s: float | None) -> Said:
    if other.is_open:
        return say("incidents.still_open")
    why = other.closed_why or say("incidents.closed")
    parts = [unstopped(why) if why.endswith(".") else why]
    if return_s is not None:
        parts.append(say("incidents.back_after_drain", time=_span_words(return_s)))
    if helped is not None:
        parts.append(say(f"incidents.after_{helped}"))
    if other.review is not None:
        reviewed = say(f"incidents.reviewed_{other.review}")
        cause = other.review_cause
        parts.append(say("incidents.with_cause", what=reviewed, cause=quoted(cause)) if cause else reviewed)
    return joined(parts, "semicolon")


def _span_words(seconds: float) -> Said:
    minutes = round(seconds / 60)
    if minutes < 2:
        return say("words.seconds", n=f"{seconds:.0f}")
    return say("words.minutes", n=minutes) if minutes < 120 else say("words.hours", n=f"{minutes / 60:.1f}")


#: How far back time out of service counts.
_OUT_DAYS = timedelta(days=14)


def out_of_service(history: NodeHistory, since: datetime, now: datetime) -> timedelta:
    """How long the node was out of service since then, by its incidents: from healer's or another owner's
    drain to their end. Overlaps count once."""
    spans = sorted(
        span for incident in history.incidents if (span := _span(incident, since, now)) is not None
    )
    total, until = timedelta(0), since
    for began, ended in spans:
        total += max(timedelta(0), ended - max(began, until))
        until = max(until, ended)
    return total


def _span(incident: Incident, since: datetime, now: datetime) -> tuple[datetime, datetime] | None:
    began = incident.drained_at
    if began is None and fault_is(incident.fault, Trait.drain):
        began = incident.owner_since or incident.opened
    return (max(began, since), incident.closed or now) if began is not None else None


def summarize_node(history: NodeHistory, node: str, since: datetime, now: datetime, *, but: str = "") -> Said:
    """The node's history in a sentence. `but`: an incident to leave out, the one that asks."""
    faults = Counter(
        incident.fault
        for incident in history.incidents
        if incident.id != but and not fault_is(incident.fault, Trait.drain)
    )
    drains = sum(fault_is(incident.fault, Trait.drain) for incident in history.incidents)
    named = joined((f"{fault} {count}x" for fault, count in faults.most_common(10)), "comma")
    incidents = say("incidents.with_faults", n=faults.total(), faults=named)
    return say(
        "incidents.node_history",
        node=node,
        days=(now - since) / timedelta(days=1),
        what=incidents if faults else say("incidents.without_fault"),
        tickets=len(history.ticketed - {but}),
        drains=drains,
        hours=out_of_service(history, since, now) / timedelta(hours=1),
    )


def lemon_record(history: NodeHistory, node: str, now: datetime) -> NodeRecord:
    """The part of a node's history that its lemon score uses: faults of its hardware above P3, without false
    alarms, and only since the last lemon incident that a person or a repair ended."""
    weighed = max(
        (
            incident.closed
            for incident in history.incidents
            if fault_is(incident.fault, Trait.lemon)
            and incident.closed is not None
            and not ended_by_itself(incident)
        ),
        default=None,
    )
    since = max(now - _OUT_DAYS, weighed) if weighed is not None else now - _OUT_DAYS
    later = [incident for incident in history.incidents if weighed is None or incident.opened > weighed]
    faults = [incident for incident in later if _is_fault(incident, node)]
    return NodeRecord(
        node=node,
        faults=tuple((incident.opened, incident.fault) for incident in faults),
        tickets=tuple(incident.opened for incident in later if incident.id in history.ticketed),
        out=min(1.0, out_of_service(history, since, now) / _OUT_DAYS) if faults else 0.0,
    )


def _is_fault(incident: Incident, node: str) -> bool:
    hardware = (
        incident.fault_class in HARDWARE and incident.severity < Severity.P3 and incident.root.node == node
    )
    named = fault_is(incident.fault, Trait.of_past) or fault_is(incident.fault, Trait.drain)
    return hardware and not named and incident.review is not Review.false_alarm
