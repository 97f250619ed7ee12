"""How new the samples are that a rule rests on: what nobody tells any more does not go on holding."""

from datetime import datetime

import numpy as np
from numpy.typing import NDArray

from healer.detection.language.expr import Expr, finer
from healer.model import Catalogue, Scope
from healer.observations.telemetry import Telemetry

#: What is asked inside these may be silence itself.
_OF_SILENCE = frozenset({"age", "known"})

Times = NDArray[np.float64]


def rests_on(when: Expr, signal: str, catalogue: Catalogue) -> frozenset[str]:
    """Measured signals of a rule that shows `signal`: of the conditions joined by `and` those that name it,
    or else all. Another one, told by somebody else or rarely, neither ages nor renews what it shows.

    Those that Slurm's picture gives are always new, and count only where there are no others. Empty for a
    rule about silence.
    """
    conditions = when.args if when.op == "and" else (when,)
    told: set[str] = set()
    for one in [one for one in conditions if signal in one.signals] or conditions:
        _gather(one, told)
    measured = {name for name in told if not catalogue.signals[name].derived}
    return frozenset(measured or told)


def _gather(expr: Expr, told: set[str]) -> None:
    if expr.op in _OF_SILENCE:
        return
    if expr.name and expr.op != "spec":
        told.add(expr.name)
    for arg in expr.args:
        _gather(arg, told)


class Heard:
    """Of one tick; times in s since 1970."""

    def __init__(self, telemetry: Telemetry, catalogue: Catalogue, now: datetime) -> None:
        self._telemetry, self._catalogue, self._now_s = telemetry, catalogue, now.timestamp()
        self._on: dict[tuple[str, Scope], Times] = {}

    def newest(self, signals: frozenset[str], scope: Scope) -> Times | None:
        """(n of `scope`,) the newest sample of any of them, at most now, -inf where there is none; of a row
        with parts the newest of any part. None: nothing is asked of samples."""
        if not signals:
            return None
        found = np.full(self._telemetry.axis(scope).n, -np.inf)
        for name in signals:
            np.maximum(found, self._at(name, scope), out=found)
        return np.minimum(found, self._now_s)

    def _at(self, name: str, scope: Scope) -> Times:
        known = self._on.get((name, scope))
        if known is None:
            known = self._on[name, scope] = self._lifted(name, scope)
        return known

    def _lifted(self, name: str, scope: Scope) -> Times:
        own = self._catalogue.signals[name].scope
        at_s = self._telemetry.heard_s(name)
        if own is scope:
            return at_s
        if finer(scope, own):
            parent = self._telemetry.axis(scope).parent(own)
            return (
                np.where(parent >= 0, at_s[parent], -np.inf) if len(at_s) else np.full(len(parent), -np.inf)
            )
        found = np.full(self._telemetry.axis(scope).n, -np.inf)
        parent = self._telemetry.axis(own).parent(scope)
        inside = np.flatnonzero(parent >= 0)
        np.maximum.at(found, parent[inside], at_s[inside])
        return found
