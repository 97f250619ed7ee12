"""How a model is made: from history that is attested healthy, the same bytes every time, and tried on
deviations that are put into samples of nodes that it never saw. Method: `docs/detection.md`."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.features import ALL_NAMES, definition, whole
from healer.detection.scorers import KNOWN_LEAST, Fitted, known_enough
from healer.model.trained import FeatureRow, Matrix, Model, Params, Trained
from healer.text import Said, say

#: Samples (one node at one moment) that a model needs, and what it is made from at most.
ROWS_LEAST = 200
ROWS_MAX = 20_000
#: So close to an incident of its own a node is not attested healthy.
AROUND_INCIDENT = timedelta(hours=1)

#: Of the deviations that are put into healthy samples a model must find so many: one that learnt that broken
#: is usual does not. This share of a sample's features is moved by so many units, in so many samples.
FOUND_LEAST = 0.5
MOVED, MOVED_BY, PROBES = 0.75, 6.0, 500

#: By node, from when to when it had incidents.
Sick = Mapping[str, Sequence[tuple[datetime, datetime]]]


class NoModel(Exception):
    """Too little healthy history for a model, or one that finds too little. The text is a sentence for
    people."""


@dataclass(slots=True)
class Sampled:
    """Samples of a history: matrices of all features with their nodes, and how many there were."""

    first: FeatureRow | None = None
    nodes: list[str] = field(default_factory=list)
    parts: list[Matrix] = field(default_factory=list)
    attested: int = 0
    seen: int = 0

    @property
    def matrix(self) -> Matrix:
        """(rows, all features), NaN unknown."""
        empty = np.zeros((0, len(ALL_NAMES)), np.float32)
        return np.concatenate(self.parts)[:ROWS_MAX] if self.parts else empty


def healthy(history: Iterable[FeatureRow], moments: int, sick: Sick, seed: int = 0) -> Sampled:
    """The same number of nodes from each of so many moments, drawn among those attested healthy."""
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


def _is_sick(times: Collection[tuple[datetime, datetime]], at: datetime) -> bool:
    return any(begin - AROUND_INCIDENT <= at <= end + AROUND_INCIDENT for begin, end in times)


# --- making one ---


def train(
    history: Iterable[FeatureRow], moments: int, sick: Sick, now: datetime, params: Params | None = None
) -> Trained:
    """A model of one class from its history of so many moments, read once.

    Raises NoModel. The same history gives the same model, byte for byte.
    """
    params = params or Params()
    sampled = healthy(history, moments, sick, params.seed)
    first, features, data, owners = _enough_of(sampled)
    held = _held_out(owners, params)
    data = np.ascontiguousarray(np.concatenate([data[~held], data[held]]), np.float32)
    data_hash, made = hashlib.sha256(data.tobytes()).hexdigest(), definition(features)
    fitted = int((~held).sum())
    made_of = [first.cluster, first.hardware, first.load, features, made, data_hash, fitted]
    made_of.append(msgspec.to_builtins(params))
    scorer, unseen = Fitted.to(data[:fitted], features, params), data[fitted:]
    middle, top = np.quantile(scorer.score(unseen), (0.5, params.quantile))
    threshold = float(top + params.margin * (top - middle))
    if (found := _found(scorer, threshold, unseen, params.seed)) < FOUND_LEAST:
        what = _class_words(first)
        raise NoModel(say("detection.model_finds_little", what=what, share=found, least=FOUND_LEAST))
    model = Model(
        id=hashlib.sha256(json.dumps(made_of).encode()).hexdigest(),
        cluster=first.cluster,
        hardware=first.hardware,
        load=first.load,
        features=features,
        definition=made,
        params=params,
        data_hash=data_hash,
        threshold=threshold,
        trained_at=now,
        rows=len(data),
        fitted=fitted,
        attested=sampled.attested,
        seen=sampled.seen,
        nodes=len(set(owners.tolist())),
    )
    return Trained(model, data)


def _enough_of(sampled: Sampled) -> tuple[FeatureRow, tuple[str, ...], Matrix, NDArray]:
    """The first row, the features that are known often enough, the samples without gaps, and their nodes."""
    first = sampled.first
    if first is None or sampled.attested < ROWS_LEAST:
        raise NoModel(
            say(
                "detection.too_few_samples",
                what=_class_words(first),
                n=sampled.attested,
                of=sampled.seen,
                least=ROWS_LEAST,
            )
        )
    matrix, owners = sampled.matrix, np.array(sampled.nodes)[:ROWS_MAX]
    is_known = np.isfinite(matrix)
    used = is_known.mean(axis=0) >= KNOWN_LEAST
    features = tuple(name for name, use in zip(ALL_NAMES, used, strict=True) if use)
    enough = known_enough(features, is_known[:, used])
    if int(enough.sum()) < ROWS_LEAST:
        raise NoModel(say("detection.too_many_unknown", what=_class_words(first), n=sampled.seen))
    return first, features, np.nan_to_num(matrix[enough][:, used], nan=0.0), owners[enough]


def _class_words(row: FeatureRow | None) -> Said:
    if row is None:
        return say("detection.no_class")
    hardware = row.hardware or say("detection.all_nodes")
    return say("detection.class_of", hardware=hardware, load=say(f"detection.load_{row.load}"))


def _held_out(owners: NDArray, params: Params) -> NDArray[np.bool_]:
    """(rows,) a third of the nodes; of very few nodes a third of the samples."""
    nodes = sorted(set(owners.tolist()))
    if len(nodes) < 2 * params.held_out:
        return np.arange(len(owners)) % params.held_out == 0
    ranked = sorted(nodes, key=lambda name: hashlib.sha256(f"{params.seed}|{name}".encode()).digest())
    return np.isin(owners, ranked[: len(nodes) // params.held_out])


def usable(model: Model) -> bool:
    """Whether this version makes the model's features as they were made for it."""
    return set(model.features) <= set(ALL_NAMES) and definition(model.features) == model.definition


def _found(fitted: Fitted, threshold: float, healthy: Matrix, seed: int) -> float:
    """Share of samples above the threshold after deviations were put into them."""
    random = np.random.default_rng(seed)
    moved = healthy[np.linspace(0, len(healthy) - 1, min(PROBES, len(healthy))).astype(int)]
    for row in moved:
        at = random.choice(len(row), round(MOVED * len(row)), replace=False)
        row[at] += MOVED_BY * random.choice((-1.0, 1.0), len(at))
    return float((fitted.score(moved) > threshold).mean())
