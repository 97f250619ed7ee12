"""Ports that went down just now by their own state. For jobs that stand."""

from collections.abc import Iterable
from datetime import datetime

import numpy as np

from healer.model import Component, LinkDown, Scope
from healer.observations.telemetry import Telemetry

#: A port that is down now and was up within this went down just now.
LOOK_S = 300.0
#: Signal, values that are up, values that are down.
_STATES = (("ib_state", (4, 5), (1, 2)), ("net_carrier", (1,), (0,)))


def ports_down(telemetry: Telemetry, nodes: Iterable[str], now: datetime) -> dict[str, LinkDown]:
    """Of these nodes, those with a port that went down within the last minutes and is down now."""
    found: dict[str, LinkDown] = {}
    axis = telemetry.axis(Scope.link)
    for signal, up, down in _STATES:
        if telemetry.scope_of(signal) is not Scope.link:
            continue
        window, times = telemetry.window(signal, LOOK_S, now), telemetry.times(LOOK_S, now)
        parts = axis.components()
        for node in nodes:
            for row in telemetry.rows_of(node, Scope.link).tolist():
                at_s = _went_down(window[:, row], times, up, down)
                if at_s is not None and node not in found:
                    at = datetime.fromtimestamp(at_s, now.tzinfo)
                    found[node] = LinkDown(at=at, text=f"{_port(parts[row])} went down")
    return found


def _went_down(
    values: np.ndarray, times: np.ndarray, up: tuple[int, ...], down: tuple[int, ...]
) -> float | None:
    """When the last change from up to down was, where it is still down; (k,) slots, oldest first."""
    known = np.flatnonzero(np.isfinite(values))
    if not len(known) or values[known[-1]] not in down:
        return None
    were_up = known[np.isin(values[known], up)]
    if not len(were_up):
        return None
    return float(times[known[known > were_up[-1]][0]])


def _port(where: Component) -> str:
    return f"port {where.nic}" if where.nic else str(where)
