#!/usr/bin/env python3
"""Makes the dashboards beside this file of panels.yaml, for Grafana 10 and newer:

python deploy/grafana/make.py
"""

import json
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
TITLES = {
    "fleet": "healer: fleet",
    "health": "healer: own health",
    "jobs": "healer: jobs",
    "detectors": "healer: detectors",
}
#: Key of panels.yaml -> Grafana's kind of panel, width and height of 24, and options.
_LAST = {"values": False, "calcs": ["lastNotNull"], "fields": ""}
_OVER_TIME = {
    "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
    "tooltip": {"mode": "multi", "sort": "desc"},
}
KINDS: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "stat": ("stat", 4, 4, {"reduceOptions": _LAST, "colorMode": "value", "graphMode": "none"}),
    "lines": ("timeseries", 8, 8, _OVER_TIME),
    "areas": ("timeseries", 8, 8, _OVER_TIME),
    "bars": (
        "bargauge",
        12,
        10,
        {"reduceOptions": _LAST, "orientation": "horizontal", "displayMode": "basic"},
    ),
}
CUSTOM = {
    "lines": {"fillOpacity": 5},
    "areas": {"fillOpacity": 30, "stacking": {"mode": "normal", "group": "A"}},
}


def panel(given: dict[str, Any]) -> dict[str, Any]:
    """As Grafana stores it, without its place."""
    (key,) = KINDS.keys() & given.keys()
    kind, width, height, options = KINDS[key]
    steps: list[dict[str, Any]] = [{"value": None, "color": "green"}]
    steps += [{"value": given["red"], "color": "red"}] if "red" in given else []
    defaults: dict[str, Any] = {
        "unit": given.get("unit", "short"),
        "min": 0,
        "thresholds": {"mode": "absolute", "steps": steps},
    }
    if key in CUSTOM:
        defaults["custom"] = CUSTOM[key]
    queries = {"": given[key]} if key == "stat" else given[key]
    over_time = kind == "timeseries"
    targets = [
        {
            "refId": chr(ord("A") + at),
            "datasource": SOURCE,
            "expr": query,
            "legendFormat": legend,
            "instant": not over_time,
            "range": over_time,
        }
        for at, (legend, query) in enumerate(queries.items())
    ]
    return {
        "type": kind,
        "title": given["title"],
        "datasource": SOURCE,
        "gridPos": {"h": height, "w": given.get("width", width)},
        "targets": targets,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
    }


def placed(panels: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The panels in rows from left to right, each row 24 wide and as high as its highest panel."""
    x = y = height = 0
    for number, each in enumerate(panels, 1):
        size = each["gridPos"]
        if x + size["w"] > 24:
            x, y, height = 0, y + height, 0
        each |= {"id": number, "gridPos": {"x": x, "y": y, **size}}
        x, height = x + size["w"], max(height, size["h"])
    return panels


def variables() -> list[dict[str, Any]]:
    """The data source, and the clusters that it knows."""
    clusters = {"query": "label_values(healer_slurm_snapshot_age_seconds, cluster)", "refId": "clusters"}
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    cluster = {
        "name": "cluster",
        "label": "Cluster",
        "type": "query",
        "datasource": SOURCE,
        "query": clusters,
    }
    cluster |= {"refresh": 2, "sort": 1, "multi": True, "includeAll": True, "allValue": ".*"}
    cluster |= {"current": {"selected": True, "text": ["All"], "value": ["$__all"]}}
    return [source, cluster]


def link() -> dict[str, Any]:
    """To the other dashboards, with the same clusters and time."""
    link = {
        "type": "dashboards",
        "title": "healer",
        "tags": ["healer"],
        "includeVars": True,
        "keepTime": True,
    }
    return link | {"asDropdown": False, "targetBlank": False, "icon": "", "tooltip": ""}


def dashboards() -> dict[str, str]:
    """File name -> its text."""
    given = yaml.safe_load((FOLDER / "panels.yaml").read_text("utf-8"))
    found = {}
    for name, title in TITLES.items():
        document = {
            "uid": f"healer-{name}",
            "title": title,
            "tags": ["healer"],
            "timezone": "",
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "schemaVersion": 38,
            "time": {"from": "now-6h", "to": "now"},
            "links": [link()],
            "templating": {"list": variables()},
            "annotations": {"list": []},
            "panels": placed([panel(each) for each in given[name]]),
        }
        found[f"{name}.json"] = json.dumps(document, indent=1) + "\n"
    return found


if __name__ == "__main__":
    for name, text in dashboards().items():
        (FOLDER / name).write_text(text, "utf-8")
