"""What nodes report about their hardware and configuration: GPUs by UUID, address and serial number, and
facts such as releases."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from healer.model import FACT_MAX, FACTS, Component, Observation, ObservationKind
from healer.signals.identity import digest_of

# --- serials ------------------------------------------------------------------------------------------------
# Serial numbers of GPU boards, and the row of a GPU in an inventory.

#: NVIDIA's have 13 digits; other boards use letters and dashes too. `N/A`, `0` and words are not serial
#: numbers.
_SERIAL = re.compile(r"(?=.*[1-9])[0-9A-Za-z][0-9A-Za-z-]{4,31}")


def normal_serial(text: str) -> str:
    """The serial number; empty if the text is not one, which says nothing about the part."""
    text = text.strip()
    return text.upper() if _SERIAL.fullmatch(text) else ""


def gpu_row(index: int, pci: str, uuid: str, serial: str) -> dict[str, Any]:
    """One GPU of an inventory, as heartbeats and `gpu_inventory` carry it; a serial number only if known."""
    row: dict[str, Any] = {"index": index, "pci": pci, "uuid": uuid}
    return row | {"serial": serial} if serial else row


# --- facts --------------------------------------------------------------------------------------------------
# What nodes are made of and set to (`healer.model.FACTS`), from labels, nvidia-smi and reports.
#
# Sent on a change, and again every few hours, so that nothing is lost for good while the database is away.

#: Series that exist for their labels: name -> label -> fact.
INFO_SERIES: Mapping[str, Mapping[str, str]] = {
    "node_uname_info": {"release": "kernel"},
    "node_os_info": {"pretty_name": "os"},
    "node_dmi_info": {"bios_version": "bios"},
    "node_infiniband_info": {"firmware_version": "nic_firmware"},
    "ipmi_bmc_info": {"firmware_revision": "bmc"},
}
#: Labels that any series of a GPU may bear: dcgm-exporter adds those that its list of fields names so.
GPU_LABELS: Mapping[str, str] = {
    "DCGM_FI_DRIVER_VERSION": "driver",
    "DCGM_FI_DEV_VBIOS_VERSION": "vbios",
    "DCGM_FI_DEV_INFOROM_IMAGE_VER": "inforom",
    "driver_version": "driver",
    "modelName": "gpu",
}
#: Facts are sent again after this long, and never more often than the second value.
_AGAIN_S = 6 * 3600
_LEAST_S = 60
#: Nodes remembered by one process: more than any cluster has, and all are nodes that Slurm knows.
_NODES_MAX = 50_000
#: Different values kept per fact of a node: GPUs and cards are mostly alike.
_VALUES_MAX = 8
#: Printable, and nothing that a terminal or a page would interpret.
_VALUE = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,128}")
#: Values that mean unknown.
_NOTHING = frozenset({"", "n/a", "[n/a]", "not specified", "unknown", "none"})

#: (cluster, node).
Where = tuple[str, str]


@dataclass(slots=True)
class _Node:
    facts: dict[str, str] = field(default_factory=dict)
    #: By fact and part (a GPU or card): values that parts report one by one.
    parts: dict[str, dict[str, str]] = field(default_factory=dict)
    sent: dict[str, str] = field(default_factory=dict)
    sent_at: datetime | None = None


def normal_fact(name: str, value: str) -> str | None:
    """The value as stored; None for a fact that is not compared, or for a value that means unknown."""
    value = " ".join(value.split())
    if name not in FACTS or value.lower() in _NOTHING or not _VALUE.fullmatch(value[:FACT_MAX]):
        return None
    return value[:FACT_MAX]


class Facts:
    """Learned per process."""

    def __init__(self) -> None:
        self._nodes: dict[Where, _Node] = {}

    def learn(self, where: Where, name: str, value: str, part: str = "") -> None:
        """`part`: the value belongs only to this GPU or card; the node's value then lists all different
        ones."""
        kept = normal_fact(name, value)
        if kept is None:
            return
        if where not in self._nodes and len(self._nodes) >= _NODES_MAX:
            self._nodes.clear()
        node = self._nodes.setdefault(where, _Node())
        if part:
            parts = node.parts.setdefault(name, {})
            if part not in parts and len(parts) >= _VALUES_MAX * 8:
                return
            parts[part] = kept
            kept = ", ".join(sorted(set(parts.values()))[:_VALUES_MAX])[:FACT_MAX]
        node.facts[name] = kept

    def from_labels(self, where: Where, series: str, labels: Mapping[str, str]) -> None:
        for label, name in INFO_SERIES.get(series, {}).items():
            if label in labels:
                self.learn(where, name, labels[label], labels.get("device", ""))
        gpu = labels.get("gpu") or labels.get("UUID") or ""
        for label, name in GPU_LABELS.items():
            if gpu and label in labels:
                self.learn(where, name, labels[label], f"gpu{gpu}" if name != "driver" else "")

    def due(self, nodes: Iterable[Where], now: datetime) -> list[Observation]:
        """Observations due for these nodes: a fact changed, or was last sent long ago."""
        found = []
        for where in nodes:
            node = self._nodes.get(where)
            if node is None or not node.facts:
                continue
            age_s = (now - node.sent_at).total_seconds() if node.sent_at else None
            changed = node.facts != node.sent
            if age_s is None or (changed and age_s >= _LEAST_S) or age_s >= _AGAIN_S:
                node.sent, node.sent_at = dict(node.facts), now
                found.append(_facts_observation(where, node.sent, now))
        return found


def _facts_observation(where: Where, facts: dict[str, str], now: datetime) -> Observation:
    # Including the time: a node that goes back to an old driver is news.
    return Observation(
        digest=digest_of("inventory", *where, now.isoformat(), sorted(facts.items())),
        kind=ObservationKind.inventory,
        component=Component(cluster=where[0], node=where[1]),
        event_at=now,
        arrived_at=now,
        data={"facts": facts},
    )


# --- gpu names ----------------------------------------------------------------------------------------------

#: GPUs are sent again after this long, so that a rebuild from the last 15 min always finds one.
_TELL_EVERY_S = 600

#: What a UUID may look like; it is stored with the inventory, so no control characters.
_UUID = re.compile(r"[\x21-\x7e]{1,64}")


@dataclass(slots=True)
class _NodeGpus:
    uuids: dict[str, int] = field(default_factory=dict)
    addresses: dict[str, int] = field(default_factory=dict)
    #: Index -> serial number of the board.
    serials: dict[int, str] = field(default_factory=dict)
    #: The interval in which it was last sent; -1: something changed since.
    sent_interval: int = -1


class GpuNames:
    """Learned per process."""

    def __init__(self) -> None:
        self._nodes: dict[Where, _NodeGpus] = {}
        self._watching: list[set[Where]] = []
        #: The nodes' other facts.
        self.facts = Facts()

    def changes(self) -> set[Where]:
        """A new set for each caller, who may empty it. It receives every node for which a learnt name turned
        out to be wrong, because series placed by that name must be placed again."""
        self._watching.append(set())
        return self._watching[-1]

    def _changed(self, nodes: Iterable[Where]) -> None:
        for watching in self._watching:
            watching.update(nodes)

    def learn(
        self, where: Where, index: int, uuid: str | None, pci: str | None, serial: str | None = None
    ) -> None:
        """This GPU has this index. `pci` in the form `0000:9b:00`. An invalid UUID or serial number is not
        learnt; those of a GPU whose index another one has now are forgotten."""
        if uuid and not _UUID.fullmatch(uuid):
            uuid = None
        node = self._nodes.get(where)
        if node is None:
            if len(self._nodes) >= _NODES_MAX:
                self._changed(self._nodes)
                self._nodes.clear()
            node = self._nodes[where] = _NodeGpus()
        for indexes, word in ((node.uuids, uuid), (node.addresses, pci)):
            if not word or indexes.get(word) == index:
                continue
            # Indexes shift when a GPU is lost: an older owner of this index or this name is outdated.
            others = [name for name, other in indexes.items() if other == index or name == word]
            for name in others:
                del indexes[name]
            if others:
                self._changed([where])
                node.serials.pop(index, None)
            indexes[word] = index
            node.sent_interval = -1
        number = normal_serial(serial or "")
        if number and node.serials.get(index) != number:
            node.serials[index] = number
            node.sent_interval = -1

    def learn_listed(self, where: Where, gpus: Iterable[Mapping[str, Any]]) -> None:
        """Learns the node's own list: rows as returned by `gpu_row`."""
        for gpu in gpus:
            self.learn(where, gpu["index"], gpu["uuid"], gpu["pci"], gpu.get("serial"))

    def index(self, where: Where, uuid: str | None, pci: str | None) -> int | None:
        node = self._nodes.get(where)
        if node is None:
            return None
        if uuid and uuid in node.uuids:
            return node.uuids[uuid]
        return node.addresses.get(pci) if pci else None

    def inventory(self, nodes: Iterable[Where], now: datetime) -> list[Observation]:
        """Observations due for these nodes: their facts, and their GPUs if the addresses are known."""
        nodes = list(nodes)
        stretch = int(now.timestamp()) // _TELL_EVERY_S
        found: list[Observation] = []
        for where in nodes:
            node = self._nodes.get(where)
            if node is not None and node.sent_interval != stretch and node.addresses:
                node.sent_interval = stretch
                found.append(_gpus_observation(where, node, stretch, now))
        return found + self.facts.due(nodes, now)


def _gpus_observation(where: Where, node: _NodeGpus, stretch: int, now: datetime) -> Observation:
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
