"""Where something is: the part of a cluster that a word is about; and which places nodes share."""

import math
from datetime import datetime, timedelta
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache

import msgspec

from healer.model.vocabulary import Cause, Remedy, Severity

#: Prefix that marks a device where a node name is expected too: no node name begins with it.
DEVICE_MARK = "@"


class Component(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A part of a cluster, as far as it is known.

    `gpu` is the index that Slurm and nvidia-smi use (0-based), `pci` the bus id in the form `0000:9b:00`,
    `link` an NVLink number, `switch` a leaf switch or an NVSwitch, `job` Slurm's job id as text.
    `device` is what is no node (a switch's own telemetry, a PDU, a storage server), `part` a port, outlet or
    target of it.
    """

    cluster: str
    node: str | None = None
    gpu: int | None = None
    pci: str | None = None
    link: int | None = None
    nic: str | None = None
    switch: str | None = None
    job: str | None = None
    rank: int | None = None
    device: str | None = None
    part: str | None = None

    def may_equal(self, other: "Component") -> bool:
        """Whether both may name the same part: they agree on every field that both give. One sender may give
        a GPU's index, another one its address."""
        if self.node != other.node:
            return False
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return all(ours == theirs for ours, theirs in pairs if ours is not None and theirs is not None)

    def __str__(self) -> str:
        """For people: `gpu0017 GPU 3 (0000:9b:00)`."""
        words = [self.node or self.switch or self.device or self.cluster]
        if self.gpu is not None:
            words.append(f"GPU {self.gpu}")
        if self.pci:
            words.append(f"({self.pci})")
        if self.link is not None:
            words.append(f"link {self.link}")
        if self.switch and self.node:
            words.append(self.switch)
        if self.part and self.device and not self.node:
            words.append(self.part)
        if self.job and not self.node:
            words = [f"job {self.job}"]
        return " ".join(words)


def device_in(subject: str) -> str | None:
    """The device of a report's subject; None for a node."""
    return subject[len(DEVICE_MARK) :] if subject.startswith(DEVICE_MARK) else None


class JobCheckpoint(msgspec.Struct, frozen=True, kw_only=True):
    """A durable checkpoint that a job reported. `at` is the job's clock, `arrived_at` ours; both are UTC."""

    job: str
    restart: int
    step: int
    path: str
    at: datetime
    arrived_at: datetime


#: What the fault of an incident of a shared place begins with; its rule's name follows.
SHARED_FAULT = "shared:"
#: The same of a wave; the rule of the single incidents follows.
WAVE_FAULT = "wave:"
WAVE_RULE = "wave"
#: Prefix of a block of topology/block, in fields that name a switch under topology/tree.
BLOCK = "block:"


@lru_cache(maxsize=64)
def storm_size(share: float, nodes: int) -> int:
    """Distinct roots of one fault class in 5 minutes that make a storm (law 3): at least 3, at most 8."""
    return max(3, min(8, math.ceil(Fraction(str(share)) * nodes)))


class PlaceKind(StrEnum):
    """What nodes may share: fields of `SlurmNode` and of `Place`."""

    pdu = "pdu"
    rack = "rack"
    switch = "switch"
    domain = "domain"
    row = "row"


#: What two nodes share whose silences are one outage (law 2). A row is too large: two of its nodes may die
#: apart.
OUTAGE_PLACES = (PlaceKind.switch, PlaceKind.rack, PlaceKind.pdu, PlaceKind.domain)


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """One entry of `rules/sharing.yaml`: faults of several nodes that mean the place. It is a policy too.

    Incidents of `faults` (globs) that open within `within_s` seconds at `at_least` nodes (or ports) of one
    `place`, and at least `share` (0..1) of its nodes, are one incident of the place. `itself`: faults
    reported on the place, which explain `faults` of its nodes whatever their number.
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
