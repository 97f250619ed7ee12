"""When a model is made anew, what counts as drift, and which new model may take the place of the old."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from healer.detection.scorers import Fitted
from healer.detection.training import (
    AFTER_DRIFT,
    EVERY,
    JUDGED_LEAST,
    PERSONS_CHOICE,
    due,
    healthy,
    is_judged,
    judged,
    population_shifts,
    stability_index,
    train,
)
from healer.model.trained import HEALER, FeatureRow, ShiftedFeature, Trained, Version
from tests.support.feature_history import FEATURES, NODES, history

pytestmark = pytest.mark.heavy

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
MOVED = ShiftedFeature(feature="gpu power, lowest", index=1.0, limit=0.3)


def made(rows: list[FeatureRow]) -> Trained:
    return train(rows, len(rows), {}, NOW)


def matrix(rows: list[FeatureRow]) -> np.ndarray:
    return healthy(rows, len(rows), {}).matrix


@pytest.fixture(scope="module")
def old() -> Trained:
    return made([row for row in history(NOW - timedelta(days=3), NOW) if not is_judged(row.at)])


# --- when ---


@pytest.mark.parametrize(
    ("age", "by_person", "tried", "drifted", "says"),
    [
        (None, False, None, (), "none yet"),
        (EVERY, False, None, (), "7 days have passed"),
        (EVERY - HOUR, False, None, (), ""),
        (HOUR, False, None, (MOVED,), "gpu power, lowest is not what it was"),
        (HOUR, False, HOUR, (MOVED,), ""),
        (EVERY, False, AFTER_DRIFT, (), ""),
        (2 * EVERY, False, EVERY, (), "7 days have passed"),
        (HOUR, True, None, (MOVED,), ""),
        (PERSONS_CHOICE, True, None, (), "7 days have passed"),
    ],
)
def test_a_model_is_due(
    age: timedelta | None,
    by_person: bool,
    tried: timedelta | None,
    drifted: tuple[ShiftedFeature, ...],
    says: str,
    old: Trained,
) -> None:
    by = "anna" if by_person else HEALER
    version = None if age is None else Version(model=old.model, in_force_at=NOW - age, in_force_by=by)
    why = due(version, tried_at=None if tried is None else NOW - tried, drifted=drifted, now=NOW)
    assert (says in why) if says else why == ""


def test_one_hour_in_eight_judges() -> None:
    hours = [NOW + number * HOUR for number in range(24)]
    assert sum(map(is_judged, hours)) == 3
    assert is_judged(hours[0]) == is_judged(hours[0] + timedelta(minutes=59))


# --- drift ---


def test_what_lies_as_it_lay_has_not_drifted(old: Trained) -> None:
    for seed in range(2, 12):
        lately = matrix(history(NOW, NOW + timedelta(days=1), seed=seed))
        assert population_shifts(old, lately, len(NODES)) == []


def test_a_feature_that_moved_is_named_with_its_limit(old: Trained) -> None:
    lately = matrix(history(NOW, NOW + timedelta(days=1), seed=2, moved=6.0))
    (found,) = population_shifts(old, lately, len(NODES))
    assert found.feature == FEATURES[0]
    assert found.index > 2 * found.limit > 0.5


def test_few_nodes_or_few_samples_drift_by_chance_and_are_not_believed(old: Trained) -> None:
    lately = matrix(history(NOW, NOW + timedelta(days=1), seed=2, moved=1.0))
    assert population_shifts(old, lately, 3) == []
    assert population_shifts(old, lately[: JUDGED_LEAST - 1], len(NODES)) == []


def test_the_index_of_known_shares() -> None:
    even = np.arange(1000.0)
    assert stability_index(even, even) == pytest.approx(0, abs=1e-9)
    # All of it in the highest tenth: 0.9 ln 10 there, and 9 times (0.1 - 0.001) ln 100 elsewhere.
    assert stability_index(even, even + 900) == pytest.approx(
        0.9 * np.log(10) + 9 * 0.099 * np.log(100), rel=0.02
    )
    counts = np.repeat([0.0, 1.0], [900, 100])
    assert stability_index(counts, counts[::-1]) == pytest.approx(0, abs=1e-9)
    assert stability_index(counts, np.repeat([0.0, 1.0], [500, 500])) > 0.25
    assert stability_index(even, np.zeros(0)) == 0.0


# --- judging ---


def test_a_new_model_that_does_as_well_is_taken(old: Trained) -> None:
    rows = history(NOW - timedelta(days=2), NOW + timedelta(days=1), seed=1)
    new = made([row for row in rows if not is_judged(row.at)])
    told = judged(Fitted(new), Fitted(old), matrix([row for row in rows if is_judged(row.at)]))
    assert (told.refused, told.above) == ("", 0.0)
    assert told.found_before is not None
    assert told.samples > JUDGED_LEAST


def test_one_that_learnt_that_broken_is_usual_is_refused(old: Trained) -> None:
    """Half of what it was made from lay far off in many features: what is put in passes for usual."""
    rows = history(NOW - timedelta(days=3), NOW)
    random = np.random.default_rng(4)
    for row in rows[::2]:
        row.matrix[:] += 8 * random.choice((-1.0, 0.0, 1.0), row.matrix.shape)
    told = judged(Fitted(made(rows)), Fitted(old), matrix(history(NOW, NOW + timedelta(days=1), seed=9)))
    assert "of the deviations put in" in told.refused
    assert told.found_before is not None and told.found < told.found_before


def test_one_that_calls_many_healthy_nodes_unusual_is_refused() -> None:
    narrow = made(history(NOW - timedelta(days=3), NOW, noise=0.01))
    other = history(NOW, NOW + timedelta(days=1), seed=3)
    for row in other:
        row.matrix[:] = 4 * row.matrix[::-1]
    told = judged(Fitted(narrow), None, matrix(other))
    assert "of healthy samples unusual" in told.refused
    assert told.above_before is None


def test_nothing_to_judge_by_is_no_proof(old: Trained) -> None:
    few = matrix(history(NOW, NOW + timedelta(hours=1)))
    assert f"{len(few)} healthy samples were kept aside" in judged(Fitted(old), None, few).refused


def test_where_the_model_in_force_calls_many_unusual_a_person_decides(old: Trained) -> None:
    """The nodes have changed, or many are broken: the samples do not tell which."""
    rows = history(NOW, NOW + timedelta(days=2), seed=5)
    random = np.random.default_rng(4)
    moved = 8 * random.choice((-1.0, 1.0), rows[0].matrix.shape[1])
    for row in rows:
        row.matrix[::3] += moved
    new = made([row for row in rows if not is_judged(row.at)])
    told = judged(Fitted(new), Fitted(old), matrix([row for row in rows if is_judged(row.at)]))
    assert told.above_before is not None and told.above_before > 0.1
    assert "a person has to say which" in told.refused


def test_a_first_model_that_finds_hardly_anything_is_refused() -> None:
    rows = history(NOW - timedelta(days=3), NOW)
    random = np.random.default_rng(4)
    for row in rows:
        row.matrix[:] += 40 * random.standard_normal(row.matrix.shape)
    told = judged(Fitted(made(rows)), None, matrix(rows))
    assert told.found < 0.5 and "at least 50%" in told.refused
