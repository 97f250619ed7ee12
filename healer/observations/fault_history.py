"""Faults of each part of a node over the last days, as bursts: for repeats, ladders and automatic closing.

Pure state, owned by the caller. A walk notes bursts, then keeps them: what a failed walk noted is dropped by
`begin`.
"""

import re
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple

import msgspec

from healer.model import Component, FaultBurst, FaultClass, SlurmSnapshot
from healer.model.faults import REPLACED, Trait, fault_is

#: Prefix of the name of a part that is known by its UUID, and by its serial number alone.
BY_UUID = "GPU-"
BY_SERIAL = "SN-"
#: A UUID without the driver's prefix, as some senders report it.
_BARE = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")


class GpuPart(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU at one address. `first`, the name by which it was first known, stays the same for the part."""

    uuid: str = ""
    serial: str = ""
    first: str = ""

    @property
    def name(self) -> str:
        """The part's name in the history."""
        return self.uuid or f"{BY_SERIAL}{self.serial}"


def part_named(name: str) -> GpuPart | None:
    """The part behind a stored name; None if it is not the name of a GPU."""
    if name.startswith(BY_UUID):
        return GpuPart(uuid=name, first=name)
    if name.startswith(BY_SERIAL):
        return GpuPart(serial=name.removeprefix(BY_SERIAL), first=name)
    return None


def reported_part(uuid: str, serial: str) -> GpuPart | None:
    """The part that a node reports; None if it reports neither. Words such as N/A are no UUID."""
    if _BARE.fullmatch(uuid):
        uuid = f"{BY_UUID}{uuid.lower()}"
    uuid = uuid if uuid.startswith(BY_UUID) else ""
    if not uuid and not serial:
        return None
    return GpuPart(uuid=uuid, serial=serial, first=uuid or f"{BY_SERIAL}{serial}")


def is_another(before: GpuPart, now: GpuPart) -> bool:
    """Whether they certainly are two GPUs."""
    if before.uuid and now.uuid:
        return before.uuid != now.uuid
    return bool(before.serial and now.serial) and before.serial != now.serial


def merge_part(before: GpuPart, now: GpuPart) -> GpuPart:
    """Everything known about one GPU; the latest report wins."""
    return GpuPart(uuid=now.uuid or before.uuid, serial=now.serial or before.serial, first=before.first)


def jobs_by_gpu(snapshot: SlurmSnapshot, node: str) -> dict[int, str]:
    """GPU index -> the job that holds it, as far as Slurm shows. `GpuMap` maps a PCI address to its index."""
    return {index: job.id for job in snapshot.jobs_on(node) for index in job.gpus.get(node, ())}


#: Addresses of GPUs that are remembered of one node, which may name any number: more than it has.
NAMED_KEPT = 64


class GpuMap:
    """PCI address -> index on one node, learnt from the node's signals.

    Three sources, strongest first: an inventory that the node sends with its heartbeat; the site's topology
    file, by GPU model; the complete set of identity lines of one boot, in PCI order (the order in which
    nvidia-smi and Slurm's autodetection count). An incomplete set is not used: a wrong index would requeue
    the wrong job."""

    def __init__(self) -> None:
        #: How often the list of indexes has changed.
        self.changes = 0
        #: Addresses whose GPU the node itself has named, and whether it lists its GPUs with heartbeats.
        self._named: dict[str, None] = {}
        self.lists_itself = False
        self._inventory: dict[str, int] = {}
        self._listed: str | None = None
        #: The GPUs whose index is known since the last boot or repair, and when that was.
        self._settled: set[str] = set()
        self._renewed_at: datetime | None = None
        self._seen: dict[str, str] = {}
        self._boot: str | None = None

    def hear_itself(self, gpus: Iterable[Mapping[str, object]]) -> None:
        """The node itself names these GPUs. The latest are kept: it may name new ones without end."""
        for gpu in gpus:
            if gpu.get("pci") and (gpu.get("uuid") or gpu.get("serial")):
                pci = str(gpu["pci"])
                self._named.pop(pci, None)
                self._named[pci] = None
        for pci in [*self._named][:-NAMED_KEPT]:
            del self._named[pci]

    def is_named(self, pci: str) -> bool:
        """Whether the node itself has named the GPU there: then no one else reports a replacement, which
        would end its faults."""
        return pci in self._named

    def inventory(self, gpus: Sequence[Mapping[str, object]], boot_id: str | None = None) -> None:
        """The node's own list: `[{"index": 0, "pci": "0000:18:00", "uuid": "GPU-…"}, …]`.

        A list of the same boot that only lacks some GPUs is ignored: a lost GPU is missing from it, and the
        indexes of the others may have shifted, while Slurm's have not.
        """
        listed = {
            str(gpu["pci"]): gpu["index"]
            for gpu in gpus
            if gpu.get("pci") is not None and isinstance(gpu["index"], int)
        }
        if boot_id is None or boot_id != self._listed or not listed.keys() < self._inventory.keys():
            self._listed = boot_id
            self._settled = set(listed)
            self._list(listed)

    def heard(self, gpus: Sequence[Mapping[str, object]], renewed_at: datetime | None = None) -> None:
        """From the labels of telemetry, which may name only some of the node's GPUs and says nothing about
        the rest.

        The first index of each GPU since the last boot or repair counts: an exporter that restarts after a
        GPU was lost renumbers the others, while Slurm does not.
        """
        if renewed_at != self._renewed_at:
            self._renewed_at, self._settled = renewed_at, set()
        for gpu in gpus:
            pci, index = gpu.get("pci"), gpu.get("index")
            if not isinstance(pci, str) or not isinstance(index, int):
                continue
            if self._settled.isdisjoint({pci, self.address(index)}):
                self._settled.add(pci)
                self._list({p: i for p, i in self._inventory.items() if i != index} | {pci: index})

    def _list(self, indexes: dict[str, int]) -> None:
        self.changes += indexes != self._inventory
        self._inventory = indexes

    def identity(self, pci: str, uuid: str, boot_id: str | None) -> None:
        """One `NVRM: GPU at PCI:…` line, printed once per GPU and boot."""
        if boot_id != self._boot:
            self._seen, self._boot = {}, boot_id
        if pci in self._seen or len(self._seen) < NAMED_KEPT:
            self._seen[pci] = uuid

    def address(self, gpu: int | None) -> str | None:
        """The PCI address of the GPU with this index, if the node has reported it."""
        return next((pci for pci, index in self._inventory.items() if index == gpu), None)

    def is_seen(self, pci: str, boot_id: str) -> bool:
        """Whether the node has reported the GPU at this address in this boot."""
        named = self._boot == boot_id and pci in self._seen
        return named or (self._listed == boot_id and pci in self._inventory)

    def index(self, pci: str, *, expected: int, from_topology: Sequence[str] = ()) -> int | None:
        """Index of the GPU at `pci`, None if unknown. `expected`: GPUs that Slurm configures."""
        if pci in self._inventory:
            return self._inventory[pci]
        if pci in from_topology:
            return list(from_topology).index(pci)
        if expected > 0 and len(self._seen) == expected and pci in self._seen:
            return sorted(self._seen).index(pci)
        return None


#: Older bursts are no longer used: the longest look-back is that for lemons.
KEPT = timedelta(days=7)
#: Lines this close together are one event (a.4 of the facts, as NVSentinel joins them).
GAP = timedelta(minutes=3)
#: A part that is gone or hangs repeats its fault whenever it is used.
STICKY_GAP = timedelta(hours=3)
#: A measured fault is reported every 5 min while it lasts.
MEASURED_GAP = timedelta(minutes=6)
#: A root explains what comes this shortly before it, and after it.
NEAR = timedelta(seconds=30)

#: Limits on jobs and users, on units, on bursts of one fault on one part, on bursts of one node, and on boots
#: of a node with a GPU.
PEOPLE_KEPT = 16
UNITS_KEPT = 8
BURSTS_KEPT = 64
NODE_KEPT = 1000
JOBS_KEPT = 50_000
ROOTS_KEPT = 32
STAYS_KEPT = 8

#: Prefix of the fault of a marker burst: a person has settled the fault behind it, up to that time.
SETTLED = "settled:"
#: Keeps lines of the same moment in the order in which they came.
_NEXT = timedelta(microseconds=1)
ONE_MOMENT = timedelta(milliseconds=1)
_RANK = {FaultClass.degraded: 1, FaultClass.fatal: 2}

Key = tuple[str, str]


class _Stay(NamedTuple):
    """From when to when a node named a GPU in one boot; the last boot may go on."""

    boot_id: str | None
    since: datetime
    until: datetime


class Noted(msgspec.Struct, frozen=True, kw_only=True):
    """One line or finding, as input of the history. `at` is by our clock; `part` comes from
    `History.part`."""

    node: str
    part: str
    fault: str
    fault_class: FaultClass
    at: datetime
    component: Component
    boot_id: str | None = None
    jobs: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    unit: str = ""
    measured: bool = False

    @property
    def gap(self) -> timedelta:
        if fault_is(self.fault, Trait.sticky):
            return STICKY_GAP
        return MEASURED_GAP if self.measured else GAP


class _Listed(NamedTuple):
    """The bursts of a node, by part and fault: all, those of each part, and by rank those that explain one of
    that rank."""

    bursts: Sequence[tuple[Key, FaultBurst]]
    by_part: Mapping[str, Sequence[tuple[Key, FaultBurst]]]
    worse: Mapping[int, Sequence[FaultBurst]]


# Wide: one record of bursts, and each query that incidents, repeats and ladders make of it.
class History:
    """Bursts of one cluster by node, part and fault."""

    def __init__(self, cluster: str) -> None:
        self.cluster = cluster
        self._nodes: dict[str, dict[Key, tuple[FaultBurst, ...]]] = defaultdict(dict)
        #: Node -> PCI address -> the GPU that was last reported there.
        self._gpus: dict[str, dict[str, GpuPart]] = defaultdict(dict)
        #: How often `gpus` has changed.
        self.gpu_changes = 0
        #: What this walk has changed, in full, until it is kept.
        self._fresh: dict[str, dict[Key, tuple[FaultBurst, ...]]] = defaultdict(dict)
        self._fresh_gpus: dict[str, dict[str, GpuPart]] = defaultdict(dict)
        self._changed: dict[tuple[str, Key], dict[datetime, FaultBurst]] = defaultdict(dict)
        self._last: dict[tuple[str, str], tuple[str, datetime]] = {}
        #: Node -> what `_on` has listed of it, until its bursts change.
        self._listed: dict[str, _Listed] = {}
        #: (job, fault) -> where it occurred; two places are enough to know that there are several.
        self._places: dict[tuple[str, str], set[tuple[str, str]]] = {}
        #: Job -> hardware faults of its nodes: class, beginning and end.
        self._roots: dict[str, dict[tuple[str, Key, datetime], FaultBurst]] = {}
        self._placed: dict[str, set[tuple[str, Key]]] = defaultdict(set)
        #: UUID or serial number of a GPU -> the nodes on which it had a fault.
        self._homes: dict[str, set[str]] = defaultdict(set)
        #: Node -> GPU -> its stays there, oldest first: of its latest GPUs, as it may name any number.
        self._stays: dict[str, dict[str, list[_Stay]]] = defaultdict(dict)

    # --- keeping ----------------------------------------------------------------------------------------

    def load(self, bursts: Iterable[FaultBurst]) -> None:
        """After a restart: restores the stored bursts."""
        for burst in sorted(bursts, key=lambda burst: (burst.last_at, burst.began_at)):
            if burst.pci and (part := part_named(burst.part)) is not None:
                if burst.fault == REPLACED and self._part_at(burst.node, burst.pci) is None:
                    # Another GPU was there before: bursts stored only under the address belong to that one.
                    self._fresh_gpus[burst.node][burst.pci] = part
                else:
                    self._learn(burst.node, burst.pci, part)
            key = (self._whole(burst.node, burst.part, burst.pci), burst.fault)
            by_key = self._nodes[burst.node]
            by_key[key] = tuple(sorted((*by_key.get(key, ()), burst), key=_begin))
            self._index(burst, key)
        for node in self._nodes:
            self._bound(node)
        self._listed.clear()
        self._keep_gpus()
        self.gpu_changes += 1

    def begin(self) -> None:
        """Begins a walk: drops what the last one noted and did not keep."""
        for node in self._fresh:
            self._listed.pop(node, None)
        self._fresh, self._changed, self._fresh_gpus = defaultdict(dict), defaultdict(dict), defaultdict(dict)

    def keep(self) -> None:
        """Called once the walk's transaction is committed."""
        for node, fresh in self._fresh.items():
            self._nodes[node] |= fresh
            self._bound(node)
        self.gpu_changes += bool(self._fresh_gpus)
        self._keep_gpus()
        self.begin()

    def _keep_gpus(self) -> None:
        for node, fresh in self._fresh_gpus.items():
            self._gpus[node] |= fresh
        self._fresh_gpus = defaultdict(dict)

    def gpus(self) -> list[tuple[str, str, str]]:
        """(node, PCI address, name) of the GPUs that nodes have listed; each keeps its first name while it is
        there. May be called from any thread."""
        return [
            (node, pci, part.first)
            for node, gpus in list(self._gpus.items())
            for pci, part in list(gpus.items())
        ]

    @property
    def changed(self) -> list[FaultBurst]:
        """The rows that this walk must write."""
        return [burst for bursts in self._changed.values() for burst in bursts.values()]

    @property
    def touched(self) -> list[tuple[Key, FaultBurst]]:
        """The bursts that this walk began or extended, by their present part."""
        return [(key, burst) for (_, key), bursts in self._changed.items() for burst in bursts.values()]

    # --- parts ------------------------------------------------------------------------------------------

    def part(self, where: Component, pci: str | None = None) -> str:
        """The part of the node that the component is about; `pci`: the address of its GPU, if the component
        has none."""
        pci = where.pci or pci
        if where.switch:
            return where.switch
        if where.nic:
            return where.nic
        if pci is not None:
            return self.gpu_at(where.node or "", pci) or pci
        return f"gpu{where.gpu}" if where.gpu is not None else ""

    def gpu_at(self, node: str, pci: str) -> str | None:
        """The part at an address, by its UUID or else its serial number; None if never reported."""
        part = self._part_at(node, pci)
        return part.name if part is not None else None

    def has_gpu(self, node: str, part: str) -> bool:
        """Whether the node has reported this GPU, and no other since, at any address."""
        return any(gpu.name == part for gpu in self._gpus_of(node).values())

    def _gpus_of(self, node: str) -> dict[str, GpuPart]:
        return self._gpus.get(node, {}) | self._fresh_gpus.get(node, {})

    def _part_at(self, node: str, pci: str) -> GpuPart | None:
        return self._fresh_gpus.get(node, {}).get(pci) or self._gpus.get(node, {}).get(pci)

    def identify(
        self, node: str, pci: str, uuid: str, at: datetime, boot_id: str | None = None, serial: str = ""
    ) -> None:
        """The node reported which GPU is at an address. A different one than before is a new part, which
        starts clean; bursts stored only under the address or the serial number belong to this GPU."""
        part = reported_part(uuid, serial)
        if part is None:
            return
        is_other = self._learn(node, pci, part)
        self._note_stay(node, self.gpu_at(node, pci) or part.name, at, boot_id)
        if is_other:
            where = Component(cluster=self.cluster, node=node, pci=pci)
            self.note(
                Noted(
                    node=node,
                    part=part.name,
                    fault=REPLACED,
                    fault_class=FaultClass.informational,
                    at=at,
                    component=where,
                    boot_id=boot_id,
                )
            )

    def _note_stay(self, node: str, gpu: str, at: datetime, boot_id: str | None) -> None:
        on_node = self._stays[node]
        stays = on_node[gpu] = on_node.pop(gpu, [])
        last = stays[-1] if stays else None
        if last is not None and (boot_id is None or last.boot_id in (None, boot_id)):
            stays[-1] = _Stay(boot_id or last.boot_id, last.since, max(last.until, at))
        else:
            stays[:] = [*stays[1 - STAYS_KEPT :], _Stay(boot_id, at, at)]
        if len(on_node) > NAMED_KEPT:
            del on_node[next(iter(on_node))]

    def _was_there(self, node: str, gpu: str, at: datetime) -> bool:
        """Whether the GPU was in the node at that time: within one boot no GPU leaves it."""
        stays = self._stays.get(node, {}).get(gpu, [])
        return any(stay.since < at <= stay.until for stay in stays) or (bool(stays) and at > stays[-1].since)

    def _learn(self, node: str, pci: str, part: GpuPart) -> bool:
        """True if another GPU was known there."""
        before = self._part_at(node, pci)
        if before is None and len(self._gpus_of(node)) >= NAMED_KEPT:
            return False
        if before is not None and is_another(before, part):
            self._fresh_gpus[node][pci] = part
            return True
        now = merge_part(before, part) if before is not None else part
        if now == before:
            return False
        self._fresh_gpus[node][pci] = now
        was = before.name if before is not None else pci
        if was != now.name:
            for by_node in (self._nodes, self._fresh):
                self._rename(by_node[node], was, now.name)
            self._listed.pop(node, None)
        return False

    def _rename(self, by_key: dict[Key, tuple[FaultBurst, ...]], before: str, part: str) -> None:
        for key in [key for key in by_key if key[0] == before]:
            moved = by_key.pop(key)
            now = (part, key[1])
            by_key[now] = tuple(sorted((*by_key.get(now, ()), *moved), key=_begin))
            for burst in moved:
                self._index(burst, now)

    def _whole(self, node: str, part: str, pci: str | None) -> str:
        """The part's present name: bursts stored under an address or a serial number belong to the GPU
        there."""
        gpu = self._part_at(node, pci) if pci else None
        if gpu is None:
            return part
        return gpu.name if part in {pci, f"{BY_SERIAL}{gpu.serial}"} else part

    # --- noting -----------------------------------------------------------------------------------------

    def note(self, new: Noted) -> FaultBurst:
        """Adds it to the burst that it belongs to, or begins a new one."""
        at = self._in_order(new)
        key = (new.part, new.fault)
        bursts = self._of(new.node, key)
        place = next((i for i in range(len(bursts) - 1, -1, -1) if _continues(bursts[i], at, new)), None)
        if place is None:
            burst = FaultBurst(
                cluster=self.cluster,
                node=new.node,
                part=new.part,
                fault=new.fault,
                fault_class=new.fault_class,
                began_at=at,
                last_at=at,
                boot_id=new.boot_id,
                pci=new.component.pci,
                gpu=new.component.gpu,
                jobs=new.jobs[:PEOPLE_KEPT],
                users=new.users[:PEOPLE_KEPT],
                units=(new.unit,) if new.unit else (),
            )
            oldest = at - KEPT
            kept = tuple(sorted((*(old for old in bursts if old.last_at >= oldest), burst), key=_begin))
            self._put(new.node, key, kept[-BURSTS_KEPT:], burst)
            return burst
        before = bursts[place]
        burst = msgspec.structs.replace(
            before,
            count=before.count + 1,
            last_at=max(before.last_at, at),
            fault_class=max(before.fault_class, new.fault_class, key=_rank),
            boot_id=new.boot_id or before.boot_id,
            pci=new.component.pci or before.pci,
            gpu=before.gpu if new.component.gpu is None else new.component.gpu,
            jobs=_more(before.jobs, new.jobs, PEOPLE_KEPT),
            users=_more(before.users, new.users, PEOPLE_KEPT),
            units=_more(before.units, (new.unit,) if new.unit else (), UNITS_KEPT),
        )
        self._put(new.node, key, (*bursts[:place], burst, *bursts[place + 1 :]), burst)
        return burst

    def place(self, node: str, part: str, fault: str, incident: str, is_over: Callable[[str], bool]) -> None:
        """Records the incident of these bursts. `is_over`: whether an incident has ended; anything after that
        is another event, however near."""
        key = (part, fault)
        before = {burst.began_at: burst for burst in self._nodes.get(node, {}).get(key, ())}
        for began, burst in list(self._changed.get((node, key), {}).items()):
            if burst.incident == incident:
                continue
            bursts = self._of(node, key)
            kept = before.get(began)
            if kept is not None and kept.incident and kept.last_at < burst.last_at and is_over(kept.incident):
                apart = msgspec.structs.replace(
                    burst, began_at=burst.last_at, count=burst.count - kept.count, incident=incident
                )
                bursts = tuple(kept if each.began_at == began else each for each in bursts)
                self._put(node, key, tuple(sorted((*bursts, apart), key=_begin)), apart)
                del self._changed[node, key][began]
            else:
                placed = msgspec.structs.replace(burst, incident=incident)
                bursts = tuple(placed if each.began_at == began else each for each in bursts)
                self._put(node, key, bursts, placed)

    def _in_order(self, new: Noted) -> datetime:
        """Its time, a microsecond later if another fault of the part occurred at the same time."""
        where = (new.node, new.part)
        fault, at = self._last.get(where, ("", new.at - _NEXT))
        moment = new.at
        if fault != new.fault and moment <= at < moment + ONE_MOMENT:
            moment = at + _NEXT
        self._last[where] = (new.fault, moment)
        return moment

    def _put(self, node: str, key: Key, bursts: tuple[FaultBurst, ...], burst: FaultBurst) -> None:
        self._listed.pop(node, None)
        self._fresh[node][key] = bursts
        self._changed[node, key][burst.began_at] = burst
        self._index(burst, key)

    def _index(self, burst: FaultBurst, key: Key) -> None:
        for job in burst.jobs:
            places = self._places.setdefault((job, burst.fault), set())
            if len(places) < 2:
                places.add((burst.node, key[0]))
            if _is_root(burst):
                roots = self._roots.setdefault(job, {})
                if len(roots) < ROOTS_KEPT:
                    roots[burst.node, key, burst.began_at] = burst
        if burst.incident is not None:
            self._placed[burst.incident].add((burst.node, key))
        if key[0].startswith((BY_UUID, BY_SERIAL)):
            self._homes[key[0]].add(burst.node)
        for index in (self._places, self._roots, self._placed, self._homes):
            if len(index) > JOBS_KEPT:
                del index[next(iter(index))]  # pyright: ignore[reportArgumentType]

    def _bound(self, node: str) -> None:
        """Drops old bursts, and the oldest of a node with too many: once per walk, however many it noted."""
        by_key = self._nodes[node]
        ends = sorted(
            (burst.last_at, key, n) for key, bursts in by_key.items() for n, burst in enumerate(bursts)
        )
        old = bisect_left(ends, ends[-1][0] - KEPT, key=itemgetter(0)) if ends else 0
        gone: dict[Key, set[int]] = defaultdict(set)
        for _, key, n in ends[: max(old, len(ends) - NODE_KEPT)]:
            gone[key].add(n)
        for key, numbers in gone.items():
            rest = tuple(burst for n, burst in enumerate(by_key.pop(key)) if n not in numbers)
            if rest:
                by_key[key] = rest

    # --- asking -----------------------------------------------------------------------------------------

    def _of(self, node: str, key: Key) -> tuple[FaultBurst, ...]:
        fresh = self._fresh.get(node, {}).get(key)
        return fresh if fresh is not None else self._nodes.get(node, {}).get(key, ())

    def of(self, node: str, part: str, fault: str) -> tuple[FaultBurst, ...]:
        """Bursts of one fault on one part, oldest first."""
        return self._of(node, (part, fault))

    def on(self, node: str, part: str | None = None) -> Sequence[tuple[Key, FaultBurst]]:
        """All bursts of a part, or of the whole node."""
        listed = self._on(node)
        return listed.bursts if part is None else listed.by_part.get(part, ())

    def _on(self, node: str) -> "_Listed":
        """Listed once between two changes: a node that floods has thousands, each of which asks for them."""
        listed = self._listed.get(node)
        if listed is None:
            keys = sorted({*self._nodes.get(node, ()), *self._fresh.get(node, ())})
            bursts = [(key, burst) for key in keys for burst in self._of(node, key)]
            by_part = {part: [*group] for part, group in groupby(bursts, lambda entry: entry[0][0])}
            roots = [burst for _, burst in bursts if _is_root(burst)]
            worse = {n: [root for root in roots if _rank(root.fault_class) > n] for n in range(3)}
            listed = self._listed[node] = _Listed(bursts, by_part, worse)
        return listed

    def of_part(self, node: str, part: str) -> Iterator[tuple[Key, FaultBurst]]:
        """All bursts of a part; for a GPU known by its own name, including those on nodes where it was
        before, but nothing that another node says of it while it is here."""
        yield from self.on(node, part)
        for home in sorted(self._homes.get(part, set()) - {node}):
            for key, burst in self.on(home, part):
                if not self._was_there(node, part, burst.began_at):
                    yield key, burst

    def nodes(self) -> list[str]:
        """The nodes with recorded bursts."""
        return sorted({*self._nodes, *self._fresh})

    def placed_in(self, incident: str) -> list[tuple[str, FaultBurst]]:
        """The bursts of an incident, each with its part."""
        return [
            (key[0], burst)
            for node, key in sorted(self._placed.get(incident, ()))
            for burst in self._of(node, key)
            if burst.incident == incident
        ]

    def is_alone(self, part: str, burst: FaultBurst) -> bool:
        """None of its jobs had the same fault on another part."""
        places_of = (self._places.get((job, burst.fault), set()) for job in burst.jobs)
        return all(places <= {(burst.node, part)} for places in places_of)

    def incidents_of(self, jobs: Iterable[str], fault: str, at: datetime) -> Iterator[str]:
        """Incidents with the same fault of one of these jobs at about this time."""
        for job in jobs:
            for node, part in sorted(self._places.get((job, fault), ())):
                for burst in self._of(node, (part, fault)):
                    if burst.incident is not None and burst.began_at - GAP <= at <= burst.last_at + GAP:
                        yield burst.incident

    def roots_of(self, jobs: Iterable[str], since: datetime, until: datetime) -> Iterator[str]:
        """Incidents of the hardware faults that hit one of these jobs in this time."""
        for job in jobs:
            for root in self._roots.get(job, {}).values():
                if root.incident is not None and root.began_at <= until and since <= root.last_at:
                    yield root.incident

    def is_explained(self, burst: FaultBurst) -> bool:
        """A worse fault that the driver reported on its node, or on a node of one of its jobs, came with
        it."""
        rank = _rank(burst.fault_class)
        roots = [*self._on(burst.node).worse[rank]]
        for job in burst.jobs:
            roots += (root for root in self._roots.get(job, {}).values() if _rank(root.fault_class) > rank)
        return any(
            root.began_at - NEAR <= burst.last_at and burst.began_at <= root.last_at + NEAR for root in roots
        )


def _begin(burst: FaultBurst) -> tuple[datetime, datetime]:
    return burst.began_at, burst.last_at


def _continues(burst: FaultBurst, at: datetime, new: Noted) -> bool:
    """Whether the burst continues; another boot is another event, however near."""
    boots = {burst.boot_id, new.boot_id} - {None}
    return len(boots) < 2 and burst.began_at - new.gap <= at <= burst.last_at + new.gap


def _is_root(burst: FaultBurst) -> bool:
    return burst.fault_class in _RANK and fault_is(burst.fault, Trait.root)


def _rank(fault_class: FaultClass) -> int:
    return _RANK.get(fault_class, 0)


def _more(old: tuple[str, ...], new: tuple[str, ...], kept: int) -> tuple[str, ...]:
    added = tuple(name for name in dict.fromkeys(new) if name not in old)
    return (*old, *added)[:kept] if added else old
