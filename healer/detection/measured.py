"""Detection rules over everything measured: one pass over the fleet per tick.

A rule fires on what is known true for its `for`, and is clear on what is known false; unknown is neither.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from healer.detection.hysteresis import Heard, Holds, rests_on
from healer.detection.language import parse
from healer.detection.language.compile import Moment, Program
from healer.detection.language.expr import Expr
from healer.detection.language.truth_columns import FALSE, TRUE, UNKNOWN, Truth
from healer.detection.language.units import PLAIN, UNIT_WORDS
from healer.detection.presentation import Charts, Teller
from healer.detection.protocol import Detector, Look
from healer.model import (
    OF_DEVICES,
    Catalogue,
    Chart,
    Component,
    DetectionRule,
    Detections,
    Evidence,
    FaultClass,
    Finding,
    Ruleset,
    Scope,
    Sense,
)
from healer.observations.telemetry_windows import Telemetry

#: What stands is told again so often.
REPEAT = timedelta(minutes=5)
#: Findings of one rule in one tick; the others follow in the next ones. A storm must not stop the tick.
MOST_AT_ONCE = 50
#: Only so many of them get a chart: it is what costs.
MOST_CHARTS = 20
#: How long a cleared finding that no incident watches is remembered.
_CLEAR_KEPT_S = 900.0

#: Nodes behind a device that a sentence names.
_NAMED = 4

_CONFIDENCE = {FaultClass.fatal: 0.95, FaultClass.degraded: 0.8}

_NO_ROWS = np.zeros(0, np.int64)


class _Rule:
    """One rule, read, with what is remembered of its rows."""

    def __init__(self, rule: DetectionRule, catalogue: Catalogue, before: "_Rule | None") -> None:
        self.rule, signals = rule, catalogue.signals
        self.when = parse.condition(rule.when, signals, rule.scope)
        self.threshold: Expr | None = None
        if rule.threshold:
            self.threshold = parse.number(rule.threshold, signals, rule.scope)
        self.signal = signals[rule.signal or shown_signal(self.when)]
        self.inputs = self.when.signals | (self.threshold.signals if self.threshold else frozenset())
        self.rests_on = rests_on(self.when, self.signal.name, catalogue)
        self.compares_peers = any(one.op in ("peers", "peer_z", "peers_at") for one in self.when.walk())
        # The chart's unit is that of the limit in it: `31/1m` is a rate, `2` a growth.
        own = (UNIT_WORDS[self.signal.unit], PLAIN)
        self.grown = self.threshold is not None and self.threshold.unit in own
        same = before is not None and before.rule == rule
        self.holds = before.holds if same and before else Holds(rule.for_s)
        #: Rows that were told of and have ended since; watched components likewise. Since when, s since 1970.
        self.cleared: dict[int, float] = before.cleared if same and before else {}
        self.cleared_watched: dict[Component, float] = before.cleared_watched if same and before else {}
        #: What the last tick found, and of which rows.
        self.seen: tuple[object, Truth] | None = None

    @property
    def is_idle(self) -> bool:
        """Nothing holds or is remembered."""
        return not (len(self.holds.rows) or self.cleared or self.cleared_watched)

    def rests(self, seen: tuple[object, Truth]) -> bool:
        """This tick sees the very same as the last one: nothing to do."""
        same = self.seen is not None and self.seen[1] is seen[1] and self.seen[0] == seen[0]
        return same and self.is_idle

    def sleeps(self, moment: Moment) -> bool:
        """Of none of its inputs anything was ever reported, and it was looked at since rows changed: its
        condition need not be computed."""
        looked = self.seen is not None and self.seen[0] == moment.layout
        return looked and self.is_idle and self.inputs.isdisjoint(moment.telemetry.told)


class RuleEngine(Detector):
    """Rules with the memory they need. One thread owns it; the same ticks give the same findings."""

    def __init__(
        self, rules: Sequence[DetectionRule], catalogue: Catalogue, before: "RuleEngine | None" = None
    ) -> None:
        """`before`: the engine of the rules until now. Rules that did not change keep what they remember."""
        known = {one.rule.name: one for one in before.rules} if before else {}
        self.rules = [_Rule(rule, catalogue, known.get(rule.name)) for rule in rules]
        roots = [root for one in self.rules for root in (one.when, one.threshold) if root is not None]
        self.program = Program(roots, before.program if before else None)
        self._catalogue = catalogue

    @property
    def signals(self) -> frozenset[str]:
        """All that the conditions and thresholds name."""
        return self.program.signals

    @property
    def is_idle(self) -> bool:
        """Only new samples, or their age, can change what a tick finds."""
        return all(one.is_idle for one in self.rules)

    def prime(self, telemetry: Telemetry, now: datetime) -> None:
        """A tick of the past, while windows are rebuilt: remembers and tells nothing."""
        moment, heard = self.program.tick(telemetry, now), Heard(telemetry, self._catalogue, now)
        for one in self.rules:
            _held(one, _truth(one, moment), heard, now)

    def under(self, rules: Ruleset) -> "RuleEngine":
        return RuleEngine(rules.detection, rules.catalogue, before=self)

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        rows = {scope: telemetry.rows_of(node, scope) for scope in (Scope.node, Scope.gpu, Scope.link)}
        for one in self.rules:
            one.seen = None  # the next tick may see the same, and has to begin with it
            own = rows.get(one.rule.scope)
            if own is not None:
                one.holds.forget(own)
                for row in own.tolist():
                    one.cleared.pop(row, None)
            for component in [where for where in one.cleared_watched if where.node == node]:
                del one.cleared_watched[component]
        self.program.forget(rows)

    def tick(self, look: Look) -> Detections:
        telemetry, now = look.telemetry, look.now
        at_s = now.timestamp()
        moment = self.program.tick(telemetry, now)
        by_fault: dict[str, list[Component]] = {}
        for fault, component in look.watched:
            by_fault.setdefault(fault, []).append(component)
        findings: list[Finding] = []
        clear: dict[tuple[str, Component], datetime] = {}
        heard = Heard(telemetry, self._catalogue, now)
        charts = Charts(telemetry, self._catalogue, now)
        teller = Teller(telemetry, self._catalogue, now)
        for one in self.rules:
            mine = by_fault.get(one.rule.name, ())
            if not mine and one.sleeps(moment):
                continue
            seen = moment.layout, moment.truth(one.when)
            if not mine and one.rests(seen):
                continue
            truth = _truth(one, moment)
            ended = _held(one, truth, heard, now)
            findings.extend(_told(one, moment, charts, teller))
            components = telemetry.axis(one.rule.scope).components()
            for row, since in _cleared(one, ended.tolist(), truth, at_s):
                clear[(one.rule.name, components[row])] = datetime.fromtimestamp(since, UTC)
            for component, since in _watched(one, mine, telemetry, truth, at_s):
                clear[(one.rule.name, component)] = datetime.fromtimestamp(since, UTC)
            one.seen = seen
        return Detections(at=now, findings=tuple(findings), clear_since=clear)


def shown_signal(when: Expr) -> str:
    """The signal that a rule without `signal` shows: the first that it names."""
    return next(one.name for one in when.walk() if one.name and one.op != "spec")


def _truth(one: _Rule, moment: Moment) -> Truth:
    """The condition, unknown where Slurm no longer shows the row, false where the rule is not for it."""
    scope = one.rule.scope
    truth = moment.truth(one.when)
    if not len(truth) or truth.max() == FALSE:
        return truth
    gone = moment.gone(scope)
    if gone is not None:
        truth = np.where(gone, np.minimum(truth, UNKNOWN), truth)
    if one.rule.models:
        truth = np.where(moment.telemetry.is_model(one.rule.models, scope), truth, np.uint8(FALSE))
    return truth


def _held(one: _Rule, truth: Truth, heard: Heard, now: datetime) -> NDArray[np.int64]:
    """Rows told of that have ended. When samples came is asked only where something holds or begins to."""
    at_s = now.timestamp()
    if not one.rule.for_s or not (len(one.holds.rows) or (len(truth) and truth.max() == TRUE)):
        return one.holds.update(truth, at_s)
    return one.holds.update(truth, at_s, heard.newest(one.rests_on, one.rule.scope))


# --- what is told ---


def _told(one: _Rule, moment: Moment, charts: Charts, teller: Teller) -> Iterator[Finding]:
    holds, now = one.holds, moment.now
    if not len(holds.rows):
        return
    # Not `told <= …`: what was never told is NaN.
    due = np.flatnonzero(holds.due & ~(holds.told > now.timestamp() - REPEAT.total_seconds()))
    limits = moment.number(one.threshold) if one.threshold is not None else None
    for count, index in enumerate(due[:MOST_AT_ONCE].tolist()):
        holds.told[index] = now.timestamp()
        row = int(holds.rows[index])
        limit = _number_at(limits, row)
        began = datetime.fromtimestamp(float(holds.began[index]), UTC)
        held_s = float(holds.held[index])
        text = teller.sentence(one.rule, one.signal, row, limit, held_s, peers=one.compares_peers)
        chart = None
        if count < MOST_CHARTS:
            chart = charts.of(one.rule, one.signal, row, limit, began, grown=one.grown)
        yield _finding(one.rule, moment, row, text, began, chart)


def _number_at(values: NDArray[np.float64] | float | None, row: int) -> float | None:
    if not isinstance(values, np.ndarray):
        return values
    value = float(values[row])
    return None if np.isnan(value) else value


def _finding(
    rule: DetectionRule, moment: Moment, row: int, text: str, began: datetime, chart: Chart | None
) -> Finding:
    telemetry, now = moment.telemetry, moment.now
    component = telemetry.axis(rule.scope).components()[row]
    named = f"{rule.name}|{component.cluster}|{component!r}|{began.isoformat()}"
    affected = _nodes_of(telemetry, rule.scope, row)
    root = component
    if rule.scope in OF_DEVICES:
        behind = telemetry.nodes_behind(component)
        affected = tuple(Component(cluster=component.cluster, node=name) for name in behind)
        text = f"{component}{_before(behind)}: {text}"
        # One incident of a rule for each device, however many of its ports are hit.
        root = Component(cluster=component.cluster, device=component.device)
        affected = (component, *affected) if component.part else affected
    evidence = Evidence(
        digest=sha256(named.encode()).hexdigest(),
        at=began,
        arrived_at=now,
        component=component,
        text=text,
        job=component.job,
        sense=Sense.metrics,
    )
    code = float(telemetry.value(rule.signal, now)[row]) if rule.names_xid else 0
    return Finding.from_evidence(
        evidence,
        rule=rule.name,
        fault=f"xid-{code:.0f}" if code > 0 else rule.name,
        fault_class=rule.fault_class,
        component=root,
        title=rule.title,
        confidence=_CONFIDENCE.get(rule.fault_class, 0.5),
        unusable=rule.unusable,
        affected=affected,
        charts=(chart,) if chart else (),
    )


def _before(nodes: Sequence[str]) -> str:
    """` (before gpu0001, gpu0002 and 62 more)`"""
    if not nodes:
        return ""
    more = f" and {len(nodes) - _NAMED} more" if len(nodes) > _NAMED else ""
    return f" (before {', '.join(nodes[:_NAMED])}{more})"


def _nodes_of(telemetry: Telemetry, scope: Scope, row: int) -> tuple[Component, ...]:
    """A switch or rack that is at fault covers its nodes."""
    if scope not in (Scope.switch, Scope.rack):
        return ()
    nodes = telemetry.axis(Scope.node)
    rows = np.flatnonzero(nodes.parent(scope) == row)
    return tuple(nodes.components()[one] for one in rows.tolist())


# --- what is clear ---


def _cleared(one: _Rule, ended: list[int], truth: Truth, at_s: float) -> list[tuple[int, float]]:
    """Told rows that ended: since when they are known false without a break."""
    for row in ended:
        one.cleared[row] = at_s
    for row, since in list(one.cleared.items()):
        if truth[row] != FALSE or at_s - since > _CLEAR_KEPT_S:
            del one.cleared[row]
    return list(one.cleared.items())


def _watched(
    one: _Rule, components: Collection[Component], telemetry: Telemetry, truth: Truth, at_s: float
) -> list[tuple[Component, float]]:
    """Components of open incidents: since when all that the rule sees of them is known false."""
    since = one.cleared_watched
    for component in list(since):
        if component not in components:
            del since[component]
    for component in components:
        rows = _rows_of(telemetry, one.rule.scope, component)
        if len(rows) and not truth[rows].any():
            since.setdefault(component, at_s)
        else:
            since.pop(component, None)
    return list(since.items())


def _rows_of(telemetry: Telemetry, scope: Scope, component: Component) -> NDArray[np.int64]:
    """The row of a component, or all rows of its node where it is wider than the rule's axis."""
    axis = telemetry.axis(scope)
    row = axis.row(component)
    if row is not None:
        return np.array([row])
    if component.device is not None and scope is Scope.device_part:
        whole = telemetry.axis(Scope.device).row(component)
        return np.flatnonzero(axis.parent(Scope.device) == whole) if whole is not None else _NO_ROWS
    if component.node is None or scope not in (Scope.link, Scope.gpu):
        return _NO_ROWS
    if component.gpu is not None and scope is Scope.link:
        parent, whole = axis.parent(Scope.gpu), telemetry.axis(Scope.gpu).row(component)
    else:
        parent, whole = axis.parent(Scope.node), telemetry.axis(Scope.node).row(component)
    return np.flatnonzero(parent == whole) if whole is not None else _NO_ROWS
