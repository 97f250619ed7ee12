"""What Slurm's states come to for a person. The order is d.2's of the facts."""

from datetime import UTC, datetime

import pytest

from healer.model import NodeStatus, OwnerKind, ReasonOwner, SlurmNode

AT = datetime(2026, 11, 20, 3, tzinfo=UTC)


def node(*state: str, reason: str = "", user: str = "") -> SlurmNode:
    return SlurmNode(name="n1", state=state, reason=reason, reason_user=user)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (("IDLE",), NodeStatus.idle),
        (("ALLOCATED",), NodeStatus.busy),
        (("MIXED", "RESERVED"), NodeStatus.busy),
        (("IDLE", "COMPLETING"), NodeStatus.busy),
        (("IDLE", "DRAIN"), NodeStatus.drained),
        (("IDLE", "DRAIN", "NOT_RESPONDING"), NodeStatus.drained),
        (("MIXED", "DRAIN"), NodeStatus.draining),
        (("ALLOCATED", "DRAIN"), NodeStatus.draining),
        (("IDLE", "DRAIN", "COMPLETING"), NodeStatus.draining),
        (("DOWN",), NodeStatus.down),
        (("DOWN", "DRAIN"), NodeStatus.down),  # sinfo prints `drain`
        (("DOWN", "DRAIN", "NOT_RESPONDING"), NodeStatus.down),
        (("ERROR",), NodeStatus.down),
        (("IDLE", "NOT_RESPONDING"), NodeStatus.silent),
        (("IDLE", "FAIL"), NodeStatus.failing),
        (("IDLE", "DRAIN", "INVALID_REG"), NodeStatus.invalid),
        (("DOWN", "INVALID_REG", "MAINTENANCE"), NodeStatus.invalid),
        (("IDLE", "MAINTENANCE", "DRAIN"), NodeStatus.maintenance),
        (("DOWN", "DRAIN", "REBOOT_ISSUED"), NodeStatus.rebooting),
        (("ALLOCATED", "REBOOT_REQUESTED"), NodeStatus.reboot_pending),
        (("IDLE", "DRAIN", "REBOOT_REQUESTED"), NodeStatus.drained),
        (("IDLE", "POWERING_UP", "NOT_RESPONDING"), NodeStatus.powering_up),
        (("UNKNOWN",), NodeStatus.unknown),
        (("FUTURE",), NodeStatus.unknown),
        ((), NodeStatus.unknown),
    ],
)
def test_status_by_state(state: tuple[str, ...], status: NodeStatus) -> None:
    assert node(*state).status is status


@pytest.mark.parametrize(
    ("state", "status"),
    [
        (("IDLE", "PLANNED"), NodeStatus.planned),
        (("IDLE", "BLOCKED"), NodeStatus.planned),
        (("MIXED", "PLANNED"), NodeStatus.busy),
        (("IDLE", "POWERED_DOWN"), NodeStatus.power_saving),
        (("IDLE", "POWERED_DOWN", "NOT_RESPONDING"), NodeStatus.power_saving),
        (("DOWN", "POWERED_DOWN"), NodeStatus.power_saving),
        (("IDLE", "POWERING_DOWN"), NodeStatus.power_saving),
    ],
)
def test_pitfall_19_planned_blocked_and_powered_down_are_no_trouble(
    state: tuple[str, ...], status: NodeStatus
) -> None:
    shown = node(*state)
    assert shown.status is status
    assert shown.owner is None
    assert not shown.held or shown.planned


def test_pitfall_22_unknown_flag_is_reported_and_blocks_a_resume() -> None:
    shown = node("IDLE", "DRAIN", "QUARANTINED", reason="healer:x inc:1 y")
    assert shown.unknown_flags == ("QUARANTINED",)
    assert not shown.resumable
    assert shown.status is NodeStatus.drained
    known = node("IDLE", "DRAIN", "EXTERNAL", "BLOCKED", "POWER_DOWN_FORCE")
    assert known.resumable


@pytest.mark.parametrize(
    ("shown", "owner"),
    [
        (node("IDLE", reason="an old note", user="ann"), None),
        (node("IDLE", "DRAIN", reason="PSU", user="ann"), ReasonOwner(OwnerKind.person, "ann")),
        (node("IDLE", "DRAIN", user="root"), ReasonOwner(OwnerKind.person, "root")),
        (node("DOWN"), ReasonOwner(OwnerKind.slurm, "Slurm")),
        (node("DOWN", reason="none"), ReasonOwner(OwnerKind.slurm, "Slurm")),
        (node("DOWN", reason="dead PSU", user="ann"), ReasonOwner(OwnerKind.person, "ann")),
        (node("IDLE", "INVALID_REG"), ReasonOwner(OwnerKind.slurm, "Slurm")),
        (node("IDLE", "DRAIN", reason="NHC: check_hw", user="root"), ReasonOwner(OwnerKind.program, "NHC")),
        (node("IDLE", "MAINTENANCE"), None),
    ],
)
def test_owner_of_a_node_is_read_from_its_state_and_reason(
    shown: SlurmNode, owner: ReasonOwner | None
) -> None:
    assert shown.owner == owner
