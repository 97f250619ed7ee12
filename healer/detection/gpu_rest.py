"""Whether the GPUs of a job compute, by what was measured of them."""

from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from healer.model import Scope, SlurmJob
from healer.model.node import IDLE_PERCENT, WAITING_OF_LIMIT
from healer.observations.telemetry import Telemetry

#: All of it quiet for so long: a job that works pauses too.
QUIET_S = 60.0
_LIMITS = ("power_limit_enforced_w", "power_limit_w", "power_limit_default_w")


def at_rest(telemetry: Telemetry, job: SlurmJob, now: datetime) -> bool | None:
    """None of the job's GPUs computed for a minute; None: not known of all of them."""
    rows = [_rows(telemetry, job, node) for node in job.nodes]
    if not rows or any(one is None or not len(one) for one in rows):
        return None
    own = np.concatenate([one for one in rows if one is not None])
    util = _most(telemetry, "gpu_util_percent", own, now)
    share = _most(telemetry, "gr_engine_active_ratio", own, now) * 100
    util = np.fmax(util, share)
    power = np.fmax(_most(telemetry, "power_w", own, now), _most(telemetry, "power_instant_w", own, now))
    limit = np.full(len(own), np.nan)
    for name in _LIMITS:
        limit = np.where(np.isnan(limit), _last(telemetry, name, own, now), limit)
    idle, waits = util < IDLE_PERCENT, power < WAITING_OF_LIMIT * limit
    works = (util >= IDLE_PERCENT) & (power >= WAITING_OF_LIMIT * limit)
    if works.any():
        return False
    return True if bool((idle | waits).all()) else None


def _rows(telemetry: Telemetry, job: SlurmJob, node: str) -> NDArray[np.int64] | None:
    """Rows of the job's GPUs on the node; None where one of them was never heard of."""
    rows = telemetry.rows_of(node, Scope.gpu)
    own = job.gpus.get(node)
    if own is None:
        return rows
    known = telemetry.axis(Scope.gpu).components()
    by_gpu = {known[row].gpu: row for row in rows.tolist()}
    found = [by_gpu[gpu] for gpu in own if gpu in by_gpu]
    return np.array(found, np.int64) if len(found) == len(own) else None


def _most(telemetry: Telemetry, signal: str, rows: NDArray[np.int64], now: datetime) -> NDArray[np.float64]:
    """(n,) the highest value of the last minute, NaN where nothing came."""
    if telemetry.scope_of(signal) is None:
        return np.full(len(rows), np.nan)
    window = telemetry.window(signal, QUIET_S, now)[:, rows].astype(np.float64)
    return np.fmax.reduce(window, axis=0)


def _last(telemetry: Telemetry, signal: str, rows: NDArray[np.int64], now: datetime) -> NDArray[np.float64]:
    if telemetry.scope_of(signal) is None:
        return np.full(len(rows), np.nan)
    return telemetry.value(signal, now)[rows]
