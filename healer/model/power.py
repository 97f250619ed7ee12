"""A node's power as its management controller (BMC) shows it."""

from enum import StrEnum

import msgspec

#: `PowerState` of Redfish's ComputerSystem; what a vendor adds beside them counts as neither on nor off.
ON, OFF = "On", "Off"


class ResetKind(StrEnum):
    """Of Redfish's `ResetType` those that healer uses."""

    power_cycle = "PowerCycle"
    force_off = "ForceOff"
    on = "On"


class Power(msgspec.Struct, frozen=True, kw_only=True):
    """`state`: the BMC's own word, empty where it tells none. `system`: which of its systems was asked.
    `target`: where a reset is asked for. `kinds`: what it takes; empty where it does not say."""

    state: str
    system: str
    target: str
    kinds: tuple[str, ...] = ()
