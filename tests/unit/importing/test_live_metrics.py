"""A server that is slow, or refuses what it is asked, while its samples are imported."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from healer.importing.importer import Imported, Reader, Wanted, run
from healer.importing.kinds import Kind
from healer.importing.live_metrics import Window
from healer.importing.sources import given
from healer.model import Mode
from healer.ports.measurements import HistoryAway
from healer.signals.series import Names
from healer.text import quoted
from tests.support.loop import rules_in

NAME = "DCGM_FI_DEV_GPU_TEMP"
SINCE = datetime(2026, 11, 20, tzinfo=UTC)
UNTIL = SINCE + timedelta(days=1)
EVERY_S = 600


class Server:
    """Has a sample every ten minutes, and answers no query over more than `slow_s`."""

    slow_s = 10**9
    refuses = False
    says: ClassVar[Mapping[str, Any]] = {}
    asked: ClassVar[list[str]]

    def __init__(self, *_: Any, **__: Any) -> None: ...

    def names(self, *_: datetime) -> bytes:
        return json.dumps({"status": "success", "data": [NAME, "DCGM_FI_DEV_POWER_USAGE"]}).encode()

    def query(self, promql: str, at: datetime) -> bytes:
        self.asked.append(promql)
        if self.refuses:
            return json.dumps({"status": "error", "error": "parse error: unexpected identifier"}).encode()
        span = re.search(r"\[(\d+)s\]", promql)
        span_s = int(span[1]) if span else 0
        if span_s > self.slow_s:
            raise HistoryAway(quoted("no answer within 120 s"))
        end_s = int(at.timestamp())
        times = [at_s for at_s in range(end_s - span_s, end_s + 1) if at_s % EVERY_S == 0]
        series = {
            "metric": {"__name__": NAME, "Hostname": "gpu0001", "gpu": "0"},
            "values": [[at_s, "50"] for at_s in times],
        }
        data = {"resultType": "matrix", "result": [series]}
        return json.dumps({"status": "success", "data": data, **self.says}).encode()

    def close(self) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> type[Server]:
    class Fresh(Server):
        asked: ClassVar[list[str]] = []

    monkeypatch.setattr("healer.importing.live_metrics.PromqlClient", Fresh)
    monkeypatch.setattr("healer.importing.live_metrics.time.sleep", lambda _: None)
    return Fresh


def imported(folder: Path, match: str = "") -> Imported:
    rules, url = rules_in(Mode.auto), "http://prometheus:9090"
    window = Window(url=url, since=SINCE, until=UNTIL, match=match)
    return run(
        [given(url, 0, url, kind=Kind.prometheus, zone="UTC", window=window)],
        Wanted(output=folder / "r.jsonl"),
        Reader(rules.kernel_lines, Names(rules.catalogue), rules.version),
        lambda *_: None,
    )


def test_a_slow_server_is_asked_for_less_at_once(tmp_path: Path, server: type[Server]) -> None:
    server.slow_s = 3600
    (source,) = imported(tmp_path).sources
    assert not source.skipped and source.signals == 24 * 3600 // EVERY_S
    assert len(server.asked) < 60


def test_a_server_that_goes_away_is_said(tmp_path: Path, server: type[Server]) -> None:
    server.slow_s = 0
    (source,) = imported(tmp_path).sources
    assert list(source.skipped) == ["no samples after 2026-11-20T00:00:00+00:00: no answer within 120 s"]


@pytest.mark.parametrize(
    ("says", "why"),
    [({"isPartial": True}, "isPartial"), ({"warnings": ["no store of pod 2"]}, "no store of pod 2")],
)
def test_answers_that_lack_something_are_said(
    tmp_path: Path, server: type[Server], says: dict[str, Any], why: str
) -> None:
    server.says = says
    (source,) = imported(tmp_path).sources
    assert source.signals == 24 * 3600 // EVERY_S
    assert list(source.skipped) == [f"answers that the server calls incomplete: {why}"]


def test_a_match_that_the_server_does_not_understand_is_asked_once(
    tmp_path: Path, server: type[Server]
) -> None:
    server.refuses = True
    (source,) = imported(tmp_path, "cluster=pod1").sources
    (why,) = source.skipped
    assert "parse error: unexpected identifier" in why
    assert len(server.asked) == 1
