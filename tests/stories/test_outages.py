"""A place that goes away takes no healthy node with it: of its nodes only one that died is acted upon."""

import json
import random
from collections import deque
from datetime import timedelta
from typing import NamedTuple

import msgspec
import pytest

from healer.model import Mode, Observation, PlaceKind, SlurmNode
from healer.model.faults import PLACES_SILENT
from healer.observations import Picture
from healer.recordings.recording import read
from healer.sim.replaying import replay
from healer.sim.sim_slurm import sim_nodes
from tests.support.loop import CLUSTER, START, Site, beat, name, rules_in

pytestmark = pytest.mark.heavy

NODES, BEAT_S, STEP_S = 36, 10, 5
#: Longer than `JUST_BACK` and what a node that died in an outage then needs.
AFTERWARDS_S = 600


class Absence(NamedTuple):
    """Seconds from the start; `until` None: it never comes back."""

    node: str
    since: float
    until: float | None


class Outage(NamedTuple):
    kind: PlaceKind
    place: str
    absences: tuple[Absence, ...]
    dead: str | None

    def away(self, second: float) -> set[str]:
        return {
            one.node
            for one in self.absences
            if one.since <= second and (one.until is None or second < one.until)
        }

    @property
    def end(self) -> float:
        return max(one.until or one.since for one in self.absences)


class PlacedSite(Site):
    """The poller adds what Slurm does not report: which PDU feeds a node."""

    pdus: dict[str, str]

    def look(self) -> None:
        snapshot = self.slurm.snapshot()
        nodes = {
            name: msgspec.structs.replace(node, pdu=self.pdus[name]) for name, node in snapshot.nodes.items()
        }
        snapshot = msgspec.structs.replace(snapshot, nodes=nodes)
        self.picture.show(snapshot)
        self.ledger.snapshot = snapshot


def fleet(drawn: random.Random) -> list[SlurmNode]:
    """Switches of 12, racks of 6 and PDUs of 9 nodes; a PDU feeds nodes of several racks."""
    fed = drawn.sample(range(NODES), NODES)
    return [
        msgspec.structs.replace(
            one, switch=f"leaf{index // 12}", rack=f"r{index // 6}", pdu=f"p{fed[index] // 9}"
        )
        for index, one in enumerate(sim_nodes(NODES))
    ]


def draw_outage(drawn: random.Random, nodes: list[SlurmNode]) -> Outage:
    kind = drawn.choice([PlaceKind.switch, PlaceKind.rack, PlaceKind.pdu])
    place = getattr(drawn.choice(nodes), kind)
    there = [one.name for one in nodes if getattr(one, kind) == place]
    members = drawn.sample(there, drawn.randint(2, len(there)))
    dead = drawn.choice([None, drawn.choice(members)])
    spread, back_spread = drawn.choice([0, 5, 25]), drawn.choice([0, 5, 60, 240])
    begin, lasts = 60.0, drawn.uniform(60, 600)
    absences: list[Absence] = []
    for one in members:
        since = begin + drawn.uniform(0, spread)
        if one == dead:
            absences.append(Absence(one, since, None))
            continue
        until = begin + spread + lasts + drawn.uniform(0, back_spread)
        absences.append(Absence(one, since, until))
        if drawn.random() < 0.2:  # it is back for a moment, and away once more
            again = until + drawn.uniform(10, 90)
            absences.append(Absence(one, again, again + drawn.uniform(40, 120)))
    return Outage(kind, place, tuple(absences), dead)


def play(
    outage: Outage, nodes: list[SlurmNode], drawn: random.Random, *, restart_s: int | None = None
) -> tuple[Site, set[str]]:
    """The site afterwards, and the nodes that were ever out of service by healer. `restart_s`: then the
    detector restarts, with the heartbeats of the last quarter of an hour."""
    site = PlacedSite(nodes, slurmd_timeout_s=drawn.choice([30, 60, 300]))
    site.pdus = {one.name: one.pdu for one in nodes}
    phase = {one.name: drawn.randrange(0, BEAT_S, STEP_S) for one in nodes}
    gone: set[str] = set()
    drained: set[str] = set()
    stored: deque[Observation] = deque(maxlen=90 * NODES)
    for second in range(0, int(outage.end) + AFTERWARDS_S, STEP_S):
        away = outage.away(second)
        for node in sorted(away - gone):
            site.slurm.silence(node)
        for node in sorted(gone - away):
            site.slurm.answer(node)
        gone = away
        beats = [
            beat(one.name, site.now)
            for one in nodes
            if one.name not in away and second % BEAT_S == phase[one.name]
        ]
        stored.extend(beats)
        if second == restart_s:
            site.picture = Picture(CLUSTER, watching_since=site.now)
            site.look()
            site.picture.update(stored, site.rules.topology, rebuild=True)
        site.walk(*beats)
        site.drive()
        drained |= {slot.node for slot in site.ledger.tables.slots.values()}
        site.clock.advance(STEP_S)
    return site, drained


@pytest.mark.parametrize("seed", range(24))
def test_only_the_node_that_died_in_the_outage_is_acted_upon(seed: int) -> None:
    drawn = random.Random(seed)
    nodes = fleet(drawn)
    outage = draw_outage(drawn, nodes)
    site, drained = play(outage, nodes, drawn)
    assert drained == ({outage.dead} if outage.dead else set()), outage
    assert {one.root.node for one in site.open_incidents} == ({outage.dead} if outage.dead else set())


def test_two_nodes_of_a_rack_going_silent_together_are_one_incident_without_a_drain() -> None:
    nodes = fleet(random.Random(1))
    both = tuple(Absence(name(number), 60.0, None) for number in (1, 2))
    site, drained = play(Outage(PlaceKind.rack, "r0", both, None), nodes, random.Random(1))
    assert drained == set()
    (place,) = [one for one in site.open_incidents if one.fault in PLACES_SILENT]
    assert {part.node for part in place.affected} >= {name(1), name(2)}
    assert place.title.startswith("2 nodes ")


def test_a_rack_that_goes_silent_within_the_outage_of_its_pdu_is_part_of_it() -> None:
    """Its nodes are missed together before they are missed for long enough to count for the PDU."""
    nodes = [
        msgspec.structs.replace(one, switch="", rack=f"r{index // 4}", pdu=f"p{index // 16}")
        for index, one in enumerate(sim_nodes(NODES))
    ]
    first = [Absence(name(number), 60.0, 700.0) for number in (5, 6, 9, 10)]
    rack = [Absence(name(number), 75.0, 700.0) for number in (1, 2, 3)]
    outage = Outage(PlaceKind.pdu, "p0", (*first, *rack), None)
    site, drained = play(outage, nodes, random.Random(1))
    (place,) = [one for one in site.incidents if one.fault in PLACES_SILENT and one.merged_into is None]
    assert (place.root.device, drained, site.open_incidents) == ("p0", set(), [])
    assert {part.node for part in place.affected} == {one.node for one in outage.absences}


def test_a_node_that_dies_long_after_another_one_of_its_rack_is_acted_upon() -> None:
    nodes = fleet(random.Random(1))
    apart = (Absence(name(1), 60.0, None), Absence(name(2), 60.0 + timedelta(hours=1).total_seconds(), None))
    _, drained = play(Outage(PlaceKind.rack, "r0", apart, None), nodes, random.Random(1))
    assert drained == {name(1), name(2)}


@pytest.mark.parametrize("restart_s", [200, 450, 560])
def test_a_restart_of_the_detector_forgets_no_outage(restart_s: int) -> None:
    """While all are away, while they return, and when one is left."""
    nodes = fleet(random.Random(3))
    there = [one.name for one in nodes if one.switch == "leaf1"]
    absences = tuple(Absence(one, 60.0, 400.0 + 15 * index) for index, one in enumerate(there))
    outage = Outage(PlaceKind.switch, "leaf1", absences, None)
    site, drained = play(outage, nodes, random.Random(3), restart_s=restart_s)
    assert drained == set()
    assert site.open_incidents == []


def test_late_slurm_state_of_returned_nodes_belongs_to_the_outage() -> None:
    names, lost_s, back_s, reached_s = [name(number) for number in range(1, 13)], 300, 720, 830
    places = {one: "leaf1" if one in names[:4] else "leaf2" for one in names}

    def row(at_s: float, route: str, body: object) -> dict[str, object]:
        return {"at": (START + timedelta(seconds=at_s)).isoformat(), "route": route, "body": body}

    def shown(at_s: float, state: str, key: str, some: list[str]) -> dict[str, object]:
        rows = [{"name": one, "state": [*state.split("+")], "gpus": 8, "switch": places[one]} for one in some]
        return row(at_s, "slurm/nodes", {"cluster": CLUSTER, key: rows})

    rows = [shown(0, "IDLE", "nodes", names), shown(lost_s + 80, "IDLE+NOT_RESPONDING", "changed", names[:4])]
    rows.append(shown(reached_s, "IDLE", "changed", names[:4]))
    for at_s in range(1, 1500, 15):
        there = [one for one in names if places[one] == "leaf2" or not lost_s < at_s < back_s]
        beats = [{"cluster": CLUSTER, "node": one, "boot_id": f"{one}-b1"} for one in there]
        rows.append(row(at_s, "signals/heartbeat", beats))
    rows.sort(key=lambda one: str(one["at"]))
    document = replay(rules_in(Mode.auto), read(json.dumps(one) for one in rows))
    assert [(one["rule"], one["state"]) for one in document["incidents"]] == [("switch-silent", "resolved")]
