"""Evidence, parsed: what was seen, on which component, when."""

from datetime import datetime
from enum import StrEnum
from typing import Any

import msgspec

from healer.model.component import Component


class ObservationKind(StrEnum):
    xid = "xid"
    sxid = "sxid"
    gpu_lost = "gpu_lost"  # fallen off the bus, told without an Xid number
    kernel_line = "kernel_line"  # a line without a code, see `rules/kernel_lines.yaml`; `data["name"]`
    gpu_identity = "gpu_identity"  # the line that gives PCI address and UUID
    heartbeat = "heartbeat"
    gpu_inventory = "gpu_inventory"  # which GPU has which index, as telemetry's labels tell it
    inventory = "inventory"  # what the node is made of and set to (`healer.model.FACTS`)
    hook = "hook"  # one run of a Slurm hook on its node, with its checks (see `healer.signals.hooks`)
    checkpoint = "checkpoint"  # what a requeue of a job can go back to
    alert = "alert"  # what another system's alerting says (see `healer.signals.alerts`)
    command = "command"  # what people and runs tell the detector (see `healer.model.command`)


class Observation(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One parsed signal.

    `digest` is its identity (hex): the same signal told twice has the same digest. `event_at` is the
    sender's clock, `arrived_at` ours; both are UTC. `data` holds what only this kind has, e.g. for an Xid:
    `pid`, `process`, `gpu_instance`, `compute_instance`, `caused_by`, `recovery_action`, `unit`,
    `fatal_word`, `registers`.
    """

    digest: str
    kind: ObservationKind
    component: Component
    event_at: datetime
    arrived_at: datetime
    boot_id: str | None = None
    code: int | None = None
    text: str = ""
    line: str = ""
    data: dict[str, Any] = {}
    #: Row in the inbox; None where there is no inbox (replay, simulation).
    inbox_id: int | None = None
