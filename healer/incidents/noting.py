"""A walk's lines and measured findings -> the history of the parts that they are about."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from healer.detection.kernel import Reading, read
from healer.incidents.jobs import crashed_among, jobs_of
from healer.model import (
    Component,
    FaultClass,
    Finding,
    Observation,
    ObservationKind,
    Ruleset,
    Sense,
    SlurmSnapshot,
)
from healer.observations import Picture
from healer.observations.history import Noted

#: What is measured or checked is told again and again while it stands: one event as long as it does.
_SENSES = frozenset({Sense.metrics, Sense.hook})
_HARDWARE = frozenset({FaultClass.fatal, FaultClass.degraded})
_INVENTORIES = frozenset({ObservationKind.heartbeat, ObservationKind.gpu_inventory})

#: Faults of `rules/kernel_lines.yaml`: a client's word that a file server is away, and that it is back.
SERVER_AWAY, SERVER_BACK = "fs-server-away", "fs-server-back"
#: Clients of servers that are remembered.
SERVERS_KEPT = 100_000

People = tuple[tuple[str, ...], tuple[str, ...]]


def note(
    rules: Ruleset,
    picture: Picture,
    batch: Sequence[Observation],
    live: Sequence[Observation],
    findings: Sequence[Finding],
) -> None:
    """Takes in all of a walk: `live` are the lines of `batch` that speak of now."""
    _identify(picture, batch)
    people = _People(picture.slurm)
    order = {one.digest: place for place, one in enumerate(batch)}
    for seen in sorted(live, key=lambda one: (one.arrived_at, one.event_at, order.get(one.digest, 0))):
        _line(rules, picture, seen, people)
    for one in findings:
        told = bool(one.evidence) and one.evidence[0].sense in _SENSES and not one.beside
        if told and one.fault_class in _HARDWARE and one.component.device is None:
            _measured(picture, one, people)


def part_of(picture: Picture, where: Component) -> str:
    """What of its node a component is, as the history names parts."""
    address = picture.node(where.node).gpus.address(where.gpu) if where.node else None
    return picture.history.part(where, address)


class _People:
    """Whose work is on a part, looked up once in a walk."""

    def __init__(self, slurm: SlurmSnapshot | None) -> None:
        self.slurm = slurm
        self._known: dict[Component, People] = {}

    def at(self, where: Component, at: datetime, job: str | None = None) -> People:
        """(jobs, users): the job that the line itself names, else those that Slurm shows there."""
        if self.slurm is None or where.node is None:
            return ((job,), ()) if job else ((), ())
        if job is not None:
            known = self.slurm.jobs.get(job)
            return (job,), ((known.user,) if known is not None and known.user else ())
        place = Component(cluster=where.cluster, node=where.node, gpu=where.gpu, pci=where.pci)
        if place not in self._known:
            jobs, certain = jobs_of(self.slurm, place, one_gpu=True)
            if not jobs:
                jobs = crashed_among(self.slurm.failed_on(where.node), place, (at,))
            if not certain and len(jobs) > 1:
                jobs = []
            ids, users = (one.leader for one in jobs), (one.user for one in jobs if one.user)
            self._known[place] = tuple(dict.fromkeys(ids)), tuple(dict.fromkeys(users))
        return self._known[place]


def _identify(picture: Picture, batch: Sequence[Observation]) -> None:
    for seen in batch:
        node = seen.component.node
        if node is None:
            continue
        if seen.kind is ObservationKind.gpu_identity:
            known, uuid = picture.node(node), str(seen.data.get("uuid", ""))
            if seen.component.pci and uuid and not known.is_history(seen):
                at = known.moment(seen.event_at, seen.arrived_at)
                picture.history.identify(node, seen.component.pci, uuid, at, seen.boot_id)
        elif seen.kind in _INVENTORIES:
            for gpu in seen.data.get("gpus") or ():
                pci, uuid, serial = (str(gpu.get(name) or "") for name in ("pci", "uuid", "serial"))
                if pci:
                    picture.history.identify(node, pci, uuid, seen.arrived_at, seen.boot_id, serial)


def _line(rules: Ruleset, picture: Picture, seen: Observation, people: _People) -> None:
    where = seen.component
    if where.node is None:
        return
    shown = picture.slurm.nodes.get(where.node) if picture.slurm is not None else None
    reading = read(rules, seen, shown)
    if reading is None:
        return
    if reading.server is not None:
        _server(picture, reading, where.node, seen.arrived_at)
    job, at = (
        seen.data.get("job") or where.job,
        picture.node(where.node).moment(seen.event_at, seen.arrived_at),
    )
    jobs, users = people.at(where, at, str(job) if job else None)
    new = Noted(
        node=where.node,
        part=part_of(picture, where),
        fault=reading.fault,
        fault_class=reading.fault_class,
        at=at,
        component=where,
        boot_id=seen.boot_id,
        jobs=jobs,
        users=users,
        unit=_unit(seen),
    )
    picture.history.note(new)
    ask = next((one for one in rules.driver_asks.values() if one.asked == reading.asked), None)
    if ask is not None and ask.fault != reading.fault:  # RST or D-RST in another line asks as Xid 154 does
        picture.history.note(
            msgspec.structs.replace(new, fault=ask.fault, fault_class=ask.fault_class, unit="")
        )


def _server(picture: Picture, reading: Reading, node: str, at: datetime) -> None:
    """The newest word of each of its clients: whether a server is away."""
    name = reading.server or ""
    if reading.fault == SERVER_AWAY:
        picture.servers_back.pop((name, node), None)
    elif reading.fault == SERVER_BACK:
        picture.servers_back[name, node] = at
        if len(picture.servers_back) > SERVERS_KEPT:
            del picture.servers_back[next(iter(picture.servers_back))]


def _unit(seen: Observation) -> str:
    if seen.component.link is not None:
        return f"link {seen.component.link}"
    gpc, tpc = seen.data.get("gpc"), seen.data.get("tpc")
    return f"GPC {gpc} TPC {tpc}" if gpc is not None and tpc is not None else ""


def _measured(picture: Picture, one: Finding, people: _People) -> None:
    where = one.component
    if where.node is None:
        return
    jobs, users = people.at(where, one.arrived_at)
    picture.history.note(
        Noted(
            node=where.node,
            part=part_of(picture, where),
            fault=one.fault,
            fault_class=one.fault_class,
            at=one.arrived_at,
            component=where,
            boot_id=picture.node(where.node).boot_id,
            jobs=jobs,
            users=users,
            unit=f"link {where.link}" if where.link is not None else "",
            measured=True,
        )
    )
