"""What healer records, from the sealed audit to a real HTTP server, read by the CloudEvents library."""

import base64
import hmac
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa
from cloudevents.core.bindings.http import HTTPMessage, from_structured_event
from cloudevents.core.v1.event import CloudEvent

from healer.adapters.postgres import audit_rows as audit
from healer.adapters.postgres.audit_rows import PostgresChain, PostgresEventFeed
from healer.adapters.postgres.tables import event_feed
from healer.adapters.signing import load_signer
from healer.adapters.webhook import EventSink, SignedWebhook, WebhookNotifier, WebhookTickets
from healer.audit import Sealer
from healer.engine.tell import deliver_events
from healer.model import AuditRecord, Message, Severity, Ticket
from tests.support.sink import Sink, serve_sink

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
KEY = b"0123456789abcdef0123456789abcdef"
SECRET = "whsec_" + base64.b64encode(KEY).decode()


class Hand:
    """A clock turned by hand."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at


class Feed:
    """One cluster's audit and its sink."""

    def __init__(self, engine: sa.Engine, folder: Path, sink: Sink) -> None:
        self.engine, self.sink, self.hand = engine, sink, Hand()
        self._sealer = Sealer(PostgresChain(engine), load_signer(folder))
        self._webhook = SignedWebhook(sink.url, SECRET, now=self.hand.now)

    def record(self, verb: str, subject: str, at: datetime | None = None, **data: object) -> None:
        with self.engine.begin() as conn:
            record = AuditRecord(
                cluster="pod1", at=at or self.hand.at, actor="healer", verb=verb, subject=subject, data=data
            )
            audit.append(conn, record)
        self._sealer.seal_once()

    def deliver(self) -> int:
        feed, sink = PostgresEventFeed(self.engine, "pod1"), EventSink(self._webhook)
        return deliver_events(feed, sink, clock=self.hand, chance=lambda: 0.5)

    def heard(self) -> list[CloudEvent]:
        return [read(*one) for one in self.sink.asked]

    def close(self) -> None:
        self._webhook.close()
        self._sealer.close()


def read(headers: dict[str, str], body: bytes) -> CloudEvent:
    """As a receiver reads it who knows CloudEvents alone. Raises where it is none."""
    event = from_structured_event(HTTPMessage(headers=headers, body=body))
    assert isinstance(event, CloudEvent)
    return event


@pytest.fixture
def feed(fresh_database: sa.Engine, tmp_path: Path) -> Iterator[Feed]:
    with serve_sink() as sink:
        made = Feed(fresh_database, tmp_path, sink)
        made.record("system.began", "system")
        made.deliver()  # from here on
        assert sink.asked == []
        yield made
        made.close()


def test_each_record_is_an_event_by_the_rules_of_cloudevents(feed: Feed) -> None:
    feed.record("node.drained", "node/gpu0017", incident="1f2e3d4c")
    feed.record("incident.opened", "incident/1f2e3d4c", rule="gpu-lost")
    assert feed.deliver() == 2
    drained, opened = feed.heard()
    assert drained.get_type() == "io.healer.node.drained.v1"
    assert drained.get_subject() == "gpu0017"
    assert drained.get_source() == "/healer/pod1"
    assert drained.get_time() == START
    assert drained.get_data()["data"] == {"incident": "1f2e3d4c"}  # type: ignore[index,call-overload]
    assert (opened.get_type(), opened.get_subject()) == ("io.healer.incident.opened.v1", "incident/1f2e3d4c")
    assert feed.deliver() == 0


def test_signature_covers_the_sent_bytes(feed: Feed) -> None:
    feed.record("node.drained", "node/gpu0017")
    feed.deliver()
    ((headers, body),) = feed.sink.asked
    assert headers["content-type"] == "application/cloudevents+json"
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + body
    made = base64.b64encode(hmac.digest(KEY, signed, "sha256")).decode()
    assert headers["webhook-signature"] == "v1," + made


def test_a_failure_is_tried_again_by_the_same_id_and_holds_the_order(feed: Feed) -> None:
    feed.record("node.drained", "node/gpu0001")
    feed.record("node.resumed", "node/gpu0001")
    feed.sink.answers.append((503, {}, b""))
    assert feed.deliver() == 0
    assert feed.deliver() == 0  # not before its time
    feed.hand.at += timedelta(seconds=10)
    assert feed.deliver() == 2
    ids = [one.get_id() for one in feed.heard()]
    assert ids[0] == ids[1] != ids[2]
    assert [one.get_type() for one in feed.heard()][1:] == [
        "io.healer.node.drained.v1",
        "io.healer.node.resumed.v1",
    ]


def test_an_event_that_the_sink_never_takes_is_passed_over(feed: Feed) -> None:
    feed.record("node.drained", "node/gpu0001")
    feed.record("node.resumed", "node/gpu0001")
    feed.sink.answers.extend([(400, {}, b"")] * 5)
    for _ in range(5):
        feed.deliver()
        feed.hand.at += timedelta(hours=1)
    assert feed.heard()[-1].get_type() == "io.healer.node.resumed.v1"
    assert len(feed.sink.asked) == 6


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param((503, {}, b""), id="503"),
        pytest.param((429, {}, b""), id="429"),
        pytest.param((500, {"content-encoding": "gzip"}, b"not gzip"), id="broken"),
    ],
)
def test_a_sink_that_is_away_for_hours_misses_nothing(
    feed: Feed, answer: tuple[int, dict[str, str], bytes]
) -> None:
    feed.record("node.drained", "node/gpu0001")
    for _ in range(40):
        feed.sink.answers.append(answer)
        assert feed.deliver() == 0
        feed.hand.at += timedelta(minutes=30)
    asked = len(feed.sink.asked)
    assert asked == 40, "each time it was due"
    assert feed.deliver() == 1
    feed.sink.answers.append((400, {}, b""))
    feed.record("node.resumed", "node/gpu0001")
    assert feed.deliver() == 0
    feed.hand.at += timedelta(hours=1)
    assert feed.deliver() == 1, "tries of before are not counted"


def test_clock_set_back_after_a_failure_delays_no_event(feed: Feed) -> None:
    """The sink had no more events for as many hours as the clock had been ahead."""
    feed.record("node.drained", "node/gpu0001")
    feed.sink.answers.append((503, {}, b""))
    assert feed.deliver() == 0
    feed.hand.at -= timedelta(hours=6)
    assert feed.deliver() == 1


def test_unreadable_answer_encoding_blocks_no_delivery(feed: Feed) -> None:
    """The sink took it: 200. What it says beyond that cannot be read."""
    feed.record("node.drained", "node/gpu0001")
    feed.record("node.resumed", "node/gpu0001")
    feed.sink.answers.append((200, {"content-encoding": "gzip"}, b"this is not gzip"))
    assert feed.deliver() == 2
    assert len(feed.sink.asked) == 2


def test_events_older_than_a_day_and_own_deliveries_are_not_sent(feed: Feed) -> None:
    feed.record("node.drained", "node/gpu0001", at=START - timedelta(hours=25))
    feed.record("message.sent", "message/1")
    feed.record("node.resumed", "node/gpu0001")
    feed.deliver()
    assert [one.get_type() for one in feed.heard()] == ["io.healer.node.resumed.v1"]
    with feed.engine.connect() as conn:
        assert conn.execute(sa.select(event_feed.c.tries)).scalar_one() == 0


def test_pages_and_tickets_are_cloudevents_too() -> None:
    with serve_sink() as sink:
        webhook = SignedWebhook(sink.url, SECRET)
        page = Message(
            id="1f2e3d4c:p0", cluster="pod1", title="P0", text="", severity=Severity.P0, page=True,
            incident="1f2e3d4c",
        )  # fmt: skip
        WebhookNotifier(webhook).send(page)
        ticket = Ticket(
            id="1f2e3d4c:ticket", cluster="pod1", node="gpu0001", incident=None, title="GPU", text="Xid 79"
        )
        WebhookTickets(webhook).send(ticket)
        webhook.close()
        events = [read(*one) for one in sink.asked]
    assert [one.get_type() for one in events] == ["healer.page.v1", "healer.ticket.v1"]
    assert [one.get_id() for one in events] == ["1f2e3d4c:p0", "1f2e3d4c:ticket"]
