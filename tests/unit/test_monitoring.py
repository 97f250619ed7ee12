"""Dashboards, rules and the page of metrics agree with the code, and with Grafana's own schema."""

import json
from typing import Any

import pytest
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

from healer.api.metrics import described
from tests.support.monitoring import (
    PAGE,
    RULE_FILES,
    made_dashboards,
    metric_tables,
    names_in,
    page_with,
    queries,
    rules,
    shipped_dashboards,
)

DASHBOARDS = shipped_dashboards()
register_default_plugins()


def understood(document: dict[str, Any]) -> dict[str, Any]:
    """What is left of it when Grafana 10.1's types have read and written it; they drop what they do not
    know."""
    return json.loads(json.dumps(Dashboard.from_json(document), cls=JSONEncoder))


def lost(given: Any, back: Any, place: str = "") -> list[str]:
    """What is missing or different in `back`, which may hold more."""
    if isinstance(given, dict) and isinstance(back, dict):
        return [
            wrong
            for key, value in given.items()
            for wrong in ([f"{place}/{key}"] if key not in back else lost(value, back[key], f"{place}/{key}"))
        ]
    if isinstance(given, list) and isinstance(back, list) and len(given) == len(back):
        pairs = enumerate(zip(given, back, strict=True))
        return [wrong for at, (one, other) in pairs for wrong in lost(one, other, f"{place}/{at}")]
    return [] if given == back else [f"{place}: {given!r} is {back!r}"]


def test_the_dashboards_are_those_that_the_table_makes() -> None:
    hint = "python deploy/grafana/make.py makes them again"
    assert made_dashboards() == {
        name: json.dumps(one, indent=1) + "\n" for name, one in DASHBOARDS.items()
    }, hint


@pytest.mark.parametrize("name", DASHBOARDS)
def test_grafanas_own_types_know_every_field(name: str) -> None:
    assert lost(DASHBOARDS[name], understood(DASHBOARDS[name])) == []


def test_they_would_miss_a_field_that_grafana_does_not_have() -> None:
    panel = DASHBOARDS["fleet.json"]["panels"][0]
    for place in (panel, panel["options"], panel["targets"][0], panel["fieldConfig"]["defaults"]):
        place["colour"] = "red"
        assert len(lost(DASHBOARDS["fleet.json"], understood(DASHBOARDS["fleet.json"]))) == 1
        del place["colour"]


@pytest.mark.parametrize("name", DASHBOARDS)
def test_panels_do_not_overlap_and_have_distinct_titles(name: str) -> None:
    panels = DASHBOARDS[name]["panels"]
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken and max(x for x, _ in cells) < 24, panel["title"]
        taken |= cells
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


def test_each_dashboard_lets_one_choose_source_and_clusters() -> None:
    assert len({dashboard["uid"] for dashboard in DASHBOARDS.values()}) == 4
    for dashboard in DASHBOARDS.values():
        assert [one["name"] for one in dashboard["templating"]["list"]] == ["datasource", "cluster"]
        sources = [
            target["datasource"]["uid"] for panel in dashboard["panels"] for target in panel["targets"]
        ]
        assert set(sources) == {"${datasource}"}


def test_dashboards_and_alert_rules_query_only_known_metrics() -> None:
    known = described().keys()
    asked = [(query.place, query.text) for query in queries()]
    asked += [(str(rule), rule["expr"]) for path in RULE_FILES for rule in rules(path)]
    assert len(asked) > 80
    assert {place: unknown for place, text in asked if (unknown := names_in(text) - known)} == {}


def test_a_figure_of_the_database_is_shown_for_the_chosen_clusters_alone() -> None:
    of_clusters = {name for name, metric in described().items() if metric.labels[:1] == ("cluster",)}
    for query in queries():
        if named := names_in(query.text) & of_clusters:
            chosen = query.text.count('cluster=~"$cluster"') + query.text.count('cluster=~"$cluster|"')
            assert chosen >= len(named), query.place


def test_the_page_of_metrics_is_made_from_the_code() -> None:
    text = PAGE.read_text("utf-8")
    assert text == page_with(metric_tables()), "python -m tests.support.monitoring makes it again"


def test_names_are_as_prometheus_wants_them() -> None:
    for name, metric in described().items():
        assert (metric.kind == "counter") is name.endswith("_total"), name
        assert metric.text[0].isupper() or metric.text[0] == "1", name
        assert metric.text.endswith("."), name
        assert not name.removesuffix("_total").endswith(("_s", "_ms", "_hours", "_percent")), name
