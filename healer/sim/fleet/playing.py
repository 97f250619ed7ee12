"""Plays one scenario under one mender, with what happens besides random faults: planned stops, harmless
kernel lines, and what the scenario plants."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from healer.decisions.consent import demotion_reason
from healer.model import (
    ENDED_RUN_STATES,
    Component,
    Incident,
    Mode,
    Observation,
    ObservationKind,
    Proof,
    Reference,
    Ruleset,
    probations,
)
from healer.recordings.recorder import File, Recorder
from healer.signals.identity import digest_of
from healer.sim.fleet.menders import FirstSign, Healer, Nobody, Thresholds, with_rules
from healer.sim.fleet.people import People
from healer.sim.fleet.scenario import BadScenario, Happening, Scenario
from healer.sim.fleet.schedule import DAY_S, Fault
from healer.sim.fleet.score import Card, card_of, finds
from healer.sim.fleet.site import CLUSTER, Site
from healer.sim.fleet.windows import Windows
from healer.sim.ledger_tables import Tables
from healer.sim.planted_faults import INNOCENT, PCI, TEARDOWN
from healer.sim.stores import MemoryColumns
from healer.text import joined, say

#: Turns at one moment; more is an endless loop.
_AT_ONE_MOMENT = 1000


def play(
    site: Site, after: Iterable[Callable[[], None]] = (), progress: Callable[[float], None] | None = None
) -> None:
    """Plays until the scenario's end. `after` is called after each moment, `progress` with the share done."""
    after = tuple(after)
    mender, end, total = site.mender, site.end, site.scenario.days
    site.slurm.tick()
    again = 0
    while True:
        site.agenda.do_due(site.now)
        site.settle()
        mender.turn()
        site.settle()
        for look in after:
            look()
        if progress is not None:
            progress((site.now - site.scenario.start).total_seconds() / 86_400 / total)
        dues = (site.agenda.next(), site.slurm.next_due(), site.mender.due(), site.ready_at())
        then = max(site.now, min((due for due in dues if due is not None), default=site.end))
        again = again + 1 if then <= site.now else 0
        if again > _AT_ONE_MOMENT:
            raise RuntimeError(f"time does not advance at {site.now}")
        if then >= end:
            break
        if then > site.now:
            site.clock.set(then)
            site.slurm.tick()
    site.clock.set(end)
    site.slurm.tick()
    site.settle()
    site.work.close(end)


#: Guards look back a day at most: ended runs and their logs are dropped after two.
KEPT = timedelta(days=2)
#: Repeats of faults are judged over a week (`observations/fault_history.py`).
BURSTS_KEPT = timedelta(days=8)


def forget(tables: Tables, now: datetime) -> set[str]:
    """Drops what no guard or detector looks back at. Returns the ids of the dropped runs."""
    old = now - KEPT
    gone = {
        run.id
        for run in tables.runs.values()
        if run.state in ENDED_RUN_STATES and (run.ended_at or run.created_at) < old
    }
    tables.runs = {name: run for name, run in tables.runs.items() if name not in gone}
    tables.log = {name: log for name, log in tables.log.items() if name not in gone}
    closed = {
        incident.id
        for incident in tables.incidents.values()
        if not incident.is_open and (incident.closed or now) < old
    }
    dropped = (tables.incidents[name] for name in closed)
    before = {node: until for node, until in tables.probations.items() if until > now}
    tables.probations = before | probations(dropped, now)
    tables.incidents = {name: incident for name, incident in tables.incidents.items() if name not in closed}
    tables.verdicts = {name: verdicts for name, verdicts in tables.verdicts.items() if name not in closed}
    tables.findings = [(name, finding) for name, finding in tables.findings if name not in closed]
    tables.decisions = [decision for decision in tables.decisions if decision.at >= old]
    tables.granted = [slot for slot in tables.granted if slot.granted_at >= old]
    tables.requeues = [use for use in tables.requeues if use.at >= old]
    tables.requeued_by = {key: run for key, run in tables.requeued_by.items() if run not in gone}
    tables.remedies = [use for use in tables.remedies if use.at >= old]
    tables.audit = [record for record in tables.audit if record.at >= old]
    tables.messages = {
        name: message for name, message in tables.messages.items() if message.incident not in closed
    }
    tables.sent = [(at, message) for at, message in tables.sent if at >= old]
    tables.bursts = {key: burst for key, burst in tables.bursts.items() if burst.last_at >= now - BURSTS_KEPT}
    return gone


#: Menders in the order of the table.
MENDERS = ("healer", "nobody", "thresholds", "first sign")
_OTHERS = {mender.name: mender for mender in (Nobody, Thresholds, FirstSign)}
#: How often old rows are dropped.
TIDY = timedelta(days=1)

Progress = Callable[[float], None] | None


def simulate(
    scenario: Scenario,
    rules: Ruleset,
    seed: int,
    mender: str,
    *,
    file: File | None = None,
    progress: Progress = None,
) -> Card:
    """Returns the card; same arguments, same card. Only healer writes a recording to `file`."""
    if mender == Healer.name:
        return _Healed(scenario, rules, seed, file).play(progress)
    site = Site(scenario, seed)
    other = site.mender = _OTHERS[mender](site)
    Happenings(site)
    site.begin()
    play(site, progress=progress)
    return card_of(site, people=other.did)


class _Healed:
    """healer with its people, telemetry windows, reviews and recorder."""

    def __init__(self, scenario: Scenario, rules: Ruleset, seed: int, file: File | None) -> None:
        self.site = Site(scenario, seed)
        recorder = Recorder(file, MemoryColumns()) if file is not None else None
        self.healer = self.site.mender = Healer(self.site, with_rules(rules, scenario.rules), recorder)
        self.people = People(self.site, self.healer)
        self.windows = Windows(self.site, self.healer, recorder)
        self.reviews = Reviews(self.site, self.healer)
        self._rules_of: dict[str, str] = {}
        self._tidied = self.site.now

    def play(self, progress: Progress) -> Card:
        Happenings(self.site)
        self.site.begin()
        play(
            self.site,
            (self._note, self.windows.look, self.people.look, self.reviews.look, self._tidy),
            progress,
        )
        self._note()
        healer = self.healer
        node_days = self.site.scenario.nodes * self.site.scenario.days
        return card_of(
            self.site,
            people=self.people.did | self.reviews.did,
            undiagnosed=len(self.people.undiagnosed),
            stuck=len(self.people.stuck),
            incidents=dict(Counter(self._rules_of.values())),
            fed={
                "walks": healer.walks,
                "kernel lines": healer.lines,
                "heartbeats": healer.beats,
                "measured node-hours": self.windows.node_hours,
                "measured share": self.windows.node_hours / (24 * node_days),
            },
        )

    def _note(self) -> None:
        """Notes when faults were found and which incidents there were, before old rows are dropped."""
        for name, incident in self.healer.incidents.items():
            if self._rules_of.get(name) != _word(incident):
                if name not in self._rules_of:
                    self._found(incident)
                self._rules_of[name] = _word(incident)

    def _found(self, incident: Incident) -> None:
        for fault in [fault for faults in self.site.active.values() for fault in faults]:
            record = self.site.records[fault.id]
            if record.found_at is None and finds(incident, fault):
                record.found_at = self.site.now

    def _tidy(self) -> None:
        now = self.site.now
        if now - self._tidied < TIDY:
            return
        self._tidied = now
        self.people.forget(forget(self.healer.ledger.tables, now))


class Reviews:
    """People review wrong drains: a rule that was wrong too often falls back to approval, as in production
    (`decisions/consent.py`)."""

    def __init__(self, site: Site, healer: Healer) -> None:
        self.site, self.healer = site, healer
        self._wrong_seen = 0
        self._judged: dict[str, list[bool]] = {}
        self.did = Counter[str]()

    def look(self) -> None:
        new = self.site.wrong[self._wrong_seen :]
        self._wrong_seen = len(self.site.wrong)
        for at, node, _ in new:
            rule = self._rule_of(node, at)
            if rule is not None:
                answer_s = self.site.scenario.people.answer_min * 60
                self.site.agenda.at(self.site.later(answer_s), self._judge(rule))

    def _rule_of(self, node: str, at: datetime) -> str | None:
        of_node = [
            incident
            for incident in self.healer.incidents.values()
            if incident.root.node == node and incident.opened <= at
        ]
        return of_node[-1].rule if of_node else None

    def _judge(self, rule: str) -> Callable[[], None]:
        def false_alarm() -> None:
            self.did["false alarms told"] += 1
            self._judged.setdefault(rule, []).append(False)
            earn = self.healer.rules.guards.earn
            wrong = len(self._judged[rule][-earn.incidents :])
            modes = self.healer.ledger.tables.modes
            found = self.healer.rules.by_name.get(rule)
            mode = modes.get(rule) or (self.healer.rules.mode_of(found) if found is not None else Mode.shadow)
            if demotion_reason(mode, Proof(wrong=wrong), earn):
                modes[rule] = Mode.approve
                self.did["rules fallen back"] += 1
            self.healer.wake()

        return false_alarm


def _word(incident: Incident) -> str:
    return f"{incident.rule} (part of another)" if incident.merged_into else incident.rule


NEW_DRIVER = "590.48.01"
STORAGE_LINE = "nfs: server 10.1.2.3 not responding, still trying"
#: Factor on step time while storage is slow.
STORAGE_SLOWER = 1.4
#: A storm's lines come within this many seconds.
STORM_S = 20.0


class Happenings:
    """Schedules all that the scenario plants. Its faults are numbered from `FIRST`."""

    FIRST = 1_000_000

    def __init__(self, site: Site) -> None:
        self.site = site
        self._rng = np.random.default_rng([site.seed, 7])
        self._number = self.FIRST
        self._plan_stops()
        self._innocent()
        for happening in site.scenario.happenings:
            do = _KINDS.get(happening.what)
            if do is None:
                raise BadScenario(
                    say(
                        "simulation.nothing_happens_there_are",
                        what=happening.what,
                        kinds=joined(_KINDS, "comma"),
                    )
                )
            at = site.scenario.start + timedelta(hours=happening.at_h)
            do(self, happening, at)

    def _moments(self, count: int) -> list[datetime]:
        seconds = self._rng.uniform(0, self.site.scenario.days * DAY_S, count)
        return [self.site.scenario.start + timedelta(seconds=second) for second in sorted(seconds.tolist())]

    def _plan_stops(self) -> None:
        scenario = self.site.scenario
        for at in self._moments(round(scenario.planned_stops_per_day * scenario.days)):
            self.site.agenda.at(at, self._stop)

    def _stop(self) -> None:
        site = self.site
        site.stop_planned(site.later(site.scenario.planned_stop_min * 60))

    def _innocent(self) -> None:
        scenario = self.site.scenario
        count = int(self._rng.poisson(scenario.telemetry.innocent_per_day * scenario.days))
        for at in self._moments(count):
            node = self.site.names[int(self._rng.integers(scenario.nodes))]
            line = INNOCENT[int(self._rng.integers(len(INNOCENT)))].format(
                pci=PCI[int(self._rng.integers(8))]
            )
            self.site.agenda.at(at, self._log_line(node, line))

    def _log_line(self, node: str, line: str) -> Callable[[], None]:
        return lambda: self.site.mender.read_line(node, line)

    # --- planted by the scenario ---

    def _fault(self, node: str, way: str, at: datetime, **changed: object) -> Fault:
        self._number += 1
        drawn = self.site.chance.draw(self._number, at, node, way=way, because="planted")
        return replace(drawn, **changed)  # type: ignore[arg-type]

    def fault(self, happening: Happening, at: datetime) -> None:
        """Nodes from `place` on fail in the same way at once."""
        for node in self._nodes(happening):
            self.site.expect(self._fault(node, happening.way, at))

    def passing(self, happening: Happening, at: datetime) -> None:
        """As `fault`, and it ends by itself after `minutes`: power or a switch is back."""
        nodes = self._nodes(happening)
        for node in nodes:
            self.site.expect(self._fault(node, happening.way, at, took=True, again_s=None))

        def back() -> None:
            for node in nodes:
                self.site.mend(node)

        self.site.agenda.at(at + timedelta(minutes=happening.minutes), back)

    def storm(self, happening: Happening, at: datetime) -> None:
        """A GPU falls off the bus, and all nodes of its job log Xid 45 as it ends."""
        (root, *others) = self._nodes(happening)
        self.site.expect(self._fault(root, happening.way, at))
        for number, node in enumerate(others):
            late = timedelta(seconds=1 + STORM_S * number / max(1, len(others)))
            for gpu in PCI:
                self.site.agenda.at(at + late, self._log_line(node, TEARDOWN.format(pci=gpu)))

    def storage(self, happening: Happening, at: datetime) -> None:
        """The file server does not answer: nodes log it, and steps wait for data."""

        def begin() -> None:
            self.site.shared_slow = STORAGE_SLOWER, "storage"
            for node in self._nodes(happening):
                self.site.mender.read_line(node, STORAGE_LINE)

        def over() -> None:
            self.site.shared_slow = 1.0, "none"
            for node in self._nodes(happening):
                self.site.mender.read_line(node, "nfs: server 10.1.2.3 OK")

        self.site.agenda.at(at, begin)
        self.site.agenda.at(at + timedelta(minutes=happening.minutes), over)

    def controller_away(self, happening: Happening, at: datetime) -> None:
        self._switch(at, happening.minutes, lambda healer, away: setattr(healer.controller, "away", away))

    def deaf(self, happening: Happening, at: datetime) -> None:
        """Signals stop arriving, while all nodes are well."""
        self._switch(at, happening.minutes, lambda healer, deaf: setattr(healer, "deaf", deaf))

    def _switch(self, at: datetime, minutes: float, turn: Callable[[Healer, bool], None]) -> None:
        healer = self.site.mender
        if not isinstance(healer, Healer):
            return  # other menders use neither signals nor Slurm's API

        def set_to(on: bool) -> Callable[[], None]:
            def do() -> None:
                turn(healer, on)
                healer.wake()

            return do

        self.site.agenda.at(at, set_to(True))
        self.site.agenda.at(at + timedelta(minutes=minutes), set_to(False))

    def driver(self, happening: Happening, at: datetime) -> None:
        """A rollout: node after node reports another driver than the reference."""
        healer = self.site.mender
        if not isinstance(healer, Healer):
            return
        nodes = self._nodes(happening)
        good = {"driver": "580.65.06"}
        healer.ledger.tables.references["h100"] = Reference(
            kind="h100", cluster=CLUSTER, node=self.site.names[0], by="ann", at=self.site.now, facts=good
        )
        for number, node in enumerate(nodes):
            late = timedelta(minutes=happening.minutes * number / max(1, len(nodes)))
            self.site.agenda.at(at + late, self._report_facts(healer, node, {"driver": NEW_DRIVER}))

    def _report_facts(self, healer: Healer, node: str, facts: dict[str, str]) -> Callable[[], None]:
        def do() -> None:
            now = self.site.now
            inventory = Observation(
                digest=digest_of("inventory", node, now.isoformat()),
                kind=ObservationKind.inventory,
                component=Component(cluster=CLUSTER, node=node),
                event_at=now,
                arrived_at=now,
                data={"facts": facts},
            )
            healer.hear([inventory])
            healer.wake()

        return do

    def _nodes(self, happening: Happening) -> list[str]:
        """`place` is a rack, a switch, or the first node; `nodes` how many from there on, 0 for the whole
        place."""
        shown = self.site.snapshot().nodes.values()
        here = [node.name for node in shown if happening.place in {node.rack, node.switch, node.name}]
        if not here:
            raise BadScenario(say("simulation.fleet_has_no_rack", what=happening.what, place=happening.place))
        if happening.nodes:
            first = self.site.names.index(here[0])
            here = self.site.names[first : first + happening.nodes]
        return here


_KINDS: dict[str, Callable[[Happenings, Happening, datetime], None]] = {
    "fault": Happenings.fault,
    "passing-fault": Happenings.passing,
    "xid45-storm": Happenings.storm,
    "storage-brownout": Happenings.storage,
    "controller-away": Happenings.controller_away,
    "signals-lost": Happenings.deaf,
    "driver-rollout": Happenings.driver,
}
