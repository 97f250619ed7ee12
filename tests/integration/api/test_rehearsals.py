"""Changes of rules that are tried: one at a time, and made proof only by a person; on PostgreSQL."""

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.rehearsals import PostgresRehearsals
from healer.adapters.postgres.rule_rows import proofs
from healer.adapters.postgres.tables import audit_records, rule_texts
from healer.model import Incident, IncidentState, Mode, Proof, Review
from healer.model.recordings import Recordings
from healer.ports.request_errors import Unavailable
from healer.processes.scheduler import LONGEST_REHEARSAL, Rehearsing
from healer.sim.sim_clock import SimClock
from healer.text import stored_json
from tests.support.api import CLUSTER, RULES, Api, incident, save_incident
from tests.support.loop import SHIPPED

Served = tuple[Api, httpx.Client]
TRY = "/api/v1/rehearsals"
BODY = {"file": "policies.yaml", "text": "- name: gpu-lost\n  senses: 2\n", "reason": "two false alarms"}
DIGEST = RULES.texts["rule/gpu-lost"]
MODE = "/api/v1/rules/gpu-lost/mode"
AUTO = {"mode": "auto", "reason": "the replay says so"}
NOTHING: dict[str, Any] = {
    "incidents": {"new": [], "lost": [], "changed": []},
    "actions": {"new": [], "lost": [], "moved": []},
    "held": [],
    "rules": [],
}


def asked(served: Served, **more: Any) -> dict[str, Any]:
    api, client = served
    answer = client.post(TRY, json=BODY | more, headers=api.headers("operator", name="ann"))
    assert answer.status_code == 202, answer.text
    assert answer.headers["location"] == f"{TRY}/{answer.json()['id']}"
    return answer.json()


def finished(served: Served, opened: list[str], missed: list[str] = [], digest: str = DIGEST) -> str:  # noqa: B006
    """A change that was replayed, and in which gpu-lost opened these."""
    api, _ = served
    name = asked(served)["id"]
    book, now = PostgresRehearsals(api.engine), datetime.now(UTC)
    assert book.claim(CLUSTER, now) is not None
    opened_by_rule = [{"rule": "gpu-lost", "digest": digest, "incidents": opened, "missed": missed}]
    book.end(name, now, result=NOTHING | {"opened": opened_by_rule})
    return name


def judged(number: int, review: Review | None = Review.true_fault, **more: Any) -> Incident:
    return incident(number, state=IncidentState.resolved, review=review, **more)


def save(api: Api, *those: Incident) -> list[str]:
    with api.engine.begin() as conn:
        for one in those:
            save_incident(conn, one)
    return [one.id for one in those]


def counted(api: Api, digests: dict[str, tuple[str, str]] | None = None) -> Proof:
    with api.engine.connect() as conn:
        proven_texts = RULES.digests if digests is None else digests
        found = proofs(conn, 30, rules=["gpu-lost"], digests=proven_texts)
        return found.get("gpu-lost", Proof())


def prove(served: Served, name: str, role: str = "admin", **more: Any) -> httpx.Response:
    api, client = served
    body = {"rules": ["gpu-lost"], "reason": "reviewed with its replay"} | more
    return client.post(f"{TRY}/{name}/proof", json=body, headers=api.headers(role, name="root"))


# --- asking


@pytest.mark.parametrize(
    ("change", "status", "says"),
    [
        ({"text": "wrong"}, 422, "policies.yaml:1: no such field"),
        ({"file": "../secrets"}, 422, "a file of rules/"),
        ({"text": "- name: gpu-lost\n"}, 422, "already contains this"),
        ({"days": 32}, 422, ""),
        ({"reason": " "}, 422, ""),
    ],
)
def test_request_for_an_impossible_rehearsal_is_refused_with_the_reason(
    served: Served, change: dict[str, Any], status: int, says: str
) -> None:
    api, client = served
    answer = client.post(TRY, json=BODY | change, headers=api.headers("operator"))
    assert answer.status_code == status
    assert says in answer.text


@pytest.mark.parametrize("file", ["xid.yaml", "signals.yaml"])
def test_the_largest_files_of_rules_can_be_tried(served: Served, file: str) -> None:
    text = (SHIPPED / file).read_text() + "\n# a change\n"
    assert asked(served, file=file, text=text)["file"] == file


def test_without_a_recording_nothing_can_be_tried(served: Served) -> None:
    api, client = served
    services = api.app.state.services
    api.app.state.services = dataclasses.replace(services, recordings=lambda _: Recordings(on=False))
    answer = client.post(TRY, json=BODY, headers=api.headers("operator"))
    assert answer.status_code == 409
    assert "HEALER_RECORDING" in answer.json()["detail"]


def test_one_is_tried_at_a_time_and_a_cancelled_one_makes_room(served: Served) -> None:
    api, client = served
    headers = api.headers("operator", name="ann")
    first = asked(served)
    again = client.post(TRY, json=BODY, headers=headers)
    assert again.status_code == 409
    assert "another change" in again.json()["detail"]
    assert client.post(f"{TRY}/{first['id']}/cancel", json={}, headers=headers).status_code == 422
    for _ in range(2):
        ended = client.post(f"{TRY}/{first['id']}/cancel", json={"reason": "a typo"}, headers=headers)
        assert (ended.status_code, ended.json()["state"]) == (200, "cancelled")
    second = asked(served)
    listed = client.get(TRY, headers=headers).json()["items"]
    assert [one["id"] for one in listed] == [second["id"], first["id"]]
    assert {one["text"] for one in listed} == {""}
    with api.engine.connect() as conn:
        verbs = list(conn.execute(sa.select(audit_records.c.verb).order_by(audit_records.c.id)).scalars())
    assert [one for one in verbs if one.startswith("rehearsal")] == [
        "rehearsal.asked", "rehearsal.cancelled", "rehearsal.asked",
    ]  # fmt: skip


def test_the_change_is_there_to_take_away_and_nothing_is_applied(served: Served) -> None:
    api, client = served
    name = asked(served)["id"]
    headers = api.headers("viewer")
    answer = client.get(f"{TRY}/{name}/diff", headers=headers)
    assert answer.text == (
        "--- a/rules/policies.yaml\n+++ b/rules/policies.yaml\n"
        "@@ -1 +1,2 @@\n - name: gpu-lost\n+  senses: 2\n"
    )
    assert client.get(f"{TRY}/{name}/file", headers=headers).text == BODY["text"]
    assert api.app.state.services.rule_files.text("policies.yaml") == "- name: gpu-lost\n"
    assert client.get(f"{TRY}/none", headers=headers).status_code == 404


@pytest.mark.parametrize(("role", "status"), [("viewer", 403), ("responder", 403), ("operator", 202)])
def test_only_operators_may_start_a_rehearsal(served: Served, role: str, status: int) -> None:
    api, client = served
    assert client.post(TRY, json=BODY, headers=api.headers(role)).status_code == status


def test_recordings_and_what_was_done_are_listed(served: Served) -> None:
    api, client = served
    headers = api.headers("viewer")
    assert client.get("/api/v1/recordings", headers=headers).json()["files"][0]["lines"] == 7
    ids = save(api, judged(1), judged(300))
    now = datetime.now(UTC)
    span = {"since": (now - timedelta(hours=1)).isoformat(), "until": now.isoformat()}
    body = client.get("/api/v1/recordings/done", params=span, headers=headers).json()
    assert [one["id"] for one in body["incidents"]] == ids[:1]
    assert body["incidents"][0]["rule"] == "gpu-lost"
    assert set(body) == {"incidents", "merged", "actions", "held", "differences"}
    bare = {name: value.removesuffix("+00:00") for name, value in span.items()}
    assert client.get("/api/v1/recordings/done", params=bare, headers=headers).status_code == 422


# --- proof


def test_only_incidents_that_the_edited_rule_opens_count_for_its_proof(served: Served) -> None:
    api, _ = served
    kept = save(api, *(judged(number) for number in range(10, 40)), judged(40, Review.false_alarm))
    mended = save(api, *(judged(number, Review.false_alarm) for number in range(41, 44)))
    assert counted(api) == Proof(right=30, wrong=0)
    save(api, *(judged(number, Review.false_alarm) for number in range(1, 4)))
    assert counted(api) == Proof(right=27, wrong=3)
    name = finished(served, kept, mended)
    (proof,) = prove(served, name).json()["items"]
    assert (proof["right"], proof["wrong"], proof["missed_wrong"], proof["missed_true"]) == (30, 1, 3, 0)
    assert proof["counted_by"] == "root"
    assert counted(api) == Proof(right=30, wrong=0)  # the newest 30 of those 31
    assert counted(api, {"rule/gpu-lost": ("edited again", "as before")}) == Proof(right=27, wrong=3)
    answer = api_mode(served)
    assert answer.status_code == 200, answer.text


def api_mode(served: Served) -> httpx.Response:
    api, client = served
    return client.post(MODE, json=AUTO, headers=api.headers("admin", name="root"))


def test_without_a_person_asking_a_replay_proves_nothing(served: Served) -> None:
    api, _ = served
    kept = save(api, *(judged(number) for number in range(10, 40)))
    save(api, *(judged(number, Review.false_alarm) for number in range(1, 4)))
    finished(served, kept)
    assert counted(api) == Proof(right=27, wrong=3)
    assert api_mode(served).status_code == 409


def test_one_outcome_counts_once_and_a_later_review_counts_for_what_it_says(served: Served) -> None:
    api, _ = served
    ids = save(api, *(judged(number) for number in range(10, 13)))
    for _ in range(2):
        name = finished(served, ids)
        for _ in range(2):
            assert prove(served, name).status_code == 200
        assert counted(api) == Proof(right=3)
    changed = judged(10, Review.false_alarm)
    with api.engine.begin() as conn:
        conn.execute(
            sa.text("UPDATE incidents SET doc = :doc WHERE id = :id"),
            {"doc": stored_json(changed).decode(), "id": changed.id},
        )
    assert counted(api) == Proof(right=2, wrong=1)
    with api.engine.connect() as conn:
        proven = sa.select(audit_records.c.data).where(audit_records.c.verb == "rule.proven_by_replay")
        (data,) = conn.execute(proven).scalars()
    assert (data["right"], data["wrong"], data["reason"]) == (3, 0, "reviewed with its replay")


@pytest.mark.parametrize("digest", RULES.digests["rule/gpu-lost"])
def test_incidents_since_the_edit_count_for_the_proof_too(served: Served, digest: str) -> None:
    api, _ = served
    old = save(api, *(judged(number) for number in range(100, 103)))
    name = finished(served, old, digest=digest)
    assert prove(served, name).status_code == 200
    with api.engine.begin() as conn:
        row = {"cluster": CLUSTER, "name": "rule/gpu-lost", "digest": DIGEST, "left": 0}
        conn.execute(sa.insert(rule_texts).values(**row, since=datetime.now(UTC) - timedelta(minutes=50)))
    save(api, judged(60, Review.false_alarm), judged(40, Review.false_alarm), judged(30))
    assert counted(api) == Proof(right=4, wrong=1)


def test_who_is_bound_to_one_cluster_proves_no_rule_of_all_clusters(served: Served) -> None:
    api, client = served
    name = finished(served, save(api, judged(10)))
    body = {"rules": ["gpu-lost"], "reason": "reviewed with its replay"}
    headers = api.headers("admin", name="root", cluster=CLUSTER)
    assert client.get(f"{TRY}/{name}", headers=headers).status_code == 200
    assert client.post(MODE, json=AUTO, headers=headers).status_code == 403
    assert client.post(f"{TRY}/{name}/proof", json=body, headers=headers).status_code == 403
    with api.engine.connect() as conn:
        verbs = list(conn.execute(sa.select(audit_records.c.verb)).scalars())
    assert "rule.proven_by_replay" not in verbs


def test_rehearsal_that_proves_nothing_is_refused_with_the_reason(served: Served) -> None:
    api, _ = served
    unjudged = save(api, judged(1, None))
    name = finished(served, [*unjudged, "f" * 32])
    assert prove(served, name, role="operator").status_code == 403
    assert "has been reviewed" in prove(served, name).json()["detail"]
    assert "does not affect" in prove(served, name, rules=["other"]).json()["detail"]
    assert prove(served, "none").status_code == 404


@pytest.mark.parametrize("version", [0, 1])
def test_a_changed_rule_keeps_auto_by_what_it_would_open_now(served: Served, version: int) -> None:
    """Two false alarms end mode auto; not where the rule as edited opened neither of them, also if it was
    proven before an upgrade of healer."""
    api, client = served
    rules = api.rules = msgspec.structs.replace(api.rules, default_mode=Mode.auto)
    good = save(api, judged(10), judged(11))
    bad = save(api, judged(1, Review.false_alarm), judged(2, None))
    prove(served, finished(served, good, bad, rules.digests["rule/gpu-lost"][version]))
    review = {"review": "false_alarm", "reason": "a cable"}
    headers = api.headers("responder")
    client.post(f"/api/v1/incidents/{bad[1]}/review", json=review, headers=headers)
    listed = client.get("/api/v1/rules", headers=headers).json()["items"]
    assert [one["mode"] for one in listed if one["rule"]["name"] == "gpu-lost"] == ["auto"]


# --- the runner


class Child:
    def __init__(self) -> None:
        self.stopped, self.outcome = False, None
        self.share = 0.25

    def progress(self) -> float:
        return self.share

    def result(self) -> Any:
        return self.outcome

    def stop(self) -> None:
        self.stopped = True


@pytest.fixture
def running(served: Served) -> tuple[Rehearsing, Child, SimClock, PostgresRehearsals, str]:
    name, child, clock = asked(served)["id"], Child(), SimClock(datetime.now(UTC))
    book = PostgresRehearsals(served[0].engine)
    duty = Rehearsing(book, CLUSTER, lambda _: child, clock)
    duty()
    duty()
    return duty, child, clock, book, name


def test_runner_reports_progress_and_result(running: Any) -> None:
    duty, child, _, book, name = running
    assert (book.find(name).state, book.find(name).progress) == ("running", 0.25)
    child.outcome = NOTHING | {"opened": []}
    duty()
    done = book.find(name)
    assert (done.state, done.progress, done.result) == ("done", 1.0, child.outcome)
    assert child.stopped


def test_a_result_that_the_database_does_not_take_is_given_again(
    running: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may have taken hours, and the database fails over in its last second."""
    duty, child, _, book, name = running

    def away(*_: object, **__: object) -> None:
        raise Unavailable("the database does not answer")

    child.outcome = NOTHING | {"opened": []}
    with monkeypatch.context() as patch, pytest.raises(Unavailable):
        patch.setattr(book, "end", away)
        duty()
    assert not child.stopped
    duty()
    assert (book.find(name).state, child.stopped) == ("done", True)


def test_remaining_time_is_reported_once_the_pace_is_known(running: Any) -> None:
    duty, child, clock, book, name = running
    assert book.find(name).left_s is None
    clock.advance(10)
    child.share = 0.5
    duty()
    assert book.find(name).left_s == pytest.approx(20.0)
    child.outcome = NOTHING | {"opened": []}
    duty()
    assert book.find(name).left_s is None


def test_a_replay_that_fails_says_why(running: Any) -> None:
    duty, child, _, book, name = running
    child.outcome = "x-events.jsonl.zst line 3: no route"
    duty()
    assert (book.find(name).state, book.find(name).problem) == ("failed", child.outcome)


def test_a_cancelled_one_is_stopped_and_stays_cancelled(running: Any) -> None:
    duty, child, clock, book, name = running
    book.cancel(name, by="ann", reason="a typo", at=clock.now())
    duty()
    assert child.stopped
    child.outcome = NOTHING
    duty()
    assert book.find(name).state == "cancelled"


def test_a_rehearsal_is_given_the_modes_that_were_set_while_running(served: Served) -> None:
    api, client = served
    book = PostgresRehearsals(api.engine)
    assert book.modes() == {}
    body = {"mode": "shadow", "reason": "first week"}
    assert client.post(MODE, json=body, headers=api.headers("admin")).status_code == 200
    assert book.modes() == {"gpu-lost": Mode.shadow}


def test_rehearsal_that_takes_too_long_fails(running: Any) -> None:
    duty, child, clock, book, name = running
    clock.advance(LONGEST_REHEARSAL.total_seconds() + 1)
    duty()
    assert child.stopped
    assert "longer than 6 h" in book.find(name).problem


def test_the_next_process_finds_that_the_last_one_died(running: Any) -> None:
    _, child, clock, book, name = running
    later = Rehearsing(book, CLUSTER, lambda _: child, clock)
    later()
    assert book.find(name).state == "running"
    clock.advance(121)
    later()
    assert (book.find(name).state, book.find(name).problem) == (
        "failed",
        "the process that ran the replay has ended",
    )


def test_rehearsal_that_cannot_begin_fails_with_its_problem(served: Served) -> None:
    name = asked(served)["id"]
    book = PostgresRehearsals(served[0].engine)

    def refuse(_: Any) -> Child:
        raise ValueError("nothing is recorded")

    Rehearsing(book, CLUSTER, refuse, SimClock(datetime.now(UTC)))()
    rehearsal = book.find(name)
    assert rehearsal is not None
    assert (rehearsal.state, rehearsal.problem) == ("failed", "nothing is recorded")
