"""Cases of forecasts: given these days of one part, it is likely to fail, or not.

`rules/cases/forecast-*.yaml`; the form is in docs/forecasts.md. Judged by the same arithmetic as production.
"""

from collections.abc import Iterable

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.forecasts import likely, sentence
from healer.model import ForecastRule, Foreseen, Ruleset
from healer.observations.trends import POINT_S, POINTS
from healer.rulebook.cases.case_tracks import CaseWrong
from healer.rulebook.source import Source, did_you_mean

FORECAST_CASES = "forecast-*.yaml"
_PER_DAY = round(86400 / POINT_S)


class ForecastCase(msgspec.Struct, frozen=True, kw_only=True):
    """`days`: a value for each day, the newest last, or null where nobody knows; between two days it moves
    evenly. `likely` to fail, within `from_days` to `to_days`."""

    name: str
    rule: str
    days: tuple[float | None, ...]
    likely: bool
    from_days: float = 0.0
    to_days: float | None = None


def run_forecast_cases(
    sources: Iterable[Source], rules: Ruleset
) -> list[tuple[Source, int, ForecastCase, str]]:
    """(source, index, case, why it does not hold). Cases that cannot be run are problems of their source."""
    by_name = {one.rule: one for one in rules.forecasts}
    results = []
    for source in sources:
        for index, item in enumerate(source.items("cases")):
            case = source.convert((index,), item, ForecastCase)
            if case is None:
                continue
            rule = by_name.get(case.rule)
            if rule is None:
                hint = did_you_mean(case.rule, list(by_name))
                source.problem((index, "rule"), f"rule: there is no forecast {case.rule}", hint)
                continue
            try:
                results.append((source, index, case, _why_not(rule, case)))
            except CaseWrong as error:
                source.problem((index, *error.path), f"{case.name}: {error.text}", error.hint)
    return results


def _why_not(rule: ForecastRule, case: ForecastCase) -> str:
    seen = likely(rule, _series(case))[0]
    if (seen is not None) is not case.likely:
        return f"came: {sentence(rule, seen)}" if seen else "it is not found likely to fail"
    if seen is None:
        return ""
    return "" if case.from_days <= seen.days <= _most(rule, case) else f"came: {_told(rule, seen)}"


def _most(rule: ForecastRule, case: ForecastCase) -> float:
    return rule.within_days if case.to_days is None else case.to_days


def _told(rule: ForecastRule, seen: Foreseen) -> str:
    return f"in {seen.days:.1f} days: {sentence(rule, seen)}"


def _series(case: ForecastCase) -> NDArray[np.float64]:
    """(POINTS, 1), as the trends have it."""
    most = POINTS // _PER_DAY
    if not 0 < len(case.days) <= most:
        raise CaseWrong(("days",), f"days: from 1 to {most}")
    values = np.array([np.nan if day is None else day for day in case.days], np.float64)
    at = np.arange(len(values) * _PER_DAY) / _PER_DAY
    even = np.interp(at, np.arange(len(values)), values)  # a NaN makes its neighbours unknown too
    points = np.full((POINTS, 1), np.nan)
    points[POINTS - len(even) :, 0] = even
    return points
