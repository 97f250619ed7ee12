"""Acting: idempotency, guards' answers, commands to the detector, pauses, modes."""

import hashlib
import threading
from datetime import UTC, datetime, timedelta

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.inbox import PostgresInbox
from healer.adapters.postgres.retention import tidy
from healer.adapters.postgres.tokens import PostgresIdempotency
from healer.model import Component, IncidentState, Mode, Reference, Run, RunState
from healer.ports.callers import KeyInFlight, KeyReused, StoredResponse
from healer.text import quoted
from tests.support.api import CLUSTER, Api, incident, save_incident, save_run
from tests.support.ledgers import consume

Served = tuple[Api, httpx.Client]
DRAIN = "/api/v1/playbooks/drain/runs"


def commands_stored(api: Api) -> int:
    with api.engine.connect() as conn:
        return conn.execute(sa.text("SELECT count(*) FROM inbox WHERE kind = 'command'")).scalar_one()


def test_a_run_is_202_with_its_place(served: Served) -> None:
    api, client = served
    headers = api.headers("operator", name="ann")
    answer = client.post(DRAIN, json={"node": "gpu0001", "reason": "noisy fan"}, headers=headers)
    assert answer.status_code == 202
    assert answer.json()["by"] == "ann"
    found = client.get(answer.headers["Location"], headers=headers)
    assert found.json()["id"] == answer.json()["id"]
    assert [step["state"] for step in found.json()["steps"]] == ["pending"]


def test_a_hold_is_a_run_in_state_held(served: Served) -> None:
    api, client = served
    headers = api.headers("operator")
    client.post(DRAIN, json={"node": "gpu0001", "reason": "x"}, headers=headers)  # it has the one slot
    answer = client.post(DRAIN, json={"node": "gpu0003", "reason": "x"}, headers=headers)
    assert (answer.status_code, answer.json()["state"]) == (202, "held")
    assert "Location" in answer.headers


def test_a_run_on_a_node_that_slurm_does_not_have_is_refused(served: Served) -> None:
    api, client = served
    headers = api.headers("operator", name="ann")
    for playbook in ("drain", "resume"):
        refused = client.post(
            f"/api/v1/playbooks/{playbook}/runs", json={"node": "gpu1", "reason": "x"}, headers=headers
        )
        assert (refused.status_code, "has no node gpu1" in refused.text) == (404, True), playbook
    dry = client.post(DRAIN, json={"node": "gpu1", "dry_run": True}, headers=headers)
    assert (dry.status_code, "has no node gpu1" in dry.text) == (404, True)
    assert client.get("/api/v1/runs", headers=headers).json()["items"] == []


def test_what_is_left_of_a_removed_cluster_is_read_and_not_acted_on(served: Served) -> None:
    """No detector would take the command, and no worker the run: the answer says why."""
    api, client = served
    there = Component(cluster="old", node="gpu0001")
    of_old = msgspec.structs.replace(incident(1), cluster="old", root=there)
    asks = Run(
        id="r" * 24, cluster="old", playbook="drain", node="gpu0001", mode=Mode.approve, by="healer",
        state=RunState.waiting_approval, reason=quoted("x"), rule="gpu-lost", created_at=of_old.opened,
    )  # fmt: skip
    with api.engine.begin() as conn:
        save_incident(conn, of_old)
        save_run(conn, asks)
    headers = api.headers("operator", name="ann")
    things = {f"/api/v1/incidents/{of_old.id}": "acknowledge assign resolve reopen review merge split"}
    things[f"/api/v1/runs/{asks.id}"] = "approve reject cancel retry undo"
    body = {
        "acknowledge": {}, "assign": {"to": "bob", "reason": "x"},
        "review": {"review": "true_fault"}, "merge": {"into": of_old.id, "reason": "x"},
    }  # fmt: skip
    for path, verbs in things.items():
        assert client.get(path, headers=headers).status_code == 200
        for verb in verbs.split():
            answer = client.post(f"{path}/{verb}", json=body.get(verb, {"reason": "x"}), headers=headers)
            why = "there is no cluster old; there are pod1"
            assert (answer.status_code, answer.json()["detail"]) == (404, why), verb
    assert commands_stored(api) == 0


def test_a_refusal_names_the_guard_and_its_figures(served: Served) -> None:
    api, client = served
    api.slurm.person_drain("gpu0004", "PSU", "bob")
    api.look()
    answer = client.post(DRAIN, json={"node": "gpu0004", "reason": "x"}, headers=api.headers("operator"))
    assert answer.status_code == 409
    problem = answer.json()
    assert (problem["code"], problem["guard"]) == ("guard_refused", "ownership")
    assert problem.keys() >= {"limit", "used", "frees_at"}


def test_a_token_bound_to_a_node_restarts_no_jobs_that_span_more(served: Served) -> None:
    api, client = served
    own = api.headers("operator", node="gpu0001", cluster=CLUSTER)
    body = {"node": "gpu0001", "reason": "noisy fan"}
    assert client.post(DRAIN, json=body | {"restart": ["4711"]}, headers=own).status_code == 403
    assert client.post(DRAIN, json=body | {"inputs": {"nodes": "gpu[1-9]"}}, headers=own).status_code == 403
    run = client.post(DRAIN, json=body, headers=own)
    assert run.status_code == 202
    approve = f"/api/v1/runs/{run.json()['id']}/approve"
    refused = client.post(approve, json={"reason": "ok", "restart": ["4711"]}, headers=own)
    assert refused.status_code == 403 and "cannot restart jobs" in refused.json()["detail"]


def test_a_dry_run_does_nothing(served: Served) -> None:
    api, client = served
    headers = api.headers("operator")
    by_query = client.post(DRAIN + "?dry_run=true", json={"node": "gpu0001"}, headers=headers)
    by_body = client.post(DRAIN, json={"node": "gpu0001", "dry_run": True}, headers=headers)
    assert by_query.status_code == by_body.status_code == 200
    assert by_query.json()["outcome"] == "act"
    assert api.runs() == []


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (DRAIN, {"node": "gpu0001"}, "reason"),
        (DRAIN, {"reason": "x"}, "node"),
        (DRAIN, {"node": "gpu0001", "job": "1", "reason": "x"}, "job"),
        (DRAIN, {"node": "gpu0001", "reason": "x", "force": True}, "force"),
        (DRAIN, {"node": 7, "reason": "x"}, "node"),
        ("/api/v1/playbooks/requeue/runs", {"node": "gpu0001", "reason": "x"}, "job"),
        ("/api/v1/runs/r/approve", {}, "reason"),
        ("/api/v1/runs/r/approve", {"reason": "  "}, "reason"),
        ("/api/v1/runs/r/approve", {"reason": "a\x00b"}, "reason"),
        ("/api/v1/pauses", {"scope": "node", "reason": "x"}, "name"),
        ("/api/v1/pauses", {"scope": "moon", "reason": "x"}, "scope"),
        ("/api/v1/pauses", {"reason": "x", "until": "2020-01-01T00:00:00Z"}, "until"),
        ("/api/v1/pauses", {"reason": "x", "until": "2099-01-01T00:00:00"}, "until"),
        # In UTC this is the year 10000. The database stores it, and then no part could read any pause.
        ("/api/v1/pauses", {"reason": "x", "until": "9999-12-31T23:59:59-14:00"}, "until"),
        ("/api/v1/rules/gpu-lost/mode", {"mode": "auto"}, "reason"),
        ("/api/v1/breaker/reset", {}, "reason"),
    ],
)
def test_a_wrong_field_is_named(served: Served, path: str, body: dict, field: str) -> None:
    api, client = served
    answer = client.post(path, json=body, headers=api.headers("admin"))
    assert answer.status_code == 422, answer.text
    assert field in [error["field"] for error in answer.json()["errors"]]


def test_the_same_key_is_the_same_run(served: Served) -> None:
    api, client = served
    headers = {**api.headers("operator"), "Idempotency-Key": "k1"}
    body = {"node": "gpu0001", "reason": "x"}
    first = client.post(DRAIN, json=body, headers=headers)
    again = client.post(DRAIN, json=body, headers=headers)
    other = client.post(DRAIN, json={**body, "reason": "y"}, headers=headers)
    assert (first.status_code, first.content) == (again.status_code, again.content)
    assert first.headers["Location"] == again.headers["Location"]
    assert (other.status_code, other.json()["code"]) == (422, "idempotency_key_reused")
    assert len(api.runs()) == 1


def test_two_at_once_with_one_key_start_one_run(served: Served) -> None:
    api, client = served
    headers = {**api.headers("operator"), "Idempotency-Key": "k2"}
    codes: list[int] = []
    body = {"node": "gpu0001", "reason": "x"}
    threads = [
        threading.Thread(
            target=lambda: codes.append(client.post(DRAIN, json=body, headers=headers).status_code)
        )
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(api.runs()) == 1
    assert set(codes) <= {202, 409} and 202 in codes


def test_a_refusal_is_kept_too(served: Served) -> None:
    api, client = served
    headers = {**api.headers("operator"), "Idempotency-Key": "k3"}
    api.slurm.person_drain("gpu0004", "PSU", "bob")
    api.look()
    body = {"node": "gpu0004", "reason": "x"}
    first, again = (client.post(DRAIN, json=body, headers=headers) for _ in range(2))
    assert first.status_code == again.status_code == 409
    assert first.content == again.content
    assert again.headers["content-type"] == "application/problem+json"


class Killed(BaseException):
    """Simulates a crash in the middle of the work."""


def test_a_key_whose_process_died_is_done_again_under_the_same_id(fresh_database: sa.Engine) -> None:
    kept = PostgresIdempotency(fresh_database)
    now = datetime.now(UTC)
    request = hashlib.sha256(b"body").digest()

    def die() -> StoredResponse:
        raise Killed

    with pytest.raises(Killed):
        kept.once("k", "who", request, now, die)
    with pytest.raises(KeyReused):
        kept.once("k", "who", b"other", now, die)
    answer = StoredResponse(202, {"location": "/x"}, b"{}")
    assert kept.once("k", "who", request, now, lambda: answer) == answer
    assert kept.once("k", "who", request, now, die) == answer


@pytest.mark.parametrize(("stored", "retried"), [(0, 25), (-25, 0)])
def test_no_wrong_clock_makes_a_key_old(fresh_database: sa.Engine, stored: int, retried: int) -> None:
    kept, now, done = PostgresIdempotency(fresh_database), datetime.now(UTC), list[int]()

    def act() -> StoredResponse:
        done.append(1)
        return StoredResponse(202, {}, b"{}")

    for hours in (stored, retried):
        kept.once("k", "who", b"r", now + timedelta(hours=hours), act)
        tidy(fresh_database, now)
    assert done == [1]


def test_a_key_in_flight_is_said_so(fresh_database: sa.Engine) -> None:
    kept = PostgresIdempotency(fresh_database)
    now = datetime.now(UTC)

    def meanwhile() -> StoredResponse:
        with pytest.raises(KeyInFlight):
            kept.once("k", "who", b"r", now, lambda: StoredResponse(200, {}, b""))
        return StoredResponse(201, {}, b"done")

    assert kept.once("k", "who", b"r", now, meanwhile).status == 201


def test_a_command_reaches_the_inbox_with_its_record(served: Served) -> None:
    api, client = served
    with api.engine.begin() as conn:
        save_incident(conn, incident(1))
    headers = {**api.headers("responder", name="bob"), "Idempotency-Key": "ack"}
    path = f"/api/v1/incidents/{incident(1).id}/acknowledge"
    stop = threading.Event()

    def detector() -> None:
        inbox = PostgresInbox(api.engine, CLUSTER)
        while not stop.wait(0.01):
            with api.engine.begin() as conn:
                consume(conn, inbox.unconsumed(10), datetime.now(UTC))

    thread = threading.Thread(target=detector)
    thread.start()
    try:
        answer = client.post(path, json={}, headers=headers)
    finally:
        stop.set()
        thread.join()
    assert answer.status_code == 200
    assert client.post(path, json={}, headers=headers).content == answer.content
    assert commands_stored(api) == 1
    records = client.get("/api/v1/audit?verb=incident.", headers=api.headers("auditor")).json()["items"]
    assert [(one["actor"], one["verb"]) for one in records] == [("bob", "incident.acknowledged")]


def test_without_a_detector_the_answer_is_202(served: Served) -> None:
    api, client = served
    with api.engine.begin() as conn:
        save_incident(conn, incident(1))
        save_incident(conn, incident(2, state=IncidentState.resolved))
    headers = api.headers("responder")
    path = "/api/v1/incidents/{}/{}"
    review = client.post(
        path.format(incident(1).id[:8], "review"), json={"review": "true_fault"}, headers=headers
    )
    assert review.status_code == 202
    reason = {"reason": "x"}
    assert client.post(path.format(incident(1).id, "reopen"), json=reason, headers=headers).status_code == 409
    assert (
        client.post(path.format(incident(2).id, "resolve"), json=reason, headers=headers).status_code == 409
    )
    itself = {"into": incident(1).id, "reason": "x"}
    assert client.post(path.format(incident(1).id, "merge"), json=itself, headers=headers).status_code == 422
    alone = client.post(path.format(incident(1).id, "split"), json=reason, headers=headers)
    assert alone.status_code == 409 and "no incident was merged" in alone.json()["detail"]
    assert commands_stored(api) == 1


def test_split_takes_named_parts_or_all_merged_incidents(served: Served) -> None:
    api, client = served
    parts = [incident(n, state=IncidentState.resolved, merged_into=incident(1).id) for n in (2, 3)]
    with api.engine.begin() as conn:
        for one in (incident(1), *parts):
            save_incident(conn, one)
    headers, path = api.headers("responder"), f"/api/v1/incidents/{incident(1).id}/split"
    wrong = client.post(path, json={"incidents": [incident(1).id], "reason": "x"}, headers=headers)
    assert wrong.status_code == 422 and "was not merged into" in wrong.text
    one = {"incidents": [parts[0].id], "reason": "x"}
    assert client.post(path, json=one, headers=headers).status_code == 202
    assert client.post(path, json={"reason": "y"}, headers=headers).status_code == 202
    pending = PostgresInbox(api.engine, CLUSTER).unconsumed(10)
    asked = [sorted(row.data["data"]["incidents"]) for row in pending]
    assert asked == [[parts[0].id], [one.id for one in parts]]


def test_notes_are_shown_on_the_incident(served: Served) -> None:
    api, client = served
    with api.engine.begin() as conn:
        save_incident(conn, incident(1))
    headers = {**api.headers("responder", name="bob"), "Idempotency-Key": "n"}
    path = f"/api/v1/incidents/{incident(1).id}"
    for _ in range(2):
        assert client.post(path + "/note", json={"note": "reseated"}, headers=headers).status_code == 200
    detail = client.get(path, headers=headers).json()
    assert [(one["by"], one["text"]) for one in detail["notes"]] == [("bob", "reseated")]
    assert [one["kind"] for one in detail["timeline"]] == ["note"]
    assert detail["jobs_hit"] == ["4711"]
    assert detail["jobs"][0]["user"] == "alice"


def test_a_pause_is_seen_at_once_and_ends_once(served: Served) -> None:
    api, client = served
    headers = api.headers("operator", name="ann")
    made = client.post(
        "/api/v1/pauses", json={"scope": "node", "name": "gpu0001", "reason": "x"}, headers=headers
    )
    assert made.status_code == 201
    assert made.json()["cluster"] == CLUSTER
    assert len(client.get("/api/v1/pauses", headers=headers).json()["items"]) == 1
    place = made.headers["Location"]
    assert client.request("DELETE", place, json={"reason": "done"}, headers=headers).status_code == 200
    assert client.get("/api/v1/pauses", headers=headers).json()["items"] == []
    assert client.delete(place, headers=headers).status_code == 404


@pytest.mark.parametrize(
    "misspelt",
    [
        {"scope": "cluster", "name": "pod-1"},
        {"scope": "all", "cluster": "pod-1"},
        {"scope": "node", "name": "gpu0001", "cluster": "pod-1"},
        {"scope": "node", "name": "gpu1"},
        {"scope": "partition", "name": "gppu"},
    ],
)
def test_a_pause_of_what_is_not_there_is_refused(served: Served, misspelt: dict[str, str]) -> None:
    api, client = served
    headers = api.headers("operator", name="ann")
    refused = client.post("/api/v1/pauses", json=misspelt | {"reason": "x"}, headers=headers)
    assert refused.status_code == 404
    assert any(words in refused.text for words in ("there is no", "has no node", "in partition gppu"))
    assert client.get("/api/v1/pauses", headers=headers).json()["items"] == []


@pytest.mark.parametrize(("words", "status"), [("%20", 200), ("a%00b", 422), ("done", 200)])
def test_the_reason_for_the_end_of_a_pause_may_be_in_the_query(
    served: Served, words: str, status: int
) -> None:
    api, client = served
    headers = api.headers("operator", name="ann")
    asked = {"scope": "node", "name": "gpu0001", "reason": "x"}
    place = client.post("/api/v1/pauses", json=asked, headers=headers).headers["Location"]
    ended = client.delete(f"{place}?reason={words}", headers=headers)
    assert ended.status_code == status, ended.text
    if status == 422:
        assert "reason" in ended.text


@pytest.mark.parametrize("kept", [True, False])
def test_a_repeated_end_of_a_pause_gets_the_first_answer(served: Served, kept: bool) -> None:
    """Its answer was lost on the way, or with the process that gave it."""
    api, client = served
    headers = api.headers("operator", name="ann", cluster=CLUSTER) | {"Idempotency-Key": "end"}
    made = client.post(
        "/api/v1/pauses", json={"scope": "node", "name": "gpu0001", "reason": "x"}, headers=headers
    )
    place, headers["Idempotency-Key"] = made.headers["Location"], "over"
    first = client.request("DELETE", place, json={"reason": "done"}, headers=headers)
    if not kept:
        with api.engine.begin() as conn:
            conn.execute(sa.text("UPDATE idempotency SET status = NULL, headers = NULL, body = NULL"))
    again = client.request("DELETE", place, json={"reason": "done"}, headers=headers)
    assert (first.status_code, again.status_code, again.json()["id"]) == (200, 200, first.json()["id"])
    other = headers | {"Idempotency-Key": "another"}
    assert client.request("DELETE", place, json={"reason": "done"}, headers=other).status_code == 404


def test_a_reference_that_is_forgotten_twice_gets_the_first_answer(served: Served) -> None:
    api, client = served
    at, facts = datetime.now(UTC), {"driver": "570.1"}
    h100 = Reference(cluster=CLUSTER, kind="h100", node="gpu0001", at=at, by="ann", facts=facts)
    api.services.controls.learn(h100, reason="x", request="1")
    headers = api.headers("operator", name="ann") | {"Idempotency-Key": "forget"}
    path = f"/api/v1/references/{CLUSTER}/h100"
    assert [client.delete(path, headers=headers).status_code for _ in range(2)] == [200, 200]
    headers["Idempotency-Key"] = "another"
    assert client.delete(path, headers=headers).status_code == 404


def test_mode_set_at_runtime_overrides_the_file(served: Served) -> None:
    api, client = served
    headers = api.headers("admin", name="root")
    path = "/api/v1/rules/gpu-lost/mode"
    answer = client.post(path, json={"mode": "approve", "reason": "first week"}, headers=headers)
    assert answer.status_code == 200
    rule = client.get("/api/v1/rules", headers=headers).json()["items"][0]
    assert (rule["mode"], rule["mode_from"], rule["mode_by"]) == ("approve", "running", "root")
    assert (
        client.post(
            "/api/v1/rules/nosuch/mode", json={"mode": "off", "reason": "x"}, headers=headers
        ).status_code
        == 404
    )


@pytest.mark.parametrize(
    ("query", "en", "zh"),
    [
        ("incidents?limit=0", "limit: must be at least 1", "limit：不得小于 1"),
        ("incidents?limit=501", "limit: must be at most 500", "limit：不得大于 500"),
        ("incidents?limit=some", "limit: must be a whole number", "limit：必须是整数"),
        ("incidents?severity=P9", "severity: must be P0, P1, P2 or P3", "severity：必须是 P0，P1，P2 或 P3"),
        (
            "stats?since=yesterday",
            "since: must be a time such as 2026-11-01T00:00:00Z",
            "since：必须是时间，例如 2026-11-01T00:00:00Z",
        ),
    ],
)
def test_a_wrong_value_is_explained_in_the_callers_language(
    served: Served, query: str, en: str, zh: str
) -> None:
    api, client = served
    headers = api.headers("viewer")
    for language, text in (("en", en), ("zh", zh)):
        answer = client.get(f"/api/v1/{query}", headers=headers | {"Accept-Language": language})
        assert (answer.status_code, answer.json()["detail"]) == (422, text)


@pytest.mark.parametrize(
    ("body", "en"),
    [
        ({"reason": "x", "unti": "2099-01-01T00:00:00Z"}, "unti: there is no such field"),
        ({}, "reason: is required"),
        ({"reason": 7}, "reason: must be a string"),
        ([], "body: must be a JSON object"),
    ],
)
def test_a_wrong_body_is_explained_without_the_words_of_a_library(
    served: Served, body: object, en: str
) -> None:
    api, client = served
    answer = client.post("/api/v1/pauses", json=body, headers=api.headers("operator", name="ann"))
    assert (answer.status_code, answer.json()["detail"]) == (422, en)
