"""Alerts of other systems -> findings, by `rules/alerts.yaml`.

An alert is somebody else's conclusion, drawn from figures or lines that healer mostly hears itself. So it is
no sense that could agree with another one (`healer.incidents.growth`), and an alert that no entry names
opens nothing: it stands as evidence beside an incident that is open at its place, and on the node's page.
"""

from collections.abc import Iterable
from datetime import datetime, timedelta
from fnmatch import fnmatchcase

from healer.detection.protocol import PictureLook, finding_from
from healer.model import (
    AlertRule,
    Component,
    Evidence,
    FaultClass,
    Finding,
    FiringAlert,
    Observation,
    Ruleset,
    Sense,
)
from healer.model.detection import ALERT_STAYS_H
from healer.model.faults import ALERT_FAULT
from healer.observations import Picture
from healer.observations.heard_alerts import Alerts, HeardAlert

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
    return finding_from(
        evidence,
        rule=entry.name if entry is not None and opens else "",
        fault=f"{ALERT_FAULT}{entry.name if entry is not None else seen.text}",
        fault_class=fault_class,
        arrived_at=now,
        title=entry.title if entry is not None else "",
        confidence=_CONFIDENCE.get(fault_class, 0.5),
        beside=not opens,
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
