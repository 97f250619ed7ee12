"""Nodes that are unusual in many slow features at once, among their peers and against their own past,
according to the model of their class; and nodes that changed, by the same features.

It only provides evidence and never acts: its rule has no playbook. Method and limits: `docs/detection.md`.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np
from numpy.typing import NDArray

from healer.detection.features import (
    ALL_NAMES,
    OWN_COLUMNS,
    OWN_NAMES,
    SAMPLE_S,
    NodeFeatures,
    OwnPast,
    against_own_past,
    classes,
    feature_words,
)
from healer.detection.level_shift import DRIFTED, Shifts
from healer.detection.protocol import Detector, Pair, Reports, TickInput, new_evidence, unreadable
from healer.detection.scorers import Model
from healer.model import Chart, ChartLine, Component, Detections, FaultClass, Finding, Scope, Sense
from healer.model.feature_rows import FeatureRow, Floats, Matrix
from healer.observations.telemetry_windows import Telemetry
from healer.text import joined, quoted, say

UNUSUAL = "unusual-node"
#: A node is reported once it has been above its threshold for this long.
HOLD = timedelta(minutes=5)
#: If more than this share of a class (and at least so many nodes) is unusual at once, not the nodes but the
#: class has changed.
SHARED, SHARED_LEAST = 0.1, 3
#: Scores kept for a chart: half an hour.
CHART_SAMPLES = 60
#: Feature history: a row every 5 min, or every 30 s while a class has this few rows; at most this many nodes
#: per row.
KEEP_S = 300.0
FEW_ROWS = 20
NODES_KEPT = 1500

#: GPU model and load; rows of the node axis.
Class = tuple[str, str]
Rows = NDArray[np.intp]


class Forest(Detector):
    """Scores every node of a class that has a model, every 30 s. Used by one thread only.

    `models` returns the models of the cluster, and is called at each scoring; `keep` takes feature rows for
    later training. Neither may raise.
    """

    def __init__(self, models: Callable[[], Sequence[Model]], keep: Callable[[FeatureRow], None]) -> None:
        self._models, self._keep = models, keep
        self._kept: dict[Class, tuple[int, datetime]] = {}
        self._shifts = Shifts()
        self._begin(None)

    def _begin(self, telemetry: Telemetry | None) -> None:
        """Starts without any memory: rows of another telemetry are different nodes."""
        self._of = telemetry
        self._features = NodeFeatures()
        self._own = OwnPast(len(OWN_NAMES))
        self._sampled_at: datetime | None = None
        self._history: deque[tuple[datetime, Floats]] = deque(maxlen=CHART_SAMPLES)
        #: (2, nodes), s since 1970: since when above its threshold, and since when not above; NaN: not
        #: scored.
        self._since = np.zeros((2, 0))
        self._reports = Reports()

    def tick(self, given: TickInput) -> Detections:
        telemetry, now = given.telemetry, given.now
        went_back = self._sampled_at is not None and now < self._sampled_at
        if self._of is not telemetry or went_back:
            self._begin(telemetry)
        findings: list[Finding] = []
        if self._sampled_at is None or (now - self._sampled_at).total_seconds() >= SAMPLE_S:
            self._sampled_at = now
            self._features.sample(telemetry, now)
            by_class: dict[Class, list[int]] = {}
            for row, name in enumerate(classes(telemetry, now)):
                if name[1]:
                    by_class.setdefault(name, []).append(row)
            of_class = {name: np.array(rows, np.intp) for name, rows in sorted(by_class.items())}
            matrix = self._matrix(telemetry, of_class, now)
            self._keep_rows(telemetry, matrix, of_class, now)
            findings = self._score(telemetry, matrix, of_class, now)
        shifted = self._shifts.tick(telemetry, self._features, now, given.watched)
        return Detections(
            at=now,
            findings=(*findings, *shifted.findings),
            clear_since={**self._clear(given), **shifted.clear_since},
        )

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        self._shifts.forget(telemetry, node)
        if self._of is telemetry:
            rows = telemetry.rows_of(node, Scope.node)
            self._features.forget(rows)
            self._own.forget(rows)
            self._since[:, rows[rows < self._since.shape[1]]] = np.nan
            self._reports.forget(node)

    def pack(self, telemetry: Telemetry) -> dict[str, bytes]:
        # Before the first look there is no data, and nothing must replace the stored data.
        return {DRIFTED: self._shifts.pack(telemetry)} if self._shifts.levels.columns else {}

    def load(self, packed: Mapping[str, bytes]) -> list[str]:
        return unreadable(packed, DRIFTED, self._shifts.load)

    @property
    def nbytes(self) -> int:
        return self._shifts.levels.nbytes

    def _matrix(self, telemetry: Telemetry, of_class: Mapping[Class, Rows], now: datetime) -> Matrix:
        """(nodes, all features): against the peers, then against the node's own past. Only working nodes are
        compared with their past, which says nothing about idle ones."""
        peers, usual = self._features.matrix(now), self._shifts.usual(telemetry)
        idle = np.ones(len(peers), np.bool_)
        for (_, load), rows in of_class.items():
            idle[rows] = load != "busy"
        usual[idle] = np.nan
        groups, racks = telemetry.groups(Scope.node), telemetry.rack_groups(Scope.node)
        away = against_own_past(peers[:, OWN_COLUMNS], usual, groups, racks)
        return np.concatenate([peers, self._own.sample(away)], axis=1)

    # --- scoring ---

    def _score(
        self, telemetry: Telemetry, matrix: Matrix, of_class: Mapping[Class, Rows], now: datetime
    ) -> list[Finding]:
        n = len(matrix)
        scores, thresholds = np.full(n, np.nan), np.full(n, np.nan)
        scored: list[tuple[Model, Rows]] = []
        for model in self._models():
            rows = of_class.get((model.hardware, model.load), np.zeros(0, np.intp))
            places, values = model.scored(matrix[rows])
            rows = rows[places]
            if len(rows):
                scores[rows], thresholds[rows] = model.scorer.score(values), model.threshold
                scored.append((model, rows))
        self._history.append((now, scores))
        # A node without a score is neither above nor below: its time restarts when it is scored again.
        before = np.full((2, n), np.nan)
        before[:, : self._since.shape[1]] = self._since[:, :n]
        states = np.stack([scores > thresholds, scores <= thresholds])
        self._since = np.where(states, np.fmin(before, now.timestamp()), np.nan)
        findings: list[Finding] = []
        for model, rows in scored:
            above = rows[now.timestamp() - self._since[0, rows] >= HOLD.total_seconds()]
            if len(above) >= SHARED_LEAST and len(above) > SHARED * len(rows):
                continue
            for row in above.tolist():
                where = telemetry.axis(Scope.node).components()[row]
                if self._reports.is_due((UNUSUAL, where), now):
                    findings.append(self._finding(where, row, model, rows, matrix))
        return findings

    def _clear(self, given: TickInput) -> dict[Pair, datetime]:
        found: dict[Pair, datetime] = {}
        for fault, where in given.watched:
            row = given.telemetry.axis(Scope.node).row(where) if fault == UNUSUAL else None
            if row is not None and row < self._since.shape[1] and np.isfinite(at_s := self._since[1, row]):
                found[fault, where] = datetime.fromtimestamp(float(at_s), given.now.tzinfo)
        return found

    # --- findings ---

    def _finding(self, where: Component, row: int, model: Model, rows: Rows, matrix: Matrix) -> Finding:
        now, scores = self._history[-1]
        since = datetime.fromtimestamp(float(self._since[0, row]), now.tzinfo)
        _, values = model.scored(matrix[row : row + 1])
        share = model.scorer.residual.shares(values)[0]
        parts = self._features.contributions(model.features, share, row)
        named = (
            say("detection.unusual_part", feature=feature_words(of.feature), value=of.value, peers=of.peers)
            for of in parts[:3]
        )
        text = say(
            "detection.unusual_text",
            where=str(where),
            n=len(rows),
            hardware=model.hardware or say("detection.nodes"),
            load=say(f"detection.load_{model.load}"),
            score=float(scores[row]),
            threshold=model.threshold,
            time=f"{since:%H:%M:%S}",
            parts=joined(named, "semicolon"),
        )
        identity = f"{UNUSUAL}|{where.cluster}|{where.node}|{since.isoformat()}"
        with_model = say("detection.by_model", text=text, model=model.id[:12])
        return Finding.from_evidence(
            new_evidence(identity, where, since, with_model, now, Sense.forest),
            fault=UNUSUAL,
            fault_class=FaultClass.informational,
            text=text,
            title=say("detection.unusual"),
            confidence=0.5,
            charts=(self._chart(where, row, model, rows),),
            contributions=parts,
        )

    def _chart(self, where: Component, row: int, model: Model, rows: Rows) -> Chart:
        values, middle = [], []
        for _, scores in self._history:
            values.append(_shown(scores[row]) if row < len(scores) else None)
            of_class = scores[rows[rows < len(scores)]]
            of_class = of_class[np.isfinite(of_class)]
            middle.append(_shown(np.median(of_class)) if len(of_class) else None)
        lines = (
            (quoted(str(where)), "own", values),
            (say("detection.chart_median"), "peers", middle),
            (say("detection.chart_threshold"), "threshold", [model.threshold] * len(values)),
        )
        return Chart(
            title=say("detection.chart_unusual"),
            unit="score",
            times=tuple(at.timestamp() for at, _ in self._history),
            lines=tuple(ChartLine(label=label, role=role, values=tuple(line)) for label, role, line in lines),
            node=where.node,
        )

    # --- history for training ---

    def _keep_rows(
        self, telemetry: Telemetry, matrix: Matrix, of_class: Mapping[Class, Rows], now: datetime
    ) -> None:
        measured = np.flatnonzero(np.isfinite(matrix).any(axis=1))
        components = telemetry.axis(Scope.node).components()
        for name, all_rows in of_class.items():
            count, last = self._kept.get(name, (0, None))
            every_s = SAMPLE_S if count < FEW_ROWS else KEEP_S
            if last is not None and 0 <= (now - last).total_seconds() < every_s:
                continue
            rows = np.intersect1d(all_rows, measured, assume_unique=True)
            if len(rows) > NODES_KEPT:
                # A different selection each time.
                rows = np.sort(np.roll(rows, -count * NODES_KEPT)[:NODES_KEPT])
            if len(rows):
                self._kept[name] = count + 1, now
                nodes = tuple(components[row].node or "" for row in rows.tolist())
                self._keep(FeatureRow(telemetry.cluster, *name, now, nodes, ALL_NAMES, matrix[rows]))


def _shown(score: float) -> float | None:
    return round(float(score), 4) if np.isfinite(score) else None
