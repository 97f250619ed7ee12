"""Sign-in links and sessions: once, revocable, and useless to another site."""

from datetime import timedelta

import httpx
import pytest

from healer.api.access import Access, csrf_of
from healer.api.credential_budget import BURST, OverBudget
from tests.support.api import Api
from tests.support.wait import wait_until

Served = tuple[Api, httpx.Client]
PAUSE = "/api/v1/pauses"


PEER = "127.0.0.1"


def session(api: Api) -> tuple[Access, str]:
    access: Access = api.app.state.access
    opened = access.sign_in(api.token("operator", once=True, name="ann"), PEER)
    assert opened is not None
    return access, opened


def test_a_link_opens_one_session_and_no_second(served: Served) -> None:
    api, client = served
    access: Access = api.app.state.access
    link = api.token("viewer", once=True)
    first, second = access.sign_in(link, PEER), access.sign_in(link, PEER)
    assert first is not None
    assert second is None
    assert client.get("/api/v1/nodes", headers={"Authorization": f"Bearer {link}"}).status_code == 401
    assert client.get("/api/v1/nodes", headers={"Cookie": f"healer_session={first}"}).status_code == 200


def test_an_expired_or_revoked_link_opens_nothing(served: Served) -> None:
    api, _ = served
    access: Access = api.app.state.access
    now = api.services.clock.now()
    late = api.token("viewer", once=True, expires_at=now - timedelta(seconds=1))
    gone = api.token("viewer", once=True)
    api.tokens.revoke(gone.split("_")[1], by="test", now=now)
    assert access.sign_in(late, PEER) is None
    assert access.sign_in(gone, PEER) is None


def test_a_wrong_link_costs_its_address_an_attempt_each_time(served: Served) -> None:
    api, _ = served
    access: Access = api.app.state.access
    with pytest.raises(OverBudget):  # the budget earns one every 2 s while this goes on
        for _ in range(10 * int(BURST)):
            assert access.sign_in("heal_0123abcd_the-same-again", PEER) is None
    assert access.sign_in(api.token("viewer", once=True), "192.0.2.2") is not None


def test_an_ordinary_token_is_no_link(served: Served) -> None:
    api, _ = served
    access: Access = api.app.state.access
    assert access.sign_in(api.token("viewer"), PEER) is None


def test_a_session_acts_only_from_its_own_pages(served: Served) -> None:
    api, client = served
    _, cookie = session(api)
    client.cookies.set("healer_session", cookie)
    good = {"X-Healer-CSRF": csrf_of(cookie), "Sec-Fetch-Site": "same-origin"}
    body = {"reason": "x"}
    assert client.post(PAUSE, json=body).status_code == 403
    assert client.post(PAUSE, json=body, headers={"X-Healer-CSRF": good["X-Healer-CSRF"]}).status_code == 403
    assert client.post(PAUSE, json=body, headers={**good, "Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert client.post(PAUSE, json=body, headers={**good, "X-Healer-CSRF": "x"}).status_code == 403
    answer = client.post(PAUSE, json=body, headers=good)
    assert answer.status_code == 201
    assert answer.json()["by"] == "ann"
    by_origin = {"X-Healer-CSRF": good["X-Healer-CSRF"], "Origin": str(client.base_url).rstrip("/")}
    assert client.post(PAUSE, json=body, headers=by_origin).status_code == 201


def test_signing_out_and_revoking_end_a_session(served: Served) -> None:
    api, client = served
    access, cookie = session(api)
    access.sign_out(cookie)
    assert client.get("/api/v1/nodes", headers={"Cookie": f"healer_session={cookie}"}).status_code == 401
    access, cookie = session(api)
    caller = access.session(cookie, PEER)
    assert caller is not None
    api.tokens.revoke(caller.id, by="test", now=api.services.clock.now())
    wait_until(lambda: access.session(cookie, PEER) is None, 1.5)
