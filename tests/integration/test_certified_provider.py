"""Both ways of signing in by a certified provider, npm's oidc-provider: it has habits of its own."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urljoin, urlsplit

import pytest

from healer.adapters.identity_provider import provider_document
from healer.adapters.identity_provider.code_flow import OidcProvider
from healer.adapters.identity_provider.device_flow import DeviceFlow
from healer.adapters.identity_provider.provider_client import ProviderClient
from healer.ports.directory import Arrival
from healer.ports.sign_in import Begun, Proven, ProviderAway, SignInRefused, StillWaiting
from tests.support.certified_provider import CLIENT, SECRET, CertifiedProvider, Visitor
from tests.support.sink import Sink, serve_sink
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy
KEY = b"a key of tests".ljust(32, b".")
REDIRECT = "http://127.0.0.1:9/auth/callback"
ANN = {"sub": "s-ann", "preferred_username": "ann", "groups": ["ops", "hpc"]}


@pytest.fixture(scope="module")
def sink() -> Iterator[Sink]:
    with serve_sink() as sink:
        yield sink


@pytest.fixture(scope="module")
def at(sink: Sink) -> Iterator[CertifiedProvider]:
    provider = CertifiedProvider([ANN], redirect=REDIRECT, logout=sink.url)
    try:
        provider.start()
        yield provider
    finally:
        provider.stop()


@pytest.fixture
def client(at: CertifiedProvider) -> ProviderClient:
    return ProviderClient(at.url, (CLIENT, SECRET), lambda: datetime.now(UTC))


class Browser:
    def __init__(self, client: ProviderClient) -> None:
        self.flow, self.visitor = OidcProvider(client, REDIRECT, KEY), Visitor("s-ann")

    def sign_in(self, *, again: bool = False) -> Proven:
        begun = self.flow.begin("/runs", again=again)
        return self.finish(begun, self.back(begun))

    def back(self, begun: Begun) -> dict[str, str]:
        """What the provider's answer says: it names itself too (RFC 9207)."""
        query = dict(parse_qsl(urlsplit(self.visitor.follow(begun.url, until=REDIRECT)).query))
        return {"state": query["state"], "code": query["code"], "issuer": query["iss"]}

    def finish(self, begun: Begun, back: dict[str, str]) -> Proven:
        return self.flow.finish(begun.kept, claim="groups", **back)


def test_the_code_flow_names_person_and_groups_once(client: ProviderClient) -> None:
    browser = Browser(client)
    begun = browser.flow.begin("/runs")
    back = browser.back(begun)
    proven = browser.finish(begun, back)
    assert (proven.target, proven.arrival.subject, proven.arrival.names[0]) == ("/runs", "s-ann", "ann")
    assert proven.arrival.groups == ("ops", "hpc"), "its ID token has none: userinfo names them"
    with pytest.raises(SignInRefused, match="invalid_grant"):
        browser.finish(begun, back)


@pytest.mark.parametrize("wrong", [{"state": "x"}, {"issuer": "https://idp.example"}, {"code": "x"}])
def test_an_answer_of_elsewhere_is_refused(client: ProviderClient, wrong: dict[str, str]) -> None:
    browser = Browser(client)
    begun = browser.flow.begin("/runs")
    with pytest.raises(SignInRefused):
        browser.finish(begun, browser.back(begun) | wrong)


def test_a_code_is_worth_nothing_in_another_browser_s_sign_in(client: ProviderClient) -> None:
    """Its proof key (PKCE) is that of who began."""
    browser = Browser(client)
    mine, theirs = browser.flow.begin("/runs"), browser.flow.begin("/runs")
    code = browser.back(theirs)["code"]
    with pytest.raises(SignInRefused, match="invalid_grant"):
        browser.finish(mine, browser.back(mine) | {"code": code})


def test_a_fresh_proof_is_asked_for_and_given(client: ProviderClient) -> None:
    browser = Browser(client)
    first = browser.sign_in().arrival.proven_at
    time.sleep(1.1)  # `auth_time` has whole seconds
    assert browser.sign_in().arrival.subject == "s-ann"
    again = browser.sign_in(again=True).arrival.proven_at
    assert again > first and datetime.now(UTC) - again < timedelta(seconds=30)


def test_a_clock_that_is_an_hour_wrong_is_no_sign_in(at: CertifiedProvider) -> None:
    for off in (timedelta(hours=2), timedelta(minutes=-10)):
        late = ProviderClient(at.url, (CLIENT, SECRET), lambda off=off: datetime.now(UTC) + off)
        with pytest.raises(SignInRefused):
            Browser(late).sign_in()


def test_another_client_s_secret_is_refused(at: CertifiedProvider) -> None:
    with pytest.raises(SignInRefused, match="invalid_client"):
        Browser(ProviderClient(at.url, (CLIENT, "another"), lambda: datetime.now(UTC))).sign_in()


def test_the_end_of_its_session_is_reported(
    at: CertifiedProvider, client: ProviderClient, sink: Sink
) -> None:
    browser = Browser(client)
    arrival = browser.sign_in().arrival
    assert arrival.sid
    page = browser.visitor.ask("GET", f"{at.url}/session/end")
    found = re.search(r'name="xsrf" value="([^"]+)"', page.text)
    assert found is not None, page.text
    before = len(sink.asked)
    browser.visitor.ask("POST", f"{at.url}/session/end/confirm", {"xsrf": found[1], "logout": "yes"})
    wait_until(lambda: len(sink.asked) > before, 10, what="the provider reports the end")
    token = dict(parse_qsl(sink.asked[-1][1].decode()))["logout_token"]
    gone = browser.flow.logged_out(token)
    assert (gone.subject, gone.sid) == ("s-ann", arrival.sid)
    with pytest.raises(SignInRefused):
        browser.flow.logged_out(f"{token[:-8]}AAAAAAAA")


def test_a_code_of_the_command_line_is_confirmed_there(at: CertifiedProvider, client: ProviderClient) -> None:
    devices = DeviceFlow(client, KEY)
    begun = devices.begin()
    assert isinstance(devices.finish(begun.kept, claim="groups"), StillWaiting)
    confirm(at, Visitor("s-ann"), begun.address, begun.code)
    arrival: Any = None
    for _ in range(10):
        time.sleep(begun.interval_s)
        arrival = devices.finish(begun.kept, claim="groups")
        if isinstance(arrival, Arrival):
            break
    assert (arrival.subject, arrival.groups) == ("s-ann", ("ops", "hpc"))
    assert datetime.now(UTC) - arrival.proven_at < timedelta(seconds=60), "it names no `auth_time` unasked"
    with pytest.raises(SignInRefused):
        devices.finish(begun.kept, claim="groups")


def confirm(at: CertifiedProvider, visitor: Visitor, address: str, code: str) -> None:
    """As a person does on the provider's page: the code, its confirmation, sign-in and consent."""
    page = visitor.ask("GET", address)
    form = {"xsrf": _xsrf(page.text), "user_code": code}
    page = visitor.ask("POST", address, form)
    answer = visitor.ask("POST", address, {"xsrf": _xsrf(page.text), "user_code": code, "confirm": "yes"})
    assert answer.is_redirect, answer.text
    assert visitor.follow(urljoin(address, answer.headers["location"])).startswith(f"{address}/")


def _xsrf(page: str) -> str:
    found = re.search(r'name="xsrf" value="([^"]+)"', page)
    assert found is not None, page
    return found[1]


def test_a_new_key_is_fetched_and_an_absence_is_said(
    at: CertifiedProvider, client: ProviderClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last one: a provider that starts again has a new key, and has forgotten its sessions."""
    assert Browser(client).sign_in().arrival.subject == "s-ann"
    at.stop()
    with pytest.raises(ProviderAway):
        Browser(ProviderClient(at.url, (CLIENT, SECRET), lambda: datetime.now(UTC))).flow.begin("/")
    at.start()
    monkeypatch.setattr(provider_document, "UNKNOWN_KEY_S", 0.0)
    assert Browser(client).sign_in().arrival.subject == "s-ann"
