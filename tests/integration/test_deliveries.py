"""From incidents and messages in a real database to channels: who gets what, when, and only once."""

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.notify.pagerduty import body
from healer.adapters.postgres import outbox
from healer.adapters.postgres.metric_figures import gauges
from healer.adapters.postgres.planning import planning
from healer.adapters.postgres.tables import (
    audit_records,
    deliveries,
    delivery_log,
    incidents,
    messages,
    run_log,
    runs,
    threads,
)
from healer.bootstrap import doctor_checks
from healer.bootstrap.messaging import ChannelBook, Telling
from healer.engine import tell
from healer.model import (
    Breaker,
    BreakerState,
    Channel,
    ChannelKind,
    Delivery,
    DeliveryState,
    Incident,
    IncidentState,
    LogEntry,
    Manner,
    Message,
    Notifications,
    Route,
    Run,
    RunState,
    Severity,
    StepEvent,
)
from healer.ports.outbound import DeliveryFailed, MessageChannel, Notice
from healer.settings import Settings
from healer.settings import load as load_settings
from healer.telling.news import (
    about_incident,
    approval_page,
    breaker_page,
    breaker_reset_message,
    notice_of,
    p0_page,
)
from healer.text import quoted, say, to_stored
from healer.text.language import Language
from tests.support import api
from tests.support import chats as stand_in
from tests.support.chats import Chats, MailServer, serve_chats, serve_mail
from tests.support.loop import shipped
from tests.support.tls import certificates
from tests.support.wait import wait_until

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
MINUTE = 60


class Hand:
    """A clock turned by hand."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def chats() -> Iterator[Chats]:
    with serve_chats() as served:
        yield served
        assert served.complaints == []


class Site:
    """One healer with a Slack, a pager and an Alertmanager."""

    def __init__(self, db: sa.Engine, chats: Chats) -> None:
        self.db, self.chats, self.hand = db, chats, Hand()
        self.notifications = Notifications(
            channels=(
                Channel(name="ops", kind=ChannelKind.slack, channel="C0HEALER", url=f"{chats.url}/api"),
                Channel(name="night", kind=ChannelKind.pagerduty, url=f"{chats.url}/v2/enqueue"),
                Channel(name="feed", kind=ChannelKind.alertmanager, url=chats.url),
            ),
            routes=(
                Route(to=("ops", "night"), how=Manner.page, severities=(Severity.P0,)),
                Route(to=("ops",), how=Manner.channel, severities=(Severity.P1,)),
                Route(to=("feed",), how=Manner.channel, severities=(Severity.P1,)),
                Route(to=("ops",), how=Manner.digest, severities=(Severity.P2, Severity.P3)),
            ),
            console_url="https://healer.example",
        )
        self.settings, self._shipped = settings(), shipped()
        self.telling = Telling(self.settings, db, "pod1", self.rules, self.hand)

    def rules(self) -> Any:
        return msgspec.structs.replace(self._shipped, notifications=self.notifications)

    def round(self, seconds: float = 0) -> None:
        """What the scheduler does again and again; twice, as a full one would go on at once."""
        self.hand.forward(seconds)
        for _ in range(2):
            self.telling()
            self.telling.wait()

    def put(self, one: Incident | Message) -> None:
        with self.db.begin() as conn:
            if isinstance(one, Message):
                outbox.queue(conn, one, at=self.hand.now(), has_sink=False)
                return
            values = {"state": one.state, "severity": one.severity, "doc": to_stored(one)}
            if (
                conn.execute(sa.update(incidents).where(incidents.c.id == one.id).values(**values)).rowcount
                == 0
            ):
                api.save_incident(conn, one)

    def incident(self, number: int = 1, **more: Any) -> Incident:
        now = self.hand.now()
        at = {"opened": now, "updated": now, "settle_until": now}
        one = api.incident(number, node=more.pop("node", "gpu0001"))
        one = msgspec.structs.replace(one, **at, **more)
        self.put(one)
        return one

    def states(self, **where: str) -> list[str]:
        query = sa.select(deliveries.c.state).order_by(deliveries.c.id)
        for name, value in where.items():
            query = query.where(deliveries.c[name] == value)
        with self.db.connect() as conn:
            return list(conn.scalars(query))

    def sent(self) -> Sequence[Delivery]:
        """At the channel `ops`, as the list of messages shows them."""
        book = outbox.PostgresMessageBook(self.db)
        return book.page(clusters=None, state=(), channel="ops", incident=None, limit=9, cursor=None).items

    def slack(self) -> list[dict[str, Any]]:
        return list(self.chats.slack.values())

    def roots(self) -> list[dict[str, Any]]:
        return [one for one in self.slack() if "thread_ts" not in one]

    def paged(self) -> list[str]:
        """The pager's events; an end goes to both alerts of an incident, and counts once."""
        events = self.chats.taken.get("pagerduty", [])
        twice = [
            event["event_action"] != "trigger" and event["dedup_key"].endswith(":P0") for event in events
        ]
        return [event["event_action"] for event, again in zip(events, twice, strict=True) if not again]


def settings() -> Settings:
    return load_settings(
        {
            "HEALER_SLACK_TOKEN": stand_in.SLACK_TOKEN,
            "HEALER_PAGERDUTY_KEY": stand_in.PAGER_KEY,
            "HEALER_ALERTMANAGER_TOKEN": stand_in.AM_TOKEN,
        }
    )


@pytest.fixture
def site(fresh_database: sa.Engine, chats: Chats) -> Site:
    made = Site(fresh_database, chats)
    made.round()  # from now on the channels are named
    return made


def over(one: Incident, at: datetime, why: str = "the tests passed") -> Incident:
    fields = {"state": IncidentState.resolved, "closed": at, "closed_why": why}
    return msgspec.structs.replace(one, **fields)


# --- who gets what ----------------------------------------------------------------------------------------


def test_an_incident_is_one_message_that_is_brought_up_to_date_and_closed_with_the_proof(site: Site) -> None:
    one = site.incident()
    site.round()
    assert (len(site.roots()), len(site.slack()), site.paged()) == (1, 1, [])
    assert "healer.example/incidents/" in str(site.roots()[0]["blocks"])
    site.put(msgspec.structs.replace(one, acknowledged_by="anna"))
    site.round(MINUTE)
    site.round(MINUTE)
    assert (len(site.roots()), len(site.slack())) == (1, 2)
    assert "anna is working on it" in site.roots()[0]["text"]
    with site.db.begin() as conn:
        run = Run(
            id="r1", cluster="pod1", playbook="gpu-fatal", state=RunState.done, by="healer", reason="x",
            created_at=START, incident=one.id,
        )  # fmt: skip
        api.save_run(conn, run)
        entry = LogEntry(
            run="r1", at=START, epoch=1, step="drain", event=StepEvent.done, text="our reason was read back"
        )
        doc = to_stored(entry)
        conn.execute(sa.insert(run_log).values(run="r1", at=START, step="drain", event="done", doc=doc))
    site.put(over(one, site.hand.now()))
    site.round(MINUTE)
    (root,) = site.roots()
    assert ":white_check_mark:" in str(root["blocks"])
    assert "Done: drain: our reason was read back" in root["text"]
    assert "Closed: the tests passed" in root["text"]
    site.round(24 * 60 * MINUTE)
    assert len(site.slack()) == 3  # the root, and two replies
    assert set(site.states(channel="ops")) == {"sent"}


def test_who_looks_after_a_reopened_incident_is_sent_again(site: Site) -> None:
    """The pager has closed it meanwhile, and goes on to the next person on call unless it hears of it."""
    one = site.incident(severity=Severity.P0, p0_since=START)
    site.put(p0_page(one, "held"))
    site.round()
    taken = msgspec.structs.replace(one, acknowledged_by="anna")
    site.put(taken)
    site.round()
    site.put(over(taken, site.hand.now()))
    site.round()
    assert site.paged() == ["trigger", "acknowledge", "resolve"]
    again = msgspec.structs.replace(one, reopened_at=site.hand.now())
    site.put(again)
    site.put(p0_page(again, "held"))
    site.round(10 * MINUTE)
    site.put(msgspec.structs.replace(again, acknowledged_by="bob"))
    site.round()
    assert site.paged()[3:] == ["trigger", "acknowledge"]


def test_a_page_goes_to_the_pager_and_all_else_does_not(site: Site) -> None:
    one = site.incident(severity=Severity.P0)
    site.round(MINUTE)
    assert (site.slack(), site.paged()) == ([], [])  # the walk says whether a P0 is a page
    p0 = msgspec.structs.replace(one, p0_since=START)
    site.put(p0_page(p0, "the guard slots holds it"))
    site.round()
    assert site.paged() == ["trigger"]
    assert len(site.roots()) == 1
    site.put(over(one, site.hand.now()))
    site.round()
    assert site.paged() == ["trigger", "resolve"]
    keys = {event["dedup_key"] for event in site.chats.taken["pagerduty"]}
    assert keys == {f"healer:pod1:{one.id}", f"healer:pod1:{one.id}:P0"}


def test_a_reset_of_the_breaker_resolves_its_page(site: Site) -> None:
    opened = Breaker(cluster="pod1", state=BreakerState.open, since=START, why=quoted("5 nodes in 5 min"))
    site.put(breaker_page(opened))
    site.round()
    site.put(breaker_reset_message(opened, "ann", "driver rolled back"))
    site.round(60)
    actions = [(one["event_action"], one["dedup_key"]) for one in site.chats.taken["pagerduty"]]
    key = f"healer:pod1:breaker:pod1:{START.isoformat()}"
    assert actions == [("trigger", f"{key}:P0"), ("resolve", key), ("resolve", f"{key}:P0")]
    again = msgspec.structs.replace(opened, since=site.hand.now())
    site.put(breaker_page(again))
    site.round(600)
    assert site.paged() == ["trigger", "resolve", "trigger"]


def test_many_p0_pages_at_once_are_one_that_names_their_nodes(site: Site) -> None:
    """A breaker that closes after a storm of forty nodes paged 38 times within a second."""
    every = Route(to=("feed",), how=Manner.channel, severities=(Severity.P0,))
    site.notifications = msgspec.structs.replace(
        site.notifications, routes=(*site.notifications.routes, every)
    )
    site.round()
    ones = [
        site.incident(number, node=f"gpu{number:04}", severity=Severity.P0, p0_since=START)
        for number in range(1, 6)
    ]
    for one in ones:
        site.put(p0_page(one, "held by hourly"))
    site.round()
    (page,) = site.chats.taken["pagerduty"]
    assert page["payload"]["summary"] == "5 P0 incidents in pod1: gpu-lost"
    assert "gpu0001, gpu0002, gpu0003, gpu0004, gpu0005" in str(page) and "held by hourly" in str(page)
    assert len(site.slack()) == 1
    assert len({alert["labels"]["incident"] for alert in site.chats.taken["alertmanager"]}) == 5
    assert site.states(channel="night") == ["sent", *["folded"] * 5]
    site.put(over(ones[0], site.hand.now()))
    site.round(60)
    assert site.paged() == ["trigger"] and len(site.slack()) == 1


def test_pages_of_other_incidents_are_no_repeat(site: Site) -> None:
    """They must neither take the place of the first page, nor wait for its back-off."""
    site.round()
    for first in (1, 6):
        for number in range(first, first + 5):
            one = site.incident(number, node=f"gpu{number:04}", severity=Severity.P0, p0_since=START)
            site.put(p0_page(one, "held by hourly"))
        site.round(MINUTE)
    assert site.paged() == ["trigger"] * 2
    assert "gpu0006, gpu0007, gpu0008, gpu0009, gpu0010" in str(site.chats.taken["pagerduty"][1])


def test_three_p0_pages_at_once_are_a_page_each(site: Site) -> None:
    site.round()
    for number in range(1, 4):
        one = site.incident(number, node=f"gpu{number:04}", severity=Severity.P0, p0_since=START)
        site.put(p0_page(one, "held by hourly"))
    site.round()
    assert site.paged() == ["trigger"] * 3


def test_escalated_incident_updates_the_same_message(site: Site) -> None:
    one = site.incident(severity=Severity.P2)
    site.round()
    assert (site.slack(), site.states(channel="ops")) == ([], ["digest"])
    site.put(msgspec.structs.replace(one, severity=Severity.P1))
    site.round()
    assert len(site.roots()) == 1
    site.put(p0_page(msgspec.structs.replace(one, p0_since=START), "held"))
    site.round(1)
    assert (len(site.roots()), len(site.slack()), site.paged()) == (1, 2, ["trigger"])


def test_page_for_an_approval_is_no_news_of_its_incidents_severity(site: Site) -> None:
    """The approval pages as P0: that its incident of P2 became P1 was never sent."""
    one = site.incident(severity=Severity.P2)
    site.round()
    asked = Run(
        id="r1", cluster="pod1", playbook="drain", state=RunState.waiting_approval, by="healer", reason="x",
        created_at=START, node="gpu0001", incident=one.id,
    )  # fmt: skip
    site.put(approval_page(asked))
    site.round()
    assert site.paged() == ["trigger"]
    site.put(msgspec.structs.replace(one, severity=Severity.P1))
    site.round()
    assert len(site.chats.alerts) == 1


def test_the_message_of_a_run_that_starts_at_once_is_the_only_opening(site: Site) -> None:
    """The opening itself came 5 minutes later as a repeat, with less in it, in place of the run's message."""
    one = site.incident()
    about = about_incident(one)
    of_run = Message(
        id=f"{one.id}:notify", cluster="pod1", title="t", text="drained", incident=one.id, about=about,
        severity=Severity.P1,
    )  # fmt: skip
    site.put(of_run)
    site.round()
    site.round(6 * MINUTE)
    assert site.states(channel="ops") == site.states(channel="feed") == ["sent"]
    (root,) = site.slack()
    assert "drained" in root["text"]


def test_an_incident_that_has_not_settled_is_waited_for(site: Site) -> None:
    one = site.incident()
    site.put(msgspec.structs.replace(one, settle_until=site.hand.now() + timedelta(seconds=2)))
    site.round(1)
    assert site.slack() == []
    site.round(1)
    assert len(site.slack()) == 1


def test_an_incident_of_a_detector_whose_clock_is_ahead_is_sent_at_once(site: Site) -> None:
    """Its news came ten minutes late, as if it had settled for so long."""
    ahead = site.hand.now() + timedelta(minutes=10)
    site.put(msgspec.structs.replace(site.incident(), opened=ahead, updated=ahead, settle_until=ahead))
    site.round()
    assert len(site.slack()) == 1


def test_events_before_a_channel_existed_are_not_sent_there(fresh_database: sa.Engine, chats: Chats) -> None:
    site = Site(fresh_database, chats)
    one = site.incident()
    site.put(Message(id="old", cluster="pod1", title="t", text="x", severity=Severity.P0, page=True))
    site.round(MINUTE)
    site.put(over(one, site.hand.now()))
    site.round(MINUTE)
    assert (site.slack(), site.paged(), site.states()) == ([], [], [])


def test_incident_closed_before_its_first_message_is_never_sent(site: Site) -> None:
    site.chats.answers.extend([(500, {}, {})] * 3)
    one = site.incident()
    site.put(over(one, site.hand.now()))
    page = p0_page(msgspec.structs.replace(one, p0_since=START), "held")
    site.put(page)
    site.chats.answers.clear()
    site.round()
    assert (site.slack(), site.paged()) == ([], [])
    assert site.states() == ["over", "over"]


def test_page_that_was_not_taken_wakes_no_one_once_its_incident_is_over(site: Site) -> None:
    site.notifications = only(site.notifications, "night")
    one = site.incident(severity=Severity.P0)
    site.put(p0_page(msgspec.structs.replace(one, p0_since=START), "held"))
    away(site, MINUTE)
    site.put(over(one, site.hand.now()))
    site.round()
    assert site.paged() == ["resolve"], "its first try may have been taken: that is closed"
    assert site.states() == ["over", "sent"]


def test_page_for_an_approval_that_was_given_meanwhile_wakes_no_one(site: Site) -> None:
    site.notifications = only(site.notifications, "night")
    asked = Run(
        id="r1", cluster="pod1", playbook="drain", state=RunState.waiting_approval, by="ann", reason="x",
        created_at=START, node="gpu0001",
    )  # fmt: skip
    with site.db.begin() as conn:
        for run in (asked, msgspec.structs.replace(asked, id="r2", node="gpu0002")):
            api.save_run(conn, run)
            outbox.queue(conn, approval_page(run), at=site.hand.now(), has_sink=False)
    for _ in range(2):
        away(site, MINUTE)
    with site.db.begin() as conn:
        conn.execute(sa.update(runs).where(runs.c.id == "r1").values(state=RunState.running))
    site.round(30 * MINUTE)
    assert [event["dedup_key"] for event in site.chats.taken["pagerduty"]] == ["healer:pod1:r2:approval:P0"]
    assert site.states() == ["over", "sent"]
    with site.db.connect() as conn:
        last = sa.select(delivery_log.c.outcome).order_by(delivery_log.c.id.desc()).limit(4)
        assert sorted(conn.scalars(last)) == ["begun", "begun", "over", "taken"]


def test_incident_that_ends_between_planning_and_delivery_is_never_sent(site: Site) -> None:
    site.notifications = only(site.notifications, "ops")
    one = site.incident()
    planned(site)
    site.put(over(one, site.hand.now()))
    deliver_to_ops(site, lambda: ChannelBook(site.settings).of(site.notifications.channels[0]))
    site.round()
    assert (site.slack(), site.states()) == ([], ["over"])


def test_clock_set_back_mutes_no_channel(site: Site) -> None:
    """The machine began with a clock that was six hours fast, and healer with it."""
    site.hand.forward(-6 * 60 * MINUTE)
    one = site.incident(severity=Severity.P0)
    site.put(p0_page(msgspec.structs.replace(one, p0_since=site.hand.now()), "held"))
    site.incident(2, node="gpu0002")
    site.round(1)
    assert (site.paged(), len(site.roots())) == (["trigger"], 2)


def test_clock_set_back_delays_no_message_that_waits(site: Site) -> None:
    site.notifications = only(site.notifications, "ops")
    site.incident()
    site.chats.answers.append((429, {"retry-after": "3600"}, {}))
    site.telling()
    site.telling.wait()
    assert site.slack() == []
    site.hand.forward(-6 * 60 * MINUTE)
    site.round()
    assert len(site.slack()) == 1


def test_clock_set_back_ends_no_alert_and_delays_no_digest(site: Site) -> None:
    site.incident(1)
    site.incident(2, node="gpu0002", severity=Severity.P2)
    site.round()
    site.hand.forward(-6 * 60 * MINUTE)
    for _ in range(2):
        site.round(MINUTE)
    assert len(site.chats.taken["alertmanager"]) == 3
    assert len(site.roots()) == 2


def test_removed_channel_gets_no_messages(site: Site) -> None:
    site.chats.answers.extend([(500, {}, {})] * 2)
    site.incident()
    site.telling()
    site.telling.wait()
    site.notifications = Notifications()
    site.round(MINUTE)
    assert site.states() == ["over", "over"]
    assert site.slack() == []


def test_a_group_bot_hears_of_the_beginning_and_of_the_end(fresh_database: sa.Engine, chats: Chats) -> None:
    site = Site(fresh_database, chats)
    bot = Channel(name="group", kind=ChannelKind.wecom)
    site.notifications = Notifications(channels=(bot,), routes=(Route(to=("group",), how=Manner.channel),))
    site.settings = load_settings({"HEALER_WECOM_URL": chats.wecom})
    site.telling = Telling(site.settings, site.db, "pod1", site.rules, site.hand)
    site.round()
    one = site.incident()
    site.round()
    site.put(msgspec.structs.replace(one, acknowledged_by="anna"))
    site.round(MINUTE)
    assert len(chats.taken["wecom"]) == 1
    site.put(over(one, site.hand.now()))
    site.round(MINUTE)
    first, last = (message["markdown"]["content"] for message in chats.taken["wecom"])
    assert "has fallen off the bus" in first
    assert "the tests passed" in last


def test_dead_letters_are_exposed_as_a_metric(site: Site) -> None:
    site.notifications = only(site.notifications, "ops")
    site.incident()
    site.chats.answers.append((200, {}, {"ok": False, "error": "invalid_auth"}))
    site.round()
    with site.db.connect() as conn:
        assert gauges(conn, site.hand.now())["messages_failed"] == {("pod1",): 1}


# --- digests and repeats ------------------------------------------------------------------------------------


def test_low_urgency_incidents_are_sent_hourly_in_one_message(site: Site) -> None:
    one = site.incident(1, severity=Severity.P2)
    site.incident(2, severity=Severity.P3)
    site.round()
    site.round(59 * MINUTE)
    site.put(over(one, site.hand.now()))
    site.round()
    assert site.slack() == []
    site.round(MINUTE)
    (message,) = site.slack()
    assert "2 low-urgency incidents, 1 still open" in message["text"]
    assert message["text"].count("https://healer.example/incidents/") == 2
    site.round(24 * 60 * MINUTE)
    assert len(site.slack()) == 1  # it had already ended


def test_a_digest_waits_until_its_channel_is_back(site: Site) -> None:
    """Five attempts are over after some 20 minutes: an hour's outage lost the only news of what it listed."""
    site.notifications = only(site.notifications, "ops")
    site.incident(1, severity=Severity.P2)
    site.incident(2, severity=Severity.P3)
    site.round()
    for _ in range(tell.MAX_TRIES + 1):
        away(site, 60 * MINUTE)
    site.round()
    assert "2 low-urgency incidents" in site.slack()[0]["text"]


def test_end_of_an_incident_from_a_digest_is_in_the_next_digest(site: Site) -> None:
    one = site.incident(severity=Severity.P2)
    site.round()
    site.round(60 * MINUTE)
    site.put(over(one, site.hand.now()))
    site.round()
    site.round(59 * MINUTE)
    assert len(site.roots()) == 1
    site.round(60 * MINUTE)
    assert "0 still open" in site.roots()[1]["text"]


def test_repeating_alarm_is_sent_less_and_less_often(site: Site) -> None:
    minutes = []
    for minute in range(80):
        one = site.incident(minute + 1)
        before = len(site.roots())
        site.telling()
        site.telling.wait()
        minutes += [minute] * (len(site.roots()) - before)
        if minute % 5:  # some are over before their time comes
            site.put(over(one, site.hand.now()))
        site.hand.forward(MINUTE)
    assert minutes == [0, 5, 15, 35, 75]


def test_of_queued_updates_only_the_newest_is_sent(site: Site) -> None:
    for number in (1, 2, 3):
        site.incident(number, node="gpu0001")
        site.round(10)
    assert site.states(channel="ops") == ["sent", "folded", "due"]
    site.round(5 * MINUTE)
    assert site.states(channel="ops") == ["sent", "folded", "sent"]
    assert len(site.roots()) == 2


def test_incident_that_became_worse_is_no_repeat(site: Site) -> None:
    """Where P1 pages too: the page of P0 waited for 5 to 80 minutes."""
    pages = Route(to=("night",), how=Manner.page, severities=(Severity.P0, Severity.P1))
    site.notifications = msgspec.structs.replace(only(site.notifications, "night"), routes=(pages,))
    for number in (1, 2):
        one = site.incident(number)
        site.round(10)
    assert (site.paged(), site.states()) == (["trigger"], ["sent", "due"])
    site.put(p0_page(msgspec.structs.replace(one, p0_since=START), "held"))
    site.round(1)
    assert site.paged() == ["trigger", "trigger"]
    assert site.chats.taken["pagerduty"][1]["payload"]["severity"] == "critical"
    assert site.states() == ["sent", "folded", "sent"], "the milder news comes no more"


# --- failures -----------------------------------------------------------------------------------------------


def test_open_incident_is_shown_once_its_channel_is_back(site: Site) -> None:
    """An Alertmanager that was away for half an hour never showed it: only what it took is renewed."""
    site.notifications = only(site.notifications, "feed")
    site.incident()
    for _ in range(tell.MAX_TRIES + 1):
        site.chats.answers.extend([(503, {}, {})] * 2)
        site.telling()
        site.telling.wait()
        site.chats.answers.clear()
        site.hand.forward(30 * MINUTE)
    site.round()
    assert (len(site.chats.alerts), site.states()) == (1, ["sent"])


def test_it_is_tried_five_times_then_a_dead_letter(site: Site) -> None:
    site.notifications = only(site.notifications, "ops")
    site.put(Message(id="m", cluster="pod1", title="t", text="x", severity=Severity.P1))
    for _ in range(5):
        site.chats.answers.append((500, {}, {}))
        site.telling()
        site.telling.wait()
        site.hand.forward(3600)
    assert site.states() == ["failed"]
    site.round()
    assert (site.slack(), not site.chats.answers) == ([], True)
    with site.db.connect() as conn:
        assert "message.failed" in set(conn.scalars(sa.select(audit_records.c.verb)))
        outcomes = list(conn.scalars(sa.select(delivery_log.c.outcome).order_by(delivery_log.c.id)))
    assert outcomes == ["begun", "failed"] * 5


def test_page_is_tried_until_the_pager_is_back(site: Site) -> None:
    """Five attempts are over after some 20 minutes: a page of an hour's outage woke no one, ever."""
    site.notifications = only(site.notifications, "night")
    one = site.incident(severity=Severity.P0)
    site.put(p0_page(msgspec.structs.replace(one, p0_since=START), "held"))
    for _ in range(tell.MAX_TRIES + 5):
        away(site, 30 * MINUTE)
    assert site.states() == ["due"]
    site.round(30 * MINUTE)
    assert (site.paged(), site.states()) == (["trigger"], ["sent"])


def test_a_page_does_not_wait_for_the_retry_of_milder_news_of_its_incident(site: Site) -> None:
    """Slack was away for some minutes when it was P1; the page of P0 came up to 27 minutes late."""
    site.notifications = only(site.notifications, "ops")
    one = site.incident()
    for _ in range(tell.MAX_TRIES - 1):
        away(site, 5 * MINUTE)
    site.round()
    assert (site.slack(), site.states()) == ([], ["due"])
    site.put(p0_page(msgspec.structs.replace(one, severity=Severity.P0, p0_since=START), "held"))
    site.round(1)
    assert (len(site.roots()), site.states()) == (1, ["due", "sent"])
    site.round(3600)
    assert (len(site.slack()), site.states()) == (1, ["over", "sent"]), "the milder news comes no more"


def test_no_page_passes_over_a_request_for_an_approval(site: Site) -> None:
    """It is not older news than the page: people still have to answer it."""
    site.notifications = only(site.notifications, "ops")
    one = site.incident(severity=Severity.P2)
    asks = Run(
        id="r1", cluster="pod1", playbook="drain", state=RunState.waiting, by="healer", reason="x",
        created_at=START, node="gpu0001", incident=one.id, approve_until=START + timedelta(hours=12),
    )  # fmt: skip
    with site.db.begin() as conn:
        api.save_run(conn, asks)
    site.put(approval_page(asks))  # of a step: it does not page
    for _ in range(tell.MAX_TRIES - 1):
        away(site, 5 * MINUTE)
    site.put(p0_page(msgspec.structs.replace(one, severity=Severity.P0, p0_since=START), "held"))
    site.round(1)
    site.round(30 * MINUTE)
    assert site.states()[:2] == ["sent", "sent"]


def test_the_end_of_an_incident_is_tried_until_the_pager_is_back(site: Site) -> None:
    site.notifications = paging(site.notifications)
    one = site.incident()
    site.round()
    assert site.paged() == ["trigger"]
    site.put(over(one, site.hand.now()))
    for _ in range(tell.MAX_TRIES + 20):  # the pager is away for most of a day
        away(site, 3600)
    assert site.states() == ["sent", "due"]
    site.round(3600)
    assert (site.paged(), site.states()) == (["trigger", "resolve"], ["sent", "sent"])


def test_a_late_end_neither_follows_nor_delays_the_page_that_it_is_open_again(site: Site) -> None:
    site.notifications = paging(site.notifications)
    one = site.incident()
    site.round()
    site.put(over(one, site.hand.now()))
    for _ in range(tell.MAX_TRIES + 3):
        away(site, 3600)
    site.put(msgspec.structs.replace(one, reopened_at=site.hand.now()))
    site.round()
    assert site.paged() == ["trigger", "trigger"]
    site.round(7200)
    assert (site.paged(), site.states()) == (["trigger", "trigger"], ["sent", "over", "sent"])


def test_the_end_of_an_incident_is_given_up_after_a_week(site: Site) -> None:
    site.notifications = paging(site.notifications)
    one = site.incident()
    site.round()
    site.put(over(one, site.hand.now()))
    away(site, 3600)
    before_the_last_try(site)
    away(site, 3600)
    assert (site.paged(), site.states()) == (["trigger"], ["sent", "failed"])


def before_the_last_try(site: Site) -> None:
    """A week later."""
    with site.db.begin() as conn:
        ends = sa.update(deliveries).where(deliveries.c.stage == "resolved")
        conn.execute(ends.values(tries=tell.END_TRIES - 1))


def paging(notifications: Notifications) -> Notifications:
    """All to the pager."""
    (night,) = (channel for channel in notifications.channels if channel.name == "night")
    route = Route(to=("night",), how=Manner.channel)
    return msgspec.structs.replace(notifications, channels=(night,), routes=(route,))


def away(site: Site, seconds: float) -> None:
    """One round with a channel that answers 503."""
    site.chats.answers.append((503, {}, {}))
    site.telling()
    site.telling.wait()
    site.chats.answers.clear()
    site.hand.forward(seconds)


def test_doctor_reports_each_channel(site: Site) -> None:
    ops, night, _ = site.notifications.channels

    def checked(channel: Channel, known: Settings | None = None) -> tuple[bool, str]:
        with site.db.connect() as conn:
            histories = doctor_checks.delivery_histories(conn, site.hand.now())
        found = doctor_checks.check_notification_channel(
            known or site.settings, channel, histories.get(channel.name)
        )
        return found.ok, found.text

    assert checked(ops) == (True, "slack: secrets found, nothing sent yet")
    ok, text = checked(night, load_settings({}))
    assert not ok and text.startswith("HEALER_PAGERDUTY_KEY must be set")
    site.notifications = only(site.notifications, "ops")
    site.incident()
    site.chats.answers.append((500, {}, {}))
    site.telling()
    site.telling.wait()
    ok, text = checked(ops)
    assert not ok and "nothing sent yet; 1 waiting to be retried, 0 given up in 24 h: " in text
    site.round(3600)
    assert checked(ops) == (True, "slack: last message at 2026-11-20 04:00 UTC")
    assert checked(night) == (True, "pagerduty: secrets found, nothing sent yet")


def test_refused_message_becomes_a_dead_letter_at_once_unless_it_pages(site: Site) -> None:
    site.notifications = only(site.notifications, "ops")
    one = site.incident()
    site.chats.answers.append((200, {}, {"ok": False, "error": "invalid_auth"}))
    site.round()
    assert site.states() == ["failed"]
    site.chats.answers.append((200, {}, {"ok": False, "error": "invalid_auth"}))
    site.put(p0_page(msgspec.structs.replace(one, p0_since=START), "held"))
    site.round()
    assert site.states() == ["failed", "due"]
    site.round(10)
    assert site.states() == ["failed", "sent"]


@pytest.mark.parametrize("error", ["is_inactive", "channel_not_found"])
def test_an_open_incident_goes_on_in_the_new_channel_where_the_old_one_is_archived(
    site: Site, error: str
) -> None:
    """Its end was a dead letter at once, and its page was refused for a day."""
    site.notifications = only(site.notifications, "ops")
    one = site.incident()
    site.round()
    site.chats.answers.append((200, {}, {"ok": False, "error": error}))
    site.put(p0_page(msgspec.structs.replace(one, severity=Severity.P0, p0_since=START), "held"))
    site.round(1)
    assert (len(site.roots()), site.states()) == (2, ["sent", "sent"])
    site.put(over(one, site.hand.now()))
    site.round(1)
    assert ":white_check_mark:" in str(site.roots()[1]["blocks"])


def test_new_page_goes_before_one_that_the_channel_never_takes(site: Site) -> None:
    site.notifications = only(site.notifications, "night")
    for name in ("a:p0", "b:p0"):
        site.put(Message(id=name, cluster="pod1", title=name, text="x", severity=Severity.P0, page=True))
        site.chats.answers.extend([(400, {}, {})] * (name == "a:p0"))
        site.telling()
        site.telling.wait()
        site.hand.forward(10)
    assert [event["dedup_key"] for event in site.chats.taken["pagerduty"]] == [
        "healer:pod1:b:p0:P0",
        "healer:pod1:a:p0:P0",
    ]


def test_a_channel_that_asks_for_a_pause_gets_it(site: Site) -> None:
    site.notifications = only(site.notifications, "ops")
    site.incident(1)
    site.incident(2, node="gpu0002")
    site.chats.answers.append((429, {"retry-after": "90"}, {}))
    site.round()
    site.round(80)
    assert site.slack() == []
    site.round(10)
    assert len(site.roots()) == 2


def test_a_page_goes_out_soon_after_its_channel_takes_other_news_again(site: Site) -> None:
    """Slack was away, and the page's next try is some 18 minutes off."""
    site.notifications = only(site.notifications, "ops")
    one = site.incident(severity=Severity.P0, p0_since=site.hand.now())
    site.put(p0_page(one, "held"))
    for minutes in (0, 1, 1, 5):  # each longer than its wait can be
        site.chats.answers.extend([(503, {}, {})] * 2)
        site.round(minutes * MINUTE)
    site.chats.answers.clear()
    site.round(4 * MINUTE)
    assert site.slack() == []
    site.incident(2, node="gpu0002")
    site.round()
    site.round(3 * MINUTE)
    assert [root["metadata"]["event_payload"]["thread"][7] for root in site.roots()] == ["2", "1"]


@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_a_person_wrote_begins_no_line_of_a_message(site: Site, language: Language) -> None:
    channels = (msgspec.structs.replace(site.notifications.channels[0], language=language),)
    site.notifications = msgspec.structs.replace(only(site.notifications, "ops"), channels=channels)
    one = site.incident()
    site.round()
    reason = "seated\nWhere: nowhere\r\n*healer:* all is well"
    forged = say("incidents.person_resolved", who="eve", reason=reason)
    site.put(over(one, site.hand.now(), forged))
    site.round(MINUTE)
    lines = site.slack()[-1]["text"].split("\n")
    assert "seated Where: nowhere *healer:* all is well" in lines[-1]
    assert len(lines) == 4


def test_a_page_that_is_worse_wakes_who_acknowledged_the_milder_one(site: Site) -> None:
    """PagerDuty notifies for no repeat of an alert that someone has acknowledged there: a worse one is an
    alert of its own, and the end of the incident closes both."""
    wakes = Route(to=("night",), how=Manner.page, severities=(Severity.P0, Severity.P1))
    site.notifications = msgspec.structs.replace(site.notifications, routes=(wakes,))
    one = site.incident()
    site.round()
    site.put(msgspec.structs.replace(one, acknowledged_by="anna"))
    site.round(MINUTE)
    worse = msgspec.structs.replace(
        one, acknowledged_by="anna", severity=Severity.P0, p0_since=site.hand.now()
    )
    site.put(worse)
    site.put(p0_page(worse, "held"))
    site.round(MINUTE)
    site.put(p0_page(msgspec.structs.replace(worse, p0_since=site.hand.now() + timedelta(hours=1)), "held"))
    site.round(10 * MINUTE)
    site.put(over(worse, site.hand.now()))
    site.round(MINUTE)
    key = f"healer:pod1:{one.id}"
    sent = [(event["event_action"], event["dedup_key"]) for event in site.chats.taken["pagerduty"]]
    assert sent == [
        ("trigger", key),
        ("acknowledge", key),
        ("acknowledge", f"{key}:P0"),
        ("trigger", f"{key}:P0"),
        ("trigger", f"{key}:P0"),
        ("resolve", key),
        ("resolve", f"{key}:P0"),
    ]


def test_an_end_closes_a_page_of_which_healer_does_not_know_that_it_was_taken(site: Site) -> None:
    """The sender died after PagerDuty had taken it, and the incident was over before the next try."""
    wakes = Route(to=("night",), how=Manner.page, severities=(Severity.P0, Severity.P1))
    site.notifications = msgspec.structs.replace(site.notifications, routes=(wakes,))
    one = site.incident()
    site.round()
    worse = msgspec.structs.replace(one, severity=Severity.P0, p0_since=site.hand.now())
    key = f"healer:pod1:{one.id}"
    page = notice_of(p0_page(worse, "held"), site.hand.now(), page=True)
    httpx.post(f"{site.chats.url}/v2/enqueue", json=body(page, stand_in.PAGER_KEY, f"{key}:P0"))
    site.put(over(worse, site.hand.now()))
    site.round(MINUTE)
    sent = [(event["event_action"], event["dedup_key"]) for event in site.chats.taken["pagerduty"]]
    assert sent == [("trigger", key), ("trigger", f"{key}:P0"), ("resolve", key), ("resolve", f"{key}:P0")]


def test_a_page_that_its_channel_refuses_is_tried_for_a_day_though_others_go_out(site: Site) -> None:
    one = site.incident(severity=Severity.P0, p0_since=site.hand.now())
    site.notifications = only(site.notifications, "night")
    site.put(p0_page(one, "held"))
    site.chats.refused = one.id
    for number in range(8 * 20):
        name = f"m{number}:p0"
        site.put(Message(id=name, cluster="pod1", title=name, text="x", severity=Severity.P0, page=True))
        site.round(3 * MINUTE)
    assert site.states()[0] == "due"


def test_a_channel_that_is_full_gets_the_page_first_once_it_has_room(site: Site) -> None:
    """Slack takes one message a second. What it has no room for is no try: none is lost in a long storm."""
    site.notifications = only(site.notifications, "ops")
    for number in range(2, 12):
        site.incident(number, node=f"gpu{number:04d}")
    one = site.incident(1, severity=Severity.P0, p0_since=site.hand.now())
    site.put(p0_page(one, "held"))
    full = (429, {"retry-after": "1"}, {"ok": False, "error": "ratelimited"})
    for _ in range(tell.MAX_TRIES + 1):
        site.chats.answers.append(full)
        site.round(1)
        assert site.slack() == []
    site.round(1)
    assert site.roots()[0]["metadata"]["event_payload"]["thread"] == one.id
    assert len(site.roots()) == 11


def test_a_full_channel_gets_a_page_before_milder_news_of_its_incident(site: Site) -> None:
    """Both are due when the pause ends: the news took the only place, and the page waited for the next."""
    site.notifications = only(site.notifications, "ops")
    full = (429, {"retry-after": "60"}, {"ok": False, "error": "ratelimited"})
    one = site.incident()
    for _ in range(3):
        site.chats.answers.append(full)
        site.round()
        site.hand.forward(60)
    worse = msgspec.structs.replace(one, severity=Severity.P0, p0_since=site.hand.now())
    site.put(worse)
    site.put(p0_page(worse, "held"))
    site.round()
    assert (len(site.slack()), site.states()) == (1, ["over", "sent"])
    assert site.slack()[0]["metadata"]["event_payload"]["id"] == p0_page(worse, "held").id


def test_news_for_a_full_channel_waits_for_room_without_a_try_for_an_hour(site: Site) -> None:
    site.notifications = only(site.notifications, "ops")
    one = site.incident()
    site.round()
    site.put(msgspec.structs.replace(one, acknowledged_by="anna"))
    full = (429, {"retry-after": "600"}, {"ok": False, "error": "ratelimited"})
    for minutes in range(0, 60, 10):
        site.chats.answers.append(full)
        site.round(10 * MINUTE if minutes else 0)
    assert site.states() == ["sent", "due"]
    for _ in range(tell.MAX_TRIES):
        site.chats.answers.append(full)
        site.round(60 * MINUTE)
    assert site.states() == ["sent", "failed"]


def only(notifications: Notifications, channel: str) -> Notifications:
    routes = [
        msgspec.structs.replace(one, to=(channel,)) for one in notifications.routes if channel in one.to
    ]
    kept = tuple(one for one in notifications.channels if one.name == channel)
    return msgspec.structs.replace(notifications, channels=kept, routes=tuple(routes))


# --- a crash between send and store -------------------------------------------------------------------------


class Killed(BaseException):
    """Simulates a crash of the process."""


class DiesAfterSending:
    can_find = True
    has_buttons = False

    def __init__(self, teller: MessageChannel) -> None:
        self._teller = teller

    def send(self, notice: Notice, ref: str) -> str:
        self._teller.send(notice, ref)
        raise Killed

    def find(self, notice: Notice, ref: str = "") -> str:
        return self._teller.find(notice, ref)


def dying(site: Site) -> None:
    book = ChannelBook(site.settings)
    channel = site.notifications.channel("ops")
    assert channel is not None
    with pytest.raises(Killed):
        deliver_to_ops(site, lambda: DiesAfterSending(book.of(channel)))


def planned(site: Site) -> None:
    with planning(site.db, "pod1", site.hand.now()) as tx:
        assert tx is not None
        tell.plan(tx, "pod1", site.notifications, site.hand.now())


def deliver_to_ops(site: Site, teller: Callable[[], MessageChannel]) -> None:
    box = outbox.PostgresChannelOutbox(site.db, "pod1", "ops")
    tell.deliver_to(box, teller, tell.Links(), clock=site.hand, chance=lambda: 0.5)


def test_after_a_crash_the_message_is_found_and_not_sent_again(site: Site) -> None:
    site.notifications = only(site.notifications, "ops")
    one = site.incident()
    planned(site)
    dying(site)
    assert (len(site.slack()), site.states()) == (1, ["due"])
    site.round(20)
    assert (len(site.slack()), site.states()) == (1, ["sent"])
    with site.db.connect() as conn:
        (reference,) = conn.scalars(sa.select(threads.c.reference))
        outcomes = list(conn.scalars(sa.select(delivery_log.c.outcome).order_by(delivery_log.c.id)))
    assert reference == f"C0HEALER:{next(iter(site.chats.slack))}"
    assert outcomes == ["begun", "begun", "found"]
    site.put(over(one, site.hand.now()))
    planned(site)
    dying(site)  # the same with its end, which is a reply in the thread
    site.round(20)
    assert (len(site.roots()), len(site.slack())) == (1, 2)


def test_message_accepted_without_an_answer_is_not_sent_twice(site: Site) -> None:
    site.notifications = only(site.notifications, "ops")
    site.incident()
    planned(site)
    channel = site.notifications.channel("ops")
    assert channel is not None
    book = ChannelBook(site.settings)

    class Unheard(DiesAfterSending):
        def send(self, notice: Notice, ref: str) -> str:
            self._teller.send(notice, ref)
            raise DeliveryFailed("Slack did not answer within 10 s")

    deliver_to_ops(site, lambda: Unheard(book.of(channel)))
    site.round(60)
    assert (len(site.slack()), site.states()) == (1, ["sent"])


def test_a_message_is_sent_again_where_slack_does_not_let_healer_look_for_it(site: Site) -> None:
    """A bot in a private channel without `groups:history`: rather twice than never."""
    site.notifications = only(site.notifications, "ops")
    one = site.incident(severity=Severity.P0)
    site.put(p0_page(msgspec.structs.replace(one, p0_since=START), "held"))
    site.chats.answers.extend([(503, {}, {}), (200, {}, {"ok": False, "error": "missing_scope"})])
    site.telling()
    site.telling.wait()
    site.round(60)
    assert (len(site.slack()), site.states()) == (1, ["sent"])


def test_two_schedulers_notify_each_channel_once(site: Site) -> None:
    for number in range(10):
        site.incident(number + 1, node=f"gpu{number:04}")
    others = [Telling(site.settings, site.db, "pod1", site.rules, site.hand) for _ in range(2)]

    def work(telling: Telling) -> None:
        for _ in range(3):
            telling()
            telling.wait()

    going = [threading.Thread(target=work, args=(one,)) for one in others]
    for thread in going:
        thread.start()
    for thread in going:
        thread.join()
    site.round()
    assert len(site.slack()) == 10
    assert set(site.states(channel="ops")) == {"sent"}


def test_a_scheduler_that_froze_while_it_sent_holds_no_channel(site: Site) -> None:
    """Its session lived on with its process, and no other scheduler could send there."""
    site.incident(1)
    frozen = outbox.PostgresChannelOutbox(site.db, "pod1", "ops", frozen_after_s=3.0)
    with pytest.raises(sa.exc.OperationalError), frozen.alone() as is_mine:
        assert is_mine
        site.round()
        assert len(site.slack()) == 0
        wait_until(lambda: site.round() or len(site.slack()) == 1, 20, what="the other scheduler sends")
        frozen.claim(site.hand.now())  # it thaws


# --- e-mail -------------------------------------------------------------------------------------------------


@pytest.fixture
def post(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[MailServer]:
    """The site's channel `ops` is mail to three people."""
    papers, secret = certificates(tmp_path), tmp_path / "password"
    secret.write_text("mail-not-to-be-told")
    monkeypatch.setenv("SSL_CERT_FILE", str(papers.authority))
    with serve_mail(papers.server) as server:
        address = f"127.0.0.1:{server.port}"
        channel = Channel(
            name="ops", kind=ChannelKind.email, server=address, sender="healer@example.org", user="healer",
            to=("ops@example.org", "night@example.org"), secret=str(secret),
        )  # fmt: skip
        site.notifications = msgspec.structs.replace(only(site.notifications, "ops"), channels=(channel,))
        yield server


def test_a_recipient_whom_the_server_refuses_is_named_by_the_delivery_and_the_doctor(
    site: Site, post: MailServer
) -> None:
    """The address was misspelt: the page reached one of two, and only a log had a line of it."""
    post.says["rcpt TO:<night@example.org>"] = b"550 no such user"
    one = site.incident(severity=Severity.P0, p0_since=site.hand.now())
    site.put(p0_page(one, "held"))
    site.round(MINUTE)
    (sent,) = site.sent()
    assert (sent.state, sent.reference != "") == (DeliveryState.sent, True)
    assert "night@example.org (550)" in sent.error and "ops@example.org" not in sent.error
    assert [tried.outcome for tried in sent.tries_log] == ["begun", "taken"]
    with site.db.connect() as conn:
        history = doctor_checks.delivery_histories(conn, site.hand.now())["ops"]
    (channel,) = site.notifications.channels
    check = doctor_checks.check_notification_channel(site.settings, channel, history)
    assert not check.ok and "night@example.org (550)" in check.text


def test_a_recipient_who_was_put_off_hides_no_other_who_was_refused(site: Site, post: MailServer) -> None:
    (channel,) = site.notifications.channels
    channel = msgspec.structs.replace(channel, to=(*channel.to, "late@example.org"))
    site.notifications = msgspec.structs.replace(site.notifications, channels=(channel,))
    post.says["rcpt TO:<night@example.org>"] = b"550 no such user"
    post.says["rcpt TO:<late@example.org>"] = b"452 come back later"
    one = site.incident(severity=Severity.P0, p0_since=site.hand.now())
    site.put(p0_page(one, "held"))
    site.round(MINUTE)
    assert site.states(channel="ops") == ["due"]
    del post.says["rcpt TO:<late@example.org>"]
    for _ in range(10):
        site.round(MINUTE)
    assert [to for to, _ in post.mails] == [["ops@example.org"], ["late@example.org"]]
    (sent,) = site.sent()
    assert (sent.state, "night@example.org (550)" in sent.error) == (DeliveryState.sent, True)


def test_a_recipient_with_a_full_mailbox_keeps_no_later_page_from_the_others(
    site: Site, post: MailServer
) -> None:
    """Their page waited for that recipient, and the question for an approval waited for that page: a day."""
    post.says["rcpt TO:<night@example.org>"] = b"452 mailbox full"
    one = site.incident(severity=Severity.P0, p0_since=site.hand.now())
    site.put(p0_page(one, "held"))
    for _ in range(10):
        site.round(MINUTE)
    run = Run(
        id="r2", cluster="pod1", playbook="gpu-fatal", state=RunState.waiting_approval, by="healer",
        reason="x", created_at=site.hand.now(), node="gpu0001", incident=one.id, question="q",
    )  # fmt: skip
    site.put(approval_page(run, one))
    site.round(MINUTE)
    assert [to for to, _ in post.mails] == [["ops@example.org"]] * 2
    del post.says["rcpt TO:<night@example.org>"]
    for _ in range(10):
        site.round(MINUTE)
    assert [to for to, _ in post.mails[2:]] == [["night@example.org"]] * 2
    assert site.states(channel="ops") == ["sent"] * 2


# --- Alertmanager -------------------------------------------------------------------------------------------


def test_open_alerts_are_renewed_every_minute_until_their_end(site: Site) -> None:
    one = site.incident()
    site.round()
    for _ in range(3):
        site.round(MINUTE)
    assert len(site.chats.taken["alertmanager"]) == 4
    site.put(over(one, site.hand.now()))
    site.round()
    site.round(10 * MINUTE)
    assert len(site.chats.taken["alertmanager"]) == 5
    assert len(site.chats.alerts) == 1


def test_alert_is_not_renewed_once_its_incident_is_over_though_its_end_was_not_taken(site: Site) -> None:
    site.notifications = only(site.notifications, "feed")
    one = site.incident()
    site.round()
    site.put(over(one, site.hand.now()))
    for number in range(2):  # the Alertmanager is away until the end is a dead letter
        if number:
            before_the_last_try(site)
        site.chats.answers.extend([(503, {}, {})] * 2)
        site.telling()
        site.telling.wait()
        site.chats.answers.clear()
        site.hand.forward(3600)
    assert site.states() == ["sent", "failed"]
    site.round(MINUTE)
    assert len(site.chats.taken["alertmanager"]) == 1


def test_hostile_words_stop_nothing(site: Site) -> None:
    text = "NVRM: \x00 \ud800"
    site.put(Message(id="x:p0", cluster="pod1", title=text, text=text, severity=Severity.P0, page=True))
    site.round()
    assert (len(site.slack()), site.paged()) == (1, ["trigger"])
    with site.db.connect() as conn:
        assert conn.scalar(sa.select(messages.c.routed).where(messages.c.id == "x:p0")) is True
