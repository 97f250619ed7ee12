"""Debounce: how long a rule's condition has held, according to new samples; without new samples it ends."""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from healer.detection.language.expr import Expr, finer
from healer.detection.language.truth_columns import FALSE, TRUE, UNKNOWN, Truth
from healer.model import Catalogue, Scope
from healer.observations.telemetry_windows import Telemetry

#: Functions whose arguments may be about missing samples.
_OF_SILENCE = frozenset({"age", "known"})

Times = NDArray[np.float64]


def rests_on(when: Expr, signal: str, catalogue: Catalogue) -> frozenset[str]:
    """Measured signals of a rule that shows `signal`: of the conditions joined by `and` only those that name
    it, else all. A signal of another sender, or a rare one, must neither age nor renew what the rule shows.

    Signals derived from the Slurm snapshot are always new, and count only if there are no others. Empty for a
    rule about silence.
    """
    conditions = when.args if when.op == "and" else (when,)
    showing = [condition for condition in conditions if signal in condition.signals] or conditions
    signals = {name for condition in showing for name in _signals(condition)}
    measured = {name for name in signals if not catalogue.signals[name].derived}
    return frozenset(measured or signals)


def _signals(expr: Expr) -> Iterator[str]:
    if expr.op not in _OF_SILENCE:
        if expr.name and expr.op != "spec":
            yield expr.name
        for arg in expr.args:
            yield from _signals(arg)


class Heard:
    """When signals were last sampled, within one tick; times in s since 1970."""

    def __init__(self, telemetry: Telemetry, catalogue: Catalogue, now: datetime) -> None:
        self._telemetry, self._catalogue, self._now_s = telemetry, catalogue, now.timestamp()
        self._on: dict[tuple[str, Scope], Times] = {}

    def newest(self, signals: frozenset[str], scope: Scope) -> Times | None:
        """(n of `scope`,) the newest sample of any of the signals, at most now, -inf where there is none; for
        a row with parts the newest of any part. None: the rule depends on no samples."""
        if not signals:
            return None
        found = np.full(self._telemetry.axis(scope).n, -np.inf)
        for name in signals:
            np.maximum(found, self._at(name, scope), out=found)
        return np.minimum(found, self._now_s)

    def _at(self, name: str, scope: Scope) -> Times:
        if (name, scope) not in self._on:
            self._on[name, scope] = self._lifted(name, scope)
        return self._on[name, scope]

    def _lifted(self, name: str, scope: Scope) -> Times:
        """(n of `scope`,)"""
        of = self._catalogue.signals[name].scope
        at_s = self._telemetry.heard_s(name)
        if of is scope:
            return at_s
        if finer(scope, of):
            parent = self._telemetry.axis(scope).parent(of)
            return np.where(parent >= 0, np.append(at_s, -np.inf)[parent], -np.inf)
        found = np.full(self._telemetry.axis(scope).n, -np.inf)
        parent = self._telemetry.axis(of).parent(scope)
        inside = np.flatnonzero(parent >= 0)
        np.maximum.at(found, parent[inside], at_s[inside])
        return found


Rows = NDArray[Any]

#: A pause of the ticks counts as held for at most this long.
LONGEST_TICK_S = 30.0
#: A rule without `for` still tolerates an unknown of this length: two missed scrapes of 15 s.
LEAST_PATIENCE_S = 30.0

_COLUMNS = ("rows", "began", "held", "quiet", "_first", "_newest", "reported")


class Holds:
    """Rows of one rule whose condition holds, sorted, each with when it `began` and how long it was `held`.

    Time during which the condition is unknown does not count as held, nor does time after the newest sample:
    a single sample holds for no time. If unknown for longer than the rule's `for` (at least 30 s), it starts
    over.
    """

    def __init__(self, for_s: float) -> None:
        self.for_s = for_s
        self.patience_s = max(for_s, LEAST_PATIENCE_S)
        self.rows: Rows = np.zeros(0, np.int64)
        self.began = np.zeros(0)
        self.held = np.zeros(0)
        self.quiet = np.zeros(0)
        # Times of the sample at its beginning, and of the newest since.
        self._first = np.zeros(0)
        self._newest = np.zeros(0)
        #: When it was last reported; NaN: not yet.
        self.reported = np.zeros(0)
        self._at_s: float | None = None

    def update(self, truth: Truth, at_s: float, heard: NDArray[np.float64] | None = None) -> Rows:
        """Processes one tick (`truth` (n,)); returns the reported rows whose condition is now known false.

        `heard` (n,): the newest sample that the condition depends on; None: it depends on none.
        """
        passed = 0.0 if self._at_s is None else min(max(at_s - self._at_s, 0.0), LONGEST_TICK_S)
        self._at_s = at_s
        true = np.flatnonzero(truth == TRUE)
        if not len(true) and not len(self.rows):
            return self.rows
        state = truth[self.rows]
        # It held between two ticks if it held at both ends.
        self.held[(state == TRUE) & (self.quiet == 0)] += passed
        self.quiet = np.where(state == UNKNOWN, self.quiet + passed, 0.0)
        self._newest = np.where(state == TRUE, _heard(heard, self.rows, at_s), self._newest)
        ended = self.rows[(state == FALSE) & ~np.isnan(self.reported)]
        self._keep((state != FALSE) & (self.quiet <= self.patience_s))
        new = np.setdiff1d(true, self.rows, assume_unique=True)
        if len(new):
            self._add(new, at_s, _heard(heard, new, at_s))
        return ended

    @property
    def due(self) -> NDArray[np.bool_]:
        """(m,) of `rows`: held long enough, by the ticks and by the samples, and known true now."""
        covered_s = self._newest - self._first
        return (self.held >= self.for_s) & (covered_s >= self.for_s) & (self.quiet == 0)

    def forget(self, rows: Rows) -> None:
        """Resets these rows."""
        if len(self.rows):  # usually nothing is held, and this runs for each rule when a node returns
            self._keep(~np.isin(self.rows, rows))

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        if not kept.all():
            for name in _COLUMNS:
                setattr(self, name, getattr(self, name)[kept])

    def _add(self, new: Rows, at_s: float, heard: NDArray[np.float64]) -> None:
        fresh = np.zeros(len(new))
        order = np.argsort(np.concatenate((self.rows, new)), kind="stable")
        more = (new, fresh + at_s, fresh, fresh, heard, heard, fresh + np.nan)
        for name, values in zip(_COLUMNS, more, strict=True):
            setattr(self, name, np.concatenate((getattr(self, name), values))[order])


def _heard(heard: NDArray[np.float64] | None, rows: Rows, at_s: float) -> NDArray[np.float64]:
    """(m,) of these rows. A condition that is true without any sample is about silence: then time itself
    counts."""
    if heard is None:
        return np.full(len(rows), at_s)
    return np.where(np.isfinite(heard[rows]), heard[rows], at_s)
