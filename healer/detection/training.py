"""The life of a model: trained on history that is attested healthy (the same bytes every time), trained again
when it is due or its features shift, compared with the one in force. Method: `docs/detection.md`."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import NormalDist

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.features import ALL_NAMES, columns, definition, feature_words, whole
from healer.detection.scorers import KNOWN_LEAST, Fitted, known_enough, scored_of
from healer.model.trained import (
    FeatureRow,
    Floats,
    Matrix,
    Model,
    ModelComparison,
    Params,
    ShiftedFeature,
    Trained,
    Version,
)
from healer.text import NO_WORDS, Said, say

#: Samples (one node at one moment) that a model needs, and what it is made from at most.
ROWS_LEAST = 200
ROWS_MAX = 20_000
#: So close to an incident of its own a node is not attested healthy.
AROUND_INCIDENT = timedelta(hours=1)
QUANTILES = (0.5, 0.9, 0.99, 0.999)

#: A model is trained this often, and after a shift once in so long; a failed attempt is repeated after that.
EVERY, AFTER_DRIFT = timedelta(days=7), timedelta(days=1)
#: A model that a person put in force is not replaced for so long.
PERSONS_CHOICE = timedelta(days=7)
#: Every eighth hour of the history is kept out of training, to judge both models.
JUDGED_HOUR = 8
#: Fewer samples than that judge nothing.
JUDGED_LEAST = 50
#: A new model may call so large a share of healthy samples unusual, or as many as the old one does.
ALARMS_MOST = 0.01
#: If the old one calls more of them unusual than this, the class has changed or much of it is broken, and
#: only a person can decide which: the new one is kept, and `healer model use` puts it in force.
CHANGED_MOST = 0.1
#: Of the deviations that are put into healthy samples it must find so many; and it may miss so much more of
#: them than the old one.
FOUND_LEAST, MISSES_MORE = 0.5, 0.25
#: Those deviations: this share of a sample's features moved by so many units, from a seed.
MOVED, MOVED_BY, PROBES, SEED = 0.75, 6.0, 500, 0

#: Population stability index: so many bins; from here on a feature is called changed (N. Siddiqi, 2006), but
#: not below what chance makes of so few nodes, once in so many looks (B. Yurdakul, 2018).
BINS, CHANGED, BY_CHANCE = 10, 0.25, 0.001
SHARE_LEAST = 0.001

#: By node, from when to when it had incidents.
Sick = Mapping[str, Sequence[tuple[datetime, datetime]]]


class TooLittle(Exception):
    """Not enough healthy history for a model. The text is a sentence for people."""


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

    Raises TooLittle. The same history gives the same model, byte for byte.
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
    threshold, quantiles = _limit(Fitted.to(data[:fitted], features, params).score(data[fitted:]), params)
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
        quantiles=quantiles,
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
        raise TooLittle(
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
        raise TooLittle(say("detection.too_many_unknown", what=_class_words(first), n=sampled.seen))
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


def _limit(scores: Floats, params: Params) -> tuple[float, dict[str, float]]:
    """Threshold and quantiles, from nodes that the forest never saw."""
    middle, top = np.quantile(scores, (0.5, params.quantile))
    quantiles = {str(q): float(np.quantile(scores, q)) for q in QUANTILES}
    return float(top + params.margin * (top - middle)), quantiles


# --- when it is trained again ---


def usable(model: Model) -> bool:
    """Whether this version makes the model's features as they were made for it."""
    return set(model.features) <= set(ALL_NAMES) and definition(model.features) == model.definition


def is_judged(at: datetime) -> bool:
    """Whether this hour judges models, and trains none."""
    return int(at.timestamp() // 3600) % JUDGED_HOUR == 0


def due(
    version: Version | None, *, tried_at: datetime | None, drifted: Sequence[ShiftedFeature], now: datetime
) -> Said:
    """Why the class's model is trained again now; empty where it is not. `version`: the one in force."""
    if tried_at is not None and now - tried_at < AFTER_DRIFT:
        return NO_WORDS
    in_force_at = version.in_force_at if version is not None else None
    if version is None or in_force_at is None:
        return say("detection.refit_none_yet")
    if version.by_person and now - in_force_at < PERSONS_CHOICE:
        return NO_WORDS
    if drifted:
        return say("detection.refit_drifted", feature=feature_words(drifted[0].feature))
    # By the last attempt too: a model whose successor was refused is not trained again every day.
    last = max(in_force_at, tried_at or in_force_at)
    return say("detection.refit_days", n=EVERY.days) if now - last >= EVERY else NO_WORDS


def population_shifts(trained: Trained, matrix: Matrix, nodes: int) -> list[ShiftedFeature]:
    """Features whose healthy samples of the last day (all features, of so many nodes) are distributed
    otherwise than in training; the farthest first."""
    model = trained.model
    rows, _ = scored_of(model, matrix)
    values = matrix[rows][:, columns(model.features)]
    if len(values) < JUDGED_LEAST or nodes < 2:
        return []
    limit = max(CHANGED, _by_chance(model.nodes, nodes, len(model.features)))
    found = []
    for column, name in enumerate(model.features):
        lately = values[:, column]
        index = stability_index(trained.data[:, column], lately[np.isfinite(lately)])
        if index > limit:
            found.append(ShiftedFeature(feature=name, index=round(index, 3), limit=round(limit, 3)))
    return sorted(found, key=lambda shift: -shift.index)


def stability_index(trained: np.ndarray, lately: np.ndarray) -> float:
    """Population stability index over tenths of training. A value that is very frequent (no error at all)
    makes a bin of its own; a share is at least `SHARE_LEAST`, so that an empty bin gives a finite index."""
    if not len(lately):
        return 0.0
    edges = np.unique(np.quantile(trained, np.linspace(0, 1, BINS + 1)[1:-1]))
    bins = 2 * len(edges) + 1

    def shares(values: np.ndarray) -> np.ndarray:
        # Below, at, and above each edge: the value of half of training is one edge, with a bin of its own.
        place = np.searchsorted(edges, values, "left") + np.searchsorted(edges, values, "right")
        return np.maximum(np.bincount(place, minlength=bins) / len(values), SHARE_LEAST)

    expected, actual = shares(trained), shares(lately)
    return float(((actual - expected) * np.log(actual / expected)).sum())


def _by_chance(trained: int, lately: int, features: int) -> float:
    """The index that chance alone passes once in 1,000 looks at so many features: it is distributed as
    chi-square with a degree for each bin but one, times (1/n + 1/m). Samples of one node resemble each other
    all day: nodes count, not samples."""
    z = NormalDist().inv_cdf(1 - BY_CHANCE / features)
    degrees = BINS - 1
    # Wilson and Hilferty's approximation of the quantile of chi-square.
    quantile = degrees * (1 - 2 / (9 * degrees) + z * (2 / (9 * degrees)) ** 0.5) ** 3
    return quantile * (1 / trained + 1 / lately)


# --- whether it may replace the old one ---


def judged(new: Fitted, old: Fitted | None, matrix: Matrix) -> ModelComparison:
    """Both models on healthy samples (all features) that the new one was not made from."""
    samples = len(scored_of(new.model, matrix)[0])
    if samples < JUDGED_LEAST:
        why = say("detection.model_few_samples", n=samples, least=JUDGED_LEAST)
        return ModelComparison(samples=samples, above=0.0, found=0.0, refused=why)
    above, found = _figures(new, matrix)
    above_before, found_before = _figures(old, matrix) if old is not None else (None, None)
    result = ModelComparison(
        samples=samples, above=above, found=found, above_before=above_before, found_before=found_before
    )
    return msgspec.structs.replace(result, refused=_refused(result))


def _refused(result: ModelComparison) -> Said:
    if result.above_before is not None and result.above_before > CHANGED_MOST:
        return say("detection.model_class_changed", share=result.above_before)
    if result.found < FOUND_LEAST:
        return say("detection.model_finds_little", share=result.found, least=FOUND_LEAST)
    if result.above > max(ALARMS_MOST, result.above_before or 0.0):
        return say("detection.model_alarms", share=result.above, most=ALARMS_MOST)
    if result.found_before is not None and result.found < result.found_before - MISSES_MORE:
        return say("detection.model_finds_less", share=result.found, before=result.found_before)
    return NO_WORDS


def _figures(fitted: Fitted, matrix: Matrix) -> tuple[float, float]:
    """Share above the threshold; and of the same samples with deviations put in."""
    _, values = scored_of(fitted.model, matrix)
    if not len(values):
        return 0.0, 0.0
    random = np.random.default_rng(SEED)
    # The same features and signs for both models, by their names.
    moved = matrix[np.linspace(0, len(matrix) - 1, min(PROBES, len(matrix))).astype(int)].copy()
    for row in moved:
        finite = np.flatnonzero(np.isfinite(row))
        at = random.choice(finite, round(MOVED * len(finite)), replace=False)
        row[at] += MOVED_BY * random.choice((-1.0, 1.0), len(at))
    _, probes = scored_of(fitted.model, moved)
    found = fitted.above(probes).mean() if len(probes) else 0.0
    return float(fitted.above(values).mean()), float(found)
