"""Nodes that changed: a slow feature of a node, as against its peers, is not where it was for days.

Two-sided CUSUM (E. Page, Continuous inspection schemes, 1954; run length by D. Siegmund,
Sequential analysis, 1985) over points of 15 minutes of the forest's features: differences to the peers of
the same moment, in units of the peers' robust deviation or of the least difference that matters, cut at ±10.
It finds a small change in hours and a large one in an hour. It is evidence: that a node changed says neither
why nor that it is bad. Method: `docs/detection.md`.
"""

import math
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.features import OWN_COLUMNS, OWN_NAMES, NodeFeatures, classes
from healer.model import Component, Contribution, Detections, Evidence, FaultClass, Finding, Scope, Sense
from healer.observations.groups import peer_median
from healer.observations.telemetry_windows import Telemetry

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


DRIFTED = "drifted"
LOOK_S = 60.0
#: A point needs so many of its 15 looks.
LOOKS_LEAST = 8
#: A change within so long of a node's new job may be the job's: it has to stand in another one for an hour.
JOB_NEAR_S, JOB_STANDS_S = 1800.0, 3600.0
#: More of a rack, or of all that are watched (and at least three), changed together: not the node.
SHARED_PLACE, SHARED_ALL, SHARED_LEAST = 0.5, 0.1, 3
#: What stands for three days is how it is now, and is learnt.
LEARN_ANEW_S = 3 * 86400.0
SHOWN = 5
#: What a lower power limit explains.
_BY_POWER = (
    "gpu power", "SM clock", "gpu temperature", "memory temperature", "power brake", "node power", "tensor",
)  # fmt: skip

_POWERED = np.array([name.startswith(_BY_POWER) for name in OWN_NAMES])

Pair = tuple[str, Component]
Bools = NDArray[np.bool_]


@dataclass(slots=True)
class _Told:
    since: datetime
    due: bool = True


class Shifts:
    """Of all nodes of one cluster that are at work. One thread owns it."""

    def __init__(self) -> None:
        self._saved: SavedLevels | None = None
        self._begin(None)

    def _begin(self, telemetry: Telemetry | None) -> None:
        """Rows of another telemetry are other nodes."""
        self._of = telemetry
        self._looked_s = -math.inf
        self._point: int | None = None
        self.levels = Levels(OWN_NAMES)
        self._sum, self._looks = np.zeros((2, len(OWN_NAMES), 0), np.float32)
        #: (nodes,) the job's row, how many jobs there were, and since when there is this one.
        self._job = np.zeros(0, np.int64)
        self._job_epoch, self._job_since = np.zeros((2, 0))
        self._told: dict[Component, _Told] = {}
        self._cleared: dict[Component, datetime] = {}

    def load(self, packed: bytes) -> None:
        """Levels of before a restart. ValueError when they cannot be read."""
        self._saved = SavedLevels(packed, OWN_NAMES)

    def pack(self, telemetry: Telemetry) -> bytes:
        return self.levels.pack(_node_names(telemetry))

    def usual(self, telemetry: Telemetry) -> NDArray[np.float32]:
        """(nodes, OWN_NAMES) where each feature lay lately, NaN where too little is known of it."""
        found = np.full((telemetry.axis(Scope.node).n, len(OWN_NAMES)), np.nan, np.float32)
        if self._of is telemetry:
            known = np.where(self.levels.points >= LEARN, self.levels.level, np.nan).T
            found[: len(known)] = known[: len(found)]
        return found

    # --- looking ----------------------------------------------------------------------------------------

    def tick(
        self, telemetry: Telemetry, features: NodeFeatures, now: datetime, watched: Collection[Pair]
    ) -> Detections:
        """Cheap but once in `LOOK_S`. `watched`: open incidents, of which it is told what is over."""
        at_s = now.timestamp()
        if self._of is not telemetry or at_s < self._looked_s:
            self._begin(telemetry)
        if at_s - self._looked_s >= LOOK_S:
            self._looked_s = at_s
            self._look(telemetry, features, now)
        findings = []
        for where, told in self._told.items():
            if told.due:
                told.due = False
                findings.append(self._finding(telemetry, features, where, told, now))
        clear = {
            (DRIFTED, where): self._cleared[where]
            for fault, where in watched
            if fault == DRIFTED and where in self._cleared
        }
        return Detections(at=now, findings=tuple(findings), clear_since=clear)

    def forget(self, telemetry: Telemetry, node: str) -> None:
        """The node was repaired, returned or booted: it is learnt anew."""
        if self._of is not telemetry:
            return
        rows = telemetry.rows_of(node, Scope.node)
        rows = rows[rows < self._sum.shape[1]]
        self.levels.forget(rows)
        self._sum[:, rows] = self._looks[:, rows] = 0
        for where in [where for where in self._told if where.node == node]:
            del self._told[where]

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
        known = np.isfinite(matrix) & busy[:n]
        self._sum[:, :n] += np.where(known, matrix, 0)
        self._looks[:, :n] += known

    def _jobs(self, telemetry: Telemetry, at_s: float) -> None:
        job = telemetry.axis(Scope.node).parent(Scope.job).astype(np.int64)
        known = min(len(self._job), len(job))
        other = np.ones(len(job), np.bool_)
        other[:known] = job[:known] != self._job[:known]
        self._job_epoch[: len(job)] += other
        self._job_since[: len(job)][other] = at_s
        self._job = job

    def _complete(self, telemetry: Telemetry, now: datetime) -> None:
        known = self._looks >= LOOKS_LEAST
        point = np.where(known, self._sum / np.maximum(self._looks, 1), np.nan).astype(np.float64)
        at_s = now.timestamp()
        self.levels.learn_anew(at_s, LEARN_ANEW_S)
        near = at_s - POINT_S - self._job_since <= JOB_NEAR_S
        above = self.levels.step(point, at_s, self._job_epoch, near)
        self._judge(telemetry, above & self._stands(at_s), known, now)

    def _stands(self, at_s: float) -> Bools:
        """What began with a new job of its node stands once it outlived that job."""
        outlived = (self._job_epoch > self.levels.epoch) & (at_s - self._job_since >= JOB_STANDS_S)
        return (self.levels.new_job == 0) | outlived

    def _reserve(self, telemetry: Telemetry) -> None:
        names = _node_names(telemetry)
        first = self.levels.columns
        more = len(names) - first
        if more <= 0:
            return
        self.levels.reserve(len(names))
        blank = np.zeros((len(OWN_NAMES), more), np.float32)
        self._sum, self._looks = (np.concatenate([one, blank], axis=1) for one in (self._sum, self._looks))
        self._job_epoch, self._job_since = (
            np.concatenate([one, np.zeros(more)]) for one in (self._job_epoch, self._job_since)
        )
        if self._saved is not None:
            self._saved.give(self.levels, names, first)
            # Which job that was is not known: what began with a new one has to outlive the first seen here.
            self.levels.epoch[:, first:] = 1

    # --- whom it concerns -------------------------------------------------------------------------------

    def _judge(self, telemetry: Telemetry, above: Bools, known: Bools, now: datetime) -> None:
        n = telemetry.axis(Scope.node).n
        up = self.levels.up >= self.levels.down
        alone = above & ~_shared(telemetry, above & up, known) & ~_shared(telemetry, above & ~up, known)
        alone[np.ix_(_POWERED, _capped(telemetry, now, above.shape[1]))] = False
        components = telemetry.axis(Scope.node).components()
        for row in np.flatnonzero(np.asarray(alone.any(axis=0))[:n]).tolist():
            began = float(self.levels.since[alone[:, row], row].min())
            told = self._told.setdefault(components[row], _Told(datetime.fromtimestamp(began, UTC)))
            told.due = True
            self._cleared.pop(components[row], None)
        limit = threshold(int(known.sum()))
        for where in list(self._told):
            row = telemetry.axis(Scope.node).row(where)
            if row is None:
                del self._told[where]
            elif known[:, row].any() and self.levels.sums[:, row].max() < limit / 3:
                del self._told[where]
                self._cleared[where] = now
        self._cleared = {where: at for where, at in self._cleared.items() if not telemetry.is_gone(where)}

    def _finding(
        self, telemetry: Telemetry, features: NodeFeatures, where: Component, told: _Told, now: datetime
    ) -> Finding:
        row = telemetry.axis(Scope.node).row(where)
        assert row is not None
        levels = self.levels
        sums = levels.sums[:, row]
        order = [int(one) for one in np.argsort(-sums, kind="stable")[:SHOWN] if sums[one] > 0]
        total = float(sums.sum())
        parts = [
            Contribution(
                feature=OWN_NAMES[one], share=round(float(sums[one]) / total, 4), value=value, peers=peers
            )
            for one in order
            for value, peers in [features.told(OWN_NAMES[one], row)]
        ]
        moved = "; ".join(
            f"{OWN_NAMES[one]} {levels.newest[one, row]:+.1f} from its peers in their spread, before "
            f"{levels.level[one, row]:+.1f}"
            for one in order[:3]
        )
        text = f"{where} is not what it was since {told.since:%Y-%m-%d %H:%M} UTC: {moved}"
        identity = f"{DRIFTED}|{where.cluster}|{where.node}|{told.since.isoformat()}"
        evidence = Evidence(
            digest=sha256(identity.encode()).hexdigest(),
            at=told.since,
            arrived_at=now,
            component=where,
            text=text,
            sense=Sense.metrics,
        )
        return Finding.from_evidence(
            evidence,
            fault=DRIFTED,
            fault_class=FaultClass.informational,
            title="Changed as against its peers",
            confidence=0.5,
            contributions=tuple(parts),
        )


def _node_names(telemetry: Telemetry) -> list[str]:
    return [one.node or "" for one in telemetry.axis(Scope.node).components()]


def _shared(telemetry: Telemetry, above: Bools, known: Bools) -> Bools:
    """(features, nodes) whether so many changed alike that the cause is not the node."""
    f, n = above.shape
    together = above.sum(axis=1)
    most = (together >= SHARED_LEAST) & (together > SHARED_ALL * known.sum(axis=1))
    found = np.broadcast_to(most[:, np.newaxis], (f, n)).copy()
    for scope in (Scope.rack, Scope.switch):
        place = np.full(n, -1, np.int64)
        told = telemetry.axis(Scope.node).parent(scope)[:n]
        place[: len(told)] = told
        rows = np.flatnonzero(place >= 0)
        if not len(rows):
            continue
        many = int(place.max()) + 1
        cell = (np.arange(f)[:, np.newaxis] * many + place[rows]).ravel()
        changed = np.bincount(cell, above[:, rows].ravel(), minlength=f * many).reshape(f, many)
        all_ = np.bincount(cell, known[:, rows].ravel(), minlength=f * many).reshape(f, many)
        shared = (changed >= SHARED_LEAST) & (changed > SHARED_PLACE * all_)
        found[:, rows] |= shared[:, place[rows]]
    return found


def _capped(telemetry: Telemetry, now: datetime, n: int) -> NDArray[np.int64]:
    """Nodes with a GPU whose power limit is lower than its peers': power, clocks and heat follow from it."""
    if telemetry.scope_of("power_limit_enforced_w") is None:
        return np.zeros(0, np.int64)
    limit = telemetry.value("power_limit_enforced_w", now)
    with np.errstate(invalid="ignore"):
        low = np.flatnonzero(limit < 0.95 * peer_median(limit, telemetry.groups(Scope.gpu)))
    node = telemetry.axis(Scope.gpu).parent(Scope.node)[low]
    return np.unique(node[(node >= 0) & (node < n)].astype(np.int64))
