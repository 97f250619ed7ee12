"""Findings from reports about a node: kernel lines, checks by hooks, tests, foreign drains, boots, alerts.

An alert is the conclusion of another system, drawn from figures or lines that healer usually reads itself, so
it does not count as a second sense (`healer.incidents.certainty`). An alert without an entry opens nothing:
it is evidence for an open incident at its place, and shown on the node's page.
"""

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from hashlib import sha256

import msgspec

from healer.detection.protocol import AGAIN_AFTER, WalkInput
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
    NodeReport,
    Observation,
    ObservationKind,
    OwnerKind,
    Rule,
    Ruleset,
    Sense,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.detection import ALERT_STAYS_H
from healer.model.faults import (
    ALERT_FAULT,
    HOOK_FAULT,
    LINK_BACK,
    LINK_LOST,
    PORT_STAYS_DOWN,
    REBOOTED,
    TEST_FAULT,
    Trait,
    fault_is,
)
from healer.model.slurm import is_only_ours, slurm_kind
from healer.observations import NodePicture, Picture
from healer.observations.alerts import Alerts, HeardAlert
from healer.observations.node_picture import uptime_of
from healer.observations.picture import AFTER_ITS_END
from healer.signals.identity import digest_of
from healer.text import NO_WORDS, quoted, say

#: A kernel line is a fact; only the meaning of a code that no catalogue explains is uncertain.
CERTAIN = 1.0
UNEXPLAINED = 0.5

#: An older loss does not explain why a job is stuck now.
REPORTS_KEPT = timedelta(minutes=10)


def line_findings(walk: WalkInput) -> list[Finding]:
    """One finding per line that names a fault with a rule."""
    found = []
    for seen, reading in walk.lines:
        if reading is None:
            continue
        rule = _rule_of(walk.rules, reading)
        if rule is not None:
            found.append(_line_finding(rule.name, reading, seen))
    return found


def _rule_of(rules: Ruleset, reading: Reading) -> Rule | None:
    """The rule of the fault; or the rule of the drain request, if the fault may wait and its line asks to
    drain."""
    asks = reading.fault_class is FaultClass.degraded and reading.asked is not None
    ask = rules.ask_for(reading.asked) if asks else None
    named = ask if ask is not None else reading
    return rules.rule_for(named.fault, named.fault_class)


def gauge_findings(rules: Ruleset, picture: Picture, sensed: Iterable[Finding]) -> list[Finding]:
    """The last tick's findings; an Xid reported by a gauge is read by the catalogue, like a kernel line.

    Its sense remains metrics, so it makes nothing certainly unusable. An Xid without a rule gives no finding.
    """
    found = []
    for finding in sensed:
        if not finding.fault.startswith("xid-"):
            found.append(finding)
            continue
        seen = _as_line(picture, finding)
        reading = read(rules, seen, picture.slurm_node(seen.component.node))
        policy = _rule_of(rules, reading) if reading is not None else None
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


def note_reports(walk: WalkInput) -> None:
    """Records in the picture which nodes lost something a job may need, by their newest line."""
    picture = walk.picture
    for seen, reading in walk.lines:
        node = seen.component.node
        if reading is None or node is None:
            continue
        if not (fault_is(reading.fault, Trait.link_down) or fault_is(reading.fault, Trait.may_stop_work)):
            continue
        line = _line_finding("", reading, seen)
        picture.node_reports[node] = NodeReport(
            at=seen.arrived_at,
            text=quoted(seen.line) or reading.text,
            fault=reading.fault,
            evidence=line.evidence[0],
            remedy=reading.remedy,
        )
    picture.node_reports = {
        node: report for node, report in picture.node_reports.items() if walk.now - report.at <= REPORTS_KEPT
    }


#: A port that is down for this long does not come back by itself (gpud's figure).
STAYS_DOWN = timedelta(minutes=4)
#: How quickly one detector takes over from another.
FAILOVER = timedelta(minutes=1)
#: Ports without a cable report that at each boot.
AFTER_BOOT = timedelta(minutes=10)


def note_links(walk: WalkInput) -> None:
    """Records in the picture which ports lost their link, until the link is back."""
    picture = walk.picture
    for seen, reading in walk.lines:
        if (
            reading is not None
            and seen.component.node is not None
            and reading.fault in {LINK_LOST, LINK_BACK}
        ):
            names = {seen.component.nic, seen.data.get("device")} - {None}
            for key in [(seen.component.node, name) for name in sorted(names)]:
                picture.links_down.pop(key, None)
            if reading.fault == LINK_LOST and not _has_just_booted(picture, seen):
                picture.links_down[seen.component.node, min(names, default="")] = seen


def recall_links(walk: WalkInput) -> None:
    """The same after a restart, without ports that the previous detector has certainly reported."""
    picture = walk.picture
    note_links(walk)
    picture.links_down = {
        key: seen
        for key, seen in picture.links_down.items()
        if walk.now - _when(picture, seen) < STAYS_DOWN + FAILOVER
    }


def link_findings(walk: WalkInput) -> list[Finding]:
    """One finding per port of a network card that lost its link under a running job, by the kernel alone, if
    nothing more precise is known."""
    picture = walk.picture
    note_links(walk)
    # An outage explains its nodes' links while it lasts, but not a link that is still down afterwards.
    out = {node for outage in picture.silence.outages for node in outage.nodes}
    due = [
        key
        for key, seen in picture.links_down.items()
        if walk.now - _when(picture, seen) >= STAYS_DOWN and key[0] not in out
    ]
    lost = [(key[0], picture.links_down.pop(key)) for key in due]
    return [_link_finding(seen) for node, seen in lost if _stays_down(picture, node, seen)]


def _when(picture: Picture, seen: Observation) -> datetime:
    return picture.node(seen.component.node or "").moment(seen.event_at, seen.arrived_at)


def _has_just_booted(picture: Picture, seen: Observation) -> bool:
    node = seen.component.node or ""
    shown = picture.slurm_node(node)
    boots = (picture.node(node).booted_at, shown.boot_at if shown is not None else None)
    uptime_s = uptime_of(seen.line)
    young = uptime_s is not None and timedelta(seconds=uptime_s) <= AFTER_BOOT
    return young or any(at is not None and _when(picture, seen) - at <= AFTER_BOOT for at in boots)


def _stays_down(picture: Picture, node: str, seen: Observation) -> bool:
    """A job from before has run there until now, and the node has been neither booted nor repaired since."""
    renewed, at = picture.node(node).renewed_at, _when(picture, seen)
    jobs = picture.slurm.jobs_on(node) if picture.slurm is not None else ()
    runs = any(job.state == "RUNNING" and picture.allocations.had_begun(job.leader, at) for job in jobs)
    return runs and not (renewed is not None and renewed >= at)


def _link_finding(seen: Observation) -> Finding:
    text = say(
        "detection.port_stays_down", minutes=int(STAYS_DOWN.total_seconds() // 60), line=quoted(seen.line)
    )
    evidence = Evidence(
        digest=digest_of("port-stays-down", seen.digest, ""),
        at=seen.event_at,
        component=seen.component,
        text=text,
        sense=Sense.kernel,
        line=seen.line,
        arrived_at=seen.arrived_at,
        relayed_by=seen.relayed_by,
    )
    return Finding.from_evidence(
        evidence, rule="", fault=PORT_STAYS_DOWN, fault_class=FaultClass.degraded, confidence=CERTAIN
    )


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
        relayed_by=seen.relayed_by,
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


def hook_findings(walk: WalkInput) -> list[Finding]:
    """One finding per check that failed and was not repeated since."""
    return [
        _hook_finding(seen, name, str(text))
        for seen, _ in walk.lines
        if seen.kind is ObservationKind.hook
        for name, text in seen.data.get("failed", {}).items()
        if not _is_repeated(walk.picture, seen, name)
    ]


def _is_repeated(picture: Picture, seen: Observation, name: str) -> bool:
    checked = picture.node(seen.component.node or "").checks.get(name)
    return checked is not None and checked[0] > seen.event_at


def _hook_finding(seen: Observation, name: str, text: str) -> Finding:
    # Without its job: the check is about the node, not about the job there.
    where = Component(cluster=seen.component.cluster, node=seen.component.node)
    evidence = Evidence(
        digest=digest_of("hook-check", seen.digest, name),
        at=seen.event_at,
        component=where,
        text=quoted(text),
        arrived_at=seen.arrived_at,
        sense=Sense.hook,
        relayed_by=seen.relayed_by,
    )
    return Finding.from_evidence(
        evidence, rule="", fault=f"{HOOK_FAULT}{name}", fault_class=FaultClass.degraded, confidence=1.0
    )


#: Results that belong to no single test: a figure below the reference node's, or found by testing halves of a
#: job's nodes.
_OF_NO_TEST = frozenset({"compared", "together"})


def test_findings(walk: WalkInput) -> list[Finding]:
    """One finding per failed test."""
    return [
        _test_finding(walk.picture.cluster, command)
        for command in walk.commands
        if command.kind is CommandKind.test_failed
    ]


def _test_finding(cluster: str, command: Command) -> Finding:
    node, test, says = (str(command.data[name]) for name in ("node", "test", "says"))
    how = test if test in _OF_NO_TEST else "failed"
    title = say(f"detection.test_{how}", node=node, test=test)
    evidence = Evidence(
        # The same for one run, even if a second worker repeats the report of one that died.
        digest=digest_of("node-test", str(command.data["run"]), test),
        at=command.at,
        component=Component(cluster=cluster, node=node),
        text=say("detection.while_idle", title=title, says=quoted(says)),
        arrived_at=command.at,
        sense=Sense.hook,
    )
    return Finding.from_evidence(
        evidence,
        rule="",
        fault=f"{TEST_FAULT}{test}",
        fault_class=FaultClass.degraded,
        title=title,
        confidence=1.0,
        jobs=(str(command.data["job"]),) if command.data.get("job") else (),
    )


def drain_findings(walk: WalkInput) -> list[Finding]:
    """One finding per node that a person, a program or Slurm holds out of service, when the snapshot changed,
    or while such a drain is ruled out. Planned work gives none."""
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
    """The fault that a hold on the node counts as; None if nothing holds it, healer does, or it is planned.

    healer's own tests are not planned work: a drain during them is deliberate. Nodes that Slurm does not
    reach are reported by the watch for those."""
    owner = node.owner
    if owner is None or not node.held or is_offline(node):
        return None
    if node.is_out_by_plan_alone and not is_only_ours(snapshot, node):
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
        reason = quoted(node.reason) or say("detection.not_responding")
        text = say("detection.drained_by_slurm", reason=reason)
    else:
        who = (node.owner.name if node.owner else "") or say("detection.somebody")
        reason = quoted(node.reason) or say("detection.no_reason")
        text = say("detection.drained_by", who=who, reason=reason)
    where = Component(cluster=cluster, node=node.name)
    # Without the time, which Slurm changes when it appends to a reason. A new reason is new evidence.
    identity = f"drain|{cluster}|{node.name}|{node.reason}|{node.reason_at}"
    evidence = Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=at,
        component=where,
        text=say("detection.told", head="+".join(node.state), text=quoted(node.reason)),
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


#: A boot is reported within this time; used if neither Slurm nor the last signal of the old boot dates it.
HEARD_WITHIN = timedelta(minutes=2)
#: Slurm's clock may date the end of a job this much before our last signal of the boot with which it was
#: lost.
CLOCK_SLACK = timedelta(seconds=5)
_ASKED_FOR = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED", "POWERING_UP", "POWERING_DOWN", "POWERED_DOWN"})


def reboot_findings(walk: WalkInput) -> list[Finding]:
    """One finding per node on which a new boot is seen while jobs of the boot before, now lost, are on it.

    Requested boots do not count: healer's own, a person's, or one that was requested from Slurm. Planned work
    on the node is judged as for all other faults (`healer.incidents.context`).
    """
    found = []
    for name in sorted(walk.picture.changes.booted):
        shown = walk.picture.slurm_node(name)
        if shown is None or _has_asked_boot(shown):
            continue
        node = walk.picture.node(name)
        if jobs := sorted(set(_jobs_of_boot_before(walk.picture, node, shown))):
            relay = "" if _shows_boot(node, shown) else node.booted_relay
            found.append(_boot_finding(walk.picture.cluster, node, jobs, walk.now, relay))
    return found


def _has_asked_boot(node: SlurmNode) -> bool:
    owner = node.owner if node.held else None
    theirs = owner is not None and owner.kind is not OwnerKind.slurm
    return theirs or not _ASKED_FOR.isdisjoint(node.state)


def _jobs_of_boot_before(picture: Picture, node: NodePicture, shown: SlurmNode) -> Iterator[str]:
    assert picture.slurm is not None and node.booted_at is not None
    jobs = picture.slurm.jobs
    running = [job for job in picture.slurm.jobs_on(node.name) if job.state == "RUNNING"]
    lost = [job for job in picture.slurm.failed_on(node.name) if job.state == "NODE_FAIL"]
    for job in (*running, *lost):
        if _began_before(job, node, shown):
            yield job.leader
    gone_for = AFTER_ITS_END
    if node.old_boot_heard_at is not None:  # one that left while the old boot sent was not lost
        gone_for = min(gone_for, node.booted_at - node.old_boot_heard_at + CLOCK_SLACK)
    for leader in picture.allocations.ended_on(node.name, node.booted_at, grace=gone_for):
        job = jobs.get(leader)
        if job is not None and job.state in {"PENDING", "RUNNING"} and not _runs_on(job, node):
            yield leader  # Slurm has requeued it


def _runs_on(job: SlurmJob, node: NodePicture) -> bool:
    return job.state == "RUNNING" and node.name in job.nodes


def _began_before(job: SlurmJob, node: NodePicture, shown: SlurmNode) -> bool:
    last_signal = node.old_boot_heard_at
    if job.start_at is None or node.booted_at is None:
        return True
    if _shows_boot(node, shown) and shown.boot_at is not None:
        return job.start_at < shown.boot_at
    return job.start_at <= max(last_signal or job.start_at, node.booted_at - HEARD_WITHIN)


def _shows_boot(node: NodePicture, shown: SlurmNode) -> bool:
    """Slurm shows the new boot too."""
    last_signal = node.old_boot_heard_at
    return shown.boot_at is not None and (last_signal is None or shown.boot_at > last_signal)


def _boot_finding(cluster: str, node: NodePicture, jobs: list[str], now: datetime, relay: str) -> Finding:
    """`relay`: the only one that reported the boot; empty if the node or Slurm did too."""
    where = Component(cluster=cluster, node=node.name)
    text = say("detection.booted_under_jobs", node=node.name, jobs=", ".join(jobs[:5]))
    evidence = Evidence(
        digest=digest_of(REBOOTED, cluster, node.name, node.boot or ""),
        at=node.booted_at or now,
        component=where,
        text=text,
        arrived_at=now,
        sense=Sense.slurm,
        relayed_by=relay,
    )
    return Finding.from_evidence(
        evidence,
        rule="",
        fault=REBOOTED,
        fault_class=FaultClass.degraded,
        title=say("detection.booted_under_job"),
        confidence=1.0,
        jobs=tuple(jobs),
    )


#: Findings per walk; the others follow in later ones.
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


def alert_findings(walk: WalkInput) -> list[Finding]:
    """Firing alerts that are due to be reported. Ends those that are no longer repeated, and records in the
    picture which incidents are kept open by alerts."""
    rules, picture, now, alerts = walk.rules, walk.picture, walk.now, walk.picture.alerts
    if not alerts.heard:
        return []
    by_name = {entry.name: entry for entry in rules.alerts}
    named: dict[str, list[AlertRule]] = {}
    silent: list[HeardAlert] = []
    firing_now: set[tuple[str, Component]] = set()
    found: list[Finding] = []
    for alert in alerts.firing():
        _match_rule(alert, rules, named)
        if _is_silent(alert, now):
            silent.append(alert)
            continue
        entry = by_name.get(alert.rule or "")
        if entry is not None and entry.opens:
            firing_now.add((f"{ALERT_FAULT}{entry.name}", alert.seen.component))
        due = alert.reported_at is None or now - alert.reported_at >= AGAIN_AFTER
        if due and len(found) < MOST_AT_ONCE and not _is_history(picture, alert):
            found.append(finding_of(alert.seen, entry, digest=alert.digest, now=now))
    alerts.forget(silent)
    alerts.standing = frozenset(firing_now)
    return found


def finding_of(seen: Observation, entry: AlertRule | None, *, digest: str, now: datetime) -> Finding:
    """The finding for one alert. Without an entry, or with one that opens nothing, it is only evidence."""
    opens = entry is not None and entry.opens
    summary = str(seen.data.get("summary") or "")
    text = say("detection.alert", name=seen.text)
    if summary:
        text = say("detection.told", head=text, text=quoted(summary))
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
        title=quoted(entry.title) if entry is not None else NO_WORDS,
        confidence=_CONFIDENCE.get(fault_class, 0.5),
        evidence_only=not opens,
    )


def firing(rules: Ruleset, observations: Iterable[Observation], now: datetime) -> list[FiringAlert]:
    """The alerts of a place (`observations`: oldest first) that fire now, newest first."""
    alerts, named = Alerts(), {}
    for seen in observations:
        alerts.take(seen)
    found: list[FiringAlert] = []
    for alert in alerts.firing():
        _match_rule(alert, rules, named)
        if not _is_silent(alert, now):
            found.append(_shown(alert))
    return sorted(found, key=lambda alert: (alert.since, alert.name), reverse=True)


def _shown(alert: HeardAlert) -> FiringAlert:
    data = alert.seen.data
    return FiringAlert(
        name=alert.seen.text,
        text=str(data.get("summary") or ""),
        component=alert.seen.component,
        since=alert.begun_at,
        heard_at=alert.heard_at,
        rule=alert.rule,
        source=str(data.get("source") or ""),
        url=str(data.get("url") or ""),
        labels=data.get("labels") or {},
    )


def _match_rule(alert: HeardAlert, rules: Ruleset, named: dict[str, list[AlertRule]]) -> None:
    """Records which entry matches the alert, once per set of rules; `named` caches entries by the alert's
    name."""
    if alert.rules_version == rules.version:
        return
    name = alert.seen.text
    if name not in named:
        named[name] = _named(rules, name)
    entry = _labelled(named[name], alert.seen)
    alert.rule, alert.stays_h = (entry.name, entry.stays_h) if entry else (None, ALERT_STAYS_H)
    alert.rules_version = rules.version


def _is_silent(alert: HeardAlert, now: datetime) -> bool:
    return now - alert.heard_at > timedelta(hours=alert.stays_h)


def _is_history(picture: Picture, alert: HeardAlert) -> bool:
    """It began before the node was repaired or returned: its cause is gone, or will be detected again."""
    node = picture.nodes.get(alert.seen.component.node or "")
    return node is not None and node.cleared_at is not None and alert.begun_at <= node.cleared_at
