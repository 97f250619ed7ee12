"""Cases of faults over time: given these lines at these times, with these jobs, expect these incidents.

`rules/cases/history-*.yaml`; the form is in docs/rules.md. A case goes through the same walk as production,
with the ledger in memory, in shadow: nothing is done.
"""

from collections.abc import Iterable, Sequence, Set
from datetime import timedelta
from typing import Any, Literal

import msgspec

from healer.detection.language.parse import duration_s
from healer.engine.walk import walk
from healer.model import (
    Cause,
    Component,
    Detections,
    Evidence,
    FaultClass,
    Finding,
    Incident,
    Observation,
    ObservationKind,
    Remedy,
    Ruleset,
    Sense,
    Severity,
    by_opening,
)
from healer.observations import Picture
from healer.rulebook.cases.detection_cases import CLUSTER, START, CaseWrong
from healer.rulebook.source import Source, Where
from healer.signals.identity import digest_of
from healer.signals.inventory import gpu_row
from healer.signals.wire import kernel_log_observations
from healer.sim.memory_ledger import MemoryLedger
from healer.sim.replay_slurm import ReplaySlurm, Shown
from healer.sim.sim_clock import SimClock
from healer.text import joined, quoted, said_by, say

#: Case files of faults over time.
HISTORY_CASES = "history-*.yaml"
_MOST_NODES = 64


class JobAt(msgspec.Struct, frozen=True, kw_only=True):
    """A job that runs from a step on, and has run for `since` then. `gpus`: those that it holds on each of
    its nodes; none: all."""

    id: int
    since: str | None = None
    user: str = "ann"
    nodes: tuple[str, ...] = ("n1",)
    gpus: tuple[int, ...] = ()


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """A finding of a rule of `rules/detection/` on the step's node (or on a `device`) at that moment."""

    rule: str
    device: str | None = None
    gpu: int | None = None
    link: int | None = None
    nic: str | None = None


class At(msgspec.Struct, frozen=True, kw_only=True):
    """One step: `at` after the start. `lines` of `node`, which were logged `late` before that. `jobs` are all
    that run from now on, `boot` the node's new boot, `replaced` the GPUs that are others from now on.
    `unknown_boot`: the lines do not say of which boot they are.
    `state`, `reason` and `driver` are what Slurm shows of the node from now on."""

    at: str
    node: str = "n1"
    lines: tuple[str, ...] = ()
    late: str = "0s"
    old_boot: str = ""
    unknown_boot: bool = False
    found: tuple[Found, ...] = ()
    jobs: tuple[JobAt, ...] | None = None
    boot: str = ""
    replaced: tuple[int, ...] = ()
    state: tuple[str, ...] = ()
    reason: str = ""
    driver: str = ""


class ExpectedIncident(msgspec.Struct, frozen=True, kw_only=True, rename={"fault_class": "class"}):
    """The fields of an incident that are compared; None is not. `finding`: the rule of a finding that it took
    in; `says`: words in its title or evidence; `closed`: words of why it ended, or empty for one that is
    open; `ruled_out`: words of what was ruled out."""

    rule: str | None = None
    finding: str | None = None
    fault: str | None = None
    fault_class: FaultClass | None = None
    severity: Severity | None = None
    cause: Cause | None = None
    remedy: tuple[Remedy, ...] | None = None
    node: str | None = None
    gpu: int | None = None
    says: str | None = None
    closed: str | None = None
    ruled_out: str | None = msgspec.field(default=None, name="aside")
    plan: str | None = None


class HistoryCase(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes are n1, n2, …, each with `gpus` GPUs of `model`: GPU 0 at 0000:10:00, GPU 1 at 0000:11:00, …

    `known_by` is what nodes report of their GPUs: `uuid`, `serial` or both. `places` gives the nodes' rack,
    switch, domain, pdu or row. `passed` are entries of `rules/context.yaml` that have to suppress something,
    `not_passed` those that must not.
    """

    name: str
    timeline: tuple[At, ...]
    expect: tuple[ExpectedIncident, ...] = ()
    must_not: tuple[ExpectedIncident, ...] = ()
    places: dict[str, dict[str, str]] = {}
    passed: tuple[str, ...] = ()
    not_passed: tuple[str, ...] = ()
    nodes: int = 2
    gpus: int = 8
    model: str = "h100"
    known_by: tuple[Literal["uuid", "serial"], ...] = ("uuid",)


def run_history_cases(sources: Iterable[Source], rules: Ruleset) -> list[tuple[Where, HistoryCase, str]]:
    """(where, case, why it does not hold). Cases that cannot be run are problems of their source."""
    results = []
    for source in sources:
        for at, case in source.entries(HistoryCase):
            try:
                play = _Play(rules, case)
                incidents = play.incidents()
            except CaseWrong as error:
                at.at(*error.path).problem(
                    say("words.labelled", label=case.name, text=error.text), error.hint
                )
                continue
            found = {(name, finding.rule) for name, finding in play.ledger.tables.findings}
            why = _why_not(case, incidents, found) or _why_not_passed(case, play.passed)
            results.append((at, case, why))
    return results


def _why_not(case: HistoryCase, incidents: Sequence[Incident], findings: Set[tuple[str, str]]) -> str:
    left = list(incidents)
    for number, want in enumerate(case.expect, start=1):
        fits = next((incident for incident in left if _matches(want, incident, findings)), None)
        if fits is None:
            return say("cases.incident_missing", number=number, came=_shown(incidents))
        left.remove(fits)
    for want in case.must_not:
        if found := [incident for incident in incidents if _matches(want, incident, findings)]:
            return say("cases.incident_forbidden", came=_shown(found))
    return ""


def _why_not_passed(case: HistoryCase, passed: Set[str]) -> str:
    if lacks := set(case.passed) - passed:
        return say("cases.suppressed_nothing", rule=min(lacks))
    if wrong := set(case.not_passed) & passed:
        return say("cases.suppressed_something", rule=min(wrong))
    return ""


def _matches(want: ExpectedIncident, got: Incident, findings: Set[tuple[str, str]]) -> bool:
    texts = [got.title, *(evidence.text for evidence in got.evidence)]
    ruled_out_texts = [f"{ruled_out.what}: {ruled_out.why}" for ruled_out in got.set_aside]
    return all(
        (
            want.rule in (None, got.rule),
            want.finding is None or (got.id, want.finding) in findings,
            want.fault in (None, got.fault),
            want.fault_class in (None, got.fault_class),
            want.severity in (None, got.severity),
            want.cause in (None, got.cause),
            want.remedy in (None, got.remedy),
            want.node in (None, got.root.node),
            want.gpu in (None, got.root.gpu),
            want.says is None or any(want.says in text for text in texts),
            want.closed is None or _is_closed(want.closed, got),
            want.plan in (None, got.plan),
            want.ruled_out is None or any(want.ruled_out in text for text in ruled_out_texts),
        )
    )


def _is_closed(words: str, got: Incident) -> bool:
    return not got.is_open and words in (got.closed_why or "") if words else got.is_open


def _shown(incidents: Sequence[Incident]) -> str:
    return joined(map(_in_short, incidents), "semicolon") if incidents else say("cases.none")


def _in_short(incident: Incident) -> str:
    remedies = " ".join(incident.remedy)
    fault = f"{incident.rule} {incident.fault} {incident.severity} {incident.cause} [{remedies}]"
    return say(
        "cases.incident",
        fault=fault,
        root=str(incident.root),
        title=incident.title,
        state=incident.closed_why or say("cases.open"),
    )


class _Play:
    """One case, walked at each of its steps and when that has settled."""

    def __init__(self, rules: Ruleset, case: HistoryCase) -> None:
        if not 0 < case.nodes <= _MOST_NODES:
            raise CaseWrong(
                ("nodes",),
                say("rulebook.field", field="nodes", text=say("rulebook.between", least=1, most=_MOST_NODES)),
            )
        self.rules, self.case = rules, case
        self.clock = SimClock(START)
        self.slurm = ReplaySlurm(CLUSTER, self.clock)
        self.ledger = MemoryLedger(CLUSTER, self.clock)
        self.picture = Picture(CLUSTER, watching_since=START)
        self.names = [f"n{number}" for number in range(1, case.nodes + 1)]
        self.boots = dict.fromkeys(self.names, "boot1")
        self.shown: dict[str, dict[str, Any]] = {name: {} for name in self.names}
        #: Entries of `rules/context.yaml` that suppressed something.
        self.passed: set[str] = set()
        if strange := set(case.places) - set(self.names):
            raise CaseWrong(("places",), _no_node("places", min(strange)))
        #: How many other GPUs have stood at this place before.
        self.swaps = {(name, gpu): 0 for name in self.names for gpu in range(case.gpus)}

    def incidents(self) -> list[Incident]:
        self._show_nodes()
        self._walk([self._beat(name) for name in self.names])
        for index, step in enumerate(self.case.timeline):
            path = ("timeline", index)
            at = START + timedelta(seconds=_seconds((*path, "at"), step.at))
            if at < self.clock.now():
                raise CaseWrong((*path, "at"), say("cases.too_early", at=step.at))
            if step.node not in self.names:
                raise CaseWrong((*path, "node"), _no_node("node", step.node))
            self.clock.set(at)
            self._walk(self._step(path, step), [self._found(path, step, found) for found in step.found])
            self.clock.advance(self.rules.settle_s + 1)
            self._walk([])
        found = self.ledger.tables.incidents.values()
        return sorted(found, key=by_opening)

    def _step(self, path: Sequence[str | int], step: At) -> list[Observation]:
        if step.jobs is not None:
            self.slurm.show_jobs(Shown([self._job(job) for job in step.jobs]))
        before = self.boots[step.node]
        self.boots[step.node] = step.boot or before
        seen = {"state": list(step.state), "reason": step.reason, "driver": step.driver}
        reported = {name: value for name, value in seen.items() if value}
        self.shown[step.node] |= reported
        if step.state and not step.reason:
            self.shown[step.node].pop("reason", None)
        if step.boot or reported:
            self._show_nodes()
        for gpu in step.replaced:
            self.swaps[step.node, gpu] += 1
        observations = [self._beat(step.node)] if step.boot or step.replaced else []
        if not step.lines:
            return observations
        when = self.clock.now() - timedelta(seconds=_seconds((*path, "late"), step.late))
        boot = step.old_boot or (before if step.late != "0s" else self.boots[step.node])
        boot = None if step.unknown_boot else boot
        entries = [{"line": line, "time": when.isoformat()} for line in step.lines]
        body = {"cluster": CLUSTER, "node": step.node, "boot_id": boot, "entries": entries}
        taken = kernel_log_observations(
            body, lambda _c, _n: True, self.clock.now(), cluster=CLUSTER, book=self.rules.kernel_lines
        )
        if taken.unrecognised or taken.rejected:
            raise CaseWrong((*path, "lines"), say("cases.unknown_line"))
        return [*observations, *taken.observations]

    def _found(self, path: Sequence[str | int], step: At, found: Found) -> Finding:
        rule = next((rule for rule in self.rules.detection if rule.name == found.rule), None)
        if rule is None:
            raise CaseWrong((*path, "found"), say("cases.no_detection_rule", name=found.rule))
        now = self.clock.now()
        if found.device is not None:
            where = Component(cluster=CLUSTER, device=found.device)
        else:
            where = Component(cluster=CLUSTER, node=step.node, gpu=found.gpu, link=found.link, nic=found.nic)
        digest = digest_of("found", rule.name, str(where), now.isoformat())
        evidence = Evidence(
            digest=digest, at=now, component=where, text=quoted(rule.title), sense=Sense.metrics
        )
        return Finding(
            rule=rule.name,
            fault=rule.name,
            fault_class=rule.fault_class,
            component=where,
            at=now,
            arrived_at=now,
            text=quoted(rule.title),
            confidence=1.0,
            evidence=(evidence,),
        )

    def _walk(self, batch: Sequence[Observation], findings: Sequence[Finding] = ()) -> None:
        snapshot = self.slurm.snapshot()
        self.picture.show(snapshot)
        self.ledger.snapshot = snapshot
        now = self.clock.now()
        sensed = Detections(at=now, findings=tuple(findings)) if findings else None
        walk(self.ledger, self.rules, self.picture, batch, now, sensed)
        self.passed |= {name for _, _, name in self.picture.passed_over}

    def _show_nodes(self) -> None:
        rows = [
            {
                "name": name,
                "state": ["IDLE"],
                "gpus": self.case.gpus,
                "gpu_model": self.case.model,
                "boot_id": self.boots[name],
                **self.case.places.get(name, {}),
                **self.shown[name],
            }
            for name in self.names
        ]
        self.slurm.show_nodes(Shown(rows))

    def _job(self, job: JobAt) -> dict[str, Any]:
        held = list(job.gpus) or list(range(self.case.gpus))
        gpus = dict.fromkeys(job.nodes, held)
        begun = (
            {}
            if job.since is None
            else {
                "start_at": (
                    self.clock.now() - timedelta(seconds=_seconds(("timeline",), job.since))
                ).isoformat()
            }
        )
        return begun | {
            "id": str(job.id),
            "state": "RUNNING",
            "nodes": list(job.nodes),
            "gpus": gpus,
            "user": job.user,
        }

    def _beat(self, name: str) -> Observation:
        """A heartbeat that lists the node's GPUs. Rare ones: no sender has a cadence."""
        now = self.clock.now()
        gpus = [self._gpu(name, gpu) for gpu in range(self.case.gpus)]
        return Observation(
            digest=digest_of("beat", name, now.isoformat()),
            kind=ObservationKind.heartbeat,
            component=Component(cluster=CLUSTER, node=name),
            event_at=now,
            arrived_at=now,
            boot_id=self.boots[name],
            data={"gpus": gpus},
        )

    def _gpu(self, name: str, gpu: int) -> dict[str, Any]:
        """In the form of heartbeats."""
        swaps = self.swaps[name, gpu]
        uuid = f"GPU-{name}-{gpu}" + "-new" * swaps if "uuid" in self.case.known_by else ""
        number = f"16500{self.names.index(name):03d}{gpu:02d}{swaps:03d}"
        serial = number if "serial" in self.case.known_by else ""
        return gpu_row(gpu, f"0000:{0x10 + gpu:02x}:00", uuid, serial)


def _no_node(field: str, name: str) -> str:
    return say("rulebook.field", field=field, text=say("cases.no_node", name=name))


def _seconds(path: Sequence[str | int], text: str) -> float:
    total = 0.0
    try:
        for word in text.split():
            total += 86400 * float(word[:-1]) if word.endswith("d") else duration_s(word)
    except ValueError as error:
        raise CaseWrong(path, said_by(error)) from None
    return total
