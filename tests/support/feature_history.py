"""Feature history as the detector keeps it, made up from a seed: nodes that differ for good, and noise."""

from datetime import datetime, timedelta

import numpy as np

from healer.detection.features import NAMES
from healer.model.feature_rows import FeatureRow
from tests.support.measured import CLUSTER

FEATURES = NAMES[:12]
NODES = tuple(f"gpu{index:04}" for index in range(24))
EVERY = timedelta(minutes=30)


def history(
    begin: datetime,
    until: datetime,
    *,
    seed: int = 1,
    moved: float = 0.0,
    noise: float = 0.3,
    cluster: str = CLUSTER,
) -> list[FeatureRow]:
    """A row each half hour. `moved`: the first feature of all nodes lies so much higher."""
    nature = np.random.default_rng(0).normal(size=(len(NODES), len(FEATURES)))
    random = np.random.default_rng([seed, 5])
    found, at = [], begin
    while at < until:
        matrix = nature + noise * random.normal(size=nature.shape)
        matrix[:, 0] += moved
        found.append(FeatureRow(cluster, "h100", "busy", at, NODES, FEATURES, matrix.astype(np.float32)))
        at += EVERY
    return found
