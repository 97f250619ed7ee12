"""Dashboards, alerts and recording rules that ship, and the page of metrics.

python -m tests.support.monitoring          writes the tables of docs/metrics.md again
"""

import json
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import yaml

import healer.api.app  # noqa: F401 - makes all metrics
from healer.api.metrics import FIGURES, described

ROOT = Path(__file__).parents[2]
GRAFANA, PROMETHEUS = ROOT / "deploy/grafana", ROOT / "deploy/prometheus"
RULE_FILES = PROMETHEUS / "alerts.yml", PROMETHEUS / "recording.yml"
PAGE = ROOT / "docs/metrics.md"
_BEGIN, _END = "<!-- made from the code -->\n", "<!-- until here -->\n"


class Query(NamedTuple):
    """A query of a panel, and its place."""

    place: str
    text: str


def made_dashboards() -> dict[str, str]:
    """What deploy/grafana/make.py makes: file name -> text."""
    return runpy.run_path(str(GRAFANA / "make.py"))["dashboards"]()


def shipped_dashboards() -> dict[str, Any]:
    return {path.name: json.loads(path.read_text("utf-8")) for path in sorted(GRAFANA.glob("*.json"))}


def queries() -> Iterator[Query]:
    """Of all panels of all dashboards."""
    for name, dashboard in shipped_dashboards().items():
        for panel in dashboard["panels"]:
            for target in panel["targets"]:
                yield Query(f"{name}: {panel['title']}: {target['legendFormat']}", target["expr"])


def rules(path: Path) -> list[dict[str, Any]]:
    groups = yaml.safe_load(path.read_text("utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> list[dict[str, Any]]:
    return rules(PROMETHEUS / "alerts.yml")


def names_in(query: str) -> set[str]:
    """The metrics of healer that a query names, as docs/metrics.md does."""
    found = re.findall(r"(?<![:\w])healer_\w+", query)
    return {name.removesuffix("_bucket") for name in found}


def metric_tables() -> str:
    """Every metric with its type, labels and meaning, as Markdown."""
    rows: dict[bool, list[str]] = {False: [], True: []}
    for name, metric in described().items():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        row = f"| `{name}` | {metric.kind} | {labels} | {metric.text} |"
        rows[name.removeprefix("healer_") in FIGURES].append(row)
    head = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
    parts = (("This process", False), ("The database, by cluster", True))
    return "\n".join(f"### {title}\n\n{head}" + "\n".join(rows[part]) + "\n" for title, part in parts)


def page_with(tables: str) -> str:
    """The page with these tables in place of its own."""
    before, _, rest = PAGE.read_text("utf-8").partition(_BEGIN)
    return before + _BEGIN + tables + _END + rest.partition(_END)[2]


if __name__ == "__main__":
    PAGE.write_text(page_with(metric_tables()), "utf-8")
