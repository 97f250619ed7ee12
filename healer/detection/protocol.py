"""The definition of a detector: a function over the picture, or an object with memory over measured
windows."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from hashlib import sha256
from typing import Generic, NamedTuple, Protocol, TypeVar

from healer.detection.readings import Line
from healer.model import (
    Command,
    Component,
    Detections,
    Evidence,
    Finding,
    NodeReport,
    Ruleset,
    Sense,
    SlurmSnapshot,
)
from healer.observations import Picture
from healer.observations.steps import JobSteps, LifeKey, StepTimes
from healer.observations.telemetry_windows import Telemetry
from healer.text import Said, say

#: A fault and its component.
Pair = tuple[str, Component]
T = TypeVar("T")
#: A lasting condition is reported again after this time, because its incident may have closed.
AGAIN_AFTER = timedelta(minutes=5)


class WalkInput(NamedTuple):
    """The input of detectors over the picture in one walk. `lines`: current lines with their readings."""

    rules: Ruleset
    picture: Picture
    now: datetime
    lines: Sequence[Line] = ()
    commands: Sequence[Command] = ()


@dataclass(frozen=True, slots=True)
class TickInput:
    """The input of detectors over measured windows in one tick."""

    now: datetime
    telemetry: Telemetry
    steps: StepTimes
    slurm: SlurmSnapshot | None = None
    #: (fault, root) of open incidents that measured signals opened: detectors report when they are over.
    watched: Collection[Pair] = ()
    #: Nodes that lost something a job may need, according to their kernel's lines.
    node_reports: Mapping[str, NodeReport] = field(default_factory=dict)
    #: Node -> titles of its open incidents.
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Since when senders were heard without a break; silence before that does not count.
    listening_since: datetime | None = None
    #: When any sender was last heard.
    heard_at: datetime | None = None


class Figures(NamedTuple):
    """Signals that a finding is based on; None: any. `peers`: they are compared with those of other nodes."""

    signals: Collection[str] | None = None
    peers: bool = False


class Detector(Protocol):
    """Examines measured windows every `TICK_S`; one thread. Deterministic: the same inputs give the same
    findings.

    Only `tick` is required. The other methods manage its memory.
    """

    #: False for a detector that also finds something without measured samples.
    needs_samples: bool = True

    def tick(self, given: TickInput) -> Detections:
        """New findings, and since when those of `given.watched` are known to be over."""
        ...

    def tick_early(self, given: TickInput) -> tuple[Finding, ...]:
        """Called between two ticks, when nodes have just lost something a job may need."""
        return ()

    def prime(self, telemetry: Telemetry, now: datetime) -> None:
        """A moment of the past, while windows are rebuilt after a restart: remember it, report nothing."""

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        """The node was repaired, returned or booted at `since`: older measurements no longer count."""

    def figures_of(self, finding: Finding) -> Figures:
        """The node's figures that one of its own findings is based on."""
        return Figures()

    def under(self, rules: Ruleset) -> "Detector":
        """The detector for changed rules; it keeps its memory."""
        return self

    def know_parts(self, telemetry: Telemetry, gpus: Sequence[tuple[str, int, str]]) -> None:
        """(node, GPU, part): which physical GPU is at which index, as listed by the nodes."""

    def pack(self, telemetry: Telemetry) -> dict[str, bytes]:
        """State that took days to learn, by name, for the next start."""
        return {}

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        """Restores the result of `pack`; returns the names of entries that cannot be read and are learnt from
        scratch."""
        return []

    @property
    def nbytes(self) -> int:
        """Size of its arrays in bytes, if they grow with the fleet."""
        return 0

    @property
    def is_idle(self) -> bool:
        """The next tick has nothing pending to examine again; time alone finds nothing."""
        return True


def unreadable(packed: Mapping[str, bytes], name: str, read: Callable[[bytes], None]) -> list[str]:
    """Calls `read` with the data stored under `name`; returns that name if `read` raises ValueError, which
    msgspec's errors are."""
    try:
        if name in packed:
            read(packed[name])
    except ValueError:
        return [name]
    return []


def new_evidence(
    identity: str, where: Component, at: datetime, text: Said, now: datetime, sense: Sense
) -> Evidence:
    """Evidence that healer derived itself; the same `identity` always gives the same digest."""
    return Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=at,
        component=where,
        text=text,
        arrived_at=now,
        job=where.job,
        sense=sense,
    )


def percent(share: float) -> Said:
    """`12%` of 0.12."""
    return say("words.percent", n=f"{100 * share:.0f}")


@dataclass(slots=True)
class Episode(Generic[T]):
    """A lasting condition at one place: `now` is its value at the newest tick that showed it; `missed` ticks
    since then did not."""

    since: datetime
    now: T
    missed: int = 0
    due: bool = True


class Episodes(Generic[T]):
    """Lasting conditions by place. An episode is over when `patience` ticks in a row did not show it."""

    def __init__(self, patience: int = 1) -> None:
        self._patience = patience
        self.on: dict[Component, Episode[T]] = {}
        #: Episodes that ended: since when.
        self.over: dict[Component, datetime] = {}

    def show(self, where: Component, now: T, since: datetime) -> None:
        """A tick showed it, so it is to be reported. `since` counts if it is new."""
        episode = self.on.setdefault(where, Episode(since, now))
        episode.now, episode.missed, episode.due = now, 0, True
        self.over.pop(where, None)

    def miss(self, where: Component, at: datetime) -> None:
        self.on[where].missed += 1
        if self.on[where].missed >= self._patience:
            del self.on[where]
            self.over[where] = at

    def due(self) -> list[tuple[Component, Episode[T]]]:
        """The episodes to report, each once per tick that showed it."""
        found = [(where, episode) for where, episode in self.on.items() if episode.due]
        for _, episode in found:
            episode.due = False
        return found

    def cleared(self, fault: str, watched: Iterable[Pair]) -> dict[Pair, datetime]:
        """Of the watched incidents of this fault, those that are over, and since when."""
        return {pair: self.over[pair[1]] for pair in watched if pair[0] == fault and pair[1] in self.over}

    def drop_gone(self, telemetry: Telemetry) -> None:
        """Drops places that Slurm no longer shows, without counting them as over."""
        self.over = {where: at for where, at in self.over.items() if not telemetry.is_gone(where)}


class Reports:
    """When each fault was last reported; a lasting one is reported again after `AGAIN_AFTER`."""

    def __init__(self) -> None:
        self.last_at: dict[Pair, datetime] = {}

    def is_due(self, pair: Pair, now: datetime) -> bool:
        """Whether to report it now; True counts as reported."""
        last = self.last_at.get(pair)
        if last is not None and now - last < AGAIN_AFTER:
            return False
        self.last_at[pair] = now
        return True

    def forget(self, node: str) -> None:
        self.last_at = {pair: at for pair, at in self.last_at.items() if pair[1].node != node}


class LifeWatch(Protocol):
    """What `watch_jobs` needs of a detector's state for one life of a job."""

    job: JobSteps
    #: `job.rewound` when the watch began.
    rewound: int


W = TypeVar("W", bound=LifeWatch)


def watch_jobs(
    watches: Mapping[LifeKey, W], steps: StepTimes, begin: Callable[[JobSteps, int], W]
) -> dict[LifeKey, W]:
    """The watch of each job's latest life; a new watch if the life is new or went back to a checkpoint."""
    found: dict[LifeKey, W] = {}
    for job in steps.jobs():
        watch = watches.get(job.key)
        if watch is None or watch.job is not job or watch.rewound != job.rewound:
            watch = begin(job, job.rewound)
        found[job.key] = watch
    return found
