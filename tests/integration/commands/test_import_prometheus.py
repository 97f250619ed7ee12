"""`healer import http://…` from a real Prometheus and a real VictoriaMetrics: the samples that they hold."""

import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from tests.support.forked import run
from tests.support.processes import clean_environ, free_port
from tests.support.prometheus import SERVERS, Samples, prometheus_with
from tests.support.wait import wait_until

HEALER = Path(__file__).parents[3] / ".venv" / "bin" / "healer"
#: 2026-11-25T20:00:00Z, and a sample every 15 s for two hours.
BEGIN_S, EVERY_S, COUNT = 1795636800, 15, 480
SINCE, UNTIL = "2026-11-25T19:59:59Z", "2026-11-25T22:00:00Z"


def remembered() -> Samples:
    """Six series that healer knows, and one that it does not."""
    known = [
        f'{name}{{Hostname="gpu000{node}",gpu="0"}}'
        for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE")
        for node in (1, 2, 3)
    ]
    points = [(BEGIN_S + n * EVERY_S, 40 + n % 7) for n in range(COUNT)]
    return dict.fromkeys([*known, 'go_threads{Hostname="gpu0001"}'], points)


def words(url: str, output: Path) -> list[str]:
    return ["import", url, "--since", SINCE, "--until", UNTIL, "--output", str(output), "--json"]


def imported(url: str, output: Path, *more: str) -> tuple[Any, list[str]]:
    """The report, and the samples of the recording."""
    done = run([*words(url, output), *more], clean_environ(TZ="UTC"))
    assert done.returncode == 0, done.stderr
    entries = [json.loads(line) for line in output.read_text().splitlines()]
    texts: list[str] = [
        entry["body"] for entry in entries if entry["route"].startswith("signals/openmetrics")
    ]
    return json.loads(done.stdout), "".join(texts).splitlines()


@pytest.mark.parametrize("server", SERVERS)
def test_samples_are_those_that_the_server_holds(tmp_path: Path, server: Any) -> None:
    with server(tmp_path, remembered()) as url:
        report, samples = imported(url, tmp_path / "past.jsonl")
        _, some = imported(url, tmp_path / "some.jsonl", "--match", 'Hostname="gpu0002"')
    (source,) = report["sources"]
    assert source["kind"] == "prometheus" and not source["skipped"], source["skipped"]
    expected = {
        f"{series} {value} {at * 1000}"
        for series, points in remembered().items()
        if not series.startswith("go_")
        for at, value in points
    }
    assert sorted(samples) == sorted(expected) and source["signals"] == 6 * COUNT
    assert {line for line in expected if "gpu0002" in line} == set(some) and len(some) == 2 * COUNT


def test_an_import_from_a_server_goes_on_after_sigkill(tmp_path: Path) -> None:
    with prometheus_with(tmp_path, remembered()) as url:
        whole = tmp_path / "whole.jsonl"
        imported(url, whole)
        broken = tmp_path / "broken.jsonl"
        process = subprocess.Popen(
            [HEALER, *words(url, broken)], env=clean_environ() | {"TZ": "UTC"}, stdout=subprocess.DEVNULL
        )
        wait_until((tmp_path / ".import-broken.jsonl").exists, 60)
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        imported(url, broken)
    assert broken.read_bytes() == whole.read_bytes()


def test_a_server_that_is_away_is_said(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = run(words(url, tmp_path / "r"), clean_environ())
    assert done.returncode == 1 and "no samples after 2026-11-25T19:59:59+00:00: " in done.stdout
    missing = run(["import", url, "--output", str(tmp_path / "r")], clean_environ())
    assert missing.returncode == 2 and "--since" in missing.stderr
