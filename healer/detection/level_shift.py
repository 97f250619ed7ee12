"""Nodes that changed: a slow feature of a node, relative to its peers, has left its level of the last days.

Two-sided CUSUM (E. Page, Continuous inspection schemes, 1954; run length by D. Siegmund, Sequential analysis,
1985) over points of 15 minutes of the forest's features: differences to the peers at the same moment, in
units of the peers' robust deviation or of the smallest difference that matters, clipped at ±10. It finds a
small change in hours and a large one in an hour. It is evidence: that a node changed says neither why nor
that it is bad. Method: `docs/detection.md`."""

import math
import zlib
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.features import OWN_COLUMNS, OWN_NAMES, NodeFeatures, classes, feature_words, largest
from healer.detection.protocol import Episodes, Pair, new_evidence
from healer.model import Component, Detections, FaultClass, Finding, Scope, Sense
from healer.observations.groups import peer_median
from healer.observations.telemetry_windows import Telemetry
from healer.text import joined, say

#: Seconds of a point.
POINT_S = 900.0
#: Points to learn before anything is judged (6 h), and the memory of a level (2 days).
LEARN, MEMORY = 24, 192
#: Half a unit never counts; noise is at least a quarter.
BAND, NOISE_LEAST = 0.5, 0.25
#: One point counts for at most this many times the noise beyond the band: an outlier is no change.
CLIP = 3.0
#: The least threshold: two points at the clip.
THRESHOLD_LEAST = 6.0
#: False alarms a day of all series together.
BUDGET_PER_DAY = 0.02
#: The newest level covers about two points.
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
    """Series by (row, column); columns are added as they appear, rows are fixed. All state is float32 except
    times, so that 30 rows of 10,000 columns take 12 MB."""

    def __init__(self, rows: Sequence[str]) -> None:
        self.rows = tuple(rows)
        shape = (len(rows), 0)
        self.level = np.zeros(shape, np.float32)
        #: Mean absolute deviation from the level.
        self.noise = np.zeros(shape, np.float32)
        self.points = np.zeros(shape, np.float32)
        self.up = np.zeros(shape, np.float32)
        self.down = np.zeros(shape, np.float32)
        #: When the larger sum left zero, s since 1970; the column's epoch at that time, and whether it was
        #: new.
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
            setattr(self, name, np.pad(getattr(self, name), ((0, 0), (0, more))))

    def forget(self, columns: NDArray[np.int64]) -> None:
        """Resets these columns."""
        columns = columns[columns < self.columns]
        for name in _STATE:
            getattr(self, name)[:, columns] = 0

    def relearn(self, at_s: float, after_s: float) -> None:
        """Learns a new level for each series that has been off its level for this long."""
        old = (self.sums > 0) & (at_s - self.since > after_s)
        for name in ("points", "up", "down", "noise"):
            getattr(self, name)[old] = 0

    def step(self, x: Array, at_s: float, epoch: Array, near: Bools) -> Bools:
        """Adds one point of all series, NaN where unknown. `epoch` (columns,): the number of each column's
        job; `near`: its job is new. Returns which series are beyond the threshold now."""
        valid = np.isfinite(x)
        learning = self.points < LEARN
        noise = np.maximum(_TO_SIGMA * self.noise, NOISE_LEAST)
        # Half the noise, plus the uncertainty of the level.
        band = np.maximum((0.5 + 1 / np.sqrt(np.maximum(self.points, 1))) * noise, BAND)
        away = np.where(valid, np.clip(x - self.level, -band - CLIP * noise, band + CLIP * noise), 0.0)
        judged = valid & ~learning
        limit = threshold(int(judged.sum()))
        before = self.sums
        for cusum, sign in ((self.up, 1.0), (self.down, -1.0)):
            moved = np.clip(cusum + (sign * away - band) / noise, 0, 1.5 * limit)
            cusum[:] = np.where(judged, moved, cusum)
        grown = self.sums
        begins = (before == 0) & (grown > 0)
        self.since[:] = np.where(begins, at_s - POINT_S, self.since)
        self.epoch[:] = np.where(begins, epoch, self.epoch)
        self.new_job[:] = np.where(begins, near, self.new_job)
        # A series that looks changed is not learnt, or the change would soon be its level.
        calm = valid & (learning | (grown < limit / 4))
        x = np.where(valid, x, 0.0)
        self._learn(x, away, calm, learning)
        self.newest[:] = np.where(valid, self.newest + NEWEST_WEIGHT * (x - self.newest), self.newest)
        return judged & (grown > limit)

    def _learn(self, x: Array, away: Array, calm: Bools, learning: Bools) -> None:
        """The first point is the level; from then on the level follows more and more slowly."""
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
        """State for the next start. `columns`: the names of the first columns."""
        n = min(len(columns), self.columns)
        state = {name: np.ascontiguousarray(getattr(self, name)[:, :n]).tobytes() for name in _STATE}
        kept = _Kept(rows=list(self.rows), columns=list(columns[:n]), state=state)
        return zlib.compress(msgspec.msgpack.encode(kept), 1)


class SavedLevels:
    """Unpacked levels, which are restored as their columns appear."""

    def __init__(self, packed: bytes, rows: Sequence[str]) -> None:
        """Raises ValueError if `packed` was not made by `Levels.pack` for these rows."""
        try:
            kept = msgspec.msgpack.decode(zlib.decompress(packed), type=_Kept)
            if kept.rows != list(rows):
                raise ValueError("levels of other features")
            shape = (len(kept.rows), len(kept.columns))
            dtypes = {name: np.float64 if name == "since" else np.float32 for name in _STATE}
            self._state = {
                name: np.frombuffer(kept.state[name], dtype).reshape(shape) for name, dtype in dtypes.items()
            }
        except (zlib.error, msgspec.DecodeError, KeyError) as error:
            raise ValueError(f"no levels: {error}") from None
        self._columns = {name: column for column, name in enumerate(kept.columns)}

    def give(self, levels: Levels, names: Sequence[str], first: int) -> None:
        """Restores the levels of `names[first:]`, which are new columns."""
        pairs = [
            (column, self._columns[name])
            for column, name in enumerate(names[first:], start=first)
            if name in self._columns
        ]
        if pairs:
            columns, kept = (np.array(places, np.intp) for places in zip(*pairs, strict=True))
            for name in _STATE:
                getattr(levels, name)[:, columns] = self._state[name][:, kept]


def threshold(series: int) -> float:
    """The threshold for this many series to have `BUDGET_PER_DAY` false alarms in total, by Siegmund's
    approximation of CUSUM's run length, at a band of half the noise."""
    length = max(series, 1) * 86400 / POINT_S / BUDGET_PER_DAY
    return max(THRESHOLD_LEAST, math.log1p(0.5 * length) - 1.166)


DRIFTED = "drifted"
LOOK_S = 60.0
#: A point needs this many of its 15 looks.
LOOKS_LEAST = 8
#: A change within this time of a node's new job may be due to the job: it must outlast that job by an hour.
JOB_NEAR_S, JOB_OUTLIVED_S = 1800.0, 3600.0
#: If more than this share of a rack, or of all judged nodes (and at least three), changed together, the cause
#: is not the node.
SHARED_PLACE, SHARED_ALL, SHARED_LEAST = 0.5, 0.1, 3
#: A change that has lasted for three days is the new normal, and is learnt.
RELEARN_AFTER_S = 3 * 86400.0
#: Features that a lower power limit explains.
_BY_POWER = (
    "gpu power", "SM clock", "gpu temperature", "memory temperature", "power brake", "node power", "tensor",
)  # fmt: skip

_POWERED = np.array([name.startswith(_BY_POWER) for name in OWN_NAMES])


class Shifts:
    """The shifts of all working nodes of one cluster. Used by one thread only."""

    def __init__(self) -> None:
        self._saved: SavedLevels | None = None
        self._begin(None)

    def _begin(self, telemetry: Telemetry | None) -> None:
        """Starts without any memory: rows of another telemetry are different nodes."""
        self._of = telemetry
        self._looked_s = -math.inf
        self._point: int | None = None
        self.levels = Levels(OWN_NAMES)
        self._sum, self._looks = np.zeros((2, len(OWN_NAMES), 0), np.float32)
        #: (nodes,) the job's row, the number of jobs so far, and since when the present one runs.
        self._job = np.zeros(0, np.int64)
        self._job_epoch, self._job_since = np.zeros((2, 0))
        self._changed = Episodes[None]()

    def load(self, packed: bytes) -> None:
        """Restores levels from before a restart. Raises ValueError if they cannot be read."""
        self._saved = SavedLevels(packed, OWN_NAMES)

    def pack(self, telemetry: Telemetry) -> bytes:
        return self.levels.pack(_node_names(telemetry))

    def usual(self, telemetry: Telemetry) -> NDArray[np.float32]:
        """(nodes, OWN_NAMES) the usual level of each feature, NaN if too little is known about it."""
        found = np.full((telemetry.axis(Scope.node).n, len(OWN_NAMES)), np.nan, np.float32)
        if self._of is telemetry:
            levels = np.where(self.levels.points >= LEARN, self.levels.level, np.nan).T
            found[: len(levels)] = levels[: len(found)]
        return found

    # --- looking ----------------------------------------------------------------------------------------

    def tick(
        self, telemetry: Telemetry, features: NodeFeatures, now: datetime, watched: Collection[Pair]
    ) -> Detections:
        """Cheap, except once per `LOOK_S`. `watched`: open incidents, whose end is to be reported."""
        at_s = now.timestamp()
        if self._of is not telemetry or at_s < self._looked_s:
            self._begin(telemetry)
        if at_s - self._looked_s >= LOOK_S:
            self._looked_s = at_s
            self._look(telemetry, features, now)
        findings = tuple(
            self._finding(telemetry, features, where, episode.since, now)
            for where, episode in self._changed.due()
        )
        return Detections(at=now, findings=findings, clear_since=self._changed.cleared(DRIFTED, watched))

    def forget(self, telemetry: Telemetry, node: str) -> None:
        """The node was repaired, returned or booted: its history is reset."""
        if self._of is not telemetry:
            return
        rows = telemetry.rows_of(node, Scope.node)
        rows = rows[rows < self._sum.shape[1]]
        self.levels.forget(rows)
        self._sum[:, rows] = self._looks[:, rows] = 0
        self._changed.on = {
            where: episode for where, episode in self._changed.on.items() if where.node != node
        }

    def _look(self, telemetry: Telemetry, features: NodeFeatures, now: datetime) -> None:
        matrix = features.matrix(now).T[OWN_COLUMNS]  # (features, nodes)
        n = matrix.shape[1]
        self._reserve(telemetry)
        self._jobs(telemetry, now.timestamp())
        number = int(now.timestamp() // POINT_S)
        if self._point is not None and number != self._point:
            self._complete(telemetry, now)
            self._sum[:], self._looks[:] = 0, 0
        self._point = number
        busy = np.array([load == "busy" for _, load in classes(telemetry, now)], np.bool_)
        valid = np.isfinite(matrix) & busy[:n]
        self._sum[:, :n] += np.where(valid, matrix, 0)
        self._looks[:, :n] += valid

    def _jobs(self, telemetry: Telemetry, at_s: float) -> None:
        job = telemetry.axis(Scope.node).parent(Scope.job).astype(np.int64)
        other = np.ones(len(job), np.bool_)
        other[: len(self._job)] = job[: len(self._job)] != self._job[: len(job)]
        self._job_epoch[: len(job)] += other
        self._job_since[: len(job)][other] = at_s
        self._job = job

    def _complete(self, telemetry: Telemetry, now: datetime) -> None:
        judged = self._looks >= LOOKS_LEAST
        point = np.where(judged, self._sum / np.maximum(self._looks, 1), np.nan).astype(np.float64)
        at_s = now.timestamp()
        self.levels.relearn(at_s, RELEARN_AFTER_S)
        near = at_s - POINT_S - self._job_since <= JOB_NEAR_S
        above = self.levels.step(point, at_s, self._job_epoch, near)
        # A change that began with a new job of its node counts once it has outlasted that job.
        outlived = (self._job_epoch > self.levels.epoch) & (at_s - self._job_since >= JOB_OUTLIVED_S)
        self._judge(telemetry, above & ((self.levels.new_job == 0) | outlived), judged, now)

    def _reserve(self, telemetry: Telemetry) -> None:
        names = _node_names(telemetry)
        first = self.levels.columns
        more = len(names) - first
        if more <= 0:
            return
        self.levels.reserve(len(names))
        self._sum, self._looks = (np.pad(array, ((0, 0), (0, more))) for array in (self._sum, self._looks))
        self._job_epoch, self._job_since = (
            np.pad(array, (0, more)) for array in (self._job_epoch, self._job_since)
        )
        if self._saved is not None:
            self._saved.give(self.levels, names, first)
            # Which job that was is unknown: a change that began with a new one must outlast the first job
            # seen here.
            self.levels.epoch[:, first:] = 1

    # --- which nodes changed ----------------------------------------------------------------------------

    def _judge(self, telemetry: Telemetry, above: Bools, judged: Bools, now: datetime) -> None:
        n = telemetry.axis(Scope.node).n
        up = self.levels.up >= self.levels.down
        alone = above & ~_shared(telemetry, above & up, judged) & ~_shared(telemetry, above & ~up, judged)
        alone[np.ix_(_POWERED, _capped(telemetry, now, above.shape[1]))] = False
        components = telemetry.axis(Scope.node).components()
        for row in np.flatnonzero(np.asarray(alone.any(axis=0))[:n]).tolist():
            began = float(self.levels.since[alone[:, row], row].min())
            self._changed.show(components[row], None, datetime.fromtimestamp(began, UTC))
        limit = threshold(int(judged.sum()))
        for where in list(self._changed.on):
            row = telemetry.axis(Scope.node).row(where)
            if row is None:
                del self._changed.on[where]
            elif judged[:, row].any() and self.levels.sums[:, row].max() < limit / 3:
                self._changed.miss(where, now)
        self._changed.drop_gone(telemetry)

    def _finding(
        self, telemetry: Telemetry, features: NodeFeatures, where: Component, since: datetime, now: datetime
    ) -> Finding:
        row = telemetry.axis(Scope.node).row(where)
        assert row is not None
        levels = self.levels
        sums = levels.sums[:, row].astype(np.float64)
        parts = features.contributions(OWN_NAMES, sums / float(sums.sum()), row)
        moved = (
            say(
                "detection.moved",
                feature=feature_words(OWN_NAMES[at]),
                now=float(levels.newest[at, row]),
                before=float(levels.level[at, row]),
            )
            for at in largest(sums)[:3]
        )
        text = say(
            "detection.drifted_text",
            where=str(where),
            when=f"{since:%Y-%m-%d %H:%M}",
            moved=joined(moved, "semicolon"),
        )
        identity = f"{DRIFTED}|{where.cluster}|{where.node}|{since.isoformat()}"
        return Finding.from_evidence(
            new_evidence(identity, where, since, text, now, Sense.metrics),
            fault=DRIFTED,
            fault_class=FaultClass.informational,
            title=say("detection.drifted"),
            confidence=0.5,
            contributions=parts,
        )


def _node_names(telemetry: Telemetry) -> list[str]:
    return [where.node or "" for where in telemetry.axis(Scope.node).components()]


def _shared(telemetry: Telemetry, above: Bools, judged: Bools) -> Bools:
    """(features, nodes) whether so many nodes changed alike that the cause is not the node."""
    f, n = above.shape
    together = above.sum(axis=1)
    most = (together >= SHARED_LEAST) & (together > SHARED_ALL * judged.sum(axis=1))
    found = np.broadcast_to(most[:, np.newaxis], (f, n)).copy()
    for scope in (Scope.rack, Scope.switch):
        place = np.full(n, -1, np.int64)
        parent = telemetry.axis(Scope.node).parent(scope)[:n]
        place[: len(parent)] = parent
        rows = np.flatnonzero(place >= 0)
        if not len(rows):
            continue
        many = int(place.max()) + 1
        cell = (np.arange(f)[:, np.newaxis] * many + place[rows]).ravel()
        changed = np.bincount(cell, above[:, rows].ravel(), minlength=f * many).reshape(f, many)
        all_ = np.bincount(cell, judged[:, rows].ravel(), minlength=f * many).reshape(f, many)
        shared = (changed >= SHARED_LEAST) & (changed > SHARED_PLACE * all_)
        found[:, rows] |= shared[:, place[rows]]
    return found


def _capped(telemetry: Telemetry, now: datetime, n: int) -> NDArray[np.int64]:
    """Nodes with a GPU whose power limit is lower than its peers': that explains power, clocks and heat."""
    limit = telemetry.value_on(Scope.gpu, "power_limit_enforced_w", now)
    with np.errstate(invalid="ignore"):
        low = np.flatnonzero(limit < 0.95 * peer_median(limit, telemetry.groups(Scope.gpu)))
    node = telemetry.axis(Scope.gpu).parent(Scope.node)[low]
    return np.unique(node[(node >= 0) & (node < n)].astype(np.int64))
