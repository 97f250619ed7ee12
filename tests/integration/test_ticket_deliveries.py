"""Tickets on their way from the database to a ticket system, with crashes and failures on the way."""

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres import outbox
from healer.adapters.postgres.tables import audit_records, messages
from healer.adapters.tickets.calls import Access
from healer.adapters.tickets.desk import DeskTickets
from healer.adapters.tickets.github import GitHubDesk
from healer.adapters.tickets.jira import JiraDesk
from healer.engine import tell
from healer.model import Ticket, TicketStage
from healer.ports.outbound import Tickets
from healer.sim.sim_clock import SimClock
from healer.text import Said, from_stored, in_language, say, to_stored
from tests.support.desks import TOKEN, GitHub, Jira, serve_desk

START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
KEY = "1f2e3d4c"


@pytest.fixture
def jira() -> Iterator[Jira]:
    with serve_desk(Jira(cloud=False)) as served:
        assert isinstance(served, Jira)
        yield served


@pytest.fixture
def clock() -> SimClock:
    return SimClock(START)


def sink(jira: Jira) -> Tickets:
    return DeskTickets(JiraDesk(Access(url=jira.url, project="OPS", token=TOKEN)))


def delivery(stage: TicketStage, key: str = KEY) -> Ticket:
    first = stage is TicketStage.opened
    return Ticket(
        id=f"{key}:ticket" if first else f"{key}:ticket:{stage}", cluster="pod1", node="gpu0017",
        incident=key, title="GPU 3 of gpu0017 is gone", text=f"what is {stage}", stage=stage, since=START,
    )  # fmt: skip


OPENED, UPDATED, CLOSED = map(delivery, (TicketStage.opened, TicketStage.updated, TicketStage.closed))


def put(engine: sa.Engine, *items: Ticket) -> None:
    with engine.begin() as conn:
        for number, item in enumerate(items):
            outbox.queue(conn, item, at=START + timedelta(milliseconds=number), has_sink=True)


def deliver(engine: sa.Engine, tickets: Tickets, clock: SimClock, links: tell.Links = tell.NO_LINKS) -> int:
    box = outbox.PostgresOutbox(engine)
    return tell.deliver_due(box, None, tickets, clock=clock, chance=lambda: 0.5, links=links)


def states(engine: sa.Engine) -> dict[str, tuple[str, str | None]]:
    with engine.connect() as conn:
        rows = conn.execute(sa.select(messages.c.id, messages.c.state, messages.c.reference))
        return {row.id: (row.state, row.reference) for row in rows}


def verbs(engine: sa.Engine) -> list[str]:
    with engine.connect() as conn:
        return list(conn.scalars(sa.select(audit_records.c.verb).order_by(audit_records.c.id)))


def test_all_deliveries_of_an_incident_reach_its_one_ticket_in_order(
    fresh_database: sa.Engine, jira: Jira, clock: SimClock
) -> None:
    put(fresh_database, OPENED, UPDATED, CLOSED)
    clock.advance(1)
    assert deliver(fresh_database, sink(jira), clock) == 3
    assert set(states(fresh_database).values()) == {("sent", "OPS-1")}
    assert verbs(fresh_database) == ["ticket.opened", "ticket.updated", "ticket.closed"]
    assert (len(jira.issues), jira.open_tickets()) == (1, 0)
    assert len(jira.issues["OPS-1"]["comments"]) == 2


def test_a_ticket_is_in_the_language_of_the_site(
    fresh_database: sa.Engine, jira: Jira, clock: SimClock
) -> None:
    title = say("actions.ticket_title", severity="P1", where="gpu0017", title=say("incidents.the_gpu"))
    text = say("telling.waits_since", time="03:00")
    put(fresh_database, msgspec.structs.replace(OPENED, title=title, text=text))
    clock.advance(1)
    links = tell.Links("https://healer.example", language="zh")
    assert deliver(fresh_database, sink(jira), clock, links) == 1
    fields = jira.issues["OPS-1"]["fields"]
    assert in_language(title, "zh") in fields["summary"] != str(title)
    assert in_language(text, "zh") in fields["description"]
    assert f"https://healer.example/incidents/{KEY}" in fields["description"]


def test_later_stages_wait_for_the_opening_of_their_own_ticket(
    fresh_database: sa.Engine, jira: Jira, clock: SimClock
) -> None:
    jira.answers.append((503, {}, {}))
    put(fresh_database, OPENED, CLOSED, delivery(TicketStage.opened, "other"))
    clock.advance(1)
    tickets = sink(jira)
    assert deliver(fresh_database, tickets, clock) == 0
    assert deliver(fresh_database, tickets, clock) == 1  # the other's
    assert states(fresh_database)[CLOSED.id] == ("due", None)
    clock.advance(60)
    assert deliver(fresh_database, tickets, clock) == 2
    assert (len(jira.issues), jira.open_tickets()) == (2, 1)


def test_a_search_that_lags_after_a_lost_answer_makes_no_second_ticket(
    fresh_database: sa.Engine, jira: Jira, clock: SimClock
) -> None:
    """The answer of the creation is lost, and Jira's index is behind for some seconds."""
    jira.fails["POST", "/issue"] = "taken"
    jira.indexed = False
    put(fresh_database, OPENED, CLOSED)
    clock.advance(1)
    tickets = sink(jira)
    assert deliver(fresh_database, tickets, clock) == 0
    clock.advance(59)
    assert deliver(fresh_database, tickets, clock) == 0
    jira.indexed = True
    clock.advance(2)
    assert deliver(fresh_database, tickets, clock) == 2
    assert (len(jira.issues), jira.open_tickets()) == (1, 0)


class Meanwhile:
    """While this process opens the ticket, another does what it does then."""

    def __init__(self, tickets: Tickets, other: Callable[[], object]) -> None:
        self._tickets, self._other = tickets, other

    def send(self, ticket: Ticket) -> str:
        self._other()
        return self._tickets.send(ticket)

    def check(self) -> str:
        return self._tickets.check()


def test_a_process_whose_clock_is_ahead_opens_no_second_ticket(
    fresh_database: sa.Engine, jira: Jira, clock: SimClock
) -> None:
    """By its clock the claim of the first was over as soon as it was made."""
    jira.indexed = False
    put(fresh_database, OPENED)
    ahead = SimClock(clock.now() + timedelta(minutes=10))
    tickets = sink(jira)
    first = Meanwhile(tickets, lambda: deliver(fresh_database, tickets, ahead))
    assert deliver(fresh_database, first, clock) == 1
    assert (len(jira.issues), states(fresh_database)[OPENED.id]) == (1, ("sent", "OPS-1"))


class Killed(BaseException):
    """Simulates a crash of the process."""


class DiesAfterwards:
    def __init__(self, tickets: Tickets) -> None:
        self._tickets = tickets

    def send(self, ticket: Ticket) -> str:
        self._tickets.send(ticket)
        raise Killed

    def check(self) -> str:
        return self._tickets.check()


@pytest.mark.parametrize("stage", list(TicketStage))
def test_crash_after_the_ticket_system_was_called_makes_no_second_ticket_or_note(
    stage: TicketStage, fresh_database: sa.Engine, jira: Jira, clock: SimClock
) -> None:
    put(fresh_database, OPENED)
    tickets = sink(jira)
    clock.advance(1)
    if stage is not TicketStage.opened:
        deliver(fresh_database, tickets, clock)
        put(fresh_database, delivery(stage))
    with pytest.raises(Killed):
        deliver(fresh_database, DiesAfterwards(tickets), clock)
    clock.advance(61)
    assert deliver(fresh_database, tickets, clock) == 1
    assert len(jira.issues) == 1
    assert len(jira.issues["OPS-1"]["comments"]) == (0 if stage is TicketStage.opened else 1)


def test_an_opening_that_was_given_up_is_made_good_by_what_follows_and_again_finds_it(
    fresh_database: sa.Engine, jira: Jira, clock: SimClock
) -> None:
    put(fresh_database, OPENED, CLOSED)
    tickets = sink(jira)
    for _ in range(tell.MAX_TRIES):
        jira.answers.append((403, {}, {}))
        clock.advance(3600)
        deliver(fresh_database, tickets, clock)
    assert states(fresh_database)[OPENED.id] == ("failed", None)
    clock.advance(1)
    assert deliver(fresh_database, tickets, clock) == 1
    again: dict[str, Any] = {"state": "due", "tries": 0, "next_try_at": clock.now()}
    with fresh_database.begin() as conn:
        conn.execute(sa.update(messages).where(messages.c.id == OPENED.id).values(**again))
    assert deliver(fresh_database, tickets, clock) == 1
    assert states(fresh_database)[OPENED.id] == ("sent", "OPS-1")
    assert (len(jira.issues), jira.open_tickets()) == (1, 0)


def test_tickets_wait_while_the_system_refuses_the_token(
    fresh_database: sa.Engine, jira: Jira, clock: SimClock
) -> None:
    """It expired on a Friday evening: each ticket was a dead letter after 22 minutes."""
    put(fresh_database, OPENED, CLOSED)
    tickets = sink(jira)
    for _ in range(tell.MAX_TRIES + 60):
        jira.answers.append((401, {}, {}))
        clock.advance(3600)
        assert deliver(fresh_database, tickets, clock) == 0
    clock.advance(3600)
    assert deliver(fresh_database, tickets, clock) == 2
    assert (len(jira.issues), jira.open_tickets()) == (1, 0)


def test_a_ticket_of_the_former_system_ends_with_what_to_do_and_holds_up_no_other(
    fresh_database: sa.Engine, jira: Jira, clock: SimClock
) -> None:
    with serve_desk(GitHub()) as former:
        access = Access(url=former.url, project="site/repairs", token=TOKEN)
        put(fresh_database, OPENED)
        clock.advance(1)
        assert deliver(fresh_database, DeskTickets(GitHubDesk(access)), clock) == 1
    put(fresh_database, CLOSED, delivery(TicketStage.opened, "other"))
    clock.advance(1)
    assert deliver(fresh_database, sink(jira), clock) == 1
    assert states(fresh_database)["other:ticket"] == ("sent", "OPS-1")
    with fresh_database.connect() as conn:
        row = conn.execute(sa.select(messages).where(messages.c.id == CLOSED.id)).one()
    assert (row.state, row.tries) == ("failed", 1)
    error = from_stored(row.error, Said)
    assert error.startswith("site/repairs#1 is not a ticket of Jira") and "by hand" in error


def test_two_deliverers_open_one_ticket(fresh_database: sa.Engine, jira: Jira, clock: SimClock) -> None:
    put(fresh_database, OPENED, UPDATED, CLOSED)
    clock.advance(1)
    tickets = sink(jira)

    def work() -> None:
        while any(state == "due" for state, _ in states(fresh_database).values()):
            deliver(fresh_database, tickets, clock)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(jira.issues) == 1
    assert len(jira.issues["OPS-1"]["comments"]) == 2


def test_a_row_of_an_earlier_version_is_an_opening(
    fresh_database: sa.Engine, jira: Jira, clock: SimClock
) -> None:
    put(fresh_database, OPENED)
    old = to_stored(OPENED)
    for name in ("stage", "severity", "since", "reference"):
        del old[name]
    with fresh_database.begin() as conn:
        conn.execute(sa.update(messages).values(doc=old))
    clock.advance(1)
    assert deliver(fresh_database, sink(jira), clock) == 1
    assert verbs(fresh_database) == ["ticket.opened"]
