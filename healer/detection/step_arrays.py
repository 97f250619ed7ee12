"""Bare arrays of step times as `Streams` compares them: log ratios to the peers, less each node's nature."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from healer.detection.streams import BIAS_MAX, BIAS_SCALE

#: So many of the nodes may have been slow all through the history and still be seen: what more of them share
#: (the stage of a pipeline, a hardware model) is their nature.
SLOW_FROM_THE_START = 0.1

Floats = NDArray[np.float64]


def logs(values: ArrayLike, name: str) -> Floats:
    """(steps, nodes) log of the times, NaN where unknown or not above 0. ValueError for other shapes."""
    told = np.array(values, dtype=np.float64)
    if told.ndim != 2:
        raise ValueError(f"{name} has shape {told.shape}; (steps, nodes) is needed")
    return np.log(np.where(np.isfinite(told) & (told > 0), told, np.nan))


def nature(history: Floats) -> Floats:
    """(nodes,) by how much each node was above its peers all the time; from `logs`.

    The median of its log ratios, shrunk by how little noisy steps tell (as `Streams.bias`, with the spread of
    these nodes where that is wider), and bounded: by 3 %, or by what more than a tenth of the nodes have.
    """
    x = over_peers(history)
    told = np.isfinite(x).sum(axis=0)
    own = np.array([_median(column) for column in x.T])
    noise = 1.4826 * _median(np.abs(x - own))
    unsure = np.pi / 2 * noise**2 / np.maximum(told, 1)
    spread = (1.4826 * _median(np.abs(own - _median(own)))) ** 2 - _median(unsure)
    weight = max(BIAS_SCALE**2, spread)
    farthest = np.sort(np.abs(own))[::-1]
    many = max(1, int(SLOW_FROM_THE_START * len(own)))
    bound = max(BIAS_MAX, float(farthest[many])) if len(own) > many else BIAS_MAX
    return np.where(told > 0, np.clip(own * weight / (weight + unsure), -bound, bound), 0.0)


def over_peers(x: Floats) -> Floats:
    """Less the median of the step's known nodes; a step without any stays unknown."""
    return x - np.array([_median(row) for row in x])[:, None]


def _median(values: Floats) -> float:
    """Of those known; 0 without any."""
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else 0.0
