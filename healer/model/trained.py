"""Models of what is usual in a class of nodes (GPU model, load), and the feature history they are made from.

Not in `healer.model` itself: these need numpy, which the command line must not load.
"""

from dataclasses import dataclass
from datetime import datetime

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.text import Said, no_words

#: The name of a model's scorer.
FOREST = "forest"
#: Who puts models in force by the schedule.
HEALER = "healer"

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


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """All that makes a model besides its data: the forest, and how a threshold follows from the scores of
    nodes held out (one in `held_out`): their quantile, and `margin` of its distance to the middle on top. A
    node's scores of one day resemble each other, so a thousand nodes pass the bare quantile every hour."""

    n_estimators: int = 50
    max_samples: int = 2048
    seed: int = 0
    quantile: float = 0.999
    margin: float = 0.1
    held_out: int = 3


# Wide: stored as one value: what it was made from, how it was fitted, and the limits that came of it.
class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model of one class. `id` is the SHA-256 over data, features and parameters.

    `rows` samples were used, of `attested` healthy ones among `seen`. The first `fitted` of the data are what
    the scorer is fitted to; the rest gave `threshold`.
    """

    id: str
    cluster: str
    hardware: str
    load: str
    features: tuple[str, ...]
    #: How those features are made (`detection.features.definition`).
    definition: str
    params: Params
    data_hash: str
    threshold: float
    trained_at: datetime
    rows: int
    fitted: int
    attested: int
    seen: int
    nodes: int


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A model with its data: (rows, features), no gaps."""

    model: Model
    data: Matrix


class Version(msgspec.Struct, frozen=True, kw_only=True):
    """A stored model. `in_force_by`: `HEALER`, by its schedule, or the person who had it made."""

    model: Model
    in_force_at: datetime
    in_force_by: str = HEALER


class ClassCheck(msgspec.Struct, frozen=True, kw_only=True):
    """Result of the last check of a class. `tried_at`: when a model was last trained, or could not be;
    `result` is one sentence."""

    cluster: str
    hardware: str
    load: str
    at: datetime
    result: Said = msgspec.field(name="told", default_factory=no_words)
    tried_at: datetime | None = None
