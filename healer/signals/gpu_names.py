"""Which GPU of a node has which UUID and address, as series and nvidia-smi tell it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime

from healer.model import Component, Observation, ObservationKind
from healer.signals.facts import Facts
from healer.signals.identity import digest_of
from healer.signals.serials import gpu_row, normal_serial

#: Nodes remembered by one process: more than any cluster has, and all are nodes that Slurm knows.
_NODES_MAX = 50_000
#: An inventory is told again after so long, so that a rebuild of the last 15 min always finds one.
_TELL_EVERY_S = 600

#: What a UUID may look like; it is stored with the inventory, so no control characters.
_UUID = re.compile(r"[\x21-\x7e]{1,64}")

#: (cluster, node).
Where = tuple[str, str]


@dataclass(slots=True)
class _NodeGpus:
    uuids: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    #: Index -> serial number of the board.
    serials: dict[int, str] = field(default_factory=dict)
    #: What was told last: the stretch of time, and whether it still holds.
    told: int = -1


class GpuNames:
    """Learned per process."""

    def __init__(self) -> None:
        self._nodes: dict[Where, _NodeGpus] = {}
        self._watching: list[set[Where]] = []
        #: What else the nodes tell of themselves.
        self.facts = Facts()

    def changes(self) -> set[Where]:
        """A set of its own for each caller, which may empty it. It receives each node of which something
        known turned out otherwise: what was placed by it has to be placed anew."""
        self._watching.append(set())
        return self._watching[-1]

    def _changed(self, nodes: Iterable[Where]) -> None:
        for watching in self._watching:
            watching.update(nodes)

    def learn(
        self, where: Where, index: int, uuid: str | None, pci: str | None, serial: str | None = None
    ) -> None:
        """This GPU has this index. `pci` in the form `0000:9b:00`. A UUID or serial number that is none is
        not learned; that of a GPU whose index another one has now is forgotten."""
        if uuid and not _UUID.fullmatch(uuid):
            uuid = None
        node = self._nodes.get(where)
        if node is None:
            if len(self._nodes) >= _NODES_MAX:
                self._changed(self._nodes)
                self._nodes.clear()
            node = self._nodes[where] = _NodeGpus()
        for known, word in ((node.uuids, uuid), (node.addresses, pci)):
            if not word or known.get(word) == index:
                continue
            # Counting begins anew when a GPU is lost: whoever had this index or this name has it no more.
            others = [name for name, one in known.items() if one == index or name == word]
            for name in others:
                del known[name]
            if others:
                self._changed([where])
                node.serials.pop(index, None)
            known[word] = index
            node.told = -1
        number = normal_serial(serial or "")
        if number and node.serials.get(index) != number:
            node.serials[index] = number
            node.told = -1

    def index(self, where: Where, uuid: str | None, pci: str | None) -> int | None:
        node = self._nodes.get(where)
        if node is None:
            return None
        if uuid and uuid in node.uuids:
            return node.uuids[uuid]
        return node.addresses.get(pci) if pci else None

    def inventory(self, nodes: Iterable[Where], now: datetime) -> list[Observation]:
        """What is due to be told of these nodes: their facts, and their GPUs where addresses are known."""
        nodes = list(nodes)
        stretch = int(now.timestamp()) // _TELL_EVERY_S
        found: list[Observation] = []
        for where in nodes:
            node = self._nodes.get(where)
            if node is not None and node.told != stretch and node.addresses:
                node.told = stretch
                found.append(_observation(where, node, stretch, now))
        return found + self.facts.due(nodes, now)


def _observation(where: Where, node: _NodeGpus, stretch: int, now: datetime) -> Observation:
    uuids = {index: uuid for uuid, index in node.uuids.items()}
    rows = sorted((index, pci) for pci, index in node.addresses.items())
    gpus = [gpu_row(index, pci, uuids.get(index, ""), node.serials.get(index, "")) for index, pci in rows]
    return Observation(
        digest=digest_of("gpu_inventory", *where, stretch, gpus),
        kind=ObservationKind.gpu_inventory,
        component=Component(cluster=where[0], node=where[1]),
        event_at=now,
        arrived_at=now,
        data={"gpus": gpus},
    )
