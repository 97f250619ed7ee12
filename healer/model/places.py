"""What nodes share, and which faults several of them have when that breaks: `rules/sharing.yaml`."""

import math
from datetime import timedelta
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

import msgspec

from healer.model.vocabulary import Cause, Remedy, Severity

#: What the fault of an incident of a shared place begins with; its rule's name follows.
SHARED_FAULT = "shared:"
#: The same of a wave; the rule of the single incidents follows.
WAVE_FAULT = "wave:"
WAVE_RULE = "wave"
#: Stands before the name of a block of topology/block, where Slurm tells switches of a tree else.
BLOCK = "block:"


@lru_cache(maxsize=64)
def storm_size(share: float, nodes: int) -> int:
    """Distinct roots of one fault class in 5 minutes that make a storm (law 3): at least 3, at most 8."""
    return max(3, min(8, math.ceil(Fraction(str(share)) * nodes)))


class PlaceKind(StrEnum):
    """What nodes may share. The words are fields of `SlurmNode` and of `Place`."""

    pdu = "pdu"
    rack = "rack"
    switch = "switch"
    domain = "domain"
    row = "row"

    @property
    def words(self) -> str:
        """For people, before the name of the place: `on PDU p7`."""
        return _WORDS[self]


_WORDS = {
    PlaceKind.pdu: "on PDU",
    PlaceKind.rack: "in rack",
    PlaceKind.switch: "under switch",
    PlaceKind.domain: "in NVLink domain",
    PlaceKind.row: "in row",
}


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/sharing.yaml`: faults of several nodes that mean the place. It is a policy too.

    Incidents of `faults` (globs) that open within `within_s` seconds at `at_least` nodes (or ports) of one
    `place`, and at least `share` (0..1) of its nodes, are one incident of the place. `itself`: faults told of
    the place, which explain `faults` of its nodes without any number.
    """

    name: str
    title: str
    place: PlaceKind
    faults: tuple[str, ...]
    source: str
    itself: tuple[str, ...] = ()
    at_least: int = 3
    share: float = 0.0
    within_s: float = 300
    severity: Severity = Severity.P1
    cause: Cause = Cause.unclear
    remedy: tuple[Remedy, ...] = (Remedy.notify,)
    runbook: str = ""

    @property
    def within(self) -> timedelta:
        return timedelta(seconds=self.within_s)

    @property
    def fault(self) -> str:
        return f"{SHARED_FAULT}{self.name}"
