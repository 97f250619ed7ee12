"""What a model scores nodes with: an isolation forest over the sizes of a node's residual, what load, model,
rack and its own past do not explain. Why these: `docs/detection.md`.

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

#: A node is scored if this share of the model's features is known, and a feature is used if it was known in
#: this share of the samples.
KNOWN_LEAST = 0.5
#: Features are in spreads of the peers: less than this share of one is no deviation.
SPREAD_LEAST = 0.25
#: The least variance of a component, in that of a feature: what never moved in training does not deviate when
#: it moves by next to nothing.
COMPONENT_LEAST = 0.05
#: Components, and features, of which the largest are given to the forest.
COMPONENTS, LARGEST = 3, 2
TREES, SAMPLES_OF_TREE = 50, 2048


class Residual:
    """Principal components of the features, each in its own spread, with a floor for those that hardly move:
    by how the features usually move together (P. Mahalanobis, 1936)."""

    def __init__(self, data: Matrix, used: NDArray[np.intp]) -> None:
        self._used = used
        self._middle = data[:, used].mean(axis=0, dtype=np.float64)
        self._spread = np.maximum(data[:, used].std(axis=0, dtype=np.float64), SPREAD_LEAST)
        scaled = self._scaled(data)
        sizes, directions = np.linalg.eigh(scaled.T @ scaled / max(len(scaled), 1))
        self._weights = directions / np.sqrt(np.maximum(sizes, COMPONENT_LEAST))

    def sizes(self, matrix: Matrix) -> Matrix:
        """(n, 6) logs: the distance (root mean square of the components), the largest components, the largest
        features. Signs and names are left out: a forest of so few columns finds what is rare in any one."""
        x = self._scaled(matrix)
        apart = x @ self._weights
        distance = np.sqrt((apart * apart).mean(axis=1, keepdims=True))
        found = np.concatenate([distance, _top(apart, COMPONENTS), _top(x, LARGEST)], axis=1)
        return np.ascontiguousarray(np.log1p(found), np.float32)

    def shares(self, matrix: Matrix) -> Floats:
        """(n, features) the terms of the squared distance, by feature, as shares of their sum in each row;
        those that lessen it are 0. Of a node in the middle of its class they are all 0."""
        x = self._scaled(matrix)
        found = np.zeros(matrix.shape)
        found[:, self._used] = np.maximum(x * (x @ self._weights @ self._weights.T), 0)
        total = found.sum(axis=1, keepdims=True)
        return np.divide(found, total, out=np.zeros_like(found), where=total > 0)

    def _scaled(self, matrix: Matrix) -> Floats:
        return (matrix[:, self._used] - self._middle) / self._spread


def _top(values: Floats, most: int) -> Floats:
    """(n, most) the largest of each row, whatever their sign, the largest first; 0 where there are fewer."""
    found = np.abs(values)
    most_here = min(most, found.shape[1])
    found = np.sort(np.partition(found, -most_here, axis=1)[:, -most_here:], axis=1)[:, ::-1]
    return np.pad(found, ((0, 0), (0, most - most_here)))


class Scorer:
    """scikit-learn's isolation forest (F. Liu, K. Ting, Z. Zhou, 2008), 0 to 1, and beyond all that it was
    grown from, where its score no longer rises, the further distance as a log.

    Growing it takes 0.2 s, and the first import 2 s more."""

    def __init__(self, data: Matrix, features: Sequence[str]) -> None:
        from sklearn.ensemble import IsolationForest

        # Features against a node's own past, where there are any, show more than any difference to peers.
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
    """What is usual in one class of nodes. `id`: SHA-256 over class, features and the data fitted to."""

    id: str
    hardware: str
    load: str
    features: tuple[str, ...]
    threshold: float
    scorer: Scorer

    def scored(self, matrix: Matrix) -> tuple[NDArray[np.intp], Matrix]:
        """Rows of a matrix of all features that can be scored, and what is scored of them: a single feature
        that is unknown counts as "like the peers"."""
        values = matrix[:, columns(self.features)]
        rows = np.flatnonzero(known_enough(self.features, np.isfinite(values)))
        return rows, np.nan_to_num(values[rows], nan=0.0)


def known_enough(features: Sequence[str], is_known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(rows,) whether enough is known: of what is measured, and of the own past where that is used. A
    repaired node has no past for hours; it is not called usual meanwhile."""
    is_own = _of_own_past(features)
    found = np.full(len(is_known), bool(len(features)))
    for part in (is_own, ~is_own):
        if part.any():
            found &= is_known[:, part].mean(axis=1) >= KNOWN_LEAST
    return found


def _of_own_past(features: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([name.endswith(OWN_MARK) for name in features], bool)


def unusual_of(model: Model, row: FeatureRow) -> list[Unusual]:
    """For people: each node of this moment that the model can score, with what the score comes from."""
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
