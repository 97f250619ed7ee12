"""Evidence from nodes about a job that makes no step: whether its GPUs are idle, and ports that went down."""

from collections.abc import Callable, Iterable
from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from healer.model import Component, NodeReport, Scope, SlurmJob
from healer.model.node import IDLE_PERCENT, WAITING_OF_LIMIT
from healer.observations.rings import WINDOW_S
from healer.observations.telemetry_windows import Telemetry
from healer.text import Said, say

#: All GPUs must be quiet for this long: a working job pauses too.
QUIET_S = 60.0
_LIMITS = ("power_limit_enforced_w", "power_limit_w", "power_limit_default_w")

#: Whether all GPUs of a job are idle at that moment; None: unknown.
AtRest = Callable[[Telemetry, SlurmJob, datetime], bool | None]


def at_rest(telemetry: Telemetry, job: SlurmJob, now: datetime) -> bool | None:
    """Whether none of the job's GPUs computed for a minute; None if that is unknown for any of them."""
    rows_by_node = [_gpu_rows(telemetry, job, node) for node in job.nodes]
    if not rows_by_node or any(rows is None or not len(rows) for rows in rows_by_node):
        return None
    rows = np.concatenate([rows for rows in rows_by_node if rows is not None])

    def highest(signal: str) -> NDArray[np.float64]:
        """(n,) the highest value of the last minute, NaN without data."""
        if telemetry.scope_of(signal) is None:
            return np.full(len(rows), np.nan)
        window = telemetry.window(signal, QUIET_S, now)[:, rows].astype(np.float64)
        return np.fmax.reduce(window, axis=0)

    util = np.fmax(highest("gpu_util_percent"), highest("gr_engine_active_ratio") * 100)
    power = np.fmax(highest("power_w"), highest("power_instant_w"))
    limit = np.full(len(rows), np.nan)
    for name in _LIMITS:
        limit = np.where(np.isnan(limit), telemetry.value_on(Scope.gpu, name, now)[rows], limit)
    idle, waits = util < IDLE_PERCENT, power < WAITING_OF_LIMIT * limit
    works = (util >= IDLE_PERCENT) & (power >= WAITING_OF_LIMIT * limit)
    if works.any():
        return False
    return True if bool((idle | waits).all()) else None


#: This many of a minute's figures must be present. If more than this share of the other nodes has such
#: processes too, they wait for a file server.
BLOCKED, FIGURES_LEAST, BLOCKED_TOO = "procs_blocked", 3, 0.1


def are_blocked(telemetry: Telemetry, node: str, nodes: Iterable[str], now: datetime) -> bool:
    """Whether processes of the node have waited in the kernel (state D) for a minute while those on the other
    `nodes` have not."""
    if telemetry.scope_of(BLOCKED) is not Scope.node:
        return False
    window = telemetry.window(BLOCKED, QUIET_S, now)
    shown = np.count_nonzero(np.isfinite(window), axis=0) >= FIGURES_LEAST
    always = shown & (np.fmin.reduce(window, axis=0) >= 1)
    rows = [telemetry.rows_of(name, Scope.node) for name in nodes if name != node]
    others = np.concatenate([*rows, np.zeros(0, np.int64)])
    others = others[shown[others]]
    return (
        bool(always[telemetry.rows_of(node, Scope.node)].any())
        and len(others) > 0
        and bool(always[others].mean() <= BLOCKED_TOO)
    )


def _gpu_rows(telemetry: Telemetry, job: SlurmJob, node: str) -> NDArray[np.int64] | None:
    """Rows of the job's GPUs on the node; None if one of them was never seen."""
    rows = telemetry.rows_of(node, Scope.gpu)
    allocated = job.gpus.get(node)
    if allocated is None:
        return rows
    components = telemetry.axis(Scope.gpu).components()
    by_gpu = {components[row].gpu: row for row in rows.tolist()}
    found = [by_gpu[gpu] for gpu in allocated if gpu in by_gpu]
    return np.array(found, np.int64) if len(found) == len(allocated) else None


#: A port that is down now and was up within this time has just gone down.
LOOK_S = 300.0
#: Signal, values that are up, values that are down.
_STATES = (("ib_state", (4, 5), (1, 2)), ("net_carrier", (1,), (0,)))


def ports_down(
    telemetry: Telemetry, nodes: Iterable[str], now: datetime, since: datetime | None = None
) -> dict[str, NodeReport]:
    """Of these nodes, those with a port that is down and went down later than `LOOK_S` before `since` (None:
    now). Events from before the telemetry's window are unknown."""
    look_s = min(LOOK_S + (now - since).total_seconds() if since is not None else LOOK_S, WINDOW_S)
    found: dict[str, NodeReport] = {}
    parts = telemetry.axis(Scope.link).components()
    rows = np.concatenate([np.zeros(0, np.int64), *(telemetry.rows_of(name, Scope.link) for name in nodes)])
    for signal, up, down in _STATES:
        if telemetry.scope_of(signal) is not Scope.link:
            continue
        window, times = telemetry.window(signal, look_s, now), telemetry.times(look_s, now)
        for row in rows[_ends_in(window[:, rows], down)].tolist():
            at_s, where = _went_down(window[:, row], times, up, down), parts[row]
            if at_s is not None and where.node is not None and where.node not in found:
                at = datetime.fromtimestamp(at_s, now.tzinfo)
                found[where.node] = NodeReport(at=at, text=_down_text(where))
    return found


def _ends_in(window: NDArray[np.floating], values: tuple[int, ...]) -> NDArray[np.bool_]:
    """(slots, n) -> (n,) whether the last finite figure of a column is one of `values`."""
    finite = np.isfinite(window)
    last = len(window) - 1 - np.argmax(finite[::-1], axis=0)
    return finite.any(axis=0) & np.isin(window[last, np.arange(window.shape[1])], values)


def _down_text(where: Component) -> Said:
    if where.nic:
        return say("detection.port_down", port=where.nic)
    return say("detection.part_down", part=str(where))


def are_measured_since(telemetry: Telemetry, nodes: Iterable[str], since: datetime, now: datetime) -> bool:
    """Whether each of these nodes whose ports are measured has a measurement after that time."""
    for signal, _, _ in _STATES:
        if telemetry.scope_of(signal) is not Scope.link:
            continue
        heard = np.isfinite(telemetry.window(signal, LOOK_S, now))
        later = telemetry.times(LOOK_S, now) > since.timestamp()
        for node in nodes:
            rows = heard[:, telemetry.rows_of(node, Scope.link)]
            if rows.any() and not rows[later].any():
                return False
    return True


def _went_down(
    values: np.ndarray, times: np.ndarray, up: tuple[int, ...], down: tuple[int, ...]
) -> float | None:
    """When the last change from up to down happened, if it is still down; (k,) slots, oldest first."""
    valid = np.flatnonzero(np.isfinite(values))
    if not len(valid) or values[valid[-1]] not in down:
        return None
    were_up = valid[np.isin(values[valid], up)]
    return float(times[valid[valid > were_up[-1]][0]]) if len(were_up) else None
