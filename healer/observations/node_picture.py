"""The state of one node as known, and which of its lines are news.

News is neither from an earlier boot or before a repair (`NodePicture.is_history`) nor an echo: kernel lines
that reach healer by several routes are one event (`Echoes`). Digests find the same line if both senders know
the same about it (boot, sequence number, time). Echoes are found if they do not: a follower names boot and
sequence number, a relay only the time, and a `dmesg` read an hour later only the uptime or nothing. The
kernel stamps each record with its uptime in microseconds, which identifies it within a boot. Two lines of one
sender with different sequence numbers or times remain two events.
"""

import re
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

import msgspec

from healer.model import Observation, ObservationKind
from healer.observations.fault_history import GpuMap

#: Lines of one driver message arrive within this time, even if a shipper sends each separately.
LOSS_WITHIN = timedelta(seconds=10)
#: A line of an unknown boot that is older than this on arrival is history (product.md, "Hear").
UNKNOWN_BOOT_MAX_AGE = timedelta(hours=1)
#: How far a line's lateness may correct its host's clock at most, if no heartbeat reports that clock.
LATENESS_MAX = timedelta(minutes=10)
#: A sender is silent after three missed heartbeats at its own interval, and never sooner than this.
SILENCE_AFTER = timedelta(seconds=30)
#: Heartbeats needed before a sender has an interval that it could miss.
BEATS_FOR_CADENCE = 3
#: A heartbeat that is late by half its interval, and by this, is overdue.
OVERDUE_S = 2.0
#: Checks remembered per node; a report holds half as many.
CHECKS_KEPT = 64
#: Earlier boots of one node that are remembered.
OLD_BOOTS_KEPT = 64


def late_by(seen: Observation) -> timedelta:
    """Arrival minus the sender's time; exactly zero if the sender gave no time."""
    late, ahead_s = seen.arrived_at - seen.event_at, seen.data.get("ahead_s")
    return late - timedelta(seconds=ahead_s) if ahead_s else late


# Wide: one record per node, filled by all kinds of signals.
@dataclass
class NodePicture:
    """The state of one node as known. `cleared_at`: a resume, reset or repair; older lines are history.
    `booted_at`: by our clock, when a boot other than the known one was first reported."""

    name: str
    boot_id: str | None = None
    boot_heard_at: datetime | None = None
    #: When this boot was first reported, by our clock.
    boot_since: datetime | None = None
    #: The latest earlier boots, oldest first: a node may report new ones without end.
    old_boots: dict[str, None] = field(default_factory=dict)
    #: The relay that reported this boot, or the change to it; empty: the node itself or Slurm.
    boot_relay: str = ""
    booted_relay: str = ""
    cleared_at: datetime | None = None
    #: Slurm last showed it as drained by a person, who has resumed it since.
    resumed_after: datetime | None = None
    booted_at: datetime | None = None
    beats: deque[datetime] = field(default_factory=lambda: deque(maxlen=9))
    #: The node itself sends heartbeats: a relay's are no sign of its life.
    beats_itself: bool = False
    #: When it was heard again after its last silence.
    back_at: datetime | None = None
    gpus: GpuMap = field(default_factory=GpuMap)
    #: Arrival minus the sender's own time: of the last heartbeats, and the least of any line of this boot.
    beats_late: deque[timedelta] = field(default_factory=lambda: deque(maxlen=9))
    line_late: timedelta | None = None
    #: The node itself has shown its clock: relays teach nothing of it any more.
    shows_clock: bool = False
    #: The node's own facts (`healer.model.FACTS`), and when any of them last changed.
    facts: dict[str, str] = field(default_factory=dict)
    facts_at: datetime | None = None
    #: The picture's set of nodes with changes to store.
    changed: set[str] = field(default_factory=set, repr=False)
    #: When this boot was last reported, and the one before, both by our clock; and the picture's set of nodes
    #: that have just booted.
    last_heard_at: datetime | None = None
    old_boot_heard_at: datetime | None = None
    booted: set[str] = field(default_factory=set, repr=False)
    #: Checks by the node's own hooks: when last made, by its clock, and, if passed, when that arrived.
    checks: dict[str, tuple[datetime, datetime | None]] = field(default_factory=dict)
    #: Checks that the node itself has reported: a relay's reports of these no longer count.
    own_checks: set[str] = field(default_factory=set)
    #: The address in the first line of a GPU's loss, and when it came, because the line that reports the loss
    #: may lack it.
    loss_at: tuple[str, datetime] | None = None
    #: `cadence_s` since the last heartbeat; None: not computed yet.
    _cadence_s: float | None = field(default=None, repr=False)

    @property
    def renewed_at(self) -> datetime | None:
        """The last repair, return to service or boot: older measurements no longer count."""
        return max((at for at in (self.cleared_at, self.booted_at) if at is not None), default=None)

    @property
    def boot(self) -> str | None:
        """Identifies the present boot: by the id from its senders, else by Slurm's BootTime."""
        return self.boot_id or (f"{self.booted_at}" if self.booted_at is not None else None)

    def beat(self, at: datetime, *, is_own: bool = True) -> None:
        if not is_own and self.beats_itself:
            return
        if is_own and not self.beats_itself:
            self.beats_itself, self._cadence_s = True, None
            self.beats.clear()  # a relay's had another cadence
        if not self.beats or at > self.beats[-1]:
            if self._was_away(at):
                self.back_at = at
            self.beats.append(at)
            self._cadence_s = None

    def _was_away(self, until: datetime) -> bool:
        """Whether two heartbeats are missing: too few to call the node silent, but enough to show that its
        place had problems."""
        if len(self.beats) < BEATS_FOR_CADENCE:
            return False
        gap = until - self.beats[-1]
        return gap > SILENCE_AFTER and gap.total_seconds() > 2.5 * self.cadence_s

    def is_overdue(self, now: datetime) -> bool:
        """Whether its next heartbeat is late, although it is not silent yet."""
        if len(self.beats) < BEATS_FOR_CADENCE:
            return False
        return (now - self.beats[-1]).total_seconds() > 1.5 * self.cadence_s + OVERDUE_S

    def keeps_cadence(self, now: datetime) -> bool:
        """Whether it sends, and has been sending long enough since it came back that a silence would have
        shown."""
        if not self.beats or self.silent_since(now) is not None:
            return False
        return self.back_at is None or now - self.back_at > self._missed_after()

    @property
    def cadence_s(self) -> float:
        """Seconds between its last heartbeats; there are at least two."""
        if self._cadence_s is None:
            self._cadence_s = median((b - a).total_seconds() for a, b in pairwise(self.beats))
        return self._cadence_s

    @property
    def missed_at(self) -> datetime:
        """When it becomes silent, unless it sends before; it has an interval."""
        return self.beats[-1] + self._missed_after()

    def _missed_after(self) -> timedelta:
        return max(SILENCE_AFTER, timedelta(seconds=3 * self.cadence_s))

    def silent_since(self, now: datetime, listening_since: datetime | None = None) -> datetime | None:
        """The last heartbeat, if three are missing now; None for a sender that never had a regular interval.

        With `listening_since`: three must be missing since then, because earlier heartbeats could not be
        received.
        """
        if len(self.beats) < BEATS_FOR_CADENCE or now - self.beats[-1] <= SILENCE_AFTER:
            return None
        last = self.beats[-1]
        return last if now - max(last, listening_since or last) > self._missed_after() else None

    def is_history(self, seen: Observation) -> bool:
        """Whether a line is about the past: an earlier boot, or before a repair or a person's resume.

        The repair was recorded by our clock and the line by its host's, which may be wrong by hours. The
        line's time is corrected first, because a new fault must be acted on. A line that arrived before the
        repair is history too.
        """
        if self._is_until(self.cleared_at, seen, LATENESS_MAX):
            return True
        # No test has proven the node, as before healer's own return: a clock that may be hours behind makes
        # no new fault an old one.
        if self._is_until(self.resumed_after, seen, timedelta.max):
            return True
        if seen.boot_id is None:
            # Heartbeats show the offset of the host's clock: the line's age is by our clock.
            late = late_by(seen)
            if late and self.knows_clock:
                late -= min(self.beats_late)
            return late > UNKNOWN_BOOT_MAX_AGE
        if self.boot_id is None or seen.boot_id == self.boot_id:
            return False
        if seen.boot_id in self.old_boots:
            return True
        # An unknown boot is newer than the known one, unless it is older than the known one's last signal.
        at = min(seen.event_at, seen.arrived_at)
        return self.boot_heard_at is not None and at < self.boot_heard_at

    def is_of_old_boot(self, seen: Observation) -> bool:
        """The signal is late, from a spool: the node has booted since."""
        return seen.boot_id in self.old_boots

    def note_clock(self, seen: Observation) -> None:
        """Learns the offset of the host's clock from a signal with a time of its own: the node's own replace
        all that relays taught."""
        late, is_beat = late_by(seen), seen.kind is ObservationKind.heartbeat
        if (seen.boot_id or self.boot_id) != self.boot_id or (seen.relayed_by and self.shows_clock):
            return
        if is_beat and not late:  # exactly zero: it had no time, and got that of its arrival
            return
        if not seen.relayed_by and not self.shows_clock:
            self.shows_clock = True
            self._forget_clock()
        if is_beat:
            self.beats_late.append(late)
        else:
            self.line_late = late if self.line_late is None else min(self.line_late, late)

    def _forget_clock(self) -> None:
        self.beats_late.clear()
        self.line_late = None

    @property
    def knows_clock(self) -> bool:
        """Whether heartbeats show the offset of the host's clock."""
        return len(self.beats_late) >= BEATS_FOR_CADENCE

    def moment(self, event_at: datetime, arrived_at: datetime) -> datetime:
        """The event's time by our clock: the host's clock is corrected if heartbeats show its offset."""
        late = min(self.beats_late) if self.knows_clock else timedelta(0)
        return min(event_at + late, arrived_at)

    def _is_until(self, end: datetime | None, seen: Observation, most: timedelta) -> bool:
        return end is not None and min(seen.event_at + self._late(most), seen.arrived_at) <= end

    def _late(self, most: timedelta) -> timedelta:
        """How far the host's clock is behind ours: the least lateness, because anything more is delay.

        Heartbeats come by themselves and so measure best. Lines may all be old ones that were sent again:
        they count up to `most`, so that a young line triggers action if nothing else shows the clock."""
        if self.beats_late:
            return min(self.beats_late)
        return min(self.line_late or timedelta(0), most)

    def heard_boot(self, boot_id: str, at: datetime, heard_at: datetime, relay: str = "") -> None:
        """`at` by the host's clock, `heard_at` by ours. A relay never replaces a boot that the node itself or
        Slurm reported, because the node's own lines would become history; they replace a relay's."""
        if relay and self.boot_id is not None and not self.boot_relay:
            return
        if self.boot_id is not None and boot_id != self.boot_id:
            if boot_id in self.old_boots and (relay or not self.boot_relay):
                return
            self.old_boots.pop(boot_id, None)
            self.old_boots[self.boot_id] = None
            if len(self.old_boots) > OLD_BOOTS_KEPT:
                del self.old_boots[next(iter(self.old_boots))]
            self.booted_relay = relay or self.boot_relay
            self.booted_at, self.old_boot_heard_at = heard_at, self.last_heard_at
            self.changed.add(self.name)
            self.booted.add(self.name)
            self._forget_clock()  # it may have been set meanwhile
        if boot_id != self.boot_id:
            self.boot_since = heard_at
        self.boot_id, self.boot_heard_at, self.last_heard_at = boot_id, at, heard_at
        self.boot_relay = relay

    def began_this_boot(self, seen: Observation, booted_at: datetime) -> bool:
        """Whether the boot that Slurm shows, `booted_at`, is certainly that of the line, whose boot was
        reported before the last repair, and not while Slurm showed the boot before."""
        if seen.boot_id is None or seen.boot_id != self.boot_id or self.boot_since is None:
            return False
        if self.cleared_at is None or self.boot_since >= self.cleared_at:
            return False
        if booted_at > self.boot_since + CLOCKS_APART:
            return False  # Slurm shows a later boot
        return self.old_boot_heard_at is None or booted_at >= self.old_boot_heard_at - CLOCKS_APART

    def shown_boot(self, at: datetime, *, asked: bool) -> None:
        """Slurm shows another boot time; `asked`: it had ordered that boot. If senders name their boot,
        theirs decides."""
        if self.boot_id is None:
            self.booted_at = at
            self.changed.add(self.name)
            if not asked:
                self.booted.add(self.name)
            self._forget_clock()

    def with_address(self, seen: Observation) -> Observation:
        """The line that reports a GPU as lost, with the address from the line before if they came
        separately."""
        if seen.kind is not ObservationKind.gpu_lost:
            return seen
        if seen.data.get("opens_loss") and seen.component.pci:
            self.loss_at = seen.component.pci, seen.arrived_at
        elif not seen.component.pci and not seen.data.get("follow_up") and self.loss_at is not None:
            pci, at = self.loss_at
            self.loss_at = None
            if seen.arrived_at - at <= LOSS_WITHIN:
                where = msgspec.structs.replace(seen.component, pci=pci)
                return msgspec.structs.replace(seen, component=where)
        return seen

    def heard_checks(self, seen: Observation) -> None:
        """Records checks. A report may come late, from a spool: it does not replace a later check. The node's
        own replaces a relay's, which could end or hide what the node reports."""
        for name in (*seen.data.get("passed", ()), *seen.data.get("failed", ())):
            is_known_itself = name in self.own_checks
            if seen.relayed_by and is_known_itself:
                continue
            last = self.checks.get(name) if seen.relayed_by or is_known_itself else None
            if last is not None and last[0] > seen.event_at:
                continue
            if name not in self.checks and not self._has_room_for_check(seen):
                continue
            passed = name in seen.data.get("passed", ())
            self.checks[name] = seen.event_at, seen.arrived_at if passed else None
            if not seen.relayed_by:
                self.own_checks.add(name)

    def _has_room_for_check(self, seen: Observation) -> bool:
        """Names that a relay made up keep none of the node's own away."""
        if len(self.checks) < CHECKS_KEPT:
            return True
        relayed = next((name for name in self.checks if name not in self.own_checks), None)
        if seen.relayed_by or relayed is None:
            return False
        del self.checks[relayed]
        return True

    def heard_line(self, seen: Observation) -> None:
        """Records the boot of a line: not every site sends heartbeats, and shippers send old journals."""
        at = min(seen.event_at, seen.arrived_at)  # a clock that is ahead must not make the next boot look old
        corrects = bool(self.boot_relay and not seen.relayed_by)
        if seen.boot_id and (self.boot_heard_at is None or at > self.boot_heard_at or corrects):
            self.heard_boot(seen.boot_id, at, at, seen.relayed_by)


# --- one event by several routes


#: A line without a time of its own may be this old on arrival.
DELAY_MAX = timedelta(hours=1)
#: Tolerance between two clocks, or two times of one line: relays stamp on receipt, `dmesg -T` drifts.
TOLERANCE = timedelta(seconds=5)
#: The error of Slurm's BootTime, and of the kernel's clock per second of its uptime.
CLOCKS_APART, KERNEL_DRIFT = timedelta(minutes=1), 1e-4
#: Limits: lines remembered over all nodes, events per line, signals per event.
LINES_KEPT = 50_000
EVENTS_KEPT, SIGNALS_KEPT = 32, 32
#: Fields that belong to the route and not to the line.
_ROUTE_DATA = frozenset({"ahead_s", "job"})
_DIGITS = re.compile(r"\d+")
#: The stamp before a record: `[  123.456789]` of dmesg (with -x, after its facility) and syslog,
#: `6,1234,123456789,-;` of /dev/kmsg.
_STAMP = re.compile(
    r"(?:[^\[]{0,80}\bkernel: ?|<\d{1,3}>|kern *:\w+ *: *)?\[ *(\d{1,10})\.(\d{6})[\]\s<]"
    r"|\d{1,3},\d{1,18},(\d{0,10}?)(\d{6}),"
)

#: Which fields a sender fills in, the resolution of its times, which relay it is, and how its lines begin:
#: senders that differ in any of these are different senders.
Form = tuple[bool, bool, str, str]
#: Digest and arrival: the same line sent again a week later is another signal.
Signal = tuple[str, datetime]


@dataclass
class Event:
    """One event, as far as its reports date it: between `since` and `until`, by our clock."""

    since: datetime
    until: datetime
    boot_id: str | None
    seq: int | None
    uptime_s: float | None
    forms: set[Form] = field(default_factory=set)
    #: The node itself has reported it, and not only a relay.
    is_own_report: bool = True
    #: Its signals, and whether each was an echo: the answer must be the same when a signal is walked again,
    #: after a restart or a failed walk.
    signals: dict[Signal, bool] = field(default_factory=dict)

    @property
    def is_vague(self) -> bool:
        """No sender gave a time or sequence number for it."""
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
        self.is_own_report |= other.is_own_report

    def note(self, signal: Signal, *, is_echo: bool) -> None:
        self.signals[signal] = is_echo
        if len(self.signals) > SIGNALS_KEPT:
            del self.signals[next(iter(self.signals))]


class Echoes:
    """Events of one cluster, by their lines."""

    def __init__(self) -> None:
        self._lines: OrderedDict[Hashable, list[Event]] = OrderedDict()

    def is_echo(self, seen: Observation, moment: datetime, renewed_at: datetime | None) -> bool:
        """Whether another sender has already reported this line; remembers it either way. The node's own
        report of something that only a relay had reported is news.

        `moment`: the line's time by our clock. `renewed_at`: the last repair or boot of its node: of two
        lines without a time of their own, one before and one after it, the second may be a new fault. A
        sender that gave the time of the first would have reported a second fault too.
        """
        if not seen.line or "server" in seen.data:
            return False  # whether a server answers is a state: after the opposite it is news again
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
            # The same text of the same process, sent again by another sender after a repair: an old record.
            again = over and "pid" in seen.data and not before.forms & event.forms
            old = again and not _is_timed(seen) and not _contradicts(before, event)
            if before.is_same(event) or old or (_is_one(before, event) and not may_be_new):
                is_echo = before.is_own_report or not event.is_own_report
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
        """Whether any signal reported the same line before, whatever its sender and time."""
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
    """Whether the kernel's stamp shows that the line was written before `renewed_at`, or in an earlier boot.
    `booted_at`: Slurm's BootTime of the node, by our clock; `of_this_boot`: the line is certainly from that
    boot. None: nothing was renewed."""
    stamped = _stamped(seen, booted_at)
    if stamped is None or renewed_at is None:
        return False
    at, unsure = stamped
    return at + unsure <= renewed_at or (not of_this_boot and at - unsure > seen.arrived_at)


def written_at(seen: Observation, booted_at: datetime) -> datetime | None:
    """When a line of this boot without a time of its own was written, by the kernel's stamp, if that is
    certainly before it arrived."""
    stamped = _stamped(seen, booted_at) if not _is_timed(seen) else None
    return stamped[0] if stamped is not None and stamped[0] + stamped[1] < seen.arrived_at else None


def _stamped(seen: Observation, booted_at: datetime) -> tuple[datetime, timedelta] | None:
    """When the line was written by the kernel's stamp, and the possible error."""
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
        is_own_report=not seen.relayed_by,
        forms={(seen.boot_id is not None, seen.seq is not None, clock, start)},
    )


def _line_of(seen: Observation) -> Hashable:
    """The part of a line that is the same by every route."""
    data = sorted((name, repr(value)) for name, value in seen.data.items() if name not in _ROUTE_DATA)
    return seen.component, seen.kind, seen.code, seen.text, tuple(data)


def _is_one(before: Event, event: Event) -> bool:
    if before.forms & event.forms or _contradicts(before, event):
        return False  # one sender reports an event once
    return before.since <= event.until and event.since <= before.until


def _contradicts(before: Event, event: Event) -> bool:
    """Boot, sequence number or the kernel's stamp show that they are two events."""
    if before.boot_id and event.boot_id and before.boot_id != event.boot_id:
        return True
    if before.seq is not None and event.seq is not None and before.seq != event.seq:
        return True
    # Within one boot, the same stamp would be the same event.
    return before.uptime_s is not None and event.uptime_s is not None
