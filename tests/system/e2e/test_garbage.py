"""Garbage on every route of a running site: a clear problem, nothing lost, and the API still answers."""

import json
import random
import re
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from healer.embedded.embedded_slurm import RealSlurm
from tests.support.site import CLUSTER, GPU_AT, PCI, Site, site_on
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

SEED = 20261120
#: Answers that a sender of garbage may get. Never 5xx: nothing here is our own failure.
FINE = range(200, 300)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
TYPES = (
    "application/json",
    "text/plain",
    "application/octet-stream",
    "application/x-protobuf",
    "nonsense",
    "",
)


@pytest.fixture(scope="module")
def site(real_slurm: RealSlurm) -> Iterator[Site]:
    # Garbage with an operator's token must not move the session's Slurm.
    with site_on(real_slurm, HEALER_MODE="shadow") as one:
        yield one


@pytest.fixture(scope="module")
def paths(site: Site) -> dict[str, Any]:
    found = site.stack.http.get(f"{site.stack.url}/openapi.json", timeout=10).json()["paths"]
    assert "/api/v1/signals/kernel-log" in found and "/api/v1/playbooks/{name}/runs" in found
    return found


def bodies(chance: random.Random) -> Iterator[bytes]:
    """Wrong in every way a body can be wrong."""
    yield b""
    yield chance.randbytes(1)
    yield chance.randbytes(4096)
    yield b"\xff\xfe{}"
    yield b'{"reason": "\xc3\x28"}'
    yield b'{"reason": "\\ud800"}'
    yield b"[" * 100_000
    yield b'{"a":' * 50_000
    yield b"9" * 5000
    yield b"NaN"
    yield b'{"reason": "x", "reason": "y", "unknown": 1}'
    yield json.dumps({"reason": "a\0b", "node": "\0", "note": "\0"}).encode()
    for value in (None, True, 0, -1, 1e308, 2**70, "", "x" * 70_000, [], [[]], {}, [None] * 1000):
        yield json.dumps(value).encode()
        names = ("reason", "note", "node", "cluster", "mode", "review", "entries", "into", "scope", "until")
        yield json.dumps(dict.fromkeys(names, value)).encode()


def words(chance: random.Random) -> Iterator[str]:
    """What may stand in a path or a query in place of a name."""
    yield "nobody"
    yield "%00"
    yield "%ff%fe"
    yield "..%2f..%2fetc%2fpasswd"
    yield "%F0%9F%94%A5"
    yield "'%22;DROP%20TABLE%20runs"
    yield "x" * 3000
    yield "-1"
    yield f"%{chance.randrange(256):02x}"


def filled(path: str, word: str) -> str:
    return re.sub(r"\{[^}]+\}", word, path)


def assert_clear(answer: httpx.Response, what: str) -> None:
    assert answer.status_code < 500, f"{what}: {answer.status_code} {answer.text[:500]}"
    if answer.status_code < 400 or answer.request.method == "HEAD":
        return
    kind = answer.headers.get("content-type", "")
    if "/signals/otlp/" in answer.request.url.path and kind in {"application/json", "application/x-protobuf"}:
        return  # OTLP wants a google.rpc.Status, in the form of the request
    assert kind.startswith("application/problem+json"), f"{what}: {answer.status_code} as {kind}"
    body = answer.json()
    assert body["status"] == answer.status_code and body["title"] and body["detail"], f"{what}: {body}"


def is_stream(path: str) -> bool:
    return path.endswith("/stream")


def test_every_route_answers_garbage_with_a_clear_problem(site: Site, paths: dict[str, Any]) -> None:
    chance = random.Random(SEED)
    acting = [(path, method) for path, has in paths.items() for method in has if method != "get"]
    assert len(acting) > 15
    for path, method in acting:
        client = site.api("signals" if "/signals/" in path else "admin")
        base = str(client.base_url).removesuffix("/api/v1/")
        for count, body in enumerate(bodies(chance)):
            url = base + filled(path, "nobody")
            headers = {"content-type": TYPES[0] if count % 3 else chance.choice(TYPES)}
            answer = client.request(method.upper(), url, content=body, headers=headers)
            assert_clear(answer, f"{method} {path} with {body[:60]!r}")


def test_every_route_answers_wrong_names_methods_and_queries(site: Site, paths: dict[str, Any]) -> None:
    chance = random.Random(SEED)
    client = site.api("admin")
    base = site.stack.url
    for path, has in paths.items():
        for word in words(chance):
            if "get" in has and not is_stream(path):
                assert_clear(client.get(base + filled(path, word)), f"GET {path} with {word[:60]}")
        for method in METHODS:
            if method.lower() not in has:
                answer = client.request(method, base + filled(path, "nobody"))
                assert answer.status_code in {401, 404, 405}, f"{method} {path}: {answer.status_code}"
                assert_clear(answer, f"{method} {path}")
        for parameter in (one["name"] for one in has.get("get", {}).get("parameters", ())):
            if is_stream(path):
                continue
            for word in words(chance):
                answer = client.get(f"{base}{filled(path, 'nobody')}?{parameter}={word}")
                assert_clear(answer, f"GET {path}?{parameter}={word[:60]}")


def test_a_body_of_100_mb_is_refused_before_it_is_read(site: Site) -> None:
    client = site.api("signals")
    for path in ("signals/kernel-log", "signals/heartbeat"):
        with socket.create_connection(("127.0.0.1", site.stack.port), timeout=10) as raw:
            head = f"POST /api/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            head += f"Authorization: {client.headers['authorization']}\r\nContent-Length: 100000000\r\n\r\n"
            raw.sendall(head.encode())
            assert raw.recv(100).startswith(b"HTTP/1.1 413 ")


def test_non_http_traffic_harms_no_client(site: Site) -> None:
    chance = random.Random(SEED)
    for garbage in (chance.randbytes(2000), b"GET / HTTP/9.9\r\n\r\n", b"POST " + b"a" * 100_000):
        with socket.create_connection(("127.0.0.1", site.stack.port), timeout=10) as raw:
            raw.sendall(garbage)
    assert site.stack.http.get(f"{site.stack.url}/healthz", timeout=5).status_code == 200


def test_one_bad_entry_loses_no_good_one(site: Site) -> None:
    """Every shape of bad entry between good lines: the good ones are in the inbox, the bad ones are named."""
    bad: list[Any] = [
        None,
        7,
        "line",
        [],
        {},
        {"line": 7},
        {"line": None},
        {"line": "x", "time": "yesterday"},
    ]
    bad += [{"line": "x", "seq": -1}, {"line": "x" * 5000}, {"line": "x", "node": "no\0node"}]
    bad += [{"line": "x", "node": "gpu9999"}, {"line": "x", "job": "a b"}]
    uuids = [f"0badf00d-0000-4000-8000-{index:012d}" for index in range(len(bad))]
    entries: list[Any] = []
    for index, (one, uuid) in enumerate(zip(bad, uuids, strict=True)):
        entries += [one, {"line": GPU_AT.format(pci=PCI[index % 8], uuid=uuid), "seq": index}]
    body = {"cluster": CLUSTER, "node": "gpu0030", "boot_id": "b-1", "entries": entries}
    answer = site.api("signals").post("/signals/kernel-log", json=body)
    assert answer.status_code == 202, answer.text
    counts = answer.json()
    assert counts["accepted"] == len(bad)
    assert [one["index"] for one in counts["rejected"]] == list(range(0, len(entries), 2))
    assert all(one["reason"] for one in counts["rejected"])
    stored = site.sql("SELECT count(*) FROM inbox WHERE doc->>'line' LIKE %s", "%0badf00d-%")
    assert stored == [(len(bad),)]


def test_afterwards_it_works_as_before(site: Site) -> None:
    assert site.stack.http.get(f"{site.stack.url}/readyz", timeout=5).status_code == 200
    log = site.stack.log("api")
    assert "Traceback" not in log, log[-3000:]
    assert site.get("/incidents")["items"] == []
    wait_until(
        lambda: site.sql("SELECT count(*) FROM inbox WHERE consumed_at IS NULL") == [(0,)],
        10,
        what="all that was accepted is walked",
    )
    assert site.log().count("update_node") == 0
    site.audit_holds()
