"""Charts beyond healer's own hour, from a real Prometheus and a real VictoriaMetrics."""

import socket
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from healer.bootstrap.prometheus import WAITING, RememberedCharts
from healer.model import Column, Part
from healer.ports.measurements import HistoryAway, Points
from healer.settings import load
from healer.sim.stores import MemoryColumns
from tests.support.loop import shipped
from tests.support.prometheus import SERVERS, victoria_metrics_with
from tests.support.wait import wait_until

NOW = datetime.now(UTC).replace(microsecond=0)
DAYS, EVERY_S = 7, 120
POWER = Column("power_w", Part(gpu=0))
#: Two clusters with a node of the same name in one server.
SERIES = 'DCGM_FI_DEV_POWER_USAGE{{Hostname="gpu0001",gpu="0",site="{site}"}}'


def week(value: float) -> list[tuple[float, float]]:
    first = NOW.timestamp() - DAYS * 86_400
    return [(first + step * EVERY_S, value) for step in range(DAYS * 86_400 // EVERY_S)]


def charts(folder: Path, **urls: str) -> RememberedCharts:
    """Of clusters, each with its server."""
    tables = [
        f'[clusters.{name}]\nHEALER_SLURM_ADAPTERS = "sim"\nHEALER_PROMETHEUS_URL = "{url}"\n'
        f"HEALER_PROMETHEUS_MATCH = 'site=\"{name}\"'\n"
        for name, url in urls.items()
    ]
    (folder / "healer.toml").write_text("".join(tables))
    environ = {"HEALER_CONFIG": str(folder / "healer.toml"), "HEALER_DATA_DIR": str(folder)}
    return RememberedCharts(load(environ), shipped, MemoryColumns())


def of_week(made: RememberedCharts, cluster: str) -> Points:
    return made.points(cluster, "gpu0001", "power_w", NOW - timedelta(days=DAYS), NOW)


@pytest.mark.parametrize("server", SERVERS)
def test_a_chart_of_a_week_is_of_its_own_cluster_and_kept_until_it_has_another_point(
    tmp_path: Path, server: Any
) -> None:
    samples = {SERIES.format(site=site): week(value) for site, value in (("pod1", 400.0), ("pod2", 700.0))}
    with server(tmp_path, samples) as url:
        made = charts(tmp_path, pod1=url, pod2=url)
        found = {cluster: of_week(made, cluster) for cluster in ("pod1", "pod2")}
    for cluster, value in (("pod1", 400.0), ("pod2", 700.0)):
        points = found[cluster][POWER]
        assert {each for _, each in points} == {value}
        assert points[0][0] < NOW.timestamp() - (DAYS - 0.1) * 86_400
        assert 250 <= len(points) <= 301
    assert of_week(made, "pod1") == found["pod1"], "the server is gone, and the chart is kept"
    with pytest.raises(HistoryAway):
        made.points("pod1", "gpu0001", "power_w", NOW - timedelta(hours=6), NOW)


def test_a_server_that_hangs_delays_no_chart_of_another_cluster(tmp_path: Path) -> None:
    samples = {SERIES.format(site="pod2"): week(700.0)}
    answers: list[str] = []

    def ask() -> None:
        with pytest.raises(HistoryAway) as caught:
            of_week(made, "pod1")
        answers.append(str(caught.value))

    with socket.create_server(("127.0.0.1", 0)) as silent, victoria_metrics_with(tmp_path, samples) as url:
        made = charts(tmp_path, pod1=f"http://127.0.0.1:{silent.getsockname()[1]}", pod2=url)
        asking = threading.Thread(target=ask)
        asking.start()
        connection, _ = silent.accept()  # it has asked
        assert of_week(made, "pod2")[POWER]
        assert not answers, "the other one still waits"
        connection.close()
        asking.join(60)
    assert answers, "and hears why it got nothing"


def test_a_server_that_hangs_holds_few_threads(tmp_path: Path) -> None:
    """The pages' threads are few: of twelve that ask at once most are refused while the first still waits."""
    refused: list[float] = []
    begun = threading.Event()

    def ask() -> None:
        begun.wait()
        since = time.monotonic()
        with pytest.raises(HistoryAway):
            of_week(made, "pod1")
        refused.append(time.monotonic() - since)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        made = charts(tmp_path, pod1=f"http://127.0.0.1:{silent.getsockname()[1]}")
        asking = [threading.Thread(target=ask) for _ in range(12)]
        for each in asking:
            each.start()
        begun.set()
        connection, _ = silent.accept()
        wait_until(lambda: len(refused) >= 12 - 1 - WAITING, 5, what="the others are refused")
        assert len(refused) == 12 - 1 - WAITING
    connection.close()  # no server listens any more: the rest is soon refused too
    for each in asking:
        each.join(60)
    assert len(refused) == 12
