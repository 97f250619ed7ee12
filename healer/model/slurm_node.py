"""A node as Slurm shows it, and what its state comes to."""

from datetime import datetime
from enum import StrEnum

import msgspec

from healer.model.reasons import SLURM, ReasonOwner, is_none, owner_of

#: Every state and flag of a node that a release up to 26.05 is known to print (d.2 of the facts). A node
#: with another one is shown as it is, and is never resumed by healer itself.
KNOWN_NODE_WORDS = frozenset(
    {
        "UNKNOWN", "DOWN", "IDLE", "ALLOCATED", "ERROR", "MIXED", "FUTURE", "INVALID",
        "DRAIN", "COMPLETING", "NOT_RESPONDING", "FAIL", "MAINTENANCE", "RESERVED", "PLANNED",
        "REBOOT_REQUESTED", "REBOOT_ISSUED", "REBOOT_CANCELED", "INVALID_REG", "UNDRAIN", "RESUME", "CLOUD",
        "DYNAMIC_FUTURE", "DYNAMIC_NORM", "POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN",
        "POWER_UP", "POWER_DRAIN", "POWER_DOWN_ASAP", "POWER_DOWN_FORCE", "PERFCTRS", "BLOCKED", "EXTERNAL",
    }
)  # fmt: skip

_OUT_BASE = frozenset({"DOWN", "ERROR", "FUTURE", "UNKNOWN"})
_OUT_FLAGS = frozenset({"DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "INVALID_REG"})
#: Kept free by the scheduler's own plans: no trouble (d.8, 19).
_OUT_BY_PLAN = frozenset({"MAINTENANCE", "POWERED_DOWN", "POWERING_DOWN"})
_PLANNED_FLAGS = frozenset({"PLANNED", "BLOCKED"})


class NodeStatus(StrEnum):
    """What Slurm's state of a node comes to, for a person. One node has one; the rest stands in its state."""

    invalid = "invalid"
    maintenance = "maintenance"
    power_saving = "power_saving"
    powering_up = "powering_up"
    rebooting = "rebooting"
    down = "down"
    draining = "draining"
    drained = "drained"
    failing = "failing"
    silent = "silent"
    reboot_pending = "reboot_pending"
    unknown = "unknown"
    busy = "busy"
    planned = "planned"
    idle = "idle"


#: What decides whatever the base state is, the strongest first.
_STATUS_BY_FLAG = (
    (frozenset({"INVALID_REG"}), NodeStatus.invalid),
    (frozenset({"MAINTENANCE"}), NodeStatus.maintenance),
    (frozenset({"POWERED_DOWN", "POWERING_DOWN"}), NodeStatus.power_saving),
    (frozenset({"POWERING_UP"}), NodeStatus.powering_up),
    (frozenset({"REBOOT_ISSUED"}), NodeStatus.rebooting),
)


class SlurmNode(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One node. `state` is Slurm's JSON list: base state first, then flags, upper case.

    `reason_user` and `reason_at` say who set the reason and when. `rack`, `switch` (the leaf), `pod`,
    `domain` (of NVLink), `pdu` and `row` come from the site's topology file or, in recordings, from the
    recording. `gpus_shared`: Slurm hands out slices or shares of GPUs here, so `gpus` is no count of cards.
    """

    name: str
    state: tuple[str, ...] = ()
    reason: str = ""
    reason_user: str = ""
    reason_at: datetime | None = None
    gpus: int = 0
    gpu_model: str = ""
    gpus_shared: bool = False
    driver: str = ""
    rack: str = ""
    switch: str = ""
    pod: str = ""
    domain: str = ""
    pdu: str = ""
    row: str = ""
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    boot_id: str = ""
    boot_at: datetime | None = None
    #: Free texts of the site's; `extra` holds our JSON while an incident of ours stands (see docs/slurm.md).
    comment: str = ""
    extra: str = ""
    #: Switches from leaf to root, where Slurm or the topology file knows them; `switch` is the first.
    switches: tuple[str, ...] = ()
    #: What the node becomes after its reboot, as `state`; empty where none is asked for.
    after_reboot: tuple[str, ...] = ()
    #: NodeAddr and NodeHostname, where they differ from the name: an enrolling node is known by them.
    address: str = ""
    hostname: str = ""

    @property
    def base(self) -> str:
        return self.state[0] if self.state else "UNKNOWN"

    @property
    def drain(self) -> bool:
        """The DRAIN flag is set: no new job starts here (it may still be draining)."""
        return "DRAIN" in self.state

    @property
    def held(self) -> bool:
        """Somebody, Slurm or healer keeps it out of service (planned work apart)."""
        return self.drain or self.base == "DOWN" or "FAIL" in self.state

    @property
    def busy(self) -> bool:
        return self.base in {"ALLOCATED", "MIXED"} or "COMPLETING" in self.state

    @property
    def responding(self) -> bool:
        return self.base != "DOWN" and "NOT_RESPONDING" not in self.state

    @property
    def in_service(self) -> bool:
        """New jobs may start here."""
        return self.base not in _OUT_BASE and not _OUT_FLAGS.intersection(self.state)

    @property
    def planned(self) -> bool:
        """Out by plan: in a maintenance reservation or powered down on purpose."""
        return not _OUT_BY_PLAN.isdisjoint(self.state)

    @property
    def status(self) -> NodeStatus:
        """By Slurm's own order (d.2 of the facts), but for one thing: a node that is DOWN and DRAIN is down.

        There is no DRAINED in Slurm's JSON: a node that drains is drained once it holds no job any more.
        """
        state = self.state
        for flags, status in _STATUS_BY_FLAG:
            if not flags.isdisjoint(state):
                return status
        if self.base in {"DOWN", "ERROR"}:
            return NodeStatus.down
        if self.drain:
            return NodeStatus.draining if self.busy else NodeStatus.drained
        if "FAIL" in state:
            return NodeStatus.failing
        if "NOT_RESPONDING" in state:
            return NodeStatus.silent
        if "REBOOT_REQUESTED" in state:
            return NodeStatus.reboot_pending
        if self.base not in {"IDLE", "ALLOCATED", "MIXED"}:
            return NodeStatus.unknown
        if self.busy:
            return NodeStatus.busy
        return NodeStatus.idle if _PLANNED_FLAGS.isdisjoint(state) else NodeStatus.planned

    @property
    def owner(self) -> ReasonOwner | None:
        """Who keeps it out: None for a node in service. Without a reason a drain is some person's, and
        anything else Slurm's."""
        if self.in_service or (self.planned and is_none(self.reason)):
            return None
        if is_none(self.reason) and not self.drain:
            return SLURM
        return owner_of(self.reason, self.reason_user)

    @property
    def unknown_flags(self) -> tuple[str, ...]:
        """Words in its state that no release up to 26.05 is known to print."""
        return tuple(word for word in self.state if word not in KNOWN_NODE_WORDS)

    @property
    def resumable(self) -> bool:
        """healer may resume it by itself: nobody knows what a flag that nobody knows would mean for that."""
        return not self.unknown_flags
