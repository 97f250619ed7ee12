"""Kernel lines and heartbeats over HTTP: accepted means stored, and each entry falls into one heap."""

import gzip
import json
import threading
from typing import Any

import httpx
import msgspec
import pytest
import sqlalchemy as sa

from healer.signals import wire
from tests.support.api import CLUSTER, XID_79, Api, serving, snapshot

Served = tuple[Api, httpx.Client]
KERNEL = "/api/v1/signals/kernel-log"
BEAT = "/api/v1/signals/heartbeat"


def body(node: str = "gpu0001", seq: int = 1, line: str = XID_79, **more: object) -> dict[str, object]:
    return {
        "cluster": CLUSTER,
        "node": node,
        "boot_id": "b1",
        "entries": [{"seq": seq, "line": line}],
        **more,
    }


def rows(api: Api) -> int:
    with api.engine.connect() as conn:
        return conn.execute(sa.text("SELECT count(*) FROM inbox")).scalar_one()


def test_a_line_is_stored_and_a_repeat_is_a_duplicate(served: Served) -> None:
    api, client = served
    headers = api.headers("signals")
    first = client.post(KERNEL, json=body(), headers=headers)
    again = client.post(KERNEL, json=body(), headers=headers)
    assert first.status_code == again.status_code == 202
    assert first.json() == {"accepted": 1, "duplicates": 0, "unrecognised": 0, "rejected": []}
    assert again.json()["duplicates"] == 1
    assert rows(api) == 1


def test_one_bad_entry_never_loses_the_good_ones(served: Served) -> None:
    api, client = served
    entries = [{"seq": 1, "line": XID_79}, {"seq": 2}, {"seq": 3, "line": "usb 1-1: new device"}]
    stored = client.post(
        KERNEL, json={"node": "gpu0001", "boot_id": "b1", "entries": entries}, headers=api.headers("signals")
    )
    assert stored.status_code == 202
    answer = stored.json()
    assert (answer["accepted"], answer["unrecognised"]) == (1, 1)
    assert [one["index"] for one in answer["rejected"]] == [1]


def test_an_unknown_node_is_rejected_by_index(served: Served) -> None:
    api, client = served
    answer = client.post(KERNEL, json=[body(), body(node="nosuch")], headers=api.headers("signals"))
    assert answer.json()["accepted"] == 1
    assert answer.json()["rejected"][0]["index"] == 1
    assert "nosuch" in answer.json()["rejected"][0]["reason"]


def test_plain_lines_need_a_node(served: Served) -> None:
    api, client = served
    headers = {**api.headers("signals"), "Content-Type": "text/plain"}
    without = client.post(KERNEL, content=XID_79, headers=headers)
    answer = client.post(KERNEL + f"?cluster={CLUSTER}&node=gpu0002", content=XID_79 + "\n", headers=headers)
    assert without.status_code == 422
    assert without.json()["errors"][0]["field"] == "node"
    assert answer.json()["accepted"] == 1


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be"])
def test_a_byte_order_mark_hides_no_line(served: Served, encoding: str) -> None:
    """As PowerShell and editors of Windows write files that `curl --data-binary` then sends."""
    api, client = served
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    headers = api.headers("signals")
    text, packed = {"Content-Type": "text/plain"}, {"Content-Encoding": "gzip"}
    line = (mark + XID_79).encode(encoding)
    sent = [
        client.post(f"{KERNEL}?node=gpu0001", content=line, headers=headers | text),
        client.post(f"{KERNEL}?node=gpu0002", content=gzip.compress(line), headers=headers | text | packed),
        client.post(
            KERNEL,
            content=(mark + json.dumps(body("gpu0003"))).encode(encoding),
            headers=headers | {"Content-Type": "application/json"},
        ),
    ]
    assert [one.json()["accepted"] for one in sent] == [1, 1, 1]


def test_a_token_bound_to_a_node_speaks_of_nothing_else(served: Served) -> None:
    api, client = served
    headers = api.headers("signals", node="gpu0001")
    assert client.post(KERNEL, json=body(), headers=headers).status_code == 202
    assert client.post(KERNEL, json=[body(seq=2), body(node="gpu0002")], headers=headers).status_code == 403
    assert client.post(KERNEL, json=body(node="nosuch"), headers=headers).status_code == 403
    assert client.post(BEAT, json={"node": "gpu0002"}, headers=headers).status_code == 403
    sneaky = {"node": "gpu0001", "entries": [{"line": XID_79, "node": "gpu0002"}]}
    assert client.post(KERNEL, json=sneaky, headers=headers).status_code == 403
    assert rows(api) == 1


def test_a_token_bound_to_a_cluster_speaks_of_no_other(served: Served) -> None:
    api, client = served
    headers = api.headers("signals", cluster="pod2")
    assert client.post(KERNEL, json=body(), headers=headers).status_code == 403


def test_no_signal_of_a_cluster_that_was_removed_from_the_settings_is_accepted(served: Served) -> None:
    """Its last picture is still in the database, but no detector would ever read the signals."""
    api, client = served
    api.snapshots.put(msgspec.structs.replace(snapshot(), cluster="removed"))
    headers, about = api.headers("signals"), {"cluster": "removed", "node": "gpu0001"}
    step = {"step": 1, "step_s": 1.0, "rank": 0, "node": "gpu0001", "time": "2026-11-20T03:00:00Z"}
    bodies: dict[str, Any] = {
        "kernel-log": body(cluster="removed"),
        "heartbeat": about,
        "metrics": about | {"time": "2026-11-20T03:00:00Z", "host": {"node_load1": 3.1}},
        "step-times": {"cluster": "removed", "job": "4711", "restart": 0, "samples": [step]},
        "hooks/prolog": about | {"job": "4711", "lines": [XID_79]},
        "logs": [about | {"_TRANSPORT": "kernel", "_HOSTNAME": "gpu0001", "MESSAGE": XID_79}],
        "checkpoints": {"cluster": "removed", "job": "4711", "step": 5, "path": "/x", "durable": True},
    }
    answers = {
        route: client.post(f"/api/v1/signals/{route}", json=sent, headers=headers).json()
        for route, sent in bodies.items()
    }
    answers["text"] = client.post(
        KERNEL, params=about, content=XID_79, headers=headers | {"Content-Type": "text/plain"}
    ).json()
    assert [route for route, answer in answers.items() if answer.get("accepted")] == []
    assert rows(api) == 0


def test_before_slurm_was_asked_nothing_is_lost(fresh_database: sa.Engine) -> None:
    with serving(fresh_database, nodes=0) as (api, client):
        answer = client.post(KERNEL, json=body(), headers=api.headers("signals"))
        assert answer.status_code == 503
        assert int(answer.headers["Retry-After"]) >= 1


def test_heartbeats_within_a_second_are_one(served: Served) -> None:
    api, client = served
    headers = api.headers("signals")
    answers = [client.post(BEAT, json={"node": "gpu0001", "boot_id": "b"}, headers=headers) for _ in range(5)]
    assert all(one.status_code == 202 for one in answers)
    assert (
        sum(one.json()["accepted"] for one in answers) + sum(one.json()["duplicates"] for one in answers) == 5
    )
    assert rows(api) < 5


def test_a_heartbeat_with_news_is_stored_within_a_second_of_another(served: Served) -> None:
    """A follower and a script that lists the GPUs may beat at the same moment of each period."""
    api, client = served
    headers = api.headers("signals")
    gpus = [{"index": 0, "pci": "0000:18:00"}]
    for news in ({}, {"gpus": gpus}, {"gpus": gpus, "lost": 3}, {"boot_id": "c"}):
        beat = {"node": "gpu0001", "boot_id": "b", **news}
        assert client.post(BEAT, json=beat, headers=headers).json()["accepted"] == 1, news
    assert rows(api) == 4


def test_wrong_bodies_are_problems(served: Served) -> None:
    api, client = served
    headers = api.headers("signals")
    for content in (b"", b"{", b"[1]", b'{"node":"gpu0001"}', b'{"entries":3}', b"\xff\xfe", b"[" * 100_000):
        answer = client.post(KERNEL, content=content, headers={**headers, "Content-Type": "application/json"})
        assert answer.status_code == 422, content[:20]
        assert answer.headers["content-type"] == "application/problem+json"
    form = client.post(
        KERNEL, content="a=b", headers={**headers, "Content-Type": "application/x-www-form-urlencoded"}
    )
    packed = client.post(KERNEL, content=b"x", headers={**headers, "Content-Encoding": "br"})
    assert (form.status_code, packed.status_code) == (415, 415)


def test_a_reason_is_in_the_language_of_its_reader_also_when_it_was_stored(served: Served) -> None:
    api, client = served
    with api.engine.begin() as conn:
        # As a version before the catalogue stored it, once this one has upgraded the column.
        conn.execute(
            sa.text(
                "INSERT INTO losses (cluster, source, reason, who, count, first_seen, last_seen, example) "
                "VALUES ('pod1', 'old', 'rejected', '', 1, now(), now(), to_jsonb('line: too long'::text))"
            )
        )
    headers = api.headers("signals")
    chinese = {"Accept-Language": "zh"}
    wrong = [client.post(KERNEL, json=body("cpu1"), headers=headers | more).json() for more in ({}, chinese)]
    assert [one["rejected"][0]["reason"] for one in wrong] == [
        "node: cpu1 is not a node of cluster pod1",
        "node：cpu1 不是集群 pod1 的节点",
    ]
    whole = client.post(KERNEL, json={"entries": 3}, headers=headers | chinese).json()
    assert whole["detail"] == "请求体：`entries` 必须是带 `line` 的对象列表"
    api.app.state.losses.flush()
    losses = [
        client.get("/api/v1/signals/losses", headers=api.headers("viewer") | more).json()["items"]
        for more in ({}, chinese)
    ]
    examples = [{one["source"] + "/" + one["reason"]: one["example"] for one in items} for items in losses]
    assert examples[0]["kernel-log/rejected"] == "node: cpu1 is not a node of cluster pod1"
    assert examples[1]["kernel-log/rejected"] == "node：cpu1 不是集群 pod1 的节点"
    assert examples[0]["old/rejected"] == examples[1]["old/rejected"] == "line: too long"


def test_a_packed_body_is_bounded_when_unpacked(served: Served) -> None:
    api, client = served
    headers = {**api.headers("signals"), "Content-Encoding": "gzip", "Content-Type": "application/json"}
    good = gzip.compress(json.dumps(body()).encode())
    assert client.post(KERNEL, content=good, headers=headers).json()["accepted"] == 1
    bomb = gzip.compress(b" " * (8 * 1024 * 1024 + 1))
    assert client.post(KERNEL, content=bomb, headers=headers).status_code == 413
    for content in (b"x", good[:-1], good + b"x", b""):
        answer = client.post(KERNEL, content=content, headers=headers)
        assert answer.status_code == 400, content[:20]


def test_a_body_over_8_mb_is_413(served: Served) -> None:
    api, client = served
    big = {**api.headers("signals"), "Content-Type": "text/plain"}
    answer = client.post(KERNEL + "?node=gpu0001", content=b"x" * (8 * 1024 * 1024 + 1), headers=big)
    assert answer.status_code == 413
    assert answer.json()["code"] == "too_large"


def test_readers_write_no_signals(served: Served) -> None:
    api, client = served
    assert client.post(KERNEL, json=body()).status_code == 401
    assert client.post(KERNEL, json=body(), headers=api.headers("admin")).status_code == 403


@pytest.mark.parametrize("route", ["JSON lines", "text lines", "heartbeats"])
def test_a_long_body_is_read_beside_the_event_loop_and_stalls_no_other_request(
    served: Served, monkeypatch: pytest.MonkeyPatch, route: str
) -> None:
    """Else a small packed body of one node would stop the API for seconds, and each pause with it."""
    api, client = served
    reader = {"JSON lines": "kernel_log", "text lines": "kernel_text", "heartbeats": "heartbeat"}[route]
    real, threads = getattr(wire, f"{reader}_observations"), []

    def read(*args: Any, **more: Any) -> wire.Accepted:
        threads.append(threading.get_ident())
        return real(*args, **more)

    monkeypatch.setattr(wire, f"{reader}_observations", read)
    for count in (1, 3000):
        if route == "text lines":
            text = f"{XID_79}\n" * count
            kind = api.headers("signals") | {"Content-Type": "text/plain"}
            answer = client.post(f"{KERNEL}?node=gpu0001", content=text, headers=kind)
        else:
            beats = [{"node": "gpu0001", "boot_id": "b1"}] * count
            lines = body() | {"entries": [{"seq": seq, "line": XID_79} for seq in range(count)]}
            to, sent = (BEAT, beats) if route == "heartbeats" else (KERNEL, lines)
            answer = client.post(to, json=sent, headers=api.headers("signals"))
        assert answer.status_code == 202, answer.text
    assert threads[0] != threads[1]
