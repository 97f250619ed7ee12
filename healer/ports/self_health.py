"""What healer knows of itself, for its page of health."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, NamedTuple

import msgspec

from healer.model import Controller
from healer.model.telemetry import ScrapeState


class Queue(NamedTuple):
    """What waits to be written in this process, and for how much there is room."""

    name: str
    waiting: int
    limit: int
    unit: str


class Backlog(msgspec.Struct, frozen=True, kw_only=True):
    """What waits in the database for a part of healer, and since when the oldest of it does."""

    name: str
    count: int = 0
    oldest: datetime | None = None


class Sink(msgspec.Struct, frozen=True, kw_only=True):
    """One channel, the generic webhook, or the tickets, over the last 7 days. `error` is that of the newest
    message that failed or waits to be tried again."""

    name: str
    sent: int = 0
    due: int = 0
    failed: int = 0
    last_sent: datetime | None = None
    error: str = ""


class ModelSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The model in force of one class; `told` is what came of the last look at the class."""

    hardware: str
    load: str
    id: str
    trained_at: datetime
    in_force_at: datetime | None = None
    by: str = ""
    told: str = ""


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """What the database tells of one cluster. `beats` part -> when it said last that it works; `leads` are
    the parts of which one holds the lock."""

    version: str = ""
    size_bytes: int = 0
    free_share: float | None = None
    controller: Controller | None = None
    beats: dict[str, datetime] = {}
    leads: frozenset[str] = frozenset()
    backlogs: tuple[Backlog, ...] = ()
    sinks: tuple[Sink, ...] = ()
    scrape: ScrapeState | None = None
    models: tuple[ModelSeen, ...] = ()


class Pulse(msgspec.Struct, frozen=True, kw_only=True):
    """Whether the work goes on at one cluster: when Slurm's picture was taken (None: never yet) and the
    poller's last error, how slurmctld does, and whether a detector holds the lock."""

    cluster: str
    taken_at: datetime | None = None
    error: str = ""
    controller: Controller | None = None
    detector: bool = False


class Own(msgspec.Struct, frozen=True, kw_only=True):
    """`checks` are those of /readyz. `broker`: the messages that wait there; None: it does not answer, and
    `broker_text` says why. `rules_since`: when this process took the rules in force."""

    stored: Stored
    checks: dict[str, dict[str, Any]] = {}
    queues: tuple[Queue, ...] = ()
    broker: int | None = None
    broker_text: str = ""
    rules_version: str = ""
    rules_since: datetime | None = None


#: Of one cluster.
OwnReads = Callable[[str], Own]
