"""Forecasts among the rules: their mode, and how good they were."""

import pytest

from healer.api.problems import Problem
from healer.api.rule_views import check_mode, rule_view
from healer.model import ForecastScore, Mode
from healer.ports.answers import RuleRecord
from tests.support.loop import rules_in

NAME = "forecast-rows-remapped"


@pytest.mark.parametrize(
    ("default", "mode"),
    [
        (Mode.auto, Mode.approve),
        (Mode.approve, Mode.approve),
        (Mode.suggest, Mode.suggest),
        (Mode.off, Mode.off),
    ],
)
def test_its_mode_is_approve_at_most_and_never_above_healers(default: Mode, mode: Mode) -> None:
    rules = rules_in(default)
    seen = rule_view(rules, rules.by_name[NAME], RuleRecord(), [])
    assert seen.mode is mode and seen.follows is not None and seen.follows.limit == 8


def test_auto_cannot_be_set() -> None:
    rules = rules_in()
    with pytest.raises(Problem) as refused:
        check_mode(rules.by_name[NAME], Mode.auto)
    assert refused.value.status == 422 and "highest mode is approve" in refused.value.detail
    check_mode(rules.by_name[NAME], Mode.approve)
    check_mode(rules.by_name["gpu-lost"], Mode.auto)


def test_precision_and_recall_are_by_what_then_happened() -> None:
    rules = rules_in()
    score = ForecastScore(hits=3, misses=1, unforeseen=3)
    seen = rule_view(rules, rules.by_name[NAME], RuleRecord(forecasts=score), [])
    assert (seen.precision, seen.recall) == (0.75, 0.5)
    assert seen.forecasts is not None and seen.forecasts.unforeseen == 3
    fresh = rule_view(rules, rules.by_name[NAME], RuleRecord(), [])
    assert fresh.forecasts is not None and (fresh.precision, fresh.recall) == (None, None)
    assert rule_view(rules, rules.by_name["gpu-lost"], RuleRecord(), []).forecasts is None
