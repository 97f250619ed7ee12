"""Which GPU stands at an address: by its UUID, and by the serial number on its board.

A UUID is the GPU's own; a board with two GPUs has one serial number. So two UUIDs are compared where both are
known, and serial numbers where one UUID is not. What is not told says nothing.
"""

import re

import msgspec

#: What the name of a part begins with that is known by its UUID, and by its serial number alone.
BY_UUID = "GPU-"
BY_SERIAL = "SN-"
#: A UUID without the driver's prefix, as some senders tell it.
_BARE = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class GpuPart(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU at one address. `first`, the name by which it was known first, stays as long as the part."""

    uuid: str = ""
    serial: str = ""
    first: str = ""

    @property
    def name(self) -> str:
        """What the history calls it."""
        return self.uuid or f"{BY_SERIAL}{self.serial}"


def part_named(name: str) -> GpuPart | None:
    """The part behind a name that was kept; None for what is no name of a GPU."""
    if name.startswith(BY_UUID):
        return GpuPart(uuid=name, first=name)
    if name.startswith(BY_SERIAL):
        return GpuPart(serial=name.removeprefix(BY_SERIAL), first=name)
    return None


def told(uuid: str, serial: str) -> GpuPart | None:
    """The part that a node tells of; None where it tells neither. Words such as N/A are no UUID."""
    if _BARE.fullmatch(uuid):
        uuid = f"{BY_UUID}{uuid.lower()}"
    uuid = uuid if uuid.startswith(BY_UUID) else ""
    if not uuid and not serial:
        return None
    part = GpuPart(uuid=uuid, serial=serial)
    return msgspec.structs.replace(part, first=part.name)


def is_another(before: GpuPart, now: GpuPart) -> bool:
    """Whether they are two GPUs, for certain."""
    if before.uuid and now.uuid:
        return before.uuid != now.uuid
    return bool(before.serial and now.serial) and before.serial != now.serial


def same(before: GpuPart, now: GpuPart) -> GpuPart:
    """All that is known of one GPU; what was told last wins."""
    return GpuPart(uuid=now.uuid or before.uuid, serial=now.serial or before.serial, first=before.first)
