"""The score of a node by a model: an isolation forest over the sizes of the node's residual, which is what
load, model, rack and its own past do not explain. For the reasons: `docs/detection.md`.

Matrices are (n, features) without gaps; 0 is "like the peers". Scores are (n,), higher is more unusual.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from healer.detection.features import OWN_MARK, columns, largest, whole
from healer.model.feature_rows import FeatureRow, Floats, Matrix
from healer.model.telemetry import FOREST, FeatureShare, ScorerResult, Unusual

#: A node is scored if this share of the model's features is known; a feature is used if it was known in this
#: share of the samples.
KNOWN_LEAST = 0.5
#: Features are in units of the peers' spread: less than this share of one is no deviation.
SPREAD_LEAST = 0.25
#: The least variance of a component, relative to a feature's: a component that never moved in training does
#: not deviate when it moves slightly.
COMPONENT_LEAST = 0.05
#: The number of largest components, and of largest features, that the forest gets.
COMPONENTS, LARGEST = 3, 2
TREES, SAMPLES_OF_TREE = 50, 2048


class Residual:
    """Principal components of the features, each in units of its own spread, with a floor for those that
    hardly move: by how the features usually move together (P. Mahalanobis, 1936)."""

    def __init__(self, data: Matrix, used: NDArray[np.intp]) -> None:
        self._used = used
        self._middle = data[:, used].mean(axis=0, dtype=np.float64)
        self._spread = np.maximum(data[:, used].std(axis=0, dtype=np.float64), SPREAD_LEAST)
        scaled = self._scaled(data)
        sizes, directions = np.linalg.eigh(scaled.T @ scaled / max(len(scaled), 1))
        self._weights = directions / np.sqrt(np.maximum(sizes, COMPONENT_LEAST))

    def sizes(self, matrix: Matrix) -> Matrix:
        """(n, 6) logs: the distance (root mean square of the components), the largest components, the largest
        features. Signs and names are dropped: a forest over so few columns finds a rare value in any of
        them."""
        x = self._scaled(matrix)
        apart = x @ self._weights
        distance = np.sqrt((apart * apart).mean(axis=1, keepdims=True))
        found = np.concatenate([distance, _top(apart, COMPONENTS), _top(x, LARGEST)], axis=1)
        return np.ascontiguousarray(np.log1p(found), np.float32)

    def shares(self, matrix: Matrix) -> Floats:
        """(n, features) each feature's share of the squared distance of its row; negative terms are 0. All 0
        for a node in the middle of its class."""
        x = self._scaled(matrix)
        found = np.zeros(matrix.shape)
        found[:, self._used] = np.maximum(x * (x @ self._weights @ self._weights.T), 0)
        total = found.sum(axis=1, keepdims=True)
        return np.divide(found, total, out=np.zeros_like(found), where=total > 0)

    def _scaled(self, matrix: Matrix) -> Floats:
        return (matrix[:, self._used] - self._middle) / self._spread


def _top(values: Floats, most: int) -> Floats:
    """(n, most) the largest values of each row by magnitude, largest first; 0 if there are fewer."""
    found = np.abs(values)
    most_here = min(most, found.shape[1])
    found = np.sort(np.partition(found, -most_here, axis=1)[:, -most_here:], axis=1)[:, ::-1]
    return np.pad(found, ((0, 0), (0, most - most_here)))


class Scorer:
    """scikit-learn's isolation forest (F. Liu, K. Ting, Z. Zhou, 2008), 0 to 1. Beyond its training range,
    where its score no longer rises, the log of the excess distance is added.

    Fitting takes 0.2 s, and the first import 2 s more."""

    def __init__(self, data: Matrix, features: Sequence[str]) -> None:
        from sklearn.ensemble import IsolationForest

        # Features against a node's own past, if there are any, show more than any difference to peers.
        is_own = _of_own_past(features)
        self.residual = Residual(data, np.flatnonzero(is_own if is_own.any() else ~is_own))
        sizes = self.residual.sizes(data)
        self._farthest = float(sizes[:, 0].max())
        most: Any = min(SAMPLES_OF_TREE, len(data))  # its stub has only the default
        self._forest: Any = IsolationForest(n_estimators=TREES, max_samples=most, random_state=0).fit(sizes)

    def score(self, matrix: Matrix) -> Floats:
        sizes = self.residual.sizes(matrix)
        return np.maximum(sizes[:, 0] - self._farthest, 0) - self._forest.score_samples(sizes)


@dataclass(frozen=True, slots=True, eq=False)
class Model:
    """The usual state of one class of nodes. `id`: SHA-256 over class, features and training data."""

    id: str
    hardware: str
    load: str
    features: tuple[str, ...]
    threshold: float
    scorer: Scorer

    def scored(self, matrix: Matrix) -> tuple[NDArray[np.intp], Matrix]:
        """The rows of a matrix of all features that can be scored, and their data: a single unknown feature
        counts as "like the peers"."""
        values = matrix[:, columns(self.features)]
        rows = np.flatnonzero(known_enough(self.features, np.isfinite(values)))
        return rows, np.nan_to_num(values[rows], nan=0.0)


def known_enough(features: Sequence[str], is_known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(rows,) whether enough is known: of the measured features, and of the own past if that is used. A
    repaired node has no past for hours, and is not called usual meanwhile."""
    is_own = _of_own_past(features)
    found = np.full(len(is_known), bool(len(features)))
    for part in (is_own, ~is_own):
        if part.any():
            found &= is_known[:, part].mean(axis=1) >= KNOWN_LEAST
    return found


def _of_own_past(features: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([name.endswith(OWN_MARK) for name in features], bool)


def unusual_of(model: Model, row: FeatureRow) -> list[Unusual]:
    """For people: each node of this moment that the model can score, with the main contributions to its
    score."""
    rows, values = model.scored(whole(row))
    if not len(rows):
        return []
    scores, share = model.scorer.score(values), model.scorer.residual.shares(values)
    of_class = {"cluster": row.cluster, "hardware": row.hardware, "load": row.load, "model": model.id}
    limits = {"threshold": _shown(model.threshold), "middle": _shown(np.median(scores))}

    def result(place: int) -> ScorerResult:
        parts = tuple(
            FeatureShare(
                feature=model.features[at], share=_shown(share[place, at]), away=_shown(values[place, at])
            )
            for at in largest(share[place])
        )
        return ScorerResult(way=FOREST, score=_shown(scores[place]), parts=parts, **limits)

    return [
        Unusual(node=row.nodes[at], at=row.at, scored=len(rows), ways=(result(place),), **of_class)
        for place, at in enumerate(rows.tolist())
    ]


def _shown(value: float | np.floating) -> float:
    return round(float(value), 4)
