"""A series with labels -> its node, its part and the number of its column.

Label names differ by exporter and by its age; what is here are those of dcgm-exporter 1 to 4, node_exporter
and Prometheus itself (`instance`).
"""

import re
from typing import NamedTuple

from healer.model import Column, Combine, Part, Scope, SignalKind
from healer.signals.gpu_names import GpuNames, Where
from healer.signals.kernel_log import normal_pci
from healer.signals.names import Names, Numbers, Way
from healer.signals.wire import Known

#: Labels that may name the node, the surest first; the first one that names a node we know counts.
NODE_LABELS = ("Hostname", "hostname", "node", "nodename", "host", "instance")
LABELS_MAX = 64
LABEL_BYTES_MAX = 1024

NOT_KNOWN = "not in the catalogue"
NO_NODE = "no node of this cluster"
#: Interfaces that are no hardware: they come and go with every container.
_VIRTUAL = re.compile(
    r"(?:lo|docker|veth|virbr|br-|cali|cni|flannel|tunl|tap|tun|dummy|vxlan|kube-|lxc|podman)"
)
_PORT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:-]{0,40}")


class Series(NamedTuple):
    """Where a series belongs. `portable`: its part follows from its labels alone, whatever its node."""

    where: Where
    column: int
    scale: float
    combine: Combine
    counter: bool
    portable: bool


class Placer:
    """Places series; learns GPU names from those that tell them."""

    def __init__(self, names: Names, numbers: Numbers, gpus: GpuNames, cluster: str) -> None:
        self.names, self.gpus = names, gpus
        self._numbers, self._cluster = numbers, cluster

    def place(
        self, name: str, labels: dict[str, str], known: Known, where: Where | None = None
    ) -> Series | str:
        """The series, or why it has no place. `where`: the node that the request itself names."""
        ways = self.names.ways(name)
        if not ways:
            return NOT_KNOWN
        if labels.get("GPU_I_ID"):
            return "MIG instance"
        ways = [way for way in ways if way.takes(labels)]
        if not ways:
            return "no signal has these labels"
        where = where or self._node(labels, known)
        if where is None:
            return NO_NODE
        why = ""
        for way in ways:
            part, portable = self._part(way, labels, where)
            if isinstance(part, str):
                why = part
                continue
            (column,) = self._numbers.of([Column(way.signal.name, part)])
            if column < 0:
                return "no room for more series"
            counter = way.signal.kind is SignalKind.counter
            return Series(where, column, way.scale, way.signal.combine, counter, portable)
        return why

    def _node(self, labels: dict[str, str], known: Known) -> Where | None:
        for label in NODE_LABELS:
            name = labels.get(label)
            if not name:
                continue
            if label == "instance":
                name = name.rsplit(":", 1)[0]
            for word in dict.fromkeys((name, name.split(".", 1)[0])):
                if known(self._cluster, word):
                    return self._cluster, word
        return None

    def _part(self, way: Way, labels: dict[str, str], where: Where) -> tuple[Part | str, bool]:
        """(part, whether labels alone told it), or (why there is none, True)."""
        if way.signal.scope is Scope.node:
            return Part(), True
        if way.signal.scope is Scope.link and not way.nvlink:
            return _port(labels), True
        link = way.link if way.link is not None else _index(labels.get("nvlink"))
        if way.nvlink and link is None:
            return "no label `nvlink`", True
        if not way.nvlink and labels.get("nvlink"):
            return "speaks of one link, and the signal does not", True
        gpu, portable = self._gpu(labels, where)
        if gpu is None:
            return "no GPU is known by these labels", True
        return Part(gpu=gpu, link=link if way.nvlink else None), portable

    def _gpu(self, labels: dict[str, str], where: Where) -> tuple[int | None, bool]:
        index = _index(labels.get("gpu"))
        uuid = labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid")
        pci = normal_pci(labels.get("pci_bus_id") or "")
        if index is not None:
            if uuid or pci:
                self.gpus.learn(where, index, uuid, pci)
            return index, True
        return self.gpus.index(where, uuid or labels.get("gpu"), pci), False


def _index(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and int(text) < 64 else None


def _port(labels: dict[str, str]) -> Part | str:
    device, port = labels.get("device", ""), labels.get("port", "")
    if not _PORT.fullmatch(device) or (port and not port.isalnum()):
        return "no label `device`"
    if _VIRTUAL.match(device):
        return "virtual interface"
    return Part(port=f"{device}/{port}" if port else device)


def example(labels: dict[str, str]) -> dict[str, str]:
    """Some labels, short: for the list of unknown series."""
    return {name[:64]: value[:100] for name, value in list(labels.items())[:10]}


def check_labels(labels: dict[str, str]) -> str:
    """Why these labels are too much; empty when they are not."""
    if len(labels) > LABELS_MAX:
        return f"more than {LABELS_MAX} labels"
    if any(len(name) + len(value) > LABEL_BYTES_MAX for name, value in labels.items()):
        return f"a label of more than {LABEL_BYTES_MAX} characters"
    return ""
