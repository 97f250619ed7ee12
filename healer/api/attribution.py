"""Whose word a signal is: the node's own, or that of a relay that nothing vouches for (law 2)."""

from collections.abc import Iterable

import msgspec

from healer.model import Observation, ObservationKind
from healer.model.detection import KERNEL_LINES
from healer.model.telemetry import Report
from healer.ports.callers import Caller
from healer.ports.signal_stores import Arrival
from healer.signals.identity import relayed_digest

#: What `healer token create --vouches` takes.
KERNEL = "kernel"
#: What may accuse a node, and so names who says it.
_ACCUSING = KERNEL_LINES | {ObservationKind.hook}


def arrivals_of(caller: Caller, observations: Iterable[tuple[Observation, tuple[str, ...]]]) -> list[Arrival]:
    """(observation, other digests of the same signal) as they are stored. A relay's text has an identity of
    its own, so that it never takes the place of the node's word."""
    return [_arrival(caller, seen, also) for seen, also in observations]


def _arrival(caller: Caller, seen: Observation, also: tuple[str, ...]) -> Arrival:
    if seen.kind not in _ACCUSING or _is_own_word(caller, seen):
        return Arrival(seen, also)
    relayed = msgspec.structs.replace(seen, digest=relayed_digest(seen.digest), relayed_by=name_of(caller))
    return Arrival(relayed, tuple(relayed_digest(digest) for digest in also))


def attributed(caller: Caller, reports: list[Report]) -> list[Report]:
    """The same figures with the relay that sent them. A bound token speaks of its own node alone, so what it
    sends is that node's word."""
    if caller.vouches == KERNEL or caller.node is not None:
        return reports
    name = name_of(caller)
    return [msgspec.structs.replace(report, relayed_by=name) for report in reports]


def name_of(caller: Caller) -> str:
    return f"{caller.name} ({caller.id})"


def _is_own_word(caller: Caller, seen: Observation) -> bool:
    """By a token that is bound to the node, or that vouches for the kernel."""
    return caller.vouches == KERNEL or (caller.node is not None and caller.node == seen.component.node)
