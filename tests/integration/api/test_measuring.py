"""Samples over HTTP: stored before the answer, confined to their token, shed before events."""

import gc
import gzip
import json
import struct
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import cramjam
import httpx
import pytest
import sqlalchemy as sa

from healer.api.problems import Problem
from healer.model import Column, Part
from healer.model.telemetry import Report, StepBatch
from healer.signals.wire import BadBody
from tests.support.api import CLUSTER, XID_79, Api, serving
from tests.support.collected import as_json, gauge, metrics, point
from tests.support.wait import wait_until

Served = tuple[Api, httpx.Client]
SIGNALS = "/api/v1/signals"
METRICS, STEPS, CHECKPOINTS = f"{SIGNALS}/metrics", f"{SIGNALS}/step-times", f"{SIGNALS}/checkpoints"
WRITE, TEXT, XML = f"{SIGNALS}/prometheus/write", f"{SIGNALS}/openmetrics", f"{SIGNALS}/nvidia-smi"

EXPOSITION = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-1",pci_bus_id="00000000:9B:00.0",Hostname="NODE"} 61
DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-2",pci_bus_id="00000000:9C:00.0",Hostname="NODE"} 62
NO_SUCH_THING{gpu="1",Hostname="NODE"} 3
"""
SMI = """<?xml version="1.0" ?>
<nvidia_smi_log><attached_gpus>1</attached_gpus>
<gpu id="00000000:9B:00.0"><minor_number>0</minor_number><uuid>GPU-1</uuid>
<temperature><gpu_temp>61 C</gpu_temp></temperature></gpu></nvidia_smi_log>
"""


def node_body(node: str = "gpu0001", **more: Any) -> dict[str, Any]:
    gpu = {"DCGM_FI_DEV_GPU_TEMP": [61, 60, None], "NO_SUCH_THING": [1, 2, 3]}
    return {"cluster": CLUSTER, "node": node, "gpu": gpu, "host": {"node_load1": 3.1}, **more}


def step_body(job: str = "4711", node: str | None = "gpu0001", **more: Any) -> dict[str, Any]:
    sample = {"step": 120, "rank": 3, "step_s": 1.93, "compute_s": 1.41, **({"node": node} if node else {})}
    return {"cluster": CLUSTER, "job": job, "restart": 0, "samples": [sample], **more}


def checkpoint_body(job: str = "4711", **more: Any) -> dict[str, Any]:
    return {"job": job, "restart": 0, "step": 100, "path": "/ckpt/100", "durable": True, **more}


def _field(number: int, payload: bytes) -> bytes:
    return bytes([number << 3 | 2]) + _varint(len(payload)) + payload


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def written(*series: tuple[dict[str, str], float]) -> bytes:
    """A remote_write request of now, packed."""
    at = _varint(int(time.time() * 1000))
    message = b""
    for labels, value in series:
        pairs = b"".join(
            _field(1, _field(1, name.encode()) + _field(2, labels[name].encode())) for name in sorted(labels)
        )
        message += _field(1, pairs + _field(2, b"\x09" + struct.pack("<d", value) + b"\x10" + at))
    return bytes(cramjam.snappy.compress_raw(message))


PROMETHEUS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}


def new_samples(api: Api) -> tuple[list[Report], list[StepBatch]]:
    return api.samples.new()


def values(api: Api) -> dict[tuple[str, Column], float]:
    """(node, column) -> value, of all that is new."""
    reports, _ = new_samples(api)
    known = api.services.columns.columns({one for report in reports for one in report.columns.tolist()})
    return {
        (report.node, known[column]): value
        for report in reports
        for column, value in zip(report.columns.tolist(), report.values.tolist(), strict=True)
        if value == value
    }


def temperature(gpu: int) -> Column:
    return Column("gpu_temp_c", Part(gpu=gpu))


def test_columnar_metrics_are_stored_before_the_answer(served: Served) -> None:
    api, client = served
    answer = client.post(METRICS, json=[node_body(), node_body("nosuch")], headers=api.headers("signals"))
    assert answer.status_code == 202
    body = answer.json()
    assert (body["accepted"], body["duplicates"], body["unrecognised"]) == (3, 0, 3)
    assert body["rejected"][0]["index"] == 1
    assert "nosuch" in body["rejected"][0]["reason"]
    assert values(api) == {
        ("gpu0001", temperature(0)): 61,
        ("gpu0001", temperature(1)): 60,
        ("gpu0001", Column("load1")): 3.1,
    }


LONG = f"gpu0001.{CLUSTER}.rack-7.cluster.a-long-domain-of-a-site.example"


@pytest.mark.parametrize("bound", [None, "gpu0001"])
@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("kernel-log", {"node": LONG, "entries": [{"line": XID_79}]}),
        (f"kernel-log?node={LONG}", XID_79),
        ("heartbeat", {"node": LONG}),
        ("metrics", node_body(LONG)),
        (f"openmetrics?node={LONG}", EXPOSITION),
        (f"nvidia-smi?node={LONG}", SMI),
        ("step-times", step_body(node=LONG)),
        (
            "hooks/prolog",
            {"node": LONG, "hook": "prolog", "host": {"load1": 1.0}, "kernel": [{"line": XID_79}]},
        ),
    ],
    ids=lambda one: one if isinstance(one, str) and len(one) < 90 else "",
)
def test_every_route_takes_a_full_host_name(
    served: Served, route: str, body: str | dict[str, Any], bound: str | None
) -> None:
    """Also from the node's own token, and one longer than a name in Slurm."""
    api, client = served
    content = body if isinstance(body, str) else json.dumps(body)
    kind = {"Content-Type": "text/plain" if isinstance(body, str) else "application/json"}
    own, other = api.headers("signals", node=bound), api.headers("signals", node="gpu0002")
    answer = client.post(f"{SIGNALS}/{route}", content=content, headers=own | kind)
    assert answer.status_code == 202, answer.text
    assert answer.json()["rejected"] == []
    assert answer.json()["accepted"] >= 1
    assert client.post(f"{SIGNALS}/{route}", content=content, headers=other | kind).status_code == 403
    reports, steps = new_samples(api)
    nodes = {one.node for one in reports} | {node for one in steps for node in one.nodes}
    assert nodes <= {"gpu0001"}


def test_text_as_exporters_print_it(served: Served) -> None:
    api, client = served
    headers = {**api.headers("signals"), "Content-Type": "text/plain; version=0.0.4"}
    first = client.post(TEXT, content=EXPOSITION.replace("NODE", "gpu0002"), headers=headers)
    assert (first.status_code, first.json()["accepted"], first.json()["unrecognised"]) == (202, 2, 1)
    assert values(api) == {("gpu0002", temperature(0)): 61, ("gpu0002", temperature(1)): 62}
    named = client.post(
        f"{TEXT}?cluster={CLUSTER}&node=gpu0003",
        content=gzip.compress(b"node_load1 2.5\n# EOF\n"),
        headers={**headers, "Content-Type": "application/openmetrics-text", "Content-Encoding": "gzip"},
    )
    assert named.json()["accepted"] == 1
    assert values(api) == {("gpu0003", Column("load1")): 2.5}


def test_heartbeat_names_the_gpu_of_a_series_with_only_a_uuid(served: Served) -> None:
    api, client = served
    headers = {**api.headers("signals"), "Content-Type": "text/plain"}
    gpus = [{"index": 1, "pci": "0000:9c:00", "uuid": "GPU-2"}]
    beat = {"cluster": CLUSTER, "node": "gpu0003", "boot_id": "b1", "gpus": gpus}
    assert client.post(f"{SIGNALS}/heartbeat", json=beat, headers=api.headers("signals")).status_code == 202
    text = 'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-2",Hostname="gpu0003"} 62\n'
    assert client.post(TEXT, content=text, headers=headers).json()["accepted"] == 1
    assert values(api) == {("gpu0003", temperature(1)): 62}


def test_remote_write_is_stored_before_204(served: Served) -> None:
    api, client = served
    body = written(
        ({"__name__": "DCGM_FI_DEV_GPU_TEMP", "gpu": "0", "Hostname": "gpu0001"}, 61),
        ({"__name__": "node_load1", "instance": "gpu0002:9100"}, 0),
        ({"__name__": "up", "instance": "gpu0002:9100"}, 1),
    )
    answer = client.post(WRITE, content=body, headers={**api.headers("signals"), **PROMETHEUS})
    assert (answer.status_code, answer.content) == (204, b"")
    assert values(api) == {("gpu0001", temperature(0)): 61, ("gpu0002", Column("load1")): 0}


@pytest.mark.parametrize("packing", ["zstd", "gzip"])
def test_remote_write_may_be_packed_as_vmagent_does(served: Served, packing: str) -> None:
    api, client = served
    body = written(({"__name__": "node_load1", "instance": "gpu0001:9100"}, 2.5))
    message = bytes(cramjam.snappy.decompress_raw(body))
    packed = gzip.compress(message) if packing == "gzip" else bytes(cramjam.zstd.compress(message))
    headers = {**api.headers("signals"), **PROMETHEUS, "Content-Encoding": packing}
    answer = client.post(WRITE, content=packed, headers=headers)
    assert (answer.status_code, answer.content) == (204, b"")
    assert values(api) == {("gpu0001", Column("load1")): 2.5}


@pytest.mark.parametrize(
    ("content", "changed", "status"),
    [
        (b"no snappy", {}, 400),
        (bytes(cramjam.snappy.compress_raw(b"\xff\xff\xff")), {}, 400),
        (b"", {"Content-Encoding": "br"}, 415),
        (b"no zstd", {"Content-Encoding": "zstd"}, 400),
        (bytes(cramjam.zstd.compress(bytes(70 * 2**20))), {"Content-Encoding": "zstd"}, 413),
        (bytes(cramjam.zstd.compress(b"\xff\xff\xff")), {"Content-Encoding": "zstd"}, 400),
        (b"", {"Content-Encoding": "identity"}, 415),
        (b"", {"Content-Type": "application/json"}, 415),
        (b"", {"Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request"}, 415),
    ],
)
def test_a_wrong_remote_write_is_never_asked_for_again(
    served: Served, content: bytes, changed: dict[str, str], status: int
) -> None:
    """Prometheus repeats what is answered with 429 or 5xx, for ever."""
    api, client = served
    headers = {**api.headers("signals"), **PROMETHEUS, **changed}
    answer = client.post(WRITE, content=content, headers=headers)
    assert answer.status_code == status
    assert answer.json()["detail"]


@pytest.mark.parametrize(
    ("route", "kind"),
    [
        (WRITE, "application/x-protobuf"),
        (METRICS, "application/json"),
        (STEPS, "application/json"),
        (f"{XML}?node=gpu0001", "text/xml"),
        (f"{SIGNALS}/kernel-log", "application/json"),
        (f"{SIGNALS}/otlp/v1/metrics", "application/x-protobuf"),
    ],
)
def test_a_wrong_body_is_not_held_once_it_is_answered(served: Served, route: str, kind: str) -> None:
    """60 MB of each were held, by cycles of an error and its traceback, until a collection of garbage."""
    api, client = served
    headers = api.headers("signals") | {"content-type": kind, "content-encoding": "gzip"}
    gc.collect()
    gc.disable()
    try:
        for _ in range(3):
            assert client.post(route, content=gzip.compress(b"\0" * 100), headers=headers).status_code >= 400
        held = [one for one in gc.get_objects() if isinstance(one, BadBody | Problem)]
    finally:
        gc.enable()
    assert len(held) <= 1  # the writer holds its last one until its next


def test_nvidia_smi_needs_a_node(served: Served) -> None:
    api, client = served
    headers = {**api.headers("signals"), "Content-Type": "text/xml"}
    assert client.post(XML, content=SMI, headers=headers).status_code == 422
    answer = client.post(f"{XML}?node=gpu0001", content=SMI, headers=headers)
    assert answer.status_code == 202
    assert values(api)[("gpu0001", temperature(0))] == 61


def test_step_times(served: Served) -> None:
    api, client = served
    bad = {"step": "x", "rank": 1, "step_s": 1.0}
    body = step_body()
    body["samples"].append(bad)
    answer = client.post(STEPS, json=body, headers=api.headers("signals"))
    assert answer.status_code == 202
    assert answer.json()["accepted"] == 1
    assert [one["index"] for one in answer.json()["rejected"]] == [1]
    other = client.post(STEPS, json=step_body(node=None, cluster="pod2"), headers=api.headers("signals"))
    assert (other.status_code, "pod2" in other.json()["detail"]) == (422, True)
    _, batches = new_samples(api)
    assert [(one.job, one.step.tolist(), one.step_s.tolist()) for one in batches] == [("4711", [120], [1.93])]


def test_checkpoints_are_events(served: Served) -> None:
    api, client = served
    headers = api.headers("signals")
    first = client.post(CHECKPOINTS, json=checkpoint_body(), headers=headers)
    again = client.post(CHECKPOINTS, json=checkpoint_body(), headers=headers)
    assert (first.status_code, first.json()["accepted"]) == (202, 1)
    assert again.json()["duplicates"] == 1
    other = client.post(CHECKPOINTS, json=checkpoint_body(cluster="pod2"), headers=headers)
    assert (other.status_code, "pod2" in other.json()["detail"]) == (422, True)
    with api.engine.connect() as conn:
        rows = conn.execute(sa.text("SELECT cluster, kind, doc #>> '{data,step}' FROM inbox")).all()
    assert [tuple(row) for row in rows] == [(CLUSTER, "checkpoint", "100")]


def test_a_token_bound_to_a_node_measures_that_node_alone(served: Served) -> None:
    api, client = served
    mine = api.headers("signals", node="gpu0001")
    text = {**mine, "Content-Type": "text/plain"}
    xml = {**mine, "Content-Type": "text/xml"}
    assert client.post(METRICS, json=node_body(), headers=mine).status_code == 202
    assert client.post(STEPS, json=step_body(), headers=mine).status_code == 202
    new_samples(api)
    foreign = written(({"__name__": "node_load1", "instance": "gpu0002:9100"}, 1))
    for answer in (
        client.post(METRICS, json=[node_body(), node_body("gpu0002")], headers=mine),
        client.post(TEXT, content=EXPOSITION.replace("NODE", "gpu0002"), headers=text),
        client.post(f"{TEXT}?node=gpu0002", content="node_load1 1\n", headers=text),
        client.post(f"{XML}?node=gpu0002", content=SMI, headers=xml),
        client.post(WRITE, content=foreign, headers={**mine, **PROMETHEUS}),
        client.post(STEPS, json=step_body(node="gpu0002"), headers=mine),
        client.post(STEPS, json=step_body(node=None), headers=mine),
        client.post(CHECKPOINTS, json=checkpoint_body(), headers=mine),
    ):
        assert answer.status_code == 403, answer.request.url
    assert new_samples(api) == ([], [])
    page = client.get("/api/v1/audit?verb=access.refused", headers=api.headers("auditor")).json()
    assert {one["data"]["what"] for one in page["items"]} == {
        f"POST {path}" for path in (METRICS, TEXT, XML, WRITE, STEPS, CHECKPOINTS)
    }


@pytest.mark.parametrize(
    ("bound", "says"),
    [({}, "prometheus"), ({"node": "gpu0001"}, ""), ({"vouches": "kernel"}, "")],
    ids=["a relay", "the node itself", "a relay that the site declared"],
)
def test_figures_name_the_relay_that_sent_them_by_every_route(
    served: Served, bound: dict[str, str], says: str
) -> None:
    api, client = served
    given = {"vouches": ""} | bound
    headers = api.headers("signals", name="prometheus", **given)
    plain, xml, json = (
        {**headers, "Content-Type": kind} for kind in ("text/plain", "text/xml", "application/json")
    )
    series = written(({"__name__": "node_load1", "node": "gpu0001"}, 2.5))
    otlp = as_json(metrics({"host.name": "gpu0001"}, gauge("node_load1", point(2.5))))
    hook = {"cluster": CLUSTER, "node": "gpu0001", "host": {"node_load1": 2.5}, "nvidia_smi": SMI}
    answers = (
        client.post(METRICS, json=node_body(), headers=headers),
        client.post(TEXT, content=EXPOSITION.replace("NODE", "gpu0001"), headers=plain),
        client.post(f"{XML}?node=gpu0001", content=SMI, headers=xml),
        client.post(WRITE, content=series, headers={**headers, **PROMETHEUS}),
        client.post(f"{SIGNALS}/otlp/v1/metrics", content=otlp, headers=json),
        client.post(f"{SIGNALS}/hooks/health-check", json=hook, headers=headers),
    )
    assert all(answer.is_success for answer in answers)
    reports, _ = new_samples(api)
    assert len(reports) == len(answers) + 1  # of a hook both the host's figures and nvidia-smi's
    assert {report.relayed_by.partition(" (")[0] for report in reports} == {says}


def test_node_token_may_send_for_jobs_on_that_node_only(served: Served) -> None:
    api, client = served
    mine = api.headers("signals", node="gpu0001")
    answer = client.post(STEPS, json=[step_body("4712"), step_body()], headers=mine)
    assert answer.status_code == 202
    count = len(step_body()["samples"])
    rejected = answer.json()["rejected"]
    assert [one["index"] for one in rejected] == list(range(count))
    assert "Slurm does not show the job 4712 on it" in rejected[0]["reason"]
    elsewhere = api.headers("signals", node="gpu0003")
    answer = client.post(STEPS, json=step_body(node="gpu0003"), headers=elsewhere).json()
    assert (answer["accepted"], len(answer["rejected"])) == (0, count)
    assert [one.job for one in new_samples(api)[1]] == ["4711"]


def test_a_refused_body_teaches_nothing_of_the_node_it_names(served: Served) -> None:
    api, client = served
    mine = api.headers("signals", node="gpu0001")
    gpus = [{"index": 5, "pci": "0000:9b:00", "uuid": "GPU-1"}]
    assert client.post(METRICS, json=node_body("gpu0002", gpus=gpus), headers=mine).status_code == 403
    text = {**mine, "Content-Type": "text/plain"}
    poison = EXPOSITION.replace("NODE", "gpu0002").replace('gpu="0"', 'gpu="7"')
    assert client.post(TEXT, content=poison, headers=text).status_code == 403
    honest = {**api.headers("signals"), "Content-Type": "text/plain"}
    client.post(TEXT, content=EXPOSITION.replace("NODE", "gpu0002"), headers=honest)
    with api.engine.connect() as conn:
        (new_samples,) = conn.execute(sa.text("SELECT doc #> '{data,gpus}' FROM inbox")).scalars()
        numbered = set(conn.execute(sa.text("SELECT gpu FROM signal_columns")).scalars())
    assert [one["index"] for one in new_samples] == [0, 1]
    assert numbered == {0, 1}


def test_rejected_entries_beyond_the_listed_ones_are_counted(served: Served) -> None:
    api, client = served
    answer = client.post(METRICS, json=[1] * 1200, headers=api.headers("signals")).json()
    assert (len(answer["rejected"]), answer["rejected_more"]) == (1000, 200)
    answer = client.post(METRICS, json=[1], headers=api.headers("signals")).json()
    assert answer.keys() == {"accepted", "duplicates", "unrecognised", "rejected"}


def test_job_token_may_send_for_that_job_only(served: Served) -> None:
    api, client = served
    mine = api.headers("signals", job="4711")
    assert client.post(STEPS, json=step_body(), headers=mine).status_code == 202
    assert client.post(CHECKPOINTS, json=checkpoint_body(), headers=mine).status_code == 202
    assert client.post(STEPS, json=[step_body(), step_body("4712")], headers=mine).status_code == 403
    assert client.post(CHECKPOINTS, json=checkpoint_body("4712"), headers=mine).status_code == 403
    assert client.post(METRICS, json=node_body(), headers=mine).status_code == 403
    assert [one.job for one in new_samples(api)[1]] == ["4711"]


def test_a_token_bound_to_a_cluster_measures_no_other(served: Served) -> None:
    api, client = served
    foreign = api.headers("signals", cluster="pod2")
    text = {**foreign, "Content-Type": "text/plain"}
    assert client.post(METRICS, json=node_body(), headers=foreign).status_code == 403
    assert client.post(STEPS, json=step_body(), headers=foreign).status_code == 403
    assert client.post(f"{TEXT}?node=gpu0001", content="node_load1 1\n", headers=text).status_code == 403
    assert client.post(CHECKPOINTS, json=checkpoint_body(), headers=foreign).status_code == 403
    elsewhere = {**api.headers("signals"), "Content-Type": "text/plain"}
    answer = client.post(f"{TEXT}?cluster=pod2&node=gpu0001", content="node_load1 1\n", headers=elsewhere)
    assert answer.status_code == 422
    assert new_samples(api) == ([], [])


def test_unknown_series_are_counted_and_listed(served: Served) -> None:
    api, client = served
    headers = api.headers("signals")
    client.post(METRICS, json=[node_body(), node_body("gpu0002")], headers=headers)
    viewer = api.headers("viewer")

    def items() -> list[dict[str, Any]]:
        return client.get(f"{SIGNALS}/unknown", headers=viewer).json()["items"]

    wait_until(items, 15, what="the tally is written")
    assert [(one["name"], one["count"], one["cluster"]) for one in items()] == [("NO_SUCH_THING", 6, CLUSTER)]
    assert "catalogue" in items()[0]["why"]
    elsewhere = api.headers("viewer", cluster="pod2")
    assert client.get(f"{SIGNALS}/unknown", headers=elsewhere).json()["items"] == []
    assert client.get(f"{SIGNALS}/unknown?cluster={CLUSTER}", headers=elsewhere).status_code == 403


def test_the_catalogue_is_listed(served: Served) -> None:
    api, client = served
    items = client.get(f"{SIGNALS}/catalogue", headers=api.headers("viewer")).json()["items"]
    assert [one["name"] for one in items] == ["gpu_temp_c", "load1"]
    assert items[1]["aliases"][0]["name"] == "node_load1"


def test_gpus_reported_by_exporters_reach_the_inbox_once(served: Served) -> None:
    api, client = served
    headers = {**api.headers("signals"), "Content-Type": "text/plain"}
    for _ in range(3):
        client.post(TEXT, content=EXPOSITION.replace("NODE", "gpu0001"), headers=headers)
    with api.engine.connect() as conn:
        kinds = conn.execute(sa.text("SELECT kind, node FROM inbox")).all()
    assert [tuple(one) for one in kinds] == [("gpu_inventory", "gpu0001")]


def test_figures_count_samples(served: Served) -> None:
    api, client = served
    viewer = api.headers("viewer")

    def accepted() -> float:
        text = client.get("/metrics", headers=viewer).text
        found = [one for one in text.splitlines() if one.startswith('healer_signals_total{result="accepted"')]
        return sum(float(one.rpartition(" ")[2]) for one in found if 'route="metrics"' in one)

    before = accepted()
    client.post(METRICS, json=node_body(), headers=api.headers("signals"))
    assert accepted() - before == 3
    assert 'healer_signals_queued{queue="metrics"} 0.0' in client.get("/metrics", headers=viewer).text


def test_a_database_that_is_away_is_503(served: Served) -> None:
    api, client = served
    headers = api.headers("signals")
    assert client.post(METRICS, json=node_body(), headers=headers).status_code == 202
    queue = api.app.state.queues["metrics"]
    queue.bounds = replace(queue.bounds, wait_s=0.5)
    with api.engine.begin() as conn:
        conn.execute(sa.text("LOCK TABLE samples IN ACCESS EXCLUSIVE MODE"))
        answer = client.post(METRICS, json=node_body(), headers=headers)
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1
    wait_until(lambda: queue.depth == 0, 20, what="the queue runs empty")


@pytest.fixture
def held(fresh_database: sa.Engine) -> Iterator[tuple[Api, httpx.Client, sa.Connection]]:
    """A database in which samples cannot be written until the connection is rolled back."""
    with serving(fresh_database) as (api, client), fresh_database.connect() as conn:
        conn.execute(sa.text("LOCK TABLE samples IN ACCESS EXCLUSIVE MODE"))
        yield api, client, conn
        conn.rollback()


@pytest.mark.parametrize(
    ("path", "queue", "body"), [(METRICS, "metrics", node_body()), (STEPS, "steps", step_body())]
)
def test_one_token_cannot_fill_the_queue_for_the_others(
    held: tuple[Api, httpx.Client, sa.Connection], path: str, queue: str, body: dict[str, Any]
) -> None:
    api, client, _ = held
    flooding, other = (api.headers("signals", name=name) for name in ("flooding", "other"))
    size = len(json.dumps(body))
    waiting = api.app.state.queues[queue]
    waiting.bounds = replace(waiting.bounds, queue=10 * size, wait_s=1.0)

    def status(headers: dict[str, str]) -> int:
        return client.post(path, json=body, headers=headers).status_code

    with ThreadPoolExecutor(20) as pool:
        flood = [pool.submit(status, flooding) for _ in range(19)]
        wait_until(lambda: waiting.depth >= 7 * size, 5, what="the flood waits")
        assert status(other) == 503, "it found room, and waited"
        assert {one.result() for one in flood} == {429, 503}


def test_metrics_are_shed_before_steps_and_steps_before_events(
    held: tuple[Api, httpx.Client, sa.Connection],
) -> None:
    api, client, conn = held
    headers = api.headers("signals")
    queues = api.app.state.queues
    for name, bound in (("events", 2), ("steps", 1000), ("metrics", 1000)):
        queues[name].bounds = replace(queues[name].bounds, queue=bound, wait_s=0.3)
    assert client.post(METRICS, json=node_body(), headers=headers).status_code == 503
    full = client.post(METRICS, json=[node_body()] * 10, headers=headers)
    assert (full.status_code, full.headers["Retry-After"]) == (429, "1")
    assert client.post(STEPS, json=[step_body()] * 4, headers=headers).status_code == 503, "there is room"
    assert client.post(METRICS, json={"node": "gpu0001"}, headers=headers).status_code == 429, "steps wait"
    assert client.post(CHECKPOINTS, json=checkpoint_body(), headers=headers).status_code == 202
    conn.rollback()
    wait_until(lambda: not any(one.depth for one in queues.values()), 20, what="the queues run empty")
    assert client.post(METRICS, json=node_body(), headers=headers).status_code == 202
