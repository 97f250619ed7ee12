"""`POST /rules/{name}/mode` to auto: earned by what became of the rule's incidents, on PostgreSQL."""

from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from healer.adapters.postgres.rule_rows import proofs
from healer.adapters.postgres.run_rows import write_entries, write_runs
from healer.adapters.postgres.tables import incidents, messages
from healer.model import (
    Incident,
    IncidentState,
    LogEntry,
    Mode,
    Remedy,
    Review,
    Run,
    RunState,
    StepEvent,
)
from tests.support.api import CLUSTER, Api, incident, save_incident

Served = tuple[Api, httpx.Client]
MODE = "/api/v1/rules/gpu-lost/mode"
AUTO = {"mode": "auto", "reason": "it was right for a month"}


def judged(number: int, review: Review | None = Review.true_fault, **more: Any) -> Incident:
    return incident(number, state=IncidentState.resolved, review=review, **more)


def save(api: Api, *those: Incident) -> None:
    with api.engine.begin() as conn:
        for one in those:
            save_incident(conn, one)


def mode_now(client: httpx.Client, headers: dict[str, str]) -> dict[str, Any]:
    listed = client.get("/api/v1/rules", headers=headers).json()["items"]
    return next(one for one in listed if one["rule"]["name"] == "gpu-lost")


@pytest.fixture
def acting(served: Served) -> Served:
    """The site's own word is auto; else it is shadow here."""
    api, _ = served
    api.rules = msgspec.structs.replace(api.rules, default_mode=Mode.auto)
    return served


def test_it_is_refused_with_what_is_missing(served: Served) -> None:
    api, client = served
    headers = api.headers("admin", name="root")
    save(api, *(judged(number) for number in range(1, 13)))
    answer = client.post(MODE, json=AUTO, headers=headers)
    assert answer.status_code == 409
    assert "30 reviewed incidents and 12 are" in answer.json()["detail"]
    assert mode_now(client, headers)["mode"] == "shadow"
    for mode in ("suggest", "approve", "off"):
        assert client.post(MODE, json=AUTO | {"mode": mode}, headers=headers).status_code == 200


def test_it_is_set_once_it_is_earned(served: Served) -> None:
    api, client = served
    save(api, *(judged(number) for number in range(1, 30)), judged(30, Review.false_alarm))
    save(api, judged(31, Review.unclear), judged(32, None), judged(33, merged_into=incident(1).id))
    assert client.post(MODE, json=AUTO, headers=api.headers("admin")).status_code == 200


def test_old_mistakes_expire(served: Served) -> None:
    api, client = served
    save(api, *(judged(number) for number in range(1, 31)))
    save(api, *(judged(number, Review.false_alarm) for number in range(31, 50)))
    assert client.post(MODE, json=AUTO, headers=api.headers("admin")).status_code == 200


def test_failed_test_and_replaced_part_count_and_a_person_overrides_them(served: Served) -> None:
    api, _ = served
    save(api, judged(1, None, tried=Remedy.replace), judged(2, None), judged(3, Review.false_alarm))
    save(api, judged(4, None), judged(5, None, tried=Remedy.reboot_node))
    with api.engine.begin() as conn:
        for number, passed in ((2, False), (3, False), (4, True)):
            add_test(conn, incident(number), passed=passed)
        found = proofs(conn, 30, digests={})["gpu-lost"]
    assert (found.right, found.wrong) == (2, 1)


def add_test(conn: sa.Connection, one: Incident, *, passed: bool) -> None:
    run = Run(
        id=f"r-{one.short_id}", cluster=CLUSTER, playbook="validate", state=RunState.done, by="healer",
        reason="", created_at=one.opened, incident=one.id, node=one.root.node,
    )  # fmt: skip
    write_runs(conn, [run])
    data = {"verb": "diagnose", "passed": passed}
    entry = LogEntry(run=run.id, at=one.opened, epoch=1, step="test", event=StepEvent.done, data=data)
    write_entries(conn, [entry])


def test_two_false_alarms_end_it_and_it_has_to_be_earned_again(acting: Served) -> None:
    api, client = acting
    headers = api.headers("admin", name="root")
    assert mode_now(client, headers)["mode"] == "auto", "by the files"
    save(api, *(judged(number) for number in range(3, 20)), judged(1, None), judged(2, None))
    for number, mode in ((1, "auto"), (2, "approve")):
        path = f"/api/v1/incidents/{incident(number).id}/review"
        assert client.post(path, json={"review": "false_alarm"}, headers=headers).status_code in (200, 202)
        with api.engine.begin() as conn:  # as the detector stores it
            conn.execute(sa.delete(incidents).where(incidents.c.id == incident(number).id))
        save(api, judged(number, Review.false_alarm))
        assert mode_now(client, headers)["mode"] == mode
    shown = mode_now(client, headers)
    assert shown["mode_by"] == "healer"
    assert "2 of the last 19 reviewed incidents were false alarms" in shown["mode_reason"]
    refused = client.post(MODE, json=AUTO, headers=headers)
    assert refused.status_code == 409 and "30 reviewed incidents and 19" in refused.json()["detail"]
    with api.engine.connect() as conn:
        (message,) = conn.execute(sa.select(messages).where(messages.c.id.like("rule:%")))
    assert (
        message.doc["title"]["text"].endswith("no longer acts automatically")
        and message.doc["severity"] == "P2"
    )
    assert incident(2).id[:8] in message.doc["text"]["text"] and message.page is False


def test_a_person_who_turned_it_down_may_turn_it_back_to_what_the_files_say(acting: Served) -> None:
    api, client = acting
    headers = api.headers("admin", name="root")
    assert client.post(MODE, json=AUTO | {"mode": "shadow"}, headers=headers).status_code == 200
    assert client.post(MODE, json=AUTO, headers=headers).status_code == 200
