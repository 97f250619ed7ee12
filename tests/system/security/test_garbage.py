"""Whatever is sent, no route answers 500, and every error is a problem."""

import json

import cramjam
import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.support.api import Api

Served = tuple[Api, httpx.Client]
OTLP = {"application/json", "application/x-protobuf"}


def check(answer: httpx.Response, what: object) -> None:
    assert answer.status_code < 500 or answer.status_code == 503, (what, answer.text)
    if answer.status_code < 400:
        return
    assert "Traceback" not in answer.text
    if "/signals/otlp/" in answer.request.url.path and answer.headers["content-type"] in OTLP:
        return  # OTLP wants a google.rpc.Status, in the form of the request
    assert answer.headers["content-type"] == "application/problem+json", what
    assert {"type", "title", "status", "detail", "code"} <= answer.json().keys(), what


ODD = ["\x00", "%00", "../..", "'; DROP TABLE tokens; --", "\ud800", "ü" * 300, "-1", "1e999", "%", "_", "\\"]
LISTS = ["nodes", "incidents", "runs", "audit", "pauses", "rules", "playbooks", "breaker", "stats"]


@pytest.mark.parametrize("name", LISTS)
def test_odd_queries(served: Served, name: str) -> None:
    api, client = served
    headers = api.headers("admin")
    for field in ("q", "cursor", "limit", "node", "state", "severity", "cluster", "since", "nosuch"):
        for value in ODD:
            text = value.encode("utf-8", "surrogatepass").decode("latin-1")
            check(client.get(f"/api/v1/{name}", params={field: text}, headers=headers), (name, field, value))


def test_odd_paths(served: Served) -> None:
    api, client = served
    headers = api.headers("admin")
    for value in ("%00", "%FF", "..%2f..", "a%0Ab", "%ED%A0%80", "x" * 500):
        for path in ("incidents/", "runs/", "nodes/pod1/", "jobs/pod1/", "nodes/", "pauses/"):
            for method in ("GET", "POST", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE"):
                check(
                    client.request(method, f"/api/v1/{path}{value}", headers=headers), (method, path, value)
                )


@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    line=st.text(max_size=200),
    node=st.sampled_from(["gpu0001", "", "x", "\x00", "gpu0002"]),
    more=st.dictionaries(
        st.sampled_from(["time", "seq", "boot_id", "job", "node", "cluster"]),
        st.none() | st.text(max_size=20) | st.integers(),
    ),
)
def test_odd_kernel_lines(served: Served, line: str, node: str, more: dict) -> None:
    """Every entry is counted in exactly one class, whatever it holds."""
    api, client = served
    headers = {**api.headers("signals"), "Content-Type": "application/json"}
    body = json.dumps(
        {"node": node, "entries": [{"line": "NVRM: Xid (PCI:0000:9b:00): 79, " + line, **more}]}
    )
    answer = client.post("/api/v1/signals/kernel-log", content=body, headers=headers)
    check(answer, body)
    if answer.status_code == 202:
        counts = answer.json()
        heaps = counts["accepted"] + counts["duplicates"] + counts["unrecognised"] + len(counts["rejected"])
        assert heaps == 1


_NAMES = st.sampled_from(["DCGM_FI_DEV_GPU_TEMP", "node_load1", "", "\x00", "x" * 300, "ü"])
_VALUES = (
    st.none()
    | st.booleans()
    | st.floats()
    | st.integers()
    | st.text(max_size=5)
    | st.lists(st.floats(), max_size=3)
)


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(
    body=st.dictionaries(
        st.sampled_from(["node", "cluster", "time", "gpu", "host", "ports", "links", "nosuch"]),
        st.sampled_from(["gpu0001", "pod1"]) | _VALUES | st.dictionaries(_NAMES, _VALUES, max_size=3),
    )
)
def test_odd_metrics(served: Served, body: dict) -> None:
    api, client = served
    headers = {**api.headers("signals"), "Content-Type": "application/json"}
    for sent in (body, [body, {"node": "gpu0001", "host": {"node_load1": 1}}]):
        text = json.dumps(sent)
        answer = client.post("/api/v1/signals/metrics", content=text, headers=headers)
        check(answer, text)
        if answer.status_code == 202 and isinstance(sent, list):
            assert answer.json()["accepted"] >= 1, "one bad entry never loses the good ones"


@settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(raw=st.binary(max_size=300), line=st.text(max_size=100))
def test_odd_bodies_of_samples(served: Served, raw: bytes, line: str) -> None:
    """Bytes and text of any kind, and near misses, on the routes that are not JSON."""
    api, client = served
    headers = api.headers("signals")
    text = line.encode("utf-8", "replace")
    snappy = {"Content-Type": "application/x-protobuf", "Content-Encoding": "snappy"}
    tries: list[tuple[str, bytes, dict[str, str]]] = [
        ("prometheus/write", raw, snappy),
        ("prometheus/write", bytes(cramjam.snappy.compress_raw(raw)), snappy),
        (
            "prometheus/write",
            bytes(cramjam.snappy.compress_raw(b"\x0a" + bytes([len(raw) % 128]) + raw)),
            snappy,
        ),
    ]
    for name, kind in (("openmetrics", "text/plain"), ("nvidia-smi", "text/xml")):
        tries += [
            (f"{name}?node=gpu0001", raw, {"Content-Type": kind}),
            (f"{name}?node=gpu0001", raw, {"Content-Type": kind, "Content-Encoding": "gzip"}),
            (f"{name}?node=gpu0001", b'node_load1{a="' + text + b'"} 1\n', {"Content-Type": kind}),
            (
                f"{name}?node=gpu0001",
                b"<nvidia_smi_log>" + text + b"</nvidia_smi_log>",
                {"Content-Type": kind},
            ),
        ]
    for path, content, kind in tries:
        check(
            client.post(f"/api/v1/signals/{path}", content=content, headers=headers | kind), (path, content)
        )


def test_large_and_foreign_bodies(served: Served) -> None:
    api, client = served
    headers = api.headers("admin")
    path = "/api/v1/pauses"
    assert client.post(path, content=b"x" * 70_000, headers=headers).status_code == 413
    assert client.post(path, content=iter([b"x" * 40_000] * 3), headers=headers).status_code == 413
    xml = {**headers, "Content-Type": "application/xml"}
    assert client.post(path, content=b"<a/>", headers=xml).status_code == 415
    kind = {**headers, "Content-Type": "application/json"}
    for content in (
        b"",
        b"{",
        b"[]",
        b"null",
        b'"x"',
        b"\xff",
        b"[" * 5000,
        b'{"reason": 1e999}',
        b'{"\\ud800": 1}',
    ):
        answer = client.post(path, content=content, headers=kind)
        check(answer, content)
        assert answer.status_code in {400, 422}, content
