"""Kernel lines that reach healer by several routes are one event.

Digests find the same line where both senders know the same of it (boot, sequence number, time). This finds it
where they do not: a follower names boot and sequence number, a relay only the time, a `dmesg` that somebody
reads an hour later the uptime or nothing. The kernel stamps each record with its uptime in microseconds: that
identifies it within a boot. Two lines of one sender with different sequence numbers or times stay two events.
"""

import re
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from healer.model import Observation

#: A line without a time of its own may be so old on arrival.
DELAY_MAX = timedelta(hours=1)
#: Between two clocks, or two notions of one line's time: relays stamp on receipt, `dmesg -T` drifts.
TOLERANCE = timedelta(seconds=5)
#: How far Slurm's BootTime may be off, and the kernel's clock for each second of its uptime.
CLOCKS_APART, KERNEL_DRIFT = timedelta(minutes=1), 1e-4
#: Lines remembered, of all nodes; events of one line; signals of one event.
LINES_KEPT = 50_000
EVENTS_KEPT, SIGNALS_KEPT = 32, 32
#: What is the route's and not the line's.
_ROUTE_DATA = frozenset({"ahead_s", "job"})
_DIGITS = re.compile(r"\d+")
#: The stamp before a record: `[  123.456789]` of dmesg and syslog, `6,1234,123456789,-;` of /dev/kmsg.
_STAMP = re.compile(
    r"(?:[^\[]{0,80}\bkernel: |<\d{1,3}>)?\[ *(\d{1,10})\.(\d{6})[\]\s<]|\d{1,3},\d{1,18},(\d{0,10}?)(\d{6}),"
)

#: Which fields a sender fills in, how fine its times are, which relay it is, and how its lines begin: senders
#: that differ in it are different ones.
Form = tuple[bool, bool, str, str]
#: Digest and arrival: the same line that is sent again a week later is another signal.
Signal = tuple[str, datetime]


@dataclass
class Event:
    """One event as far as its tellings bound it: it was between `since` and `until`, by our clock."""

    since: datetime
    until: datetime
    boot_id: str | None
    seq: int | None
    uptime_s: float | None
    forms: set[Form] = field(default_factory=set)
    #: The node itself has reported it, and not only a relay.
    is_own_word: bool = True
    #: Its signals, and whether each was an echo: it is the same when it is walked again, after a restart or a
    #: walk that failed.
    signals: dict[Signal, bool] = field(default_factory=dict)

    @property
    def is_vague(self) -> bool:
        """No sender gave its time or sequence number."""
        return self.seq is None and self.until - self.since > 2 * TOLERANCE

    def is_same(self, other: "Event") -> bool:
        """The kernel's own stamp or number shows that it is the same record."""
        apart = self.boot_id and other.boot_id and self.boot_id != other.boot_id
        if self.boot_id and self.boot_id == other.boot_id and self.seq is not None and self.seq == other.seq:
            return True
        return self.uptime_s is not None and self.uptime_s == other.uptime_s and not apart

    def take_in(self, other: "Event") -> None:
        self.since, self.until = max(self.since, other.since), min(self.until, other.until)
        self.boot_id, self.seq = self.boot_id or other.boot_id, self.seq if other.seq is None else other.seq
        self.uptime_s = other.uptime_s if self.uptime_s is None else self.uptime_s
        self.forms |= other.forms
        self.is_own_word |= other.is_own_word

    def note(self, signal: Signal, *, is_echo: bool) -> None:
        self.signals[signal] = is_echo
        if len(self.signals) > SIGNALS_KEPT:
            del self.signals[next(iter(self.signals))]


class Echoes:
    """Events of one cluster by their lines."""

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, list[Event]] = OrderedDict()

    def is_echo(self, seen: Observation, moment: datetime, renewed_at: datetime | None) -> bool:
        """Whether another sender has already reported this line; remembers it either way. The node's own word
        on what only a relay had reported is news.

        `moment`: the line's time by our clock. `renewed_at`: the last repair or boot of its node: of two
        lines without a time of their own, one before and one after it, the second may be a new fault. A
        sender that gave the time of the first would have reported a second fault too.
        """
        if not seen.line or "server" in seen.data:
            return False  # whether a server answers is a state: after its contrary it is news again
        event = _event(seen, moment)
        key = _line_of(seen)
        events = self._lines.setdefault(key, [])
        self._lines.move_to_end(key)
        signal = _signal(seen)
        for before in events:
            if signal in before.signals:
                return before.signals[signal]
        for before in reversed(events):
            over = renewed_at is not None and before.until <= renewed_at
            may_be_new = over and before.is_vague and event.is_vague
            if before.is_same(event) or (_is_one(before, event) and not may_be_new):
                is_echo = before.is_own_word or not event.is_own_word
                before.take_in(event)
                before.note(signal, is_echo=is_echo)
                return is_echo
        event.note(signal, is_echo=False)
        events.append(event)
        del events[:-EVENTS_KEPT]
        if len(self._lines) > LINES_KEPT:
            self._lines.popitem(last=False)
        return False

    def knows(self, seen: Observation) -> bool:
        """Whether another signal reported the same line before, by whichever sender and of whichever time."""
        events = self._lines.get(_line_of(seen), ())
        return any(event.signals.keys() - {_signal(seen)} for event in events)


def uptime_of(line: str) -> float | None:
    """Seconds since boot, in whole microseconds, as the kernel stamped the record; None without a stamp."""
    match = _STAMP.match(line)
    if match is None:
        return None
    whole, micros = match[1] or match[3] or "0", match[2] or match[4]
    return float(f"{whole}.{micros}")


def is_from_before(
    seen: Observation, booted_at: datetime, renewed_at: datetime | None, *, of_this_boot: bool = False
) -> bool:
    """Whether the kernel's stamp on the line shows that it was written before `renewed_at`, or in an earlier
    boot. `booted_at`: Slurm's BootTime of the node, by our clock; `of_this_boot`: the line is surely of that
    boot. None: nothing was renewed."""
    stamped = _stamped(seen, booted_at)
    if stamped is None or renewed_at is None:
        return False
    at, unsure = stamped
    return at + unsure <= renewed_at or (not of_this_boot and at - unsure > seen.arrived_at)


def written_at(seen: Observation, booted_at: datetime) -> datetime | None:
    """When a line of this boot without a time of its own was written, by the kernel's stamp, if that is
    surely before it arrived."""
    stamped = _stamped(seen, booted_at) if not _is_timed(seen) else None
    return stamped[0] if stamped is not None and stamped[0] + stamped[1] < seen.arrived_at else None


def _stamped(seen: Observation, booted_at: datetime) -> tuple[datetime, timedelta] | None:
    """When the line was written by the kernel's stamp, and how far that may be off."""
    uptime_s = uptime_of(seen.line)
    if uptime_s is None:
        return None
    unsure = CLOCKS_APART + timedelta(seconds=uptime_s * KERNEL_DRIFT)
    return booted_at + timedelta(seconds=uptime_s), unsure


def _is_timed(seen: Observation) -> bool:
    """Its sender gave a time."""
    return seen.event_at != seen.arrived_at or "ahead_s" in seen.data


def _signal(seen: Observation) -> Signal:
    return seen.digest, seen.arrived_at


def _event(seen: Observation, moment: datetime) -> Event:
    timed = _is_timed(seen)
    clock = ("fine" if seen.event_at.microsecond else "seconds") if timed else "none"
    start = f"{seen.relayed_by}|{_DIGITS.sub('0', seen.line[:16])}"
    return Event(
        since=moment - (TOLERANCE if timed else DELAY_MAX),
        until=moment + TOLERANCE,
        boot_id=seen.boot_id,
        seq=seen.seq,
        uptime_s=uptime_of(seen.line),
        is_own_word=not seen.relayed_by,
        forms={(seen.boot_id is not None, seen.seq is not None, clock, start)},
    )


def _line_of(seen: Observation) -> Hashable:
    """What is the same of a line by whatever route it comes."""
    data = sorted((name, repr(value)) for name, value in seen.data.items() if name not in _ROUTE_DATA)
    return seen.component, seen.kind, seen.code, seen.text, tuple(data)


def _is_one(before: Event, event: Event) -> bool:
    if before.forms & event.forms:
        return False  # one sender reports an event once
    if before.boot_id and event.boot_id and before.boot_id != event.boot_id:
        return False
    if before.seq is not None and event.seq is not None and before.seq != event.seq:
        return False
    if before.uptime_s is not None and event.uptime_s is not None:
        return False  # of one boot they would be the same
    return before.since <= event.until and event.since <= before.until
