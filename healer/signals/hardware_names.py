"""Which GPUs, NVLinks, ports and devices are accepted: a forged name would be a permanent series of its
own."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from healer.model import DEVICE_MARK, device_in
from healer.signals.inventory import Where
from healer.signals.wire import HasNode
from healer.text import Said, say

# --- parts --------------------------------------------------------------------------------------------------
# Which GPUs and NVLinks of a node are accepted: a forged index would be a permanent series of its own.

#: (cluster, node) -> how many GPUs Slurm shows there; None if it does not say.
Shown = Callable[[str, str], int | None]

#: The least assumed number of GPUs per node: a site may omit a broken one from Slurm's configuration.
GPUS_LEAST = 8
#: For a node whose number Slurm does not report; HGX-2 has this many.
GPUS_UNKNOWN = 16
#: For any node: the limit of a two-digit label, and more than any machine has.
GPUS_MOST = 64
#: NVLinks of one GPU: 12 on A100, 18 on H100, H200 and B200, and room for the next model.
NVLINKS_MAX = 36

GPU_BEYOND = say("signals.gpu_beyond")
LINK_BEYOND = say("signals.link_beyond", most=NVLINKS_MAX)


def unknown_shape(cluster: str, node: str) -> int | None:
    """For use without Slurm."""
    return None


class Parts:
    """Which GPUs and NVLinks of a node are accepted."""

    def __init__(self, shown: Shown = unknown_shape) -> None:
        self._shown = shown

    def gpus(self, where: Where) -> int:
        """Indexes below this are accepted."""
        shown = self._shown(*where)
        return GPUS_UNKNOWN if not shown else min(max(shown, GPUS_LEAST), GPUS_MOST)

    def wrong(self, where: Where, gpu: int | None, link: int | None) -> Said | None:
        """Why this GPU, or this NVLink of it, is not accepted."""
        if link is not None and link >= NVLINKS_MAX:
            return LINK_BEYOND
        # Most queries are about one of the first GPUs: then no snapshot is needed.
        if gpu is not None and gpu >= GPUS_LEAST and gpu >= self.gpus(where):
            return GPU_BEYOND
        return None


# --- ports --------------------------------------------------------------------------------------------------
# Names of ports: only names of hardware, and no more per node than a machine can have.
#
# Every container adds an interface, and each name would be a permanent series of its own. So only names in
# the form of hardware names are accepted (drivers, systemd's predictable names, rdma-core), and not just any
# name that is not known as virtual.

#: Ports of one node: 8 GPUs with two NICs each, storage and management are below 32.
PORTS_MAX = 64
#: Limit of nodes whose ports are remembered; beyond it all are forgotten at once.
_NODES_MAX = 50_000

VIRTUAL = say("signals.virtual_port")
NO_PORT = say("signals.no_hardware_port")
TOO_MANY = say("signals.too_many_ports", most=PORTS_MAX)
#: Different names of ports in one cluster: machines of one kind have the same ones.
NAMES_MAX = 512
#: While fewer names are known, any node may add some. After that each node may add only this many new ones,
#: so that a few nodes cannot use up the shared limit, while machines of a new kind are still learnt soon.
NAMES_FREE, NAMES_OF_NODE = 128, 8
TOO_MANY_NAMES = say("signals.too_many_port_names", most=NAMES_MAX)
TOO_MANY_NEW = say("signals.too_many_new_ports", most=NAMES_OF_NODE)
#: Reasons that later reports by other nodes may lift.
PASSING = frozenset({TOO_MANY, TOO_MANY_NEW})

#: Drivers' names of RDMA devices and of NICs, and systemd's (not `eni`: clouds' pod interfaces).
_HARDWARE = re.compile(
    r"(?=[A-Za-z_-]*[0-9])"
    r"(?:mlx|ib|bnxt|hfi|opa|en(?!i)|eth|em|bond|efa|irdma|roce|rdma|iwp|hsn|cxi|mana|qedr)"
    r"[A-Za-z0-9_-]{1,36}(?:/[0-9]{1,3})?"
)
#: Interfaces of containers, bridges and tunnels: they only get a better reason.
_VIRTUAL = re.compile(
    r"(?:lo$|docker|veth|vnet|vmnet|virbr|br-|cbr|cni|cali|cilium|lxc|lxd|flannel|weave|ovs|genev|vxlan|tunl|"
    r"tap|tun|dummy|eni|azv|gke|kube|podman|nodelocaldns|ifb|macv|ipv|wg|sit|gre|erspan)"
)


def wrong_port(name: str) -> Said | None:
    """Why a port of this name is not accepted: `mlx5_0/1` (device and port) or `eth0` (interface) are."""
    if _HARDWARE.fullmatch(name):
        return None
    return VIRTUAL if _VIRTUAL.match(name) else NO_PORT


class Ports:
    """The ports that nodes reported: the first `PORTS_MAX` of each node are accepted."""

    def __init__(self) -> None:
        self._nodes: dict[Where, dict[str, None]] = {}
        self._names: set[str] = set()
        #: How many names a node added after the free ones.
        self._brought: Counter[Where] = Counter()

    def wrong(self, where: Where, names: Iterable[str]) -> dict[str, Said]:
        """Name -> why this port of the node is not accepted; the others are learnt."""
        node = self._nodes.get(where)
        if node is None:
            if len(self._nodes) >= _NODES_MAX:
                self._nodes.clear()
            node = self._nodes[where] = {}
        wrong: dict[str, Said] = {}
        for name in names:
            if name in node:
                continue
            if why := wrong_port(name):
                wrong[name] = why
            elif len(node) >= PORTS_MAX:
                wrong[name] = TOO_MANY
            elif name not in self._names and len(self._names) >= NAMES_MAX:
                wrong[name] = TOO_MANY_NAMES
            elif not self._may_bring(where, name):
                wrong[name] = TOO_MANY_NEW
            else:
                self._names.add(name)
                node[name] = None
        return wrong

    def _may_bring(self, where: Where, name: str) -> bool:
        if name in self._names or len(self._names) < NAMES_FREE:
            return True
        if self._brought[where] >= NAMES_OF_NODE:
            return False
        self._brought[where] += 1
        return True


# --- devices ------------------------------------------------------------------------------------------------

#: Labels that may name the device, most reliable first: healer's own; infiniband_exporter; UFM and its
#: agents; SNMP's system group; gnmic (`source`); Prometheus' target. The first valid name counts.
DEVICE_LABELS = (
    "device", "switch", "device_name", "node_description", "node_desc", "sysName", "source", "hostname",
    "host", "node_guid", "guid", "instance",
)  # fmt: skip
#: Labels that may name the part: healer's own; ports (UFM, infiniband_exporter, SNMP's interfaces, gnmic);
#: outlets and phases of PDUs; parts and sensors of gnmic, SNMP and Redfish; Lustre's targets, behind those,
#: since gnmic's `target` is the whole switch; sensors of ipmi_exporter; directories.
PART_LABELS = (
    "part", "port_num", "port", "ifName", "ifDescr", "interface_name", "interface", "outlet", "phase",
    "component_name", "entPhysicalName", "entPhysicalDescr", "sensor", "target", "name", "path", "fileset",
    "ifIndex", "entPhysicalIndex",
)  # fmt: skip
#: Devices of one cluster, names of parts over all of them (each with each signal is a column), and parts of
#: one device. 10,000 GPUs have some 500 switches of 64 ports, and 100 racks with a dozen other devices.
DEVICES_MAX = 5_000
PART_NAMES_MAX = 2_048
PARTS_MAX = 1_024
#: The most pairs of a device and a part.
PAIRS_MAX = 100_000

NO_DEVICE = say("signals.no_device")
NO_PART = say("signals.no_device_part")
IS_A_NODE = say("signals.device_is_node")
NOT_YOURS = say("signals.device_by_node")
TOO_MANY_DEVICES = say("signals.too_many_devices", most=DEVICES_MAX, parts=PAIRS_MAX)
TOO_MANY_PARTS = say("signals.too_many_parts", most=PARTS_MAX, names=PART_NAMES_MAX)

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_PART = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,98}[\x21-\x7e])?")
_GUID = re.compile(r"(?:0x)?([0-9a-fA-F]{10,16})")
#: As managed switches describe themselves to the subnet manager: `MF0;leaf1:MQM8700/U1`.
_MANAGED = re.compile(r"MF0;([^:;]{1,64}):.*")


def device_name(label: str, value: str) -> str | None:
    """A device's name in our form; None if it is not a name.

    `leaf1:9116` -> `leaf1`, `MF0;leaf1:MQM8700/U1` -> `leaf1`, GUIDs as `0x` and 16 digits.
    """
    if label in ("guid", "node_guid", "source") and (guid := _GUID.fullmatch(value)):
        return f"0x{guid[1].lower():0>16}"
    if managed := _MANAGED.fullmatch(value):
        value = managed[1]
    elif label in ("instance", "source") and value.count(":") == 1:
        value = value.partition(":")[0]
    return value if _DEVICE.fullmatch(value) else None


def device_of(labels: Mapping[str, str]) -> str | None:
    """The device that a series belongs to."""
    named = ((label, labels[label]) for label in DEVICE_LABELS if labels.get(label))
    return next((name for label, value in named if (name := device_name(label, value))), None)


def part_of(labels: Mapping[str, str], part_labels: str = "") -> str | None:
    """The part of the device. `part_labels`: the label that the alias names, or several joined by `/`, as in
    `component_name/channel_index`."""
    if part_labels:
        words = [labels.get(label, "").strip() for label in part_labels.split("/")]
        name = "/".join(words)
        return name if all(words) and _PART.fullmatch(name) else None
    values = (labels.get(label, "").strip() for label in PART_LABELS)
    return next((value for value in values if _PART.fullmatch(value)), None)


def with_devices(has_node: HasNode, *, bound: bool) -> HasNode:
    """`has_node` that also accepts devices, except for a sender whose token is bound to a node (`bound`)."""

    def also(cluster: str, name: str) -> bool:
        return has_node(cluster, name) if device_in(name) is None else not bound

    return also


def why_refused(device: str, cluster: str, has_node: HasNode) -> Said | None:
    """Why the sender may not report on this device, or why it is not a device. Exporters on a node name that
    node if their series name no device, and 1,250 nodes are not 1,250 switches or file systems."""
    if not has_node(cluster, DEVICE_MARK + device):
        return NOT_YOURS
    names = {device, device.partition(".")[0]}
    return IS_A_NODE if any(has_node(cluster, name) for name in names) else None


def wrong_device(device: str, cluster: str, has_node: HasNode) -> Said | None:
    """Why a request may not be about this device as a whole."""
    if not _DEVICE.fullmatch(device):
        return say("signals.bad_device")
    why = why_refused(device, cluster, has_node)
    return say("signals.field", field="device", text=why) if why else None


class Devices:
    """The devices that were named, and their parts. Never forgets, and never exceeds the limits."""

    def __init__(self) -> None:
        self._devices: dict[str, set[int]] = {}
        self._parts: dict[str, int] = {}
        self._pairs = 0

    def wrong(self, device: str, part: str | None) -> Said | None:
        """Why it is not accepted; otherwise learns it."""
        parts = self._devices.get(device)
        if parts is None and len(self._devices) >= DEVICES_MAX:
            return TOO_MANY_DEVICES
        if part is None:
            self._devices.setdefault(device, set())
            return None
        number = self._parts.get(part)
        if number is not None and parts is not None and number in parts:
            return None
        if number is None and len(self._parts) >= PART_NAMES_MAX:
            return TOO_MANY_PARTS
        if parts is not None and len(parts) >= PARTS_MAX:
            return TOO_MANY_PARTS
        if self._pairs >= PAIRS_MAX:
            return TOO_MANY_DEVICES
        self._devices.setdefault(device, set()).add(self._parts.setdefault(part, len(self._parts)))
        self._pairs += 1
        return None
