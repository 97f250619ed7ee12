"""The code flow against a provider over HTTP: what is believed, and all that is not."""

import gzip
import socket
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa

from healer.adapters.identity_provider import provider_document
from healer.adapters.identity_provider.code_flow import OidcProvider
from healer.adapters.identity_provider.device_flow import DeviceFlow
from healer.adapters.identity_provider.provider_client import ProviderClient
from healer.adapters.identity_provider.provider_document import ProviderDocument
from healer.adapters.identity_provider.proxy_headers import TrustedProxy
from healer.model import Role
from healer.model.grants import Grant
from healer.ports.directory import Arrival
from healer.ports.sign_in import Proven, ProviderAway, SignIn, SignInRefused, StillWaiting
from healer.settings import parse_proxies
from tests.support import persons
from tests.support.provider import CLIENT, Provider, provider, shared_secret
from tests.support.seals import seal_all

pytestmark = pytest.mark.heavy

KEY = b"a key of tests".ljust(32, b".")


class Clock:
    def __init__(self) -> None:
        self.later = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.later


class Site:
    def __init__(self, at: Provider) -> None:
        self.at, self.clock = at, Clock()
        client = ProviderClient(at.url, (CLIENT, "s3cret"), self.clock.now)
        self.client = OidcProvider(client, "https://healer/cb", KEY)
        self.devices = DeviceFlow(client, KEY)

    def sign_in(self, *, again: bool = False, **changes: Any) -> Proven:
        begun = self.client.begin("/runs", again=again)
        back = self.at.authorize(begun.url) | changes
        return self.client.finish(begun.kept, claim="groups", **back)


@pytest.fixture
def site() -> Iterator[Site]:
    with provider() as at:
        yield Site(at)


def test_returning_user_is_identified_by_the_provider(site: Site) -> None:
    proven = site.sign_in()
    arrival = proven.arrival
    assert (proven.target, arrival.issuer, arrival.subject) == ("/runs", site.at.url, "42")
    assert (arrival.names[0], arrival.groups) == ("ann", ("ops",))
    asked = site.client.begin("/", again=True).url
    assert "code_challenge_method=S256" in asked
    assert "prompt=login" in asked
    assert "scope=openid+profile&" in asked, "only scopes that this provider has"


def test_of_two_tabs_that_sign_in_at_once_the_later_one_does(
    site: Site, fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session ended, and both lead to the provider: the cookie is that of the later one."""
    at_healer = persons.Site(fresh_database, SignIn(provider=site.client))
    at_healer.grant(Grant(name="ops", groups=("ops",), role=Role.operator))
    wait, engine = at_healer.people.wait_for_seal, at_healer.api.engine
    monkeypatch.setattr(at_healer.people, "wait_for_seal", lambda token: seal_all(engine) or wait(token))
    browser = at_healer.page()
    begun = [browser.get("/auth/begin?next=/runs").headers["location"] for _ in range(2)]
    statuses = list[int]()
    for url in begun:
        back = site.at.authorize(url)
        back["iss"] = back.pop("issuer")
        statuses.append(browser.get("/auth/callback", params=back).status_code)
    assert statuses == [403, 303]
    assert [one for one in browser.cookies if one == "healer_sign_in"] == []


@pytest.mark.parametrize("path", ["/.well-known/openid-configuration", "/keys", "/token"])
def test_an_answer_of_the_provider_is_unpacked_within_its_bound(site: Site, path: str) -> None:
    """256 KB of gzip took 256 MB of the API's memory."""
    site.at.packed[path] = gzip.compress(bytes(256 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(ProviderAway):
            site.sign_in()
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 16 << 20
    site.at.packed[path] = gzip.compress(b"[]")
    with pytest.raises(ProviderAway, match="JSON object"):
        site.sign_in()


def bent(claims: dict[str, Any]) -> dict[str, Any]:
    """A time that is apart from now becomes one when the test runs: collected, it may wait for minutes."""
    now = int(time.time())
    return {
        name: now + int(value.total_seconds()) if isinstance(value, timedelta) else value
        for name, value in claims.items()
    }


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "another"}, "aud"),
        ({"aud": [CLIENT, "another"]}, "azp"),
        ({"azp": "another"}, "azp"),
        ({"iss": "https://evil"}, "iss"),
        ({"nonce": "of another sign-in"}, "nonce"),
        ({"nonce": None}, "nonce"),
        ({"sub": None}, "sub"),
        ({"exp": timedelta(seconds=-120)}, "expired"),
        ({"exp": None}, "exp"),
        ({"iat": timedelta(seconds=600)}, "in the future"),
    ],
)
def test_a_token_for_others_or_of_another_time_is_refused(
    site: Site, claims: dict[str, Any], why: str
) -> None:
    site.at.claims = bent(claims)
    with pytest.raises(SignInRefused, match=why):
        site.sign_in()


def test_clocks_may_be_a_minute_apart(site: Site) -> None:
    site.at.claims = bent({"exp": timedelta(seconds=-40), "iat": timedelta(seconds=40)})
    assert site.sign_in().arrival.subject == "42"


def test_a_signature_by_another_key_or_by_the_shared_secret_is_refused(site: Site) -> None:
    site.sign_in()
    site.at.rotate(publish=False)
    with pytest.raises(SignInRefused, match="not valid"):
        site.sign_in()
    site.at.id_token = lambda nonce: site.at.sign(  # type: ignore[method-assign]
        {"sub": "42", "iss": site.at.url, "aud": CLIENT, "nonce": nonce}
        | bent({"exp": timedelta(seconds=900), "iat": timedelta()}),
        header={"alg": "HS256"},
        key=shared_secret(),
    )
    with pytest.raises(SignInRefused, match="not valid"):
        site.sign_in()


def test_rotated_keys_are_fetched_at_once_but_not_for_every_unknown_one(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.sign_in()
    monkeypatch.setattr(provider_document, "UNKNOWN_KEY_S", 0.0)
    site.at.rotate()
    assert site.sign_in().arrival.subject == "42"
    monkeypatch.setattr(provider_document, "UNKNOWN_KEY_S", 3600.0)
    site.at.rotate(publish=False)
    fetched = site.at.asked.count("/keys")
    for _ in range(5):
        with pytest.raises(SignInRefused):
            site.sign_in()
    assert site.at.asked.count("/keys") == fetched


def test_an_answer_that_was_not_asked_for_here_is_refused(site: Site) -> None:
    with pytest.raises(SignInRefused, match="did not start in this browser"):
        site.sign_in(state="of somebody else")
    with pytest.raises(SignInRefused, match="another provider"):
        site.sign_in(issuer="https://evil")
    with pytest.raises(SignInRefused, match="rejected the code"):
        site.sign_in(code="already used")
    begun = site.client.begin("/")
    back = site.at.authorize(begun.url)
    for kept in ("", "x.y.z", begun.kept[:-4] + "AAAA"):
        with pytest.raises(SignInRefused, match="did not start in this browser"):
            site.client.finish(kept, claim="groups", **back)
    site.clock.later = timedelta(minutes=11)
    with pytest.raises(SignInRefused, match="longer than 10 min"):
        site.client.finish(begun.kept, claim="groups", **back)


def test_a_fresh_proof_is_one_of_the_last_minutes(site: Site) -> None:
    now = time.time()
    site.at.claims = {"auth_time": int(now - 3600)}
    assert site.sign_in().arrival.proven_at.timestamp() == int(now - 3600)
    with pytest.raises(SignInRefused, match="did not ask you to authenticate again"):
        site.sign_in(again=True)
    site.at.claims = {"auth_time": int(now)}
    assert site.sign_in(again=True).arrival.proven_at.timestamp() == int(now)
    site.at.claims = {}
    assert site.sign_in().arrival.proven_at.timestamp() < now - 3600, "the provider may have asked no one"


def test_names_that_could_be_taken_for_others_are_passed_over(site: Site) -> None:
    for name in ("ann/deploy", "healer", "", "a\u202eb", "x" * 101):
        site.at.claims = {"preferred_username": name, "email": "ann@example"}
        assert site.sign_in().arrival.names[0] == "ann@example", name
    site.at.claims = {"preferred_username": None, "email": "a@b", "email_verified": False}
    assert site.sign_in().arrival.names[0] == "42"


def test_new_logins_fail_while_the_provider_is_down(site: Site) -> None:
    site.at.status = 503
    with pytest.raises(ProviderAway, match="answered 503"):
        site.client.begin("/")
    site.at.status = 200
    begun = site.client.begin("/")
    back = site.at.authorize(begun.url)
    site.at.status = 503
    with pytest.raises(ProviderAway):
        site.client.finish(begun.kept, claim="groups", **back)
    away = ProviderClient("http://127.0.0.1:9", (CLIENT, ""), site.clock.now)
    nowhere = OidcProvider(away, "https://healer/cb", KEY)
    with pytest.raises(ProviderAway, match="is unavailable"):
        nowhere.begin("/")


def test_a_provider_that_hangs_holds_up_one_thread_and_not_everybody() -> None:
    """Anybody may open the page that begins a sign-in, and the threads of all pages are few."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
        http = httpx.Client(timeout=0.4)
        document = ProviderDocument(f"http://127.0.0.1:{silent.getsockname()[1]}", http)
        with pytest.raises(ProviderAway):
            document.published()
        began = time.monotonic()
        with ThreadPoolExecutor(20) as visitors:
            asked = [visitors.submit(document.published) for _ in range(20)]
        assert all(isinstance(visit.exception(), ProviderAway) for visit in asked)
        assert time.monotonic() - began < 4, "each waited for the one before it"


@pytest.mark.parametrize(
    "changes",
    [
        {"aud": "another"},
        {"iss": "https://evil"},
        {"events": {}},
        {"nonce": "x"},
        {"iat": timedelta(seconds=-3600)},
        {"sub": None},
    ],
)
def test_only_a_logout_token_ends_sessions(site: Site, changes: dict[str, Any]) -> None:
    gone = site.client.logged_out(site.at.logout_token(sid="s1"))
    assert (gone.subject, gone.sid) == ("42", "s1")
    with pytest.raises(SignInRefused):
        site.client.logged_out(site.at.logout_token(**bent(changes)))
    with pytest.raises(SignInRefused):
        site.client.logged_out(site.at.id_token("n"))


def test_a_code_that_was_confirmed_elsewhere_proves_who_it_was(site: Site) -> None:
    site.at.devices = ["authorization_pending", "slow_down"]
    begun = site.devices.begin()
    assert (begun.code, begun.address) == ("WDJB-MJHT", f"{site.at.url}/device")
    assert begun.interval_s == 5, "what RFC 8628 says where the provider says nothing"
    waits = [site.devices.finish(begun.kept, claim="groups") for _ in range(2)]
    assert waits == [StillWaiting(slow_down=False), StillWaiting(slow_down=True)]
    arrival = site.devices.finish(begun.kept, claim="groups")
    assert isinstance(arrival, Arrival)
    assert (arrival.subject, arrival.names[0], arrival.groups) == ("42", "ann", ("ops",))
    with pytest.raises(SignInRefused, match="invalid_grant"):
        site.devices.finish(begun.kept, claim="groups")


@pytest.mark.parametrize(
    ("claims", "why"),
    [
        ({"aud": "another"}, "aud"),
        ({"iss": "https://evil"}, "iss"),
        ({"exp": timedelta(hours=-1)}, "expired"),
    ],
)
def test_a_token_of_the_device_flow_is_checked_as_another_is(
    site: Site, claims: dict[str, Any], why: str
) -> None:
    begun = site.devices.begin()
    site.at.claims = bent(claims)
    with pytest.raises(SignInRefused, match=why):
        site.devices.finish(begun.kept, claim="groups")


@pytest.mark.parametrize(
    ("answer", "why"),
    [("access_denied", "was denied"), ("expired_token", "expired"), ("invalid_client", "invalid_client")],
)
def test_a_device_sign_in_ends_with_the_providers_reason(site: Site, answer: str, why: str) -> None:
    site.at.devices = [answer]
    begun = site.devices.begin()
    with pytest.raises(SignInRefused, match=why):
        site.devices.finish(begun.kept, claim="groups")


def test_a_device_sign_in_that_cannot_begin_or_go_on_says_why(site: Site) -> None:
    begun = site.devices.begin()
    with pytest.raises(SignInRefused, match="expired"):
        site.devices.finish(begun.kept[:-4] + "AAAA", claim="groups")
    site.clock.later = timedelta(minutes=31)
    with pytest.raises(SignInRefused, match="expired"):
        site.devices.finish(begun.kept, claim="groups")
    site.at.document = {"device_authorization_endpoint": ""}
    with pytest.raises(SignInRefused, match="has no device flow"):
        Site(site.at).devices.begin()
    site.at.document = {"device_authorization_endpoint": "http://idp.example/device"}
    with pytest.raises(ProviderAway, match="is not https"):
        Site(site.at).devices.begin()
    site.at.document, site.at.page = {}, "http://idp.example/device"
    with pytest.raises(ProviderAway, match="is not https"):
        Site(site.at).devices.begin()


def test_a_proxys_headers_count_from_its_address_with_its_secret() -> None:
    secret = "a secret of the proxy and healer"
    proxy = TrustedProxy(parse_proxies("10.0.0.5, 10.1.0.0/24"), secret, lambda: datetime.now(UTC))
    headers = {"x-healer-proxy-secret": secret, "x-forwarded-user": "ann", "x-forwarded-groups": "ops, hpc"}
    arrival = proxy.arrival("10.1.0.7", headers.items())
    assert arrival is not None
    assert (arrival.subject, arrival.groups) == ("ann", ("ops", "hpc"))
    assert proxy.arrival("10.2.0.7", headers.items()) is None
    assert proxy.arrival("nowhere", headers.items()) is None
    for wrong in (
        headers | {"x-healer-proxy-secret": "a secret"},
        {"x-forwarded-user": "ann"},
        headers | {"x-forwarded-user": ""},
    ):
        assert proxy.arrival("10.0.0.5", wrong.items()) is None
    assert proxy.arrival("10.0.0.5", [*headers.items(), ("X-Forwarded-Groups", "admins")]) is None
