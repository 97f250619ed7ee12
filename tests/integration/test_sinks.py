"""Messages and tickets on their way from the database to a real HTTP server."""

import base64
import hmac
import json
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres import outbox
from healer.adapters.postgres.tables import audit_records, messages
from healer.adapters.webhook import SignedWebhook, WebhookNotifier, WebhookTickets
from healer.engine import tell
from healer.model import IncidentState, Message, Severity, Ticket
from healer.ports.outbound import DeliveryFailed, Notifier, Tickets
from tests.support import api
from tests.support.sink import Sink, serve_sink

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef0123456789abcdef").decode()


class Hand:
    """A clock turned by hand."""

    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at

    def forward(self, seconds: float) -> None:
        self.at += timedelta(seconds=seconds)


@pytest.fixture
def sink() -> Iterator[Sink]:
    with serve_sink() as made:
        yield made


@pytest.fixture
def hand() -> Hand:
    return Hand()


def page(number: str = "1f2e3d4c:p0", **fields) -> Message:
    known = {
        "page": True,
        "cluster": "pod1",
        "title": "P0 gpu0001: GPU lost",
        "text": "Affected jobs: 4711",
        "incident": "1f2e3d4c",
    }
    return Message(id=number, severity=Severity.P0, **{**known, **fields})


def ticket(number: str = "1f2e3d4c:ticket") -> Ticket:
    return Ticket(
        id=number, cluster="pod1", node="gpu0001", incident="1f2e3d4c", title="Replace GPU 3", text="Xid 79"
    )


def put(engine: sa.Engine, *items: Message | Ticket, has_sink: bool = True) -> None:
    with engine.begin() as conn:
        for item in items:
            outbox.queue(conn, item, at=START, has_sink=has_sink)


def row(engine: sa.Engine, number: str = "1f2e3d4c:p0") -> sa.Row:
    with engine.connect() as conn:
        return conn.execute(sa.select(messages).where(messages.c.id == number)).one()


def verbs(engine: sa.Engine) -> list[str]:
    with engine.connect() as conn:
        return list(conn.scalars(sa.select(audit_records.c.verb).order_by(audit_records.c.id)))


def send(engine: sa.Engine, notifier: Notifier | None, tickets: Tickets | None, hand: Hand) -> int:
    box = outbox.PostgresOutbox(engine)
    return tell.deliver_due(box, notifier, tickets, clock=hand, chance=lambda: 0.5)


def deliver(engine: sa.Engine, sink: Sink, hand: Hand, *, timeout_s: float = 5) -> int:
    webhook = SignedWebhook(sink.url, SECRET, now=hand.now, timeout_s=timeout_s)
    try:
        return send(engine, WebhookNotifier(webhook), WebhookTickets(webhook), hand)
    finally:
        webhook.close()


# --- the webhook alone ----------------------------------------------------------------------------------


def test_the_body_is_a_cloudevent_and_the_signature_holds(sink, hand):
    WebhookNotifier(SignedWebhook(sink.url, SECRET, now=hand.now)).send(page())
    headers, body = sink.asked[0]
    assert headers["content-type"] == "application/cloudevents+json"
    event = json.loads(body)
    assert {name: event[name] for name in ("specversion", "id", "source", "type", "subject")} == {
        "specversion": "1.0", "id": "1f2e3d4c:p0", "source": "/healer/pod1",
        "type": "healer.page.v1", "subject": "incident/1f2e3d4c",
    }  # fmt: skip
    assert event["data"]["severity"] == "P0"
    signed = f"1f2e3d4c:p0.{int(START.timestamp())}.".encode() + body
    made = hmac.digest(b"0123456789abcdef0123456789abcdef", signed, "sha256")
    assert headers["webhook-signature"] == "v1," + base64.b64encode(made).decode()
    assert headers["webhook-timestamp"] == str(int(START.timestamp()))


@pytest.mark.parametrize(
    ("answer", "reference"),
    [
        ((201, {}, b'{"reference":"OPS-17"}'), "OPS-17"),
        ((200, {}, b'{"reference":17}'), "17"),
        ((201, {"location": "/tickets/17"}, b""), "/tickets/17"),
        ((200, {}, b"[not json"), "1f2e3d4c:ticket"),
        ((200, {}, '{"reference":"Störung 7"}'.encode("latin-1")), "1f2e3d4c:ticket"),
        ((200, {}, b"[" * 60_000), "1f2e3d4c:ticket"),
        ((204, {}, b""), "1f2e3d4c:ticket"),
    ],
)
def test_a_ticket_gets_the_sinks_own_name(sink, answer, reference):
    sink.answers.append(answer)
    assert WebhookTickets(SignedWebhook(sink.url, SECRET)).send(ticket()) == reference


@pytest.mark.parametrize(
    ("answer", "text", "retry_after_s"),
    [
        ((500, {}, b"oops"), "the sink answered 500 Internal Server Error", None),
        ((429, {"retry-after": "17"}, b""), "the sink answered 429 Too Many Requests", 17.0),
        (
            (503, {"retry-after": "Fri, 20 Nov 2026 03:00:30 GMT"}, b""),
            "the sink answered 503 Service Unavailable",
            30.0,
        ),
        ((429, {"retry-after": "soon"}, b""), "the sink answered 429 Too Many Requests", None),
        ((429, {"retry-after": "\xb2"}, b""), "the sink answered 429 Too Many Requests", None),
        (
            (429, {"retry-after": "Fri, 20 Nov 2026 03:00:30 +99999999999999"}, b""),
            "the sink answered 429 Too Many Requests",
            None,
        ),
        (
            (429, {"retry-after": "Fri, 31 Dec 9999 23:59:59 -2300"}, b""),
            "the sink answered 429 Too Many Requests",
            None,
        ),
        ((302, {"location": "http://127.0.0.1:1/"}, b""), "the sink answered 302 Found", None),
        ((404, {}, b""), "the sink answered 404 Not Found", None),
    ],
)
def test_every_other_answer_is_a_failure_with_the_sinks_wish(sink, hand, answer, text, retry_after_s):
    sink.answers.append(answer)
    with pytest.raises(DeliveryFailed) as failed:
        WebhookNotifier(SignedWebhook(sink.url, SECRET, now=hand.now)).send(page())
    assert (str(failed.value), failed.value.retry_after_s) == (text, retry_after_s)


def test_address_and_secret_are_never_shown(sink, caplog):
    caplog.set_level(logging.DEBUG)
    sink.answers.extend([(500, {}, b""), (204, {}, b"")])
    notifier = WebhookNotifier(SignedWebhook(sink.url, SECRET))
    with pytest.raises(DeliveryFailed) as failed:
        notifier.send(page())
    notifier.send(page())
    shown = caplog.text + str(failed.value) + repr(failed.value.__cause__)
    assert "not-to-be-told" not in shown
    assert SECRET not in shown


def test_a_sink_that_is_not_there_or_silent_is_a_failure_in_words(sink):
    with serve_sink() as gone:
        address = gone.url
    with pytest.raises(DeliveryFailed, match=r"^the sink cannot be reached: Connection refused$"):
        WebhookNotifier(SignedWebhook(address, SECRET)).send(page())
    sink.answers.append(None)
    with pytest.raises(DeliveryFailed, match=r"^the sink did not answer within 0\.2 s$"):
        WebhookNotifier(SignedWebhook(sink.url, SECRET, timeout_s=0.2)).send(page())


# --- from the database to the sink --------------------------------------------------------------------


def test_a_name_that_the_database_cannot_hold_makes_no_second_ticket(fresh_database, sink, hand):
    sink.answers.append((201, {}, b'{"reference":"OPS\\u0000-17"}'))
    put(fresh_database, ticket())
    assert deliver(fresh_database, sink, hand) == 1
    hand.forward(3600)
    assert deliver(fresh_database, sink, hand) == 0
    assert row(fresh_database, "1f2e3d4c:ticket").reference == "OPS\ufffd-17"


def test_a_message_is_queued_once_and_sent_once(fresh_database, sink, hand):
    put(fresh_database, page(), page(title="again"), ticket())
    sink.answers.extend([(204, {}, b""), (201, {}, b'{"reference":"OPS-17"}')])
    assert deliver(fresh_database, sink, hand) == 2
    assert deliver(fresh_database, sink, hand) == 0
    assert sink.ids() == ["1f2e3d4c:p0", "1f2e3d4c:ticket"]
    assert json.loads(sink.asked[0][1])["data"]["title"] == "P0 gpu0001: GPU lost"
    assert row(fresh_database).state == "sent"
    assert row(fresh_database, "1f2e3d4c:ticket").reference == "OPS-17"
    assert verbs(fresh_database) == ["message.sent", "ticket.opened"]


def test_without_a_sink_everything_goes_to_our_own_list(fresh_database, hand):
    put(fresh_database, page(), has_sink=False)
    put(fresh_database, ticket())
    assert send(fresh_database, None, None, hand) == 0
    assert row(fresh_database).state == "listed"
    assert row(fresh_database, "1f2e3d4c:ticket").state == "listed"


def test_a_message_of_a_transaction_that_failed_never_leaves(fresh_database, sink, hand):
    with fresh_database.connect() as conn:
        outbox.queue(conn, page(), at=START, has_sink=True)
        conn.rollback()
    assert deliver(fresh_database, sink, hand) == 0
    assert sink.asked == []


def test_it_is_tried_five_times_with_growing_waits_then_given_up(fresh_database, sink, hand):
    put(fresh_database, page(page=False))
    waits = []
    for _ in range(5):
        sink.answers.append((500, {}, b""))
        assert deliver(fresh_database, sink, hand) == 0
        after = row(fresh_database)
        if after.next_try_at is not None:
            waits.append((after.next_try_at - hand.at).total_seconds())
            hand.forward(waits[-1] - 0.001)
            assert deliver(fresh_database, sink, hand) == 0  # not before its time
            hand.forward(0.001)
    assert waits == [5, 30, 180, 1080]
    assert sink.ids() == ["1f2e3d4c:p0"] * 5
    assert (after.state, after.tries, after.error["text"]) == (
        "failed", 5, "the sink answered 500 Internal Server Error",
    )  # fmt: skip
    assert verbs(fresh_database) == ["message.failed"]
    hand.forward(1e6)
    assert deliver(fresh_database, sink, hand) == 0


def test_page_of_an_incident_that_is_over_is_attempted_once(fresh_database, sink, hand):
    one = api.incident(1)
    with fresh_database.begin() as conn:
        api.save_incident(conn, msgspec.structs.replace(one, state=IncidentState.resolved))
    put(fresh_database, page("late:p0", incident=one.id), page("other:p0"))
    sink.answers += [(500, {}, b""), (500, {}, b"")]
    for _ in range(5):
        deliver(fresh_database, sink, hand)
        hand.forward(60)
    assert (sink.ids().count("late:p0"), sink.ids().count("other:p0")) == (1, 2)
    assert row(fresh_database, "late:p0").state == "over"
    assert verbs(fresh_database) == ["message.sent"]


def test_a_sink_that_asks_for_a_pause_gets_it_for_all_its_messages(fresh_database, sink, hand):
    put(fresh_database, page("a:p0"), page("b:p0"))
    sink.answers.append((429, {"retry-after": "90"}, b""))
    assert deliver(fresh_database, sink, hand) == 0
    hand.forward(89)
    assert deliver(fresh_database, sink, hand) == 0
    assert sink.ids() == ["a:p0"]
    hand.forward(1)
    assert deliver(fresh_database, sink, hand) == 2
    assert (row(fresh_database, "a:p0").tries, row(fresh_database, "b:p0").tries) == (1, 1)


def test_clock_set_back_delays_no_message_that_waits(fresh_database, sink, hand):
    put(fresh_database, page())
    sink.answers.append((500, {}, b""))
    assert deliver(fresh_database, sink, hand) == 0
    hand.forward(-6 * 3600)
    assert deliver(fresh_database, sink, hand) == 1


def test_a_failing_sink_does_not_stop_the_other(fresh_database, sink, hand):
    put(fresh_database, page("a:p0"), page("b:p0"), ticket())
    sink.answers.append((500, {}, b""))
    assert deliver(fresh_database, sink, hand) == 1
    assert sink.ids() == ["a:p0", "1f2e3d4c:ticket"]


def test_new_page_does_not_wait_behind_one_that_the_sink_never_takes(fresh_database, sink, hand):
    put(fresh_database, page("a:p0"))
    sink.answers.extend([(400, {}, b""), (204, {}, b""), (400, {}, b"")])
    deliver(fresh_database, sink, hand)
    hand.forward(10)
    with fresh_database.begin() as conn:
        outbox.queue(conn, page("b:p0"), at=hand.now(), has_sink=True)
    assert deliver(fresh_database, sink, hand) == 1
    assert sink.ids() == ["a:p0", "b:p0", "a:p0"]


def test_what_is_new_goes_out_at_once_though_the_clock_of_its_writer_is_ahead(fresh_database, sink, hand):
    """Of the scheduler's, which was ten minutes behind: each page and ticket waited ten minutes."""
    put(fresh_database, page(), ticket())
    hand.forward(-600)
    assert deliver(fresh_database, sink, hand) == 2
    assert sink.ids() == ["1f2e3d4c:p0", "1f2e3d4c:ticket"]


def test_a_pause_holds_what_a_process_whose_clock_is_ahead_wrote(fresh_database, sink, hand):
    put(fresh_database, page("a:p0"), page("b:p0"))
    hand.forward(-600)
    sink.answers.append((429, {"retry-after": "90"}, b""))
    assert deliver(fresh_database, sink, hand) == 0
    hand.forward(60)
    assert deliver(fresh_database, sink, hand) == 0
    hand.forward(40)
    assert deliver(fresh_database, sink, hand) == 2


def test_a_silent_sink_costs_one_time_out_a_round(fresh_database, sink, hand):
    put(fresh_database, page("a:p0"), page("b:p0"))
    sink.answers.append(None)
    assert deliver(fresh_database, sink, hand, timeout_s=0.2) == 0
    assert row(fresh_database, "a:p0").error["text"] == "the sink did not answer within 0.2 s"
    assert row(fresh_database, "b:p0").tries == 0


class Killed(BaseException):
    """Simulates a crash of the process."""


class DiesAfterSending:
    def __init__(self, notifier: WebhookNotifier) -> None:
        self._notifier = notifier

    def send(self, message: Message) -> None:
        self._notifier.send(message)
        raise Killed


def test_a_death_between_send_and_mark_repeats_the_same_id(fresh_database, sink, hand):
    put(fresh_database, page())
    dying = DiesAfterSending(WebhookNotifier(SignedWebhook(sink.url, SECRET)))
    with pytest.raises(Killed):
        send(fresh_database, dying, None, hand)
    assert row(fresh_database).state == "due"
    assert deliver(fresh_database, sink, hand) == 0  # the claim still holds
    hand.forward(60)
    assert deliver(fresh_database, sink, hand) == 1
    assert sink.ids() == ["1f2e3d4c:p0"] * 2


def test_deaths_at_every_try_end_too(fresh_database, sink, hand):
    put(fresh_database, page(page=False))
    dying = DiesAfterSending(WebhookNotifier(SignedWebhook(sink.url, SECRET)))
    for _ in range(5):
        with pytest.raises(Killed):
            send(fresh_database, dying, None, hand)
        hand.forward(60)
    assert deliver(fresh_database, sink, hand) == 0
    assert (len(sink.asked), row(fresh_database).state) == (5, "failed")


def test_two_deliverers_send_each_message_once(fresh_database, sink, hand):
    put(fresh_database, *(page(f"{number}:p0") for number in range(20)))
    threads = [threading.Thread(target=deliver, args=(fresh_database, sink, hand)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(sink.ids()) == sorted(f"{number}:p0" for number in range(20))


def test_hostile_text_reaches_the_list_and_the_sink(fresh_database, sink, hand):
    put(fresh_database, page("x\u2028:p0", text="NVRM: \x00 \ud800"))
    assert deliver(fresh_database, sink, hand) == 1
    assert json.loads(sink.asked[0][1])["data"]["text"] == "NVRM: \ufffd \ufffd"
