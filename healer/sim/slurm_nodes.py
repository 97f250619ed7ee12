"""A node of the simulated Slurm, and how Slurm shows it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from healer.model import Reservation, SlurmNode

#: What a node keeps for good: told by whoever made it.
_UNCHANGED_SPEC = (
    "gpus", "gpu_model", "driver", "rack", "switch", "switches", "pod", "partitions", "features", "boot_id",
)  # fmt: skip
#: A node of which nothing else is to be told.
_PLAIN = {base: (base,) for base in ("DOWN", "MIXED", "ALLOCATED", "IDLE")}


def sim_nodes(count: int, *, gpus: int = 8, gpu_model: str = "h100") -> list[SlurmNode]:
    """`gpu0001` … in the partition `train`."""
    return [
        SlurmNode(
            name=f"gpu{number:04d}",
            gpus=gpus,
            gpu_model=gpu_model,
            partitions=("train",),
            features=(gpu_model,),
        )
        for number in range(1, count + 1)
    ]


@dataclass
class Node:
    spec: SlurmNode
    boot_at: datetime
    down: bool = False
    drain: bool = False
    silent_since: datetime | None = None
    #: DOWN because it did not answer, and for nothing else.
    lost: bool = False
    reason: str = ""
    reason_user: str = ""
    reason_at: datetime | None = None
    comment: str = ""
    extra: str = ""
    #: A reboot was asked for; it begins when the node is idle and ends at `boots_at`.
    reboot: bool = False
    boots_at: datetime | None = None
    #: The reboot set DRAIN itself: whoever cancels it takes that away too.
    reboot_drained: bool = False
    #: An epilog that does not end: jobs stay COMPLETING until the node is DOWN.
    stuck: bool = False
    #: Its Prolog ends with an error.
    launch_fails: bool = False
    free: set[int] = field(default_factory=set)
    #: Ids of jobs that hold the node now, and those of them that share it with nobody.
    jobs: set[str] = field(default_factory=set)
    exclusive: set[str] = field(default_factory=set)

    @property
    def usable(self) -> bool:
        return not (self.down or self.drain or self.reboot or self.silent_since)

    def because(self, reason: str, user: str, now: datetime) -> None:
        self.reason, self.reason_user, self.reason_at = reason, user, now.replace(microsecond=0)

    def append(self, text: str, now: datetime) -> None:
        """Slurm's own way to add to a reason: once each, in its own name, at its own time (d.9)."""
        if text not in self.reason:
            self.because(f"{self.reason} : {text}" if self.reason else text, "slurm", now)

    def forget_reason(self) -> None:
        self.reason, self.reason_user, self.reason_at = "", "", None


class Face(NamedTuple):
    """All of a node that changes and that Slurm shows."""

    state: tuple[str, ...]
    reason: str
    reason_user: str
    reason_at: datetime | None
    boot_at: datetime
    comment: str
    extra: str
    after_reboot: tuple[str, ...]


def face_of(node: Node, completing: int, held_for: Sequence[Reservation]) -> Face:
    """`completing`: how many of its jobs are; `held_for`: the reservations that hold it now."""
    return Face(
        _state(node, completing, held_for), node.reason, node.reason_user, node.reason_at, node.boot_at,
        node.comment, node.extra, ("DOWN",) if node.reboot else (),
    )  # fmt: skip


#: What a face is made of: cheaper to compare for each node of a fleet than to make.
Traits = tuple[object, ...]


def traits_of(node: Node, completing: int, held_for: Sequence[Reservation]) -> Traits:
    return (
        node.down, node.drain, node.silent_since, node.reboot, node.boots_at, node.boot_at,
        node.reason, node.reason_user, node.reason_at, node.comment, node.extra,
        len(node.jobs), completing, not node.free, not node.exclusive, tuple(held_for),
    )  # fmt: skip


def show_face(node: Node, face: Face) -> SlurmNode:
    return SlurmNode(
        name=node.spec.name,
        **face._asdict(),
        **{name: getattr(node.spec, name) for name in _UNCHANGED_SPEC},
    )


def _state(node: Node, completing: int, held_for: Sequence[Reservation]) -> tuple[str, ...]:
    running = len(node.jobs) - completing
    if node.down:
        base = "DOWN"
    elif running:
        base = "MIXED" if (node.free and not node.exclusive) or completing else "ALLOCATED"
    else:
        base = "IDLE"
    if not (completing or held_for or node.drain or node.silent_since or node.reboot or node.boots_at):
        return _PLAIN[base]
    maintenance = {reservation.maintenance for reservation in held_for}
    flags = (
        ("COMPLETING", completing > 0),
        ("DRAIN", node.drain),
        ("MAINTENANCE", True in maintenance),
        ("RESERVED", False in maintenance),
        ("NOT_RESPONDING", node.silent_since is not None),
        ("REBOOT_REQUESTED", node.reboot and node.boots_at is None),
        ("REBOOT_ISSUED", node.boots_at is not None),
    )
    return (base, *(flag for flag, on in flags if on))
