"""Where many parallel series lie, and which of them have left it: two-sided CUSUM in columns.

E. Page, Continuous inspection schemes, 1954; D. Siegmund, Sequential analysis, 1985 (the run length).
"""

import math
import zlib
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

#: Seconds of a point.
POINT_S = 900.0
#: Points that are learnt before anything is judged (6 h), and how many a level remembers (2 days).
LEARN, MEMORY = 24, 192
#: Half a unit never counts; noise is taken for at least a quarter.
BAND, NOISE_LEAST = 0.5, 0.25
#: One point counts for at most so many times the noise beyond the band: a wild one is no change.
CLIP = 3.0
#: The least threshold: two points at the clip.
THRESHOLD_LEAST = 6.0
#: False alarms a day of all series together.
BUDGET_PER_DAY = 0.02
#: The newest level remembers some two points.
NEWEST_WEIGHT = 0.4
#: Mean absolute deviation to standard deviation, of a normal distribution.
_TO_SIGMA = 1.2533

_STATE = ("level", "noise", "points", "up", "down", "since", "epoch", "new_job", "newest")

Array = NDArray[np.float64]
Bools = NDArray[np.bool_]


class _Kept(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[str]
    columns: list[str]
    state: dict[str, bytes]


class Levels:
    """Series by (row, column); columns are added as they appear, rows are fixed. All state is float32 but for
    times, so that 30 rows of 10,000 columns hold 12 MB."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = tuple(rows)
        shape = (len(rows), 0)
        self.level = np.zeros(shape, np.float32)
        #: Mean absolute deviation from the level.
        self.noise = np.zeros(shape, np.float32)
        self.points = np.zeros(shape, np.float32)
        self.up = np.zeros(shape, np.float32)
        self.down = np.zeros(shape, np.float32)
        #: When the larger sum left zero, s since 1970; the column's epoch then, and whether that was new.
        self.since = np.zeros(shape)
        self.epoch = np.zeros(shape, np.float32)
        self.new_job = np.zeros(shape, np.float32)
        self.newest = np.zeros(shape, np.float32)

    @property
    def columns(self) -> int:
        return self.level.shape[1]

    @property
    def nbytes(self) -> int:
        return sum(getattr(self, name).nbytes for name in _STATE)

    @property
    def sums(self) -> NDArray[np.float32]:
        return np.maximum(self.up, self.down)

    def reserve(self, columns: int) -> None:
        more = columns - self.columns
        for name in _STATE if more > 0 else ():
            one = getattr(self, name)
            setattr(self, name, np.concatenate([one, np.zeros((len(one), more), one.dtype)], axis=1))

    def forget(self, columns: NDArray[np.int64]) -> None:
        """These are learnt anew."""
        columns = columns[columns < self.columns]
        for name in _STATE:
            getattr(self, name)[:, columns] = 0

    def learn_anew(self, at_s: float, after_s: float) -> None:
        """What has been away for so long is where it lies now."""
        old = (self.sums > 0) & (at_s - self.since > after_s)
        for name in ("points", "up", "down", "noise"):
            getattr(self, name)[old] = 0

    def step(self, x: Array, at_s: float, epoch: Array, near: Bools) -> Bools:
        """One point of all series, NaN where unknown. `epoch` (columns,) numbers the job of each column,
        `near` says that it is a new one. Returns what is beyond the threshold now."""
        known = np.isfinite(x)
        learning = self.points < LEARN
        noise = np.maximum(_TO_SIGMA * self.noise, NOISE_LEAST)
        # Half the noise, and what is not known of the level.
        band = np.maximum((0.5 + 1 / np.sqrt(np.maximum(self.points, 1))) * noise, BAND)
        away = np.where(known, np.clip(x - self.level, -band - CLIP * noise, band + CLIP * noise), 0.0)
        judged = known & ~learning
        limit = threshold(int(judged.sum()))
        before = self.sums
        for one, sign in ((self.up, 1.0), (self.down, -1.0)):
            moved = np.clip(one + (sign * away - band) / noise, 0, 1.5 * limit)
            one[:] = np.where(judged, moved, one)
        grown = self.sums
        begins = (before == 0) & (grown > 0)
        self.since[:] = np.where(begins, at_s - POINT_S, self.since)
        self.epoch[:] = np.where(begins, epoch, self.epoch)
        self.new_job[:] = np.where(begins, near, self.new_job)
        # What looks changed is not learnt, else it would be the level soon.
        calm = known & (learning | (grown < limit / 4))
        self._learn(np.where(known, x, 0.0), away, calm, learning)
        moved = self.newest + NEWEST_WEIGHT * (np.where(known, x, 0.0) - self.newest)
        self.newest[:] = np.where(known, moved, self.newest)
        return judged & (grown > limit)

    def _learn(self, x: Array, away: Array, calm: Bools, learning: Bools) -> None:
        """The first point is the level; from then on it follows, slower and slower."""
        self.points[:] = np.minimum(self.points + calm, MEMORY)
        rate = 1 / np.maximum(self.points, 1)
        step = np.where(learning, x - self.level, away)
        first = self.points <= 1
        noise = self.noise + rate * (np.abs(step) - self.noise)
        self.noise[:] = np.where(calm & ~first, noise, self.noise)
        self.level[:] = np.where(calm, self.level + rate * step, self.level)
        self.newest[:] = np.where(calm & first, x, self.newest)

    # --- keeping ----------------------------------------------------------------------------------------

    def pack(self, columns: Sequence[str]) -> bytes:
        """What a restart needs. `columns` are the names of the first ones."""
        n = min(len(columns), self.columns)
        state = {name: np.ascontiguousarray(getattr(self, name)[:, :n]).tobytes() for name in _STATE}
        kept = _Kept(rows=list(self.rows), columns=list(columns[:n]), state=state)
        return zlib.compress(msgspec.msgpack.encode(kept), 1)


class SavedLevels:
    """Packed levels, given back to the columns as these appear."""

    def __init__(self, packed: bytes, rows: Sequence[str]) -> None:
        """ValueError when it is not what `Levels.pack` made of these rows."""
        try:
            kept = msgspec.msgpack.decode(zlib.decompress(packed), type=_Kept)
            if kept.rows != list(rows):
                raise ValueError("levels of other features")
            shape = (len(kept.rows), len(kept.columns))
            self._state = {
                name: np.frombuffer(kept.state[name], np.float64 if name == "since" else np.float32).reshape(
                    shape
                )
                for name in _STATE
            }
        except (zlib.error, msgspec.DecodeError, KeyError) as error:
            raise ValueError(f"no levels: {error}") from None
        self._columns = {name: column for column, name in enumerate(kept.columns)}

    def give(self, levels: Levels, names: Sequence[str], first: int) -> None:
        """Puts what is known of `names[first:]`, which are new, into their columns."""
        pairs = [
            (column, self._columns[name])
            for column, name in enumerate(names[first:], start=first)
            if name in self._columns
        ]
        if pairs:
            columns, own = (np.array(one, np.intp) for one in zip(*pairs, strict=True))
            for name in _STATE:
                getattr(levels, name)[:, columns] = self._state[name][:, own]


def threshold(series: int) -> float:
    """By Siegmund's approximation of CUSUM's run length, at a band of half the noise: so many series have
    `BUDGET_PER_DAY` false alarms in all."""
    length = max(series, 1) * 86400 / POINT_S / BUDGET_PER_DAY
    return max(THRESHOLD_LEAST, math.log1p(0.5 * length) - 1.166)
