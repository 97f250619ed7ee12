"""What a detector is: a function over the picture, or a memory over what was measured."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple, Protocol

from healer.detection.readings import Line
from healer.model import (
    Command,
    Component,
    Detections,
    Finding,
    LinkDown,
    Ruleset,
    SlurmSnapshot,
)
from healer.observations import Picture
from healer.observations.steps import StepTimes
from healer.observations.telemetry_windows import Telemetry

#: A fault and where it is.
Pair = tuple[str, Component]


class PictureLook(NamedTuple):
    """What detectors over the picture look at in one walk. `lines`: those that speak of now, as read."""

    rules: Ruleset
    picture: Picture
    now: datetime
    lines: Sequence[Line] = ()
    commands: Sequence[Command] = ()


@dataclass(frozen=True, slots=True)
class Look:
    """What detectors over measured windows look at in one tick."""

    now: datetime
    telemetry: Telemetry
    steps: StepTimes
    slurm: SlurmSnapshot | None = None
    #: (fault, root) of open incidents that measured signals opened: whether they are over has to be told.
    watched: Collection[Pair] = ()
    #: Nodes that lost a link, by their kernel's lines.
    links_down: Mapping[str, LinkDown] = field(default_factory=dict)
    #: Node -> titles of the incidents that are open on it.
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Since when senders were heard without a break. What was not heard before was not missed.
    listening_since: datetime | None = None


class Detector(Protocol):
    """Looks at measured windows every `TICK_S`; one thread. The same looks give the same findings.

    Only `tick` is required. The other methods are for what it remembers.
    """

    def tick(self, look: Look) -> Detections:
        """New findings, and since when those of `look.watched` are known to be over."""
        ...

    def glance(self, look: Look) -> tuple[Finding, ...]:
        """Between two ticks, where nodes have just lost a link."""
        return ()

    def prime(self, telemetry: Telemetry, now: datetime) -> None:
        """A moment of the past, while windows are rebuilt after a restart: remember, and tell nothing."""

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        """The node was repaired, returned or booted at `since`: what was measured before is over."""

    def under(self, rules: Ruleset) -> "Detector":
        """The detector of changed rules, which keeps what it remembers."""
        return self

    def know_parts(self, telemetry: Telemetry, gpus: Sequence[tuple[str, int, str]]) -> None:
        """(node, GPU, part): which GPU is which part, as nodes list them."""

    def pack(self, telemetry: Telemetry) -> dict[str, bytes]:
        """What took days to learn, by name: a restart needs it."""
        return {}

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        """Takes what was kept; returns the names of what cannot be read, which begins anew."""
        return []

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays, where they grow with the fleet."""
        return 0

    @property
    def is_idle(self) -> bool:
        """Nothing holds that the next tick has to look at again; time alone finds nothing."""
        return True

    @property
    def needs_samples(self) -> bool:
        """False for what also finds something where nobody measures."""
        return True


def unreadable(packed: Mapping[str, bytes], name: str, read: Callable[[bytes], None]) -> list[str]:
    """Gives `read` what was kept under `name`; that name where `read` raises ValueError."""
    try:
        if name in packed:
            read(packed[name])
    except ValueError:
        return [name]
    return []
