"""Peers: rows that should look alike, and robust statistics over them. Nothing here loops over groups."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np
from numpy.typing import NDArray

from healer.model import Scope
from healer.observations.axes import Axes
from healer.text import Said, quoted, say

#: A job of at least this size is compared within itself: it does the same work on all its GPUs.
JOB_NODES = 4
JOB_GPUS = 16
#: With fewer known peers the result is unknown.
LEAST = 4
#: A line through peers needs this many, so that one outlier in each outer third moves nothing; it has a slope
#: if their `at` differ by this share of the median.
LEAST_OF_LINE, LEAST_SPAN = 12, 0.05
#: The fewest nodes of a rack that are compared with each other.
LEAST_OF_RACK = 3
#: Converts the median absolute deviation of a normal distribution to its standard deviation.
MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True, slots=True, eq=False)
class Groups:
    """Groups of peers: `ids` (n,) int32, -1 for none; `labels` by id, in words for people."""

    ids: NDArray[np.int32]
    labels: Sequence[str] = ()


class _Labels(Sequence[str]):
    """Labels, built only when one is read: a fleet has thousands of groups, and a chart shows one."""

    def __init__(self, numbers: list[int], words: Callable[[int], Said]) -> None:
        self._numbers, self._words = numbers, words

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> Said: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> Said | list[str]:
        if isinstance(index, slice):
            return [self._words(number) for number in self._numbers[index]]
        return self._words(self._numbers[index])


def peer_median(values: NDArray, groups: Groups, least: int = LEAST) -> NDArray[np.float64]:
    """(n,) median of the known values of each row's group, including the row's own.

    NaN if fewer than `least` are known. A row without a value also gets the median of its peers.
    """
    return peer_band(values, groups, (0.5,), least)[0]


def peer_spread(
    values: NDArray, groups: Groups, least: int = LEAST
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(n,) median, and median absolute deviation from it times 1.4826 (a robust standard deviation)."""
    middle = peer_median(values, groups, least)
    return middle, MAD_TO_SIGMA * peer_median(np.abs(values - middle), groups, least)


def peer_band(
    values: NDArray, groups: Groups, quantiles: Sequence[float], least: int = LEAST
) -> list[NDArray[np.float64]]:
    """(n,) for each quantile, linear between the two nearest values as in `numpy.quantile`."""
    values = np.asarray(values, np.float64)
    many = len(groups.labels)
    valid = np.flatnonzero((groups.ids >= 0) & ~np.isnan(values))
    if not len(valid):  # a fleet reports only few of all signals
        return [np.full(len(values), np.nan) for _ in quantiles]
    ids, ordered = groups.ids[valid], values[valid]
    # By value, then stably by group: numpy sorts 16-bit integers by radix, in linear time.
    order = np.argsort(ordered)
    order = order[np.argsort(ids[order].astype(np.uint16 if many < 65_536 else np.int32), kind="stable")]
    ordered = ordered[order]
    count = np.bincount(ids, minlength=many)
    first = np.concatenate(([0], np.cumsum(count)[:-1])) if many else np.zeros(0, np.int64)
    enough = count >= max(least, 1)
    first, steps = first[enough], count[enough] - 1
    found = []
    for quantile in quantiles:
        low = np.floor(quantile * steps).astype(np.int64)
        part = quantile * steps - low
        below, above = ordered[first + low], ordered[first + np.minimum(low + 1, steps)]
        of_group = np.full(many + 1, np.nan)  # one more, which rows without peers (-1) read
        # Not simply below + (above - below) * part: for two equal values the result must be that value.
        of_group[np.flatnonzero(enough)] = np.where(part > 0, below + (above - below) * part, below)
        found.append(of_group[groups.ids])
    return found


def peer_line(values: NDArray, at: NDArray, groups: Groups) -> NDArray[np.float64]:
    """(n,) the value each row would have if it lay on the line of `values` over `at` through its group:
    Tukey's resistant line. Its slope joins the medians of the lowest and the highest third by `at`, its
    height is the median of the residuals; a quarter of the outer thirds may be outliers.

    NaN if fewer than `LEAST_OF_LINE` are known, or if no peer is near the row's own `at`: further away than
    the distance between the outer thirds' medians. If these are closer than `LEAST_SPAN` of the median of
    `at`, the line is level and that is its range. J. Tukey, Exploratory Data Analysis, 1977, chapter 10.
    """
    values, at = np.asarray(values, np.float64), np.asarray(at, np.float64)
    both = np.isfinite(values) & np.isfinite(at)
    at_both = np.where(both, at, np.nan)
    low_third, high_third = _outer_thirds(at_both, groups)
    low_at, high_at = _median_of(at_both, low_third, groups), _median_of(at_both, high_third, groups)
    least = LEAST_SPAN * np.abs(peer_median(at_both, groups, LEAST_OF_LINE))
    span = high_at - low_at
    rise = _median_of(values, high_third, groups) - _median_of(values, low_third, groups)
    slope = np.where(span > least, rise / np.where(span > least, span, 1.0), 0.0)
    left = np.where(both, values - slope * at, np.nan)
    found = peer_median(left, groups, LEAST_OF_LINE) + slope * at
    reach = np.maximum(span, least)
    found[~((at >= low_at - reach) & (at <= high_at + reach))] = np.nan
    return found


def _outer_thirds(at: NDArray, groups: Groups) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(n,) whether a row is in the lowest, or in the highest, third of its group by `at`."""
    valid = np.flatnonzero((groups.ids >= 0) & np.isfinite(at))
    ids = groups.ids[valid]
    order = np.lexsort((at[valid], ids))
    count = np.bincount(ids, minlength=len(groups.labels))
    first = np.cumsum(count) - count
    ordered = ids[order]
    place = np.arange(len(order)) - first[ordered]
    third = count[ordered] // 3
    low, high = np.zeros((2, len(at)), np.bool_)
    low[valid[order]] = place < third
    high[valid[order]] = place >= count[ordered] - third
    return low, high


def _median_of(values: NDArray, part: NDArray[np.bool_], groups: Groups) -> NDArray[np.float64]:
    return peer_median(np.where(part, values, np.nan), groups, LEAST_OF_LINE // 3)


# --- groups of peers ---


def groups_of(axes: Axes, scope: Scope) -> Groups:
    """Peers of a GPU or node: those of its job if that is large, else those of the same model and load.
    NVLinks: same model and load; ports: same name and model. Other scopes have no peers, nor do rows of
    unknown model."""
    n = axes.axis(scope).n
    match scope:
        case Scope.gpu:
            node, index = axes.gpu_node[:n], axes.gpu_index[:n]
            large = (axes.job_nodes >= JOB_NODES) | (axes.job_gpus >= JOB_GPUS)
            job = _large(axes.axis(scope).parent(Scope.job), large)
            return _grouped(axes, job, _model(axes, node), axes.gpu_allocated[node, index])
        case Scope.node:
            node = np.arange(n)
            job = _large(axes.axis(scope).parent(Scope.job), axes.job_nodes >= JOB_NODES)
            return _grouped(axes, job, _model(axes, node), axes.allocated[node])
        case Scope.link:
            return _of_links(axes, n)
    return Groups(np.full(n, -1, np.int32))


def rack_groups_of(axes: Axes, scope: Scope) -> Groups:
    """Parts in one rack with one GPU model, in racks of at least `LEAST_OF_RACK` nodes: with two, it cannot
    be decided which one is different."""
    n = axes.axis(scope).n
    if scope not in (Scope.gpu, Scope.node, Scope.link):
        return Groups(np.full(n, -1, np.int32))
    node, rack = axes.axis(scope).parent(Scope.node), axes.axis(scope).parent(Scope.rack)
    racks = axes.axis(Scope.rack)
    standing = axes.axis(Scope.node).parent(Scope.rack)
    large = np.bincount(standing[standing >= 0], minlength=racks.n) >= LEAST_OF_RACK
    model = _model(axes, node)
    in_large = (node >= 0) & (rack >= 0) & (model >= 0)
    in_large[in_large] = large[rack[in_large]]
    models = len(axes.models) + 1

    def words(number: int) -> Said:
        return say("observations.rack", rack=racks.components()[number // models].device)

    return _numbered(np.where(in_large, rack.astype(np.int64) * models + model, -1), words)


def node_groups_of(axes: Axes, scope: Scope) -> Groups:
    """GPUs of one node that Slurm shows; other scopes have none."""
    n = axes.axis(scope).n
    if scope is not Scope.gpu:
        return Groups(np.full(n, -1, np.int32))
    node = axes.gpu_node[:n]
    nodes = axes.axis(Scope.node)
    there = np.where((node >= 0) & axes.present[node], node, -1)
    return _numbered(there.astype(np.int64), lambda number: quoted(str(nodes.components()[number])))


def _large(job: NDArray, large: NDArray) -> NDArray:
    return np.where((job >= 0) & large[job], job, -1) if len(large) else job


def _model(axes: Axes, node: NDArray) -> NDArray:
    """(m,) number of the node's GPU model + 1, -1 if it is unknown or the node is gone.

    0 if Slurm has no model for any node: then all count as alike.
    """
    model = axes.model[node] + 1
    return np.where(axes.present[node] & ((model > 0) | (not axes.models)), model, -1)


def _grouped(axes: Axes, job: NDArray, model: NDArray, load: NDArray) -> Groups:
    jobs = axes.axis(Scope.job).n
    has_load = (model >= 0) & (load >= 0)
    raw = np.where(job >= 0, job, np.where(has_load, jobs + 2 * model.astype(np.int64) + load, -1))

    def words(number: int) -> Said:
        if number < jobs:
            return say("observations.job", job=axes.axis(Scope.job).components()[number].job)
        model, load = divmod(number - jobs, 2)
        name = _model_name(axes, model)
        return say("observations.allocated" if load else "observations.idle", model=name)

    return _numbered(raw, words)


def _of_links(axes: Axes, n: int) -> Groups:
    node, part = axes.link_node[:n], axes.link_part[:n]
    gpu = axes.part_gpu[part]
    model = _model(axes, node)
    load = axes.gpu_allocated[node, gpu]
    models = len(axes.models) + 1
    # First the NVLinks by model and load, then the ports by number and model.
    of_nvlink = np.where((model >= 0) & (load >= 0), 2 * model + load, -1)
    of_port = np.where(model >= 0, 2 * models + part.astype(np.int64) * models + model, -1)

    def words(number: int) -> Said:
        if number < 2 * models:
            model, load = divmod(number, 2)
            name = _model_name(axes, model)
            return say("observations.nvlinks_allocated" if load else "observations.nvlinks_idle", model=name)
        part, model = divmod(number - 2 * models, models)
        return say("observations.port", port=axes.port_name(part), model=_model_name(axes, model))

    return _numbered(np.where(gpu >= 0, of_nvlink, of_port), words)


def _model_name(axes: Axes, number: int) -> Said:
    return quoted(axes.models[number - 1]) if number > 0 else say("observations.all_gpu_nodes")


def _numbered(raw: NDArray, words: Callable[[int], Said]) -> Groups:
    found, ids = np.unique(raw, return_inverse=True)
    none = int(len(found) > 0 and found[0] < 0)
    labels = _Labels(found[none:].tolist(), words)
    return Groups((ids - none).astype(np.int32), labels)
