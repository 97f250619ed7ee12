"""When a model is made anew, and whether the new one may take the place of the old.

Pure: the process around it is `healer.bootstrap.refit`. Method and sources: `docs/detection.md`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from statistics import NormalDist

import msgspec
import numpy as np

from healer.detection.features import columns
from healer.detection.training import Fitted, Trained, own_of
from healer.detection.ways import Matrix

#: A model is made anew so often, and after a drift once in so long; an attempt that failed is repeated then.
EVERY, AFTER_DRIFT = timedelta(days=7), timedelta(days=1)
#: What a person put in force stands for so long.
PERSONS_STANDS = timedelta(days=7)
#: Every eighth hour of the history is no part of training: by those both models are judged.
JUDGED_HOUR = 8
#: Fewer samples than that judge nothing.
JUDGED_LEAST = 50
#: A new model may call so large a share of healthy samples unusual, or as many as the old one does.
ALARMS_MOST = 0.01
#: If the old one calls more of them unusual than this, the class has changed or much of it is broken, which
#: nobody but a person knows apart: the new one is kept, and `healer model use` puts it in force.
CHANGED_MOST = 0.1
#: Of the deviations that are put into healthy samples it must find so many; and it may miss so much more of
#: them than the old one.
FOUND_LEAST, MISSES_MORE = 0.5, 0.25
#: Those deviations: this share of a sample's features moved by so many units, from a seed.
MOVED, MOVED_BY, PROBES, SEED = 0.75, 6.0, 500, 0

#: Population stability index: so many bins; from here on a feature is called changed (N. Siddiqi, 2006), but
#: not below what chance makes of so few nodes, once in so many looks (B. Yurdakul, 2018).
BINS, CHANGED, BY_CHANCE = 10, 0.25, 0.001
SHARE_LEAST = 0.001


class Drifted(msgspec.Struct, frozen=True, kw_only=True):
    """A feature whose values do not lie as they did in training: `index` is beyond `limit`."""

    feature: str
    index: float
    limit: float


class Judged(msgspec.Struct, frozen=True, kw_only=True):
    """Two models on the same healthy samples. `above`: share called unusual; `found`: share of the deviations
    put into them that is. `before` is of the model in force; None where there is none."""

    samples: int
    above: float
    found: float
    above_before: float | None = None
    found_before: float | None = None
    refused: str = ""


def is_judged(at: datetime) -> bool:
    """Whether this hour judges models, and trains none."""
    return int(at.timestamp() // 3600) % JUDGED_HOUR == 0


def due(
    *,
    in_force_at: datetime | None,
    by_person: bool,
    tried_at: datetime | None,
    drifted: Sequence[Drifted],
    now: datetime,
) -> str:
    """Why the class's model is made anew now; empty where it is not."""
    if tried_at is not None and now - tried_at < AFTER_DRIFT:
        return ""
    if in_force_at is None:
        return "there is none yet"
    if by_person and now - in_force_at < PERSONS_STANDS:
        return ""
    if drifted:
        return f"{drifted[0].feature} is not what it was in training"
    # By the last attempt too: where a new model was refused the old one is not made anew every day.
    last = max(in_force_at, tried_at or in_force_at)
    return f"{EVERY.days} days have passed" if now - last >= EVERY else ""


def drift(trained: Trained, matrix: Matrix, nodes: int) -> list[Drifted]:
    """Features of which the healthy samples of the last day (all features, of so many nodes) do not lie as in
    training; the farthest first."""
    model = trained.model
    rows, _ = own_of(model, matrix)
    own = matrix[rows][:, columns(model.features)]
    if len(own) < JUDGED_LEAST or nodes < 2:
        return []
    limit = max(CHANGED, _by_chance(model.nodes, nodes, len(model.features)))
    found = []
    for column, name in enumerate(model.features):
        lately = own[:, column]
        index = stability_index(trained.data[:, column], lately[np.isfinite(lately)])
        if index > limit:
            found.append(Drifted(feature=name, index=round(index, 3), limit=round(limit, 3)))
    return sorted(found, key=lambda one: -one.index)


def stability_index(trained: np.ndarray, lately: np.ndarray) -> float:
    """Population stability index over tenths of training. Values that stand out in number (no error at all)
    make a bin of their own; a share is at least `SHARE_LEAST`, so that an empty bin says something finite."""
    if not len(lately):
        return 0.0
    edges = np.unique(np.quantile(trained, np.linspace(0, 1, BINS + 1)[1:-1]))
    bins = 2 * len(edges) + 1

    def shares(values: np.ndarray) -> np.ndarray:
        # Below, at, and above each edge: what half of training has is one edge, with a bin of its own.
        place = np.searchsorted(edges, values, "left") + np.searchsorted(edges, values, "right")
        return np.maximum(np.bincount(place, minlength=bins) / len(values), SHARE_LEAST)

    expected, actual = shares(trained), shares(lately)
    return float(((actual - expected) * np.log(actual / expected)).sum())


def _by_chance(trained: int, lately: int, features: int) -> float:
    """The index that chance alone passes once in 1,000 looks at so many features: it is distributed as
    chi-square with a degree for each bin but one, times (1/n + 1/m). Samples of one node resemble each other
    all day: nodes count, not samples."""
    z = NormalDist().inv_cdf(1 - BY_CHANCE / features)
    degrees = BINS - 1
    # Wilson and Hilferty's approximation of the quantile of chi-square.
    quantile = degrees * (1 - 2 / (9 * degrees) + z * (2 / (9 * degrees)) ** 0.5) ** 3
    return quantile * (1 / trained + 1 / lately)


def judged(new: Fitted, old: Fitted | None, matrix: Matrix) -> Judged:
    """Both models on healthy samples (all features) that the new one was not made from."""
    samples = len(own_of(new.model, matrix)[0])
    if samples < JUDGED_LEAST:
        why = f"{samples} healthy samples were kept aside to judge it, and {JUDGED_LEAST} are needed"
        return Judged(samples=samples, above=0.0, found=0.0, refused=why)
    above, found = _figures(new, matrix)
    if old is None:
        told = Judged(samples=samples, above=above, found=found)
    else:
        before = _figures(old, matrix)
        told = Judged(
            samples=samples, above=above, found=found, above_before=before[0], found_before=before[1]
        )
    return msgspec.structs.replace(told, refused=_refused(told))


def _refused(told: Judged) -> str:
    if told.above_before is not None and told.above_before > CHANGED_MOST:
        return (
            f"the model in force calls {told.above_before:.0%} of healthy samples unusual: the nodes have "
            "changed or many are broken, and a person has to say which"
        )
    if told.found < FOUND_LEAST:
        return f"it finds {told.found:.0%} of the deviations put in, at least {FOUND_LEAST:.0%} it must"
    if told.above > max(ALARMS_MOST, told.above_before or 0.0):
        return f"it calls {told.above:.1%} of healthy samples unusual, at most {ALARMS_MOST:.0%} may be"
    if told.found_before is not None and told.found < told.found_before - MISSES_MORE:
        return (
            f"it finds {told.found:.0%} of the deviations put in, the model in force {told.found_before:.0%}"
        )
    return ""


def _figures(fitted: Fitted, matrix: Matrix) -> tuple[float, float]:
    """Share above the threshold; and of the same samples with deviations put in."""
    model = fitted.model
    _, own = own_of(model, matrix)
    if not len(own):
        return 0.0, 0.0
    random = np.random.default_rng(SEED)
    # The same features and signs for both models, by their names.
    moved = matrix[np.linspace(0, len(matrix) - 1, min(PROBES, len(matrix))).astype(int)].copy()
    for row in moved:
        known = np.flatnonzero(np.isfinite(row))
        at = random.choice(known, round(MOVED * len(known)), replace=False)
        row[at] += MOVED_BY * random.choice((-1.0, 1.0), len(at))
    _, probes = own_of(model, moved)
    above = (fitted.score(own) > model.threshold).mean()
    found = (fitted.score(probes) > model.threshold).mean() if len(probes) else 0.0
    return float(above), float(found)
