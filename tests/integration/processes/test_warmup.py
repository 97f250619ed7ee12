"""Windows after a start: what the store lacks comes from what others remember, and is history."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import pytest

from healer.adapters.pull.promql_client import PromqlClient
from healer.detection.tick import Senses
from healer.model import Column, Part, Ruleset, SlurmNode, SlurmSnapshot
from healer.model.telemetry import Report, StepBatch
from healer.observations import Picture
from healer.ports.measurements import HasNode, HistoryAway, NoHistory, Points
from healer.processes import metric_history as module
from healer.processes.metric_history import WARM_MOST_S, PromqlHistory, WarmUp
from healer.processes.senses_loop import Chunk, SensesLoop, SensesParts
from healer.signals.promql import signals_by_series_name
from healer.sim.stores import MemoryColumns
from tests.support.loop import shipped

pytestmark = pytest.mark.heavy

CLUSTER, NOW = "pod1", datetime.fromisoformat("2026-11-20T03:00:00+00:00")
ASKED, HEAT = Column("gpu_recovery_action", Part(gpu=0)), Column("gpu_temp_c", Part(gpu=0))
NODES = ("gpu0", "gpu1")
RESET = 1.0
BOOK = MemoryColumns()
IDS = dict(zip((ASKED, HEAT), BOOK.ids([ASKED, HEAT]), strict=True))


def ago(seconds: float) -> datetime:
    return NOW - timedelta(seconds=seconds)


def report(at: datetime, node: str = "gpu0", **values: float) -> Report:
    values_sent = {ASKED: values.get("asked"), HEAT: values.get("heat")}
    known = {IDS[column]: value for column, value in values_sent.items() if value is not None}
    return Report(CLUSTER, node, at, at, np.array(list(known), np.int32), np.array(list(known.values())))


class Remembered:
    """A server that remembers these reports. `away`: after so many questions it gives no answer."""

    name = "memory"

    def __init__(self, reports: Sequence[Report], *, away: int = 1000) -> None:
        self.reports, self.away = reports, away
        self.asked: list[tuple[datetime, datetime]] = []

    def between(
        self, since: datetime, until: datetime, has_node: HasNode, *, go_on: Callable[[], bool] = lambda: True
    ) -> list[Report]:
        self.asked.append((since, until))
        if len(self.asked) > self.away:
            raise HistoryAway("it does not answer")
        return [one for one in self.reports if since < one.at <= until and has_node(CLUSTER, one.node)]

    def node(
        self, node: str, signal: str, since: datetime, until: datetime, step_s: int, has_node: HasNode
    ) -> Points:
        return {}


def picture() -> SlurmSnapshot:
    nodes = {name: SlurmNode(name=name, state=("IDLE",), gpus=1) for name in NODES}
    return SlurmSnapshot(cluster=CLUSTER, taken_at=NOW, nodes=nodes, jobs={})


def chunks(history: Remembered, *stored: list[Report]) -> list[Report]:
    """All reports in the order in which the windows get them."""
    made = WarmUp(history, CLUSTER, picture()).chunks(((one, []) for one in stored), NOW)
    return [report for reports, _ in made for report in reports]


def every(seconds: int, first: int, last: int, node: str, **values: float) -> list[Report]:
    return [report(ago(at), node, **values) for at in range(first, last, -seconds)]


def test_an_empty_store_is_filled_minute_by_minute_in_the_order_of_time() -> None:
    history = Remembered([one for node in NODES for one in every(15, 890, 0, node, heat=50)])
    found = chunks(history)
    assert len(found) == len(history.reports)
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert len(history.asked) == 15


def test_the_stores_own_word_counts_and_the_rest_is_put_between() -> None:
    stored = [report(ago(100), "gpu0", heat=40.0)]
    history = Remembered(
        [report(ago(110), "gpu0", heat=99.0, asked=RESET), report(ago(400), "gpu0", heat=9.0)]
    )
    found = chunks(history, stored)
    reports = [(one.at, dict(zip(one.columns.tolist(), one.values.tolist(), strict=True))) for one in found]
    assert reports == [
        (ago(400), {IDS[HEAT]: 9.0}),
        (ago(110), {IDS[ASKED]: RESET}),
        (ago(100), {IDS[HEAT]: 40.0}),
    ]


def test_a_store_that_lacks_nothing_is_not_asked_about() -> None:
    stored = sorted((one for node in NODES for one in every(15, 895, 0, node, heat=40)), key=lambda r: r.at)
    history = Remembered([])
    assert chunks(history, stored) == stored
    assert history.asked == []


def test_a_gap_in_the_middle_alone_is_asked_about() -> None:
    stored = [one for node in NODES for one in every(15, 895, 0, node, heat=40)]
    stored = sorted((one for one in stored if not ago(480) <= one.at < ago(360)), key=lambda r: r.at)
    history = Remembered(every(15, 470, 365, "gpu1", heat=70))
    found = chunks(history, stored[:20], stored[20:])
    assert [one.at for one in found] == sorted(one.at for one in found)
    assert len(found) == len(stored) + len(history.reports)
    assert history.asked == [(ago(480), ago(420)), (ago(420), ago(360))]


def test_a_server_that_does_not_answer_is_asked_once_and_nothing_of_the_store_is_lost() -> None:
    stored = [report(ago(700), "gpu0", heat=40), report(ago(10), "gpu0", heat=41)]
    history = Remembered([], away=0)
    assert chunks(history, stored) == stored
    assert len(history.asked) == 1


@pytest.mark.parametrize(("name", "limit"), [("WARM_MOST_S", 0.0), ("SAMPLES_MAX", 0)])
def test_it_ends_after_its_time_and_its_samples(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: float
) -> None:
    monkeypatch.setattr(module, name, limit)
    ticks = iter(range(1000))
    history = Remembered(every(15, 890, 0, "gpu0", heat=50))
    made = WarmUp(history, CLUSTER, picture(), stopwatch=lambda: next(ticks))
    found = [one for reports, _ in made.chunks(iter([]), NOW) for one in reports]
    assert len(history.asked) <= 1
    assert len(found) <= 4


def test_without_a_server_or_a_picture_the_store_passes_as_it_is() -> None:
    stored = [([report(ago(10), heat=1.0)], [])]
    assert list(WarmUp(NoHistory(), CLUSTER, picture()).chunks(iter(stored), NOW)) == stored
    assert list(WarmUp(Remembered([]), CLUSTER, None).chunks(iter(stored), NOW)) == stored


class Feed:
    def put(self, reports: Sequence[Report]) -> None: ...
    def put_steps(self, batches: Sequence[StepBatch]) -> None: ...
    def new(self) -> tuple[list[Report], list[StepBatch]]:
        return [], []


class Hand:
    def __init__(self) -> None:
        self.at = NOW

    def now(self) -> datetime:
        return self.at


def findings_after_start(history: Remembered) -> list[tuple[str, datetime]]:
    """(rule, since when) of what the first looks after a start find."""
    shown, clock = Picture(CLUSTER, watching_since=ago(1)), Hand()
    shown.show(picture())

    def make(rules: Ruleset) -> tuple[Senses, Feed]:
        return Senses(CLUSTER, rules, BOOK), Feed()

    def warmed(
        rules: Ruleset, slurm: SlurmSnapshot | None, stored: Iterator[Chunk], now: datetime
    ) -> Iterator[Chunk]:
        return WarmUp(history, CLUSTER, slurm).chunks(stored, now)

    parts = SensesParts(
        rules=shipped, prove=lambda: "", make=make, picture=shown, clock=clock, warmed=warmed
    )  # fmt: skip
    loop = SensesLoop(parts)
    loop.once()
    clock.at = NOW + timedelta(seconds=6)
    loop.once()
    sensed = loop.heard()
    return [(one.rule, one.at) for one in sensed.findings] if sensed else []


def test_a_fault_that_ended_long_ago_is_not_found_as_new() -> None:
    history = Remembered([*every(15, 890, 500, "gpu0", asked=RESET), *every(15, 500, 0, "gpu0", asked=0.0)])
    assert findings_after_start(history) == []


def test_persisting_fault_is_found_with_an_empty_store() -> None:
    history = Remembered(every(15, 890, 0, "gpu0", asked=RESET))
    assert [rule for rule, _ in findings_after_start(history)] == ["gpu-recovery-asked"]


@pytest.fixture
def slow_server() -> Iterator[tuple[str, list[str]]]:
    """The address of a Prometheus-compatible server with all names of the catalogue; what it was asked."""
    asked: list[str] = []
    names = sorted(signals_by_series_name(shipped().catalogue))

    class Answers(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            asked.append(self.path)
            self.rfile.read(int(self.headers.get("content-length", 0)))
            data = names if "label" in self.path else {"resultType": "matrix", "result": []}
            raw = json.dumps({"status": "success", "data": data}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        do_GET = do_POST = _answer

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_slow_server_is_asked_no_more_when_the_time_is_over(slow_server: tuple[str, list[str]]) -> None:
    """Each question takes 9 s by the stopwatch, and a minute needs very many of them."""
    address, asked = slow_server
    client = PromqlClient(address, None)
    history = PromqlHistory(client, shipped().catalogue, MemoryColumns(), CLUSTER)
    made = WarmUp(history, CLUSTER, picture(), stopwatch=lambda: 9.0 * len(asked))
    assert [report for reports, _ in made.chunks(iter(()), NOW) for report in reports] == []
    client.close()
    assert len(asked) == WARM_MOST_S // 9 + 1
