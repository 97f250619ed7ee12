"""The picture of one node: boot, clock, heartbeats, GPUs, facts and checks."""

from collections import deque
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import pairwise
from statistics import median

import msgspec

from healer.model import Observation, ObservationKind
from healer.observations.echoes import CLOCKS_APART
from healer.observations.fault_history import GpuMap

#: Lines of one message of the driver come together, also where a shipper sends each by itself.
LOSS_WITHIN = timedelta(seconds=10)
#: A line of an unknown boot that is older than this on arrival is history (product.md, "Hear").
UNKNOWN_BOOT_MAX_AGE = timedelta(hours=1)
#: How far a line's lateness may move its host's clock at most, where no heartbeat reports that clock.
LATENESS_MAX = timedelta(minutes=10)
#: A sender is silent after three missed beats of its own cadence, and never before this.
SILENCE_AFTER = timedelta(seconds=30)
#: Beats needed before a sender has a cadence that it could fail to keep.
BEATS_FOR_CADENCE = 3
#: A beat that is late by half its cadence and this is overdue.
OVERDUE_S = 2.0
#: Checks of one node that are remembered; a report holds half as many.
CHECKS_KEPT = 64


def late_by(seen: Observation) -> timedelta:
    """Arrival less the sender's time; exactly zero if the sender gave no time."""
    late, ahead_s = seen.arrived_at - seen.event_at, seen.data.get("ahead_s")
    return late - timedelta(seconds=ahead_s) if ahead_s else late


# Wide: one record for each node, filled by all kinds of signals.
@dataclass
class NodePicture:
    """What is known of one node. `cleared_at`: a resume, reset or repair; older lines are history.
    `booted_at`: by our clock, when another boot than the known one was first heard of."""

    name: str
    boot_id: str | None = None
    boot_heard_at: datetime | None = None
    #: When this boot was heard of first, by our clock.
    boot_since: datetime | None = None
    old_boots: set[str] = field(default_factory=set)
    cleared_at: datetime | None = None
    booted_at: datetime | None = None
    beats: deque[datetime] = field(default_factory=lambda: deque(maxlen=9))
    #: When it was heard again after its last silence.
    back_at: datetime | None = None
    gpus: GpuMap = field(default_factory=GpuMap)
    #: Arrival less the sender's own time: of the last heartbeats, and the least of any line of this boot.
    beats_late: deque[timedelta] = field(default_factory=lambda: deque(maxlen=9))
    line_late: timedelta | None = None
    #: What it reported of itself (`healer.model.FACTS`), and when any of it changed last.
    facts: dict[str, str] = field(default_factory=dict)
    facts_at: datetime | None = None
    #: The picture's nodes of which something is to be stored.
    changed: set[str] = field(default_factory=set, repr=False)
    #: When this boot was heard of last, and the one before, both by our clock; and the picture's nodes that
    #: have just booted.
    last_heard_at: datetime | None = None
    old_boot_heard_at: datetime | None = None
    booted: set[str] = field(default_factory=set, repr=False)
    #: Checks of the node's own hooks: when last made, by its clock, and if passed when that arrived.
    checks: dict[str, tuple[datetime, datetime | None]] = field(default_factory=dict)
    #: The address in the first line of a GPU's loss, and when it came: the line that reports the loss may
    #: lack it.
    loss_at: tuple[str, datetime] | None = None
    #: `cadence_s` since the last beat; None: not looked at yet.
    _cadence_s: float | None = field(default=None, repr=False)

    @property
    def renewed_at(self) -> datetime | None:
        """Older measurements no longer count: the last repair, return to service or boot."""
        return max((at for at in (self.cleared_at, self.booted_at) if at is not None), default=None)

    @property
    def boot(self) -> str | None:
        """Names the present boot: by the id that its senders give, else by Slurm's BootTime."""
        return self.boot_id or (f"{self.booted_at}" if self.booted_at is not None else None)

    def beat(self, at: datetime) -> None:
        if not self.beats or at > self.beats[-1]:
            if self._was_away(at):
                self.back_at = at
            self.beats.append(at)
            self._cadence_s = None

    def _was_away(self, until: datetime) -> bool:
        """Whether two beats are missing: too few to call it silent, and enough to show that its place was in
        trouble."""
        if len(self.beats) < BEATS_FOR_CADENCE:
            return False
        return until - self.beats[-1] > max(SILENCE_AFTER, timedelta(seconds=2.5 * self.cadence_s))

    def is_overdue(self, now: datetime) -> bool:
        """Whether its next beat is late, though it is not silent yet."""
        if len(self.beats) < BEATS_FOR_CADENCE:
            return False
        return (now - self.beats[-1]).total_seconds() > 1.5 * self.cadence_s + OVERDUE_S

    def keeps_cadence(self, now: datetime) -> bool:
        """Whether it is heard, and has been for so long since it came back that a silence would have
        shown."""
        if not self.beats or self.silent_since(now) is not None:
            return False
        return self.back_at is None or now - self.back_at > self._missed_after()

    @property
    def cadence_s(self) -> float:
        """Seconds between its last beats; there are two at least."""
        if self._cadence_s is None:
            self._cadence_s = median((b - a).total_seconds() for a, b in pairwise(self.beats))
        return self._cadence_s

    def _missed_after(self) -> timedelta:
        return max(SILENCE_AFTER, timedelta(seconds=3 * self.cadence_s))

    def silent_since(self, now: datetime, listening_since: datetime | None = None) -> datetime | None:
        """The last beat, if three are missing now; None for a sender that never kept a cadence.

        With `listening_since`: three must be missing since then, for beats before it were not listened for.
        """
        if len(self.beats) < BEATS_FOR_CADENCE or now - self.beats[-1] <= SILENCE_AFTER:
            return None
        last = self.beats[-1]
        return last if now - max(last, listening_since or last) > self._missed_after() else None

    def is_history(self, seen: Observation) -> bool:
        """Whether a line is about a time that is over: an earlier boot, or before a repair.

        The repair was noted by our clock and the line by its host's, which may be wrong by hours: the line's
        time is corrected first, for a new fault must be acted on. A line that arrived before the repair is
        history too.
        """
        if (
            self.cleared_at is not None
            and min(seen.event_at + self._late(), seen.arrived_at) <= self.cleared_at
        ):
            return True
        if seen.boot_id is None:
            # Heartbeats show how far the host's clock is off: the line's age is by our clock.
            late = late_by(seen)
            if late and self.knows_clock:
                late -= min(self.beats_late)
            return late > UNKNOWN_BOOT_MAX_AGE
        if self.boot_id is None or seen.boot_id == self.boot_id:
            return False
        if seen.boot_id in self.old_boots:
            return True
        # A boot never heard of is newer than the known one, unless it is older than that one's last signal.
        at = min(seen.event_at, seen.arrived_at)
        return self.boot_heard_at is not None and at < self.boot_heard_at

    def note_clock(self, seen: Observation) -> None:
        """A signal that has a time of its own shows how far its host's clock is off."""
        if (seen.boot_id or self.boot_id) != self.boot_id:
            return
        late = late_by(seen)
        if seen.kind is ObservationKind.heartbeat:
            if late:  # exactly zero: it had no time, and was given that of its arrival
                self.beats_late.append(late)
        else:
            self.line_late = late if self.line_late is None else min(self.line_late, late)

    @property
    def knows_clock(self) -> bool:
        """Whether heartbeats show how far the host's clock is off."""
        return len(self.beats_late) >= BEATS_FOR_CADENCE

    def moment(self, event_at: datetime, arrived_at: datetime) -> datetime:
        """When it was, by our clock: the host's is corrected where heartbeats show how far it is off."""
        late = min(self.beats_late) if self.knows_clock else timedelta(0)
        return min(event_at + late, arrived_at)

    def _late(self) -> timedelta:
        """How far the host's clock is behind ours: the least lateness, for more was lost on the way.

        Heartbeats come by themselves and so measure best. Lines may all be old ones that were sent again:
        they count up to a bound, so that a young line acts where nothing else shows the clock."""
        if self.beats_late:
            return min(self.beats_late)
        return min(self.line_late or timedelta(0), LATENESS_MAX)

    def heard_boot(self, boot_id: str, at: datetime, heard_at: datetime) -> None:
        """`at` by the host's clock, `heard_at` by ours."""
        if self.boot_id is not None and boot_id != self.boot_id:
            if boot_id in self.old_boots:
                return
            self.old_boots.add(self.boot_id)
            self.booted_at, self.old_boot_heard_at = heard_at, self.last_heard_at
            self.changed.add(self.name)
            self.booted.add(self.name)
            self.beats_late.clear()  # the clock may have been set meanwhile
            self.line_late = None
        if boot_id != self.boot_id:
            self.boot_since = heard_at
        self.boot_id, self.boot_heard_at, self.last_heard_at = boot_id, at, heard_at

    def began_this_boot(self, seen: Observation, booted_at: datetime) -> bool:
        """Whether the boot that Slurm shows, `booted_at`, is surely that of the line, which names a boot
        that was heard of before the last repair, and not while Slurm showed the one before."""
        if seen.boot_id is None or seen.boot_id != self.boot_id or self.boot_since is None:
            return False
        if self.cleared_at is None or self.boot_since >= self.cleared_at:
            return False
        if booted_at > self.boot_since + CLOCKS_APART:
            return False  # Slurm shows a boot since then
        return self.old_boot_heard_at is None or booted_at >= self.old_boot_heard_at - CLOCKS_APART

    def shown_boot(self, at: datetime, *, asked: bool) -> None:
        """Slurm shows another boot time; `asked`: it had ordered that boot. Where senders name their boot,
        theirs decides."""
        if self.boot_id is None:
            self.booted_at = at
            self.changed.add(self.name)
            if not asked:
                self.booted.add(self.name)
            self.beats_late.clear()
            self.line_late = None

    def with_address(self, seen: Observation) -> Observation:
        """The line that reports a GPU as lost, with the address of the line before, where they came apart."""
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
        """A report may come late, from a spool: it does not replace a check that was made since."""
        for name in (*seen.data.get("passed", ()), *seen.data.get("failed", ())):
            last = self.checks.get(name)
            if last[0] <= seen.event_at if last is not None else len(self.checks) < CHECKS_KEPT:
                passed = name in seen.data.get("passed", ())
                self.checks[name] = seen.event_at, seen.arrived_at if passed else None

    def heard_line(self, seen: Observation) -> None:
        """A line reports its boot too: not every site sends heartbeats, and shippers send old journals."""
        at = min(seen.event_at, seen.arrived_at)  # a clock that is ahead must not make the next boot look old
        if seen.boot_id and (self.boot_heard_at is None or at > self.boot_heard_at):
            self.heard_boot(seen.boot_id, at, at)
