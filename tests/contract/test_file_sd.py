"""One file of targets, read by Debian's Prometheus and by healer: the same addresses, the same labels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from healer.adapters.pull.targets import FileTargets
from healer.model import ScrapeJob, ScrapeRules
from tests.support.prometheus import running_prometheus
from tests.support.wait import wait_until

TARGETS = """\
- targets: ["127.0.0.1:9100"]
  labels: {node: gpu0001, rack: 5, a: 1.50, b: 0x10, c: true, d: ~, e: 007, f: yes, g: 2026-01-01}
- targets: ["127.0.0.2:9100"]
  labels:
- targets: ["127.0.0.3:9100"]
  labels: {__metrics_path__: metrics, __address__: "evil.example:80"}
- targets: ["127.0.0.4:9100"]
  labels: {__metrics_path__: "@evil.example/x", __scheme__: "", __param_target: "a b&c"}
- targets: ["127.0.0.5:9100"]
  labels: &all {__metrics_path__: "", __scheme__: https, rack: r1}
- targets: ["127.0.0.9:9100"]
  labels: {<<: *all, row: "2"}
- targets:
  labels: {rack: r1}
"""
#: What Prometheus adds by itself.
OWN = {"instance", "job"}


@pytest.fixture
def prometheus(tmp_path: Path) -> Iterator[str]:
    folder = tmp_path / "targets"
    (folder / "below").mkdir(parents=True)
    (folder / "a.yaml").write_text(TARGETS)
    (folder / ".hidden.yml").write_text("- targets: ['127.0.0.6:1']\n")
    (folder / "b.json").write_text('[{"targets": ["127.0.0.7:1"], "labels": null}]')
    (folder / "below" / "c.yaml").write_text("- targets: ['127.0.0.8:1']\n")
    config = (
        "global: {scrape_interval: 1h}\nscrape_configs:\n- job_name: node\n  file_sd_configs:\n"
        f"  - files: [{', '.join(str(one) for one in forms(tmp_path))}]\n"
    )
    with running_prometheus(tmp_path, config) as url:
        yield url


def forms(folder: Path) -> list[Path]:
    return [folder / "targets" / name for name in ("*.yaml", "*.yml", "b.json")]


def test_prometheus_and_healer_read_the_same_targets(prometheus: str, tmp_path: Path) -> None:
    job = ScrapeJob(name="node", file_sd=tuple(str(one) for one in forms(tmp_path)))
    found = FileTargets("pod1")(ScrapeRules(jobs=(job,)))
    assert found.troubles == ()
    ours = {
        one.url: {name: text for name, text in one.labels.items() if not name.startswith("__")}
        for one in found.targets
    }

    def theirs() -> Any:
        try:
            told = httpx.get(f"{prometheus}/api/v1/targets", timeout=5).raise_for_status().json()
        except httpx.HTTPError:
            return None
        return told["data"]["activeTargets"]

    def all_there() -> Any:
        told = theirs()
        return told if told and len(told) >= len(ours) else None

    told = wait_until(all_there, 60, what="Prometheus has read its files")
    assert ours == {
        one["scrapeUrl"]: {name: text for name, text in one["labels"].items() if name not in OWN}
        for one in told
    }
    assert len(ours) == 8
