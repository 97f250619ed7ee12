"""Models of the isolation forest: trained on history that is attested healthy, the same bytes every time."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.features import ALL_NAMES, OWN_MARK, columns, definition
from healer.detection.ways import (
    DISTANCE,
    FOREST,
    RESIDUAL,
    ROBUST,
    DistanceWay,
    ForestWay,
    Matrix,
    ResidualWay,
    RobustWay,
    Way,
)

#: Samples (one node at one moment) that a model needs, and what it is made from at most.
ROWS_LEAST = 200
ROWS_MAX = 20_000
#: A feature has to be known in this share of the samples, a node in this share of the model's features.
KNOWN_LEAST = 0.5
#: This close to an incident of its own a node is not attested healthy.
AROUND_INCIDENT = timedelta(hours=1)
#: Nodes of which one is held out: the threshold comes from nodes that the forest never saw.
HELD_OUT = 3
#: Above the quantile by this share of its distance to the middle: a node's scores of one day resemble each
#: other, so a thousand nodes pass the bare quantile every hour.
MARGIN = 0.25
QUANTILES = (0.5, 0.9, 0.99, 0.999)
#: The way whose threshold raises `unusual-node`. The others stand beside it.
DECIDES = DISTANCE


class Params(msgspec.Struct, frozen=True, kw_only=True):
    """All that makes a model besides its data."""

    n_estimators: int = 100
    max_samples: int = 256
    seed: int = 0
    quantile: float = 0.999
    margin: float = MARGIN
    held_out: int = HELD_OUT
    #: Of the variance, the share that the principal components keep.
    kept: float = 0.9


@dataclass(frozen=True, slots=True, eq=False)
class FeatureRow:
    """The features of one class of nodes at one moment. `matrix`: (nodes, features) float32, NaN unknown."""

    cluster: str
    hardware: str
    load: str
    at: datetime
    nodes: tuple[str, ...]
    features: tuple[str, ...]
    matrix: NDArray[np.float32]


class Limit(msgspec.Struct, frozen=True):
    """Where a way's scores lie: the threshold, and the score by quantile."""

    threshold: float
    quantiles: dict[str, float]


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """One model of one class. `id` is the SHA-256 over data, features and parameters.

    `rows` samples were used, of `attested` healthy ones among `seen`; the first `fitted` of the data are what
    the forest grows from, the rest gave `threshold` and `quantiles` (score by quantile), and those of the
    other ways to look at the same features (`beside`).
    """

    id: str
    cluster: str
    hardware: str
    load: str
    features: tuple[str, ...]
    #: How those features are made (`features.definition`).
    definition: str
    params: Params
    data_hash: str
    threshold: float
    quantiles: dict[str, float]
    trained_at: datetime
    rows: int
    fitted: int
    attested: int
    seen: int
    nodes: int
    beside: dict[str, Limit] = {}

    def limit(self, way: str) -> "Limit":
        return Limit(self.threshold, self.quantiles) if way == DECIDES else self.beside[way]


@dataclass(frozen=True, slots=True, eq=False)
class Trained:
    """A model with its data: (rows, features) float32, no gaps."""

    model: Model
    data: NDArray[np.float32]


class TooLittle(Exception):
    """Not enough healthy history for a model. The text is one sentence for people."""


class Fitted:
    """A model ready to score. To grow its forest takes 0.1 s, and 2 s more for the first import."""

    def __init__(self, trained: Trained) -> None:
        self.model = trained.model
        model = trained.model
        self.ways = fitted_ways(trained.data[: model.fitted], model.features, model.params)

    def score(self, matrix: Matrix) -> NDArray[np.float64]:
        """(n,) by the way that decides. `matrix` (n, features of the model), no gaps."""
        return self.ways[DECIDES].score(matrix)


def fitted_ways(data: Matrix, features: Sequence[str], params: Params) -> dict[str, Way]:
    return {
        DISTANCE: DistanceWay(data, _of_distance(features)),
        FOREST: ForestWay(data, trees=params.n_estimators, samples=params.max_samples, seed=params.seed),
        ROBUST: RobustWay(data),
        RESIDUAL: ResidualWay(data, kept=params.kept),
    }


def _of_distance(features: Sequence[str]) -> NDArray[np.intp]:
    """Where nodes have a past of their own known, that alone: it tells more than any difference to peers.
    Else (idle nodes) all."""
    own = [index for index, name in enumerate(features) if name.endswith(OWN_MARK)]
    return np.array(own or range(len(features)), np.intp)


Sick = Mapping[str, Sequence[tuple[datetime, datetime]]]


def train(
    history: Iterable[FeatureRow], moments: int, sick: Sick, now: datetime, params: Params | None = None
) -> Trained:
    """A model of one class from its history of so many moments, read once. `sick`: by node, from when to when
    it had incidents.

    Raises TooLittle. The same history gives the same model, byte for byte.
    """
    params = params or Params()
    sampled = healthy(history, moments, sick, params.seed)
    first = sampled.first
    if first is None or sampled.attested < ROWS_LEAST:
        what = f"{first.hardware or 'all nodes'}, {first.load}" if first else "no class"
        raise TooLittle(
            f"{what}: {sampled.attested} healthy samples of {sampled.seen}, and {ROWS_LEAST} are needed; "
            f"a node gives one every 5 min, and every 30 s in the first 10 min"
        )
    matrix, owners = sampled.matrix, np.array(sampled.nodes)[:ROWS_MAX]
    known = np.isfinite(matrix)
    used = known.mean(axis=0) >= KNOWN_LEAST
    features = tuple(name for name, use in zip(ALL_NAMES, used, strict=True) if use)
    enough = _enough(features, known[:, used])
    if int(enough.sum()) < ROWS_LEAST:
        raise TooLittle(
            f"{first.hardware}, {first.load}: too many features are unknown in {sampled.seen} samples"
        )
    data, owners = np.nan_to_num(matrix[enough][:, used], nan=0.0), owners[enough]
    held = _held_out(owners, params)
    data = np.ascontiguousarray(np.concatenate([data[~held], data[held]]), np.float32)
    fitted = int((~held).sum())
    nodes = len(set(owners.tolist()))
    return _model(sampled, features, params, data, fitted, nodes=nodes, now=now)


@dataclass(slots=True)
class Sampled:
    """What was taken from a history: matrices of all features with their nodes, and how many there were."""

    first: FeatureRow | None = None
    nodes: list[str] = field(default_factory=list)
    parts: list[NDArray[np.float32]] = field(default_factory=list)
    attested: int = 0
    seen: int = 0

    @property
    def matrix(self) -> Matrix:
        """(rows, all features), NaN unknown."""
        empty = np.zeros((0, len(ALL_NAMES)), np.float32)
        return np.concatenate(self.parts)[:ROWS_MAX] if self.parts else empty


def healthy(history: Iterable[FeatureRow], moments: int, sick: Sick, seed: int = 0) -> Sampled:
    """The same number of nodes from each moment, drawn among those attested healthy."""
    quota = max(1, ROWS_MAX // max(1, moments))
    random = np.random.default_rng(seed)
    found = Sampled()
    for row in history:
        found.first = found.first or row
        well = [i for i, node in enumerate(row.nodes) if not _is_sick(sick.get(node, ()), row.at)]
        found.seen += len(row.nodes)
        found.attested += len(well)
        taken = np.array(well, int)
        if len(taken) > quota:
            taken = np.sort(random.choice(taken, quota, replace=False))
        found.parts.append(whole(row)[taken])
        found.nodes += [row.nodes[i] for i in taken.tolist()]
    return found


def whole(row: FeatureRow) -> Matrix:
    """(nodes, all features) of this version; what the row does not have is unknown."""
    found = np.full((len(row.nodes), len(ALL_NAMES)), np.nan, np.float32)
    known = [name for name in row.features if name in ALL_NAMES]
    found[:, columns(known)] = row.matrix[:, [row.features.index(name) for name in known]]
    return found


def own_of(model: Model, matrix: Matrix) -> tuple[NDArray[np.intp], Matrix]:
    """Rows of a matrix of all features that this model can score, and what it scores: one feature that is
    unknown counts as "like the peers"."""
    own = matrix[:, columns(model.features)]
    rows = np.flatnonzero(_enough(model.features, np.isfinite(own)))
    return rows, np.nan_to_num(own[rows], nan=0.0)


def _enough(features: Sequence[str], known: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """(rows,) whether enough is known: of what is measured, and of the own past where that is looked at. A
    node that was repaired has none for hours; it is not called usual meanwhile."""
    own = np.array([name.endswith(OWN_MARK) for name in features], bool)
    found = np.full(len(known), bool(len(features)))
    for part in (own, ~own):
        if part.any():
            found &= known[:, part].mean(axis=1) >= KNOWN_LEAST
    return found


def _is_sick(times: Collection[tuple[datetime, datetime]], at: datetime) -> bool:
    return any(begin - AROUND_INCIDENT <= at <= end + AROUND_INCIDENT for begin, end in times)


def _held_out(owners: NDArray, params: Params) -> NDArray[np.bool_]:
    """(rows,) a third of the nodes; of very few nodes a third of the samples."""
    nodes = sorted(set(owners.tolist()))
    if len(nodes) < 2 * params.held_out:
        return np.arange(len(owners)) % params.held_out == 0
    ranked = sorted(nodes, key=lambda name: hashlib.sha256(f"{params.seed}|{name}".encode()).digest())
    return np.isin(owners, ranked[: len(nodes) // params.held_out])


def _model(
    sampled: Sampled,
    features: tuple[str, ...],
    params: Params,
    data: NDArray[np.float32],
    fitted: int,
    *,
    nodes: int,
    now: datetime,
) -> Trained:
    first = sampled.first
    assert first is not None
    data_hash = hashlib.sha256(data.tobytes()).hexdigest()
    made = definition(features)
    made_of = [first.cluster, first.hardware, first.load, features, made, data_hash, fitted]
    made_of.append(msgspec.to_builtins(params))
    ways = fitted_ways(data[:fitted], features, params)
    limits = {name: _limit(way.score(data[fitted:]), params) for name, way in ways.items()}
    decides = limits.pop(DECIDES)
    model = Model(
        id=hashlib.sha256(json.dumps(made_of).encode()).hexdigest(),
        cluster=first.cluster,
        hardware=first.hardware,
        load=first.load,
        features=features,
        definition=made,
        params=params,
        data_hash=data_hash,
        threshold=decides.threshold,
        quantiles=decides.quantiles,
        beside=limits,
        trained_at=now,
        rows=len(data),
        fitted=fitted,
        attested=sampled.attested,
        seen=sampled.seen,
        nodes=nodes,
    )
    return Trained(model, data)


def _limit(scores: NDArray[np.float64], params: Params) -> Limit:
    middle, top = np.quantile(scores, (0.5, params.quantile))
    quantiles = {str(q): float(np.quantile(scores, q)) for q in QUANTILES}
    return Limit(float(top + params.margin * (top - middle)), quantiles)
