"""`healer login --munge` and `--slurm-token`, with real munge daemons and a real Slurm: who becomes whom, and
what such a session may not."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient
from typer.testing import CliRunner

from healer.adapters.munge import Munge
from healer.adapters.password_hashing import Argon2
from healer.adapters.postgres.account_rows import PostgresAccounts
from healer.adapters.postgres.tables import people
from healer.adapters.slurm.rest_token import user_of
from healer.adapters.slurm.token_proof import RestTokens
from healer.adapters.unix_users import login_name
from healer.api.enroll_routes import FRESH
from healer.api.host_login_routes import GROUPS_LAST, PURPOSE
from healer.commands.cli import build
from healer.commands.remote import Client
from healer.engine.local_accounts import LocalAccounts
from healer.model import Role
from healer.model.grants import Grant
from tests.support.api import CLUSTER, TOKEN_KEY
from tests.support.munge import Realm, credential, realm
from tests.support.persons import Site
from tests.support.seals import seal_all
from tests.support.trixie import PLAIN_USER, TrixieSlurm, started

pytestmark = pytest.mark.heavy
ANN, BOB, EVE = 61001, 61002, 61003
RUN = {"cluster": CLUSTER, "node": "gpu0001", "reason": "noisy fan"}


class Cluster:
    """Ann has signed in by the provider, bob is a person of this site, and eve is unknown."""

    def __init__(self, site: Site, munge: Realm) -> None:
        self.site, self.munge, self.host = site, munge, munge.machine("127.0.1.1")
        socket = munge.machine("127.0.0.1")
        site.use(
            credentials=lambda _: Munge(socket),
            munge_users={CLUSTER: {0: "root", ANN: "ann", BOB: "bob", EVE: "eve"}.get},
        )
        site.grant(Grant(name="ops", role=Role.operator, groups=("ops",)))
        site.arrive("sub-1", "ops", names=("ann",))
        site.api.token(Role.operator, name="bob")

    def credential(self, uid: int = ANN, payload: str = PURPOSE.decode()) -> str:
        return credential(self.host, payload, uid=uid)

    def send(self, made: str, **more: str) -> httpx.Response:
        client = TestClient(self.site.api.app, base_url="http://healer")
        return client.post("/api/v1/login/munge", json={"credential": made} | more)

    def send_token(self, token: str, **more: str) -> httpx.Response:
        client = TestClient(self.site.api.app, base_url="http://healer")
        return client.post("/api/v1/login/slurm", json={"token": token} | more)

    def ask(self, token: str, method: str, path: str, **body: object) -> httpx.Response:
        client = TestClient(self.site.api.app, base_url="http://healer")
        headers = {"Authorization": f"Bearer {token}"}
        return client.request(method, f"/api/v1{path}", headers=headers, json=body or None)

    def refused(self, why: str, made: str = "", **more: str) -> None:
        answer = self.send(made or self.credential(), **more)
        assert (answer.status_code, why in answer.json()["detail"]) == (403, True), answer.text


@pytest.fixture
def cluster(fresh_database: sa.Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    short = Path(tempfile.mkdtemp(prefix="hm-", dir="/tmp"))  # a socket's path has a limit
    short.chmod(0o755)
    site = Site(fresh_database)
    seal = site.people.wait_for_seal
    monkeypatch.setattr(site.people, "wait_for_seal", lambda token: seal_all(site.api.engine) or seal(token))
    with realm(short) as munge:
        yield Cluster(site, munge)
    site.api.close()
    shutil.rmtree(short, ignore_errors=True)


def test_host_login_acts_as_the_known_person_but_cannot_approve(cluster: Cluster) -> None:
    answer = cluster.send(cluster.credential())
    assert (answer.status_code, answer.json()["name"], answer.json()["role"]) == (201, "ann", "operator")
    token = answer.json()["token"]
    asked = cluster.ask(token, "POST", "/playbooks/drain/runs", **RUN)
    assert (asked.status_code, asked.json()["by"]) == (202, "ann")
    approve = cluster.ask(token, "POST", f"/runs/{asked.json()['id']}/approve", reason="yes")
    assert (approve.status_code, "cannot approve" in approve.json()["detail"]) == (403, True)
    ended = cluster.ask(token, "DELETE", "/sessions/own")
    assert ended.status_code == 200
    assert [row.name for row in cluster.site.people.sessions(cluster.site.api.services.clock.now())] == [
        "ann"
    ]


def test_a_credential_counts_once_for_this_purpose_and_of_this_realm(
    cluster: Cluster, tmp_path: Path
) -> None:
    made = cluster.credential()
    assert cluster.send(made).status_code == 201
    cluster.refused("it was used before", made)
    cluster.refused("created for another purpose", cluster.credential(payload='{"for":"healer enroll"}'))
    key = tmp_path / "key"
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    foreign = credential(cluster.munge.machine("127.0.1.9", key=key), PURPOSE.decode(), uid=ANN)
    cluster.refused("another munge realm", foreign)


def test_root_and_who_is_no_person_of_the_provider_are_refused(cluster: Cluster) -> None:
    cluster.refused("the user 0 is root", cluster.credential(uid=0))
    cluster.refused("the user 61009 is root or does not exist", cluster.credential(uid=61009))
    for uid, name in ((BOB, "bob"), (EVE, "eve")):
        cluster.refused(f"{name} has not signed in with the identity provider", cluster.credential(uid))
    with cluster.site.api.engine.begin() as conn:
        old = people.c.seen_at - GROUPS_LAST - timedelta(minutes=1)
        conn.execute(sa.update(people).where(people.c.name == "ann").values(seen_at=old))
    cluster.refused("within the last 7 days")
    assert login_name(0) == "root" and login_name(2**32 - 2) is None


def test_a_sign_in_by_munge_leaves_the_provider_s_word_as_old_as_it_was(cluster: Cluster) -> None:
    before = cluster.site.people.find("ann")
    assert cluster.send(cluster.credential()).status_code == 201
    assert cluster.site.people.find("ann") == before


def test_leaver_returns_only_through_the_identity_provider(cluster: Cluster) -> None:
    token = cluster.send(cluster.credential()).json()["token"]
    cluster.site.api.services.leavers.end("ann", to=None, by="root", reason="left", request="q1")
    cluster.site.restart()
    assert cluster.ask(token, "GET", "/nodes").status_code == 401
    cluster.refused("ann has not signed in with the identity provider")
    cluster.site.arrive("sub-1", "ops", names=("ann",))
    assert cluster.send(cluster.credential()).status_code == 201


def test_it_is_off_unless_the_site_says_otherwise(cluster: Cluster) -> None:
    cluster.refused("sign-in by munge is off", cluster="pod9")
    on = cluster.site.api.services.munge_users
    cluster.site.use(munge_users={})
    made = cluster.credential()
    cluster.refused("sign-in by munge is off", made)
    cluster.site.use(munge_users=on)
    assert cluster.send(made).status_code == 201, "it was not opened"


def test_without_a_provider_it_is_the_local_account(cluster: Cluster) -> None:
    clock = cluster.site.api.services.clock
    book = PostgresAccounts(cluster.site.api.engine, CLUSTER)
    accounts = LocalAccounts(book, Argon2(), TOKEN_KEY, clock)
    accounts.make("bob", role=Role.responder, groups=(), by="root")
    cluster.site.use(sign_in=None, accounts=accounts)
    answer = cluster.send(cluster.credential(BOB))
    assert (answer.status_code, answer.json()["role"]) == (201, "responder")
    cluster.refused("`healer account add eve`", cluster.credential(EVE))


def test_the_command_keeps_the_session(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[httpx.Response] = []

    def post(_: Client, path: str, body: dict[str, str]) -> object:
        assert path == "/login/munge"
        answers.append(cluster.send(**{"made": body["credential"]}))
        return answers[-1].raise_for_status().json()

    monkeypatch.setattr(Client, "post", post)
    env = {"XDG_STATE_HOME": str(tmp_path), "HEALER_MUNGE_SOCKET": str(cluster.host), "HEALER_URL": None}
    refused = CliRunner().invoke(build(), ["login", "--munge"], env=env)
    assert (refused.exit_code, "is root" in answers[0].text) == (1, True), "tests run as root"
    monkeypatch.setattr("healer.commands.login.made_by_munge", cluster.credential)
    done = CliRunner().invoke(build(), ["login", "--munge"], env=env)
    assert done.exit_code == 0, done.exception
    assert "signed in as ann (operator)" in done.stdout
    assert "healer_login_" in (tmp_path / "healer/logins.json").read_text()


@pytest.fixture
def slurm(cluster: Cluster) -> TrixieSlurm:
    """The one who may sign in by its tokens is its plain user, whom the provider knows by the same name."""
    slurm = started()
    proof = RestTokens(slurm.rest_url, cluster=slurm.cluster, timeout_s=10)
    cluster.site.use(slurm_tokens={CLUSTER: proof})
    cluster.site.arrive("sub-2", "ops", names=(PLAIN_USER,))
    return slurm


def test_whose_slurm_token_it_is_signs_in_once_and_approves_nothing(
    cluster: Cluster, slurm: TrixieSlurm
) -> None:
    token = slurm.token(PLAIN_USER, 61)
    answer = cluster.send_token(token)
    assert (answer.status_code, answer.json()["name"], answer.json()["role"]) == (201, PLAIN_USER, "operator")
    session = answer.json()["token"]
    asked = cluster.ask(session, "POST", "/playbooks/drain/runs", **RUN)
    assert (asked.status_code, asked.json()["by"]) == (202, PLAIN_USER)
    approve = cluster.ask(session, "POST", f"/runs/{asked.json()['id']}/approve", reason="yes")
    assert (approve.status_code, "cannot approve" in approve.json()["detail"]) == (403, True)
    for again in (token, f"SLURM_JWT={token}"):
        refused = cluster.send_token(again)
        assert (refused.status_code, "already used" in refused.json()["detail"]) == (403, True), refused.text


def test_slurm_token_of_root_unknown_user_or_wrong_time_is_refused(
    cluster: Cluster, slurm: TrixieSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(why: str, token: str, **more: str) -> None:
        answer = cluster.send_token(token, **more)
        assert (answer.status_code, why in answer.json()["detail"]) == (403, True), answer.text

    refused("it belongs to root", slurm.token("root"))
    refused("nobody has not signed in with the identity provider", slurm.token("nobody"))
    refused("sign-in by Slurm token is off", slurm.token(PLAIN_USER), cluster="pod9")
    now = cluster.site.api.services.clock.now()
    token = slurm.token(PLAIN_USER, 62)
    monkeypatch.setattr(
        type(cluster.site.api.services.clock), "now", lambda _: now + FRESH + timedelta(seconds=20)
    )
    refused("more than 5 min ago", token)


def test_slurm_tokens_are_refused_while_slurm_is_down(cluster: Cluster, slurm: TrixieSlurm) -> None:
    token = slurm.token(PLAIN_USER, 63)
    slurm.kill_rest()
    try:
        assert cluster.send_token(token).status_code == 503
    finally:
        slurm.start_rest()
    assert cluster.send_token(token).status_code == 201


def test_the_command_sends_the_callers_own_slurm_token(
    cluster: Cluster, slurm: TrixieSlurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[str] = []

    def post(_: Client, path: str, body: dict[str, str]) -> object:
        assert path == "/login/slurm"
        sent.append(body["token"])
        return cluster.send_token(**body).raise_for_status().json()

    monkeypatch.setattr(Client, "post", post)
    env = {"XDG_STATE_HOME": str(tmp_path), "HEALER_URL": None, "SLURM_JWT": slurm.token(PLAIN_USER, 64)}
    done = CliRunner().invoke(build(), ["login", "--slurm-token"], env=env)
    assert (done.exit_code, sent) == (0, [env["SLURM_JWT"]]), done.exception
    assert f"signed in as {PLAIN_USER} (operator)" in done.stdout
    # Without it a token of who types is made, who is root here.
    made = {"SLURM_JWT": None, "PATH": slurm.env["PATH"], "SLURM_CONF": slurm.env["SLURM_CONF"]}
    CliRunner().invoke(build(), ["login", "--slurm-token"], env=env | made)
    assert user_of(sent[-1].removeprefix("SLURM_JWT=")) == "root"
    both = CliRunner().invoke(build(), ["login", "--slurm-token", "--munge"], env=env)
    assert (both.exit_code, len(sent)) == (1, 2)
