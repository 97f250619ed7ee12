"""`healer login`: a person's commands, against a real API and a provider over HTTP."""

import dataclasses
import json
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from typer.testing import CliRunner, Result

from healer.adapters.identity_provider.device_flow import DeviceFlow
from healer.adapters.identity_provider.provider_client import ProviderClient
from healer.commands import login
from healer.commands.cli import build
from healer.model import Playbook, Role, Step, Verb
from healer.model.grants import AccessRules, Grant
from healer.ports.sign_in import SignIn
from tests.support.api import TOKEN_KEY, Api, serving
from tests.support.provider import CLIENT, Provider, provider
from tests.support.seals import seal_all
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy


class Site:
    """`waits`: how long the command waited between its questions."""

    def __init__(self, api: Api, client: httpx.Client, at: Provider, home: Path) -> None:
        self.api, self.at, self.url, self.waits = api, at, str(client.base_url), list[float]()
        self.home, self.file = home, home / ".local/state/healer/logins.json"
        api.rules = msgspec.structs.replace(
            api.rules, access=AccessRules(grants=(Grant(name="ops", role=Role.operator, groups=("ops",)),))
        )
        devices = DeviceFlow(ProviderClient(at.url, (CLIENT, "s"), lambda: datetime.now(UTC)), TOKEN_KEY)
        self.sign_in(SignIn(devices=devices))

    def sign_in(self, how: SignIn) -> None:
        state = self.api.app.state
        state.services = dataclasses.replace(state.services, sign_in=how)

    def healer(self, *arguments: str, **env: str | None) -> Result:
        fixed = {"HEALER_URL": self.url, "HOME": str(self.home), "XDG_STATE_HOME": None}
        fixed |= {"HEALER_TOKEN": None, "HEALER_TOKEN_FILE": None, "HEALER_CONFIG": None}
        return CliRunner().invoke(build(), arguments, env=fixed | env)


@pytest.fixture
def site(fresh_database: sa.Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    over = threading.Event()

    def seal() -> None:
        while not over.wait(0.1):
            seal_all(fresh_database)

    with serving(fresh_database) as (api, client), provider() as at:
        made = Site(api, client, at, tmp_path)
        monkeypatch.setattr(login, "sleep", made.waits.append)
        sealing = threading.Thread(target=seal)
        sealing.start()
        try:
            yield made
        finally:
            over.set()
            sealing.join(10)


def failed(result: Result) -> str:
    assert result.exit_code == 1
    return str(result.exception)


def test_a_person_signs_in_acts_under_their_name_and_signs_out(site: Site) -> None:
    site.at.devices = ["authorization_pending", "slow_down", "authorization_pending"]
    done = site.healer("login", "--json")
    assert done.exit_code == 0, done.output
    assert f"open {site.at.url}/device" in done.stderr and "code WDJB-MJHT" in done.stderr
    assert json.loads(done.stdout)["name"] == "ann"
    assert site.waits == [5, 5, 10, 10], "slow_down adds 5 s for good"
    assert (site.file.stat().st_mode & 0o777, site.file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    secret = json.loads(site.file.read_text())[site.url]["token"]
    assert secret.startswith("healer_login_")

    run = site.healer("run", "drain", "--node", "gpu0001", "--reason", "noisy fan", "--json")
    assert run.exit_code == 0, run.output
    with site.api.engine.connect() as conn:
        actors = set(conn.scalars(sa.text("SELECT actor FROM audit_records WHERE verb LIKE 'run.%'")))
    assert actors == {"ann"}
    elsewhere = site.healer("nodes", HEALER_URL=site.url.replace("127.0.0.1", "localhost"))
    assert "no token" in failed(elsewhere), "a session goes to its own address alone"

    assert site.healer("logout").exit_code == 0
    assert "no token" in failed(site.healer("nodes"))
    # At the server too, where a session that was looked up counts for a second more.
    late = lambda: site.healer("nodes", HEALER_TOKEN=secret)  # noqa: E731
    wait_until(lambda: late().exit_code == 1, 20, what="the session has ended")
    assert "(401)" in failed(late())


def test_power_takes_a_sign_in_of_the_last_minutes(site: Site) -> None:
    power = Playbook(name="power", title="Power", target="node", steps=(Step(id="off", do=Verb.power_cycle),))
    site.api.rules = msgspec.structs.replace(
        site.api.rules, playbooks=site.api.rules.playbooks | {"power": power}
    )
    run = ("run", "power", "--node", "gpu0001", "--reason", "hangs")
    assert site.healer("login").exit_code == 0
    assert "sign out at the identity provider and run `healer login`" in failed(site.healer(*run))
    site.at.claims = {"auth_time": int(time.time())}
    assert site.healer("login").exit_code == 0
    assert site.healer(*run).exit_code == 0


def test_a_session_of_a_command_is_no_cookie_and_a_cookie_no_token(site: Site) -> None:
    assert site.healer("login").exit_code == 0
    secret = json.loads(site.file.read_text())[site.url]["token"]
    with httpx.Client(base_url=site.url) as client:
        bearer = {"Authorization": f"Bearer {secret}"}
        assert client.get("/api/v1/nodes", headers=bearer).status_code == 200
        assert client.get("/api/v1/nodes", headers={"Cookie": f"healer_session={secret}"}).status_code == 401
        wrong = {"Authorization": f"Bearer {secret[:-1]}{'a' if secret[-1] != 'a' else 'b'}"}
        assert client.get("/api/v1/nodes", headers=wrong).status_code == 401


def _denied(site: Site) -> None:
    site.at.devices = ["access_denied"]


def _expired(site: Site) -> None:
    site.at.devices = ["expired_token"]


def _without_devices(site: Site) -> None:
    site.at.document = {"device_authorization_endpoint": ""}


def _away(site: Site) -> None:
    site.at.status = 503


def _without_provider(site: Site) -> None:
    site.sign_in(SignIn())


def _of_no_group(site: Site) -> None:
    site.at.claims = {"groups": ["guests"]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_denied, "was denied at the identity provider"),
        (_expired, "the code has expired"),
        (_without_devices, "has no device flow"),
        (_away, "is unavailable"),
        (_without_provider, "no identity provider is configured"),
        (_of_no_group, "gives your groups a role"),
    ],
)
def test_failed_login_says_why_and_stores_nothing(
    site: Site, change: Callable[[Site], None], why: str
) -> None:
    change(site)
    assert why in failed(site.healer("login"))
    assert not site.file.exists()


def test_neither_an_open_network_nor_a_file_of_others_is_used(site: Site) -> None:
    assert "needs https" in failed(site.healer("login", HEALER_URL="http://healer.example"))
    assert "does not answer" in failed(site.healer("login", HEALER_URL="http://127.0.0.1:9"))
    assert site.healer("login").exit_code == 0
    site.file.chmod(0o644)
    assert "mode 0600" in failed(site.healer("nodes"))
    site.file.chmod(0o600)
    kept = json.loads(site.file.read_text())
    kept[site.url]["expires_at"] = "2026-01-01T00:00:00+00:00"
    site.file.write_text(json.dumps(kept))
    assert "has expired: run `healer login` again" in failed(site.healer("nodes"))


def test_an_address_begins_so_many_sign_ins_and_no_more(site: Site) -> None:
    with httpx.Client(base_url=site.url) as client:
        answers = [client.post("/api/v1/login/device").status_code for _ in range(21)]
    assert answers == [201] * 20 + [429]
