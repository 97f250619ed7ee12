"""What leaves healer for people: messages, tickets and events, their sinks, and the rows of due
deliveries."""

from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

import msgspec

from healer.model import (
    AuditRecord,
    DeliveryState,
    Incident,
    IncidentState,
    LogEntry,
    Manner,
    Message,
    Run,
    Severity,
    Stage,
    Ticket,
)
from healer.text import Said, in_language, say
from healer.text.language import Language

#: How long after the last notice a repeated alarm waits for its next one: the second time, the third, …
BACK_OFF = tuple(timedelta(minutes=minutes) for minutes in (5, 10, 20, 40, 80))
#: After a silence of twice the longest wait, the next one is sent immediately again.
FORGOTTEN = 2 * BACK_OFF[-1]

#: Between a run and the rest, in the id of a message that asks for the run's approval.
APPROVAL_MARK = ":approval"

# --- sinks


class DeliveryFailed(Exception):
    """A sink did not accept it; `retry_after_s` if the sink gave one. `refused`: the sink says that it never
    will (4xx). `is_full`: it has no room for it now (429). `is_partial`: some recipients have it, and the
    others may get it later. `is_locked_out`: it refuses healer itself (401), whatever healer has to say."""

    def __init__(
        self,
        text: Said,
        retry_after_s: float | None = None,
        *,
        refused: bool = False,
        is_full: bool = False,
        is_partial: bool = False,
        is_locked_out: bool = False,
    ) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.refused = refused
        self.is_full = is_full
        self.is_partial = is_partial
        self.is_locked_out = is_locked_out


class PartlyRefused(DeliveryFailed):
    """Some recipients have it, and the others never will. `reference` as `MessageChannel.send` returns it."""

    def __init__(self, text: Said, reference: str) -> None:
        super().__init__(text, refused=True)
        self.reference = reference


class OtherSystem(DeliveryFailed):
    """The name is no ticket of this system, but of the one that the site had before: no try can change
    that."""

    def __init__(self, name: str, who: str) -> None:
        super().__init__(say("adapters.of_other_system", name=name, who=who), refused=True)


class Notifier(Protocol):
    def send(self, message: Message) -> None:
        """Raises DeliveryFailed. The same `message.id` again is the same message."""


class Tickets(Protocol):
    """The site's repair tickets. Repeating a delivery has no effect, as a crash may have followed the
    first."""

    def send(self, ticket: Ticket) -> str:
        """Finds the ticket with this key, or opens it; then comments on it, closes or reopens it, as `stage`
        says. Returns the sink's own name for it. Raises DeliveryFailed.
        """
        ...

    def check(self) -> str:
        """What the sink reports about itself and healer's permissions there. Raises DeliveryFailed."""
        ...


class EventSink(Protocol):
    def send(self, seq: int, record: AuditRecord) -> None:
        """Raises DeliveryFailed. The same `seq` again is the same event."""


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """A message in the form for channels. `thread` is the same for all messages of one incident. `console`
    opens the incident or the run; `approve` the page where a person signs in and approves. `run`: the value
    of its buttons, the run and, after an `@`, which of its approvals."""

    id: str
    thread: str
    cluster: str
    title: Said
    lines: tuple[Said, ...]
    severity: Severity
    page: bool
    stage: Stage
    node: str
    at: datetime
    console: str = ""
    run: str = ""
    preview: tuple[str, ...] = ()
    approve: str = ""
    #: The language of its title, lines and preview, and so of the channel's own text.
    language: Language = "en"

    def translated(self, words: Said) -> str:
        """The channel's own text: a button, the label of a link."""
        return in_language(words, self.language)

    @property
    def text(self) -> str:
        return "\n".join((self.title, *self.lines))


class MessageChannel(Protocol):
    """A channel, whatever its protocol."""

    #: Whether `find` works: a message with an unknown outcome is searched for there.
    can_find: bool

    #: Whether it shows buttons to approve a run; otherwise it shows a link to the run.
    has_buttons: bool

    def send(self, notice: Notice, ref: str) -> str:
        """Sends it; `ref` is the answer to an earlier message of the same thread, empty for the first.
        Returns the reference of the thread. Raises DeliveryFailed, PartlyRefused if some have it.
        """
        ...

    def find(self, notice: Notice, ref: str = "") -> str:
        """The thread's reference if this very message was accepted, else empty. Raises DeliveryFailed."""
        ...


class Renewer(Protocol):
    """A channel whose alerts end by themselves unless they are sent again."""

    def renew(self, notices: Sequence[Notice]) -> None:
        """Raises DeliveryFailed."""


# --- deliveries


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One try to deliver a message to one sink, recorded before it begins. `tries` counts those since it was
    queued or retried by a person, `begun` all of them.

    `doc` is the JSON of the Message or Ticket, `subject` what the audit calls it, and `reference` the sink's
    own name for the ticket or thread, empty while it has none. `is_over`: what it says is no longer true.
    """

    id: str | int
    cluster: str
    subject: str
    doc: dict[str, Any]
    at: datetime
    page: bool
    tries: int
    begun: int = 1
    channel: str = ""
    thread: str = ""
    stage: Stage = Stage.opened
    is_digest: bool = False
    reference: str = ""
    is_over: bool = False

    @property
    def is_ticket(self) -> bool:
        return self.subject.startswith("ticket/")


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a try. `state`: due if it is tried again at `next_try_at`. `text`: the sink's reference
    if accepted, else why not. `missed`: who never gets what was accepted for others. `held_until`: the sink
    asks for a pause. `counts`: it was one of the tries that a message has."""

    state: DeliveryState
    #: For the log: `healer.model.DeliveryAttempt`.
    word: str
    text: str = ""
    missed: str = ""
    next_try_at: datetime | None = None
    held_until: datetime | None = None
    counts: bool = True

    @property
    def is_failure(self) -> bool:
        return self.state in (DeliveryState.due, DeliveryState.failed)


class Outbox(Protocol):
    """Messages for the webhook, and tickets, of all clusters. Database errors go to the caller."""

    def alone(self) -> AbstractContextManager[bool]:
        """A lock for sending tickets, until the block ends; whether this process got it."""
        ...

    def claim(self, *, messages: bool, tickets: bool, now: datetime) -> Attempt | None:
        """The most urgent due one of these kinds, pages first, claimed for a minute."""
        ...

    def settle(self, attempt: Attempt, outcome: Outcome, record: AuditRecord | None, now: datetime) -> None:
        """Has no effect, and writes no record, if another process has tried since: its result counts."""


class ChannelOutbox(Protocol):
    """Deliveries to one channel of a cluster."""

    name: str

    def alone(self) -> AbstractContextManager[bool]:
        """A lock for sending to the channel, until the block ends; whether this process got it."""
        ...

    def claim(self, now: datetime) -> Attempt | None:
        """The most urgent due one, claimed for 20 s. The first message of a thread goes before its others."""
        ...

    def settle(
        self,
        attempt: Attempt,
        outcome: Outcome,
        record: AuditRecord | None,
        now: datetime,
        notice: Notice | None = None,
    ) -> None:
        """Like `Outbox.settle`; `notice` is what the channel shows now."""

    def hurry_pages(self, until: datetime) -> None:
        """Pages that wait for a later try are due by then: the channel is back."""

    def open_notices(self, before: datetime, now: datetime) -> list[Notice]:
        """Notices of incidents that are not over, last sent before this moment; or later than now, by a clock
        that was set back since."""
        ...

    def note_renewed(self, notices: Sequence[Notice], now: datetime) -> None: ...


class FeedPosition(NamedTuple):
    """The position of a feed of events, and how often the next one was refused."""

    seq: int
    tries: int
    next_try_at: datetime | None


class EventFeed(Protocol):
    """The sealed records of one cluster, and the sink's position."""

    cluster: str

    def position(self) -> FeedPosition:
        """The very first call starts at the next record."""
        ...

    def next(self, after: int) -> tuple[int, AuditRecord] | None: ...

    def note(self, before: int, fed: FeedPosition) -> None:
        """Has no effect if another process has got further than `before`."""


# --- planning


class Raised(msgspec.Struct, frozen=True):
    """An alarm at one channel: how often it was repeated, and when last."""

    again: int
    last_at: datetime


class Unrouted(NamedTuple):
    """A message that has not been routed to channels yet; `message` is None for a ticket."""

    id: str
    at: datetime
    message: Message | None


class Thread(NamedTuple):
    """Which channels have been notified of an incident, or of a message without one.

    `standing`: channels notified of it and not of its end; `tried`: those where an attempt failed or is under
    way; `listed`: those whose digest showed it. `state` and `incident_severity` are the incident's,
    `severity` and `stage` those last notified. None: there is no such incident, or no notification.
    """

    standing: Collection[str]
    tried: Collection[str]
    listed: Collection[str]
    has_deliveries: bool
    state: IncidentState | None
    incident_severity: Severity | None
    severity: Severity | None
    stage: Stage | None


class Put(msgspec.Struct, frozen=True, kw_only=True):
    """One message's delivery to one channel. Repeating it has no effect."""

    message: Message
    channel: str
    how: Manner
    alarm: str
    at: datetime
    state: DeliveryState
    next_try_at: datetime | None = None
    ended_at: datetime | None = None


class NewsTx(Protocol):
    """The part of a round of planning that finds news."""

    def channels(self) -> dict[str, datetime]:
        """Since when each channel is named in the rules."""
        ...

    def name_channel(self, name: str, since: datetime) -> None: ...

    def drop_channel(self, name: str, why: str) -> None:
        """Ends its waiting deliveries."""

    def unannounced(self, since: datetime) -> list[tuple[Incident, Stage | None]]:
        """Open incidents except P0 that opened after `since` without a notification, or grew worse, or are
        open again; with the stage last notified.
        """
        ...

    def announced_changed(self) -> list[Incident]:
        """Incidents that were notified and have been acknowledged since, or are over."""
        ...

    def work_of(self, incident: str) -> list[tuple[Run, list[LogEntry]]]: ...
    def thread(self, thread: str) -> Thread: ...
    def save_announced(self, incident: str, severity: Severity, stage: Stage) -> None: ...

    def queue(self, message: Message, *, routed: bool = False) -> None:
        """Queues it for channels only. Repeating the id has no effect."""


class PlanTx(NewsTx, Protocol):
    """One round of planning of one cluster, in one transaction; one process at a time. It has many methods
    because each is one statement about one kind of row."""

    def unrouted(self) -> list[Unrouted]:
        """Pages first, then the oldest."""
        ...

    def mark_routed(self, names: Sequence[str]) -> None: ...
    def put(self, put: Put) -> None: ...
    def raised(self, channel: str, alarm: str) -> Raised | None: ...
    def save_raised(self, channel: str, alarm: str, raised: Raised | None) -> None: ...

    def fold_waiting(self, channel: str, alarm: str) -> bool:
        """Ends an earlier delivery of the same alarm that still waits; returns whether there was one."""
        ...

    def unsent_alarms(self, thread: str) -> list[tuple[str, str, Raised]]:
        """Channel and alarm of the thread's deliveries that were never tried."""
        ...

    def end_unsent(self, thread: str) -> None:
        """Ends those deliveries."""

    def end_late(self, thread: str, channel: str, *, tries: int) -> None:
        """Ends waiting messages about its end after so many tries."""

    def digests(self) -> dict[str, datetime]:
        """By channel: since when something waits for its next digest."""
        ...

    def in_digest(self, channel: str) -> list[tuple[int, Message, Incident | None]]:
        """What waits for it, with the incident as it is now."""
        ...

    def end_digest(self, numbers: Sequence[int], digest: str) -> None:
        """These were gathered in the message `digest`."""
