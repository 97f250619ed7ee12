"""The history of a part -> findings: what came too often, and what means more together."""

from collections.abc import Sequence
from datetime import datetime
from hashlib import sha256

import msgspec

from healer.incidents.entries import fits, label, model_on, repeats_for
from healer.incidents.noting import note, part_of
from healer.incidents.over import is_late
from healer.model import (
    Combination,
    Component,
    Evidence,
    FaultBurst,
    FaultClass,
    Finding,
    Observation,
    Repeat,
    Ruleset,
    Same,
    Sense,
)
from healer.observations import Picture
from healer.observations.history import Key

#: What the fault of a repeat begins with: `repeats:xid-31`.
REPEATS = "repeats:"
_HARDWARE = frozenset({FaultClass.fatal, FaultClass.degraded})


def with_history(
    rules: Ruleset,
    picture: Picture,
    batch: Sequence[Observation],
    live: Sequence[Observation],
    findings: Sequence[Finding],
    now: datetime,
) -> list[Finding]:
    """Notes what a walk was told; returns its findings without those that are over already, and with those
    that only the history knows. An error of an application that became a repeat is that one's evidence."""
    picture.history.begin()
    note(rules, picture, batch, live, findings)
    kept = [one for one in findings if not is_late(rules, picture, one)]
    found: dict[tuple[str, str, str], Finding] = {}
    more: list[Finding] = []
    for key, burst in picture.history.touched:
        model = model_on(rules, picture, burst.node)
        for entry in repeats_for(rules, burst.fault, model):
            if (repeat := _repeat(rules, picture, entry, key, burst, now)) is not None:
                found.setdefault((burst.node, *key), repeat)
        more += _combined(rules, picture, key, burst, now)
    left = []
    for one in kept:
        where = (one.component.node or "", part_of(picture, one.component), one.fault)
        repeat = found.get(where) if one.component.node and one.fault_class not in _HARDWARE else None
        if repeat is None:
            left.append(one)
        else:
            found[where] = msgspec.structs.replace(repeat, evidence=(*repeat.evidence, *one.evidence))
    return [*left, *found.values(), *more]


# --- repeats ---------------------------------------------------------------------------------------------


def _repeat(
    rules: Ruleset, picture: Picture, entry: Repeat, key: Key, burst: FaultBurst, now: datetime
) -> Finding | None:
    if not _counts(picture, entry, key[0], burst):
        return None
    bursts = _alike(picture, entry, key, burst)
    jobs = {job for one in bursts for job in one.jobs}
    users = {user for one in bursts for user in one.users}
    if len(bursts) < entry.bursts or len(jobs) < entry.jobs or len(users) < entry.users:
        return None
    where = Component(cluster=burst.cluster, node=burst.node, gpu=burst.gpu, pci=burst.pci)
    if entry.same is Same.node:
        where = Component(cluster=burst.cluster, node=burst.node)
    figures = _figures(bursts, jobs, users)
    return _finding(
        entry,
        f"{REPEATS}{burst.fault}",
        where,
        f"{label(rules, burst.fault)} on {_place(entry, burst)}{figures} within {entry.within_h:g} h",
        name=(burst.cluster, burst.node, key[0], burst.fault, str(burst.began_at)),
        at=burst.last_at,
        now=now,
    )


def _alike(picture: Picture, entry: Repeat, key: Key, burst: FaultBurst) -> list[FaultBurst]:
    """The bursts that count together with this one, itself among them."""
    part = None if entry.same is Same.node else key[0]
    since = burst.last_at - entry.within
    cleared = picture.node(burst.node).cleared_at
    found = []
    for (where, fault), one in picture.history.on(burst.node, part):
        alike = fits(fault, entry.faults) if entry.together else fault == burst.fault
        if not alike or one.last_at < since or one.began_at > burst.last_at:
            continue
        if cleared is not None and one.last_at <= cleared:
            continue  # it was tested or repaired since
        if entry.same is Same.unit and one.units != burst.units:
            continue
        if entry.one_boot and one.boot_id != burst.boot_id:
            continue
        if _counts(picture, entry, where, one):
            found.append(one)
    return found


def _counts(picture: Picture, entry: Repeat, part: str, burst: FaultBurst) -> bool:
    """Not what a worse fault explains, nor what its job had elsewhere as well."""
    if entry.same is Same.unit and len(burst.units) != 1:
        return False
    if entry.alone and not picture.history.is_alone(part, burst):
        return False
    return not picture.history.is_explained(burst)


def _place(entry: Repeat, burst: FaultBurst) -> str:
    if entry.same is Same.node:
        return burst.node
    return f"{_gpu(burst)} {burst.units[0]}" if entry.same is Same.unit else _gpu(burst)


def _gpu(burst: FaultBurst) -> str:
    if burst.gpu is not None:
        return f"GPU {burst.gpu}"
    return f"GPU {burst.pci}" if burst.pci else burst.part or burst.node


def _figures(bursts: Sequence[FaultBurst], jobs: set[str], users: set[str]) -> str:
    """` in 3 jobs of 2 users`; how often, where that is more, or nobody knows whose jobs they were."""
    times = f", {len(bursts)} times" if len(bursts) != len(jobs) else ""
    of_users = f" of {_many(len(users), 'user')}" if users else ""
    return f"{times} in {_many(len(jobs), 'job')}{of_users}" if jobs else times


def _many(number: int, what: str) -> str:
    return f"{number} {what}" + ("s" if number != 1 else "")


# --- combinations ----------------------------------------------------------------------------------------


def _combined(rules: Ruleset, picture: Picture, key: Key, burst: FaultBurst, now: datetime) -> list[Finding]:
    found = []
    for entry in rules.escalations.combinations:
        own = next((group for group in entry.faults if fits(burst.fault, group)), None)
        if own is None:
            continue
        parts = [_near(picture, entry, key, burst, group) for group in entry.faults if group is not own]
        if None in parts:
            continue
        all_of = [burst, *(one for one in parts if one is not None)]
        where = Component(cluster=burst.cluster, node=burst.node, gpu=burst.gpu, pci=burst.pci)
        names = sorted(label(rules, one.fault) for one in all_of)
        begun = sorted(str(one.began_at) for one in all_of)
        finding = _finding(
            entry,
            entry.name,
            where,
            f"{' and '.join(names)} on {_gpu(burst)}",
            name=(burst.cluster, burst.node, key[0], *begun),
            at=burst.last_at,
            now=now,
        )
        found.append(finding)
    return found


def _near(
    picture: Picture, entry: Combination, key: Key, burst: FaultBurst, group: tuple[str, ...]
) -> FaultBurst | None:
    """The newest burst of these faults on the part that is near enough."""
    near = [
        one
        for (_, fault), one in picture.history.on(burst.node, key[0])
        if fits(fault, group)
        and one.began_at - entry.within <= burst.last_at
        and burst.began_at <= one.last_at + entry.within
    ]
    return max(near, key=lambda one: one.last_at, default=None)


def _finding(
    entry: Repeat | Combination,
    fault: str,
    where: Component,
    text: str,
    *,
    name: Sequence[str],
    at: datetime,
    now: datetime,
) -> Finding:
    """`text`: the figures; `name`: what makes it another event."""
    digest = sha256("|".join(("history", entry.name, *name)).encode()).hexdigest()
    whole = f"{text}: {entry.title}"
    evidence = Evidence(
        digest=digest, at=at, component=where, text=whole, sense=Sense.history, arrived_at=now
    )
    return Finding(
        rule=entry.name,
        fault=fault,
        fault_class=entry.fault_class,
        component=where,
        at=at,
        arrived_at=now,
        text=whole,
        title=text,
        confidence=1.0,
        evidence=(evidence,),
    )
