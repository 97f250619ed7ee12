"""Devices: what exporters tell of that is no node. Their names and those of their parts come from labels.

Whoever may send samples for the whole cluster may name devices; a token bound to a node may not. What was
named stays known until the process starts anew, so every number here has a bound.
"""

import re
from collections.abc import Mapping

from healer.model import DEVICE_MARK, device_named
from healer.signals.wire import Known

#: Labels that may name the device, the surest first: healer's own; infiniband_exporter; UFM and its agents;
#: SNMP's system group; gnmic (`source`); Prometheus' target. The first that is a name counts.
DEVICE_LABELS = (
    "device",
    "switch",
    "device_name",
    "node_description",
    "node_desc",
    "sysName",
    "source",
    "hostname",
    "host",
    "node_guid",
    "guid",
    "instance",
)
#: Labels that may name the part: healer's own; ports (UFM, infiniband_exporter, SNMP's interfaces, gnmic);
#: outlets and phases of PDUs; parts and sensors of gnmic, SNMP and Redfish; Lustre's targets, behind those,
#: since gnmic's `target` is the whole switch; sensors of ipmi_exporter; directories.
PART_LABELS = (
    "part",
    "port_num",
    "port",
    "ifName",
    "ifDescr",
    "interface_name",
    "interface",
    "outlet",
    "phase",
    "component_name",
    "entPhysicalName",
    "entPhysicalDescr",
    "sensor",
    "target",
    "name",
    "path",
    "fileset",
    "ifIndex",
    "entPhysicalIndex",
)
#: Devices of one cluster, names of parts over all of them (each with each signal is a column), and parts of
#: one device. 10,000 GPUs have some 500 switches of 64 ports, and 100 racks with a dozen other devices.
DEVICES_MAX = 5_000
PART_NAMES_MAX = 2_048
PARTS_MAX = 1_024
#: Pairs of a device and a part.
PAIRS_MAX = 100_000

NO_DEVICE = "no label names a device"
NO_PART = "no label names a part of the device"
IS_A_NODE = "bears the name of a node of the cluster, and a node is no device"
NOT_YOURS = "a token that is bound to a node speaks of no device"
TOO_MANY_DEVICES = f"more than {DEVICES_MAX} devices, or than {PAIRS_MAX} parts of them"
TOO_MANY_PARTS = f"more than {PARTS_MAX} parts of this device, or than {PART_NAMES_MAX} names of parts"

_DEVICE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")
_PART = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,98}[\x21-\x7e])?")
_GUID = re.compile(r"(?:0x)?([0-9a-fA-F]{10,16})")
#: As managed switches describe themselves to the subnet manager: `MF0;leaf1:MQM8700/U1`.
_MANAGED = re.compile(r"MF0;([^:;]{1,64}):.*")


def device_name(label: str, value: str) -> str | None:
    """A device's name as we write it; None for what names none.

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
    """The device that a series is of."""
    told = ((label, labels[label]) for label in DEVICE_LABELS if labels.get(label))
    return next((name for label, value in told if (name := device_name(label, value))), None)


def part_of(labels: Mapping[str, str], own: str = "") -> str | None:
    """The part of the device. `own`: the label that the alias names, or several that together tell it:
    `component_name/channel_index`."""
    if own:
        told = [labels.get(label, "").strip() for label in own.split("/")]
        name = "/".join(told)
        return name if all(told) and _PART.fullmatch(name) else None
    values = (labels.get(label, "").strip() for label in PART_LABELS)
    return next((value for value in values if _PART.fullmatch(value)), None)


def with_devices(known: Known, *, bound: bool) -> Known:
    """`known` that says yes to devices too, but for a sender whose token is bound to a node (`bound`)."""

    def also(cluster: str, name: str) -> bool:
        return known(cluster, name) if device_named(name) is None else not bound

    return also


def refused(device: str, cluster: str, known: Known) -> str | None:
    """Why the sender may not speak of this device, or it is none: exporters that run on a node name that node
    where their series name no device, and 1,250 nodes are no 1,250 switches or file systems."""
    if not known(cluster, DEVICE_MARK + device):
        return NOT_YOURS
    names = {device, device.partition(".")[0]}
    return IS_A_NODE if any(known(cluster, name) for name in names) else None


def wrong_device(device: str, cluster: str, known: Known) -> str | None:
    """Why a request may not be of this device as a whole."""
    if not _DEVICE.fullmatch(device):
        return "device: not a name of a device: letters, digits and . _ : -, at most 64"
    why = refused(device, cluster, known)
    return f"device: {why}" if why else None


class Devices:
    """The devices that were named, and their parts. Never forgets, and never holds more than the bounds."""

    def __init__(self) -> None:
        self._devices: dict[str, set[int]] = {}
        self._parts: dict[str, int] = {}
        self._pairs = 0

    def wrong(self, device: str, part: str | None) -> str | None:
        """Why it is not taken; learns it otherwise."""
        known = self._devices.get(device)
        if known is None and len(self._devices) >= DEVICES_MAX:
            return TOO_MANY_DEVICES
        if part is None:
            self._devices.setdefault(device, set())
            return None
        number = self._parts.get(part)
        if number is not None and known is not None and number in known:
            return None
        if number is None and len(self._parts) >= PART_NAMES_MAX:
            return TOO_MANY_PARTS
        if known is not None and len(known) >= PARTS_MAX:
            return TOO_MANY_PARTS
        if self._pairs >= PAIRS_MAX:
            return TOO_MANY_DEVICES
        self._devices.setdefault(device, set()).add(self._parts.setdefault(part, len(self._parts)))
        self._pairs += 1
        return None
