"""What a node has had, in one sentence: for whoever decides whether it is a lemon. Pure."""

from collections import Counter
from datetime import datetime, timedelta

from healer.detection.drains import is_drain
from healer.model import Incident, NodeHistory


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
