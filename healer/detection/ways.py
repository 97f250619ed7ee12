"""Four ways to call a node unusual, on the same features: the distance of all together, the isolation forest,
the largest deviation, and what principal components leave over. They stand side by side so that people see
what each is worth.

All give (n,) scores, higher is more unusual, and say which features a score comes from.
"""

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

DISTANCE, FOREST, ROBUST, RESIDUAL = "distance", "forest", "robust", "residual"
WAYS = (DISTANCE, FOREST, ROBUST, RESIDUAL)
#: Makes the median absolute deviation of a normal distribution its standard deviation.
_MAD_TO_SIGMA = 1.4826
#: Features are told in spreads of the peers: less than this share of one is no deviation.
SPREAD_LEAST = 0.25
#: For the distance: the least variance of a component, in that of a feature. What never moved in training is
#: no deviation of its own when it moves by next to nothing.
COMPONENT_LEAST = 0.05
#: Nodes whose contributions are reckoned in one call.
_AT_ONCE = 256

Matrix = NDArray[np.float32]
Floats = NDArray[np.float64]


class Way(Protocol):
    """`matrix` (n, features), no gaps; 0 is "like the peers"."""

    def score(self, matrix: Matrix) -> Floats: ...

    def parts(self, matrix: Matrix) -> Floats:
        """(n, features) at least 0: how much of each score comes from each feature; no unit of their own."""
        ...


class ForestWay:
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
        """By how much the score falls when one feature is like the peers: of two that say the same neither
        falls much; a share tells of this score and of no cause."""
        found = [self._falls(matrix[at : at + _AT_ONCE]) for at in range(0, len(matrix), _AT_ONCE)]
        return np.concatenate(found) if found else np.zeros(matrix.shape)

    def _falls(self, matrix: Matrix) -> Floats:
        n, many = matrix.shape
        changed = np.repeat(matrix, many, axis=0)
        changed[np.arange(n * many), np.tile(np.arange(many), n)] = 0.0
        scores = self.score(np.concatenate([matrix, changed]))
        return np.maximum(scores[:n, np.newaxis] - scores[n:].reshape(n, many), 0)


class DistanceWay:
    """Root mean square of the principal components of some of the features, each in its own spread: the
    distance of Mahalanobis, with a floor for components that hardly move. Small deviations of many features
    add up here, by how they usually move together."""

    def __init__(self, data: Matrix, columns: NDArray[np.intp]) -> None:
        self._columns = columns
        self._middle = data[:, columns].mean(axis=0, dtype=np.float64)
        self._spread = np.maximum(data[:, columns].std(axis=0, dtype=np.float64), SPREAD_LEAST)
        known = (data[:, columns] - self._middle) / self._spread
        sizes, directions = np.linalg.eigh(known.T @ known / max(len(known), 1))
        self._weights = directions / np.sqrt(np.maximum(sizes, COMPONENT_LEAST))

    def score(self, matrix: Matrix) -> Floats:
        apart = self._scaled(matrix) @ self._weights
        return np.sqrt((apart * apart).mean(axis=1))

    def parts(self, matrix: Matrix) -> Floats:
        """The terms of the squared distance, by feature; one that lessens it counts nothing."""
        x = self._scaled(matrix)
        found = np.zeros(matrix.shape)
        found[:, self._columns] = np.maximum(x * (x @ self._weights @ self._weights.T), 0)
        return found

    def _scaled(self, matrix: Matrix) -> Floats:
        return (matrix[:, self._columns] - self._middle) / self._spread


class RobustWay:
    """The largest deviation of one feature from its median of training, in robust spreads (1.4826 MAD)."""

    def __init__(self, data: Matrix) -> None:
        self._middle = np.median(data, axis=0)
        self._spread = np.maximum(
            _MAD_TO_SIGMA * np.median(np.abs(data - self._middle), axis=0), SPREAD_LEAST
        )

    def score(self, matrix: Matrix) -> Floats:
        return self.parts(matrix).max(axis=1, initial=0.0)

    def parts(self, matrix: Matrix) -> Floats:
        return (np.abs(matrix - self._middle) / self._spread).astype(np.float64)


class ResidualWay:
    """Root mean square of what the principal components of 90 % of the variance leave over: a broken
    relation between features shows here, though each of them is usual."""

    def __init__(self, data: Matrix, *, kept: float) -> None:
        self._middle = data.mean(axis=0, dtype=np.float64)
        self._spread = np.maximum(data.std(axis=0, dtype=np.float64), SPREAD_LEAST)
        known = (data - self._middle) / self._spread
        sizes, directions = np.linalg.eigh(known.T @ known)
        share = np.cumsum(sizes[::-1]) / max(float(sizes.sum()), 1e-12)
        many = min(int(np.searchsorted(share, kept)) + 1, len(sizes))
        self._kept = directions[:, ::-1][:, :many]

    def score(self, matrix: Matrix) -> Floats:
        return np.sqrt(self.parts(matrix).mean(axis=1))

    def parts(self, matrix: Matrix) -> Floats:
        x = (matrix - self._middle) / self._spread
        return (x - x @ self._kept @ self._kept.T) ** 2


def shares(parts: Floats) -> Floats:
    """(n, features) that add up to 1 in each row; all 0 where nothing stands out."""
    total = parts.sum(axis=1, keepdims=True)
    return np.divide(parts, total, out=np.zeros_like(parts), where=total > 0)


def largest(shares_of_one: Floats, most: int) -> Iterable[int]:
    """Places of the largest shares, the largest first; none of 0."""
    order = np.argsort(-shares_of_one, kind="stable")[:most]
    return [int(one) for one in order if shares_of_one[one] > 0]
