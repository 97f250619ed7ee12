"""Service accounts against a real API and database."""

from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.engine import alone, make_engine
from healer.adapters.postgres.roles import login_url
from healer.adapters.postgres.tables import tokens
from healer.adapters.postgres.token_book import PostgresTokenBook, accounts_ending
from healer.engine.token_making import checked_token, successor
from healer.model import Role
from healer.ports.callers import NewToken
from healer.ports.service_accounts import ROUTE_GROUPS, TokenRow, id_in
from tests.support.api import Api
from tests.support.ledgers import lock_waits
from tests.support.seals import seal_all
from tests.support.wait import wait_until
from tests.system.security.test_roles import MATRIX, content

Served = tuple[Api, httpx.Client]
DAY = timedelta(days=1)


def made(api: Api, name: str = "ann/ci", role: Role = Role.operator, **fields: Any) -> str:
    now = datetime.now(UTC)
    new = checked_token(NewToken(role=role, name=name, **fields), now)
    secret = api.tokens.create(new, now=now, by="test")
    seal_all(api.engine)
    return secret


def bearer(secret: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {secret}"}


def group_of(path: str) -> str:
    return path.removeprefix("/api/v1").split("/")[1].partition("?")[0]


def test_the_groups_are_those_of_the_routes() -> None:
    """But for sessions, which are a person's."""
    groups = {group_of(path) for _, path, _, _ in MATRIX} | {"events"}
    assert groups - {"sessions"} == set(ROUTE_GROUPS)


@pytest.mark.parametrize("group", ROUTE_GROUPS)
def test_an_account_reaches_the_routes_that_it_was_made_for_and_no_other(served: Served, group: str) -> None:
    """Each group with each role that any of its routes needs."""
    api, client = served
    for role in {least for _, path, _, least in MATRIX if group_of(path) == group} or {Role.viewer}:
        headers = bearer(made(api, role=role, routes=(group,)))
        for method, path, body, least in MATRIX:
            if least is not role:
                continue
            answer = client.request(method, path, headers=headers, **content(body))
            if group_of(path) == group:
                assert answer.status_code not in {401, 403}, (group, path, answer.text)
            else:
                assert answer.status_code == 403, (group, path, answer.text)


def test_an_account_never_approves_even_a_run_of_another(served: Served) -> None:
    api, client = served
    headers = bearer(made(api, role=Role.admin))
    answer = client.post("/api/v1/runs/none/approve", headers=headers, json={"reason": "x"})
    assert answer.status_code == 404  # which run it is comes first
    started = client.post(
        "/api/v1/playbooks/drain/runs",
        headers=api.headers("operator", name="bob"),
        json={"node": "gpu0001", "reason": "x"},
    )
    run = started.json()["id"]
    answer = client.post(f"/api/v1/runs/{run}/approve", headers=headers, json={"reason": "x"})
    assert (answer.status_code, "a person must approve" in answer.text) == (403, True)


def test_a_changed_secret_is_refused_before_the_database_is_asked(served: Served) -> None:
    api, client = served
    secret = made(api)
    client.get("/api/v1/nodes", headers=bearer(secret))
    asked: list[sa.Connection] = []
    sa.event.listen(api.engine, "before_cursor_execute", lambda conn, *_: asked.append(conn))
    wrong = secret[:-1] + ("a" if secret[-1] != "a" else "b")
    assert client.get("/api/v1/nodes", headers=bearer(wrong)).status_code == 401
    assert asked == []


def test_last_use_is_noted_and_two_requests_are_one_write(served: Served) -> None:
    api, client = served
    secret = made(api)
    assert api.tokens.listed(person="ann")[0].last_used_at is None
    client.get("/api/v1/nodes", headers=bearer(secret))
    before = datetime.now(UTC)
    client.get("/api/v1/nodes", headers=bearer(secret))
    wait_until(lambda: api.tokens.listed(person="ann")[0].last_used_at, what="the use is written")
    used_at = api.tokens.listed(person="ann")[0].last_used_at
    assert used_at is not None and used_at <= before


def test_both_count_after_a_rotation_until_the_old_one_ends(served: Served) -> None:
    api, client = served
    old, now = made(api, routes=("nodes",)), datetime.now(UTC)
    rotated = api.tokens.rotate(
        id_in(old), lambda row: successor(row, now), by="ann", now=now, ends=now + timedelta(seconds=3)
    )
    seal_all(api.engine)
    new = bearer(rotated.token)
    assert client.get("/api/v1/nodes", headers=bearer(old)).status_code == 200
    assert client.get("/api/v1/nodes", headers=new).status_code == 200
    assert client.get("/api/v1/runs", headers=new).status_code == 403
    wait_until(
        lambda: client.get("/api/v1/nodes", headers=bearer(old)).status_code == 401, what="the old one ends"
    )
    assert client.get("/api/v1/nodes", headers=new).status_code == 200


def test_all_service_accounts_of_one_owner_end_at_once(served: Served) -> None:
    api, client = served
    own, others = [made(api, "ann/ci"), made(api, "ann/cd")], made(api, "anna/ci")
    person = api.token("operator", name="ann")
    ended = api.tokens.revoke_accounts("ann", by="bob", now=datetime.now(UTC), reason="left")
    assert {row.name for row in ended} == {"ann/ci", "ann/cd"}
    for secret in own:
        wait_until(
            lambda secret=secret: client.get("/api/v1/nodes", headers=bearer(secret)).status_code == 401,
            what="it has ended",
        )
    for secret in (others, person):
        assert client.get("/api/v1/nodes", headers=bearer(secret)).status_code == 200


@pytest.mark.parametrize("ending", ["person", "accounts"])
def test_what_is_rotated_while_its_person_is_ended_ends_too(fresh_database: sa.Engine, ending: str) -> None:
    book = PostgresTokenBook(fresh_database, "pod1", b"k" * 32)
    now = datetime.now(UTC)
    old = book.create(checked_token(NewToken(role=Role.operator, name="ann/ci"), now), now=now, by="test")
    end = {
        "person": lambda: book.end_person("ann", by="bob", now=now, reason="left"),
        "accounts": lambda: book.revoke_accounts("ann", by="bob", now=now),
    }
    with ThreadPoolExecutor(1) as pool, alone(fresh_database).connect() as looking:
        begun: list[Future[object]] = []

        def succeed(row: TokenRow) -> NewToken:
            begun.append(pool.submit(end[ending]))
            wait_until(lambda: lock_waits(looking) == 1, 20, what="the end waits for the rotation")
            return successor(row, now)

        book.rotate(id_in(old), succeed, by="ann", now=now, ends=now + DAY)
        begun[0].result(20)
    assert book.listed(person="ann", in_force_at=now) == []


def test_a_person_sees_and_ends_his_own_and_an_admin_all(served: Served) -> None:
    api, client = served
    account, foreign = id_in(made(api)), id_in(made(api, "bob/ci"))
    ann, root = api.headers("operator", name="ann"), api.headers("admin", name="root")

    def names(headers: dict[str, str], **query: str) -> set[str]:
        answer = client.get("/api/v1/tokens", headers=headers, params=query).json()
        assert "digest" not in str(answer)
        return {row["name"] for row in answer["items"]}

    assert names(ann) == {"ann", "ann/ci"}
    assert names(root) >= {"ann", "ann/ci", "bob/ci", "root"}
    assert names(root, person="bob") == {"bob/ci"}
    revoke = "/api/v1/tokens/{}/revoke"
    body = {"reason": "leaked"}
    assert client.post(revoke.format(foreign), headers=ann, json=body).status_code == 404
    ended = [client.post(revoke.format(account), headers=ann, json=body) for _ in range(2)]
    assert [answer.status_code for answer in ended] == [200, 200], "the first answer may have been lost"
    assert ended[0].json() == ended[1].json()
    assert names(ann) == {"ann"} and names(ann, ended="true") == {"ann", "ann/ci"}
    assert client.post(revoke.format(foreign), headers=root, json=body).status_code == 200


@pytest.mark.parametrize(
    "row",
    [
        {"role": "operator", "expires_at": datetime(2027, 1, 1, tzinfo=UTC)},
        {"role": "viewer", "expires_at": None},
        {"role": "viewer", "once": True},
        {"role": "viewer", "name": "bob/ci"},
    ],
)
def test_the_database_refuses_what_is_no_account(served: Served, row: dict[str, Any]) -> None:
    api, _ = served
    began = datetime(2026, 9, 1, tzinfo=UTC)
    values = {"id": "x", "digest": b"x", "name": "ann/ci", "owner": "ann", "created_at": began}
    with pytest.raises(sa.exc.IntegrityError, match="tokens_account"), api.engine.begin() as conn:
        conn.execute(sa.insert(tokens).values(values | {"expires_at": began + DAY} | row))


def test_the_scheduler_reads_which_accounts_end_and_no_secret(served: Served) -> None:
    api, _ = served
    made(api)
    api.token("viewer", name="ann")
    scheduler = make_engine(
        login_url(api.engine.url.render_as_string(hide_password=False), "healer_scheduler")
    )
    try:
        assert [row.name for row in accounts_ending(scheduler, datetime.now(UTC))] == ["ann/ci"]
        with pytest.raises(sa.exc.ProgrammingError, match="permission denied"), scheduler.connect() as conn:
            conn.execute(sa.select(tokens.c.digest)).all()
    finally:
        scheduler.dispose()
