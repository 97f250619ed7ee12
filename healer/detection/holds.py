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


class Holds:
    """Rows of one rule whose condition holds, sorted, each with when it `began` and how long it was `held`.

    Time during which the condition is unknown does not count as held. Unknown for longer than the rule's
    `for` (at least 30 s), it begins anew.
    """

    def __init__(self, for_s: float) -> None:
        self.for_s = for_s
        self.patience_s = max(for_s, LEAST_PATIENCE_S)
        self.rows: Rows = np.zeros(0, np.int64)
        self.began = np.zeros(0)
        self.held = np.zeros(0)
        self.quiet = np.zeros(0)
        #: When it was last told; NaN: not yet.
        self.told = np.zeros(0)
        self._at_s: float | None = None

    def update(self, truth: Truth, at_s: float) -> Rows:
        """Takes in one tick (`truth` (n,)); returns the told rows whose condition is now known false."""
        passed = 0.0 if self._at_s is None else min(max(at_s - self._at_s, 0.0), LONGEST_TICK_S)
        self._at_s = at_s
        true = np.flatnonzero(truth == TRUE)
        if not len(true) and not len(self.rows):
            return self.rows
        state = truth[self.rows]
        # Between two ticks it held if it did at both ends.
        self.held[(state == TRUE) & (self.quiet == 0)] += passed
        self.quiet = np.where(state == UNKNOWN, self.quiet + passed, 0.0)
        ended = self.rows[(state == FALSE) & ~np.isnan(self.told)]
        self._keep((state != FALSE) & (self.quiet <= self.patience_s))
        new = np.setdiff1d(true, self.rows, assume_unique=True)
        if len(new):
            self._add(new, at_s)
        return ended

    @property
    def due(self) -> NDArray[np.bool_]:
        """(m,) of `rows`: held long enough, and known true now."""
        return (self.held >= self.for_s) & (self.quiet == 0)

    def _keep(self, kept: NDArray[np.bool_]) -> None:
        if not kept.all():
            self.rows, self.began, self.held, self.quiet, self.told = (
                one[kept] for one in (self.rows, self.began, self.held, self.quiet, self.told)
            )

    def _add(self, new: Rows, at_s: float) -> None:
        fresh = np.zeros(len(new))
        order = np.argsort(np.concatenate((self.rows, new)), kind="stable")
        self.rows = np.concatenate((self.rows, new))[order]
        self.began = np.concatenate((self.began, fresh + at_s))[order]
        self.held = np.concatenate((self.held, fresh))[order]
        self.quiet = np.concatenate((self.quiet, fresh))[order]
        self.told = np.concatenate((self.told, fresh + np.nan))[order]
