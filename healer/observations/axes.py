"""Which row of an array is which part of the fleet, and what each row belongs to.

Rows are assigned once and never move, so that arrays of different moments match. Only a job's row is reused
for another job, an hour after the job ended: no window and no hold reaches that far back.
"""

import re
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import datetime, timedelta

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model import Component, Part, Scope, SlurmJob, SlurmNode, SlurmSnapshot, Topology

#: The most rows; anything beyond is dropped and counted.
ROWS_MAX = {
    Scope.gpu: 150_000,
    Scope.node: 18_750,
    Scope.link: 400_000,
    Scope.job: 100_000,
    Scope.switch: 10_000,
    Scope.rack: 10_000,
    Scope.fabric: 1,
    Scope.device: 5_000,
    Scope.device_part: 100_000,
}
#: GPUs of one node (no server has more than 16), and distinct links and ports of a node, over all nodes.
GPUS_MAX = 64
PARTS_MAX = 2048
#: Distinct names of parts over all devices.
DEVICE_PARTS_MAX = 4096
JOB_ROW_KEPT = timedelta(hours=1)

Ints = NDArray[np.int32]


def grown(array: NDArray, length: int, fill: float) -> NDArray:
    """`array` with room for `length` along its first dimension; doubled, so that growing stays cheap."""
    if length <= len(array):
        return array
    more = np.full((max(length, 2 * len(array)), *array.shape[1:]), fill, dtype=array.dtype)
    more[: len(array)] = array
    return more


class Axis:
    """The rows of one scope. `n` are in use. Others read it; only `Axes` adds to it."""

    def __init__(self, scope: Scope, most: int, parent: Callable[[Scope, Scope], Ints]) -> None:
        self.scope = scope
        #: Fewer than `ROWS_MAX` if the windows of so many rows would not fit.
        self.most = most
        self._parent = parent
        self._components: list[Component] = []
        self._rows: dict[Hashable, int] = {}

    @property
    def n(self) -> int:
        return len(self._components)

    def components(self) -> Sequence[Component]:
        """By row. The same list object each time; it grows as rows appear."""
        return self._components

    def row(self, component: Component) -> int | None:
        """The row of that part. Fields beyond its scope (PCI address, rank) are ignored."""
        return self.row_of_key(self.key(component))

    def row_of_key(self, key: Hashable) -> int | None:
        return self._rows.get(key)

    def parent(self, scope: Scope) -> Ints:
        """(n,) row on the other axis; -1 if there is none, or if it is unknown or ambiguous.

        Also -1 for all rows of a node that Slurm no longer shows. Valid until the next update or show.
        """
        return self._parent(self.scope, scope)

    def key(self, where: Component) -> Hashable:
        match self.scope:
            case Scope.gpu:
                return (where.node, where.gpu)
            case Scope.node:
                return where.node
            case Scope.link:
                return (where.node, where.nic or (where.gpu, where.link))
            case Scope.job:
                return where.job
            case Scope.switch:
                return where.switch
            case Scope.fabric:
                return None
            case Scope.device | Scope.rack:
                return where.device
            case Scope.device_part:
                return (where.device, where.part)

    def add(self, component: Component, row: int | None = None) -> int | None:
        """The row of `component`, assigned now if it has none; None when all are taken. `row`: one to
        reuse."""
        key = self.key(component)
        if key in self._rows:
            return self._rows[key]
        if row is not None:
            del self._rows[self.key(self._components[row])]
            self._components[row] = component
        elif self.n < self.most:
            row = self.n
            self._components.append(component)
        else:
            return None
        self._rows[key] = row
        return row


# Wide: the axes and the tables between them change rows together: a row of one without the others is wrong.
class Axes:
    """All axes of one cluster, and the tables by which rows find their parents.

    Tables are at least as long as their axis. `place_nodes` and `place_jobs` fill in what Slurm shows; rows
    of GPUs and links appear when they are first reported."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self._axes = {scope: Axis(scope, most, self.parent) for scope, most in ROWS_MAX.items()}
        self._axes[Scope.fabric].add(Component(cluster=cluster))
        self._parents: dict[tuple[Scope, Scope], Ints] = {}
        #: Counts changes of rows or parents: data derived under an older number is stale.
        self.version = 0
        # By node row. `present`: Slurm shows it (all are, until Slurm has shown anything).
        self.present = np.ones(0, bool)
        self.model = np.full(0, -1, np.int32)
        self.switch = np.full(0, -1, np.int32)
        self.rack = np.full(0, -1, np.int32)
        self.job = np.full(0, -1, np.int32)
        self.allocated = np.full(0, -1, np.int8)
        # By node row and GPU index. `allocated`: 1 yes, 0 no, -1 unknown.
        self.gpu_job = np.full((0, GPUS_MAX), -1, np.int32)
        self.gpu_allocated = np.full((0, GPUS_MAX), -1, np.int8)
        self.gpu_row = np.full((0, GPUS_MAX), -1, np.int32)
        # By node row and number of the link or port.
        self.link_row = np.full((0, 0), -1, np.int32)
        # By GPU row, by link row.
        self.gpu_node = np.full(0, -1, np.int32)
        self.gpu_index = np.full(0, -1, np.int32)
        self.link_node = np.full(0, -1, np.int32)
        self.link_part = np.full(0, -1, np.int32)
        # By number of the part: the NVLink's GPU, -1 for a port.
        self.part_gpu = np.full(0, -1, np.int32)
        # By job row.
        self.job_switch = np.full(0, -1, np.int32)
        self.job_nodes = np.zeros(0, np.int32)
        self.job_gpus = np.zeros(0, np.int32)
        self.job_active = np.zeros(0, bool)
        #: Names of GPU models, by number, as in Slurm.
        self.models: list[str] = []
        self.shown = False
        #: By row of a part of a device: the row of the device.
        self.part_device = np.full(0, -1, np.int32)
        self._device_parts: dict[str, int] = {}
        self._device_part_rows: dict[int, int] = {}
        self._parts: dict[Part, int] = {}
        self._named: list[Part] = []
        self._ended: deque[tuple[datetime, int]] = deque()

    def axis(self, scope: Scope) -> Axis:
        return self._axes[scope]

    def changed(self) -> None:
        self.version += 1
        self._parents.clear()

    # --- rows ---

    def node(self, name: str) -> int | None:
        """The node's row, assigned now if it has none. None: there are too many."""
        axis = self._axes[Scope.node]
        row = axis.row_of_key(name)
        if row is not None:
            return row
        row = axis.add(Component(cluster=self.cluster, node=name))
        if row is None:
            return None
        self._grow(axis.n, present=not self.shown, **dict.fromkeys(_BY_NODE, -1))
        self.changed()
        return row

    def _grow(self, length: int, **fills: float) -> None:
        """Makes room for `length` rows in these tables, filled with the given values."""
        for table, fill in fills.items():
            setattr(self, table, grown(getattr(self, table), length, fill))

    def part(self, part: Part) -> int | None:
        """The number of a link or port, the same for all nodes. None: neither of them, or there are too
        many."""
        if part.port is None and (part.link is None or part.gpu is None or not 0 <= part.gpu < GPUS_MAX):
            return None
        number = self._parts.get(part)
        if number is not None or len(self._named) >= PARTS_MAX:
            return number
        number = self._parts[part] = len(self._named)
        self._named.append(part)
        self.part_gpu = grown(self.part_gpu, number + 1, -1)
        if part.port is None and part.gpu is not None:
            self.part_gpu[number] = part.gpu
        if number >= self.link_row.shape[1]:
            width = min(PARTS_MAX, max(16, 2 * self.link_row.shape[1]))
            wider = np.full((len(self.link_row), width), -1, np.int32)
            wider[:, : self.link_row.shape[1]] = self.link_row
            self.link_row = wider
        return number

    def port_name(self, number: int) -> str:
        return self._named[number].port or ""

    def rows(self, scope: Scope, node: NDArray, part: NDArray) -> Ints:
        """(m,) rows of these parts of these nodes, assigned now to those that have none; -1: too many."""
        if scope in (Scope.node, Scope.device):
            return node
        if scope is Scope.device_part:
            return self._rows_of_devices(node, part)
        table = self.gpu_row if scope is Scope.gpu else self.link_row
        found = table[node, part]
        missing = found < 0
        if not missing.any():
            return found
        pairs = np.unique(node[missing].astype(np.int64) * table.shape[1] + part[missing])
        add = self._add_gpu if scope is Scope.gpu else self._add_link
        for pair in pairs.tolist():
            add(*divmod(pair, table.shape[1]))
        self.changed()
        return (self.gpu_row if scope is Scope.gpu else self.link_row)[node, part]

    def _add_gpu(self, node: int, index: int) -> None:
        axis = self._axes[Scope.gpu]
        name = self._axes[Scope.node].components()[node].node
        row = axis.add(Component(cluster=self.cluster, node=name, gpu=index))
        if row is not None:
            self._grow(axis.n, gpu_node=-1, gpu_index=-1)
            self.gpu_row[node, index], self.gpu_node[row], self.gpu_index[row] = row, node, index

    def _add_link(self, node: int, number: int) -> None:
        axis, part = self._axes[Scope.link], self._named[number]
        name = self._axes[Scope.node].components()[node].node
        where = Component(cluster=self.cluster, node=name, nic=part.port)
        if part.port is None:
            where = Component(cluster=self.cluster, node=name, gpu=part.gpu, link=part.link)
        row = axis.add(where)
        if row is not None:
            self._grow(axis.n, link_node=-1, link_part=-1)
            self.link_row[node, number], self.link_node[row], self.link_part[row] = row, node, number

    def device(self, name: str) -> int | None:
        """The device's row, assigned now if it has none. None: there are too many."""
        axis = self._axes[Scope.device]
        if (row := axis.row_of_key(name)) is None:
            row = axis.add(Component(cluster=self.cluster, device=name))
            self.changed()
        return row

    def device_part(self, name: str | None) -> int | None:
        """The number of a part's name, the same for all devices. None: no name, or there are too many."""
        if not name or (name not in self._device_parts and len(self._device_parts) >= DEVICE_PARTS_MAX):
            return None
        return self._device_parts.setdefault(name, len(self._device_parts))

    def _rows_of_devices(self, device: NDArray, part: NDArray) -> Ints:
        """Like `rows`, but by a table of pairs, because few devices have the same parts."""
        pairs, place = np.unique(device.astype(np.int64) * DEVICE_PARTS_MAX + part, return_inverse=True)
        rows = np.array([self._device_part_rows.get(pair, -1) for pair in pairs.tolist()], np.int32)
        new = np.flatnonzero(rows < 0)
        if len(new):
            names = list(self._device_parts)
            rows[new] = [self._add_device_part(pair, names) for pair in pairs[new].tolist()]
            self.changed()
        return rows[place]

    def _add_device_part(self, pair: int, names: Sequence[str]) -> int:
        device, number = divmod(pair, DEVICE_PARTS_MAX)
        axis, name = self._axes[Scope.device_part], self._axes[Scope.device].components()[device].device
        row = axis.add(Component(cluster=self.cluster, device=name, part=names[number]))
        if row is None:
            return -1
        self.part_device = grown(self.part_device, axis.n, -1)
        self.part_device[row] = device
        self._device_part_rows[pair] = row
        return row

    def switch_row(self, name: str) -> int | None:
        return self._axes[Scope.switch].add(Component(cluster=self.cluster, switch=name))

    def rack_row(self, name: str) -> int | None:
        """The row of a rack, which uses its name as a device: its own sensors report on the same
        component."""
        return self._axes[Scope.rack].add(Component(cluster=self.cluster, device=name))

    def job_row(self, job: str, now: datetime) -> int | None:
        """The job's row; the row of a job that ended an hour ago is reused."""
        axis = self._axes[Scope.job]
        row = axis.row_of_key(job)
        if row is None:
            row = axis.add(Component(cluster=self.cluster, job=job), self._free_job_row(now))
        if row is not None:
            self._grow(axis.n, job_switch=-1, job_nodes=0, job_gpus=0, job_active=0)
        return row

    def _free_job_row(self, now: datetime) -> int | None:
        """A row that has waited long enough and whose job has not come back."""
        while self._ended and now - self._ended[0][0] >= JOB_ROW_KEPT:
            _, row = self._ended.popleft()
            if not self.job_active[row]:
                return row
        return None

    def jobs_active(self, rows: Sequence[int], now: datetime) -> None:
        """Sets the jobs that hold nodes now."""
        active = np.zeros(len(self.job_active), bool)
        active[list(rows)] = True
        ended = np.flatnonzero(self.job_active & ~active).tolist()
        waiting = {row for _, row in self._ended}
        self._ended = deque(item for item in self._ended if not active[item[1]])
        self._ended.extend((now, row) for row in ended if row not in waiting)
        self.job_active = active

    def of_node(self, scope: Scope, node: int) -> NDArray[np.int64]:
        """Rows of a node and of its GPUs or links, whether Slurm shows it or not."""
        if scope is Scope.node:
            return np.array([node])
        table = self.gpu_row if scope is Scope.gpu else self.link_row
        rows = table[node].astype(np.int64)
        return np.sort(rows[rows >= 0])

    # --- parents ---

    def parent(self, of: Scope, to: Scope) -> Ints:
        found = self._parents.get((of, to))
        if found is None:
            found = self._derive(of, to).astype(np.int32)
            found.flags.writeable = False
            self._parents[of, to] = found
        return found

    def _derive(self, of: Scope, to: Scope) -> NDArray:
        n = self._axes[of].n
        if of is to:
            return np.arange(n)
        match of:
            case Scope.gpu:
                return self._of_node_part(self.gpu_node[:n], self.gpu_index[:n], to)
            case Scope.link:
                return self._of_node_part(self.link_node[:n], self.part_gpu[self.link_part[:n]], to)
            case Scope.node:
                return self._of_node(np.arange(n), to)
            case Scope.job if to is Scope.switch:
                return np.where(self.job_active[:n], self.job_switch[:n], -1)
            case Scope.job if to is Scope.fabric:
                return np.where(self.job_active[:n], 0, -1)
            case Scope.switch | Scope.rack | Scope.device | Scope.device_part if to is Scope.fabric:
                return np.zeros(n)
            case Scope.device_part if to is Scope.device:
                return self.part_device[:n]
        return np.full(n, -1)

    def _of_node(self, node: NDArray, to: Scope) -> NDArray:
        """The rows that the node itself belongs to."""
        shown = self.present[node]
        match to:
            case Scope.node:
                parent = node
            case Scope.job | Scope.switch | Scope.rack:
                parent = getattr(self, str(to))[node]
            case Scope.fabric:
                parent = np.zeros_like(node)
            case _:
                parent = np.full(len(node), -1)
        return np.where(shown, parent, -1)

    def _of_node_part(self, node: NDArray, gpu: NDArray, to: Scope) -> NDArray:
        """The rows that a GPU, an NVLink or (with `gpu` -1) a port belongs to."""
        if to is Scope.gpu:
            return np.where(self.present[node] & (gpu >= 0), self.gpu_row[node, gpu], -1)
        if to is Scope.job:
            return np.where(gpu >= 0, self.gpu_job[node, gpu], self.job[node])
        return self._of_node(node, to)


#: Tables by node row, except `present`, that are filled with -1.
_BY_NODE = (
    "model", "switch", "rack", "job", "allocated", "gpu_job", "gpu_allocated", "gpu_row", "link_row",
)  # fmt: skip
UNKNOWN = -1
#: A MIG profile as the name of a GRES type: such a node counts slices.
_SLICE = re.compile(r"\d+g\.\d+gb", re.IGNORECASE)


class NodeLoad(msgspec.Struct, frozen=True):
    """The load of one node. `gpus`: GPU index -> row of its job, -1 if two share it. `complete`: the GPUs
    that are not in `gpus` are known to be idle. `allocated`: number of allocated GPUs, None if Slurm does not
    report it."""

    gpus: dict[int, int]
    complete: bool
    allocated: int | None
    job: int = UNKNOWN


def load_of(node: SlurmNode, jobs: Sequence[SlurmJob], rows: Mapping[str, int]) -> NodeLoad:
    """Which GPUs of a node belong to which job. `jobs` hold the node; a job whose GPUs Slurm does not report
    holds all of them if it is alone there."""
    if not jobs:
        return NodeLoad({}, complete=not node.busy, allocated=None if node.busy else 0)
    alone = rows.get(jobs[0].id, UNKNOWN) if len(jobs) == 1 else UNKNOWN
    if len(jobs) == 1 and node.name not in jobs[0].gpus:
        return NodeLoad(dict.fromkeys(range(GPUS_MAX), alone), complete=True, allocated=node.gpus, job=alone)
    gpus: dict[int, int] = {}
    for job in jobs:
        for index in job.gpus.get(node.name, ()):
            if 0 <= index < GPUS_MAX:
                gpus[index] = UNKNOWN if index in gpus else rows.get(job.id, UNKNOWN)
    complete = all(node.name in job.gpus for job in jobs)
    return NodeLoad(gpus, complete=complete, allocated=len(gpus) if complete else None, job=alone)


def place_nodes(axes: Axes, snapshot: SlurmSnapshot, places: Topology) -> None:
    """Adds rows for the nodes that Slurm shows, with models, switches and racks; all other nodes count as
    gone."""
    axes.shown = True
    axes.present[:] = False
    model_of = {model: number for number, model in enumerate(axes.models)}
    for node in snapshot.nodes.values():
        row = axes.node(node.name)
        if row is None:
            continue
        axes.present[row] = True
        model = node.gpu_model or node.gpu_name
        if model and model not in model_of:
            model_of[model] = len(axes.models)
            axes.models.append(model)
        axes.model[row] = model_of.get(model, UNKNOWN)
        place = places.places.get(node.name)
        axes.switch[row] = _row_of(axes.switch_row, node.switch or (place.switch if place else ""))
        axes.rack[row] = _row_of(axes.rack_row, node.rack or (place.rack if place else ""))
    axes.changed()


def _row_of(add: Callable[[str], int | None], name: str) -> int:
    row = add(name) if name else None
    return UNKNOWN if row is None else row


def place_jobs(axes: Axes, snapshot: SlurmSnapshot) -> dict[int, NodeLoad]:
    """Enters into the tables which job holds what; returns the load by node row."""
    rows: dict[str, int] = {}
    for job in snapshot.jobs.values():
        if job.active and (row := axes.job_row(job.id, snapshot.taken_at)) is not None:
            rows[job.id] = row
    axes.jobs_active(list(rows.values()), snapshot.taken_at)
    axes.job[:] = axes.allocated[:] = UNKNOWN
    axes.gpu_job[:] = axes.gpu_allocated[:] = UNKNOWN
    loads: dict[int, NodeLoad] = {}
    cells: list[int] = []
    held: list[int] = []
    for node in snapshot.nodes.values():
        at = axes.node(node.name)
        if at is None:
            continue
        jobs = snapshot.jobs_on(node.name)
        load = loads[at] = load_of(node, jobs, rows)
        axes.job[at] = load.job
        axes.allocated[at] = bool(jobs) or node.busy
        if load.complete:
            axes.gpu_allocated[at] = 0
        cells.extend(at * GPUS_MAX + index for index in load.gpus)
        held.extend(load.gpus.values())
    axes.gpu_job.reshape(-1)[cells] = held
    axes.gpu_allocated.reshape(-1)[cells] = 1
    _measure_jobs(axes, snapshot, rows)
    axes.changed()
    return loads


def _measure_jobs(axes: Axes, snapshot: SlurmSnapshot, rows: Mapping[str, int]) -> None:
    """Sets the size of each job, and the one switch below which all of it runs."""
    axes.job_nodes[:] = axes.job_gpus[:] = 0
    axes.job_switch[:] = UNKNOWN
    for job_id, row in rows.items():
        job = snapshot.jobs[job_id]
        nodes = [node for name in dict.fromkeys(job.nodes) if (node := snapshot.nodes.get(name)) is not None]
        axes.job_nodes[row] = len(nodes)
        axes.job_gpus[row] = sum(
            len(job.gpus[node.name]) if node.name in job.gpus else node.gpus for node in nodes
        )
        switches = {int(axes.switch[at]) for node in nodes if (at := axes.node(node.name)) is not None}
        if len(switches) == 1:
            axes.job_switch[row] = switches.pop()


def derived_signals(
    axes: Axes, snapshot: SlurmSnapshot, loads: Mapping[int, NodeLoad]
) -> tuple[NDArray[np.int32], dict[str, NDArray[np.float64]]]:
    """Rows of Slurm's nodes, and by those rows the signals derived from its snapshot; NaN: not reported, or
    not in whole GPUs.

    `slurm_drained` is 1 for every node that takes no new jobs, for whatever reason.
    """
    components = axes.axis(Scope.node).components()
    nodes = [snapshot.nodes[components[row].node or ""] for row in loads]
    rows = np.fromiter(loads, np.int32, len(loads))
    whole = [not node.gpus_shared and not _SLICE.search(node.gpu_model) for node in nodes]
    gpus = [node.gpus if alone else np.nan for node, alone in zip(nodes, whole, strict=True)]
    held = [np.nan if load.allocated is None else load.allocated for load in loads.values()]
    return rows, {
        "slurm_gpus": np.array(gpus, np.float64),
        "slurm_cpus": np.array([node.cpus or np.nan for node in nodes], np.float64),
        "slurm_allocated": axes.allocated[rows].astype(np.float64),
        "slurm_gpus_allocated": np.array(held, np.float64),
        "slurm_drained": np.array([not node.in_service for node in nodes], np.float64),
    }
