"""The simulated Slurm behind the stand-in, and its errors as pyslurm raises them."""

import os
from collections.abc import Callable
from typing import Any

from healer.ports.scheduling import SchedulerRefused, SchedulerUnavailable
from healer.sim.sim_slurm import SimClient

VERSION = os.environ.get("PYSLURM_FAKE_RELEASE", "24.11.0")
LIBSLURM = os.environ.get("PYSLURM_FAKE_LIBSLURM", VERSION)
RELEASE = tuple(int(part) for part in VERSION.split("."))
sim = SimClient(os.environ["PYSLURM_FAKE_SOCKET"])

INFINITE = 0xFFFFFFFF
#: Slurm's numbers with its words, as far as the simulated Slurm can come to them.
_WORDS = {
    1800: "Unable to contact slurm controller (connect failure)",
    2010: "Invalid user id",
    2017: "Invalid job id specified",
    2018: "Invalid node name specified",
    2020: "Job can not be altered now, try again later",
    2021: "Job/step already completing or completed",
    2024: "Job is pending execution",
    2028: "Invalid node state specified",
    2037: "Requested operation is presently disabled",
    2039: "Only batch jobs are accepted or processed",
    2052: "Feature not supported",
    2073: "Job is no longer pending execution",
    2107: "Job not heterogeneous job leader",
}
#: What libslurm says where later commands say 2180.
_NUMBERS = {2180: 2028}


class PyslurmError(Exception):
    pass


class RPCError(PyslurmError):
    def __init__(self, errno: int = -1, msg: str | None = None) -> None:
        self.errno = errno
        self.msg = msg or _WORDS.get(errno, "Unspecified error")
        super().__init__(self.msg)


def rpc(ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except SchedulerUnavailable:
        raise RPCError(1800) from None
    except SchedulerRefused as error:
        code = error.code or -1
        raise RPCError(_NUMBERS.get(code, code)) from None


def integer(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError("an integer is required")
    return value


def text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"expected bytes, {type(value).__name__} found")
    return value


def seconds(moment: Any) -> int | None:
    return int(moment.timestamp()) if moment else None
