"""How a model is trained: from history that is attested healthy, and tested with deviations injected into
samples of nodes that it never saw. Method: `docs/detection.md`."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import sha256
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from healer.detection.features import ALL_NAMES, whole
from healer.detection.scorers import KNOWN_LEAST, Model, Scorer, known_enough
from healer.model.feature_rows import FeatureRow, Floats, Matrix

#: The samples (one node at one moment) that a model needs, and the most that it is trained on.
ROWS_LEAST, ROWS_MAX = 200, 20_000
#: This close to an incident of its own, a node is not attested healthy.
AROUND_INCIDENT = timedelta(hours=1)
#: One node in this many is held out. The threshold is the quantile of their scores plus a share of its
#: distance to the middle: a node's scores of one day resemble each other, so a thousand nodes would exceed
#: the bare quantile every hour.
HELD_OUT, QUANTILE, MARGIN = 3, 0.999, 0.1
#: The share of injected deviations that a model must find: one that learnt that broken is usual does not.
#: This share of a sample's features is moved by this many units, in this many samples.
FOUND_LEAST = 0.5
MOVED, MOVED_BY, PROBES = 0.75, 6.0, 500

#: By node, the periods of its incidents.
Sick = Mapping[str, Sequence[tuple[datetime, datetime]]]


class NoModel(Exception):
    """Too little healthy history for a model, or a model that finds too little."""


class Samples(NamedTuple):
    """Healthy samples of one class without gaps: (samples, features) for fitting, and the held-out ones."""

    hardware: str
    load: str
    features: tuple[str, ...]
    fitted: Matrix
    held_out: Matrix


def train(history: Iterable[FeatureRow], moments: int, sick: Sick) -> Model:
    """A model of one class from its history of this many moments, read once. Deterministic. Raises
    NoModel."""
    return fit(healthy_samples(history, moments, sick))


def healthy_samples(history: Iterable[FeatureRow], moments: int, sick: Sick) -> Samples:
    """The same number of nodes from each moment, drawn among those attested healthy. Raises NoModel."""
    quota = max(1, ROWS_MAX // max(1, moments))
    random = np.random.default_rng(0)
    hardware = load = ""
    nodes: list[str] = []
    parts = [np.zeros((0, len(ALL_NAMES)), np.float32)]
    attested = 0
    for row in history:
        hardware, load = row.hardware, row.load
        well = np.array([at for at, node in enumerate(row.nodes) if not _is_sick(sick, node, row.at)], int)
        attested += len(well)
        taken = well if len(well) <= quota else np.sort(random.choice(well, quota, replace=False))
        parts.append(whole(row)[taken])
        nodes += [row.nodes[at] for at in taken.tolist()]
    if attested < ROWS_LEAST:
        raise NoModel(f"{attested} healthy samples; {ROWS_LEAST} are needed")
    matrix = np.concatenate(parts)[:ROWS_MAX]
    is_known = np.isfinite(matrix)
    used = is_known.mean(axis=0) >= KNOWN_LEAST
    features = tuple(name for name, use in zip(ALL_NAMES, used, strict=True) if use)
    enough = known_enough(features, is_known[:, used])
    if int(enough.sum()) < ROWS_LEAST:
        raise NoModel(f"too many features are unknown in {len(matrix)} samples")
    data = np.nan_to_num(matrix[enough][:, used], nan=0.0)
    held = _held_out(np.array(nodes)[:ROWS_MAX][enough])
    return Samples(hardware, load, features, data[~held], data[held])


def fit(samples: Samples) -> Model:
    """A fitted model. Raises NoModel if it does not find deviations."""
    hardware, load, features, data, held_out = samples
    scorer = Scorer(data, features)
    threshold = threshold_of(scorer.score(held_out))
    if (found := float((scorer.score(_moved(held_out)) > threshold).mean())) < FOUND_LEAST:
        raise NoModel(f"it finds {found:.0%} of the injected deviations; {FOUND_LEAST:.0%} are needed")
    name = sha256(repr((hardware, load, features)).encode() + data.tobytes()).hexdigest()
    return Model(name, hardware, load, features, threshold, scorer)


def threshold_of(scores: Floats) -> float:
    """The threshold, from the scores of held-out samples."""
    middle, top = np.quantile(scores, (0.5, QUANTILE))
    return float(top + MARGIN * (top - middle))


def _is_sick(sick: Sick, node: str, at: datetime) -> bool:
    times = sick.get(node, ())
    return any(begin - AROUND_INCIDENT <= at <= end + AROUND_INCIDENT for begin, end in times)


def _held_out(owners: NDArray) -> NDArray[np.bool_]:
    """(samples,) a third of the nodes; if there are very few nodes, a third of the samples."""
    nodes = sorted(set(owners.tolist()))
    if len(nodes) < 2 * HELD_OUT:
        return np.arange(len(owners)) % HELD_OUT == 0
    ranked = sorted(nodes, key=lambda name: sha256(f"0|{name}".encode()).digest())
    return np.isin(owners, ranked[: len(nodes) // HELD_OUT])


def _moved(healthy: Matrix) -> Matrix:
    """Some of these samples, with injected deviations."""
    random = np.random.default_rng(0)
    found = healthy[np.linspace(0, len(healthy) - 1, min(PROBES, len(healthy))).astype(int)]
    for row in found:
        at = random.choice(len(row), round(MOVED * len(row)), replace=False)
        row[at] += MOVED_BY * random.choice((-1.0, 1.0), len(at))
    return found
