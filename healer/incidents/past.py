"""What a node has had, in one sentence: for whoever decides whether it is a lemon. Pure."""

from collections import Counter
from datetime import datetime, timedelta

from healer.detection.drains import is_drain
from healer.incidents.lifecycle import ended_by_itself
from healer.model import HARDWARE, Incident, NodeHistory, NodePast, Review, Severity

#: For so long back the time out of service counts.
_OUT_DAYS = timedelta(days=14)
#: What says of the past, not of a fault.
_NO_FAULT = ("lemon", "forecast-", "drifted", "unusual-node")


def out_of_service(history: NodeHistory, since: datetime, now: datetime) -> timedelta:
    """How long the node was held by anybody since then, as its incidents tell: from healer's drain, or from
    when somebody else's stood, to their end. Times that overlap count once."""
    spans = sorted(span for one in history.incidents if (span := _span(one, since, now)) is not None)
    total, until = timedelta(0), since
    for began, ended in spans:
        total += max(timedelta(0), ended - max(began, until))
        until = max(until, ended)
    return total


def _span(one: Incident, since: datetime, now: datetime) -> tuple[datetime, datetime] | None:
    began = one.drained_at
    if began is None and is_drain(one.fault):
        began = one.owner_since or one.opened
    return (max(began, since), one.closed or now) if began is not None else None


def summed_up(history: NodeHistory, node: str, since: datetime, now: datetime, *, but: str = "") -> str:
    """`but`: the incident that asks, which is no past."""
    faults = Counter(one.fault for one in history.incidents if one.id != but and not is_drain(one.fault))
    drains = sum(is_drain(one.fault) for one in history.incidents)
    hours = out_of_service(history, since, now) / timedelta(hours=1)
    days = (now - since) / timedelta(days=1)
    named = ", ".join(f"{fault} {count}x" for fault, count in faults.most_common(10))
    tickets = len(history.ticketed - {but})
    what = f"{faults.total()} incidents ({named})" if faults else "no incident of a fault"
    return (
        f"{node} in {days:g} days: {what}, {tickets} repair tickets, taken out {drains} times by others, "
        f"{hours:.1f} h out of service"
    )


def past_of(history: NodeHistory, node: str, now: datetime) -> NodePast:
    """What of a node's history its score as a lemon rests on: faults of its hardware that are more than a
    note (P3), none that a person called a false alarm. What was before a person, or a repair, ended an
    incident of a lemon was weighed then, and is over."""
    weighed = max(
        (
            one.closed
            for one in history.incidents
            if one.fault.startswith("lemon") and one.closed is not None and not ended_by_itself(one)
        ),
        default=None,
    )
    since = max(now - _OUT_DAYS, weighed) if weighed is not None else now - _OUT_DAYS
    own = [one for one in history.incidents if weighed is None or one.opened > weighed]
    faults = [one for one in own if _is_fault(one, node)]
    return NodePast(
        node=node,
        faults=tuple((one.opened, one.fault) for one in faults),
        tickets=tuple(one.opened for one in own if one.id in history.ticketed),
        out=min(1.0, out_of_service(history, since, now) / _OUT_DAYS) if faults else 0.0,
    )


def _is_fault(one: Incident, node: str) -> bool:
    hardware = one.fault_class in HARDWARE and one.severity < Severity.P3 and one.root.node == node
    named = one.fault.startswith(_NO_FAULT) or is_drain(one.fault)
    return hardware and not named and one.review is not Review.false_alarm
