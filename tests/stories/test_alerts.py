"""Alerts of other systems through the walk: what opens, what is only shown beside, and how it ends."""

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from healer.detection.reported import firing
from healer.incidents.certainty import senses_of
from healer.incidents.correlate import BESIDE_KEPT
from healer.model import (
    EVIDENCE_KEPT,
    AlertRule,
    Cause,
    CommandKind,
    FaultClass,
    Incident,
    Mode,
    Observation,
    Ruleset,
    RunState,
    Sense,
    Severity,
)
from healer.model.detection import ALERT_STAYS_H
from healer.observations.alerts import ALERTS_MAX, OF_NODE_MAX, Alerts
from healer.recordings.recording import read
from healer.rulebook.ruleset import RulesInvalid, load
from healer.signals.alert_bodies import Site as Where
from healer.signals.alert_bodies import alertmanager_observations, repeated_alert
from healer.sim.replaying import replay
from tests.support.loop import CLUSTER, DEGRADED, LOST, SHIPPED, Site, later, name, rules_in

pytestmark = pytest.mark.heavy


def group(
    *names: str,
    node: int = 1,
    status: str = "firing",
    since: float = 0,
    until: float | None = None,
    **labels: str,
) -> dict[str, Any]:
    return {
        "version": "4",
        "externalURL": "http://alertmanager.example",
        "alerts": [
            {
                "status": status,
                "labels": {"alertname": one, "instance": f"{name(node)}:9100", **labels},
                "annotations": {"summary": f"{one} fires"},
                "startsAt": later(since).isoformat(),
                "endsAt": "0001-01-01T00:00:00Z" if until is None else later(until).isoformat(),
            }
            for one in names
        ],
    }


def say(site: Site, *names: str, **how: Any) -> list[Observation]:
    where = Where(CLUSTER, (CLUSTER,), lambda _c, _n: True, lambda _c, _n: False)
    return list(alertmanager_observations(group(*names, **how), where, site.now).observations)


def opened(site: Site) -> list[Incident]:
    return [one for one in site.incidents if one.is_open]


def test_an_alert_that_an_entry_names_opens_its_incident_and_does_nothing() -> None:
    site = Site(10)
    site.run_for(60, *say(site, "NodeFilesystemReadOnly"))
    (incident,) = site.incidents
    assert (incident.rule, incident.severity, incident.cause) == (
        "alert-fs-read-only",
        Severity.P2,
        Cause.storage,
    )
    assert incident.evidence[0].sense is Sense.alert
    assert "NodeFilesystemReadOnly fires" in incident.evidence[0].text
    assert site.runs == [] and site.ledger.tables.messages == {}


def test_unlisted_alert_opens_nothing() -> None:
    site = Site(10)
    site.run_for(700, *say(site, "TeamCoffeeLow"), step_s=10)
    assert site.incidents == [] and site.runs == []


def test_resolved_alert_closes_its_incident_and_a_new_one_opens_another() -> None:
    site = Site(10)
    site.run_for(5, *say(site, "NodeClockNotSynchronising"))
    site.run_for(5, *say(site, "NodeClockNotSynchronising", status="resolved"))
    (incident,) = site.incidents
    assert not incident.is_open and "resolved" in (incident.closed_why or "")
    site.run_for(5, *say(site, "NodeClockNotSynchronising", since=8))
    assert len(opened(site)) == 1 and len(site.incidents) == 2


def test_a_late_word_of_what_is_over_opens_nothing_again() -> None:
    site = Site(10)
    first = say(site, "NodeClockNotSynchronising")
    site.run_for(5, *first)
    site.run_for(5, *say(site, "NodeClockNotSynchronising", status="resolved"))
    site.run_for(5, *[repeated_alert(one) for one in first])
    assert opened(site) == []


# Alertmanager keeps the earliest beginning when it merges two tellings of one alert.


def test_an_alert_that_is_resolved_with_an_earlier_beginning_is_over() -> None:
    site = Site(10)
    site.run_for(60, *say(site, "NodeClockNotSynchronising"))
    site.run_for(5, *say(site, "NodeClockNotSynchronising", status="resolved", since=-1800, until=50))
    assert opened(site) == []
    # And a retelling of what is over opens nothing.
    site.run_for(5, *say(site, "NodeClockNotSynchronising", since=-1800))
    assert opened(site) == []


@pytest.mark.parametrize("until", [-60, None])
def test_the_end_of_an_earlier_one_does_not_end_what_fires_since(until: float | None) -> None:
    site = Site(10)
    site.run_for(60, *say(site, "NodeClockNotSynchronising"))
    site.run_for(5, *say(site, "NodeClockNotSynchronising", status="resolved", since=-1800, until=until))
    assert len(opened(site)) == 1


def test_an_alert_that_is_repeated_with_an_earlier_beginning_stays() -> None:
    site = Site(10)
    site.walk(*say(site, "NodeClockNotSynchronising"))
    for _ in range(4):
        site.clock.advance(4 * 3600)
        site.walk(*[repeated_alert(one) for one in say(site, "NodeClockNotSynchronising", since=-1800)])
    (incident,) = site.incidents
    assert incident.is_open and incident.evidence_count == 1


def test_alert_that_is_no_longer_repeated_expires() -> None:
    site = Site(10)
    site.run_for(5, *say(site, "NodeClockNotSynchronising"))
    site.clock.advance(ALERT_STAYS_H * 3600 - 60)
    site.walk()
    assert len(opened(site)) == 1
    site.clock.advance(120)
    site.walk()
    assert opened(site) == []


def test_an_alert_that_is_repeated_stays() -> None:
    site = Site(10)
    first = say(site, "NodeClockNotSynchronising")
    site.walk(*first)
    for _ in range(4):
        site.clock.advance(4 * 3600)
        repeat = say(site, "NodeClockNotSynchronising")
        assert [one.digest for one in repeat] == [one.digest for one in first]
        site.walk(*[repeated_alert(one) for one in repeat])
    (incident,) = site.incidents
    assert incident.is_open and incident.evidence_count == 1


def test_beside_a_fault_an_alert_is_evidence_and_no_second_sense() -> None:
    site = Site(10, mode=Mode.shadow)
    site.walk(*site.say(1, DEGRADED))
    before = site.incidents[0]
    site.run_for(5, *say(site, "GPUXidError"), *say(site, "TeamCoffeeLow"))
    (incident,) = site.incidents
    assert [one.sense for one in incident.evidence] == [Sense.kernel, Sense.alert, Sense.alert]
    assert senses_of(incident, site.now) == (Sense.kernel,)
    assert (incident.severity, incident.remedy) == (before.severity, before.remedy)


def test_a_flood_of_alerts_takes_no_more_than_its_share_of_an_incident() -> None:
    site = Site(10, mode=Mode.shadow)
    site.walk(*site.say(1, DEGRADED))
    for number in range(EVIDENCE_KEPT + 10):
        site.run_for(1, *say(site, f"Flood{number}"))
    (incident,) = site.incidents
    senses = [one.sense for one in incident.evidence]
    assert senses.count(Sense.alert) == BESIDE_KEPT < EVIDENCE_KEPT
    assert incident.evidence[0].sense is Sense.kernel


def test_alert_incident_stays_beside_a_later_fault() -> None:
    site = Site(10, mode=Mode.shadow)
    site.run_for(10, *say(site, "TeamCoffeeLow"))
    site.walk(*site.say(1, DEGRADED))
    site.run_for(310, step_s=10)
    (incident,) = site.incidents
    assert {one.sense for one in incident.evidence} == {Sense.kernel, Sense.alert}


def test_an_alert_beside_a_fault_of_another_node_says_nothing_of_it() -> None:
    site = Site(10, mode=Mode.shadow)
    site.walk(*site.say(1, DEGRADED))
    site.run_for(5, *say(site, "TeamCoffeeLow", node=2))
    assert len(site.incidents[0].evidence) == 1


def test_an_incident_with_other_evidence_does_not_end_with_its_alert() -> None:
    site = Site(10, mode=Mode.shadow)
    site.walk(*say(site, "NodeFilesystemReadOnly"))
    site.run_for(5, *site.say(1, DEGRADED))
    site.run_for(5, *say(site, "NodeFilesystemReadOnly", status="resolved"))
    assert any(one.is_open and one.root.node == name(1) for one in site.incidents)


def acting(**fields: Any) -> Ruleset:
    """A site whose own entry lets an alert drain."""
    entry = AlertRule(
        name="our-alert",
        title="Our alert",
        alert=("OurAlert",),
        source="us",
        fault_class=FaultClass.degraded,
        playbook="drain",
        **fields,
    )
    rules = rules_in(Mode.auto)
    from healer.rulebook.line_rules import policy_of_alert

    return msgspec.structs.replace(
        rules, alerts=(entry, *rules.alerts), rules=(*rules.rules, policy_of_alert(entry)), version="own"
    )


@pytest.mark.parametrize("mode", [Mode.shadow, Mode.auto])
def test_an_entry_with_a_playbook_drains_only_as_far_as_its_mode_goes(mode: Mode) -> None:
    site = Site(10, rules=acting(mode=mode))
    site.run_for(30, *say(site, "OurAlert"))
    drained = [node.name for node in site.slurm.snapshot().nodes.values() if node.drain]
    assert drained == ([name(1)] if mode is Mode.auto else [])


def test_an_alert_of_before_the_repair_does_not_drain_the_node_again() -> None:
    site = Site(10, rules=acting(mode=Mode.auto))
    site.picture.clear(name(1), site.now + timedelta(seconds=1))
    site.clock.advance(5)
    site.run_for(30, *say(site, "OurAlert"))
    assert site.incidents == []


def test_alert_resolved_by_a_person_is_not_reported_again() -> None:
    site = Site(10)
    site.run_for(5, *say(site, "NodeFilesystemReadOnly"))
    site.send_command(CommandKind.resolve, incident=site.incidents[0].id)
    site.run_for(700, step_s=10)
    assert opened(site) == [] and len(site.incidents) == 1


def test_active_alerts_are_known_after_a_restart_and_open_nothing_twice() -> None:
    site = Site(10)
    rows = say(site, "NodeFilesystemReadOnly")
    site.run_for(5, *rows)
    site.picture.alerts = Alerts()
    site.picture.update(rows, site.rules.topology, rebuild=True)
    site.run_for(60)
    (incident,) = site.incidents
    assert incident.is_open and incident.evidence_count == 1


def test_lost_gpu_drains_regardless_of_alerts() -> None:
    site = Site(10)
    site.run_for(30, *say(site, "GPUXidError", "NodeFilesystemReadOnly"), *site.say(1, LOST))
    assert any(run.state is RunState.waiting for run in site.runs)


# --- what fires now ---


def test_pages_see_what_fires_the_newest_first() -> None:
    site = Site(10)
    rows = [
        *say(site, "NodeClockNotSynchronising"),
        *say(site, "TeamCoffeeLow", since=-60),
        *say(site, "Over"),
    ]
    rows += say(site, "Over", status="resolved")
    shown = firing(site.rules, rows, site.now)
    assert [(one.name, one.rule) for one in shown] == [
        ("NodeClockNotSynchronising", "alert-clock"),
        ("TeamCoffeeLow", None),
    ]
    assert firing(site.rules, rows, site.now + timedelta(hours=ALERT_STAYS_H, seconds=1)) == []


def alert_of(one: Observation, node: int, number: int, status: str = "firing") -> Observation:
    return msgspec.structs.replace(
        one,
        digest=f"{number:064x}",
        component=msgspec.structs.replace(one.component, node=name(node)),
        data=one.data | {"fingerprint": f"{number:016x}", "status": status},
    )


def test_alerts_are_bounded() -> None:
    alerts, site = Alerts(), Site(1)
    (one,) = say(site, "Many")
    for number in range(ALERTS_MAX + 500):
        alerts.take(alert_of(one, number // 50, number))
    assert len(alerts.heard) == ALERTS_MAX
    assert min(int(heard.digest, 16) for heard in alerts.firing()) == 500, "the oldest are forgotten"


def test_node_with_very_many_alerts_evicts_no_others() -> None:
    alerts, site = Alerts(), Site(2)
    (one,) = say(site, "Many")
    alerts.take(alert_of(one, 2, 10**6))
    for number in range(ALERTS_MAX + 10):
        alerts.take(alert_of(one, 1, number))
    assert len(alerts.heard) == OF_NODE_MAX + 1
    assert next(heard.digest for heard in alerts.firing()) == f"{10**6:064x}"


def test_of_a_node_what_is_over_is_forgotten_first() -> None:
    alerts, site = Alerts(), Site(1)
    (one,) = say(site, "Many")
    for number in range(OF_NODE_MAX):
        alerts.take(alert_of(one, 1, number))
    alerts.take(alert_of(one, 1, 50, "resolved"))
    alerts.take(alert_of(one, 1, 1_000))
    assert len(alerts.heard) == len(list(alerts.firing())) == OF_NODE_MAX
    alerts.take(alert_of(one, 1, 1_001))
    digests = [int(heard.digest, 16) for heard in alerts.firing()]
    assert (min(digests), max(digests)) == (1, 1_001)


def test_resolved_alerts_are_forgotten_before_firing_ones() -> None:
    alerts, site = Alerts(), Site(1)
    (one,) = say(site, "Many")
    for number in range(ALERTS_MAX):
        alerts.take(alert_of(one, number // 50, number))
    alerts.take(alert_of(one, 10_000 // 50, 10_000, "resolved"))
    alerts.take(alert_of(one, 5_000, 10**6))
    assert len(alerts.heard) == len(list(alerts.firing())) == ALERTS_MAX


def test_the_sender_of_one_node_ends_no_alert_of_another() -> None:
    """The sender of an alert chooses its fingerprint."""
    alerts, site = Alerts(), Site(2)
    (one,) = say(site, "Mine")
    alerts.take(alert_of(one, 1, 7))
    alerts.take(alert_of(one, 2, 7, "resolved"))
    assert [heard.seen.component.node for heard in alerts.firing()] == [name(1)]
    alerts.take(alert_of(one, 1, 7, "resolved"))
    assert list(alerts.firing()) == []


# --- replay ---


def test_a_recording_with_alerts_is_replayed() -> None:
    nodes = [{"name": name(1), "state": ["IDLE"], "gpus": 8, "partitions": ["train"]}]
    rows = [
        {"at": later(0).isoformat(), "route": "slurm/nodes", "body": {"cluster": CLUSTER, "nodes": nodes}},
        {
            "at": later(10).isoformat(),
            "route": "signals/alertmanager",
            "body": group("NodeFilesystemReadOnly"),
        },
        {
            "at": later(300).isoformat(),
            "route": "signals/alertmanager",
            "body": group("NodeFilesystemReadOnly"),
        },
        {
            "at": later(600).isoformat(),
            "route": "signals/alertmanager",
            "body": group("NodeFilesystemReadOnly", status="resolved"),
        },
        {"at": later(700).isoformat(), "route": "clock", "body": {}},
    ]
    document = replay(rules_in(Mode.auto), read(json.dumps(one) for one in rows))
    (incident,) = document["incidents"]
    assert incident["rule"] == "alert-fs-read-only"
    assert incident["closed"] is not None
    assert document["actions"] == []


# --- rules/alerts.yaml ---


def with_alerts(tmp_path: Path, text: str) -> Path:
    for path in SHIPPED.rglob("*"):
        if path.is_file() and path.parent.name != "cases":
            target = tmp_path / path.relative_to(SHIPPED)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    (tmp_path / "alerts.yaml").write_text(text)
    return tmp_path


ENTRY = "- name: ours\n  title: Ours\n  alert: [Ours]\n  source: us\n"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("- name: ours\n  title: Ours\n  alert: [Ours]\n", 1, "field source is missing"),
        (ENTRY + "  severty: P1\n", 5, "did you mean severity?"),
        (ENTRY + "  severity: P7\n", 5, "is not an allowed value"),
        (ENTRY + "  stays_h: 100\n", 5, "stays_h: must be above 0 and at most 72"),
        (ENTRY + "  playbook: drian\n", 5, "did you mean drain?"),
        (ENTRY + "  playbook: drain\n", 5, "only a fault_class of fatal or degraded"),
        (ENTRY + "  playbook: requeue\n", 5, "for a job, not for a node"),
        (ENTRY.replace("ours", "gpu-lost", 1), 1, "the name gpu-lost is already in use"),
        (ENTRY + ENTRY, 5, "the name ours is already in use"),
        (ENTRY.replace("[Ours]", "['*']"), 3, "this matches every alert"),
        (ENTRY.replace("[Ours]", "['Our[s']"), 3, "is not a name or a glob"),
        (ENTRY.replace("[Ours]", "[]"), 3, "the list is empty"),
        (ENTRY.replace("name: ours", "name: Our Rule"), 1, "lowercase letters"),
    ],
    ids=["source", "field", "word", "stays", "playbook", "class", "job", "policy", "twice", "all", "glob",
         "none", "name"],
)  # fmt: skip
def test_wrong_entry_is_reported_by_file_and_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    with pytest.raises(RulesInvalid) as caught:
        load(with_alerts(tmp_path, text), prove=False)
    problem = next(one for one in caught.value.problems if one.file == "alerts.yaml")
    assert problem.line == line
    assert words in f"{problem.text} {problem.hint}"


def test_nothing_that_ships_acts_by_an_alert() -> None:
    rules = rules_in(Mode.auto)
    assert rules.alerts
    assert [entry.name for entry in rules.alerts if entry.playbook is not None] == []
    assert {entry.fault_class for entry in rules.alerts} <= {FaultClass.degraded, FaultClass.informational}
    assert all(entry.severity in (Severity.P2, Severity.P3) for entry in rules.alerts)
