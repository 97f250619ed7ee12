"""What the checks of a node's own hooks found. They judge the node as it is; what follows is the rules'."""

from collections.abc import Sequence

from healer.model import Component, Evidence, FaultClass, Finding, Observation, ObservationKind, Sense
from healer.observations import Picture
from healer.signals.identity import digest_of

#: What a fault of this kind begins with: `hook:probe`, `hook:fs-full` and so on.
FAULT = "hook:"


def findings(picture: Picture, observations: Sequence[Observation]) -> list[Finding]:
    """One for each check that failed and was not made again since. Its rule is the caller's to find."""
    return [
        _finding(seen, name, str(text))
        for seen in observations
        if seen.kind is ObservationKind.hook
        for name, text in seen.data.get("failed", {}).items()
        if not _made_again(picture, seen, name)
    ]


def _made_again(picture: Picture, seen: Observation, name: str) -> bool:
    known = picture.node(seen.component.node or "").checks.get(name)
    return known is not None and known[0] > seen.event_at


def _finding(seen: Observation, name: str, text: str) -> Finding:
    # Without its job: the check is about the node, whoever ran there.
    where = Component(cluster=seen.component.cluster, node=seen.component.node)
    evidence = Evidence(
        digest=digest_of("hook-check", seen.digest, name),
        at=seen.event_at,
        component=where,
        text=text,
        arrived_at=seen.arrived_at,
        sense=Sense.hook,
    )
    return Finding(
        rule="",
        fault=f"{FAULT}{name}",
        fault_class=FaultClass.degraded,
        component=where,
        at=seen.event_at,
        arrived_at=seen.arrived_at,
        text=text,
        confidence=1.0,
        evidence=(evidence,),
    )
