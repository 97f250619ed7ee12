"""What sources say, in one form, as the sorted runs have it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import msgspec

from healer.importing.local_stamps import is_day, is_time, shown_time
from healer.importing.same_events import Marks
from healer.importing.sorted_runs import SortedRuns
from healer.importing.tally import Tally
from healer.text import say


class Lines(msgspec.Struct, frozen=True, array_like=True, tag="lines"):
    """Kernel lines of one host, as entries of `signals/kernel-log`."""

    host: str
    boot_id: str | None
    entries: Sequence[dict[str, Any]]


class NodeChange(msgspec.Struct, frozen=True, array_like=True, tag="node"):
    """`word`: `state` (Slurm's words in `state`), `reason`, `down`, `silent`, `heard`, `back`, `rebooted`,
    `reboot`, `booted`, or `shown` (a whole row of what Slurm printed). Times are µs since 1970."""

    nodes: Sequence[str]
    word: str
    state: Sequence[str] = ()
    reason: str = ""
    user: str = ""
    at_us: int = 0


class JobChange(msgspec.Struct, frozen=True, array_like=True, tag="job"):
    """`word`: `start`, `end`, `requeue`, or `why` (how it will have ended). `book`: by the accounting, which
    knows more than a log. `gpus` in all, None: unknown; `row` holds further fields of a recording's job."""

    id: str
    word: str
    book: bool
    nodes: Sequence[str] = ()
    state: str = ""
    gpus: int | None = None
    row: dict[str, Any] = {}


class NodeCheck(msgspec.Struct, frozen=True, array_like=True, tag="check"):
    """A check of a node that failed, as a hook of healer's would report it."""

    host: str
    hook: str
    name: str
    text: str


class Sampled(msgspec.Struct, frozen=True, array_like=True, tag="samples"):
    """Lines of the text exposition, each with its time."""

    text: str


class ToolEvent(msgspec.Struct, frozen=True, array_like=True, tag="event"):
    """What another tool reported of a host, as the data of a CloudEvent of this type."""

    host: str
    kind: str
    data: dict[str, Any]


class SmiLog(msgspec.Struct, frozen=True, array_like=True, tag="smi"):
    """XML in the form of `nvidia-smi -q -x`."""

    host: str
    xml: str


#: A source may be this far ahead of the clock that dated its file: zones.
_AHEAD_US = 26 * 3_600_000_000
#: Hosts and days of one source that are remembered: 16,000 nodes for a month. A sender may invent hosts.
HEARD_MOST = 500_000
Happening = Lines | NodeChange | JobChange | NodeCheck | Sampled | ToolEvent | SmiLog
_encode = msgspec.json.Encoder().encode
decode = msgspec.json.Decoder(Happening).decode


class Found:
    """The result of one source: sorted runs, names, and what was skipped."""

    def __init__(self, number: int, tally: Tally, folder: Path, written_us: int) -> None:
        self.tally, self._latest_us = tally, written_us + _AHEAD_US
        self.marks = Marks()
        self._runs = SortedRuns(folder, number)
        #: Host -> days on which it wrote anything, as `2026-11-20`.
        self.heard: dict[str, set[str]] = {}
        self._heard_count = 0
        #: Hosts with kernel lines that healer knows.
        self.hosts: set[str] = set()
        #: Nodes that Slurm names; all of them if `complete`. Rows of what Slurm printed, by name.
        self.nodes: set[str] = set()
        self.complete = False
        self.rows: dict[str, dict[str, Any]] = {}
        self.users: set[str] = set()
        self.cluster = ""
        #: First and last moment of the accounting, µs; most GPUs that a job held on one node.
        self.book: tuple[int, int] | None = None
        self.gpus_most = 0
        #: Host -> model of its GPUs and the most of them, as nvidia-smi listed them.
        self.gpus_listed: dict[str, tuple[str, int]] = {}

    def list_gpus(self, host: str, model: str, count: int) -> None:
        before = self.gpus_listed.get(host, ("", 0))
        self.gpus_listed[host] = before[0] or model, max(before[1], count)

    def add(self, at_us: int, happening: Happening, count: int = 1, *, line: int | None = None) -> None:
        """`count`: signals that it holds; `line`: see `Tally.skip`."""
        if not is_time(at_us) or at_us > self._latest_us:
            self.tally.skip(say("importing.no_time_of_file"), shown_time(at_us), count, line=line)
            return
        self.tally.signals += count
        self.tally.saw(at_us)
        self._runs.add(at_us, _encode(happening))

    def hear(self, host: str, day: str) -> bool:
        """Whether it is remembered now: an invalid day is not."""
        days = self.heard.get(host, ())
        if day in days:
            return True
        if self._heard_count >= HEARD_MOST:
            self.tally.note(say("importing.too_many_hosts", most=HEARD_MOST))
            return False
        if not is_day(day):
            return False
        self.heard.setdefault(host, set()).add(day)
        self._heard_count += 1
        return True

    def in_book(self, at_us: int) -> None:
        first, last = self.book or (at_us, at_us)
        self.book = min(first, at_us), max(last, at_us)

    def flushed(self) -> Self:
        """With everything on disk, so that it is small."""
        self._runs.flush()
        return self

    def runs(self) -> list[Path]:
        self._runs.flush()
        return self._runs.paths
