"""Each role at each route and playbook, against a table that was written by hand from docs/api.md."""

import dataclasses
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from healer.adapters.postgres.token_book import tokens_of_no_person
from healer.api.access import Access
from healer.api.app import create_app
from healer.bootstrap.access_checks import unowned_tokens_check
from healer.model import Playbook, Role, Step, Verb
from healer.model.grants import Grant
from healer.ports.callers import NewToken
from healer.ports.service_accounts import id_in
from tests.support.api import CLUSTER, RULES, Api, snapshot
from tests.support.console_sample import shipped
from tests.support.persons import Site, session_headers
from tests.support.seals import seal_all

ROLES = ("signals", "viewer", "auditor", "responder", "operator", "admin")
READ = {"viewer", "auditor", "responder", "operator", "admin"}
RESPOND = {"responder", "operator", "admin"}
OPERATE = {"operator", "admin"}
ADMIN = {"admin"}
AUDIT = {"auditor", "admin"}
SEND = {"signals"}

#: Path below /api/v1 -> method -> who may.
WHO: dict[str, dict[str, set[str]]] = {
    **{
        path: {"get": READ}
        for path in (
            "/nodes", "/nodes/{cluster}/{node}", "/jobs/{cluster}/{job}", "/incidents", "/incidents/{id}",
            "/runs", "/runs/{id}", "/rules", "/playbooks", "/breaker", "/audit", "/audit/verify", "/stats",
            "/goodput",
            "/signals/catalogue", "/signals/unknown", "/signals/senders", "/signals/losses", "/devices",
            "/devices/{cluster}/{device}", "/scrape", "/messages", "/recordings", "/recordings/done",
            "/rehearsals/{id}", "/rehearsals/{id}/diff", "/rehearsals/{id}/file",
            "/rehearsals/{id}/outcomes", "/tokens", "/sessions", "/break-glass",
        )
    },
    **{
        f"/incidents/{{id}}/{verb}": {"post": RESPOND}
        for verb in ("acknowledge", "assign", "resolve", "reopen", "review", "merge", "split", "note")
    },
    **{
        f"/runs/{{id}}/{verb}": {"post": OPERATE}
        for verb in ("approve", "reject", "cancel", "retry", "undo")
    },
    "/audit/export": {"get": AUDIT},
    "/people/{name}": {"get": AUDIT},
    "/people/{name}/end": {"post": ADMIN},
    "/incidents/{id}/evidence": {"get": OPERATE},
    "/runs/{id}/evidence": {"get": OPERATE},
    "/evidence/{id}": {"get": OPERATE},
    "/playbooks/{name}/runs": {"post": RESPOND},
    "/messages/{id}/retry": {"post": RESPOND},
    "/rules/{name}/mode": {"post": ADMIN},
    "/breaker/reset": {"post": ADMIN},
    "/break-glass/end": {"post": ADMIN},
    "/pauses": {"get": READ, "post": OPERATE},
    "/pauses/{id}": {"delete": OPERATE},
    "/reconcile": {"get": READ, "post": OPERATE},
    "/references": {"get": READ, "post": OPERATE},
    "/references/{cluster}/{kind}": {"delete": OPERATE},
    "/rehearsals": {"get": READ, "post": OPERATE},
    "/rehearsals/{id}/cancel": {"post": OPERATE},
    "/rehearsals/{id}/proof": {"post": ADMIN},
    # A user's own, and all of them for an admin: the route itself checks the owner.
    "/tokens/{id}/revoke": {"post": READ},
    "/sessions/{id}": {"delete": READ},
}  # fmt: skip
#: Without a token: each has a proof of its own, or says nothing of the cluster.
OPEN = {
    "/chat/slack",
    "/enroll",
    "/account/password",
    "/break-glass/open",
    "/login/device",
    "/login/device/finish",
    "/login/munge",
    "/login/slurm",
    "/healthz",
    "/readyz",
    "/openapi.json",
    "/docs",
}
STREAM = "/events/stream"
#: Those of the shipped rules that a responder may start; all others are for operators.
RESPONDERS = {"bisect", "collect-evidence", "foreign-drain", "second-look", "sweep"}


class Desk:
    def __init__(self, api: Api, headers: dict[str, dict[str, str]]) -> None:
        self.api = api
        self.client = TestClient(api.app, base_url="http://healer")
        self.headers = headers

    def ask(self, role: str, method: str, path: str, **body: object) -> int:
        headers = self.headers[role]
        return self.client.request(method, path, headers=headers, json=body or None).status_code


@pytest.fixture
def own(fresh_database: sa.Engine) -> Iterator[Desk]:
    api = Api(fresh_database)
    yield Desk(api, {role: api.headers(role) for role in ROLES})
    api.close()


@pytest.fixture
def signed_in(fresh_database: sa.Engine) -> Iterator[Desk]:
    """People of a provider, each with the role that their group grants."""
    site = Site(fresh_database)
    site.grant(*(Grant(name=role, role=Role(role), groups=(role,)) for role in ROLES if role != "signals"))
    yield Desk(
        site.api, {role: session_headers(site.arrive(role, role)) for role in ROLES if role != "signals"}
    )
    site.api.close()


def filled(path: str) -> str:
    """An address of the route: of something that does not exist."""
    for name in ("id", "cluster", "node", "job", "device", "kind", "name"):
        path = path.replace(f"{{{name}}}", CLUSTER if name == "cluster" else "0" * 32)
    return path


def test_the_table_has_every_route_and_each_role_passes_where_it_says(own: Desk) -> None:
    paths = {path.removeprefix("/api/v1"): set(item) for path, item in own.api.app.openapi()["paths"].items()}
    senders = {path for path in paths if path.startswith(("/signals/", "/hooks/")) and "post" in paths[path]}
    rest = {path: methods for path, methods in paths.items() if path not in senders | OPEN | {STREAM}}
    rest.pop("/metrics", None)
    assert rest == {path: set(methods) for path, methods in WHO.items()}
    assert wrong_in(own, WHO | {path: {"post": SEND} for path in senders}) == []


def test_the_document_says_what_needs_no_token_and_names_the_form_of_each_answer(own: Desk) -> None:
    """A client that is generated from it signs in where it has to, and reads what comes."""
    operations = {
        (method, path): operation
        for path, methods in own.api.app.openapi()["paths"].items()
        for method, operation in methods.items()
    }
    free = {path for (_, path), operation in operations.items() if operation.get("security") == []}
    assert {path.removeprefix("/api/v1") for path in free} == OPEN - {"/openapi.json", "/docs"}
    silent = [
        (method, path)
        for (method, path), operation in operations.items()
        for status, answer in operation["responses"].items()
        if "content" not in answer and status != "204"
    ]
    assert silent == []
    for (method, path), operation in operations.items():
        keyed = any(each["name"] == "Idempotency-Key" for each in operation.get("parameters", ()))
        acts = method != "get" and path not in free and "/signals/" not in path
        assert keyed is acts, (method, path)


def wrong_in(desk: Desk, table: dict[str, dict[str, set[str]]]) -> list[str]:
    """Where a role passes and should not, or does not and should."""
    return [
        f"{role} {method} {path}: {status}"
        for path, methods in table.items()
        for method, allowed in methods.items()
        for role in desk.headers
        if ((status := desk.ask(role, method, f"/api/v1{filled(path)}")) == 403) is (role in allowed)
        or status in (401, 500)
    ]


def test_person_from_the_provider_may_use_the_routes_of_the_group_role(signed_in: Desk) -> None:
    table = {path: methods for path, methods in WHO.items() if path != "/sessions/{id}"}
    assert wrong_in(signed_in, table | {"/signals/heartbeat": {"post": SEND}}) == []


@pytest.mark.parametrize("how", ["own", "signed_in"])
def test_each_playbook_is_for_the_roles_of_its_level(how: str, request: pytest.FixtureRequest) -> None:
    desk: Desk = request.getfixturevalue(how)
    playbooks = shipped().playbooks
    desk.api.rules = msgspec.structs.replace(desk.api.rules, playbooks=playbooks)
    wrong: dict[str, set[str]] = {}
    for name, playbook in playbooks.items():
        what = {"job": "4711"} if playbook.target == "job" else {"node": "gpu0001"}
        run = {"cluster": CLUSTER, "reason": "x", "dry_run": True} | what
        path = f"/api/v1/playbooks/{name}/runs"
        may = {role for role in desk.headers if desk.ask(role, "POST", path, **run) != 403}
        if may != (RESPOND if name in RESPONDERS else OPERATE):
            wrong[name] = may
    assert len(playbooks) >= 30 and wrong == {}


def test_a_token_of_no_person_looks_and_neither_acts_nor_approves(own: Desk) -> None:
    """Such as those that were made before tokens above viewer had a name."""
    power = Playbook(name="power", title="Power", target="node", steps=(Step(id="off", do=Verb.power_cycle),))
    own.api.rules = msgspec.structs.replace(RULES, playbooks=RULES.playbooks | {"power": power})
    old = own.api.tokens.create(NewToken(role=Role.admin), now=datetime.now(UTC), by="root")
    seal_all(own.api.engine)
    own.headers["old"] = {"Authorization": f"Bearer {old}"}
    asked = own.client.post(
        "/api/v1/playbooks/power/runs",
        headers=own.headers["operator"],
        json={"cluster": CLUSTER, "node": "gpu0001", "reason": "x"},
    ).json()["id"]
    assert own.ask("old", "GET", "/api/v1/nodes") == 200
    assert own.ask("old", "POST", f"/api/v1/runs/{asked}/approve", reason="yes") == 403
    refused = own.client.post("/api/v1/pauses", headers=own.headers["old"], json={"reason": "x"})
    assert (refused.status_code, "--name PERSON" in refused.json()["detail"]) == (403, True)
    listed = own.client.get("/api/v1/tokens", headers=own.headers["old"]).json()["items"]
    assert [row["id"] for row in listed] == [id_in(old)], "an admin's list has all"


def test_doctor_names_the_tokens_of_no_person(own: Desk) -> None:
    now, tokens = datetime.now(UTC), own.api.tokens
    assert tokens_of_no_person(own.api.engine, now, provided=False) == []
    old = id_in(tokens.create(NewToken(role=Role.admin), now=now, by="root"))
    tokens.create(NewToken(role=Role.viewer), now=now, by="root")
    tokens.create(NewToken(role=Role.admin, name="ann/ci"), now=now, by="root")
    assert tokens_of_no_person(own.api.engine, now, provided=False) == [f"admin-{old}"]
    local = {"responder", "operator", "admin"}
    assert {*tokens_of_no_person(own.api.engine, now, provided=True)} == {f"admin-{old}", *local}
    look = unowned_tokens_check([f"admin-{number}" for number in range(7)])
    assert (look.ok, "admin-4 and 2 more: no known person" in look.text) == (False, True)


def test_two_tokens_of_one_person_are_one_person(own: Desk) -> None:
    power = Playbook(name="power", title="Power", target="node", steps=(Step(id="off", do=Verb.power_cycle),))
    own.api.rules = msgspec.structs.replace(RULES, playbooks=RULES.playbooks | {"power": power})
    for key, name in (("one", "ann"), ("two", "ann"), ("other", "bob")):
        own.headers[key] = own.api.headers(Role.operator, name=name)
    body = {"cluster": CLUSTER, "node": "gpu0001", "reason": "x"}
    asked = own.client.post("/api/v1/playbooks/power/runs", headers=own.headers["one"], json=body).json()
    approve = f"/api/v1/runs/{asked['id']}/approve"
    assert own.ask("two", "POST", approve, reason="yes") == 403
    assert own.ask("other", "POST", approve, reason="yes") == 200


@pytest.mark.parametrize("end", ["revoked", "expired"])
def test_expired_or_revoked_token_is_refused(own: Desk, end: str) -> None:
    api, now = own.api, datetime.now(UTC)
    bound = {"expires_at": now - timedelta(seconds=1)} if end == "expired" else {}
    token = api.token(Role.admin, name="ann", **bound)
    if end == "revoked":
        assert api.tokens.revoke(token.split("_")[1], by="root", now=now)
    headers = {"Authorization": f"Bearer {token}"}
    for method, path in (("GET", "/nodes"), ("POST", "/pauses"), ("GET", "/tokens")):
        assert own.client.request(method, f"/api/v1{path}", headers=headers).status_code == 401


def test_an_administrator_of_one_cluster_reaches_no_people_and_no_token_of_another(own: Desk) -> None:
    api = own.api
    here = api.token(Role.viewer, name="ann", cluster=CLUSTER).split("_")[1]
    there = api.token(Role.viewer, name="ann", cluster="pod9").split("_")[1]
    everywhere = api.token(Role.viewer, name="ann").split("_")[1]
    own.headers["admin"] = api.headers(Role.admin, name="root", cluster=CLUSTER)
    listed = own.client.get("/api/v1/tokens", headers=own.headers["admin"]).json()["items"]
    assert {row["cluster"] for row in listed} == {CLUSTER}
    for token, status in ((there, 403), (everywhere, 403), (here, 200)):
        assert own.ask("admin", "POST", f"/api/v1/tokens/{token}/revoke", reason="x") == status, token
    assert own.ask("admin", "GET", "/api/v1/people/ann") == 403
    assert own.ask("admin", "POST", "/api/v1/people/ann/end", reason="left") == 403
    assert own.ask("admin", "GET", "/api/v1/tokens?cluster=pod9") == 403


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ("seen_at = now() - interval '7 hours 59 minutes'", 200),
        ("seen_at = now() - interval '8 hours 1 second'", 401),
        ("expires_at = created_at + interval '12 hours'", 200),
        ("expires_at = now() - interval '1 second', seen_at = now()", 401),
    ],
)
def test_a_session_ends_idle_or_at_its_absolute_limit(own: Desk, change: str, status: int) -> None:
    access: Access = own.api.app.state.access
    link = own.api.token(Role.viewer, name="ann", once=True)
    cookie = access.sign_in(link, "192.0.2.1")
    assert cookie is not None
    with own.api.engine.begin() as conn:
        lasts = conn.scalar(sa.text("SELECT expires_at - created_at FROM sessions"))
        assert lasts == timedelta(hours=12)
        conn.execute(sa.text(f"UPDATE sessions SET {change}"))
    headers = {"Cookie": f"healer_session={cookie}"}
    assert own.client.get("/api/v1/nodes", headers=headers).status_code == status


def test_a_token_of_no_person_stays_within_its_cluster(own: Desk) -> None:
    own.api.snapshots.put(msgspec.structs.replace(snapshot(), cluster="pod2"))
    own.api.services = dataclasses.replace(own.api.services, clusters=(CLUSTER, "pod2"))
    own.api.app = create_app(own.api.services)
    own.client = TestClient(own.api.app, base_url="http://healer")
    old = own.api.tokens.create(
        NewToken(role=Role.operator, cluster=CLUSTER), now=datetime.now(UTC), by="root"
    )
    seal_all(own.api.engine)
    own.headers["old"] = {"Authorization": f"Bearer {old}"}
    assert own.ask("old", "GET", f"/api/v1/nodes/{CLUSTER}/gpu0001") == 200
    assert own.ask("old", "GET", "/api/v1/nodes/pod2/gpu0001") == 403
    listed = own.client.get("/api/v1/nodes", headers=own.headers["old"]).json()["items"]
    assert {row["cluster"] for row in listed} == {CLUSTER}
