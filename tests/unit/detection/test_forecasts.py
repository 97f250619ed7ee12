"""Forecasts on samples: shipped rules are fed, reported, ended, kept over a restart; what files refuse."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import numpy as np
import pytest

from healer.detection.forecasts import LOOK_S, OVER_LOOKS, Forecasts, sentence
from healer.model import (
    Column,
    Component,
    Detections,
    ForecastRule,
    Mode,
    Part,
    Place,
    Scope,
    SlurmNode,
    SlurmSnapshot,
    Topology,
    Trend,
)
from healer.model.telemetry import Report
from healer.observations.telemetry_windows import Telemetry
from healer.observations.trends import POINT_S
from healer.rulebook.forecast_rules import read_forecasts
from healer.rulebook.source import Problem, Source
from healer.sim.stores import MemoryColumns
from tests.support.looks import look
from tests.support.loop import rules_in

START = datetime(2026, 11, 1, tzinfo=UTC)
RULES = {one.name: one for one in rules_in().forecasts}
NODES = ("n1", "n2", "n3")
BAD = Component(cluster="c", node="n1", gpu=2)


class Days:
    """Three nodes of 8 GPUs in one rack; GPU 2 of n1 is the one in question. A report each 2 hours."""

    def __init__(
        self, *names: str, before: Mapping[str, bytes] | None = None, start: datetime = START
    ) -> None:
        self.rules, self.now = rules_in(), start
        self.telemetry = Telemetry("c", self.rules.catalogue, self.rules.gpu_models)
        self.book = MemoryColumns()
        shown = {name: SlurmNode(name=name, state=("IDLE",), gpus=8, gpu_model="h100") for name in NODES}
        snapshot = SlurmSnapshot(cluster="c", taken_at=start, nodes=shown, jobs={})
        self.telemetry.show(snapshot, Topology(places={name: Place(rack="r1") for name in NODES}))
        self.forecasts = Forecasts([RULES[name] for name in names], self.rules.catalogue)
        self.lost = self.forecasts.load(before or {})
        self.watched: list[tuple[str, Component]] = []
        self.sensed: list[Detections] = []

    def report(self, node: str, values: Mapping[tuple[str, Part], float]) -> None:
        ids = np.array(self.book.ids([Column(*key) for key in values]), np.int32)
        numbers = np.array(list(values.values()), np.float64)
        self.telemetry.update([Report("c", node, self.now, self.now, ids, numbers)], self.book)

    def gpus(self, **signals: tuple[float, float]) -> None:
        """(of all, of the bad one) at this moment."""
        for node in NODES:
            self.report(
                node,
                {
                    (name, Part(gpu=gpu)): bad if (node, gpu) == ("n1", 2) else good
                    for name, (good, bad) in signals.items()
                    for gpu in range(8)
                },
            )

    def look(self, hours: float = 2.0) -> Detections:
        sensed = self.forecasts.tick(look(self.now, self.telemetry, watched=self.watched))
        self.sensed.append(sensed)
        self.now += timedelta(hours=hours)
        return sensed

    @property
    def findings(self):
        return [one for sensed in self.sensed for one in sensed.findings]


def grow(days: Days, name: str, until_days: float, bad, good=lambda _: 0.0) -> None:
    begun = days.now
    while (day := (days.now - begun).total_seconds() / 86400) < until_days:
        days.gpus(**{name: (good(day), bad(day))})
        days.look()


def test_successive_row_replacements_are_reported_with_their_basis() -> None:
    days = Days("rows-remapped")
    grow(days, "row_remap_uncorrectable_rows", 6, lambda day: float(int(day)))
    first = days.findings[0]
    assert {one.component for one in days.findings} == {BAD}
    assert (first.rule, first.fault) == ("forecast-rows-remapped", "forecast-rows-remapped")
    assert first.unusable is False and first.foreseen is not None and 1 < first.foreseen.days <= 7
    assert "likely to fail within" in first.text and "the limit is 8 rows" in first.text
    assert "more each day" in first.text and "likely to fail within" in first.title
    # Reported with each new point, so at most four times a day, as the same.
    assert len({one.evidence[0].digest for one in days.findings}) == 1
    assert len(days.findings) <= 4 * 6


@pytest.mark.parametrize(
    ("rule", "signal"),
    [
        ("correctable-ecc", "ecc_sbe_aggregate_total"),
        ("correctable-ecc", "ecc_dram_correctable_life_total"),
        ("pcie-replays", "pcie_replay_total"),
        ("nvlink-replays", "nvlink_replay_total"),
        ("nvlink-replays", "nvlink_dl_replay_total"),
        ("nvlink-recoveries", "nvlink_recovery_total"),
    ],
)
def test_counters_that_grow_threefold_each_day(rule: str, signal: str) -> None:
    days, least = Days(rule), RULES[rule].least
    grow(days, signal, 5, lambda day: least / 3 * 3.0**day, lambda day: least / 20 * day)
    assert {one.component for one in days.findings} == {BAD}


def test_a_bit_error_rate_by_its_logarithm() -> None:
    days = Days("nvlink-ber")
    grow(days, "nvlink_effective_ber", 5, lambda day: 1e-17 * 10**day, lambda _: 2e-16)
    assert {one.component for one in days.findings} == {BAD}
    assert "multiplying by" in days.findings[0].text


def heat(days: Days, until_days: float, watts: tuple[float, float], hall: float = 0.0) -> None:
    """The bad GPU is a degree hotter each day; the hall warms by `hall` a day."""
    begun = days.now
    while (day := (days.now - begun).total_seconds() / 86400) < until_days:
        base = 55 + hall * day
        days.gpus(gpu_temp_c=(base, base + day), power_w=watts, power_limit_w=(700, 700))
        days.look()


def test_heat_at_equal_power_above_the_peers() -> None:
    days = Days("thermal-resistance")
    heat(days, 8, (600, 610))
    assert {one.component for one in days.findings} == {BAD}
    assert "°C above peers" in days.findings[0].text


@pytest.mark.parametrize(("watts", "hall"), [((600.0, 690.0), 0.0), ((120.0, 120.0), 0.0)])
def test_heat_at_more_power_or_at_rest_says_nothing(watts: tuple[float, float], hall: float) -> None:
    days = Days("thermal-resistance")
    heat(days, 8, watts, hall)
    assert days.findings == []


def test_a_hall_that_warms_up_is_no_gpus_fault() -> None:
    days = Days("thermal-resistance")
    for hour in range(0, 8 * 24, 2):
        warm = 50 + hour / 24
        days.gpus(gpu_temp_c=(warm, warm), power_w=(600, 600), power_limit_w=(700, 700))
        days.look()
    assert days.findings == []


def switch_light(days: Days, until_days: float) -> None:
    begun = days.now
    while (day := (days.now - begun).total_seconds() / 86400) < until_days:
        values = {("optic_rx_power_dbm", Part(port=f"1/{port}")): -3.0 for port in range(4)}
        values["optic_rx_power_dbm", Part(port="1/2")] = -4.5 - 0.5 * day
        days.report("@leaf1", values)
        days.look()


def test_light_that_fades_names_the_port() -> None:
    days = Days("optic-light")
    switch_light(days, 7)
    where = {one.component for one in days.findings}
    assert {(one.device, one.part) for one in where} == {("leaf1", "1/2")}
    assert "less each day" in days.findings[0].text


def test_every_rule_that_ships_is_tried_here_or_shares_its_form() -> None:
    """Links and ports live on axes that these samples do not fill; their expressions are one signal each."""
    tried = {
        "rows-remapped", "correctable-ecc", "pcie-replays", "nvlink-replays", "nvlink-recoveries",
        "nvlink-ber", "thermal-resistance", "optic-light",
    }  # fmt: skip
    for name in RULES.keys() - tried:
        assert RULES[name].value in rules_in().catalogue.signals and RULES[name].scope is not Scope.gpu


def test_it_is_over_when_the_trend_is_gone_for_a_day_and_not_before() -> None:
    days = Days("rows-remapped")
    grow(days, "row_remap_uncorrectable_rows", 6, lambda day: float(int(day)))
    days.watched = [("forecast-rows-remapped", BAD)]
    assert days.look(0).clear_since == {}
    grow(days, "row_remap_uncorrectable_rows", OVER_LOOKS * POINT_S / 86400 - 0.3, lambda _: 0.0)
    assert days.sensed[-1].clear_since == {}
    grow(days, "row_remap_uncorrectable_rows", 2, lambda _: 0.0)
    since = days.sensed[-1].clear_since["forecast-rows-remapped", BAD]
    assert since < days.now


def test_silence_is_no_sign_that_it_is_over() -> None:
    days = Days("rows-remapped")
    grow(days, "row_remap_uncorrectable_rows", 6, lambda day: float(int(day)))
    days.watched = [("forecast-rows-remapped", BAD)]
    for _ in range(36):
        days.look()
    assert days.sensed[-1].clear_since == {}


def test_another_gpu_in_its_place_has_no_past() -> None:
    days = Days("rows-remapped")
    days.forecasts.know_parts(days.telemetry, [("n1", 2, "GPU-old")])
    grow(days, "row_remap_uncorrectable_rows", 6, lambda day: float(int(day)))
    days.watched = [("forecast-rows-remapped", BAD)]
    days.forecasts.know_parts(days.telemetry, [("n1", 2, "GPU-new")])
    assert ("forecast-rows-remapped", BAD) in days.look().clear_since
    before = len(days.findings)
    grow(days, "row_remap_uncorrectable_rows", 2, lambda _: 0.0)
    assert len(days.findings) == before


@pytest.mark.parametrize("is_heard_first", [True, False])
def test_another_gpu_in_its_place_has_no_past_across_a_restart(is_heard_first: bool) -> None:
    first = Days("rows-remapped")
    first.forecasts.know_parts(first.telemetry, [("n1", 2, "GPU-old")])
    grow(first, "row_remap_uncorrectable_rows", 6, lambda day: float(int(day)))
    packed = first.forecasts.pack(first.telemetry)
    second = Days("rows-remapped", before=packed, start=first.now)
    if is_heard_first:
        grow(second, "row_remap_uncorrectable_rows", 0.1, lambda _: 0.0)
    second.forecasts.know_parts(second.telemetry, [("n1", 2, "GPU-new")])
    before = len(second.findings)
    grow(second, "row_remap_uncorrectable_rows", 2, lambda _: 0.0)
    assert len(second.findings) == before
    assert Days("rows-remapped", before={"gpu-parts": b"x"}).lost == ["gpu-parts"]


def test_a_node_that_is_away_over_two_restarts_is_not_forgotten() -> None:
    first = Days("rows-remapped")
    grow(first, "row_remap_uncorrectable_rows", 6, lambda day: float(int(day)))
    packed = first.forecasts.pack(first.telemetry)
    second = Days("rows-remapped", before=packed, start=first.now)
    for _ in range(12):
        second.report("n2", {("row_remap_uncorrectable_rows", Part(gpu=0)): 0.0})
        second.look()
    third = Days("rows-remapped", before=second.forecasts.pack(second.telemetry), start=second.now)
    grow(third, "row_remap_uncorrectable_rows", 1, lambda day: 6.0 + int(day))
    assert {one.component for one in third.findings} == {BAD}


def test_a_restart_goes_on_where_it_was() -> None:
    whole, first = Days("rows-remapped"), Days("rows-remapped")
    for one in (whole, first):
        grow(one, "row_remap_uncorrectable_rows", 3, lambda day: float(int(day)))
    packed = first.forecasts.pack(first.telemetry)
    second = Days("rows-remapped", before=packed, start=first.now)
    assert second.lost == []
    for one in (whole, second):
        grow(one, "row_remap_uncorrectable_rows", 3, lambda day: 3.0 + int(day))
    assert [one.text for one in second.findings] == [one.text for one in whole.findings] != []
    assert Days("rows-remapped", before={"rows-remapped": b"x"}).lost == ["rows-remapped"]


def test_changed_rules_keep_what_is_known_of_those_that_stay() -> None:
    days = Days("rows-remapped", "correctable-ecc")
    grow(days, "row_remap_uncorrectable_rows", 4, lambda day: float(int(day)))
    rules = [RULES["rows-remapped"], msgspec.structs.replace(RULES["correctable-ecc"], limit=1e6)]
    days.forecasts = Forecasts(rules, days.rules.catalogue, before=days.forecasts)
    grow(days, "row_remap_uncorrectable_rows", 2, lambda day: 4.0 + int(day))
    assert {one.component for one in days.findings} == {BAD}


def test_a_look_is_due_each_five_minutes_only() -> None:
    days = Days("rows-remapped")
    days.gpus(row_remap_uncorrectable_rows=(0, 1))
    days.look(0)
    before = days.forecasts.nbytes
    days.now += timedelta(seconds=LOOK_S - 1)
    days.look(0)
    assert days.forecasts.nbytes == before > 0


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (
            Trend(level=5, per_day=1, days=3, low=2.5, high=4.2),
            "within 3 days (2.5 to 4.2): 5 rows now, 1 more",
        ),
        (Trend(level=5, per_day=1, days=3, low=2.5), "(2.5 or more)"),
        (
            Trend(level=9, per_day=1, days=0, low=0, high=0),
            "at its limit now: 9 rows, the limit is 8 rows",
        ),
        (Trend(level=7.9, per_day=1, days=0.1, low=0, high=1), "within a day"),
    ],
)
def test_the_sentence(seen: Trend, text: str) -> None:
    assert text in sentence(RULES["rows-remapped"], seen)


# --- the file -----------------------------------------------------------------------------------------------

GOOD = """
- name: rows
  title: Rows
  scope: gpu
  value: row_remap_uncorrectable_rows
  unit: rows
  limit: 8
  least: 2
  fails: [xid-48]
  source: test
"""


def read(tmp_path: Path, text: str) -> tuple[tuple[ForecastRule, ...], list[Problem]]:
    path = tmp_path / "forecasts.yaml"
    path.write_text(text)
    problems: list[Problem] = []
    rules = rules_in()
    found = read_forecasts(
        Source(path, path.name, problems),
        rules.catalogue.signals,
        rules.gpu_models,
        ["xid-48"],
        rules.playbooks,
        lambda at, name: None,
    )
    return found, problems


def test_an_entry_as_short_as_it_can_be(tmp_path: Path) -> None:
    (rule,), problems = read(tmp_path, GOOD)
    assert problems == [] and (rule.mode, rule.within_days, rule.playbook) == (Mode.approve, 7, None)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("  mode: auto", "the highest mode is approve"),
        ("  remedy: [drain_then_reset]", "is for a fault that has already happened"),
        ("  playbook: gpu-fatal", "first wait until the jobs end"),
        ("  counts: [row_remap_uncorrectable_rows]", "either counts (counters) or value"),
        ("  only: power_w", "only, column 1:"),
        ("  within_days: 90", "at most 30"),
        ("  severity: P0", "nothing has failed yet"),
        ("  models: [z9]", "no GPU model z9"),
    ],
)
def test_forecast_rules_with_forbidden_fields_are_refused(tmp_path: Path, more: str, text: str) -> None:
    _, problems = read(tmp_path, f"{GOOD}{more}\n")
    assert any(text in str(one) and "forecasts.yaml" in str(one) for one in problems), problems


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("limit: 8", "limit: 1", "least: must be below limit"),
        ("xid-48", "xid-4711", "unknown fault xid-4711"),
        ("value: row_remap_uncorrectable_rows", "value: nothing_known", "value, column 1:"),
        ("scope: gpu", "scope: job", "forecasts cannot follow a job"),
        ("fails: [xid-48]", "fails: []", "the list is empty"),
        ("name: rows", "name: Rows And More", "lowercase letters"),
    ],
)
def test_invalid_value_in_a_forecast_rule_is_named(tmp_path: Path, old: str, new: str, text: str) -> None:
    _, problems = read(tmp_path, GOOD.replace(old, new))
    assert any(text in str(one) for one in problems), problems
