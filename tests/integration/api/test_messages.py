"""The messages that were sent, and the replay of dead letters: through the API and the command line."""

import json
from datetime import UTC, datetime, timedelta

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from healer.adapters.postgres import outbox
from healer.adapters.postgres.tables import audit_records, deliveries, delivery_log, incidents, messages
from healer.commands.cli import build
from healer.model import Message, Role, Severity
from tests.support.api import CLUSTER, Api, incident, save_incident, snapshot

AT = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
ID = "00000001" + "a" * 24
PAGE = f"{ID}:p0"


@pytest.fixture
def paged(served: tuple[Api, httpx.Client]) -> tuple[Api, httpx.Client]:
    """A page that the webhook took, the pager did not, and Slack did."""
    api, _ = served
    with api.engine.begin() as conn:
        save_incident(conn, incident(1))
        page = Message(
            id=PAGE,
            cluster=CLUSTER,
            title="P0 gpu0001",
            text="x",
            severity=Severity.P0,
            page=True,
            incident=ID,
        )
        outbox.queue(conn, page, at=AT, has_sink=True)
        conn.execute(sa.update(messages).values(state="sent", tries=1, next_try_at=None))
        for channel, state, error in (("night", "failed", "PagerDuty answered 500"), ("ops", "sent", None)):
            number = conn.execute(
                sa.insert(deliveries)
                .values(
                    cluster=CLUSTER, channel=channel, message=PAGE, thread=ID, alarm="a", how="page",
                    stage="opened", at=AT + timedelta(seconds=1), state=state, tries=5, error=error,
                    ended_at=AT + timedelta(minutes=30),
                )
                .returning(deliveries.c.id)
            ).scalar_one()  # fmt: skip
            for outcome in ("begun", state):
                log = {"delivery": number, "at": AT, "outcome": outcome, "text": error or ""}
                conn.execute(sa.insert(delivery_log).values(**log))
    return served


def listed(paged: tuple[Api, httpx.Client], query: str = "") -> list[dict]:
    api, http = paged
    answer = http.get(f"/api/v1/messages{query}", headers=api.headers(Role.viewer))
    assert answer.status_code == 200, answer.text
    return answer.json()["items"]


def retried(paged: tuple[Api, httpx.Client], number: str = PAGE, role: Role = Role.responder, **body: str):
    api, http = paged
    path = f"/api/v1/messages/{number}/retry"
    return http.post(
        path, json={"reason": "the pager is back", **body}, headers=api.headers(role, name="anna")
    )


def test_each_sink_of_a_message_is_a_row_with_its_tries(paged) -> None:
    rows = listed(paged)
    assert [(one["channel"], one["state"]) for one in rows] == [
        ("ops", "sent"), ("night", "failed"), ("webhook", "sent"),
    ]  # fmt: skip
    (dead,) = listed(paged, "?state=failed")
    assert (dead["message"], dead["incident"], dead["how"], dead["error"]) == (
        PAGE, ID, "page", "PagerDuty answered 500",
    )  # fmt: skip
    assert [one["outcome"] for one in dead["tries_log"]] == ["begun", "failed"]
    assert [one["channel"] for one in listed(paged, "?channel=ops")] == ["ops"]
    assert listed(paged, "?incident=other") == []
    paged[0].snapshots.put(msgspec.structs.replace(snapshot(), cluster="other"))
    assert listed(paged, "?cluster=other") == []


def test_the_list_has_pages(paged) -> None:
    api, http = paged
    seen, query = [], "?limit=1"
    while query:
        page = http.get(f"/api/v1/messages{query}", headers=api.headers(Role.viewer)).json()
        seen += [one["channel"] for one in page["items"]]
        query = f"?limit=1&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    assert seen == ["ops", "night", "webhook"]


def test_a_dead_letter_is_due_again_and_the_audit_says_who_asked(paged) -> None:
    api, _ = paged
    answer = retried(paged)
    assert answer.status_code == 200, answer.text
    (one,) = answer.json()["items"]
    assert (one["channel"], one["state"], one["tries"]) == ("night", "due", 0)
    assert one["tries_log"][-1]["text"] == "by anna: the pager is back"
    with api.engine.connect() as conn:
        record = conn.execute(sa.select(audit_records).where(audit_records.c.verb == "message.retried")).one()
    assert (record.actor, record.data["channels"]) == ("anna", ["night"])
    assert retried(paged).status_code == 409  # it is under way


def test_retry_of_a_message_that_cannot_be_retried_is_refused(paged) -> None:
    assert retried(paged, "nothing").status_code == 404
    assert retried(paged, channel="ops").status_code == 409
    assert retried(paged, role=Role.viewer).status_code == 403
    assert retried(paged, reason="").status_code == 422
    assert [one["state"] for one in listed(paged, "?channel=night")] == ["failed"]


@pytest.mark.parametrize("says", ["opened", "acknowledged", "resolved"])
def test_news_that_is_no_longer_true_is_not_sent_again(paged, says: str) -> None:
    """A pager would open an alert of an incident that is over, or close that of one that is open again."""
    api, _ = paged
    now_over = says != "resolved"
    with api.engine.begin() as conn:
        doc = conn.execute(sa.select(messages.c.doc)).scalar_one() | {"about": {"stage": says}}
        conn.execute(sa.update(messages).values(doc=doc))
        conn.execute(sa.update(deliveries).values(stage=says))
        conn.execute(sa.update(incidents).values(state="resolved" if now_over else "open"))
    answer = retried(paged)
    why = "is over by now" if now_over else "is open again"
    assert (answer.status_code, why in answer.json()["detail"]) == (409, True), answer.text
    assert [one["state"] for one in listed(paged, "?channel=night")] == ["failed"]
    with api.engine.begin() as conn:
        conn.execute(sa.update(incidents).values(state="open" if now_over else "resolved"))
    assert retried(paged).status_code == 200


def test_a_message_of_the_webhook_is_retried_too(paged) -> None:
    api, _ = paged
    with api.engine.begin() as conn:
        conn.execute(sa.update(messages).values(state="failed", tries=5, error="the sink answered 500"))
    answer = retried(paged, channel="webhook")
    assert [one["channel"] for one in answer.json()["items"]] == ["webhook"]
    with api.engine.connect() as conn:
        row = conn.execute(sa.select(messages)).one()
    assert (row.state, row.tries) == ("due", 0)


def test_incident_shows_where_it_was_announced(paged) -> None:
    api, http = paged
    found = http.get(f"/api/v1/incidents/{ID}", headers=api.headers(Role.viewer)).json()
    (entry,) = [one for one in found["timeline"] if one["kind"] == "message"]
    assert {one["channel"]: one["state"] for one in entry["data"]["channels"]} == {
        "night": "failed", "ops": "sent",
    }  # fmt: skip


def test_the_command_line_lists_and_retries(paged, monkeypatch: pytest.MonkeyPatch) -> None:
    api, http = paged
    monkeypatch.setenv("HEALER_URL", str(http.base_url))
    monkeypatch.setenv("HEALER_TOKEN", api.token(Role.responder, name="anna"))
    shell = CliRunner()
    found = shell.invoke(build(), ["messages", "--state", "failed", "--json"])
    assert [one["channel"] for one in json.loads(found.output)] == ["night"]
    table = shell.invoke(build(), ["messages"]).output
    assert "PagerDuty answered 500" in table
    done = shell.invoke(build(), ["messages", "retry", PAGE, "--reason", "the pager is back"])
    assert done.output == f"{PAGE} will be sent to night again\n"
    assert [one["state"] for one in listed(paged, "?channel=night")] == ["due"]
