"""The button of a site whose proxy signs people in: the route, from the proxy and from others."""

import dataclasses
from collections.abc import Callable
from datetime import UTC, datetime

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from healer.adapters.identity_provider.proxy_headers import TrustedProxy
from healer.api.app import create_app
from healer.model import Role
from healer.model.grants import AccessRules, Grant
from healer.ports.sign_in import SignIn
from healer.settings import parse_proxies
from tests.support.api import Api
from tests.support.persons import with_console
from tests.support.seals import seal_all

SECRET = "a secret of tests"
SAID = {"X-Healer-Proxy-Secret": SECRET, "X-Forwarded-User": "ann", "X-Forwarded-Groups": "ops, staff"}
Press = Callable[..., httpx.Response]
Sent = dict[str, str] | list[tuple[str, str]]


@pytest.fixture
def press(fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Press:
    """Presses the button from an address, with headers."""
    api = Api(fresh_database)
    grants = (Grant(name="ops", role=Role.operator, groups=("ops",)),)
    api.rules = msgspec.structs.replace(api.rules, access=AccessRules(grants=grants))
    wait = api.people.wait_for_seal

    def sealed(token: str) -> bool:
        seal_all(api.engine)
        return wait(token)

    monkeypatch.setattr(api.people, "wait_for_seal", sealed)
    proxy = TrustedProxy(parse_proxies("192.0.2.1"), SECRET, lambda: datetime.now(UTC))
    services = dataclasses.replace(api.services, sign_in=SignIn(proxy=proxy))
    app = with_console(create_app(services), services)

    def pressed(headers: Sent, address: str = "192.0.2.1") -> httpx.Response:
        client = TestClient(app, base_url="http://healer", client=(address, 1), follow_redirects=False)
        return client.post("/auth/proxy", data={"next": "/runs"}, headers=headers)

    return pressed


def test_person_named_by_the_proxy_gets_a_session(press: Press) -> None:
    answer = press(SAID)
    assert (answer.status_code, answer.headers["location"]) == (303, "/runs")
    assert "healer_session=" in answer.headers["set-cookie"]


@pytest.mark.parametrize(
    ("headers", "address"),
    [
        (SAID, "192.0.2.2"),
        (SAID | {"X-Healer-Proxy-Secret": "another"}, "192.0.2.1"),
        ({name: value for name, value in SAID.items() if "Secret" not in name}, "192.0.2.1"),
        (SAID | {"X-Forwarded-User": ""}, "192.0.2.1"),
        (SAID | {"X-Forwarded-Groups": "guests"}, "192.0.2.1"),
        (SAID | {"Sec-Fetch-Site": "cross-site"}, "192.0.2.1"),
        # What a browser sent, and a proxy that only appends its own.
        ([("X-Forwarded-Groups", "ops"), *(SAID | {"X-Forwarded-Groups": "guests"}).items()], "192.0.2.1"),
        ([("X-Forwarded-User", "root"), *SAID.items()], "192.0.2.1"),
    ],
)
def test_others_and_people_without_a_role_have_none(press: Press, headers: Sent, address: str) -> None:
    answer = press(headers, address)
    assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)
