"""`rules/notifications.yaml`: who is notified of what, and how. Format: docs/notifications.md."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from enum import StrEnum
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from healer.model.vocabulary import Role, Severity
from healer.text import Said, no_words, say
from healer.text.language import Language

#: Reasons that a person may give for a rejection with one click: its key, and the words.
REJECTIONS: Mapping[str, Said] = {
    "busy": say("words.reject_busy"),
    "false_alarm": say("words.reject_false_alarm"),
    "by_hand": say("words.reject_by_hand"),
    "unsure": say("words.reject_unsure"),
}


class ChannelKind(StrEnum):
    slack = "slack"
    wecom = "wecom"
    dingtalk = "dingtalk"
    feishu = "feishu"
    pagerduty = "pagerduty"
    alertmanager = "alertmanager"
    email = "email"


class Manner(StrEnum):
    """How people are notified, the most urgent first: paged, at once in a channel, or in the next digest."""

    page = "page"
    channel = "channel"
    digest = "digest"


class Stage(StrEnum):
    """How far an incident is, for the people notified: what a channel opens, updates and closes."""

    opened = "opened"
    acknowledged = "acknowledged"
    resolved = "resolved"


class About(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What routes and channels need of a message besides its words.

    `alarm` is the same for all messages of one problem, also over several incidents: repeats of it are sent
    at growing intervals. `run` waits for an approval, which `asked` names; `preview` is what it would do,
    line by line.
    `everybody`: it pages every channel that a route names. `thread`: of a follow-up, the id of the first
    message.
    """

    rule: str = ""
    fault: str = ""
    node: str = ""
    alarm: str = ""
    stage: Stage = Stage.opened
    run: str = ""
    asked: str = ""
    preview: tuple[str, ...] = ()
    everybody: bool = False
    thread: str = ""


class Channel(msgspec.Struct, frozen=True, kw_only=True):
    """One address of people. What each kind needs: docs/notifications.md.

    `secret` and, for group bots, `url` name where the secret is kept: a setting, or a file.
    """

    name: str
    kind: ChannelKind
    #: The language of its messages and buttons.
    language: Language = "en"
    secret: str = ""
    url: str = ""
    #: Slack: the channel's id.
    channel: str = ""
    #: E-mail: `host:port`, how the connection is protected, who logs in, from and to whom.
    server: str = ""
    tls: str = "starttls"
    user: str = ""
    sender: str = ""
    to: tuple[str, ...] = ()
    #: WeCom and DingTalk: phone numbers of the people whom a page mentions by name.
    mobiles: tuple[str, ...] = ()


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Messages that fit all of these (globs; empty: any) go to these channels."""

    to: tuple[str, ...]
    how: Manner
    severities: tuple[Severity, ...] = ()
    clusters: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()


class Person(msgspec.Struct, frozen=True, kw_only=True):
    """Who presses buttons in Slack: `slack` is the member's id there, `name` who that is to healer (equal
    names are one person), `clusters` those they may act on (empty: all)."""

    slack: str
    name: str
    role: Role
    clusters: tuple[str, ...] = ()


class DeadMansSwitch(msgspec.Struct, frozen=True, kw_only=True):
    """healer sends this Alertmanager a sign of life every `every_s` seconds."""

    channel: str
    every_s: float = 60.0


class Notifications(msgspec.Struct, frozen=True, kw_only=True):
    """`console_url` begins the links in messages; a digest gathers for `digest_h` hours; `ticket_language` is
    that of tickets, as a channel's is of its messages."""

    channels: tuple[Channel, ...] = ()
    routes: tuple[Route, ...] = ()
    console_url: str = ""
    digest_h: float = 1.0
    ticket_language: Language = "en"
    alive: DeadMansSwitch | None = None
    people: tuple[Person, ...] = ()

    def channel(self, name: str) -> Channel | None:
        return next((channel for channel in self.channels if channel.name == name), None)

    def to_channels(self, names: Collection[str]) -> "Notifications":
        """The same, with routes to these channels alone."""
        only = (
            msgspec.structs.replace(route, to=tuple(name for name in route.to if name in names))
            for route in self.routes
        )
        return msgspec.structs.replace(self, routes=tuple(only))


class Routing(msgspec.Struct, frozen=True):
    """The delivery of one message to one channel."""

    channel: str
    how: Manner


def routes_to(routes: Sequence[Route], severity: Severity, cluster: str, about: About) -> list[Routing]:
    """Where a message goes: each channel of the matching routes once, in its most urgent manner."""
    found: dict[str, Manner] = {}
    order = list(Manner)
    if about.everybody:
        return [Routing(name, Manner.page) for name in dict.fromkeys(n for route in routes for n in route.to)]
    for route in routes:
        if _fits(route, severity, cluster, about):
            for name in route.to:
                found[name] = min(route.how, found.get(name, route.how), key=order.index)
    return [Routing(name, how) for name, how in found.items()]


def _fits(route: Route, severity: Severity, cluster: str, about: About) -> bool:
    return (
        (not route.severities or severity in route.severities)
        and _any(route.clusters, cluster)
        and _any(route.rules, about.rule)
        and _any(route.faults, about.fault)
    )


def _any(globs: tuple[str, ...], name: str) -> bool:
    return not globs or any(fnmatchcase(name, glob) for glob in globs)


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """`id` is stable per (incident, occasion); sinks use it to recognise a repeat. `page`: wake somebody.
    `about` is for routes and channels; the signed webhook leaves it out."""

    id: str
    cluster: str
    title: Said
    text: Said
    severity: Severity
    page: bool = False
    incident: str | None = None
    data: dict[str, Any] = {}
    about: About = About()

    @property
    def thread(self) -> str:
        """What people read as one conversation, and what a pager resolves: all messages of an incident, or
        else a message and its follow-ups."""
        return self.incident or self.about.thread or self.id


class TicketStage(StrEnum):
    """What a delivery brings to the incident's one ticket. Whichever comes first opens it."""

    opened = "opened"
    updated = "updated"
    closed = "closed"
    reopened = "reopened"


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """One delivery to a ticket. `id` is `KEY:ticket` for the first and `KEY:ticket:…` for those after it, and
    the same key is the same ticket. `since`: when what it is about began; a ticket of it is no older.
    `reference` is the sink's own name for it, once that is known."""

    id: str
    cluster: str
    node: str | None
    incident: str | None
    title: Said
    text: Said
    data: dict[str, Any] = {}
    stage: TicketStage = TicketStage.opened
    severity: Severity = Severity.P3
    since: datetime | None = None
    reference: str = ""

    @property
    def key(self) -> str:
        return self.id.partition(":")[0]


#: Names of the sinks that no file lists: the generic webhook and the tickets.
WEBHOOK, TICKETS = "webhook", "tickets"


class DeliveryState(StrEnum):
    """`digest` waits for the next one; `over`: the incident ended before anyone was notified; `folded`: a
    newer one of the same alarm took its place; `listed`: no sink takes it, only healer's own list shows
    it."""

    due = "due"
    digest = "digest"
    sent = "sent"
    failed = "failed"
    over = "over"
    folded = "folded"
    listed = "listed"


class DeliveryAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """`outcome`: begun, taken, found (an earlier try was taken), failed, refused, over (no longer true, not
    sent), retried (by a person)."""

    at: datetime
    outcome: str
    text: Said = msgspec.field(default_factory=no_words)


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One message at one sink. `how`: page, channel, digest, ticket; `reference` is the sink's own name for
    it; `tries_log` holds each try at a channel, the oldest first."""

    message: str
    cluster: str
    channel: str
    how: str
    state: DeliveryState
    title: Said
    severity: Severity
    incident: str | None
    at: datetime
    tries: int
    next_try_at: datetime | None = None
    ended_at: datetime | None = None
    error: Said = msgspec.field(default_factory=no_words)
    reference: str = ""
    tries_log: tuple[DeliveryAttempt, ...] = ()
