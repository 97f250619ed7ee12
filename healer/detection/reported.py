"""What was reported of a node becomes findings: kernel lines, checks of hooks, tests, foreign drains, alerts.

An alert is the conclusion of another system, drawn from figures or lines that healer mostly reads itself. So
it is no sense that could agree with another one (`healer.incidents.growth`). An alert that no entry names
opens nothing: it is evidence beside an incident that is open at its place, and on the node's page.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import sha256

import msgspec

from healer.detection.protocol import PictureLook
from healer.detection.readings import Reading, read
from healer.detection.watches import is_offline, is_planned_reboot
from healer.model import (
    AlertRule,
    Command,
    CommandKind,
    Component,
    Evidence,
    FaultClass,
    Finding,
    FiringAlert,
    LinkDown,
    Observation,
    ObservationKind,
    OwnerKind,
    Ruleset,
    Sense,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.detection import ALERT_STAYS_H
from healer.model.faults import ALERT_FAULT, Trait, fault_is
from healer.model.slurm import is_only_ours, slurm_kind
from healer.observations import Picture
from healer.observations.picture import Alerts, HeardAlert
from healer.signals.identity import digest_of

#: A kernel line is a fact; what is unsure is the meaning of a code that no catalogue explains.
CERTAIN = 1.0
UNEXPLAINED = 0.5

#: A link that was lost longer ago made no job stand just now.
LINKS_KEPT = timedelta(minutes=10)


def line_findings(walk: PictureLook) -> list[Finding]:
    """One finding per line that names a fault which a rule takes."""
    found = []
    for seen, reading in walk.lines:
        if reading is None:
            continue
        rule = walk.rules.rule_for(reading.fault, reading.fault_class)
        if rule is not None:
            found.append(_line_finding(rule.name, reading, seen))
    return found


def gauge_findings(rules: Ruleset, picture: Picture, sensed: Iterable[Finding]) -> list[Finding]:
    """What the last tick found; an Xid that a gauge names is read by the catalogue, as a kernel line is.

    It stays the word of metrics: nothing is surely unusable by it. One that no rule takes gives none.
    """
    found = []
    for finding in sensed:
        if not finding.fault.startswith("xid-"):
            found.append(finding)
            continue
        seen = _as_line(picture, finding)
        shown = picture.slurm.nodes.get(seen.component.node or "") if picture.slurm is not None else None
        reading = read(rules, seen, shown)
        policy = rules.rule_for(reading.fault, reading.fault_class) if reading is not None else None
        if reading is not None and policy is not None:
            named = msgspec.structs.replace(_line_finding(policy.name, reading, seen), unusable=False)
            kept = {name: getattr(finding, name) for name in ("evidence", "confidence", "charts", "text")}
            found.append(msgspec.structs.replace(named, **kept))
    return found


def _as_line(picture: Picture, finding: Finding) -> Observation:
    """The kernel line that the gauge is evidence of, without its text."""
    where = finding.component
    pci = picture.node(where.node).gpus.address(where.gpu) if where.node is not None else None
    return Observation(
        digest=finding.evidence[0].digest,
        kind=ObservationKind.xid,
        component=msgspec.structs.replace(where, pci=pci),
        event_at=finding.at,
        arrived_at=finding.arrived_at,
        code=int(finding.fault.removeprefix("xid-")),
    )


def note_links(walk: PictureLook) -> None:
    """Keeps in the picture which nodes lost a link, by their newest line."""
    picture = walk.picture
    for seen, reading in walk.lines:
        if (
            reading is not None
            and fault_is(reading.fault, Trait.link_down)
            and seen.component.node is not None
        ):
            text = seen.line or reading.text
            picture.links_down[seen.component.node] = LinkDown(at=seen.arrived_at, text=text)
    old = [node for node, one in picture.links_down.items() if walk.now - one.at > LINKS_KEPT]
    for node in old:
        del picture.links_down[node]


def _line_finding(rule: str, reading: Reading, seen: Observation) -> Finding:
    job = seen.data.get("job") or seen.component.job
    evidence = Evidence(
        digest=seen.digest,
        at=seen.event_at,
        component=seen.component,
        text=reading.text,
        sense=Sense.kernel,
        line=seen.line,
        arrived_at=seen.arrived_at,
        job=str(job) if job else None,
    )
    root, affected = seen.component, ()
    if reading.server is not None:
        root = Component(cluster=seen.component.cluster, device=reading.server)
        affected = (seen.component,)
    return Finding.from_evidence(
        evidence,
        rule=rule,
        fault=reading.fault,
        fault_class=reading.fault_class,
        component=root,
        affected=affected,
        confidence=CERTAIN if reading.explained else UNEXPLAINED,
        unusable=reading.unusable,
        teardown=reading.teardown,
        asked=reading.asked,
        follows=reading.follows,
        remedy=reading.remedy,
        cause=reading.cause,
        evidence_only=reading.evidence_only,
    )


#: What a fault of this kind begins with: `hook:probe`, `hook:fs-full` and so on.
HOOK_FAULT = "hook:"


def hook_findings(walk: PictureLook) -> list[Finding]:
    """One for each check that failed and was not made again since."""
    return [
        _hook_finding(seen, name, str(text))
        for seen, _ in walk.lines
        if seen.kind is ObservationKind.hook
        for name, text in seen.data.get("failed", {}).items()
        if not _made_again(walk.picture, seen, name)
    ]


def _made_again(picture: Picture, seen: Observation, name: str) -> bool:
    known = picture.node(seen.component.node or "").checks.get(name)
    return known is not None and known[0] > seen.event_at


def _hook_finding(seen: Observation, name: str, text: str) -> Finding:
    # Without its job: the check is about the node, whoever ran there.
    where = Component(cluster=seen.component.cluster, node=seen.component.node)
    evidence = Evidence(
        digest=digest_of("hook-check", seen.digest, name),
        at=seen.event_at,
        component=where,
        text=text,
        arrived_at=seen.arrived_at,
        sense=Sense.hook,
    )
    return Finding.from_evidence(
        evidence, rule="", fault=f"{HOOK_FAULT}{name}", fault_class=FaultClass.degraded, confidence=1.0
    )


#: What a fault of this kind begins with: `node-test:answers`; `node-test:compared` where all tests passed and
#: a figure is worse than on the good node.
TEST_FAULT = "node-test:"
#: Answers that no test of its own gave: a figure below the good node's; found by halves of a job's nodes.
_FAILED = {"compared": "is worse than the good node", "together": "is slower than its like"}


def test_findings(walk: PictureLook) -> list[Finding]:
    """One for each test that failed."""
    return [
        _test_finding(walk.picture.cluster, one)
        for one in walk.commands
        if one.kind is CommandKind.test_failed
    ]


def _test_finding(cluster: str, told: Command) -> Finding:
    node, test, says = (str(told.data[name]) for name in ("node", "test", "says"))
    where = Component(cluster=cluster, node=node)
    failed = _FAILED.get(test, f"failed the test {test}")
    text = f"{node} {failed} while it was idle: {says}"
    evidence = Evidence(
        # Of one run the same, however often a worker that died told it.
        digest=digest_of("node-test", str(told.data["run"]), test),
        at=told.at,
        component=where,
        text=text,
        arrived_at=told.at,
        sense=Sense.hook,
    )
    return Finding.from_evidence(
        evidence,
        rule="",
        fault=f"{TEST_FAULT}{test}",
        fault_class=FaultClass.degraded,
        title=f"{node} {failed}",
        confidence=1.0,
        jobs=(str(told.data["job"]),) if told.data.get("job") else (),
    )


def drain_findings(walk: PictureLook) -> list[Finding]:
    """One finding per node that somebody else holds out of service, when the picture changed, or while one
    was passed over. Planned work is none."""
    picture = walk.picture
    passed = any(fault_is(fault, Trait.drain) for _, fault, _ in picture.passed_over)
    if picture.slurm is None or not (picture.nodes_changed or passed):
        return []
    return [
        _drain_finding(picture.cluster, node, fault, walk.now)
        for node in picture.slurm.odd_nodes
        if not is_planned_reboot(picture, node) and (fault := fault_of(node, picture.slurm)) is not None
    ]


def fault_of(node: SlurmNode, snapshot: SlurmSnapshot | None) -> str | None:
    """The fault that a hold on the node is told as; None where nobody holds it, we do, or it is planned.

    Our own tests are no plan: whoever drains a node amid them means it. A node that Slurm does not reach is
    told by the watch over such nodes.
    """
    owner = node.owner
    if owner is None or not node.held or is_offline(node):
        return None
    if node.planned and not is_only_ours(snapshot, node):
        return None
    match owner.kind:
        case OwnerKind.healer:
            return None
        case OwnerKind.slurm:
            return f"slurm-drain:{slurm_kind(node.reason) or 'not-responding'}"
        case OwnerKind.program:
            return f"foreign-drain:{owner.name.lower()}"
        case OwnerKind.person:
            return "person-drain"


def _drain_finding(cluster: str, node: SlurmNode, fault: str, now: datetime) -> Finding:
    at = node.reason_at or now
    if fault_is(fault, Trait.slurm_drain):
        text = f"Slurm itself took it out: {node.reason or 'not responding'}"
    else:
        text = f"Drained by {node.owner}: {node.reason or 'no reason given'}"
    where = Component(cluster=cluster, node=node.name)
    # Not the moment: Slurm moves it when it appends to a reason. A new reason is new evidence.
    identity = f"drain|{cluster}|{node.name}|{node.reason}|{node.reason_at}"
    evidence = Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=at,
        component=where,
        text=f"{'+'.join(node.state)}: {node.reason}",
        sense=Sense.slurm,
    )
    return Finding.from_evidence(
        evidence,
        rule="",
        fault=fault,
        fault_class=FaultClass.informational,
        arrived_at=now,
        text=text,
        confidence=1.0,
    )


#: What goes on is told again so often: an incident may have opened, or ended, meanwhile.
AGAIN = timedelta(minutes=5)
#: Findings of one walk; the others follow in the next ones.
MOST_AT_ONCE = 1000

_CONFIDENCE = {FaultClass.fatal: 0.8, FaultClass.degraded: 0.7}


def entry_for(rules: Ruleset, seen: Observation) -> AlertRule | None:
    """The first entry that fits the alert's name and labels."""
    return _labelled(_named(rules, seen.text), seen)


def _named(rules: Ruleset, name: str) -> list[AlertRule]:
    return [entry for entry in rules.alerts if any(fnmatchcase(name, glob) for glob in entry.alert)]


def _labelled(entries: Iterable[AlertRule], seen: Observation) -> AlertRule | None:
    labels = seen.data.get("labels") or {}
    for entry in entries:
        if all(fnmatchcase(str(labels.get(name, "")), glob) for name, glob in entry.labels.items()):
            return entry
    return None


def alert_findings(walk: PictureLook) -> list[Finding]:
    """What fires and was not told lately. Ends what nobody repeats, and notes what stands."""
    rules, picture, now, alerts = walk.rules, walk.picture, walk.now, walk.picture.alerts
    by_name = {entry.name: entry for entry in rules.alerts}
    named: dict[str, list[AlertRule]] = {}
    silent: list[HeardAlert] = []
    standing: set[tuple[str, Component]] = set()
    found: list[Finding] = []
    for one in alerts.firing():
        _understood(one, rules, named)
        if _is_silent(one, now):
            silent.append(one)
            continue
        entry = by_name.get(one.rule or "")
        if entry is not None and entry.opens:
            standing.add((f"{ALERT_FAULT}{entry.name}", one.seen.component))
        due = one.told_at is None or now - one.told_at >= AGAIN
        if due and len(found) < MOST_AT_ONCE and not _is_history(picture, one):
            found.append(finding_of(one.seen, entry, digest=one.digest, now=now))
    alerts.forget(silent)
    alerts.standing = frozenset(standing)
    return found


def finding_of(seen: Observation, entry: AlertRule | None, *, digest: str, now: datetime) -> Finding:
    """What one alert means. Without an entry, or with one that opens nothing, it is only evidence."""
    opens = entry is not None and entry.opens
    said = str(seen.data.get("summary") or "")
    text = f"Alert {seen.text}" + (f": {said}" if said else "")
    fault_class = entry.fault_class if entry is not None and opens else FaultClass.informational
    evidence = Evidence(
        digest=digest,
        at=datetime.fromisoformat(str(seen.data["starts_at"])),
        component=seen.component,
        text=text,
        arrived_at=seen.arrived_at,
        sense=Sense.alert,
    )
    return Finding.from_evidence(
        evidence,
        rule=entry.name if entry is not None and opens else "",
        fault=f"{ALERT_FAULT}{entry.name if entry is not None else seen.text}",
        fault_class=fault_class,
        arrived_at=now,
        title=entry.title if entry is not None else "",
        confidence=_CONFIDENCE.get(fault_class, 0.5),
        evidence_only=not opens,
    )


def firing(rules: Ruleset, told: Iterable[Observation], now: datetime) -> list[FiringAlert]:
    """Of what was told of a place, oldest first: what fires now, the newest first."""
    alerts, named = Alerts(), {}
    for seen in told:
        alerts.take(seen)
    found: list[FiringAlert] = []
    for one in alerts.firing():
        _understood(one, rules, named)
        if not _is_silent(one, now):
            found.append(_shown(one))
    return sorted(found, key=lambda one: (one.since, one.name), reverse=True)


def _shown(one: HeardAlert) -> FiringAlert:
    data = one.seen.data
    return FiringAlert(
        name=one.seen.text,
        text=str(data.get("summary") or ""),
        component=one.seen.component,
        since=one.begun_at,
        heard_at=one.heard_at,
        rule=one.rule,
        source=str(data.get("source") or ""),
        url=str(data.get("url") or ""),
        labels=data.get("labels") or {},
    )


def _understood(one: HeardAlert, rules: Ruleset, named: dict[str, list[AlertRule]]) -> None:
    """Which entry takes it, asked once for each set of rules; `named` are entries by the alert's name."""
    if one.rules_version == rules.version:
        return
    name = one.seen.text
    if name not in named:
        named[name] = _named(rules, name)
    entry = _labelled(named[name], one.seen)
    one.rule, one.stays_h = (entry.name, entry.stays_h) if entry else (None, ALERT_STAYS_H)
    one.rules_version = rules.version


def _is_silent(one: HeardAlert, now: datetime) -> bool:
    return now - one.heard_at > timedelta(hours=one.stays_h)


def _is_history(picture: Picture, one: HeardAlert) -> bool:
    """It began before the node was repaired or returned: what it told of is over, or is found anew."""
    node = picture.nodes.get(one.seen.component.node or "")
    return node is not None and node.cleared_at is not None and one.begun_at <= node.cleared_at
