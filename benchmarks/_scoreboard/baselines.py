"""What the score has to beat: four known methods on the same samples. (samples, features) -> (samples,)."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
#: Of the variance of training, the share that the principal components keep.
KEPT = 0.9
_LEAST = 1e-3


def median_mad(train: Floats, test: Floats) -> Floats:
    """The farthest feature from its median of training, in robust deviations (1.4826 MAD)."""
    middle = np.median(train, axis=0)
    spread = 1.4826 * np.median(np.abs(train - middle), axis=0)
    return (np.abs(test - middle) / np.maximum(spread, _LEAST)).max(axis=1)


def isolation_forest(train: Floats, test: Floats) -> Floats:
    """scikit-learn's, as it comes (F. Liu, K. Ting, Z. Zhou, 2008)."""
    from sklearn.ensemble import IsolationForest

    return -IsolationForest(random_state=0).fit(train).score_samples(test)


def pca_residual(train: Floats, test: Floats) -> Floats:
    """Squared distance from the subspace of 90 % of the variance, in units of training's 99.9 % of it."""
    spread = train.std(axis=0)
    scale = np.where(spread > 1e-6, spread, 1.0)
    known, new = (train - train.mean(axis=0)) / scale, (test - train.mean(axis=0)) / scale
    _, sizes, directions = np.linalg.svd(known, full_matrices=False)
    share = np.cumsum(sizes**2) / max(float((sizes**2).sum()), 1e-12)
    kept = directions[: int(np.searchsorted(share, KEPT)) + 1]

    def residual(x: Floats) -> Floats:
        return ((x - x @ kept.T @ kept) ** 2).sum(axis=1)

    return residual(new) / max(float(np.quantile(residual(known), 0.999)), 1e-9)


def ecod(train: Floats, test: Floats) -> Floats:
    """Empirical tails added up over the features as if these were independent (Z. Li et al., *ECOD:
    unsupervised outlier detection using empirical cumulative distribution functions*, 2022): the largest of
    all left tails, all right tails, and the tail towards which each feature is skewed. Distribution and
    skewness are training's; what training never saw counts as one in its samples plus one."""
    n = len(train)
    middle = train - train.mean(axis=0)
    skewed = (middle**3).mean(axis=0) / np.maximum(train.std(axis=0), 1e-12) ** 3
    left, right, skew = np.zeros(len(test)), np.zeros(len(test)), np.zeros(len(test))
    for feature in range(train.shape[1]):
        known = np.sort(train[:, feature])
        below = np.searchsorted(known, test[:, feature], side="right")
        above = n - np.searchsorted(known, test[:, feature], side="left")
        low, high = (-np.log((count + 1) / (n + 1)) for count in (below, above))
        left, right = left + low, right + high
        skew += low if skewed[feature] < 0 else high
    return np.maximum(np.maximum(left, right), skew)


def random_numbers(train: Floats, test: Floats) -> Floats:
    """What any measure has to call bad."""
    return np.random.default_rng([len(train), len(test)]).random(len(test))


ALL = {
    "median / MAD": median_mad,
    "isolation forest, raw": isolation_forest,
    "PCA residual": pca_residual,
    "ECOD": ecod,
    "random numbers": random_numbers,
}
