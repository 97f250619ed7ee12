"""From the settings to the ticket system: what is wired, what `healer doctor` says, what leaves."""

from collections.abc import Callable
from datetime import UTC, datetime

import pytest
import sqlalchemy as sa

from healer.adapters.postgres import outbox
from healer.adapters.postgres.tables import messages
from healer.bootstrap.doctor_checks import check_tickets
from healer.bootstrap.messaging import delivery, tickets
from healer.model import Message, Severity, Ticket, TicketStage
from healer.model.routes import Notifications
from healer.settings import Settings, load
from tests.support import desks
from tests.support.desks import TOKEN, USER, Desk, serve_desk
from tests.support.sink import serve_sink

MADE: dict[str, tuple[Callable[[], Desk], dict[str, str], str]] = {
    "jira-cloud": (
        lambda: desks.Jira(cloud=True),
        {"HEALER_TICKETS": "jira", "HEALER_TICKETS_PROJECT": "OPS", "HEALER_TICKETS_USER": USER},
        "Jira Cloud: can create a Task in OPS",
    ),
    "jira-dc": (
        lambda: desks.Jira(cloud=False),
        {"HEALER_TICKETS": "jira", "HEALER_TICKETS_PROJECT": "OPS", "HEALER_TICKETS_TYPE": "Bug"},
        "Jira Data Center: can create a Bug in OPS",
    ),
    "github": (
        desks.GitHub,
        {"HEALER_TICKETS": "github", "HEALER_TICKETS_PROJECT": "site/repairs"},
        "GitHub: can create issues in site/repairs",
    ),
    "servicenow": (
        desks.ServiceNow,
        {"HEALER_TICKETS": "servicenow", "HEALER_TICKETS_USER": USER, "HEALER_TICKETS_CLOSE": "Fixed"},
        "ServiceNow: reads incident; can create tickets through the role itil",
    ),
}


def settings(desk: Desk | None, **environ: str) -> Settings:
    if desk is not None:
        environ = {"HEALER_TICKETS_URL": desk.url, "HEALER_TICKETS_TOKEN": TOKEN} | environ
    return load(environ, which=lambda _: None)


@pytest.mark.parametrize("name", MADE)
def test_a_system_that_is_set_gets_the_tickets_and_their_end(name: str, fresh_database: sa.Engine) -> None:
    make, environ, words = MADE[name]
    with serve_desk(make()) as desk:
        known = settings(desk, **environ)
        assert [(one.name, one.ok, one.text) for one in check_tickets(known)] == [("tickets", True, words)]
        now = datetime.now(UTC)
        for stage in (TicketStage.opened, TicketStage.closed):
            number = "1f2e:ticket" if stage is TicketStage.opened else "1f2e:ticket:closed"
            one = Ticket(
                id=number, cluster="pod1", node="gpu1", incident="1f2e", title="t", text="x", stage=stage
            )
            with fresh_database.begin() as conn:
                outbox.queue(conn, one, at=now, has_sink=True)
        links = Notifications(console_url="https://healer.example/")
        for deliver in delivery(known, fresh_database, lambda: links):
            deliver()
        assert (len(desk.texts()), desk.open_tickets(), desk.complaints) == (1, 0, [])
        assert desk.texts()[0].count("https://healer.example/incidents/1f2e") == 1
        if isinstance(desk, desks.ServiceNow):
            assert desk.records[0]["close_code"] == "Fixed"
    with fresh_database.connect() as conn:
        assert set(conn.scalars(sa.select(messages.c.state))) == {"sent"}


def test_page_waits_for_no_ticket(fresh_database: sa.Engine) -> None:
    """A ticket may take its system 45 s."""
    make, environ, _ = MADE["jira-dc"]
    page = Message(id="1f2e:p0", cluster="pod1", title="t", text="x", severity=Severity.P0, page=True)
    one = Ticket(id="1f2e:ticket", cluster="pod1", node="gpu1", incident="1f2e", title="t", text="x")
    with serve_desk(make()) as desk, serve_sink() as sink:
        known = settings(desk, **environ, HEALER_NOTIFY_WEBHOOK_URL=sink.url)
        with fresh_database.begin() as conn:
            for item in (one, page):
                outbox.queue(conn, item, at=datetime.now(UTC), has_sink=True)
        messages_go, tickets_go = delivery(known, fresh_database)
        messages_go()
        assert (sink.ids(), desk.texts()) == (["1f2e:p0"], [])
        tickets_go()
        assert (sink.ids(), len(desk.texts())) == (["1f2e:p0"], 1)


@pytest.mark.parametrize("name", MADE)
def test_doctor_says_what_is_wrong_and_how_to_mend_it(name: str) -> None:
    make, environ, _ = MADE[name]
    with serve_desk(make()) as desk:
        (found,) = check_tickets(settings(desk, **environ | {"HEALER_TICKETS_TOKEN": "wrong"}))
    assert not found.ok
    assert "answered 401 Unauthorized" in found.text
    assert "HEALER_TICKETS_*" in found.repair
    (gone,) = check_tickets(settings(desk, **environ))
    assert "cannot be reached: Connection refused" in gone.text


def test_without_a_ticket_system_nothing_is_asked() -> None:
    assert check_tickets(settings(None)) == []
    assert tickets(settings(None)) is None
    hook = settings(None, HEALER_TICKET_WEBHOOK_URL="https://x.example/not-to-be-told")
    (found,) = check_tickets(hook)
    assert found.ok and "not-to-be-told" not in found.text
