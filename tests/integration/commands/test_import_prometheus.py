"""`healer import http://…` from a real Prometheus and a real VictoriaMetrics: the samples that they hold."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.processes import clean_environ, free_port, running
from tests.support.prometheus import running_prometheus
from tests.support.wait import wait_until

HEALER = Path(__file__).parents[3] / ".venv" / "bin" / "healer"
#: 2026-11-25T20:00:00Z, and a sample every 15 s for two hours.
BEGIN_S, EVERY_S, COUNT = 1795636800, 15, 480
SINCE, UNTIL = "2026-11-25T19:59:59Z", "2026-11-25T22:00:00Z"


def series() -> list[tuple[str, str]]:
    """(name, labels) of six series that healer knows, and of one that it does not."""
    known = [
        (name, f'{{Hostname="gpu000{node}",gpu="0"}}')
        for name in ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE")
        for node in (1, 2, 3)
    ]
    return [*known, ("go_threads", '{Hostname="gpu0001"}')]


def openmetrics() -> str:
    lines = []
    for name, labels in series():
        lines.append(f"# TYPE {name} gauge\n")
        lines += [f"{name}{labels} {40 + n % 7} {BEGIN_S + n * EVERY_S}\n" for n in range(COUNT)]
    by_name: dict[str, list[str]] = {}
    for line in lines:
        by_name.setdefault(line.split("{")[0].removeprefix("# TYPE ").split()[0], []).append(line)
    return "".join(line for its in by_name.values() for line in dict.fromkeys(its)) + "# EOF\n"


@contextmanager
def prometheus(folder: Path) -> Iterator[str]:
    (folder / "past.om").write_text(openmetrics())
    blocks = ("promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "past.om", folder / "data")
    subprocess.run(blocks, check=True, capture_output=True)
    with running_prometheus(folder, "scrape_configs: []\n") as url:
        wait_until(lambda: answers(f"{url}/-/ready"), 60)
        yield url


@contextmanager
def victoria_metrics(folder: Path) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    options = (
        f"-storageDataPath={folder / 'data'}", f"-httpListenAddr={address}", "-retentionPeriod=100y",
        "-search.disableCache", "-search.latencyOffset=0s",
    )  # fmt: skip
    with running(folder / "victoria-metrics.log", "victoria-metrics", *options):
        url = f"http://{address}"
        wait_until(lambda: answers(f"{url}/health"), 60)
        text = "\n".join(
            f"{name}{labels} {40 + n % 7} {(BEGIN_S + n * EVERY_S) * 1000}"
            for name, labels in series()
            for n in range(COUNT)
        )
        httpx.post(f"{url}/api/v1/import/prometheus", content=text + "\n").raise_for_status()
        httpx.get(f"{url}/internal/force_flush").raise_for_status()
        yield url


def answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.TransportError:
        return False


def words(url: str, output: Path) -> list[str]:
    return [str(HEALER), "import", url, "--since", SINCE, "--until", UNTIL, "--output", str(output), "--json"]


def imported(url: str, output: Path, *more: str) -> tuple[Any, list[str]]:
    """The report, and the samples of the recording."""
    done = subprocess.run(
        [*words(url, output), *more],
        env=clean_environ() | {"TZ": "UTC"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    entries = [json.loads(line) for line in output.read_text().splitlines()]
    texts: list[str] = [
        entry["body"] for entry in entries if entry["route"].startswith("signals/openmetrics")
    ]
    return json.loads(done.stdout), "".join(texts).splitlines()


@pytest.mark.parametrize("server", [prometheus, victoria_metrics])
def test_samples_are_those_that_the_server_holds(tmp_path: Path, server: Any) -> None:
    with server(tmp_path) as url:
        report, samples = imported(url, tmp_path / "past.jsonl")
        _, some = imported(url, tmp_path / "some.jsonl", "--match", 'Hostname="gpu0002"')
    (source,) = report["sources"]
    assert source["kind"] == "prometheus" and not source["skipped"], source["skipped"]
    expected = {
        f"{name}{labels} {40 + n % 7} {(BEGIN_S + n * EVERY_S) * 1000}"
        for name, labels in series()[:-1]
        for n in range(COUNT)
    }
    assert sorted(samples) == sorted(expected) and source["signals"] == 6 * COUNT
    assert {line for line in expected if "gpu0002" in line} == set(some) and len(some) == 2 * COUNT


def test_an_import_from_a_server_goes_on_after_sigkill(tmp_path: Path) -> None:
    with prometheus(tmp_path) as url:
        whole = tmp_path / "whole.jsonl"
        imported(url, whole)
        broken = tmp_path / "broken.jsonl"
        process = subprocess.Popen(
            words(url, broken), env=clean_environ() | {"TZ": "UTC"}, stdout=subprocess.DEVNULL
        )
        wait_until((tmp_path / ".import-broken.jsonl").exists, 60)
        time.sleep(0.2)
        process.send_signal(signal.SIGKILL)
        process.wait()
        imported(url, broken)
    assert broken.read_bytes() == whole.read_bytes()


def test_a_server_that_is_away_is_said(tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    done = subprocess.run(
        words(url, tmp_path / "r"), env=os.environ, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1 and "no samples after 2026-11-25T19:59:59+00:00: " in done.stdout
    missing = subprocess.run(
        [HEALER, "import", url, "--output", tmp_path / "r"], capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2 and "--since" in missing.stderr
