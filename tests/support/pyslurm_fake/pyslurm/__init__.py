"""A stand-in for the package pyslurm: what healer uses of its interface, on a simulated Slurm.

Written from pyslurm's documentation and from what pyslurm 24.11.0 did with a real Slurm 24.11.5. It refuses
what the real one refuses, in its types and numbers, and is as blind as it: see docs/slurm.md, "pyslurm".
Its folder belongs on PYTHONPATH. PYSLURM_FAKE_SOCKET names the simulated Slurm's socket, PYSLURM_FAKE_RELEASE
the pyslurm to be (24.11.0), PYSLURM_FAKE_LIBSLURM its libslurm where that is another release.
"""

import time
from enum import Flag
from functools import reduce
from operator import or_
from types import MappingProxyType, SimpleNamespace
from typing import Any

from pyslurm._base import LIBSLURM, RELEASE, VERSION, PyslurmError, RPCError, integer, rpc, seconds, sim
from pyslurm._jobs import Job, Jobs, JobSubmitDescription
from pyslurm._nodes import Node, Nodes

__all__ = ["Job", "JobSubmitDescription", "Jobs", "Node", "Nodes", "PyslurmError", "RPCError"]

__version__ = VERSION


def slurm_api_version() -> tuple[int, ...]:
    return tuple(int(part) for part in LIBSLURM.split("."))


def get_controllers() -> list[str]:
    return [rpc(sim.controller).host or "localhost"]


slurmctld = SimpleNamespace(
    Config=SimpleNamespace(load=lambda: SimpleNamespace(cluster=rpc(sim.cluster_name)))
)
_FIGURES = {"server_thread_count": 1, "agent_queue_size": 0}


def _reservations() -> dict[str, dict[str, Any]]:
    return {
        name: {
            "accounts": list(kept.accounts),
            "users": list(kept.users),
            "node_list": ",".join(kept.nodes),
            "start_time": seconds(kept.since),
            "end_time": seconds(kept.until) or int(time.time()) + 365 * 86_400,
            "flags": ",".join(kept.flags),
        }
        for name, kept in rpc(sim.snapshot).reservations.items()
    }


if RELEASE < (25, 11):

    def slurm_requeue(JobID: int, State: int = 0) -> int:
        """The older half of pyslurm: takes flags, and raises ValueError with text and number."""
        try:
            rpc(lambda: (sim.requeue if State & 1 else sim.revive)(str(integer(JobID))))
        except RPCError as error:
            raise ValueError(error.msg, error.errno) from None
        return 0

    def slurm_ping(Controller: int = 0) -> int:
        rpc(sim.cluster_name)
        return 0

    class reservation:
        def get(self) -> dict[str, dict[str, Any]]:
            return _reservations()

    class statistics:
        def get(self) -> dict[str, int]:
            return dict(_FIGURES)

else:

    class ReservationFlags(Flag):
        MAINTENANCE = 1
        IGNORE_RUNNING_JOBS = 2
        SPECIFIC_NODES = 4
        FLEX = 8

    _THEIRS = MappingProxyType(
        {
            "MAINT": ReservationFlags.MAINTENANCE,
            "IGNORE_JOBS": ReservationFlags.IGNORE_RUNNING_JOBS,
            "SPEC_NODES": ReservationFlags.SPECIFIC_NODES,
            "FLEX": ReservationFlags.FLEX,
        }
    )

    class Reservations(dict[str, SimpleNamespace]):
        @staticmethod
        def load() -> "Reservations":
            return Reservations(
                {
                    name: SimpleNamespace(
                        **record
                        | {"name": name, "nodes": record["node_list"]}
                        | {"flags": reduce(or_, (_THEIRS[one] for one in record["flags"].split(",")))}
                    )
                    for name, record in _reservations().items()
                }
            )

    slurmctld.diag = lambda: SimpleNamespace(**_FIGURES, dbd_agent_queue_size=0)
    slurmctld.ping = lambda index: SimpleNamespace(is_responding=bool(rpc(sim.cluster_name)))
