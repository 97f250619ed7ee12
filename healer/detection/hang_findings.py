"""What a hang is told as: since when, who waits, who never came; a stable identity."""

from collections.abc import Mapping
from datetime import datetime
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.detection.standstill import Standstill
from healer.model import Component, Evidence, FaultClass, Finding, LinkDown, Sense
from healer.observations.in_step import BETWEEN, COMPUTE, UNTOLD
from healer.observations.steps import JobSteps, Places

HANG = "hang"
_NAMED = 4
_DOES = {UNTOLD: "says nothing any more", COMPUTE: "still computes", BETWEEN: "has not begun it"}


class Stood(NamedTuple):
    """Since when, at which step, how long one takes (s), and how sure that is (0..1)."""

    since: datetime
    step: int
    usual_s: float
    confidence: float


def hang(
    job: JobSteps,
    places: Places,
    stand: Standstill,
    stood: Stood,
    links: Mapping[str, LinkDown],
    now: datetime,
) -> Finding:
    where = Component(cluster=job.cluster, job=job.job)
    suspects = _suspects(job, stand, places, links)
    stood_s = (now - stood.since).total_seconds()
    words = [
        f"job {job.job}: no step since {stood.since:%H:%M:%S} UTC, for {stood_s:.0f} s; the last was step "
        f"{stood.step}, and one takes {stood.usual_s:.3g} s",
        _who(stand, places),
        *(f"{node} lost a link at {one.at:%H:%M:%S} UTC ({one.text[:160]})" for node, one in links.items()),
    ]
    text = "; ".join(words)
    named = ",".join(str(rank) for rank in stand.named[:64].tolist()) if stand.speaks else ""
    identity = f"{HANG}|{job.cluster}|{job.job}|{job.restart}|{stood.step}|{named}|{sorted(links)}"
    evidence = Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=min(stood.since, now),
        component=where,
        text=text,
        arrived_at=now,
        job=job.job,
        sense=Sense.step_times,
    )
    for_whom = f": it waits for {suspects[0]}" if len(suspects) == 1 else ""
    return Finding(
        rule=HANG,
        fault=HANG,
        fault_class=FaultClass.informational,
        component=where,
        at=min(stood.since, now),
        arrived_at=now,
        text=text,
        title=f"Job {job.job} makes no step any more{for_whom}",
        confidence=stood.confidence,
        evidence=(evidence,),
        jobs=(job.job,),
        affected=suspects,
    )


def _who(stand: Standstill, places: Places) -> str:
    """Who waits and who never came, as far as ranks say it."""
    count, missing = len(stand.ranks), int(stand.missing.sum())
    if not stand.speaks and not missing:
        return "its ranks do not say where they stand"
    waits = int(stand.waits.sum())
    there = f"{waits} of {count} ranks wait in its collective" if waits else f"{count - missing} are there"
    if not missing:
        if not waits:
            return f"all {count} ranks are in step {stand.step}, and none ends it"
        last = stand.ranks[int(np.nanargmax(np.where(stand.waits, stand.since_s, np.nan)))]
        came = f"all {count} ranks came to the collective of step {stand.step}, {_at(int(last), places)} last"
        return f"{came}, and it does not end: the network, or a GPU"
    if not len(stand.named):
        return f"{missing} of {count} ranks never came to step {stand.step}: none of them is named"
    shown = [
        f"{_at(int(rank), places)} {_DOES.get(int(stand.doing[index]), 'is not there')}"
        for index, rank in enumerate(stand.ranks)
        if stand.missing[index]
    ]
    more = f" and {len(shown) - _NAMED} more" if len(shown) > _NAMED else ""
    return f"step {stand.step}: {there}; {', '.join(shown[:_NAMED])}{more}"


def _at(rank: int, places: Places) -> str:
    if rank >= len(places.node) or places.node[rank] < 0:
        return f"rank {rank}"
    gpu = f", GPU {places.gpu[rank]}" if places.gpu[rank] >= 0 else ""
    return f"rank {rank} ({places.nodes[places.node[rank]]}{gpu})"


def _suspects(
    job: JobSteps, stand: Standstill, places: Places, links: Mapping[str, LinkDown]
) -> tuple[Component, ...]:
    """Where those run that never came, and who lost a link: looked at first, and nobody is blamed."""
    found = [Component(cluster=job.cluster, node=node) for node in sorted(links)]
    ranks: NDArray[np.intp] = stand.named
    for rank in ranks.tolist():
        if rank < len(places.node) and places.node[rank] >= 0:
            gpu = int(places.gpu[rank])
            node = places.nodes[places.node[rank]]
            found.append(Component(cluster=job.cluster, node=node, gpu=gpu if gpu >= 0 else None))
    return tuple(dict.fromkeys(found))
