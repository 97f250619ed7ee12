"""Both ways of signing in by a second real provider, Debian's glewlwyd: no habit of the first is built in."""

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
import sqlalchemy as sa

from healer.adapters.identity_provider import provider_document
from healer.adapters.identity_provider.code_flow import OidcProvider
from healer.adapters.identity_provider.device_flow import DeviceFlow
from healer.adapters.identity_provider.provider_client import ProviderClient
from healer.api.signing_in import open_session
from healer.model import Role
from healer.model.grants import Grant
from healer.ports.directory import Arrival
from healer.ports.sign_in import Proven, SignIn, SignInRefused, StillWaiting
from tests.support import ldap_directory
from tests.support.glewlwyd import CLIENT, GROUPS, PERSON, REDIRECT, SECRET, Glewlwyd, glewlwyd
from tests.support.ldap_directory import slapd
from tests.support.persons import Site
from tests.support.seals import seal_all
from tests.support.sink import serve_sink
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy
KEY = b"a key of tests".ljust(32, b".")


@pytest.fixture(scope="module")
def at(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Glewlwyd]:
    with glewlwyd(tmp_path_factory.mktemp("glewlwyd")) as provider:
        yield provider


@pytest.fixture
def client(at: Glewlwyd) -> ProviderClient:
    return ProviderClient(at.issuer, (CLIENT, SECRET), lambda: datetime.now(UTC))


class Browser:
    """Signs the person in by the code flow, as healer's page and the provider's do together."""

    def __init__(self, at: Glewlwyd, client: ProviderClient, *who: str) -> None:
        self.flow, self.person = OidcProvider(client, REDIRECT, KEY), at.person(*who)

    def sign_in(self) -> Proven:
        begun = self.flow.begin("/runs")
        self.kept, self.back = begun.kept, self._back(begun.url)
        return self.finish()

    def finish(self) -> Proven:
        return self.flow.finish(self.kept, claim="groups", issuer="", **self.back)

    def _back(self, address: str) -> dict[str, str]:
        answer = self.person.get(f"{address}&g_continue")  # the button of the provider's page
        assert answer.headers["location"].startswith(REDIRECT)
        query = dict(parse_qsl(urlsplit(answer.headers["location"]).query))
        return {"state": query["state"], "code": query["code"]}


def test_the_code_flow_names_person_and_groups_once(at: Glewlwyd, client: ProviderClient) -> None:
    browser = Browser(at, client)
    proven = browser.sign_in()
    assert (proven.target, proven.arrival.names[0]) == ("/runs", PERSON)
    assert sorted(proven.arrival.groups) == sorted(GROUPS)
    with pytest.raises(SignInRefused, match="invalid_code"):
        browser.finish()


def test_a_key_that_the_provider_has_replaced_is_fetched(
    at: Glewlwyd, client: ProviderClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = Browser(at, client)
    before = browser.sign_in().arrival.subject
    at.rotate()
    monkeypatch.setattr(provider_document, "UNKNOWN_KEY_S", 0.0)
    assert browser.sign_in().arrival.subject == before


def test_groups_of_an_ldap_directory_come_by_the_provider(
    at: Glewlwyd, client: ProviderClient, tmp_path: Path
) -> None:
    with slapd(tmp_path) as directory:
        at.add_directory(directory.url)
        arrival = Browser(at, client, ldap_directory.PERSON, ldap_directory.PASSWORD).sign_in().arrival
    assert arrival.names[0] == ldap_directory.PERSON
    assert sorted(arrival.groups) == sorted(ldap_directory.GROUPS)


def test_sign_out_at_the_provider_ends_the_session_of_healer(
    at: Glewlwyd, client: ProviderClient, fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(fresh_database)
    site.grant(Grant(name="ops", role=Role.operator, groups=("ops",)))
    browser = Browser(at, client)
    seal = site.people.wait_for_seal
    monkeypatch.setattr(site.people, "wait_for_seal", lambda token: seal_all(site.api.engine) or seal(token))
    site.use(sign_in=SignIn(provider=browser.flow))
    with serve_sink() as sink:
        at.notify_of_logouts(sink.url)
        first, second = browser.sign_in().arrival, Browser(at, client).sign_in().arrival
        assert first.sid and first.sid != second.sid
        here, elsewhere = (
            open_session(site.api.services, site.access, one, "Firefox").secret for one in (first, second)
        )
        assert [site.ask("GET", "/nodes", cookie).status_code for cookie in (here, elsewhere)] == [200, 200]
        at.end_session(browser.person, first.sid)
        wait_until(lambda: sink.asked, 10, what="glewlwyd informs of the end")
    assert site.page().post("/auth/backchannel", content=sink.asked[0][1]).status_code == 200
    site.restart()  # nothing is cached
    assert [site.ask("GET", "/nodes", cookie).status_code for cookie in (here, elsewhere)] == [401, 200]
    forged = sink.asked[0][1].replace(b"logout_token=ey", b"logout_token=ez")
    assert site.page().post("/auth/backchannel", content=forged).status_code == 400


def test_a_person_confirms_a_code_of_the_command_line(at: Glewlwyd, client: ProviderClient) -> None:
    devices = DeviceFlow(client, KEY)
    begun = devices.begin()
    assert devices.finish(begun.kept, claim="groups") == StillWaiting(slow_down=False)
    sooner = (devices.finish(begun.kept, claim="groups") for _ in range(10))
    assert StillWaiting(slow_down=True) in sooner, "sooner than it says"
    at.person().get(begun.address, params={"code": begun.code, "g_continue": ""})
    time.sleep(begun.interval_s + 0.2)
    arrival = devices.finish(begun.kept, claim="groups")
    assert isinstance(arrival, Arrival)
    assert (arrival.names[0], sorted(arrival.groups)) == (PERSON, sorted(GROUPS))
    time.sleep(begun.interval_s + 0.2)
    with pytest.raises(SignInRefused):
        devices.finish(begun.kept, claim="groups")
