"""What Slurm shows: nodes and jobs at one moment, in one shape for every version and adapter."""

from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache

import msgspec

_OUT_BASE = frozenset({"DOWN", "ERROR", "FUTURE", "UNKNOWN"})
_OUT_FLAGS = frozenset({"DRAIN", "FAIL", "NOT_RESPONDING", "POWERED_DOWN", "POWERING_DOWN", "INVALID_REG"})


class SlurmNode(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One node. `state` is Slurm's JSON list: base state first, then flags, upper case.

    `reason_user` and `reason_at` say who set the reason and when. `rack`, `switch` and `pod` come from the
    site's topology file or, in recordings, from the recording. `gpus_shared`: Slurm hands out slices or
    shares of GPUs here, so `gpus` is no count of cards.
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
    partitions: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    boot_id: str = ""
    boot_at: datetime | None = None

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
        return bool({"MAINTENANCE", "POWERED_DOWN", "POWERING_DOWN"}.intersection(self.state))


class SlurmJob(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One job. `state` is the base state (`RUNNING`); `flags` the rest (`COMPLETING`).

    `gpus` maps node -> GPU indices where Slurm tells them: an empty tuple is a job without a GPU there, a
    node that is missing was not told. `requeue`: Slurm may requeue it; `batch`: it was
    submitted by sbatch (others cannot be requeued). `reason` is why it is pending.
    """

    id: str
    state: str
    nodes: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    gpus: dict[str, tuple[int, ...]] = {}
    restarts: int = 0
    requeue: bool = True
    batch: bool = True
    name: str = ""
    user: str = ""
    partition: str = ""
    qos: str = ""
    comment: str = ""
    reason: str = ""
    start_at: datetime | None = None
    #: Nodes a pending job must not use (ExcNodeList).
    excluded: tuple[str, ...] = ()

    @property
    def active(self) -> bool:
        """Holds nodes: running, suspended or completing."""
        return self.state in {"RUNNING", "SUSPENDED"} or "COMPLETING" in self.flags


class SlurmSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The whole cluster at `taken_at`. `nodes` and `jobs` by name and id."""

    cluster: str
    taken_at: datetime
    nodes: Mapping[str, SlurmNode] = {}
    jobs: Mapping[str, SlurmJob] = {}

    @property
    def gpu_nodes(self) -> list[SlurmNode]:
        """What caps and the floor count; every node where Slurm names no GPUs at all."""
        with_gpus = [node for node in self.nodes.values() if node.gpus > 0]
        return with_gpus or list(self.nodes.values())

    def jobs_on(self, node: str) -> list[SlurmJob]:
        """Jobs that hold the node, in the order of `jobs`."""
        return list(_by_node(_Same(self.jobs)).get(node, ()))


class _Same:
    """A mapping as itself: equal to no other one, whatever it holds."""

    def __init__(self, jobs: Mapping[str, SlurmJob]) -> None:
        self.jobs = jobs

    def __hash__(self) -> int:
        return id(self.jobs)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.jobs is other.jobs


# A storm asks for the jobs of a thousand nodes: reading all jobs for each took minutes. By the mapping and
# not by the snapshot, because an unchanged picture is a new snapshot every two seconds with the same jobs.
@lru_cache(maxsize=4)
def _by_node(same: _Same) -> dict[str, list[SlurmJob]]:
    found: dict[str, list[SlurmJob]] = {}
    for job in same.jobs.values():
        if job.active:
            for node in dict.fromkeys(job.nodes):
                found.setdefault(node, []).append(job)
    return found
