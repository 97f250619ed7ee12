"""A token counts once the record of its making is sealed, and for no more than that record says."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.tables import tokens
from healer.adapters.postgres.tokens import _sealed, stored
from healer.model import Role
from healer.ports.callers import SESSION_COOKIE, NewToken
from healer.ports.request_errors import Unavailable
from tests.support.api import CLUSTER, TOKEN_KEY, Api, serving
from tests.support.seals import seal_all
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy
Served = tuple[Api, httpx.Client]


@pytest.fixture
def served(fresh_database: sa.Engine) -> Iterator[Served]:
    with serving(fresh_database) as found:
        yield found


def make(api: Api, role: Role = Role.viewer, **more: Any) -> str:
    return api.tokens.create(NewToken(role=role, name="eve", **more), now=datetime.now(UTC), by="eve")


def asked(client: httpx.Client, token: str) -> httpx.Response:
    return client.get("/api/v1/nodes", headers={"Authorization": f"Bearer {token}"})


def after_a_second(api: Api, client: httpx.Client, token: str) -> int:
    """The answer when what was cached of the token has been forgotten."""
    api.app.state.access._cache.clear()
    return asked(client, token).status_code


def test_a_new_token_is_refused_until_its_record_is_sealed(served: Served) -> None:
    api, client = served
    token = make(api, Role.admin)
    answer = asked(client, token)
    assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
    assert answer.json()["code"] == "not_sealed" and "healer worker" in answer.json()["detail"]
    assert not api.tokens.is_sealed(token)
    seal_all(api.engine)
    assert api.tokens.is_sealed(token) and after_a_second(api, client, token) == 200


def test_nor_does_a_sender_s_signal_count(served: Served) -> None:
    api, client = served
    token = api.tokens.enroll(CLUSTER, "gpu0001", nonce="a" * 32, by="munge", now=datetime.now(UTC)).token
    body = [{"cluster": CLUSTER, "node": "gpu0001", "boot_id": "b"}]
    headers = {"Authorization": f"Bearer {token}"}
    assert client.post("/api/v1/signals/heartbeat", json=body, headers=headers).status_code == 503
    seal_all(api.engine)
    api.app.state.access._cache.clear()
    assert client.post("/api/v1/signals/heartbeat", json=body, headers=headers).status_code == 202


def test_nor_does_it_while_its_look_up_is_remembered(served: Served) -> None:
    api, client = served
    headers = {"Authorization": f"Bearer {make(api, Role.signals, cluster=CLUSTER)}"}
    body = {"node": "gpu0001", "asks": True}
    answers = [client.post("/api/v1/signals/heartbeat", json=body, headers=headers) for _ in range(3)]
    assert [(one.status_code, one.json().get("code")) for one in answers] == [(503, "not_sealed")] * 3


def test_a_sign_in_link_waits_and_is_not_used_up(served: Served) -> None:
    api, client = served
    until = datetime.now(UTC).replace(year=2100)
    link = make(api, Role.admin, once=True, expires_at=until)
    sign_in = api.app.state.access.sign_in
    with pytest.raises(Unavailable, match="once the audit has sealed"):
        sign_in(link, "127.0.0.1")
    seal_all(api.engine)
    cookie = sign_in(link, "127.0.0.1")
    assert client.get("/api/v1/nodes", headers={"Cookie": f"{SESSION_COOKIE}={cookie}"}).status_code == 200
    assert sign_in(link, "127.0.0.1") is None


@pytest.mark.parametrize(
    "change",
    [
        {"role": "admin"},
        {"name": "root"},
        {"cluster": None},
        {"node": None},
        {"vouches": "kernel"},
        {"quota": 1000.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_row_that_says_more_than_its_sealed_record_is_worthless(
    served: Served, change: dict[str, Any]
) -> None:
    """The database's owner changes a role, as no part of healer ever does."""
    api, client = served
    token = make(api, cluster=CLUSTER, node="gpu0001", quota=2.0)
    seal_all(api.engine)

    def counts() -> bool:
        """The node's own token may not list all nodes: that is said to a caller, 401 to none."""
        answers: list[int] = []

        def is_answered() -> bool:
            answers.append(after_a_second(api, client, token))
            return answers[-1] in (401, 403)

        wait_until(is_answered, 10, what="the database answers in time")
        return answers[-1] == 403

    assert counts()
    this = tokens.c.id == token.split("_")[1]
    with api.engine.begin() as conn:
        before = conn.execute(sa.select(*(tokens.c[name] for name in change)).where(this)).one()._asdict()
        conn.execute(sa.update(tokens).where(this).values(change))
    assert not counts()
    with api.engine.begin() as conn:
        conn.execute(sa.update(tokens).where(this).values(before))
    assert counts()


def test_a_sign_in_link_is_no_token_and_a_row_without_a_record_is_none(served: Served) -> None:
    api, client = served
    link = make(api, Role.admin, once=True)
    secret = "heal_0badc0de_" + "x" * 43
    row = {"id": "0badc0de", "digest": stored(TOKEN_KEY, secret), "role": "admin", "name": "eve"}
    with api.engine.begin() as conn:
        conn.execute(sa.insert(tokens).values(row | {"created_at": datetime.now(UTC)}))
        conn.execute(sa.update(tokens).where(tokens.c.id == link.split("_")[1]).values(once=False))
    seal_all(api.engine)
    assert asked(client, secret).status_code == 401
    assert asked(client, link).status_code == 401


def test_many_refusals_do_not_slow_a_look_up(served: Served) -> None:
    """Each has the token's subject, and the planner may think that any subject is frequent."""
    api, _ = served
    fill = (
        "INSERT INTO audit_records (cluster, at, actor, verb, subject, data) SELECT 'pod1', now(), 'eve', "
        "'access.refused', :subject, '{}' FROM generate_series(1, 20000)"
    )
    with api.engine.begin() as conn:
        conn.execute(sa.text(fill), {"subject": "token/0"})
        token = make(api)
        identity = token.split("_")[1]
    seal_all(api.engine)
    with api.engine.begin() as conn:
        conn.execute(sa.text(fill), {"subject": f"token/{identity}"})
        conn.execute(sa.text("ANALYZE audit_records"))
        find = _sealed(identity)
        text = str(find.compile(api.engine, compile_kwargs={"literal_binds": True}))
        plan = "\n".join(conn.scalars(sa.text(f"EXPLAIN (ANALYZE, BUFFERS OFF) {text}")))
    assert "Index Scan using audit_records_subject" in plan and "Rows Removed" not in plan, plan
    assert api.tokens.is_sealed(token)


@pytest.mark.parametrize(
    "undone", ["revoked_at = NULL", "used_at = NULL", "expires_at = NULL", "expires_at = now() + '1 year'"]
)
def test_a_token_that_ended_stays_so(served: Served, undone: str) -> None:
    """Of a row the API's role may update these columns, so its statements alone must not bring one back."""
    api, _ = served
    now = datetime.now(UTC)
    token = make(api, Role.admin, once=True, expires_at=now + timedelta(minutes=1))
    identity = token.split("_")[1]
    seal_all(api.engine)
    assert api.app.state.access.sign_in(token, "127.0.0.1")
    assert api.tokens.revoke(identity, by="carol", now=now)
    with api.engine.begin() as conn, pytest.raises(sa.exc.ProgrammingError, match="stays ended"):
        conn.execute(sa.text(f"UPDATE tokens SET {undone} WHERE id = :id"), {"id": identity})
    with api.engine.begin() as conn:
        sooner = sa.text("UPDATE tokens SET expires_at = expires_at - interval '1 min' WHERE id = :id")
        assert conn.execute(sooner, {"id": identity}).rowcount == 1
