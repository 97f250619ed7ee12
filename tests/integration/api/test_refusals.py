"""What a bound token is refused is recorded with what it spoke of: on each route of signals, and bounded."""

import json
from typing import Any

import httpx
from cloudevents.core.bindings.http import to_structured_event
from starlette.routing import Route

from healer.api.quotas import BURST_S, OF_NODE
from healer.model import Role
from tests.integration.api.test_alerts import ALERT, event, group
from tests.integration.api.test_measuring import (
    EXPOSITION,
    PROMETHEUS,
    SMI,
    checkpoint_body,
    node_body,
    step_body,
    written,
)
from tests.support.api import CLUSTER, XID_79, Api
from tests.support.collected import gauge, logs, metrics, point, record
from tests.support.routes import routes_of
from tests.support.shipped import LOST, journalctl

Served = tuple[Api, httpx.Client]
SIGNALS = "/api/v1/signals"
JSON, TEXT, XML = ({"Content-Type": kind} for kind in ("application/json", "text/plain", "text/xml"))
PROTOBUF = {"Content-Type": "application/x-protobuf"}
EVENTS = {"Content-Type": "application/cloudevents-batch+json"}
KERNEL = "io.healer.signal.kernel-log.v1"


def kernel(of: str, **entry: Any) -> dict[str, Any]:
    return {"cluster": CLUSTER, "node": of, "boot_id": "b", "entries": [{"line": XID_79, **entry}]}


def batch(*events: Any) -> bytes:
    return b"[" + b",".join(to_structured_event(one).body for one in events) + b"]"


def otlp_metrics(node: str) -> bytes:
    return metrics({"host.name": node}, gauge("node_load1", point(1.0))).SerializeToString()


def node(name: str) -> dict[str, str]:
    return {"cluster": CLUSTER, "node": name}


def job(name: str) -> dict[str, str]:
    return {"cluster": CLUSTER, "job": name}


TWO = [node("gpu0002"), node("gpu0003")]
#: What a token bound to the node gpu0001 sends, and what it spoke of that is not its own.
OF_A_NODE: list[tuple[str, dict[str, str], Any, list[dict[str, str]]]] = [
    ("kernel-log", JSON, [kernel("gpu0001"), kernel("gpu0003"), kernel("gpu0001", node="gpu0002")], TWO),
    ("kernel-log?node=gpu0002", TEXT, XID_79.encode(), TWO[:1]),
    ("logs", JSON, [journalctl(), journalctl(_HOSTNAME="gpu0002")], TWO[:1]),
    ("heartbeat", JSON, [{"node": one, "boot_id": "b"} for one in ("gpu0003", "gpu0001", "gpu0002")], TWO),
    ("metrics", JSON, [node_body(one) for one in ("gpu0001", "gpu0003", "gpu0002", "gpu0003")], TWO),
    ("prometheus/write", PROTOBUF | PROMETHEUS,
     written(*(({"__name__": "node_load1", "instance": f"gpu000{one}:9100"}, 1) for one in (1, 2, 3))), TWO),
    ("openmetrics", TEXT,
     (EXPOSITION.replace("NODE", "gpu0003") + EXPOSITION.replace("NODE", "gpu0002")).encode(), TWO),
    ("openmetrics?node=gpu0002", TEXT, b"node_load1 1\n", TWO[:1]),
    ("nvidia-smi?node=gpu0002", XML, SMI.encode(), TWO[:1]),
    ("otlp/v1/logs", PROTOBUF,
     logs({"host.name": "gpu0002"}, [record(LOST, {"_TRANSPORT": "kernel"})]).SerializeToString(), TWO[:1]),
    ("otlp/v1/metrics", PROTOBUF, otlp_metrics("gpu0002"), TWO[:1]),
    ("step-times", JSON, [step_body(node="gpu0001"), step_body(node="gpu0002")], TWO[:1]),
    ("checkpoints", JSON, checkpoint_body("4712"), [job("4712")]),
    ("alertmanager", JSON, group("gpu0002", "gpu0001", "gpu0003"), TWO),
    ("cloudevents", EVENTS, batch(event(kernel("gpu0003"), KERNEL), event(kernel("gpu0002"), KERNEL)), TWO),
    ("hooks/prolog", JSON, {"node": "gpu0002", "job": "4711", "restarts": 0}, TWO[:1]),
    ("hooks/epilog", JSON, {"node": "gpu0002", "job": "4711", "restarts": 0}, TWO[:1]),
    ("hooks/health-check", JSON, [{"node": "gpu0003"}, {"node": "gpu0002"}], TWO),
]  # fmt: skip
#: The same of a token bound to the job 4711.
OF_A_JOB = [
    ("step-times", JSON, [step_body(), step_body("4713"), step_body("4712")], [job("4712"), job("4713")]),
    ("checkpoints", JSON, [checkpoint_body(), checkpoint_body("4712")], [job("4712")]),
    ("heartbeat", JSON, {"node": "gpu0002", "boot_id": "b"}, TWO[:1]),
    ("kernel-log", JSON, [kernel("gpu0001", node="gpu0002")], [node("gpu0001"), TWO[0]]),
    ("kernel-log?node=gpu0002", TEXT, XID_79.encode(), TWO[:1]),
    ("cloudevents", EVENTS, batch(event(kernel("gpu0002"), KERNEL)), TWO[:1]),
    ("cloudevents", EVENTS, batch(event(ALERT)), [node("gpu0001")]),
]  # fmt: skip


def refusals(api: Api, client: httpx.Client) -> list[dict[str, Any]]:
    found = client.get("/api/v1/audit?verb=access.refused&limit=500", headers=api.headers("auditor"))
    return found.json()["items"]


def refused(api: Api, client: httpx.Client, path: str, body: Any, headers: dict[str, str]) -> dict[str, Any]:
    """The one record that this request leaves."""
    before = {one["id"] for one in refusals(api, client)}
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(f"{SIGNALS}/{path}", content=content, headers=headers)
    assert answer.status_code == 403, (path, answer.text)
    (one,) = [one for one in refusals(api, client) if one["id"] not in before]
    return one


def test_each_route_of_signals_records_of_what_a_bound_token_spoke(served: Served) -> None:
    api, client = served
    for bound, tries in (({"node": "gpu0001"}, OF_A_NODE), ({"job": "4711"}, OF_A_JOB)):
        token = api.token("signals", name="eve", **bound)
        for path, kind, body, spoken in tries:
            headers = kind | {"Authorization": f"Bearer {token}"}
            found = refused(api, client, path, body, headers)
            assert (found["actor"], found["subject"]) == ("eve", f"token/{token.split('_')[1]}")
            assert found["cluster"] == CLUSTER
            data = found["data"]
            assert data["what"] == f"POST {SIGNALS}/{path.partition('?')[0]}"
            assert (data["role"], data["bound_to"]) == ("signals", bound), path
            assert (data["spoken_of"], data["spoken_of_count"]) == (spoken, len(spoken)), path
            assert next(iter(bound.values())) in data["why"]


def test_the_list_above_has_every_route_of_signals(served: Served) -> None:
    api, _ = served
    routes = {
        route.path.removeprefix(f"{SIGNALS}/")
        for route in routes_of(api.app.routes)
        if isinstance(route, Route)
        and getattr(getattr(route.endpoint, "__self__", None), "role", None) is Role.signals
    }
    assert routes == {path.partition("?")[0] for path, *_ in OF_A_NODE}


def test_a_token_bound_to_a_cluster_is_recorded_with_the_other_cluster(served: Served) -> None:
    api, client = served
    headers = JSON | api.headers("signals", cluster="pod2")
    for path, body, spoken in (
        ("metrics", node_body(), node("gpu0001")),
        ("metrics?cluster=pod1", node_body("gpu0002"), node("gpu0002")),
        ("prometheus/write?cluster=pod1", b"", {"cluster": "pod1"}),
        ("heartbeat", {"cluster": "pod1", "node": "gpu0001"}, node("gpu0001")),
        ("step-times", step_body(node=None), {"cluster": "pod1"}),
    ):
        kind = PROTOBUF | PROMETHEUS if "write" in path else {}
        data = refused(api, client, path, body, headers | kind)["data"]
        assert data["bound_to"] == {"cluster": "pod2"}
        assert spoken in data["spoken_of"], path


def test_refusal_record_bounds_names_from_the_sender_to_one_line(served: Served) -> None:
    api, client = served
    mine = JSON | api.headers("signals", node="gpu0001")
    wild = ["a\nb\r\x00\x1b[31m\u202e", "x" * 100_000, *(f"y{number:04}" for number in range(2000))]
    body = json.dumps([{"node": one, "boot_id": "b"} for one in wild])
    data = refused(api, client, "heartbeat", body.encode(), mine)["data"]
    assert data["spoken_of_count"] == len(wild) and len(data["spoken_of"]) == 5
    names = [one["node"] for one in data["spoken_of"]]
    assert names[0] == "a␊b␍␀␛[31m⟨U+202E⟩" and names[1] == "x" * 64 + "…"
    assert all(name.isprintable() and len(name) <= 65 for name in names)
    assert len(json.dumps(data)) < 1500
    wild_path = f"/api/v1/nodes/{'%0A' * 128}/{'x' * 128}"
    assert client.get(wild_path, headers=api.headers("viewer", node="gpu0001")).status_code == 403
    asked = refusals(api, client)[0]["data"]["what"]
    assert asked.isprintable() and len(asked) <= 201


def test_one_token_cannot_fill_the_audit_and_hides_no_other(served: Served) -> None:
    api, client = served
    loud = JSON | api.headers("signals", name="loud", node="gpu0001")
    for number in range(40):
        body = {"node": f"gpu{number + 2:04}", "boot_id": "b"}
        assert client.post(f"{SIGNALS}/heartbeat", json=body, headers=loud).status_code == 403
    assert len(refusals(api, client)) == 20
    other = JSON | api.headers("signals", name="other", node="gpu0002")
    assert refused(api, client, "heartbeat", {"node": "gpu0001"}, other)["actor"] == "other"


def test_a_refusal_makes_no_node_strange_to_other_senders(served: Served) -> None:
    """The rest of a refused body is looked at for its names: what is learned by that is forgotten."""
    api, client = served
    text = EXPOSITION.replace("NODE", "gpu0003").encode() + EXPOSITION.replace("NODE", "gpu0002").encode()
    refused(api, client, "openmetrics", text, TEXT | api.headers("signals", node="gpu0001"))
    answer = client.post(f"{SIGNALS}/openmetrics", content=text, headers=TEXT | api.headers("signals"))
    assert answer.json()["accepted"] == 4


def test_a_batch_that_is_refused_in_part_and_over_its_quota_elsewhere_is_recorded_too(served: Served) -> None:
    """What a repeat may mend is answered, and the refusal is not lost by that."""
    api, client = served
    mine = api.headers("signals", node="gpu0001", quota=30 / (OF_NODE.entries * BURST_S))
    samples = {"node": "gpu0001", "host": {f"load{number}": 1.0 for number in range(40)}}
    assert client.post(f"{SIGNALS}/metrics", json=samples, headers=mine).status_code == 202
    body = batch(event(samples, "io.healer.signal.metrics.v1"), event(kernel("gpu0002"), KERNEL))
    assert client.post(f"{SIGNALS}/cloudevents", content=body, headers=EVENTS | mine).status_code == 429
    (one,) = refusals(api, client)
    assert one["data"]["spoken_of"] == [node("gpu0002")]
