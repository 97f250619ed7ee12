"""Heartbeats of a recording. Nearly all of its lines are beats that say "still here" and nothing else: these
are read by a short way that makes of them what the decoder of the API would."""

from datetime import datetime, timedelta

import msgspec

from healer.model import Component, Observation, ObservationKind
from healer.recordings.recording import Entry
from healer.signals import wire

HEARTBEAT = "signals/heartbeat"
#: So long, and up to twice as long, the names of beats that told their time are remembered, as in production.
KNOWN = timedelta(hours=1)


class Beats:
    """What came of one cluster, and which of it is new."""

    def __init__(self, cluster: str, start: datetime) -> None:
        self._cluster = cluster
        self._decode = msgspec.json.Decoder(list[wire.Heartbeat] | wire.Heartbeat).decode
        #: (boot id as told) -> as it is known; node -> itself as a part, once its name was found to be one.
        self._boots: dict[str | None, str | None] = {None: None}
        self._parts: dict[str, Component] = {}
        #: Node -> when it was heard last, and with which boot id: the same once more is the same beat.
        self._last: dict[str, tuple[datetime, str | None]] = {}
        self._newer: set[str] = set()
        self._older: set[str] = set()
        self._since = start

    def plain(self, entry: Entry, known: wire.Known) -> list[Observation] | None:
        """Those that are new, of a body of nothing but plain beats of nodes that are `known`; None for any
        other body: the API's own decoder tells what is wrong with it, or what else it says."""
        try:
            told = self._decode(entry.raw)
        except msgspec.DecodeError:
            return None
        found = []
        for beat in told if isinstance(told, list) else (told,):
            if beat.time is not None or beat.gpus or beat.lost:
                return None
            if beat.cluster != self._cluster and beat.cluster is not None:
                return None
            if not known(self._cluster, beat.node):
                return None
            part = self._parts.get(beat.node) or self._part(beat.node, known)
            if part is None or (beat.boot_id not in self._boots and not self._learn(beat.boot_id)):
                return None
            found.append((part, self._boots[beat.boot_id]))
        return [
            _observed(part, boot_id, entry.at)
            for part, boot_id in found
            if self._is_first(part.node or "", boot_id, entry.at)
        ]

    def is_new(self, beat: Observation) -> bool:
        """Of one that the API's decoder read."""
        if beat.arrived_at - self._since > KNOWN:
            self._newer, self._older, self._since = set(), self._newer, beat.arrived_at
        is_new = beat.digest not in self._newer and beat.digest not in self._older
        self._newer.add(beat.digest)
        return is_new

    def _is_first(self, node: str, boot_id: str | None, at: datetime) -> bool:
        now = at, boot_id
        if self._last.get(node) == now:
            return False
        self._last[node] = now
        return True

    def _part(self, node: str, known: wire.Known) -> Component | None:
        if wire.wrong_node(self._cluster, node, known):
            return None
        part = self._parts[node] = Component(cluster=self._cluster, node=node)
        return part

    def _learn(self, boot_id: str | None) -> bool:
        normal = wire.normal_boot_id(boot_id)
        if not wire.is_id(normal):
            return False
        self._boots[boot_id] = normal
        return True


def _observed(part: Component, boot_id: str | None, at: datetime) -> Observation:
    return Observation(
        digest=f"beat|{part.node}",
        kind=ObservationKind.heartbeat,
        component=part,
        event_at=at,
        arrived_at=at,
        boot_id=boot_id,
    )
