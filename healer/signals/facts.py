"""What nodes are made of and set to (`healer.model.FACTS`), as labels, nvidia-smi and reports tell it.

Told on a change, and again every few hours: what was told while the database was away is not lost for ever.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from healer.model import FACT_MAX, FACTS, Component, Observation, ObservationKind
from healer.signals.identity import digest_of

#: Series that are there for their labels: name -> label -> fact.
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
}
#: Told again after so long, and not more often than this.
_AGAIN_S = 6 * 3600
_LEAST_S = 60
_NODES_MAX = 50_000
#: Different values of one fact of a node that are kept: GPUs and cards are mostly alike.
_VALUES_MAX = 8
#: Printable, and nothing that a terminal or a page would take for more than text.
_VALUE = re.compile(r"[^\x00-\x1f\x7f-\x9f]{1,128}")
#: Words of a value that nobody knows.
_NOTHING = frozenset({"", "n/a", "[n/a]", "not specified", "unknown", "none"})

Where = tuple[str, str]


@dataclass(slots=True)
class _Node:
    facts: dict[str, str] = field(default_factory=dict)
    #: By fact and part (a GPU or card): what the parts tell one by one.
    parts: dict[str, dict[str, str]] = field(default_factory=dict)
    told: dict[str, str] = field(default_factory=dict)
    told_at: datetime | None = None


def fine(name: str, value: str) -> str | None:
    """The value as it is kept; None for a fact that is not compared, or a value that says nothing."""
    value = " ".join(value.split())
    if name not in FACTS or value.lower() in _NOTHING or not _VALUE.fullmatch(value[:FACT_MAX]):
        return None
    return value[:FACT_MAX]


class Facts:
    """Learned per process."""

    def __init__(self) -> None:
        self._nodes: dict[Where, _Node] = {}

    def learn(self, where: Where, name: str, value: str, part: str = "") -> None:
        """`part`: of this GPU or card alone; the node's value then holds all different ones."""
        kept = fine(name, value)
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
        """What is to be told of these nodes: something changed, or it was told long ago."""
        found = []
        for where in nodes:
            node = self._nodes.get(where)
            if node is None or not node.facts:
                continue
            age_s = (now - node.told_at).total_seconds() if node.told_at else None
            changed = node.facts != node.told
            if age_s is None or (changed and age_s >= _LEAST_S) or age_s >= _AGAIN_S:
                node.told, node.told_at = dict(node.facts), now
                found.append(_observation(where, node.told, now))
        return found


def _observation(where: Where, facts: dict[str, str], now: datetime) -> Observation:
    # The moment too: a node that goes back to an old driver is news.
    return Observation(
        digest=digest_of("inventory", *where, now.isoformat(), sorted(facts.items())),
        kind=ObservationKind.inventory,
        component=Component(cluster=where[0], node=where[1]),
        event_at=now,
        arrived_at=now,
        data={"facts": facts},
    )
