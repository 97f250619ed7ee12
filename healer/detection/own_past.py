"""How far a node is from its own past: its difference to the peers now, less where that lay for days.

Nodes of one kind differ for good (paste, place in the rack, how a chip turned out) by more than a mild fault
moves them. That nature is taken off here. Afterwards nodes are compared twice more: a node that gets other
peers with its next job lies elsewhere among them, and so do all of that job; and where the air grows warmer a
whole rack moves. What half of a job or of a rack does together is no node's own.
"""

import numpy as np
from numpy.typing import NDArray

from healer.detection.features import CUT, OWN_WEIGHT
from healer.observations.groups import LEAST_OF_RACK, Groups, peer_median

Matrix = NDArray[np.float32]


class OwnPast:
    """Smooth differences of all nodes to their own past, by the rows of the node axis. One thread owns it."""

    def __init__(self, features: int) -> None:
        self._level = np.zeros((0, features), np.float32)
        self._samples = np.zeros((0, features), np.int32)

    def sample(self, away: Matrix) -> Matrix:
        """Takes one sample (nodes, features); returns what is smooth now, NaN where unknown. What was unknown
        begins anew: the mean of what there is, until that is long enough."""
        more = len(away) - len(self._level)
        if more > 0:
            self._level = np.pad(self._level, ((0, more), (0, 0)))
            self._samples = np.pad(self._samples, ((0, more), (0, 0)))
        known = np.isfinite(away)
        self._samples = np.where(known, self._samples + 1, 0)
        weight = np.maximum(OWN_WEIGHT, 1 / np.maximum(self._samples, 1))
        step = weight * (np.where(known, away, 0) - self._level)
        self._level = np.where(known, self._level + step, 0).astype(np.float32)
        return np.where(known, self._level, np.nan).astype(np.float32)

    def forget(self, rows: NDArray[np.int64]) -> None:
        """These nodes begin anew."""
        self._samples[rows[rows < len(self._samples)]] = 0


def against_own_past(matrix: Matrix, usual: Matrix, peers: Groups, racks: Groups) -> Matrix:
    """(nodes, features) of the same; `usual` is where each lay before, NaN where not known.

    NaN where a node's past or that of its peers is unknown.
    """
    own = [_alone(away, peers, racks) for away in (matrix - usual).astype(np.float64).T]
    return np.clip(np.stack(own, axis=1), -CUT, CUT).astype(np.float32)


def _alone(away: NDArray[np.float64], peers: Groups, racks: Groups) -> NDArray[np.float64]:
    alone = away - peer_median(away, peers)
    beside = peer_median(alone, racks, LEAST_OF_RACK)
    return alone - np.where(np.isfinite(beside), beside, 0.0)
