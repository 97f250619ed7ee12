"""What becomes of a delivery that failed, and of one whose thread channels know; without a database."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from healer.engine.tell import END_TRIES, MAX_TRIES, alarm_of, outcome_of_failure, wait_after
from healer.model import About, DeliveryState, Manner, Message, Severity
from healer.ports.outbound import Attempt, DeliveryFailed

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


def attempt(tries: int, *, page: bool = False) -> Attempt:
    return Attempt(id=1, cluster="pod1", subject="message/m", doc={}, at=NOW, page=page, tries=tries)


def test_it_is_tried_again_until_the_last_try() -> None:
    error = DeliveryFailed("the sink answered 500")
    waits = [
        outcome_of_failure(attempt(tries), error, NOW, 0.5).next_try_at for tries in range(1, MAX_TRIES + 1)
    ]
    assert waits == [*(NOW + timedelta(seconds=one) for one in (5, 30, 180, 1080)), None]
    assert outcome_of_failure(attempt(MAX_TRIES), error, NOW, 0.5).state is DeliveryState.failed


def test_page_is_tried_for_a_day_and_never_an_hour_apart() -> None:
    error = DeliveryFailed("the sink answered 500")
    at, tries = NOW, 1
    while (failed := outcome_of_failure(attempt(tries, page=True), error, at, 0.5)).next_try_at is not None:
        assert failed.next_try_at - at <= timedelta(minutes=18)
        at, tries = failed.next_try_at, tries + 1
    assert timedelta(days=1) <= at - NOW < timedelta(days=1.1)


def test_ticket_is_tried_for_a_week_unless_its_system_refuses_it() -> None:
    late = msgspec.structs.replace(attempt(MAX_TRIES), subject="ticket/t")
    away, refused = DeliveryFailed("Jira answered 500"), DeliveryFailed("Jira answered 400", refused=True)
    assert outcome_of_failure(late, away, NOW, 0.5).state is DeliveryState.due
    assert outcome_of_failure(late, refused, NOW, 0.5).state is DeliveryState.failed
    last = msgspec.structs.replace(late, tries=END_TRIES)
    assert outcome_of_failure(last, away, NOW, 0.5).state is DeliveryState.failed


@pytest.mark.parametrize(("may_end", "state"), [(True, DeliveryState.failed), (False, DeliveryState.due)])
def test_refused_delivery_fails_or_stays_due(may_end: bool, state: DeliveryState) -> None:
    refused = DeliveryFailed("invalid_auth", refused=True)
    outcome = outcome_of_failure(attempt(1), refused, NOW, 0.5, may_end=may_end)
    assert (outcome.state, outcome.word, outcome.text) == (state, "refused", "invalid_auth")


def test_a_sink_gets_the_pause_that_it_wants_but_an_hour_at_most() -> None:
    for wish, held_s in ((90.0, 90), (86_400.0, 3600)):
        outcome = outcome_of_failure(attempt(1), DeliveryFailed("busy", wish), NOW, 0.5)
        assert outcome.held_until == outcome.next_try_at == NOW + timedelta(seconds=held_s)
    assert wait_after(1, 1.0, 0.5) == 5.0


def test_page_after_a_mere_notice_is_not_a_repeat() -> None:
    one = Message(
        id="m", cluster="pod1", title="t", text="x", severity=Severity.P0, page=True, about=About(alarm="a")
    )
    assert alarm_of(one, Manner.page) != alarm_of(one, Manner.channel)
