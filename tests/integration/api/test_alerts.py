"""Alerts and CloudEvents over HTTP: stored before they are answered, confined, counted."""

import base64
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest
import sqlalchemy as sa
from cloudevents.core.bindings.http import HTTPMessage, to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent

from healer.api.quotas import BURST_S, OF_NODE
from tests.support.api import CLUSTER, XID_79, Api

Served = tuple[Api, httpx.Client]
ALERTS = "/api/v1/signals/alertmanager"
EVENTS = "/api/v1/signals/cloudevents"


def group(*nodes: str, status: str = "firing", **more: Any) -> dict[str, Any]:
    begun = datetime(2026, 11, 20, 2, 0, tzinfo=UTC)
    return {
        "version": "4",
        "alerts": [
            {
                "status": status,
                "labels": {"alertname": "NodeClockNotSynchronising", "instance": f"{node}:9100"},
                "annotations": {"summary": "the clock is not kept"},
                "startsAt": min(begun, datetime.now(UTC) - timedelta(minutes=5)).isoformat(),
                "endsAt": "0001-01-01T00:00:00Z",
            }
            for node in nodes
        ],
        **more,
    }


def rows(api: Api) -> list[dict[str, Any]]:
    with api.engine.connect() as conn:
        return list(conn.execute(sa.text("SELECT doc FROM inbox ORDER BY id")).scalars())


def test_a_group_is_stored_and_its_repeat_is_a_duplicate(served: Served) -> None:
    api, client = served
    headers = api.headers("signals")
    first = client.post(ALERTS, json=group("gpu0001", "gpu0002", "web1"), headers=headers)
    again = client.post(ALERTS, json=group("gpu0001", "gpu0002", "web1"), headers=headers)
    assert first.status_code == again.status_code == 202
    assert first.json() == {"accepted": 2, "duplicates": 0, "unrecognised": 1, "rejected": []}
    assert again.json() == {"accepted": 0, "duplicates": 2, "unrecognised": 1, "rejected": []}


def test_that_it_goes_on_is_stored_once_an_hour_at_most(served: Served) -> None:
    api, client = served
    headers = api.headers("signals")
    for _ in range(4):
        client.post(ALERTS, json=group("gpu0001"), headers=headers)
    client.post(ALERTS, json=group("gpu0001", status="resolved"), headers=headers)
    stored = rows(api)
    # A full hour may pass while the test runs.
    assert 3 <= len(stored) <= 4
    assert [one["data"]["status"] for one in stored][-1] == "resolved"
    assert all(one["data"]["again"] == stored[0]["digest"] for one in stored[1:-1])


@pytest.mark.parametrize(
    ("body", "status"),
    [({"alerts": []}, 422), ({"version": "3", "alerts": []}, 422), ([], 422), ("text", 422)],
    ids=["no-version", "old", "list", "text"],
)
def test_invalid_alert_body_gets_a_status_that_is_not_retried(served: Served, body: Any, status: int) -> None:
    api, client = served
    answer = client.post(ALERTS, json=body, headers=api.headers("signals"))
    assert answer.status_code == status
    assert client.post(ALERTS, content=b"{", headers=api.headers("signals")).status_code in (415, 422)


def test_a_bound_token_speaks_of_its_own_alone(served: Served) -> None:
    api, client = served
    own = api.headers("signals", node="gpu0001", cluster=CLUSTER)
    assert client.post(ALERTS, json=group("gpu0001"), headers=own).status_code == 202
    assert client.post(ALERTS, json=group("gpu0001", "gpu0002"), headers=own).status_code == 403
    other = api.headers("signals", cluster="pod9")
    assert client.post(ALERTS, json=group("gpu0001"), headers=other).status_code in (403, 503)
    job = api.headers("signals", job="4711", cluster=CLUSTER)
    assert client.post(ALERTS, json=group("gpu0001"), headers=job).status_code == 403
    assert client.post(ALERTS, json=group("gpu0001"), headers=api.headers("viewer")).status_code == 403
    assert len(rows(api)) == 1


def test_truncated_and_rejected_alerts_are_counted_as_losses(served: Served) -> None:
    api, client = served
    body = group("gpu0001", truncatedAlerts=7)
    body["alerts"].append({"status": "firing"})
    answer = client.post(ALERTS, json=body, headers=api.headers("signals", name="am"))
    assert [one["index"] for one in answer.json()["rejected"]] == [1]
    api.app.state.losses.flush()
    lost = client.get("/api/v1/signals/losses", headers=api.headers("viewer")).json()["items"]
    counted = {(one["source"], one["reason"]): (one["count"], one["who"]) for one in lost}
    assert counted["alertmanager", "sender"] == (7, "am")
    assert counted["alertmanager", "rejected"] == (1, "am")


def test_the_node_shows_what_fires_and_forgets_what_is_over(served: Served) -> None:
    api, client = served
    headers, viewer = api.headers("signals"), api.headers("viewer")
    client.post(ALERTS, json=group("gpu0001", "gpu0002"), headers=headers)
    (shown,) = client.get(f"/api/v1/nodes/{CLUSTER}/gpu0001", headers=viewer).json()["alerts"]
    assert (shown["name"], shown["text"]) == ("NodeClockNotSynchronising", "the clock is not kept")
    client.post(ALERTS, json=group("gpu0001", status="resolved"), headers=headers)
    assert client.get(f"/api/v1/nodes/{CLUSTER}/gpu0001", headers=viewer).json()["alerts"] == []
    assert len(client.get(f"/api/v1/nodes/{CLUSTER}/gpu0002", headers=viewer).json()["alerts"]) == 1


# --- CloudEvents, made by the CloudEvents project's own library ---


def event(data: Any, kind: str = "io.healer.alert.v1", **more: Any) -> CloudEvent:
    attributes = {
        "id": "e-1",
        "source": "/monitor/1",
        "type": kind,
        "time": datetime.now(UTC) - timedelta(minutes=1),
        "datacontenttype": "application/json",
        "specversion": "1.0",
        **more,
    }
    return CloudEvent(attributes=attributes, data=data)


ALERT = {"labels": {"alertname": "OutletTripped", "node": "gpu0001"}}
KERNEL = {
    "node": "gpu0001",
    "boot_id": "b1",
    "entries": [{"seq": 1, "line": XID_79}, {"seq": 2, "line": "usb 1-1: new device"}, {"seq": "x"}],
}


def post(client: httpx.Client, message: HTTPMessage, headers: dict[str, str]) -> httpx.Response:
    return client.post(EVENTS, content=message.body, headers=dict(message.headers) | headers)


@pytest.mark.parametrize("written", [to_structured_event, to_binary_event], ids=["structured", "binary"])
def test_an_event_is_taken_in_both_modes(served: Served, written: Any) -> None:
    api, client = served
    headers = api.headers("signals")
    message = written(event(ALERT))
    first, again = post(client, message, headers), post(client, message, headers)
    assert first.json() == {"accepted": 1, "duplicates": 0, "unrecognised": 0, "rejected": []}
    assert again.json()["duplicates"] == 1
    assert rows(api)[0]["component"] == {"cluster": CLUSTER, "node": "gpu0001"}


@pytest.mark.parametrize("written", [to_structured_event, to_binary_event], ids=["structured", "binary"])
def test_the_body_of_a_route_may_come_in_an_event(served: Served, written: Any) -> None:
    api, client = served
    headers = api.headers("signals")
    message = written(event(KERNEL, "io.healer.signal.kernel-log.v1"))
    first, again = post(client, message, headers).json(), post(client, message, headers).json()
    assert (first["accepted"], first["unrecognised"]) == (1, 1)
    assert first["rejected"][0]["index"] == 0 and first["rejected"][0]["reason"].startswith("data[2]: ")
    assert (again["accepted"], again["duplicates"]) == (0, 1)
    assert [one["kind"] for one in rows(api)] == ["xid"]


def test_every_route_accepts_a_body_of_its_declared_type(served: Served) -> None:
    api, client = served
    bodies: dict[str, Any] = {
        "heartbeat": {"node": "gpu0001", "boot_id": "b1"},
        "metrics": {"node": "gpu0001", "gpu": {"gpu_temp_c": [61, 60]}},
        "checkpoints": {"job": "4711", "step": 7, "path": "/scratch/7", "durable": True},
        "step-times": {"job": "4711", "samples": [{"step_s": 1.9, "step": 7, "rank": 0}]},
    }
    for route, body in bodies.items():
        message = to_structured_event(event(body, f"io.healer.signal.{route}.v1"))
        answer = post(client, message, api.headers("signals"))
        assert answer.status_code == 202, (route, answer.text)
        assert answer.json()["accepted"] >= 1, (route, answer.text)


def test_a_batch_falls_into_heaps_by_the_events_number(served: Served) -> None:
    api, client = served
    events = [json.loads(to_structured_event(event(ALERT, id=f"e-{number}")).body) for number in range(2)]
    events += [{"specversion": "1.0", "id": "x", "source": "/x"}, {**events[0], "type": "com.example.other"}]
    events += [json.loads(to_structured_event(event(KERNEL, "io.healer.signal.kernel-log.v1")).body)]
    answer = client.post(
        EVENTS,
        content=json.dumps(events).encode(),
        headers={"Content-Type": "application/cloudevents-batch+json"} | api.headers("signals"),
    ).json()
    assert (answer["accepted"], answer["unrecognised"]) == (3, 2)
    assert [one["index"] for one in answer["rejected"]] == [2, 4]
    assert answer["rejected"][0]["reason"] == "type: missing"


def test_a_body_that_its_route_refuses_costs_its_own_event_alone(served: Served) -> None:
    api, client = served
    good = json.loads(to_structured_event(event(ALERT)).body)
    bad = json.loads(to_structured_event(event({"entries": 7}, "io.healer.signal.kernel-log.v1")).body)
    answer = client.post(
        EVENTS,
        content=json.dumps([bad, good]).encode(),
        headers={"Content-Type": "application/cloudevents-batch+json"} | api.headers("signals"),
    )
    assert answer.json()["accepted"] == 1
    assert answer.json()["rejected"][0] == {
        "index": 0,
        "reason": answer.json()["rejected"][0]["reason"],
    }
    assert "entries" in answer.json()["rejected"][0]["reason"]


def test_metrics_over_the_quota_keep_no_fault_of_the_same_batch_from_being_stored(served: Served) -> None:
    """The whole batch is refused, so that it comes again; by then its events are stored."""
    api, client = served
    headers = api.headers("signals", node="gpu0001", quota=30 / (OF_NODE.entries * BURST_S))
    metrics = {"node": "gpu0001", "host": {f"load{number}": 1.0 for number in range(40)}}
    assert client.post("/api/v1/signals/metrics", json=metrics, headers=headers).status_code == 202
    kinds = (
        (metrics, "io.healer.signal.metrics.v1"),
        (ALERT | {"labels": {"alertname": "GpuGone", "node": "gpu0001"}}, "io.healer.alert.v1"),
        (KERNEL, "io.healer.signal.kernel-log.v1"),
    )
    batch = [json.loads(to_structured_event(event(data, kind)).body) for data, kind in kinds]
    answer = client.post(
        EVENTS,
        content=json.dumps(batch).encode(),
        headers={"Content-Type": "application/cloudevents-batch+json"} | headers,
    )
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) >= 1
    with api.engine.connect() as conn:
        kept = conn.execute(sa.text("SELECT kind FROM inbox ORDER BY kind")).scalars().all()
    assert kept == ["alert", "xid"]


def test_binding_of_a_token_limits_the_events_it_may_send(served: Served) -> None:
    api, client = served
    own = api.headers("signals", node="gpu0002", cluster=CLUSTER)
    job = api.headers("signals", job="4711", cluster=CLUSTER)
    kernel = to_structured_event(event(KERNEL, "io.healer.signal.kernel-log.v1"))
    steps = {"job": "4711", "samples": [{"step_s": 1.9}]}
    assert post(client, kernel, own).status_code == 403
    assert post(client, to_structured_event(event(ALERT)), own).status_code == 403
    assert post(client, kernel, job).status_code == 403
    assert post(client, to_structured_event(event(ALERT)), job).status_code == 403
    message = to_structured_event(event(steps, "io.healer.signal.step-times.v1"))
    assert post(client, message, job).status_code == 202
    assert rows(api) == []


@pytest.mark.parametrize(
    ("headers", "content", "status"),
    [
        ({"Content-Type": "text/plain"}, b"x", 415),
        ({"Content-Type": "application/cloudevents+json"}, b"{", 422),
        ({"Content-Type": "application/cloudevents+json"}, b"[]", 422),
        ({"Content-Type": "application/cloudevents-batch+json"}, b"{}", 422),
        ({"ce-specversion": "1.0", "Content-Type": "application/json"}, b"{", 422),
    ],
    ids=["text", "not-json", "list", "no-list", "binary"],
)
def test_body_that_is_no_cloudevent_is_refused(
    served: Served, headers: dict[str, str], content: bytes, status: int
) -> None:
    api, client = served
    answer = client.post(EVENTS, content=content, headers=headers | api.headers("signals"))
    assert answer.status_code == status, answer.text


def test_data_in_base64_is_read(served: Served) -> None:
    api, client = served
    body = json.loads(to_structured_event(event(ALERT)).body)
    packed = base64.b64encode(json.dumps(body.pop("data")).encode()).decode()
    answer = client.post(
        EVENTS,
        content=json.dumps(body | {"data_base64": packed}).encode(),
        headers={"Content-Type": "application/cloudevents+json"} | api.headers("signals"),
    )
    assert answer.json()["accepted"] == 1


def losses(api: Api, client: httpx.Client) -> dict[tuple[str, str, str], int]:
    api.app.state.losses.flush()
    items = client.get("/api/v1/signals/losses", headers=api.headers("viewer")).json()["items"]
    return {(one["source"], one["reason"], one["cluster"]): one["count"] for one in items}


def test_rejected_alerts_and_events_are_counted_for_their_cluster(served: Served) -> None:
    api, client = served
    wrong = group("gpu0001", "gpu0002")
    wrong["alerts"][0]["labels"].pop("alertname")
    assert client.post(ALERTS, json=wrong, headers=api.headers("signals")).json()["accepted"] == 1
    events = [
        {"specversion": "1.0", "id": "1", "source": "s"},
        {
            "specversion": "1.0",
            "id": "2",
            "source": "s",
            "type": "io.healer.signal.kernel-log.v1",
            "data": {"entries": [{"node": "nowhere", "line": XID_79}]},
        },
        {"specversion": "1.0", "id": "3", "source": "s", "type": "io.healer.alert.v1", "data": 7},
    ]
    batch = {"Content-Type": "application/cloudevents-batch+json"}
    answer = client.post(EVENTS, content=json.dumps(events), headers=api.headers("signals") | batch).json()
    assert [one["index"] for one in answer["rejected"]] == [0, 1, 2]
    assert losses(api, client) == {
        ("alertmanager", "rejected", CLUSTER): 1,
        ("kernel-log", "rejected", CLUSTER): 1,  # by the route of its body, which counts it alone
        ("cloudevents", "rejected", CLUSTER): 2,
    }


def test_alerts_are_charged_as_entries(served: Served) -> None:
    """A burst of 10, and two bursts may be owed; of bytes there are enough."""
    api, client = served
    headers = api.headers("signals", node="gpu0001", quota=10 / (OF_NODE.entries * BURST_S))
    small = group()
    small["alerts"] = [{}] * 20
    answers = [client.post(ALERTS, json=small, headers=headers) for _ in range(3)]
    assert [one.status_code for one in answers] == [202, 202, 429]
    assert answers[2].json()["quota"] == "entries"
