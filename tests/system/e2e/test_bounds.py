"""Too much, too slow, too large: sent to a real `healer api`, and what that does to its memory and to others.

Bounds are on memory and on answers, never on time.
"""

import gzip
import json
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import cramjam
import httpx
import pytest
import sqlalchemy as sa

from healer.signals.series import SERIES_OF_NODE_MAX
from healer.signals.slots import REFUSED_MAX
from tests.support.api_process import MB, PROGRAM, ApiProcess, api_process
from tests.support.stack import scratch_folder
from tests.support.wait import wait_until

LABEL_SETS = 4 * 4 * SERIES_OF_NODE_MAX
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=python, GPU has fallen off the bus."
#: An API whose queue of events is a tenth as long: a busy machine reads 3,000 lines, and not always 30,000,
#: in the 2 s after which events wait on disk.
SHORT_QUEUE = """
from functools import partial
from healer.api import app, group_commit
from healer.commands import cli
app.QueueBounds = partial(group_commit.QueueBounds, queue=group_commit.QUEUE // 10)
cli.main(["api"])
"""


@pytest.fixture
def api(fresh_database: sa.Engine, scratch: Path, request: pytest.FixtureRequest) -> Iterator[ApiProcess]:
    with api_process(fresh_database, scratch, program=getattr(request, "param", PROGRAM)) as one:
        with one.client() as client:  # everything is loaded before memory is looked at
            for number in range(20):
                assert client.post("/signals/kernel-log", json=event(number)).status_code == 202
            assert client.post("/signals/metrics", json={"node": "gpu0001", "host": {"load1": 1}}).is_success
        one.forget_peak()
        yield one


def event(number: int, node: str = "gpu0001") -> dict[str, object]:
    return {"node": node, "boot_id": "b", "entries": [{"seq": number, "line": XID}]}


def begun(api: ApiProcess, route: str, headers: str, body: bytes = b"", *, source: str = "") -> socket.socket:
    """A request whose body has only begun."""
    link = socket.create_connection(("127.0.0.1", api.port), 60, (source, 0) if source else None)
    head = (
        f"POST /api/v1/signals/{route} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        f"Content-Type: application/json\r\n{headers}\r\n"
    )
    link.sendall(head.encode() + body)
    return link


def answered(link: socket.socket) -> str:
    """All that comes until the other side closes."""
    parts = []
    link.settimeout(60)
    while True:
        try:
            part = link.recv(65536)
        except ConnectionError:
            break
        if not part:
            break
        parts.append(part)
    return b"".join(parts).decode()


def bearer(api: ApiProcess, **bound: str) -> str:
    return f"Authorization: {api.headers(**bound)['Authorization']}\r\n"


def test_a_gigabyte_is_refused_early_and_memory_stays_flat(api: ApiProcess) -> None:
    before = api.rss()
    declared = begun(api, "metrics", bearer(api) + f"Content-Length: {2**30}\r\n")
    with closing(declared):
        assert answered(declared).startswith("HTTP/1.1 413 ")
    chunked = begun(api, "metrics", bearer(api) + "Transfer-Encoding: chunked\r\n")
    sent = 0
    piece = b"100000\r\n" + b" " * MB + b"\r\n"
    with closing(chunked):
        try:
            for _ in range(1024):
                chunked.sendall(piece)
                sent += MB
        except OSError:
            pass  # closed, as it should be
        assert sent < 64 * MB, "a body is read on after it is too large"
    grown = api.peak() - before
    print(f"1 GB declared and chunked: {sent / MB:.0f} MB were taken, memory grew by {grown / MB:.0f} MB")
    assert grown < 60 * MB
    wait_until(lambda: api.losses().get(("metrics", "too_large")) == 2, timeout_s=60, what="both are counted")


@pytest.mark.parametrize("packing", ["gzip", "zstd"])
def test_bombs_take_a_bounded_memory_however_many(api: ApiProcess, packing: str) -> None:
    if packing == "gzip":
        bomb = gzip.compress(bytes(MB), 9) * 900  # 1 GB
        nested = gzip.compress(bomb)
    else:
        bomb = bytes(cramjam.zstd.compress(bytes(MB))) * 16_384  # 16 GB
        nested = bytes(cramjam.zstd.compress(bomb))
    assert len(bomb) < 2 * MB
    before = api.rss()
    answers: list[int] = []

    def send() -> None:
        with api.client() as client:
            for body, packed in ((bomb, packing), (nested, packing), (nested, f"{packing}, {packing}")):
                headers = {"Content-Encoding": packed, "Content-Type": "application/json"}
                answers.append(client.post("/signals/metrics", content=body, headers=headers).status_code)

    threads = [threading.Thread(target=send) for _ in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    grown = api.peak() - before
    print(f"{packing}: 8 bombs at once, memory grew by {grown / MB:.0f} MB")
    assert sorted(set(answers)) == [413, 415, 422]  # a bomb; named twice; nested: what comes out is no JSON
    assert len(answers) == 24
    assert grown < 400 * MB
    with api.client() as client:
        assert client.post("/signals/kernel-log", json=event(100)).json()["accepted"] == 1


def test_stalled_senders_are_reported_and_counted_and_block_no_others(api: ApiProcess) -> None:
    before = api.rss()
    with ExitStack() as stack:
        stalled = [
            stack.enter_context(
                closing(begun(api, "kernel-log", bearer(api) + "Content-Length: 1000\r\n", b"{"))
            )
            for _ in range(400)
        ]
        with api.client() as honest, api.client(node="gpu0002") as bound:
            for number in range(100, 120):
                assert honest.post("/signals/kernel-log", json=event(number)).status_code == 202
                answer = bound.post("/signals/kernel-log", json=event(number, "gpu0002"))
                assert answer.status_code == 202
        grown = api.peak() - before
        print(f"400 stalled: memory grew by {grown / MB:.0f} MB")
        assert grown < 100 * MB
        answers = [answered(one) for one in stalled]
    assert {one.partition("\r\n")[0] for one in answers} == {"HTTP/1.1 408 Request Timeout"}
    assert "it must be complete within 30 s" in answers[0]
    wait_until(
        lambda: api.losses().get(("kernel-log", "stalled")) == 400, timeout_s=60, what="each is counted"
    )


def test_a_node_holds_so_many_unfinished_bodies_and_no_more(api: ApiProcess) -> None:
    """What one token holds open is its own matter alone."""
    mine = bearer(api, node="gpu0001") + "Content-Length: 1000\r\n"
    with ExitStack() as stack:
        links = [stack.enter_context(closing(begun(api, "kernel-log", mine, b"{"))) for _ in range(100)]
        with api.client(node="gpu0002") as other:
            assert other.post("/signals/kernel-log", json=event(1, "gpu0002")).status_code == 202
        answers = [answered(one).partition("\r\n")[0] for one in links]
    counts = {status: answers.count(status) for status in sorted(set(answers))}
    assert counts == {"HTTP/1.1 408 Request Timeout": 64, "HTTP/1.1 429 Too Many Requests": 36}


def test_a_head_that_never_ends_and_a_silent_connection_are_ended(api: ApiProcess) -> None:
    with ExitStack() as stack:
        silent, half, dripping = (
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", api.port), 60)))
            for _ in range(3)
        )
        half.sendall(b"POST /api/v1/signals/kernel-log HTTP/1.1\r\nHost: 127.0.0.1\r\n")

        over = threading.Event()

        def drip() -> None:
            dripping.sendall(b"GET /healthz HTTP/1.1\r\n")
            while not over.wait(0.5):
                try:
                    dripping.sendall(b"x: y\r\n")
                except OSError:
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        answers_seen = [answered(one) for one in (silent, half, dripping)]
        over.set()
        thread.join()
    assert answers_seen[0].startswith("HTTP/1.1 408 ") and answers_seen[1].startswith("HTTP/1.1 408 ")
    assert answers_seen[2].startswith("HTTP/1.1 408 ") or answers_seen[2] == ""


@contextmanager
def few_files(database: sa.Engine) -> Iterator[ApiProcess]:
    with scratch_folder() as folder, api_process(database, folder, files=1024) as one:
        yield one


def test_one_address_takes_a_share_of_the_connections(fresh_database: sa.Engine) -> None:
    """1,024 files: 768 connections, 200 of one address."""
    with few_files(fresh_database) as api, ExitStack() as stack:
        links = [
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", api.port), 60)))
            for _ in range(300)
        ]
        wait_until(lambda: _closed(links) >= 100, what="those beyond its share are closed")
        honest = stack.enter_context(
            closing(
                begun(
                    api,
                    "kernel-log",
                    bearer(api) + f"Connection: close\r\nContent-Length: {len(json.dumps(event(1)))}\r\n",
                    json.dumps(event(1)).encode(),
                    source="127.0.0.2",
                )
            )
        )
        assert answered(honest).startswith("HTTP/1.1 202 ")


def _closed(links: list[socket.socket]) -> int:
    count = 0
    for one in links:
        one.setblocking(False)
        try:
            count += one.recv(4096, socket.MSG_PEEK)[:12] in (b"", b"HTTP/1.1 503")
        except BlockingIOError:
            pass
        except ConnectionError:
            count += 1
    return count


def lines(first: int, count: int, node: str = "gpu0001") -> dict[str, object]:
    entries = [{"seq": number, "line": XID} for number in range(first, first + count)]
    return {"node": node, "boot_id": "b", "entries": entries}


def queued(api: ApiProcess, queue: str) -> float:
    with api.client("viewer") as client:
        text = client.get(f"{api.url}/metrics").text
    wanted = f'healer_signals_queued{{queue="{queue}"}}'
    line = next((one for one in text.splitlines() if one.startswith(wanted)), "0")  # none was queued yet
    return float(line.split()[-1])


@pytest.mark.parametrize("api", [("-c", SHORT_QUEUE)], indirect=True, ids=["short queue"])
def test_under_pressure_metrics_go_first_and_no_fault_event_is_lost(api: ApiProcess) -> None:
    """The inbox takes nothing for a moment, and 3,000 fault events wait: more than half of their queue."""
    shed: Counter[str] = Counter()
    events = 20  # the fixture's
    for attempt in range(1, 16):
        refused, accepted = _pressed(api, attempt)
        shed.update(route for route, status in refused.items() if status == 429)
        events += accepted
        if set(refused.values()) == {429}:
            break
        # On a very busy machine 3,000 lines take longer than a request waits for the database: once more.
        print(f"attempt {attempt}: {refused}")
    assert refused == {"metrics": 429, "step-times": 429, "heartbeat": 429}
    wait_until(lambda: _stored(api) >= events, timeout_s=60, what="every event is in the inbox")
    losses = wait_until(
        lambda: len(found := api.losses()) >= 3 and found, timeout_s=60, what="losses are reported"
    )
    print(f"{events} events stored; refused meanwhile: {losses}")
    assert {key[0]: count for key, count in losses.items() if key[1] == "shed"} == dict(shed)


def _pressed(api: ApiProcess, attempt: int) -> tuple[dict[str, int], int]:
    """One storm while the inbox is locked: what the other routes heard, and the events that were accepted."""
    answers: list[tuple[int, int]] = []
    first = attempt * 100_000_000

    def send(client: httpx.Client, body: bytes) -> None:
        answer = client.post(
            "/signals/kernel-log", content=body, headers={"Content-Type": "application/json"}
        )
        answers.append((answer.status_code, answer.json().get("accepted", 0)))

    def sender(seq: int, count: int, node: str) -> threading.Thread:
        """All is ready before the inbox is locked: a request waits no longer than 2 s for the database."""
        client = clients.enter_context(api.client())
        client.get("/healthz")
        return threading.Thread(
            target=send, args=(client, json.dumps(lines(first + seq, count, node)).encode())
        )

    steps = {"job": "1", "samples": [{"step": attempt, "step_s": 1.0}]}
    refused: dict[str, int] = {}
    with ExitStack() as clients:
        storms = [sender(1_000_000 * n, 1_000, f"gpu000{n}") for n in (1, 2, 3)]
        late = [sender(5_000_000 + n, 1, "gpu0004") for n in range(5)]
        other = clients.enter_context(api.client())
        holder = clients.enter_context(api.engine.connect())
        holder.execute(sa.text("LOCK TABLE inbox IN SHARE ROW EXCLUSIVE MODE"))
        for one in storms:
            one.start()
        wait_until(lambda: queued(api, "events") > 2_500 or answers, timeout_s=30, what="events wait")
        for route, body in (
            ("metrics", {"node": "gpu0001", "host": {"load1": 1.0}}),
            ("step-times", steps),
            ("heartbeat", {"node": "gpu0005", "boot_id": f"b{attempt}"}),
        ):
            refused[route] = other.post(f"/signals/{route}", json=body).status_code
        for one in late:
            one.start()
        wait_until(
            lambda: queued(api, "events") >= 3_005 or answers, timeout_s=30, what="late events wait too"
        )
        holder.rollback()
        for one in (*storms, *late):
            one.join()
    assert {status for status, _ in answers} == {202}, "no fault event is refused, whatever else is"
    assert sum(accepted for _, accepted in answers) == 3_005
    return refused, 3_005


def _stored(api: ApiProcess) -> int:
    with api.engine.connect() as conn:
        return conn.execute(sa.text("SELECT count(*) FROM inbox WHERE kind = 'xid'")).scalar_one()


def test_label_sets_without_end_take_bounded_memory_and_harm_no_honest_series(api: ApiProcess) -> None:
    """Each label set is a series of its own, by the text of exporters, spread over four nodes: four times
    what these may have, and more than twice what is remembered of refused ones."""
    before = api.rss()
    refused = accepted = 0
    text = {"Content-Type": "text/plain"}
    with api.client() as client:
        for start in range(0, LABEL_SETS, 20_000):
            body = "\n".join(
                f'node_load1{{node="gpu{number % 4 + 1:04d}",x="{number}"}} 1'
                for number in range(start, start + 20_000)
            )
            answer = client.post("/signals/openmetrics", content=body, headers=text)
            while answer.status_code in {429, 503}:  # a busy machine: as every sender does
                answer = client.post("/signals/openmetrics", content=body, headers=text)
            assert answer.status_code == 202, answer.text
            accepted += answer.json()["accepted"]
            refused += answer.json()["unrecognised"]
        honest = client.post("/signals/metrics", json={"node": "gpu0004", "host": {"load1": 2.0}})
        assert honest.json()["accepted"] == 1
    grown = api.peak() - before
    print(f"{LABEL_SETS} label sets: memory grew by {grown / MB:.0f} MB, {refused} were beyond the limit")
    # What is learned is bounded too, and is reset when full: a request that a busy machine had to
    # repeat may come before or after it.
    assert 0 < accepted <= 4 * SERIES_OF_NODE_MAX
    assert refused >= 2 * REFUSED_MAX
    assert grown < 90 * MB  # 65, and 104 where what is remembered of refused ones has no bound
    wait_until(
        lambda: (api.losses().get(("openmetrics", "series_limit")) or 0) >= refused,
        timeout_s=60,
        what="they are counted",
    )
