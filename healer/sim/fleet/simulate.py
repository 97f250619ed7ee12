"""One scenario under healer and under each of those that it is compared with."""

from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta

import msgspec

from healer.decisions.earned import falls_back
from healer.model import Incident, Mode, Proof, Ruleset
from healer.recordings.recorder import File, Recorder
from healer.sim.columns import MemoryColumns
from healer.sim.fleet.forget import forget
from healer.sim.fleet.happenings import Happenings
from healer.sim.fleet.healing import Healer, with_rules
from healer.sim.fleet.others import FirstSign, Nobody, Thresholds
from healer.sim.fleet.people import People
from healer.sim.fleet.run import play
from healer.sim.fleet.scenario import Scenario
from healer.sim.fleet.score import Card, card_of
from healer.sim.fleet.site import Site
from healer.sim.fleet.windows import Windows

#: What is compared, in the order of the table.
MENDERS = ("healer", "nobody", "thresholds", "first sign")
_OTHERS = {one.name: one for one in (Nobody, Thresholds, FirstSign)}
#: What is over is forgotten each day.
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
    """The same scenario, rules, seed and mender give the same card. Only healer writes a recording."""
    if mender == Healer.name:
        return _Healed(scenario, rules, seed, file).play(progress)
    site = Site(scenario, seed)
    other = site.mender = _OTHERS[mender](site)
    Happenings(site)
    site.begin()
    play(site, progress=progress)
    return card_of(site, people=other.did)


class _Healed:
    """healer with all that stands around it."""

    def __init__(self, scenario: Scenario, rules: Ruleset, seed: int, file: File | None) -> None:
        self.site = Site(scenario, seed)
        recorder = Recorder(file, MemoryColumns()) if file is not None else None
        self.healer = self.site.mender = Healer(self.site, with_rules(rules, scenario.rules), recorder)
        self.people = People(self.site, self.healer)
        self.windows = Windows(self.site, self.healer, recorder)
        self.reviews = Reviews(self.site, self.healer)
        self._known: dict[str, str] = {}
        self._tidied = self.site.now

    def play(self, progress: Progress) -> Card:
        Happenings(self.site)
        self.site.begin()
        play(
            self.site,
            (self._note, self.windows.stands.look, self.people.look, self.reviews.look, self._tidy),
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
            incidents=dict(Counter(self._known.values())),
            fed={
                "walks": healer.walks,
                "kernel lines": healer.lines,
                "heartbeats": healer.beats,
                "measured node-hours": self.windows.node_hours,
                "measured share": self.windows.node_hours / (24 * node_days),
            },
        )

    def _note(self) -> None:
        """When a fault was first told, and which incidents there were: before anything is forgotten."""
        for name, one in self.healer.incidents.items():
            if self._known.get(name) != _word(one):
                if name not in self._known:
                    self._found(one)
                self._known[name] = _word(one)

    def _found(self, incident: Incident) -> None:
        named = {incident.root.node, *(one.node for one in incident.affected)}
        for node in [name for name in self.site.active if name in named]:
            for fault in self.site.active[node]:
                record = self.site.records[fault.id]
                if record.told_at is None and incident.opened >= fault.at:
                    record.told_at = self.site.now

    def _tidy(self) -> None:
        now = self.site.now
        if now - self._tidied < TIDY:
            return
        self._tidied = now
        self.people.forget(forget(self.healer.ledger.tables, now))


class Reviews:
    """People judge what healer did to a node: a rule that was wrong too often asks first from then on, as in
    production (`decisions/earned.py`)."""

    def __init__(self, site: Site, healer: Healer) -> None:
        self.site, self.healer = site, healer
        self._wrong_seen = 0
        self._judged: dict[str, list[bool]] = {}
        self.did: dict[str, int] = {}

    def look(self) -> None:
        new = self.site.wrong[self._wrong_seen :]
        self._wrong_seen = len(self.site.wrong)
        for at, node, _ in new:
            rule = self._rule_of(node, at)
            if rule is not None:
                answer_s = self.site.scenario.people.answer_min * 60
                self.site.agenda.at(self.site.later(answer_s), self._judge(rule))

    def _rule_of(self, node: str, at: datetime) -> str | None:
        mine = [one for one in self.healer.incidents.values() if one.root.node == node and one.opened <= at]
        return mine[-1].rule if mine else None

    def _judge(self, rule: str) -> Callable[[], None]:
        def false_alarm() -> None:
            self.did["false alarms told"] = self.did.get("false alarms told", 0) + 1
            self._judged.setdefault(rule, []).append(False)
            earn = self.healer.rules.guards.earn
            wrong = len(self._judged[rule][-earn.incidents :])
            modes = self.healer.ledger.tables.modes
            known = self.healer.rules.by_name.get(rule)
            mode = modes.get(rule) or (self.healer.rules.mode_of(known) if known is not None else Mode.shadow)
            if falls_back(mode, Proof(wrong=wrong), earn):
                modes[rule] = Mode.approve
                self.did["rules fallen back"] = self.did.get("rules fallen back", 0) + 1
            self.healer.wake()

        return false_alarm


def _word(incident: Incident) -> str:
    return f"{incident.rule} (part of another)" if incident.merged_into else incident.rule


def scaled(
    scenario: Scenario, *, nodes: int, days: float, more: Mapping[str, object] | None = None
) -> Scenario:
    """A small one of the same kind, for tests: the job takes the same share of the fleet."""
    share = scenario.job.nodes / scenario.nodes
    job = msgspec.structs.replace(scenario.job, nodes=max(1, int(nodes * share)))
    small = msgspec.structs.replace(scenario, nodes=nodes, days=days, job=job, fillers=())
    return msgspec.structs.replace(small, **(more or {}))
