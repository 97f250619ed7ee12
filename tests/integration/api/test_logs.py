"""`POST /signals/logs` over HTTP: the kernel's lines are stored, the others counted, and tokens confine."""

import gzip
import json

import httpx
import pytest
import sqlalchemy as sa

from tests.support.api import CLUSTER, XID_79, Api
from tests.support.shipped import by_logger, export, fluent_bit, journalctl, ndjson, rsyslog, vector
from tests.support.wait import wait_until

Served = tuple[Api, httpx.Client]
LOGS = "/api/v1/signals/logs"


def events(api: Api) -> list[str]:
    with api.engine.connect() as conn:
        return list(conn.execute(sa.text("SELECT digest FROM inbox ORDER BY id")).scalars())


def test_one_event_by_every_shipper_and_the_kernel_log_route(served: Served) -> None:
    api, client = served
    headers = api.headers("signals")

    def of_kind(kind: str) -> dict[str, str]:
        return headers | {"Content-Type": kind}

    answers = [
        client.post(LOGS, json=journalctl(), headers=headers),
        client.post(LOGS, json=[vector()], headers=headers),
        client.post(LOGS, content=ndjson(fluent_bit()), headers=of_kind("application/x-ndjson")),
        client.post(LOGS, json=[rsyslog()], headers=headers),
        client.post(LOGS, content=export(journalctl()), headers=of_kind("application/vnd.fdo.journal")),
    ]
    assert [one.status_code for one in answers] == [202] * 5
    assert [one.json()["accepted"] for one in answers] == [1, 0, 0, 0, 0]
    assert [one.json()["duplicates"] for one in answers] == [0, 1, 1, 1, 1]
    assert len(events(api)) == 1


def test_forged_kernel_records_are_counted_and_shown_as_losses(served: Served) -> None:
    api, client = served
    headers = api.headers("signals", name="shipper-of-pod1")
    answer = client.post(
        LOGS, json=[by_logger(), journalctl(), rsyslog(inputname="imuxsock")], headers=headers
    )
    assert answer.json() == {"accepted": 1, "duplicates": 0, "unrecognised": 2, "rejected": []}
    assert len(events(api)) == 1
    api.app.state.losses.flush()
    lost = client.get("/api/v1/signals/losses", headers=api.headers("viewer")).json()["items"]
    (one,) = [item for item in lost if item["source"] == "logs"]
    assert (one["reason"], one["count"], one["who"]) == ("not_kernel", 2, "shipper-of-pod1")
    assert "_transport='syslog'" in one["example"]


def test_node_token_may_send_for_that_node_only(served: Served) -> None:
    api, client = served
    headers = api.headers("signals", node="gpu0001")
    foreign = [journalctl(), journalctl(_HOSTNAME="gpu0002")]
    unnamed = {name: value for name, value in journalctl().items() if name != "_HOSTNAME"}
    assert client.post(LOGS, json=foreign, headers=headers).status_code == 403
    assert client.post(LOGS, json=journalctl(_HOSTNAME="nosuch"), headers=headers).status_code == 403
    assert events(api) == []
    assert client.post(LOGS, json=journalctl(), headers=headers).json()["accepted"] == 1
    assert client.post(LOGS, json=unnamed, headers=headers).json()["duplicates"] == 1
    full_name = journalctl(_HOSTNAME="gpu0001.pod1.example")
    assert client.post(LOGS, json=full_name, headers=headers).json()["duplicates"] == 1
    bound_to_job = api.headers("signals", job="4711", cluster=CLUSTER)
    assert client.post(LOGS, json=journalctl(), headers=bound_to_job).status_code == 403
    assert client.post(LOGS, json=journalctl(), headers=api.headers("viewer")).status_code == 403


@pytest.mark.parametrize("kind", ["text/plain", "text/plain; charset=utf-8", "application/xml"])
def test_lines_of_text_are_refused(served: Served, kind: str) -> None:
    api, client = served
    headers = api.headers("signals") | {"Content-Type": kind}
    answer = client.post(f"{LOGS}?node=gpu0001", content=f"<3>kernel: {XID_79}", headers=headers)
    assert answer.status_code == 415
    assert events(api) == []


def test_a_packed_body_and_a_wrong_one(served: Served) -> None:
    api, client = served
    headers = api.headers("signals") | {"Content-Type": "application/json"}
    packed = gzip.compress(json.dumps([journalctl()]).encode())
    answer = client.post(LOGS, content=packed, headers=headers | {"Content-Encoding": "gzip"})
    assert answer.json()["accepted"] == 1
    wrong = client.post(LOGS, content=b"[{]", headers=headers)
    assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid")
    assert client.post(f"{LOGS}?nod=gpu0001", content=b"[]", headers=headers).status_code == 422
    empty = client.post(LOGS, content=b"[]", headers=headers)
    assert empty.json() == {"accepted": 0, "duplicates": 0, "unrecognised": 0, "rejected": []}
    wait_until(lambda: len(events(api)) == 1)
