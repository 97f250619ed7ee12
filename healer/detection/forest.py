"""Models of classes: nodes that are unusual in many slow features at once, among their peers and against
their own past. Which way of looking decides is said in `training`; the isolation forest is one of them.

It raises evidence and never does anything alone: its rule has no playbook. Method and limits:
`docs/detection.md`.
"""

from collections import deque
from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from healer.detection.features import ALL_NAMES, OWN_COLUMNS, OWN_NAMES, SAMPLE_S, NodeFeatures, classes
from healer.detection.own_past import OwnPast, against_own_past
from healer.detection.training import DECIDES, FeatureRow, Fitted, Model, own_of
from healer.detection.ways import largest, shares
from healer.model import (
    Chart,
    ChartLine,
    Component,
    Contribution,
    Evidence,
    FaultClass,
    Finding,
    Scope,
    Sense,
    Sensed,
)
from healer.observations.telemetry import Telemetry

UNUSUAL = "unusual-node"
#: Above its threshold for this long, a node is told of; what stands is told again after that.
HOLD = timedelta(minutes=5)
AGAIN_AFTER = timedelta(minutes=5)
#: More of a class than this at once (and at least so many) are no unusual nodes: the class has changed.
SHARED, SHARED_LEAST = 0.1, 3
#: Scores kept for a chart: half an hour.
CHART_SAMPLES = 60
CONTRIBUTIONS = 5
#: Feature history: a row every 5 min; every 30 s while a class has so few; so many nodes in one.
KEEP_S = 300.0
FEW_ROWS = 20
NODES_KEPT = 1500

Pair = tuple[str, Component]


#: (nodes, OWN_NAMES) where each lay lately, by the rows of the node axis (`Shifts.usual`).
Usual = Callable[[Telemetry], NDArray[np.float32]]


def nothing_usual(telemetry: Telemetry) -> NDArray[np.float32]:
    """Nobody's past is known."""
    return np.full((telemetry.axis(Scope.node).n, len(OWN_NAMES)), np.nan, np.float32)


class Forest:
    """Scores every node of a class that has a model, every 30 s. One thread owns it.

    `models` gives the fitted models of the cluster, and is asked at each scoring; `keep` takes feature rows
    for later training. Neither may raise.
    """

    def __init__(self, models: Callable[[], Sequence[Fitted]], keep: Callable[[FeatureRow], None]) -> None:
        self._models, self._keep = models, keep
        self._kept: dict[tuple[str, str], tuple[int, datetime]] = {}
        self._of: Telemetry | None = None
        self._begin(None)

    def _begin(self, telemetry: Telemetry | None) -> None:
        """Nothing is known yet: rows of another telemetry are other nodes."""
        self._of = telemetry
        self._features = NodeFeatures()
        self._own = OwnPast(len(OWN_NAMES))
        self._sampled_at: datetime | None = None
        self._history: deque[tuple[datetime, NDArray[np.float64]]] = deque(maxlen=CHART_SAMPLES)
        #: By row of the node axis, s since 1970: above, or known to be below, since then; NaN neither.
        self._above = np.zeros(0)
        self._below = np.zeros(0)
        self._told: dict[Component, datetime] = {}

    @property
    def features(self) -> NodeFeatures:
        """As of the last tick, for whoever else looks at them."""
        return self._features

    def tick(
        self,
        telemetry: Telemetry,
        now: datetime,
        watched: Collection[Pair] = (),
        usual: Usual = nothing_usual,
    ) -> Sensed:
        """New findings of `unusual-node`, and since when those told or `watched` are known to be usual."""
        went_back = self._sampled_at is not None and now < self._sampled_at
        if self._of is not telemetry or went_back:
            self._begin(telemetry)
        findings: list[Finding] = []
        if self._sampled_at is None or (now - self._sampled_at).total_seconds() >= SAMPLE_S:
            self._sampled_at = now
            self._features.sample(telemetry, now)
            names = classes(telemetry, now)
            matrix = self._matrix(telemetry, names, now, usual)
            self._keep_rows(telemetry, matrix, names, now)
            findings = self._score(telemetry, matrix, names, now)
        return Sensed(at=now, findings=tuple(findings), clear_since=self._clear(telemetry, now, watched))

    def forget(self, telemetry: Telemetry, node: str) -> None:
        """The node was repaired, returned or booted: what it was like before is over."""
        if self._of is not telemetry:
            return
        rows = telemetry.rows_of(node, Scope.node)
        self._features.forget(rows)
        self._own.forget(rows)
        for state in (self._above, self._below):
            state[rows[rows < len(state)]] = np.nan
        for where in [where for where in self._told if where.node == node]:
            del self._told[where]

    def _matrix(
        self, telemetry: Telemetry, names: list[tuple[str, str]], now: datetime, usual: Usual
    ) -> NDArray[np.float32]:
        """(nodes, all features): against the peers, then against the node's own past. That is known of nodes
        at work, and says nothing of idle ones."""
        peers = self._features.matrix(now)
        busy = np.fromiter((load == "busy" for _, load in names), bool, len(names))
        lay = np.where(busy[:, np.newaxis], usual(telemetry), np.nan).astype(np.float32)
        groups, racks = telemetry.groups(Scope.node), telemetry.rack_groups(Scope.node)
        away = against_own_past(peers[:, OWN_COLUMNS], lay, groups, racks)
        return np.concatenate([peers, self._own.sample(away)], axis=1)

    # --- scoring ---

    def _score(
        self, telemetry: Telemetry, matrix: NDArray[np.float32], names: list[tuple[str, str]], now: datetime
    ) -> list[Finding]:
        n = len(matrix)
        scores, thresholds = np.full(n, np.nan), np.full(n, np.nan)
        scorers = {(one.model.hardware, one.model.load): one for one in self._models()}
        of_class: dict[tuple[str, str], NDArray[np.intp]] = {}
        for name, scorer in scorers.items():
            rows = np.flatnonzero(np.fromiter((name == one for one in names), bool, n))
            told, own = own_of(scorer.model, matrix[rows])
            rows = rows[told]
            if len(rows):
                scores[rows] = scorer.score(own)
                thresholds[rows] = scorer.model.threshold
            of_class[name] = rows
        self._history.append((now, scores))
        self._note(scores, thresholds, now)
        findings: list[Finding] = []
        for name, rows in of_class.items():
            above = rows[now.timestamp() - self._above[rows] >= HOLD.total_seconds()]
            if len(above) >= SHARED_LEAST and len(above) > SHARED * len(rows):
                continue
            for row in above:
                where = telemetry.axis(Scope.node).components()[row]
                if self._due(where, now):
                    findings.append(self._finding(where, int(row), scorers[name], rows, matrix, now))
        return findings

    def _note(self, scores: NDArray, thresholds: NDArray, now: datetime) -> None:
        """What is not scored is neither above nor below: the time starts anew when it is heard again."""
        more = len(scores) - len(self._above)
        if more > 0:
            self._above = np.concatenate([self._above, np.full(more, np.nan)])
            self._below = np.concatenate([self._below, np.full(more, np.nan)])
        for state, true in ((self._above, scores > thresholds), (self._below, scores <= thresholds)):
            state[: len(true)] = np.where(true, np.fmin(state[: len(true)], now.timestamp()), np.nan)

    def _due(self, where: Component, now: datetime) -> bool:
        last = self._told.get(where)
        if last is not None and now - last < AGAIN_AFTER:
            return False
        self._told[where] = now
        return True

    def _clear(self, telemetry: Telemetry, now: datetime, watched: Collection[Pair]) -> dict[Pair, datetime]:
        axis = telemetry.axis(Scope.node)
        wanted = {where for fault, where in watched if fault == UNUSUAL} | self._told.keys()
        found: dict[Pair, datetime] = {}
        for where in wanted:
            row = axis.row(where)
            if row is None or row >= len(self._below) or np.isnan(self._below[row]):
                continue
            since = found[UNUSUAL, where] = datetime.fromtimestamp(float(self._below[row]), now.tzinfo)
            if (UNUSUAL, where) not in watched and now - since > HOLD:
                self._told.pop(where, None)
        return found

    # --- telling ---

    def _finding(
        self,
        where: Component,
        row: int,
        scorer: Fitted,
        rows: NDArray[np.intp],
        matrix: NDArray[np.float32],
        now: datetime,
    ) -> Finding:
        model = scorer.model
        score = float(self._history[-1][1][row])
        since = datetime.fromtimestamp(float(self._above[row]), now.tzinfo)
        parts = self._contributions(row, scorer, matrix)
        named = "; ".join(f"{one.feature} {one.value:.4g}, peers {one.peers:.4g}" for one in parts[:3])
        text = (
            f"{where} is unusual among {len(rows)} {model.hardware or 'nodes'} that are {model.load}: score "
            f"{score:.2f}, threshold {model.threshold:.2f}, since {since:%H:%M:%S} UTC; {named}"
        )
        identity = f"{UNUSUAL}|{where.cluster}|{where.node}|{since.isoformat()}"
        evidence = Evidence(
            digest=sha256(identity.encode()).hexdigest(),
            at=since,
            component=where,
            text=f"{text} (model {model.id[:12]})",
            arrived_at=now,
            sense=Sense.forest,
        )
        return Finding(
            rule=UNUSUAL,
            fault=UNUSUAL,
            fault_class=FaultClass.informational,
            component=where,
            at=since,
            arrived_at=now,
            text=text,
            title="Unusual among its peers, or for itself",
            confidence=0.5,
            evidence=(evidence,),
            charts=(self._chart(where, row, model, rows),),
            contributions=parts,
        )

    def _contributions(
        self, row: int, scorer: Fitted, matrix: NDArray[np.float32]
    ) -> tuple[Contribution, ...]:
        _, own = own_of(scorer.model, matrix[row : row + 1])
        drop = scorer.ways[DECIDES].parts(own)
        share = shares(drop if drop.any() else np.abs(own).astype(np.float64))[0]
        found = []
        for index in largest(share, CONTRIBUTIONS):
            name = scorer.model.features[index]
            value, peers = self._features.told(name, row)
            found.append(
                Contribution(feature=name, share=round(float(share[index]), 4), value=value, peers=peers)
            )
        return tuple(found)

    def _chart(self, where: Component, row: int, model: Model, rows: NDArray[np.intp]) -> Chart:
        own, middle = [], []
        for _, scores in self._history:
            own.append(_shown(scores[row]) if row < len(scores) else None)
            known = scores[rows[rows < len(scores)]]
            known = known[np.isfinite(known)]
            middle.append(_shown(np.median(known)) if len(known) else None)
        return Chart(
            title="How unusual the node is, by the model of its class",
            unit="score",
            times=tuple(at.timestamp() for at, _ in self._history),
            lines=(
                ChartLine(label=str(where), role="own", values=tuple(own)),
                ChartLine(label="median of its class", role="peers", values=tuple(middle)),
                ChartLine(label="threshold", role="threshold", values=(model.threshold,) * len(own)),
            ),
            node=where.node,
        )

    # --- history for training ---

    def _keep_rows(
        self, telemetry: Telemetry, matrix: NDArray[np.float32], names: list[tuple[str, str]], now: datetime
    ) -> None:
        known = np.isfinite(matrix)
        told = known.any(axis=1)
        components = telemetry.axis(Scope.node).components()
        for name in sorted({one for one in names if one[1]}):
            count, last = self._kept.get(name, (0, None))
            every_s = SAMPLE_S if count < FEW_ROWS else KEEP_S
            if last is not None and 0 <= (now - last).total_seconds() < every_s:
                continue
            rows = np.flatnonzero(told & np.fromiter((name == one for one in names), bool, len(names)))
            if len(rows) > NODES_KEPT:
                # Another part of them each time.
                rows = np.sort(np.roll(rows, -count * NODES_KEPT)[:NODES_KEPT])
            if len(rows):
                self._kept[name] = count + 1, now
                nodes = tuple(components[row].node or "" for row in rows.tolist())
                self._keep(FeatureRow(telemetry.cluster, *name, now, nodes, ALL_NAMES, matrix[rows]))


def _shown(score: float) -> float | None:
    return round(float(score), 4) if np.isfinite(score) else None
