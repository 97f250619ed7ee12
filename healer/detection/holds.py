"""How long a condition has held, for the rows where it does. Few rows do, so only they are kept."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from healer.detection.language.truth import FALSE, TRUE, UNKNOWN, Truth

Rows = NDArray[Any]

#: A pause of the ticks counts as held no longer than this.
LONGEST_TICK_S = 30.0
#: A rule that needs no holding still forgives an unknown of this length: two missed scrapes of 15 s.
LEAST_PATIENCE_S = 30.0

_COLUMNS = ("rows", "began", "held", "quiet", "_first", "_newest", "told")


class Holds:
    """Rows of one rule whose condition holds, sorted, each with when it `began` and how long it was `held`.

    Time during which the condition is unknown does not count as held, nor does time after the newest sample:
    one sample alone holds for no time. Unknown for longer than the rule's `for` (at least 30 s), it begins
    anew.
    """

    def __init__(self, for_s: float) -> None:
        self.for_s = for_s
        self.patience_s = max(for_s, LEAST_PATIENCE_S)
        self.rows: Rows = np.zeros(0, np.int64)
        self.began = np.zeros(0)
        self.held = np.zeros(0)
        self.quiet = np.zeros(0)
        # Of the sample with which it began, and of the newest since.
        self._first = np.zeros(0)
        self._newest = np.zeros(0)
        #: When it was last told; NaN: not yet.
        self.told = np.zeros(0)
        self._at_s: float | None = None

    def update(self, truth: Truth, at_s: float, heard: NDArray[np.float64] | None = None) -> Rows:
        """Takes in one tick (`truth` (n,)); returns the told rows whose condition is now known false.

        `heard` (n,): the newest sample that the condition rests on; None: it rests on none.
        """
        passed = 0.0 if self._at_s is None else min(max(at_s - self._at_s, 0.0), LONGEST_TICK_S)
        self._at_s = at_s
        true = np.flatnonzero(truth == TRUE)
        if not len(true) and not len(self.rows):
            return self.rows
        state = truth[self.rows]
        # Between two ticks it held if it did at both ends.
        self.held[(state == TRUE) & (self.quiet == 0)] += passed
        self.quiet = np.where(state == UNKNOWN, self.quiet + passed, 0.0)
        self._newest = np.where(state == TRUE, _heard(heard, self.rows, at_s), self._newest)
        ended = self.rows[(state == FALSE) & ~np.isnan(self.told)]
        self._keep((state != FALSE) & (self.quiet <= self.patience_s))
        new = np.setdiff1d(true, self.rows, assume_unique=True)
        if len(new):
            self._add(new, at_s, _heard(heard, new, at_s))
        return ended

    @property
    def due(self) -> NDArray[np.bool_]:
        """(m,) of `rows`: held long enough, by the ticks and by the samples, and known true now."""
        told_s = self._newest - self._first
        return (self.held >= self.for_s) & (told_s >= self.for_s) & (self.quiet == 0)

    def forget(self, rows: Rows) -> None:
        """These begin anew."""
        if len(self.rows):  # mostly nothing is held, and a node that returns asks each rule
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
    """(m,) of these rows. What is true where nothing was ever heard is true by silence: then time counts."""
    if heard is None:
        return np.full(len(rows), at_s)
    told = heard[rows]
    return np.where(np.isfinite(told), told, at_s)
