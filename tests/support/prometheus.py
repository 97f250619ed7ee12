"""Debian's Prometheus with a configuration of the test's own; it and VictoriaMetrics with given samples."""

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import httpx

from tests.support.processes import free_port, running
from tests.support.wait import wait_until

#: Series as `name{label="value"}` -> (time in s, value), by time.
Samples = Mapping[str, Sequence[tuple[float, float]]]


@contextmanager
def running_prometheus(folder: Path, config: str) -> Iterator[str]:
    """Where it answers, soon. Its files lie in `folder`."""
    (folder / "prometheus.yml").write_text(config)
    address = f"127.0.0.1:{free_port()}"
    options = (
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address={address}",
    )
    with running(folder / "prometheus.log", "prometheus", *options):
        yield f"http://{address}"


@contextmanager
def prometheus_with(folder: Path, samples: Samples) -> Iterator[str]:
    lines, kind = list[str](), ""
    for series, points in sorted(samples.items()):
        name = series.partition("{")[0]
        lines += [] if name == kind else [f"# TYPE {name} gauge"]
        lines += [f"{series} {value} {at}" for at, value in points]
        kind = name
    (folder / "past.om").write_text("\n".join([*lines, "# EOF\n"]))
    blocks = ("promtool", "tsdb", "create-blocks-from", "openmetrics", folder / "past.om", folder / "data")
    subprocess.run(blocks, check=True, capture_output=True)
    with running_prometheus(folder, "scrape_configs: []\n") as url:
        wait_until(lambda: _answers(f"{url}/-/ready"), 60)
        yield url


@contextmanager
def victoria_metrics_with(folder: Path, samples: Samples) -> Iterator[str]:
    address = f"127.0.0.1:{free_port()}"
    options = (
        f"-storageDataPath={folder / 'data'}", f"-httpListenAddr={address}", "-retentionPeriod=100y",
        "-search.disableCache", "-search.latencyOffset=0s",
    )  # fmt: skip
    with running(folder / "victoria-metrics.log", "victoria-metrics", *options):
        url = f"http://{address}"
        wait_until(lambda: _answers(f"{url}/health"), 60)
        lines = [
            f"{series} {value} {at * 1000:.0f}" for series, points in samples.items() for at, value in points
        ]
        httpx.post(f"{url}/api/v1/import/prometheus", content="\n".join([*lines, ""])).raise_for_status()
        httpx.get(f"{url}/internal/force_flush").raise_for_status()
        yield url


#: Both, for tests of what asks either.
SERVERS: tuple[Callable[[Path, Samples], AbstractContextManager[str]], ...] = (
    prometheus_with,
    victoria_metrics_with,
)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=2).status_code == 200
    except httpx.TransportError:
        return False
