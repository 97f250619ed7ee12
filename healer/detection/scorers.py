"""What a model scores nodes with: the distance of all features together, which decides, and the isolation
forest for comparison. Why these: `docs/detection.md`.

Matrices are (n, features) without gaps; 0 is "like the peers". Scores are (n,), higher is more unusual.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from healer.detection.features import OWN_MARK, columns, whole
from healer.model.telemetry import FeatureShare, ScorerResult, Unusual
from healer.model.trained import (
    DECIDES,
    DISTANCE,
    FOREST,
    FeatureRow,
    Floats,
    Matrix,
    Model,
    Params,
    Trained,
)

#: A node is scored if this share of the model's features is known, and a feature is used if it was known in
#: this share of the samples.
KNOWN_LEAST = 0.5
#: Features are in spreads of the peers: less than this share of one is no deviation.
SPREAD_LEAST = 0.25
#: The least variance of a component, in that of a feature: what never moved in training does not deviate when
#: it moves by next to nothing.
COMPONENT_LEAST = 0.05
#: Nodes whose contributions the forest computes in one call.
_AT_ONCE = 256
#: Features named for each score.
_SHOWN = 5


class Scorer(Protocol):
    def score(self, matrix: Matrix) -> Floats: ...

    def parts(self, matrix: Matrix) -> Floats:
        """(n, features) at least 0: how much of each score comes from each feature; no unit of their own."""
        ...


class ForestScorer:
    """scikit-learn's isolation forest (F. Liu, K. Ting, Z. Zhou, 2008), 0 to 1."""

    def __init__(self, data: Matrix, *, trees: int, samples: int, seed: int) -> None:
        from sklearn.ensemble import IsolationForest

        self._forest: Any = IsolationForest(
            n_estimators=trees,
            max_samples=min(samples, len(data)),  # pyright: ignore[reportArgumentType] - its stub has only the default
            contamination="auto",
            n_jobs=1,
            random_state=seed,
        ).fit(np.ascontiguousarray(data, np.float32))

    def score(self, matrix: Matrix) -> Floats:
        return -self._forest.score_samples(np.ascontiguousarray(matrix, np.float32))

    def parts(self, matrix: Matrix) -> Floats:
        """By how much the score falls when one feature is like the peers. Of two equivalent features neither
        falls much."""
        found = [self._falls(matrix[at : at + _AT_ONCE]) for at in range(0, len(matrix), _AT_ONCE)]
        return np.concatenate(found) if found else np.zeros(matrix.shape)

    def _falls(self, matrix: Matrix) -> Floats:
        n, many = matrix.shape
        changed = np.repeat(matrix, many, axis=0)
        changed[np.arange(n * many), np.tile(np.arange(many), n)] = 0.0
        scores = self.score(np.concatenate([matrix, changed]))
        return np.maximum(scores[:n, np.newaxis] - scores[n:].reshape(n, many), 0)


class DistanceScorer:
    """Root mean square of the principal components of some of the features, each in its own spread: the
    distance of Mahalanobis, with a floor for components that hardly move. Small deviations of many features
    add up here, by how they usually move together."""

    def __init__(self, data: Matrix, used: NDArray[np.intp]) -> None:
        self._used = used
        self._middle = data[:, used].mean(axis=0, dtype=np.float64)
        self._spread = np.maximum(data[:, used].std(axis=0, dtype=np.float64), SPREAD_LEAST)
        scaled = self._scaled(data)
        sizes, directions = np.linalg.eigh(scaled.T @ scaled / max(len(scaled), 1))
        self._weights = directions / np.sqrt(np.maximum(sizes, COMPONENT_LEAST))

    def score(self, matrix: Matrix) -> Floats:
        apart = self._scaled(matrix) @ self._weights
        return np.sqrt((apart * apart).mean(axis=1))

    def parts(self, matrix: Matrix) -> Floats:
        """The terms of the squared distance, by feature; those that lessen it are 0."""
        x = self._scaled(matrix)
        found = np.zeros(matrix.shape)
        found[:, self._used] = np.maximum(x * (x @ self._weights @ self._weights.T), 0)
        return found

    def _scaled(self, matrix: Matrix) -> Floats:
        return (matrix[:, self._used] - self._middle) / self._spread


def fit(data: Matrix, features: Sequence[str], params: Params) -> dict[str, Scorer]:
    # Features against a node's own past, where there are any, show more than any difference to peers.
    is_own = _of_own_past(features)
    return {
        DISTANCE: DistanceScorer(data, np.flatnonzero(is_own if is_own.any() else ~is_own)),
        FOREST: ForestScorer(data, trees=params.n_estimators, samples=params.max_samples, seed=params.seed),
    }


class Fitted:
    """A model ready to score. Growing its forest takes 0.1 s, and the first import 2 s more."""

    def __init__(self, trained: Trained) -> None:
        self.model = model = trained.model
        self.scorers = fit(trained.data[: model.fitted], model.features, model.params)

    def score(self, matrix: Matrix) -> Floats:
        """By the scorer that decides."""
        return self.scorers[DECIDES].score(matrix)

    def above(self, matrix: Matrix) -> NDArray[np.bool_]:
        return self.score(matrix) > self.model.threshold


def scored_of(model: Model, matrix: Matrix) -> tuple[NDArray[np.intp], Matrix]:
    """Rows of a matrix of all features that this model can score, and what it scores: a single feature that
    is unknown counts as "like the peers"."""
    values = matrix[:, columns(model.features)]
    rows = np.flatnonzero(known_enough(model.features, np.isfinite(values)))
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


# --- side by side, for people ---


def side_by_side(fitted: Fitted, row: FeatureRow) -> list[Unusual]:
    """Each node of this moment that the model can score, by each scorer, with what the score comes from."""
    model = fitted.model
    rows, values = scored_of(model, whole(row))
    if not len(rows):
        return []
    scores = {name: scorer.score(values) for name, scorer in fitted.scorers.items()}
    middle = {name: _shown(np.median(score)) for name, score in scores.items()}
    parts = {name: shares(scorer.parts(values)) for name, scorer in fitted.scorers.items()}

    def result(name: str, place: int) -> ScorerResult:
        return ScorerResult(
            way=name,
            score=_shown(scores[name][place]),
            threshold=_shown(model.limit(name).threshold),
            middle=middle[name],
            decides=name == DECIDES,
            parts=tuple(
                FeatureShare(
                    feature=model.features[at],
                    share=_shown(parts[name][place, at]),
                    away=_shown(values[place, at]),
                )
                for at in largest(parts[name][place], _SHOWN)
            ),
        )

    return [
        Unusual(
            cluster=row.cluster,
            node=row.nodes[at],
            at=row.at,
            hardware=model.hardware,
            load=model.load,
            model=model.id,
            scored=len(rows),
            ways=tuple(result(name, place) for name in scores),
        )
        for place, at in enumerate(rows.tolist())
    ]


def shares(parts: Floats) -> Floats:
    """(n, features) that add up to 1 in each row; all 0 where nothing is unusual."""
    total = parts.sum(axis=1, keepdims=True)
    return np.divide(parts, total, out=np.zeros_like(parts), where=total > 0)


def largest(shares_of_node: Floats, most: int) -> list[int]:
    """Places of the largest shares, the largest first; none of 0."""
    order = np.argsort(-shares_of_node, kind="stable")[:most]
    return [int(at) for at in order if shares_of_node[at] > 0]


def _shown(value: float | np.floating) -> float:
    return round(float(value), 4)
