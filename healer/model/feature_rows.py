"""The feature history that models of classes of nodes (GPU model, load) are made from.

Not in `healer.model` itself: it needs numpy, which the command line must not load.
"""

from dataclasses import dataclass
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRow:
    """The features of one class of nodes at one moment. `matrix`: (nodes, features), NaN unknown."""

    cluster: str
    hardware: str
    load: str
    at: datetime
    nodes: tuple[str, ...]
    features: tuple[str, ...]
    matrix: Matrix
