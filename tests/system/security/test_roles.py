"""Every route declares a role, every role reaches what it may and nothing else, and refusals are recorded."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute, Route

from healer.api.access import ALLOWED, Need
from healer.model import Role
from tests.support.api import Api, incident, save_incident
from tests.support.routes import routes_of
from tests.support.wait import wait_until

Served = tuple[Api, httpx.Client]

#: What needs no token, and why: liveness and readiness for load balancers, and a document of no secrets.
OPEN = {"/healthz", "/readyz", "/openapi.json", "/docs"}
#: Whose callers bring another proof than a token: tests/system/security/test_enroll.py.
PROVEN = {
    *("/enroll", "/chat/slack", "/account/password", "/break-glass/open"),
    *("/login/device", "/login/device/finish", "/login/munge", "/login/slurm"),
}

#: Whose errors are those of its own protocol, google.rpc.Status: 7 is PERMISSION_DENIED.
OTLP = "/api/v1/signals/otlp/"

#: (method, path, body, least role); what a POST about something unknown answers past the role is 404.
MATRIX = [
    ("GET", "/api/v1/nodes", None, Role.viewer),
    ("GET", "/api/v1/nodes/pod1/gpu0001", None, Role.viewer),
    ("GET", "/api/v1/jobs/pod1/4711", None, Role.viewer),
    ("GET", "/api/v1/incidents", None, Role.viewer),
    ("GET", "/api/v1/runs", None, Role.viewer),
    ("GET", "/api/v1/rules", None, Role.viewer),
    ("GET", "/api/v1/playbooks", None, Role.viewer),
    ("GET", "/api/v1/pauses", None, Role.viewer),
    ("GET", "/api/v1/breaker", None, Role.viewer),
    ("GET", "/api/v1/audit", None, Role.viewer),
    ("GET", "/api/v1/audit/verify", None, Role.viewer),
    ("GET", "/api/v1/stats", None, Role.viewer),
    ("GET", "/api/v1/goodput", None, Role.viewer),
    ("GET", "/api/v1/recordings", None, Role.viewer),
    ("GET", "/api/v1/recordings/done", None, Role.viewer),
    ("GET", "/api/v1/rehearsals", None, Role.viewer),
    ("POST", "/api/v1/rehearsals", {"file": "policies.yaml", "text": "x", "reason": "x"}, Role.operator),
    ("GET", "/api/v1/rehearsals/none", None, Role.viewer),
    ("GET", "/api/v1/rehearsals/none/diff", None, Role.viewer),
    ("GET", "/api/v1/rehearsals/none/file", None, Role.viewer),
    ("GET", "/api/v1/rehearsals/none/outcomes", None, Role.viewer),
    ("POST", "/api/v1/rehearsals/none/cancel", {"reason": "x"}, Role.operator),
    ("POST", "/api/v1/rehearsals/none/proof", {"rule": "x", "reason": "x"}, Role.admin),
    ("GET", "/api/v1/reconcile", None, Role.viewer),
    ("POST", "/api/v1/reconcile", {"reason": "x"}, Role.operator),
    ("GET", "/api/v1/references", None, Role.viewer),
    ("POST", "/api/v1/references", {"node": "none"}, Role.operator),
    ("DELETE", "/api/v1/references/pod1/none", None, Role.operator),
    ("GET", "/metrics", None, Role.viewer),
    ("GET", "/api/v1/break-glass", None, Role.viewer),
    ("POST", "/api/v1/break-glass/end", {"reason": "x"}, Role.admin),
    ("GET", "/api/v1/audit/export", None, Role.auditor),
    ("POST", "/api/v1/incidents/none/acknowledge", {}, Role.responder),
    ("POST", "/api/v1/incidents/none/note", {"note": "x"}, Role.responder),
    ("POST", "/api/v1/incidents/none/resolve", {"reason": "x"}, Role.responder),
    ("POST", "/api/v1/incidents/none/reopen", {"reason": "x"}, Role.responder),
    ("POST", "/api/v1/incidents/none/review", {"review": "unclear"}, Role.responder),
    ("GET", "/api/v1/messages", None, Role.viewer),
    ("GET", "/api/v1/incidents/none/evidence", None, Role.operator),
    ("GET", "/api/v1/runs/none/evidence", None, Role.operator),
    ("GET", "/api/v1/evidence/none", None, Role.operator),
    ("POST", "/api/v1/messages/none/retry", {"reason": "x"}, Role.responder),
    ("POST", "/api/v1/incidents/none/merge", {"into": "x", "reason": "x"}, Role.responder),
    ("POST", "/api/v1/incidents/none/split", {"reason": "x"}, Role.responder),
    ("POST", "/api/v1/playbooks/collect/runs", {"node": "gpu0001", "reason": "x"}, Role.responder),
    ("POST", "/api/v1/playbooks/drain/runs", {"node": "gpu0001", "reason": "x"}, Role.operator),
    ("POST", "/api/v1/playbooks/drain/runs?dry_run=true", {"node": "gpu0001"}, Role.operator),
    ("POST", "/api/v1/runs/none/approve", {"reason": "x"}, Role.operator),
    ("POST", "/api/v1/runs/none/reject", {"reason": "x"}, Role.operator),
    ("POST", "/api/v1/runs/none/cancel", {"reason": "x"}, Role.operator),
    ("POST", "/api/v1/runs/none/retry", {"reason": "x"}, Role.operator),
    ("POST", "/api/v1/runs/none/undo", {"reason": "x"}, Role.operator),
    ("POST", "/api/v1/pauses", {"reason": "x"}, Role.operator),
    ("DELETE", "/api/v1/pauses/none", None, Role.operator),
    ("POST", "/api/v1/rules/gpu-lost/mode", {"mode": "shadow", "reason": "x"}, Role.admin),
    ("POST", "/api/v1/breaker/reset", {"reason": "x"}, Role.admin),
    ("POST", "/api/v1/signals/heartbeat", {"node": "gpu0001"}, Role.signals),
    ("POST", "/api/v1/signals/kernel-log", {"node": "gpu0001", "entries": []}, Role.signals),
    ("POST", "/api/v1/signals/metrics", {"node": "gpu0001"}, Role.signals),
    ("POST", "/api/v1/signals/step-times", {"job": "4711", "samples": []}, Role.signals),
    ("POST", "/api/v1/signals/checkpoints", [], Role.signals),
    ("POST", "/api/v1/signals/hooks/prolog", {"node": "gpu0001"}, Role.signals),
    ("POST", "/api/v1/signals/hooks/epilog", {"node": "gpu0001"}, Role.signals),
    ("POST", "/api/v1/signals/hooks/health-check", [], Role.signals),
    ("POST", "/api/v1/signals/prometheus/write", b"\0", Role.signals),
    ("POST", "/api/v1/signals/openmetrics", b"# EOF\n", Role.signals),
    ("POST", "/api/v1/signals/nvidia-smi?node=gpu0001", b"<nvidia_smi_log/>", Role.signals),
    ("POST", "/api/v1/signals/alertmanager", {"version": "4", "alerts": []}, Role.signals),
    (
        "POST",
        "/api/v1/signals/cloudevents",
        {"specversion": "1.0", "id": "1", "source": "/x", "type": "com.example.other"},
        Role.signals,
    ),
    ("POST", "/api/v1/signals/logs", [], Role.signals),
    ("POST", "/api/v1/signals/otlp/v1/logs", {}, Role.signals),
    ("POST", "/api/v1/signals/otlp/v1/metrics", {}, Role.signals),
    ("GET", "/api/v1/signals/catalogue", None, Role.viewer),
    ("GET", "/api/v1/signals/unknown", None, Role.viewer),
    ("GET", "/api/v1/signals/losses", None, Role.viewer),
    ("GET", "/api/v1/signals/senders", None, Role.viewer),
    ("GET", "/api/v1/scrape", None, Role.viewer),
    ("GET", "/api/v1/sessions", None, Role.viewer),
    ("DELETE", "/api/v1/sessions/none", {}, Role.viewer),
    ("GET", "/api/v1/tokens", None, Role.viewer),
    ("GET", "/api/v1/people/none", None, Role.auditor),
    ("POST", "/api/v1/people/none/end", {"reason": "x"}, Role.admin),
    ("POST", "/api/v1/incidents/none/assign", {"to": "x", "reason": "x"}, Role.responder),
    ("POST", "/api/v1/tokens/none/revoke", {"reason": "x"}, Role.viewer),
    ("GET", "/api/v1/devices", None, Role.viewer),
    ("GET", "/api/v1/devices/pod1/leaf1", None, Role.viewer),
]


def content(body: Any) -> dict[str, Any]:
    return {"content": body} if isinstance(body, bytes) else {"json": body}


def needs(dependant: Dependant) -> Iterator[Need]:
    for inner in dependant.dependencies:
        if isinstance(inner.call, Need):
            yield inner.call
        yield from needs(inner)


def declared(route: BaseRoute) -> bool:
    if isinstance(route, APIRoute):
        return route.path in OPEN | PROVEN or any(needs(route.dependant))
    if isinstance(route, Route):
        owner = getattr(route.endpoint, "__self__", None)
        return getattr(owner, "role", None) is Role.signals
    return False


def test_every_route_declares_a_role(served: Served) -> None:
    api, _ = served
    found = list(routes_of(api.app.routes))
    assert len(found) > 30
    assert [route for route in found if not declared(route)] == []


def test_the_matrix_knows_every_route(served: Served) -> None:
    """A new route must be added to the matrix (the event stream has a test of its own)."""
    api, _ = served
    asked = {(method, path.partition("?")[0]) for method, path, _, _ in MATRIX}
    missing = []
    for path, operations in api.app.openapi()["paths"].items():
        pattern = re.compile(re.sub(r"\{[^}]*\}", "[^/]+", path))
        for method in operations:
            if path.removeprefix("/api/v1") in PROVEN:
                continue
            if path in OPEN | {"/api/v1/events/stream", "/api/v1/incidents/{id}", "/api/v1/runs/{id}"}:
                continue
            if not any(one[0] == method.upper() and pattern.fullmatch(one[1]) for one in asked):
                missing.append((method, path))
    assert missing == []


@pytest.mark.parametrize("role", list(Role))
def test_the_matrix_of_roles(served: Served, role: Role) -> None:
    api, client = served
    headers = api.headers(role)
    for method, path, body, least in MATRIX:
        answer = client.request(method, path, headers=headers, **content(body))
        if role in ALLOWED[least]:
            assert answer.status_code not in {401, 403}, (role, method, path, answer.text)
        else:
            assert answer.status_code == 403, (role, method, path, answer.text)
            assert answer.json()["code"] == (7 if path.startswith(OTLP) else "forbidden")


def test_without_a_token_everything_but_the_open_routes_is_401(served: Served) -> None:
    _, client = served
    for method, path, body, _ in [*MATRIX, ("GET", "/api/v1/events/stream", None, Role.viewer)]:
        answer = client.request(method, path, **content(body))
        assert answer.status_code == 401, path
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
        kind = "application/json" if path.startswith(OTLP) else "application/problem+json"
        assert answer.headers["content-type"] == kind
    for path in OPEN:
        assert client.get(path).status_code in {200, 503}


@pytest.mark.parametrize(
    "value", ["", "Bearer", "Bearer x", "Basic abc", "Bearer heal_0_0", "Bearer heal_\xe9"]
)
def test_wrong_credentials_are_401(served: Served, value: str) -> None:
    _, client = served
    assert client.get("/api/v1/nodes", headers={"Authorization": value.encode("latin-1")}).status_code == 401


def test_a_revoked_token_is_refused_within_a_second(served: Served) -> None:
    api, client = served
    token = api.token("viewer")
    headers = {"Authorization": f"Bearer {token}"}
    assert client.get("/api/v1/nodes", headers=headers).status_code == 200
    assert api.tokens.revoke(token.split("_")[1], by="test", now=api.services.clock.now())
    wait_until(lambda: client.get("/api/v1/nodes", headers=headers).status_code == 401, 1.5)


def test_a_bound_token_reaches_its_own_and_nothing_else(served: Served) -> None:
    api, client = served
    with api.engine.begin() as conn:
        save_incident(conn, incident(1))
        save_incident(conn, incident(2, node="gpu0002"))
    mine = api.headers("operator", node="gpu0001")
    assert client.get("/api/v1/nodes/pod1/gpu0001", headers=mine).status_code == 200
    assert client.get(f"/api/v1/incidents/{incident(1).id}", headers=mine).status_code == 200
    for path in (
        "/api/v1/nodes",
        "/api/v1/incidents",
        "/api/v1/nodes/pod1/gpu0002",
        "/api/v1/jobs/pod1/4711",
    ):
        assert client.get(path, headers=mine).status_code == 403, path
    assert client.get(f"/api/v1/incidents/{incident(2).id}", headers=mine).status_code == 403
    other = {"node": "gpu0002", "reason": "x"}
    assert client.post("/api/v1/playbooks/drain/runs", json=other, headers=mine).status_code == 403
    own = {"node": "gpu0001", "reason": "x"}
    assert client.post("/api/v1/playbooks/drain/runs", json=own, headers=mine).status_code == 202
    assert client.post("/api/v1/pauses", json={"reason": "x"}, headers=mine).status_code == 403
    elsewhere = api.headers("admin", cluster="pod2")
    assert client.get("/api/v1/nodes?cluster=pod1", headers=elsewhere).status_code == 403
    assert client.get("/api/v1/incidents", headers=elsewhere).json()["items"] == []
    assert client.get("/api/v1/nodes/pod1/gpu0001", headers=elsewhere).status_code == 403


#: What a token bound to a job may do, as long as it speaks of that job.
OF_JOBS = {"/api/v1/signals/step-times", "/api/v1/signals/checkpoints"}


def test_a_token_bound_to_a_job_reaches_two_routes_of_all(served: Served) -> None:
    api, client = served
    headers = api.headers("signals", job="4711")
    for method, path, body, _ in MATRIX:
        answer = client.request(method, path, headers=headers, **content(body))
        assert (answer.status_code == 403) is (path not in OF_JOBS), (method, path, answer.text)
    assert client.get("/api/v1/events/stream", headers=headers).status_code == 403


def test_refusals_are_recorded_once(served: Served) -> None:
    api, client = served
    headers = api.headers("viewer", name="eve")
    for _ in range(5):
        client.post("/api/v1/pauses", json={"reason": "x"}, headers=headers)
    page = client.get("/api/v1/audit?verb=access.refused", headers=api.headers("auditor")).json()
    assert len(page["items"]) == 1
    assert page["items"][0]["actor"] == "eve"
    assert page["items"][0]["data"]["what"] == "POST /api/v1/pauses"
