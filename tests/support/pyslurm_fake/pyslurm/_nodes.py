"""Nodes, as pyslurm shows and changes them."""

from collections.abc import Mapping
from typing import Any

from healer.model import SlurmNode
from healer.ports.scheduling import SchedulerRefused
from pyslurm._base import RPCError, rpc, seconds, sim, text

_NODE_STATES = {
    "CANCEL_REBOOT", "DOWN", "DRAIN", "FAIL", "FUTURE", "NORESP", "NO_RESP", "POWER_DOWN", "POWER_DOWN_ASAP",
    "POWER_DOWN_FORCE", "POWER_UP", "RESUME", "UNDRAIN",
}  # fmt: skip


class Node:
    """Attributes are read of Slurm's node, and written as changes for `modify`."""

    name: str | None
    state: str | None
    reason: str | None
    comment: str | None
    extra: str | None
    next_state: str | None
    reason_user: str | None
    reason_time: int | None
    configured_gres: dict[str, int]
    partitions: list[str]
    active_features: list[str]
    boot_time: int | None
    address: str
    hostname: str
    total_cpus: int | None

    def __init__(self, name: str | None = None, **changes: Any) -> None:
        self.__dict__["changes"] = {}
        if name is not None:
            self.__dict__["name"] = text(name)
        for attribute, value in changes.items():
            setattr(self, attribute, value)

    def __setattr__(self, attribute: str, value: Any) -> None:
        if attribute not in Node.__annotations__:
            raise KeyError(attribute)
        if attribute not in {"state", "reason", "comment", "extra"}:
            raise AttributeError(f"attribute '{attribute}' of 'pyslurm.core.node.Node' is not writable")
        if attribute == "state":
            if value.upper() == "CANCEL_REBOOT":
                raise NameError("name 'slurm' is not defined")
            if value.upper() not in _NODE_STATES:
                raise ValueError(f"Invalid Node state: {value}")
        elif value and not isinstance(value, str):
            raise TypeError(f"'{type(value).__name__}' object is not subscriptable")
        self.__dict__["changes"][attribute] = value

    @staticmethod
    def load(name: str) -> "Node":
        text(name)
        try:
            return _node(rpc(lambda: sim.node(name)))
        except RPCError as error:
            if error.errno == 2018:
                raise RPCError(msg=f"Node '{name}' does not exist") from None
            raise

    def modify(self, changes: "Node") -> None:
        if not isinstance(changes, Node):
            raise TypeError(f"Argument 'changes' has incorrect type (got {type(changes).__name__})")
        names = str(self.name).split(",")
        wanted = changes.__dict__["changes"]
        refused: RPCError | None = None
        # Slurm goes on past a node that it refuses, and ends at one that it does not know.
        for name in names:
            node = rpc(lambda name=name: sim.node(name))
            try:
                rpc(lambda node=node: _change_node(node, wanted))
            except RPCError as error:
                refused = error
        if refused is not None:
            raise refused


class Nodes(dict[str, Node]):
    @staticmethod
    def load() -> "Nodes":
        return Nodes({name: _node(node) for name, node in rpc(sim.snapshot).nodes.items()})


def _node(node: SlurmNode) -> Node:
    shown = Node(node.name)
    shown.__dict__.update(
        state="+".join(node.state),
        next_state="+".join(node.after_reboot) or None,
        reason=node.reason or None,
        # Before 26.05 a node without a reason names a user all the same.
        reason_user=node.reason_user or "root",
        reason_time=seconds(node.reason_at),
        configured_gres={f"gpu:{node.gpu_model}" if node.gpu_model else "gpu": node.gpus}
        if node.gpus
        else {},
        partitions=list(node.partitions),
        active_features=list(node.features),
        boot_time=seconds(node.boot_at),
        comment=node.comment or None,
        extra=node.extra or None,
        address=node.address or node.name,
        hostname=node.hostname or node.name,
        total_cpus=node.cpus or None,
    )
    return shown


def _change_node(node: SlurmNode, wanted: Mapping[str, str | None]) -> None:
    """Empty texts are not sent. A drain without a reason keeps the one of before, as libslurm does."""
    reason = wanted.get("reason") or node.reason or "none"
    match (wanted.get("state") or "").upper():
        case "DRAIN":
            sim.drain(node.name, reason)
        case "DOWN":
            sim.down(node.name, reason)
        case "UNDRAIN":
            sim.undrain(node.name)
        case "RESUME":
            sim.resume(node.name)
        case "":
            pass
        case other:
            raise SchedulerRefused(f"the simulated Slurm has no {other}", 2052)
    texts = {name: wanted[name] for name in ("comment", "extra") if wanted.get(name)}
    if texts:
        sim.annotate(node.name, **texts)
