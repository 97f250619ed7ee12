"""Debian's Prometheus and node_exporter, set up as docs/signals.md shows, beside a whole healer.

Prometheus scrapes node_exporter and an exporter like dcgm-exporter's and remote-writes them; healer asks the
same Prometheus for what it remembers, and scrapes the same exporters itself.
"""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
import yaml

from healer.adapters.pull.promql_client import PromqlClient
from healer.embedded import running
from healer.model import Column, Part
from healer.ports.measurements import HistoryAway
from healer.processes.metric_history import PromqlHistory
from healer.signals.promql import result
from healer.signals.rejects import BadBody
from healer.sim.stores import MemoryColumns
from tests.support.exporters import DCGM_OLD
from tests.support.loop import SHIPPED, shipped
from tests.support.processes import clean_environ, free_port, name_of
from tests.support.pulling import Server, closed_port, exporter
from tests.support.snippets import placed, snippet
from tests.support.stack import scratch_folder
from tests.support.up import Stack
from tests.support.wait import wait_until

PAGE = "signals.md"
WAIT_S = 60
PUSHED, PULLED = "gpu0001", "gpu0002"
HEALER, TOKEN = "https://healer.example", "/etc/prometheus/healer.token"


@dataclass
class Place:
    """What all of it shares: a folder, and ports that are known before anything runs."""

    folder: Path
    dcgm: Server
    node_exporter: str = field(default_factory=lambda: f"127.0.0.1:{free_port()}")
    prometheus: str = field(default_factory=lambda: f"http://127.0.0.1:{free_port()}")
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def rules(self) -> Path:
        return self.folder / "rules"

    def start(self, program: str, *options: str) -> None:
        found = shutil.which(program)
        assert found, f"{program} is not installed: tools/setup --system installs it"
        with (self.folder / f"{program}.log").open("wb") as log:
            self.running.append(
                subprocess.Popen(
                    [found, *options],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    cwd=self.folder,
                    env=clean_environ(),
                )
            )

    def answers(self, url: str, program: str) -> bool:
        assert all(one.poll() is None for one in self.running), (self.folder / f"{program}.log").read_text()
        try:
            return httpx.get(url, timeout=2, verify=False).status_code == 200
        except httpx.TransportError:
            return False


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with scratch_folder() as folder, exporter() as dcgm:
        dcgm.page = DCGM_OLD.format(node="a-name-of-the-exporters-own")
        made = Place(folder, dcgm)
        shutil.copytree(SHIPPED, made.rules)
        made.start("prometheus-node-exporter", f"--web.listen-address={made.node_exporter}")
        url = f"http://{made.node_exporter}/metrics"
        wait_until(lambda: made.answers(url, "prometheus-node-exporter"), WAIT_S)
        yield made
        for one in made.running:
            one.terminate()
        for one in made.running:
            one.wait(30)


@pytest.fixture(scope="module")
def stack(place: Place) -> Iterator[Stack]:
    settings = {
        "HEALER_SLURM_ADAPTERS": "sim",
        "HEALER_RULES_DIR": str(place.rules),
        "HEALER_PROMETHEUS_URL": place.prometheus,
    }
    with scratch_folder() as folder, Stack(folder, **settings) as made:
        yield made


@pytest.fixture(scope="module")
def prometheus(place: Place, stack: Stack) -> Iterator[Place]:
    """Prometheus with the page's configuration, at work."""
    token, targets = place.folder / "healer.token", place.folder / "targets"
    token.write_text(stack.token("signals"))
    targets.mkdir()
    text = placed(
        snippet(PAGE, "Prometheus"),
        {HEALER: stack.url, TOKEN: str(token), "/etc/prometheus/targets": str(targets)},
    )
    config = yaml.safe_load(text)
    config["global"]["scrape_interval"] = "1s"  # the test does not wait for minutes
    (place.folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    shown = snippet(PAGE, "Prometheus", 1)
    for name, at in (("node", place.node_exporter), ("dcgm", place.dcgm.at)):
        target = placed(shown, {"10.0.0.17:9100": at, "gpu0017": PUSHED})
        (targets / f"{name}.yaml").write_text(target)
    place.start(
        "prometheus",
        f"--config.file={place.folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={place.folder / 'tsdb'}",
        f"--web.listen-address={place.prometheus.removeprefix('http://')}",
    )
    wait_until(lambda: place.answers(f"{place.prometheus}/-/ready", "prometheus"), WAIT_S)
    yield place
    # While healer still takes what it has to send: else it tries for a minute.
    place.running[-1].terminate()
    place.running.pop().wait(60)


@pytest.fixture(scope="module")
def viewer(stack: Stack) -> dict[str, str]:
    return stack.headers("viewer")


def asked(stack: Stack, viewer: dict[str, str], path: str) -> Any:
    return stack.http.get(f"{stack.url}{path}", headers=viewer, timeout=60).raise_for_status().json()


def node(stack: Stack, viewer: dict[str, str], name: str) -> Any:
    items = asked(stack, viewer, "/api/v1/nodes")["items"]
    return asked(stack, viewer, f"/api/v1/nodes/{items[0]['cluster']}/{name}")


def gpu_temp(shown: Any) -> float | None:
    return next((one["signals"].get("gpu_temp_c") for one in shown["gpus"] if one["index"] == 4), None)


def test_prometheus_remote_writes_what_it_scrapes(
    stack: Stack, prometheus: Place, viewer: dict[str, str]
) -> None:
    def come() -> Any:
        shown = node(stack, viewer, PUSHED)
        return shown if "load1" in shown["signals"] and gpu_temp(shown) is not None else None

    shown = wait_until(come, WAIT_S, what="node_exporter's and dcgm's samples are shown", every_s=0.3)
    assert gpu_temp(shown) == 58.0
    assert 0 <= shown["signals"]["load1"] < 10_000
    unknown = [one["name"] for one in asked(stack, viewer, "/api/v1/signals/unknown")["items"]]
    assert not [one for one in unknown if one.startswith(("go_", "prometheus_"))], "the page's filter"


def test_readyz_reports_that_prometheus_answers(
    stack: Stack, prometheus: Place, viewer: dict[str, str]
) -> None:
    def fine() -> bool:
        checks = stack.http.get(f"{stack.url}/readyz", timeout=10).json()["checks"]
        return bool(checks.get("prometheus", {}).get("ok"))

    wait_until(fine, WAIT_S, every_s=0.5)


def test_a_fresh_store_is_warmed_up_from_prometheus(
    stack: Stack, prometheus: Place, viewer: dict[str, str]
) -> None:
    wait_until(lambda: gpu_temp(node(stack, viewer, PUSHED)) is not None, WAIT_S, every_s=0.3)
    url = running.find(stack.data_dir).database_url.replace("postgresql+psycopg:", "postgresql:")
    before = stack.log("detector").count("metric windows warmed up")
    with psycopg.connect(url, autocommit=True) as conn:
        conn.execute("TRUNCATE samples")
    os.kill(stack.pids()["detector"], signal.SIGKILL)
    wait_until(lambda: stack.log("detector").count("metric windows warmed up") > before, WAIT_S, every_s=0.2)


def test_the_client_reads_what_prometheus_remembers(prometheus: Place) -> None:
    book = MemoryColumns()
    history = PromqlHistory(PromqlClient(prometheus.prometheus, None), shipped().catalogue, book, "sim")

    def known(cluster: str, name: str) -> bool:
        return (cluster, name) == ("sim", PUSHED)

    def minute() -> bool:
        now = datetime.now(UTC)
        found = history.between(now - timedelta(seconds=60), now, known)
        columns = {column for report in found for column in book.columns(report.columns.tolist()).values()}
        times = [report.at for report in found]
        assert times == sorted(times)
        assert all(report.arrived_at == report.at for report in found)
        return {Column("load1"), Column("gpu_temp_c", Part(gpu=4))} <= columns

    wait_until(minute, WAIT_S, every_s=0.5)
    now = datetime.now(UTC)
    others = PromqlHistory(
        PromqlClient(prometheus.prometheus, None),
        shipped().catalogue,
        book,
        "sim",
        'job="of another cluster"',
    )
    assert others.between(now - timedelta(seconds=60), now, known) == []
    points = history.node(PUSHED, "gpu_temp_c", now - timedelta(hours=6), now, 60, known)
    assert set(points) == {Column("gpu_temp_c", Part(gpu=4))}
    assert {value for _, value in points[Column("gpu_temp_c", Part(gpu=4))]} == {58.0}
    assert history.node("gpu000", "gpu_temp_c", now - timedelta(hours=6), now, 60, known) == {}
    with pytest.raises(BadBody, match="the server reports"):
        result(PromqlClient(prometheus.prometheus, None).query("max(", now))


def test_a_server_that_is_away_is_one_sentence_without_its_address() -> None:
    at = closed_port()
    with pytest.raises(HistoryAway) as caught:
        PromqlClient(f"http://{at}", None).query("up", datetime.now(UTC))
    assert at not in str(caught.value)


def test_healer_scrapes_the_same_exporters_itself(
    stack: Stack, prometheus: Place, viewer: dict[str, str]
) -> None:
    """The first entry of the file starts the scraper; lists and groups as the page shows them."""
    assert "scraper" not in stack.pids()
    text = placed(
        snippet(PAGE, "node_exporter and dcgm-exporter"),
        {
            "gpu[0001-1250]:9100": prometheus.node_exporter,
            "node: host": f"labels: {{node: {PULLED}}}\n    node: node",
            "10.0.0.17:9400": prometheus.dcgm.at,
            "gpu0017": PULLED,
            "interval_s: 30": "interval_s: 5",
        },
    )
    config = yaml.safe_load(text)
    for job in config["jobs"]:
        job["interval_s"] = 2
    (prometheus.rules / "scrape.yaml").write_text(yaml.safe_dump(config))

    def come() -> Any:
        shown = node(stack, viewer, PULLED)
        return shown if "load1" in shown["signals"] and gpu_temp(shown) is not None else None

    shown_node = wait_until(come, WAIT_S, what="healer's own scrapes are shown", every_s=0.3)
    assert gpu_temp(shown_node) == 58.0
    # Parts of one number come in one scrape: node_exporter prints one series for each processor and mode.
    assert "cpu_idle_s_total" in shown_node["signals"]

    def all_up() -> Any:
        view = asked(stack, viewer, "/api/v1/scrape")
        return view if len(view["items"]) == 3 and all(one["up"] for one in view["items"]) else None

    view = wait_until(all_up, WAIT_S, every_s=0.3)
    assert [one["job"] for one in view["items"]] == ["dcgm", "node", "queries"]
    assert all(one["samples"] > 0 for one in view["items"])
    assert view["scrapers"][0]["up"] == 3
    assert name_of(stack.pids()["scraper"]) == "healer scraper"
    metrics = stack.http.get(f"{stack.url}/metrics", headers=viewer, timeout=20).text
    assert 'state="up"} 3.0' in metrics
