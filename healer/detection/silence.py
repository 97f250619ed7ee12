"""Silence: a sender that kept its own interval and stopped. Slurm is checked before a node is blamed.

Nodes of one place that are silent at the same time are one outage; nodes that never send count as silent
while Slurm does not reach them. The outage begins with its first node and lasts until its last one is back
and sends regularly again; meanwhile none of them is judged alone (law 2). A node is judged alone if all
others of its switch, rack, PDU and NVLink domain were heard well after it, and none of them has just come
back.
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime, timedelta
from functools import cached_property
from hashlib import sha256
from typing import NamedTuple

from healer.detection.protocol import WalkInput
from healer.model import Component, Evidence, FaultClass, Finding, PlaceKind, Sense, SlurmNode
from healer.model.faults import FLEET_SILENT, NODE_SILENT, SENDER_SILENT, Trait, fault_is
from healer.model.slurm import ByIdentity, shared_places
from healer.observations.node_picture import SILENCE_AFTER, NodePicture
from healer.observations.picture import Picture
from healer.observations.silences import AllHeard, Alone, Outage, Settled, Unreached
from healer.text import Said, say

#: This many silent nodes of one place, and at least half of those expected there, point to the place.
PLACE_NODES = 3


class Together(NamedTuple):
    """`nodes` by name; `of`: the number of nodes expected there."""

    kind: PlaceKind
    place: str
    nodes: list[str]
    of: int

    @property
    def words(self) -> Said:
        """`on PDU p7`."""
        return say(f"detection.at_{self.kind}", place=self.place)

    def root(self, cluster: str) -> Component:
        return Component.of_place(cluster, self.kind, self.place)


def together(
    away: Collection[str], expected: Collection[str], nodes: Mapping[str, SlurmNode]
) -> list[Together]:
    """The places, with each node in at most one: the place with the most of them, then the one that lost the
    largest share, then the switch, because a failed network is more common than a rack without power."""
    left, found = set(away), []
    while best := _best_place(left, expected, nodes):
        found.append(best)
        left -= set(best.nodes)
    return found


def _best_place(away: set[str], expected: Collection[str], nodes: Mapping[str, SlurmNode]) -> Together | None:
    groups: dict[tuple[PlaceKind, str], list[str]] = defaultdict(list)
    for name in sorted(away):
        for key in _places_of(name, nodes):
            groups[key].append(name)
    large = {key for key, names in groups.items() if len(names) >= PLACE_NODES}
    sizes: dict[tuple[PlaceKind, str], int] = defaultdict(int)
    for name in expected if large else ():
        for key in _places_of(name, nodes):
            sizes[key] += 1
    fits = [
        Together(kind, place, groups[kind, place], sizes[kind, place])
        for kind, place in sorted(large)
        if len(groups[kind, place]) * 2 >= sizes[kind, place]
    ]
    return max(fits, key=_likelihood, default=None)


def _places_of(name: str, nodes: Mapping[str, SlurmNode]) -> set[tuple[PlaceKind, str]]:
    """Its places, including its row; and the unknown one."""
    named = {(kind, place) for kind in PlaceKind if (place := getattr(nodes[name], kind, ""))}
    return named.union(shared_places(ByIdentity(nodes))[name])


def _likelihood(outage: Together) -> tuple[int, float, bool, int]:
    share = len(outage.nodes) / max(1, outage.of)
    rank = -list(PlaceKind).index(outage.kind)
    return len(outage.nodes), share, outage.kind is PlaceKind.switch, rank


#: If this share of all senders (and at least three) is silent at once, healer itself hears nothing.
FLEET_SHARE = 0.5
#: A node is judged alone only this long after its last heartbeat, because others of its place may follow.
ALONE_AFTER = 2 * SILENCE_AFTER
#: Nodes of one place fail within this time of each other: a neighbour is known to be healthy if it is heard
#: this long after the first heartbeat that a node missed.
FOLLOWS_WITHIN = timedelta(seconds=45)
#: A node that came back within this time shows that its place was out (law 2).
JUST_BACK = timedelta(minutes=5)


def is_just_back(sender: NodePicture, now: datetime) -> bool:
    return sender.back_at is not None and now - sender.back_at < JUST_BACK


def silence_findings(walk: WalkInput) -> list[Finding]:
    """One finding per silent node, or one for the place that they share. Empty until healer has listened long
    enough."""
    picture, now = walk.picture, walk.now
    if picture.slurm is None or now - picture.watching_since <= SILENCE_AFTER:
        return []
    shown = picture.slurm.nodes
    _note_unreached(picture, now)
    if picture.silence.all_heard is not None and picture.silence.all_heard.holds(shown, now):
        return []
    senders, silent = _senders(picture, now)
    alone = picture.silence.alone
    picture.silence.alone = {
        name: judged for name, judged in alone.items() if silent.get(name) == judged.since
    }
    if not silent:
        picture.silence.all_heard = AllHeard(shown, _first_missed(senders.values(), now))
        return []
    if _is_fleet(picture, senders, silent):
        return [_silent_fleet(picture, silent, len(senders), now)]
    return list(_Silence(walk, senders, silent).findings())


def settled_until(picture: Picture, now: datetime, *, at_rest: bool) -> Settled | None:
    """Until when heartbeats of known senders change nothing. None while the meaning of a silence is open: a
    silent node is not judged yet, or others have just come back. `at_rest`: no incident is open that a return
    could end."""
    if picture.slurm is None or now - picture.watching_since <= SILENCE_AFTER:
        return None
    senders, silent = _senders(picture, now)
    left = {name: since for name, since in silent.items() if name not in picture.silence.alone}
    if any(now - since <= JUST_BACK for since in left.values()):
        return None
    if (silent or not at_rest) and any(is_just_back(node, now) for node in senders.values()):
        return None
    heard = [node for name, node in senders.items() if name not in silent]
    return Settled(frozenset(silent), _first_missed(heard, now))


def _first_missed(heard: Collection[NodePicture], now: datetime) -> datetime:
    """The earliest time at which one of these can be silent."""
    until = min((node.beats[-1] for node in heard), default=now) + SILENCE_AFTER
    # Most send so often that their interval need not be known.
    return until if until > now else min(node.missed_at for node in heard)


def loses_with_place(walk: WalkInput, name: str, since: datetime) -> bool:
    """Whether a node that lost something at that time is not judged alone: others of its places went silent
    too, are about to, came back within the last minutes, or were not heard since."""
    if walk.picture.slurm is None or name not in walk.picture.slurm.nodes:
        return False
    senders, silent = _senders(walk.picture, walk.now)
    return _Silence(walk, senders, silent | {name: since}).is_among_others(name)


def _senders(picture: Picture, now: datetime) -> tuple[dict[str, NodePicture], dict[str, datetime]]:
    """The nodes that should be heard, and the last heartbeat of those that are silent."""
    assert picture.slurm is not None
    shown = picture.slurm.nodes
    senders = {node.name: node for node in picture.senders() if _is_expected(shown.get(node.name))}
    since_of = (
        (name, node.silent_since(now, _expected_since(picture, name))) for name, node in senders.items()
    )
    return senders, {name: since for name, since in since_of if since is not None}


def _note_unreached(picture: Picture, now: datetime) -> None:
    """Checks a new Slurm snapshot for nodes that only Slurm reports on."""
    silence, slurm = picture.silence, picture.slurm
    if slurm is None or silence.looked_at is slurm.nodes:
        return
    silence.looked_at = slurm.nodes
    senders = {node.name for node in picture.senders()}
    away = {
        node.name
        for node in slurm.odd_nodes
        if not (node.responding or node.is_expected_away or node.drain or node.name in senders)
    }
    before = silence.unreached
    still = {name: node for name, node in before.items() if node.back_at is None}
    silence.unreached = {
        **{
            name: node._replace(back_at=node.back_at or now)
            for name, node in before.items()
            if name not in senders
        },
        **{name: still.get(name, Unreached(now)) for name in away},
    }


class _Silence:
    """One evaluation of which nodes are silent. `silent`: the last heartbeat of each."""

    def __init__(
        self, walk: WalkInput, senders: Mapping[str, NodePicture], silent: Mapping[str, datetime]
    ) -> None:
        assert walk.picture.slurm is not None
        self._picture, self._now = walk.picture, walk.now
        self._nodes, self._senders = walk.picture.slurm.nodes, senders
        self._places = shared_places(ByIdentity(self._nodes))
        unreached = {
            name: node
            for name, node in walk.picture.silence.unreached.items()
            if name in self._nodes and (node.back_at is None or self._now - node.back_at < JUST_BACK)
        }
        away = {name: node.since for name, node in unreached.items() if node.back_at is None}
        self._silent = {**away, **silent}
        #: Nodes in which a place's outage would show: senders, and nodes that only Slurm reports on.
        self._expected = senders.keys() | unreached.keys()
        #: Silent nodes that are not explained yet.
        self._left = {name: at for name, at in self._silent.items() if name not in walk.picture.silence.alone}

    def findings(self) -> Iterator[Finding]:
        for name, alone in sorted(self._picture.silence.alone.items()):
            yield _silent_node(self._picture, name, alone, self._now)
        for wider in self._wider():
            yield self._of_place(wider)
        for outage in self._picture.silence.outages:
            yield from self._known_outage(outage)
        for outage in self._together():
            yield self._of_place(outage)
        while (several := self._partial_outage()) is not None:
            yield self._of_place(several)
        for name, since in sorted(self._left.items()):
            if name in self._senders:
                yield from self._single(name, since)

    def _together(self) -> list[Together]:
        """The places with a silent sender; reports by Slurm alone become findings of their own."""
        found = together(self._left, self._expected, self._nodes)
        return [place for place in found if not self._senders.keys().isdisjoint(place.nodes)]

    def _wider(self) -> list[Together]:
        """Places of which a known outage is only the part that went silent first."""
        outages = [outage for outage in self._picture.silence.outages if outage.kind is not None]
        held = {(outage.kind, outage.place) for outage in outages}
        places = self._together() if outages else []
        return [
            place
            for place in places
            if (place.kind, place.place) not in held
            and any(self._is_part(outage, place.nodes) for outage in outages)
        ]

    def _is_part(self, outage: Outage, nodes: list[str]) -> bool:
        """All nodes of the outage that are still silent are among `nodes`, and so many others went silent at
        about the same time that they would be an outage of their own."""
        away = outage.nodes & self._left.keys()
        first = min((self._silent[name] for name in away), default=self._now)
        near = [name for name in nodes if abs(self._silent[name] - first) <= JUST_BACK]
        return bool(away) and away <= set(nodes) and len(set(near) - away) >= PLACE_NODES

    def _of_place(self, what: Together) -> Finding:
        for name in what.nodes:
            self._left.pop(name, None)
        nodes = {name: self._silent[name] for name in what.nodes if name in self._senders}
        return _silent_place(self._picture, what, nodes, self._now)

    def _known_outage(self, outage: Outage) -> Iterator[Finding]:
        """The known outage, while a node of it is silent that is not judged alone."""
        if outage.kind is None:
            here = {*outage.nodes, *self._senders}
        else:
            here = {*outage.nodes, *self._expected_by_place.get((outage.kind, outage.place), ())}
        away = sorted(here & self._left.keys())
        senders = [name for name in away if name in self._senders]
        if not senders or (len(away) == 1 and not self._is_troubled(away[0])):
            return
        if outage.kind is not None:
            yield self._of_place(Together(outage.kind, outage.place, away, len(here)))
        else:
            silent = {name: self._left.pop(name) for name in senders}
            yield _silent_fleet(self._picture, silent, len(self._senders), self._now)

    def _partial_outage(self) -> Together | None:
        """Nodes of one place, some of which Slurm does not reach either: too few to call the place broken,
        and too many for separate faults. Nodes judged alone at about the same time count too."""
        away = [name for name, since in self._silent.items() if self._now - since >= ALONE_AFTER]
        groups: dict[tuple[PlaceKind, str], list[str]] = defaultdict(list)
        for name in sorted(away):
            for place in self._places[name]:
                groups[place].append(name)
        found = []
        for (kind, place), names in groups.items():
            left = [name for name in names if name in self._left and name in self._senders]
            near = [name for name in names if any(self._began_with(name, other) for other in left)]
            if left and len(near) > 1 and any(not self._nodes[name].responding for name in near):
                found.append(Together(kind, place, near, len(self._expected_by_place[kind, place])))
        return max(found, key=_likelihood, default=None)

    def _single(self, name: str, since: datetime) -> Iterator[Finding]:
        if self._nodes[name].responding:
            yield _silent_node(self._picture, name, Alone(since, None), self._now)
        elif self._now - since >= ALONE_AFTER and not self._is_troubled(name):
            alone = Alone(since, self._others_back_at(name, since))
            self._picture.silence.alone[name] = alone
            yield _silent_node(self._picture, name, alone, self._now)

    def _is_troubled(self, name: str) -> bool:
        """Other nodes of its places are silent, are about to be, or came back within the last minutes."""
        return any(self._is_away(other, name) for other in self._neighbours(name))

    def is_among_others(self, name: str) -> bool:
        """Whether its loss may be due to its place."""
        out = {node for outage in self._picture.silence.outages for node in outage.nodes}
        at = self._silent[name]
        return any(
            self._lost_part(other, at)
            or (self._began_with(other, name) if other in self._silent else self._is_unsure(other, at))
            or (other in out and other in self._silent)
            for other in self._neighbours(name)
        )

    def _is_away(self, other: str, name: str) -> bool:
        if self._lost_part(other, self._silent[name]):
            return True
        if other in self._silent:
            return self._is_near(other, name)
        missed_at = self._silent[name] + timedelta(seconds=self._senders[name].cadence_s)
        return self._is_unsure(other, missed_at + FOLLOWS_WITHIN)

    def _lost_part(self, other: str, at: datetime) -> bool:
        """It reported a lost port or file system at about that time, or its place is known to be broken.
        NVLinks do not count, because a dying node loses them too."""
        report = self._picture.node_reports.get(other)
        near = report is not None and abs(report.at - at) <= JUST_BACK
        lost = report is not None and near and not fault_is(report.fault, Trait.gpu)
        return lost or other in self._picture.silence.broken

    def _is_unsure(self, other: str, known_at: datetime) -> bool:
        """It has just come back, is late, or was not heard since `known_at`."""
        if other not in self._senders:
            return True  # Slurm reaches it again
        sender = self._senders[other]
        if is_just_back(sender, self._now) and not self._was_planned(sender):
            return True
        return sender.beats[-1] < known_at or sender.is_overdue(self._now)

    def _was_planned(self, back: NodePicture) -> bool:
        """Its last absence was planned: it came back when the plan ended, or just after."""
        ended = self._picture.changes.back_from_plan.get(back.name)
        return ended is not None and back.back_at is not None and back.back_at < ended + JUST_BACK

    def _is_near(self, other: str, name: str) -> bool:
        """Whether its silence may explain this one. A node that was judged alone, or never sent, explains
        nothing that begins later."""
        alone = other in self._picture.silence.alone or other not in self._senders
        return not alone or abs(self._silent[other] - self._silent[name]) <= JUST_BACK

    def _began_with(self, other: str, name: str) -> bool:
        """Whether both began together. A sender that Slurm still reaches, or that another outage explains, is
        no part of an outage that begins later."""
        dead = other in self._left and other in self._senders and not self._nodes[other].responding
        return dead or abs(self._silent[other] - self._silent[name]) <= JUST_BACK

    def _others_back_at(self, name: str, since: datetime) -> datetime | None:
        """When the last of the nodes of its places came back that were silent with it."""
        unreached = self._picture.silence.unreached
        back = [self._senders[other].back_at for other in self._neighbours(name) & self._senders.keys()]
        back += [unreached[other].back_at for other in self._neighbours(name) - self._senders.keys()]
        return max((at for at in back if at is not None and at > since), default=None)

    def _neighbours(self, name: str) -> set[str]:
        """Expected nodes of its places, and of the outages that it is in."""
        there = {other for place in self._places[name] for other in self._expected_by_place.get(place, ())}
        for outage in self._picture.silence.outages:
            there |= outage.nodes & self._expected if name in outage.nodes else set()
        return there - {name}

    @cached_property
    def _expected_by_place(self) -> dict[tuple[PlaceKind, str], list[str]]:
        """Expected nodes of each place where a node is silent or an outage lasts."""
        wanted = {place for name in self._silent for place in self._places[name]}
        outages = self._picture.silence.outages
        wanted |= {(outage.kind, outage.place) for outage in outages if outage.kind is not None}
        found: dict[tuple[PlaceKind, str], list[str]] = defaultdict(list)
        for name in self._expected if wanted else ():
            for place in self._places[name]:
                if place in wanted:
                    found[place].append(name)
        return dict(found)


def is_fleet(silent: int, senders: int) -> bool:
    return silent >= max(3, FLEET_SHARE * senders)


def _is_expected(node: SlurmNode | None) -> bool:
    """Whether the node should send: known to Slurm, not out by plan, and not being started."""
    return node is not None and not node.is_expected_away


def _expected_since(picture: Picture, name: str) -> datetime:
    """Heartbeats before this time do not count as missed."""
    began, planned, late = picture.watching_since, picture.changes.back_from_plan, picture.silence.late
    return max(began, planned.get(name, began), late.get(name, began))


def _is_fleet(picture: Picture, senders: Collection[str], silent: Collection[str]) -> bool:
    """Most senders are silent while Slurm still hears most of them: healer's own reception is broken."""
    assert picture.slurm is not None
    heard = sum(1 for name in silent if picture.slurm.nodes[name].responding)
    return is_fleet(len(silent), len(senders)) and heard * 2 > len(silent)


def _silence_evidence(
    cluster: str, node: str, since: datetime, text: Said, others_back_at: datetime | None = None
) -> Evidence:
    identity = f"silence|{cluster}|{node}|{since.isoformat()}"
    if others_back_at is not None:
        identity += f"|{others_back_at.isoformat()}"
    return Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=since,
        component=Component(cluster=cluster, node=node),
        text=text,
        sense=Sense.silence,
    )


def _silent_node(picture: Picture, name: str, alone: Alone, now: datetime) -> Finding:
    """Once the others of its place are back, its silence is new evidence: the earlier report was about the
    outage."""
    assert picture.slurm is not None
    since = alone.since
    shown = picture.slurm.nodes[name]
    agrees = not shown.responding
    state = "+".join(shown.state)
    time = f"{since:%H:%M:%S}"
    text = say("detection.node_silent" if agrees else "detection.sender_silent", time=time, state=state)
    return Finding.from_evidence(
        _silence_evidence(picture.cluster, name, since, text, alone.others_back_at),
        rule="",
        fault=NODE_SILENT if agrees else SENDER_SILENT,
        fault_class=FaultClass.fatal if agrees else FaultClass.informational,
        arrived_at=now,
        confidence=0.95 if agrees else 0.5,
        unusable=agrees,
    )


def _silent_place(picture: Picture, what: Together, nodes: dict[str, datetime], now: datetime) -> Finding:
    return Finding(
        rule="",
        fault=f"{what.kind}-silent",
        fault_class=FaultClass.degraded,
        component=what.root(picture.cluster),
        at=min(nodes.values()),
        arrived_at=now,
        text=say("detection.place_silent", n=len(what.nodes), place=what.words),
        confidence=0.8,
        evidence=tuple(
            _silence_evidence(picture.cluster, name, at, say("detection.silent", node=name))
            for name, at in sorted(nodes.items())
        ),
        affected=tuple(Component(cluster=picture.cluster, node=name) for name in sorted(nodes)),
    )


def _silent_fleet(picture: Picture, silent: dict[str, datetime], senders: int, now: datetime) -> Finding:
    text = say("detection.fleet_silent", n=len(silent), of=senders)
    first = min(silent, key=lambda name: (silent[name], name))
    return Finding.from_evidence(
        _silence_evidence(picture.cluster, first, silent[first], text),
        rule="",
        fault=FLEET_SILENT,
        fault_class=FaultClass.informational,
        component=Component(cluster=picture.cluster),
        arrived_at=now,
        confidence=0.9,
        affected=tuple(Component(cluster=picture.cluster, node=name) for name in sorted(silent)),
    )
