"""All that a person holds, and its end, against a real API and database."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner

from healer.adapters.postgres.tables import inbox
from healer.adapters.token_key import KEY_FILE
from healer.api.access import digest_of
from healer.commands.cli import build
from healer.engine.token_making import checked_token
from healer.model import CommandKind, Role
from healer.ports.callers import NewToken
from tests.support.api import TOKEN_KEY, Api, incident, save_incident
from tests.support.seals import seal_all
from tests.support.wait import wait_until

Served = tuple[Api, httpx.Client]


def leaver(api: Api, client: httpx.Client) -> tuple[dict[str, str], str]:
    """Ann has a token, an account, a session, an incident, a run that waits and a pause. Her token, and the
    session's cookie."""
    ann = api.headers("operator", name="ann")
    now = datetime.now(UTC)
    api.tokens.create(checked_token(NewToken(role=Role.viewer, name="ann/ci"), now), by="ann", now=now)
    link = api.tokens.create(NewToken(role=Role.operator, name="ann", once=True), by="ann", now=now)
    seal_all(api.engine)
    cookie = f"{link.split('_')[1]}.cookie"
    until = now + timedelta(hours=1)
    assert api.tokens.sign_in(digest_of(link), digest_of(cookie), now=now, until=until)
    with api.engine.begin() as conn:
        save_incident(conn, msgspec.structs.replace(incident(1), acknowledged_by="ann"))
        save_incident(conn, msgspec.structs.replace(incident(2), acknowledged_by="bob"))
    assert client.post("/api/v1/pauses", headers=ann, json={"reason": "x"}).status_code == 201
    run = {"node": "gpu0001", "reason": "x"}
    assert client.post("/api/v1/playbooks/drain/runs", headers=ann, json=run).json()["state"] == "held"
    return ann, cookie


def test_one_command_shows_all_and_ends_it(served: Served) -> None:
    api, client = served
    ann, cookie = leaver(api, client)
    root = api.headers("admin", name="root")
    held = client.get("/api/v1/people/ann", headers=root).json()
    assert {token["name"] for token in held["tokens"]} == {"ann", "ann/ci"}
    counts = {name: len(held[name]) for name in ("tokens", "sessions", "incidents", "runs", "pauses")}
    assert counts == {"tokens": 3, "sessions": 1, "incidents": 1, "runs": 1, "pauses": 1}

    end = "/api/v1/people/ann/end"
    unnamed = client.post(end, headers=root, json={"reason": "left"})
    assert (unnamed.status_code, "1 open incident" in unnamed.text) == (422, True)
    assert client.get("/api/v1/nodes", headers=ann).status_code == 200

    ended = client.post(end, headers=root, json={"reason": "left", "to": "bob"})
    assert ended.status_code == 200, ended.text
    answer = ended.json()
    assert (answer["sessions"], answer["incidents"][0]["id"]) == (1, incident(1).id)
    assert len(answer["left"]["runs"]) == len(answer["left"]["pauses"]) == 1
    assert api.tokens.by_session(digest_of(cookie), datetime.now(UTC)) is None
    wait_until(lambda: client.get("/api/v1/nodes", headers=ann).status_code == 401, what="the token ends")
    with api.engine.connect() as conn:
        asked = conn.execute(sa.select(inbox.c.doc).where(inbox.c.kind == "command")).scalars().all()
    assert [(doc["kind"], doc["incident"], doc["data"]) for doc in asked] == [
        (CommandKind.assign, incident(1).id, {"to": "bob"})
    ]
    seal_all(api.engine)
    records = client.get("/api/v1/audit", headers=root, params={"actor": "root"}).json()["items"]
    verbs = {record["verb"] for record in records}
    assert {"person.ended", "token.revoked", "incident.assigned"} <= verbs
    # A pause holds healer back: it outlives who set it.
    assert len(client.get("/api/v1/pauses", headers=root).json()["items"]) == 1
    again = client.get("/api/v1/people/ann", headers=root).json()
    assert again["tokens"] == again["sessions"] == []


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("ann", {"to": "ann"}, 422),
        ("ann", {"to": "bob/ci"}, 422),
        ("root", {}, 409),
        ("ann%2Fci", {}, 404),
    ],
)
def test_impossible_leaver_requests_are_refused(
    served: Served, name: str, body: dict[str, str], status: int
) -> None:
    api, client = served
    root = api.headers("admin", name="root")
    answer = client.post(f"/api/v1/people/{name}/end", headers=root, json={"reason": "x", **body})
    assert answer.status_code == status, answer.text


def test_admin_of_one_cluster_cannot_offboard_anyone(served: Served) -> None:
    api, client = served
    bound = api.headers("admin", name="root", cluster="pod1")
    for answer in (
        client.get("/api/v1/people/ann", headers=bound),
        client.post("/api/v1/people/ann/end", headers=bound, json={"reason": "x"}),
    ):
        assert answer.status_code == 403


def test_the_command_line_shows_and_ends(served: Served, tmp_path: Path) -> None:
    api, client = served
    leaver(api, client)
    (tmp_path / KEY_FILE).write_text(TOKEN_KEY.hex())
    env = {
        "HEALER_URL": str(client.base_url),
        "HEALER_TOKEN": api.token("admin", name="root"),
        "HEALER_TOKEN_FILE": None,
    }

    def healer(*arguments: str) -> str:
        done = CliRunner().invoke(build(), arguments, env=env)
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    shown = healer("person", "ann")
    assert all(word in shown for word in ("service account", "session", "incident", "run", "pause"))
    ended = healer("person", "ann", "--end", "--to", "bob", "--reason", "left")
    assert "ann: 3 tokens and accounts, 1 session" in ended and "assigned to bob" in ended
    assert json.loads(healer("person", "ann", "--json"))["tokens"] == []
    refused = CliRunner().invoke(build(), ["person", "ann", "--end"], env=env)
    assert "--reason" in str(refused.exception)
