"""Local accounts over HTTP and a real database: who comes in, with what, and how it ends."""

import base64
import dataclasses
import time
from datetime import UTC, datetime
from urllib.parse import parse_qs, urlsplit

import httpx
import msgspec
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from healer.adapters.password_hashing import Argon2
from healer.adapters.postgres.account_rows import PostgresAccounts
from healer.adapters.postgres.tables import accounts, sessions
from healer.api.access import CODES, csrf_of
from healer.api.app import create_app
from healer.api.credential_budget import BURST, OverBudget
from healer.api.signing_in import change_password, open_by_account
from healer.commands.cli import build
from healer.commands.remote import Client
from healer.engine.local_accounts import Attempt, LocalAccounts, Made
from healer.model import Playbook, Role, Step, Verb
from healer.model.grants import AccessRules, Duty, Grant
from healer.model.one_time_codes import PERIOD_S, code_at
from healer.ports.directory import LOCAL, Arrival
from healer.ports.request_errors import Conflict, Invalid
from healer.ports.sign_in import SignInRefused
from tests.support.api import CLUSTER, TOKEN_KEY, Api
from tests.support.persons import session_headers, with_console
from tests.support.seals import seal_all

POWER = Playbook(name="power", title="Power", target="node", steps=(Step(id="off", do=Verb.power_cycle),))


class Seals:
    """Seals what is committed, as a worker does on request."""

    def __init__(self, api: Api) -> None:
        self._api, self._wait = api, api.people.wait_for_seal

    def __call__(self, token: str) -> bool:
        seal_all(self._api.engine)
        return self._wait(token)


class Site:
    def __init__(self, database: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.api = Api(database)
        monkeypatch.setattr(self.api.people, "wait_for_seal", Seals(self.api))
        book = PostgresAccounts(self.api.engine, CLUSTER)
        self.accounts = LocalAccounts(book, Argon2(), TOKEN_KEY, self.api.services.clock)
        self.api.services = dataclasses.replace(self.api.services, accounts=self.accounts)
        self.restart()

    def restart(self) -> None:
        """Another process: nothing is cached."""
        self.api.app = create_app(self.api.services)

    def add(self, name: str, *groups: str, role: Role | None = None) -> Made:
        return self.accounts.make(name, role=role, groups=groups, by="root")

    def sign_in(self, made: Made, *, code: str = "", password: str = "", address: str = "192.0.2.1") -> str:
        attempt = Attempt(made.account.name, password or made.password, code or code_of(made))
        return open_by_account(
            self.api.services, self.api.app.state.access, attempt, address, agent="Firefox"
        )

    def ask(self, method: str, path: str, cookie: str, **body: object) -> httpx.Response:
        headers = session_headers(cookie)
        client = TestClient(self.api.app, base_url="http://healer", headers=headers)
        return client.request(method, f"/api/v1{path}", json=body or None)


@pytest.fixture
def site(fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(fresh_database, monkeypatch)


def code_of(made: Made, steps: int = 0) -> str:
    """By the address that an authenticator app reads."""
    (secret,) = parse_qs(urlsplit(made.uri).query)["secret"]
    return code_at(base64.b32decode(secret), int(time.time()) // PERIOD_S + steps)


def wrong_code(made: Made, number: int) -> str:
    right = {code_of(made, steps) for steps in range(-2, 3)}
    return [f"{guess:06d}" for guess in range(100) if f"{guess:06d}" not in right][number]


def test_a_password_and_a_code_open_a_session_of_the_account_s_role(site: Site) -> None:
    ann = site.add("ann", role=Role.operator)
    cookie = site.sign_in(ann)
    made = site.ask("POST", "/pauses", cookie, scope="all", reason="x")
    assert (made.status_code, made.json()["by"]) == (201, "ann")
    assert site.ask("GET", "/people/ann", cookie).status_code == 403, "an operator is no auditor"
    assert [row.agent for row in site.api.people.sessions(datetime.now(UTC), name="ann")] == ["Firefox"]


def test_wrong_or_used_codes_are_refused(site: Site) -> None:
    ann, bob = site.add("ann", role=Role.operator), site.add("bob", role=Role.admin)
    refused = [
        {"password": bob.password},
        {"code": code_of(bob)},
        {"code": code_of(ann, -4)},
        {"password": ann.password.upper()},
    ]
    for wrong in refused:
        with pytest.raises(SignInRefused, match="is wrong"):
            site.sign_in(ann, **wrong)
    used = code_of(ann)
    site.sign_in(ann, code=used)
    with pytest.raises(SignInRefused, match="already used"):
        site.sign_in(ann, code=used)
    unknown = ann._replace(account=msgspec.structs.replace(ann.account, name="nobody"))
    with pytest.raises(SignInRefused, match="is wrong"):
        site.sign_in(unknown)


def test_groups_are_granted_by_the_access_file_and_duties_bind_them(site: Site) -> None:
    grants = (Grant(name="ops", role=Role.operator, groups=("ops",), playbooks=("drain",)),)
    duties = (Duty(playbooks=("drain",), second_person=True),)
    site.api.rules = msgspec.structs.replace(site.api.rules, access=AccessRules(grants=grants, duties=duties))
    ann = site.sign_in(site.add("ann", "ops"))
    run = {"cluster": CLUSTER, "node": "gpu0001", "reason": "noisy fan"}
    assert site.ask("POST", "/playbooks/drain/runs", ann, **run).status_code == 202
    assert site.ask("POST", "/playbooks/resume/runs", ann, **run).status_code == 403
    with pytest.raises(SignInRefused, match="gives your groups a role"):
        site.sign_in(site.add("eve", "guests"))


def test_two_accounts_are_the_two_persons_of_an_approval_and_power_asks_again(site: Site) -> None:
    playbooks = site.api.rules.playbooks | {"power": POWER}
    site.api.rules = msgspec.structs.replace(site.api.rules, playbooks=playbooks)
    ann, bob = (site.sign_in(site.add(name, role=Role.operator)) for name in ("ann", "bob"))
    run = {"cluster": CLUSTER, "node": "gpu0001", "reason": "hangs"}
    asked = site.ask("POST", "/playbooks/power/runs", ann, **run)
    assert asked.status_code == 202, asked.text
    approve = f"/runs/{asked.json()['id']}/approve"
    assert site.ask("POST", approve, ann, reason="yes").status_code == 403, "she asked for it"
    with site.api.engine.begin() as conn:
        conn.execute(sa.text("UPDATE sessions SET proven_at = proven_at - interval '6 minutes'"))
    site.restart()
    again = site.ask("POST", approve, bob, reason="yes")
    assert (again.json()["code"], "/sign-in" in again.json()["detail"]) == ("sign_in_again", True)
    made = site.accounts.make("bob", role=Role.operator, groups=(), by="root")
    assert site.ask("POST", approve, site.sign_in(made), reason="yes").status_code in (200, 202)


def test_account_row_tampered_in_the_database_is_refused(site: Site) -> None:
    ann = site.add("ann", role=Role.viewer)
    with site.api.engine.begin() as conn:
        conn.execute(sa.update(accounts).values(role="admin"))
    with pytest.raises(SignInRefused, match="is wrong"):
        site.sign_in(ann)


def test_a_leaver_s_account_and_sessions_end_and_stay_ended(site: Site) -> None:
    ann = site.add("ann", role=Role.operator)
    cookie = site.sign_in(ann)
    leavers = site.api.services.leavers
    held = leavers.holds("ann")
    assert held.account is not None and len(held.sessions) == 1
    ended = leavers.end("ann", to=None, by="root", reason="left", request="q1")
    assert (ended.sessions, leavers.holds("ann").account) == (1, None)
    site.restart()
    assert site.ask("GET", "/nodes", cookie).status_code == 401
    with pytest.raises(SignInRefused, match="is wrong"):
        site.sign_in(ann, code=code_of(ann, 1))
    late = Arrival(
        issuer=LOCAL, subject="ann", names=("ann",), groups=(), proven_at=datetime.now(UTC), once="x",
        sid=ann.account.id,
    )  # fmt: skip
    with pytest.raises(Conflict):  # she was checked just before the end
        site.api.people.arrive(
            late, b"s" * 32, token="t" * 24, role=Role.operator, agent="", now=datetime.now(UTC)
        )
    with pytest.raises(sa.exc.DBAPIError, match="stays ended"), site.api.engine.begin() as conn:
        conn.execute(sa.update(accounts).values(ended_at=None))


def test_new_secrets_end_the_old_ones_and_the_sessions(site: Site) -> None:
    old = site.add("ann", role=Role.viewer)
    cookie = site.sign_in(old)
    new = site.add("ann", role=Role.viewer)
    assert site.ask("GET", "/nodes", cookie).status_code == 401
    with pytest.raises(SignInRefused):
        site.sign_in(old, code=code_of(old, 1))
    assert site.sign_in(new)


NEW = "four words of mine"


def test_a_person_changes_the_own_password_and_the_other_sessions_end(site: Site) -> None:
    """The authenticator app and the account stay."""
    ann = site.add("ann", role=Role.operator)
    other, this = site.sign_in(ann, code=code_of(ann, -1)), site.sign_in(ann)
    keep = next(row.id for row in site.api.people.sessions(datetime.now(UTC)) if row.agent == "Firefox")
    attempt = Attempt("ann", ann.password, code_of(ann))
    access = site.api.app.state.access
    assert change_password(site.api.services, access, attempt, NEW, "192.0.2.1", keep=keep) == 1
    site.restart()
    assert [site.ask("GET", "/nodes", cookie).status_code for cookie in (other, this)] == [401, 200]
    with pytest.raises(SignInRefused, match="is wrong"):
        site.sign_in(ann, code=code_of(ann, 1))
    assert site.sign_in(ann, password=NEW, code=code_of(ann, 1))
    record = site.ask("GET", "/audit?verb=account.password", this).json()["items"][0]
    assert (record["actor"], record["subject"], record["data"]["sessions"]) == ("ann", "person/ann", 1)


def test_over_http_the_old_password_and_a_code_are_needed_and_no_token(site: Site) -> None:
    ann = site.add("ann", role=Role.viewer)
    cookie, client = site.sign_in(ann), TestClient(site.api.app, base_url="http://healer")
    body = {"name": "ann", "password": ann.password, "code": code_of(ann), "new": NEW}
    for change, status in (
        ({"password": "wrong"}, 403), ({"code": wrong_code(ann, 0)}, 403), ({"name": "bob"}, 403),
        ({"new": "short"}, 422), ({"new": f" {NEW}"}, 422), ({"new": ann.password}, 422), ({}, 200),
    ):  # fmt: skip
        answer = client.post("/api/v1/account/password", json=body | change)
        assert answer.status_code == status, (change, answer.text)
    assert answer.json() == {"name": "ann", "sessions": 1}
    site.restart()
    assert site.ask("GET", "/nodes", cookie).status_code == 401


@pytest.fixture
def page(site: Site) -> TestClient:
    """The console, as a browser has it."""
    app = with_console(site.api.app, site.api.services)
    return TestClient(app, base_url="http://healer", follow_redirects=False)


def test_the_page_of_sessions_changes_it_and_keeps_this_session(site: Site, page: TestClient) -> None:
    ann = site.add("ann", role=Role.viewer)
    other, this = site.sign_in(ann, code=code_of(ann, -1)), site.sign_in(ann)
    headers = {"Cookie": f"healer_session={this}"}
    assert 'action="/sessions/password"' in page.get("/sessions", headers=headers).text
    form = {"password": ann.password, "code": code_of(ann), "new": NEW, "again": NEW, "csrf": csrf_of(this)}

    def press(**changes: str) -> httpx.Response:
        return page.post("/sessions/password", data=form | changes, headers=headers)

    assert press(csrf=csrf_of(other)).status_code == 403
    for change, says in (
        ({"again": "five words of mine"}, "the two new passwords differ"),
        ({"password": "wrong"}, "or code is wrong"),
        ({"new": "short", "again": "short"}, "12 to 200 characters"),
    ):
        assert says in press(**change).text.replace("The two", "the two"), change
    assert "Password changed; 1 of your other sessions" in press().text
    assert [row.id for row in site.api.people.sessions(datetime.now(UTC), name="ann")] != []
    site.restart()
    assert [site.ask("GET", "/nodes", cookie).status_code for cookie in (other, this)] == [401, 200]


def test_the_address_of_a_changed_password_is_a_page(site: Site, page: TestClient) -> None:
    """It is asked for after a session ended meanwhile, by the switch of the language, and by each event."""
    ann = site.add("ann", role=Role.viewer)
    gone = page.post("/sessions/password", data={"password": ann.password, "new": NEW, "again": NEW})
    assert (gone.status_code, gone.headers["location"]) == (303, "/sign-in?next=%2Fsessions%2Fpassword")
    form = {"name": "ann", "password": ann.password, "code": code_of(ann), "next": "/sessions/password"}
    back = page.post("/sign-in", data=form)
    assert (back.status_code, back.headers["location"]) == (303, "/sessions/password")
    shown = page.get(back.headers["location"])
    assert (shown.status_code, 'action="/sessions/password"' in shown.text) == (200, True)


def test_the_command_asks_for_old_code_and_new(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    ann, sent = site.add("ann", role=Role.viewer), list[tuple[str, dict[str, str]]]()
    client = TestClient(site.api.app, base_url="http://healer")

    def post(_: Client, path: str, body: dict[str, str]) -> object:
        sent.append((path, body))
        return client.post(f"/api/v1{path}", json=body).json()

    monkeypatch.setattr(Client, "post", post)
    typed = "\n".join((ann.password, code_of(ann), NEW, NEW))
    done = CliRunner().invoke(build(), ["account", "password", "ann"], input=typed)
    assert done.exit_code == 0, done.exception
    assert done.stdout.endswith("the password of ann was changed; 0 sessions ended\n")
    assert sent[0][0] == "/account/password"
    assert ann.password not in done.output
    far = CliRunner().invoke(build(), ["account", "password", "ann"], env={"HEALER_URL": "http://192.0.2.1"})
    assert "`healer account password` needs https" in str(far.exception)


def test_a_reset_in_between_refuses_the_change(site: Site) -> None:
    old = site.add("ann", role=Role.viewer)
    site.add("ann", role=Role.viewer)
    with pytest.raises(Conflict):
        site.accounts.change_password(old.account, old.password, NEW)


def test_wrong_codes_lock_the_sign_in_despite_the_right_password(site: Site) -> None:
    ann = site.add("ann", role=Role.operator)
    for number in range(int(CODES)):
        with pytest.raises(SignInRefused):
            site.sign_in(ann, code=wrong_code(ann, number), address=f"192.0.2.{number}")
    with pytest.raises(SignInRefused, match="After 5 wrong codes"):
        site.sign_in(ann, address="192.0.2.99")


@pytest.mark.parametrize("guess", ["guess {wrong}", "the same again"])
def test_wrong_attempts_are_counted_by_address(site: Site, guess: str) -> None:
    ann = site.add("ann", role=Role.operator)
    wrong = 0
    with pytest.raises(OverBudget):  # the budget earns one every 2 s while this goes on
        for wrong in range(10 * int(BURST)):
            with pytest.raises(SignInRefused):
                site.sign_in(ann, password=guess.format(wrong=wrong))
    assert wrong >= BURST
    assert site.sign_in(ann, address="192.0.2.2")


def test_a_site_with_a_provider_has_no_local_accounts(site: Site) -> None:
    ann = site.add("ann", role=Role.operator)
    site.api.services = dataclasses.replace(site.api.services, accounts=None)
    site.restart()
    with pytest.raises(SignInRefused, match="identity provider"):
        site.sign_in(ann)
    with site.api.engine.connect() as conn:
        assert conn.scalar(sa.select(sa.func.count()).select_from(sessions)) == 0


@pytest.mark.parametrize("name", ["ann/ci", "healer", "break-glass (ann)", "", "a\u200bnn", "x" * 101])
def test_a_name_that_is_another_s_is_refused(site: Site, name: str) -> None:
    with pytest.raises(Invalid):
        site.add(name, role=Role.operator)


def test_an_account_has_a_role_or_groups_and_sends_nothing(site: Site) -> None:
    for role, groups in ((None, ()), (Role.viewer, ("ops",)), (Role.signals, ()), (None, ("",))):
        with pytest.raises(Invalid):
            site.add("ann", *groups, role=role)
