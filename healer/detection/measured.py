"""Detection rules over all measurements: one pass over the fleet per tick.

A rule fires once it has been known true for its `for`, and is clear when it is known false; unknown is
neither.
"""

from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from healer.detection.debounce import Heard, Holds, rests_on
from healer.detection.language import parse
from healer.detection.language.compile import Moment, Program
from healer.detection.language.expr import Expr
from healer.detection.language.truth_columns import FALSE, TRUE, UNKNOWN, Truth
from healer.detection.language.units import PLAIN, UNIT_WORDS
from healer.detection.presentation import Charts, Sentences
from healer.detection.protocol import AGAIN_AFTER, Detector, Figures, TickInput, new_evidence
from healer.model import (
    OF_DEVICES,
    Catalogue,
    Chart,
    Component,
    DetectionRule,
    Detections,
    FaultClass,
    Finding,
    Ruleset,
    Scope,
    Sense,
)
from healer.observations.telemetry_windows import Telemetry
from healer.text import Said, name_some, quoted, say

#: Findings of one rule per tick; the others follow in later ticks. A storm must not stop the tick.
MOST_AT_ONCE = 50
#: Only this many of them get a chart, as charts are the expensive part.
MOST_CHARTS = 20
#: How long a cleared finding that no incident watches is remembered.
_CLEAR_KEPT_S = 900.0

#: The most nodes behind a device that a sentence names.
_NAMED = 4

_CONFIDENCE = {FaultClass.fatal: 0.95, FaultClass.degraded: 0.8}

_NO_ROWS = np.zeros(0, np.int64)


class _Rule:
    """One parsed rule, with the state of its rows."""

    def __init__(self, rule: DetectionRule, catalogue: Catalogue, before: "_Rule | None") -> None:
        self.rule, signals = rule, catalogue.signals
        self.when = parse.condition(rule.when, signals, rule.scope)
        self.threshold: Expr | None = None
        if rule.threshold:
            self.threshold = parse.number(rule.threshold, signals, rule.scope)
        self.signal = signals[rule.signal or shown_signal(self.when)]
        self.inputs = self.when.signals | (self.threshold.signals if self.threshold else frozenset())
        self.rests_on = rests_on(self.when, self.signal.name, catalogue)
        self.compares_peers = any(part.op in ("peers", "peer_z", "peers_at") for part in self.when.walk())
        # The chart has the unit of its limit: `31/1m` is a rate, `2` a growth.
        self.grown = self.threshold is not None and self.threshold.unit in (
            UNIT_WORDS[self.signal.unit],
            PLAIN,
        )
        kept = before if before is not None and before.rule == rule else None
        self.holds = kept.holds if kept else Holds(rule.for_s)
        #: Rows that were reported and have ended since, and likewise watched components: since when, s since
        #: 1970.
        self.cleared: dict[int, float] = kept.cleared if kept else {}
        self.cleared_watched: dict[Component, float] = kept.cleared_watched if kept else {}
        #: The Xid because of which each row holds, for rules that name one.
        self.codes: dict[int, float] = kept.codes if kept else {}
        #: The result of the last tick, and its rows.
        self.seen: tuple[object, Truth] | None = None

    @property
    def is_idle(self) -> bool:
        """No row holds or is remembered."""
        return not (len(self.holds.rows) or self.cleared or self.cleared_watched)

    def is_unchanged(self, seen: tuple[object, Truth]) -> bool:
        """This tick has the very same input as the last one, so there is nothing to do."""
        same = self.seen is not None and self.seen[1] is seen[1] and self.seen[0] == seen[0]
        return same and self.is_idle

    def is_asleep(self, moment: Moment) -> bool:
        """None of its inputs was ever reported, and it was evaluated since rows changed: its condition need
        not be computed."""
        looked = self.seen is not None and self.seen[0] == moment.layout
        return looked and self.is_idle and self.inputs.isdisjoint(moment.telemetry.reported_signals)


class RuleEngine(Detector):
    """Rules with the state they need. Used by one thread only. Deterministic: the same ticks give the same
    findings."""

    def __init__(
        self, rules: Sequence[DetectionRule], catalogue: Catalogue, before: "RuleEngine | None" = None
    ) -> None:
        """`before`: the engine of the earlier rules. Unchanged rules keep their state."""
        before_by_name = {rule.rule.name: rule for rule in before.rules} if before else {}
        self.rules = [_Rule(rule, catalogue, before_by_name.get(rule.name)) for rule in rules]
        roots = [root for rule in self.rules for root in (rule.when, rule.threshold) if root is not None]
        self.program = Program(roots, before.program if before else None)
        self._catalogue = catalogue
        self._names = frozenset(rule.rule.name for rule in self.rules)
        #: The rows and signals of the last tick, and by name the rules that are not asleep for them.
        self._awake: tuple[object, dict[str, _Rule]] | None = None

    @property
    def signals(self) -> frozenset[str]:
        """All signals that the conditions and thresholds name."""
        return self.program.signals

    @property
    def is_idle(self) -> bool:
        """Only new samples, or their age, can change what a tick finds."""
        return all(
            rule.is_idle for rule in (self._awake[1].values() if self._awake is not None else self.rules)
        )

    def _rules_to_evaluate(self, moment: Moment, watched: Collection[str]) -> Collection[_Rule]:
        """The rules that may find something; a watched fault needs an answer from its own rule."""
        if self._awake is None or self._awake[0] != _reported(moment):
            return self.rules
        reported, awake = self._awake
        if asked := self._names.intersection(watched) - awake.keys():
            named = asked | awake.keys()
            awake = {rule.rule.name: rule for rule in self.rules if rule.rule.name in named}
            self._awake = reported, awake
        return awake.values()

    def _update_awake(self, moment: Moment) -> None:
        """Rules that slept in this tick sleep until rows change, or until another signal is reported."""
        reported = _reported(moment)
        if self._awake is None or self._awake[0] != reported:
            awake = (rule for rule in self.rules if not rule.is_asleep(moment))
            self._awake = reported, {rule.rule.name: rule for rule in awake}

    def prime(self, telemetry: Telemetry, now: datetime) -> None:
        self._awake = None
        moment, heard = self.program.tick(telemetry, now), Heard(telemetry, self._catalogue, now)
        for rule in self.rules:
            _update_holds(rule, _truth(rule, moment), heard, now)

    def under(self, rules: Ruleset) -> "RuleEngine":
        return RuleEngine(rules.detection, rules.catalogue, before=self)

    def forget(self, telemetry: Telemetry, node: str, since: datetime) -> None:
        rows = {scope: telemetry.rows_of(node, scope) for scope in (Scope.node, Scope.gpu, Scope.link)}
        self._awake = None
        for rule in self.rules:
            rule.seen = None  # the next tick may see the same input, and must start from it
            forgotten = rows.get(rule.rule.scope)
            if forgotten is not None:
                rule.holds.forget(forgotten)
                for row in forgotten.tolist():
                    rule.cleared.pop(row, None)
            for component in [where for where in rule.cleared_watched if where.node == node]:
                del rule.cleared_watched[component]
        self.program.forget(rows)

    def figures_of(self, finding: Finding) -> Figures:
        rule = next(rule for rule in self.rules if rule.rule.name == finding.rule)
        return Figures(rule.inputs, peers=rule.compares_peers)

    def tick(self, given: TickInput) -> Detections:
        telemetry, now = given.telemetry, given.now
        at_s = now.timestamp()
        moment = self.program.tick(telemetry, now)
        by_fault: dict[str, list[Component]] = {}
        for fault, component in given.watched:
            by_fault.setdefault(fault, []).append(component)
        findings: list[Finding] = []
        clear: dict[tuple[str, Component], datetime] = {}
        heard = Heard(telemetry, self._catalogue, now)
        charts = Charts(telemetry, self._catalogue, now)
        sentences = Sentences(telemetry, self._catalogue, now)
        for rule in self._rules_to_evaluate(moment, by_fault):
            watched = by_fault.get(rule.rule.name, ())
            if not watched and rule.is_asleep(moment):
                continue
            seen = moment.layout, moment.truth(rule.when)
            if not watched and rule.is_unchanged(seen):
                continue
            truth = _truth(rule, moment)
            if rule.rule.names_xid:
                _begin_with_each_xid(rule, telemetry.value(rule.signal.name, now))
            ended = _update_holds(rule, truth, heard, now)
            findings.extend(_due_findings(rule, moment, charts, sentences))
            components = telemetry.axis(rule.rule.scope).components()
            cleared = [(components[row], since) for row, since in _cleared(rule, ended.tolist(), truth, at_s)]
            for component, since in (*cleared, *_watched(rule, watched, telemetry, truth, at_s)):
                clear[(rule.rule.name, component)] = datetime.fromtimestamp(since, UTC)
            rule.seen = seen
        self._update_awake(moment)
        return Detections(at=now, findings=tuple(findings), clear_since=clear)


def _reported(moment: Moment) -> object:
    """Changes when rows do, or when a signal is reported for the first time."""
    return moment.layout, len(moment.telemetry.reported_signals)


def shown_signal(when: Expr) -> str:
    """The signal that a rule without `signal` shows: the first one that it names."""
    return next(part.name for part in when.walk() if part.name and part.op != "spec")


def _truth(rule: _Rule, moment: Moment) -> Truth:
    """The condition; unknown where Slurm no longer shows the row, false where the rule does not apply."""
    scope = rule.rule.scope
    truth = moment.truth(rule.when)
    if not len(truth) or truth.max() == FALSE:
        return truth
    gone = moment.gone(scope)
    if gone is not None:
        truth = np.where(gone, np.minimum(truth, UNKNOWN), truth)
    if rule.rule.models:
        truth = np.where(moment.telemetry.is_model(rule.rule.models, scope), truth, np.uint8(FALSE))
    return truth


def _begin_with_each_xid(rule: _Rule, values: NDArray[np.float64]) -> None:
    """A different Xid on a row is a different event: it holds from then on, not since the Xid before it."""
    by_row = {int(row): float(values[row]) for row in rule.holds.rows if not np.isnan(values[row])}
    other = [row for row, code in by_row.items() if rule.codes.get(row, code) != code]
    rule.holds.forget(np.array(other, np.int64))
    kept = {row: code for row, code in rule.codes.items() if row in rule.holds.rows}
    rule.codes = kept | {row: code for row, code in by_row.items() if row not in other}


def _update_holds(rule: _Rule, truth: Truth, heard: Heard, now: datetime) -> NDArray[np.int64]:
    """Reported rows that have ended. The times of samples are needed only if something holds or begins to."""
    at_s = now.timestamp()
    if not rule.rule.for_s or not (len(rule.holds.rows) or (len(truth) and truth.max() == TRUE)):
        return rule.holds.update(truth, at_s)
    return rule.holds.update(truth, at_s, heard.newest(rule.rests_on, rule.rule.scope))


# --- findings ---


def _due_findings(rule: _Rule, moment: Moment, charts: Charts, sentences: Sentences) -> Iterator[Finding]:
    holds, now = rule.holds, moment.now
    if not len(holds.rows):
        return
    # Not `reported <= …`: a row that was never reported is NaN.
    due = np.flatnonzero(holds.due & ~(holds.reported > now.timestamp() - AGAIN_AFTER.total_seconds()))
    limits = moment.number(rule.threshold) if rule.threshold is not None else None
    for count, index in enumerate(due[:MOST_AT_ONCE].tolist()):
        holds.reported[index] = now.timestamp()
        row = int(holds.rows[index])
        limit = _number_at(limits, row)
        began = datetime.fromtimestamp(float(holds.began[index]), UTC)
        held_s = float(holds.held[index])
        text = sentences.of(rule.rule, rule.signal, row, limit, held_s, peers=rule.compares_peers)
        chart = None
        if count < MOST_CHARTS:
            chart = charts.of(rule.rule, rule.signal, row, limit, began, grown=rule.grown)
        yield _finding(rule.rule, moment, row, text, began, chart)


def _number_at(values: NDArray[np.float64] | float | None, row: int) -> float | None:
    if not isinstance(values, np.ndarray):
        return values
    value = float(values[row])
    return None if np.isnan(value) else value


def _finding(
    rule: DetectionRule, moment: Moment, row: int, text: Said, began: datetime, chart: Chart | None
) -> Finding:
    telemetry, now = moment.telemetry, moment.now
    component = telemetry.axis(rule.scope).components()[row]
    identity = f"{rule.name}|{component.cluster}|{component!r}|{began.isoformat()}"
    affected: tuple[Component, ...] = ()
    if rule.scope in (Scope.switch, Scope.rack):  # when it is at fault, it covers its nodes
        nodes = telemetry.axis(Scope.node)
        affected = tuple(
            nodes.components()[at] for at in np.flatnonzero(nodes.parent(rule.scope) == row).tolist()
        )
    root = component
    if rule.scope in OF_DEVICES:
        behind = telemetry.nodes_behind(component)
        affected = tuple(Component(cluster=component.cluster, node=name) for name in behind)
        head = quoted(str(component))
        if behind:
            head = say("detection.device_before", device=head, nodes=name_some(behind, _NAMED))
        text = say("detection.told", head=head, text=text)
        # One incident of a rule for each device, however many of its ports are hit.
        root = Component(cluster=component.cluster, device=component.device)
        affected = (component, *affected) if component.part else affected
    evidence = new_evidence(identity, component, began, text, now, Sense.metrics)
    code = float(telemetry.value(rule.signal, now)[row]) if rule.names_xid else 0
    return Finding.from_evidence(
        evidence,
        rule=rule.name,
        fault=f"xid-{code:.0f}" if code > 0 else rule.name,
        fault_class=rule.fault_class,
        component=root,
        title=quoted(rule.title),
        confidence=_CONFIDENCE.get(rule.fault_class, 0.5),
        unusable=rule.unusable,
        affected=affected,
        charts=(chart,) if chart else (),
    )


# --- cleared conditions ---


def _cleared(rule: _Rule, ended: list[int], truth: Truth, at_s: float) -> list[tuple[int, float]]:
    """Reported rows that ended: since when they have been known false without a break."""
    for row in ended:
        rule.cleared[row] = at_s
    for row, since in list(rule.cleared.items()):
        if truth[row] != FALSE or at_s - since > _CLEAR_KEPT_S:
            del rule.cleared[row]
    return list(rule.cleared.items())


def _watched(
    rule: _Rule, components: Collection[Component], telemetry: Telemetry, truth: Truth, at_s: float
) -> list[tuple[Component, float]]:
    """Components of open incidents: since when everything that the rule sees of them is known false."""
    since = rule.cleared_watched
    for component in list(since):
        if component not in components:
            del since[component]
    for component in components:
        rows = _rows_of(telemetry, rule.rule.scope, component)
        if len(rows) and not truth[rows].any():
            since.setdefault(component, at_s)
        else:
            since.pop(component, None)
    return list(since.items())


def _rows_of(telemetry: Telemetry, scope: Scope, component: Component) -> NDArray[np.int64]:
    """The row of a component, or all rows of its node if the component is wider than the rule's axis."""
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
