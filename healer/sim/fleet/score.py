"""The score card of one simulation: what was trained, what was found, and what it cost."""

from collections.abc import Iterable
from datetime import timedelta

import msgspec

from healer.sim.fleet.site import Record, Site
from healer.sim.fleet.work import Spent


class Times(msgspec.Struct, frozen=True):
    """Seconds from the fault, over those that came so far."""

    count: int
    median_s: float | None
    p95_s: float | None


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """`spent`: share of the job's time by kind; `lost_gpu_hours`: of the job, by cause; both add up with
    `kept`. `relapsed`: of the nodes that returned, those that failed again within a day and within a week."""

    scenario: str
    seed: int
    mender: str
    days: float
    nodes: int
    effective: float
    spent: dict[str, float]
    job_gpu_hours: float
    lost_gpu_hours: dict[str, float]
    faults: int
    skipped: int
    stopped_job: int
    by_cause: dict[str, int]
    detect: Times
    decide: Times
    restart: Times
    drains: int
    wrong_drains: int
    wrong_per_1000_node_days: float
    missed: int
    undiagnosed: int
    stuck: int
    returned: int
    relapsed_day: int
    relapsed_week: int
    #: Those of a week, by why: the repair did not take, something new, or nothing to do with it (`base`).
    relapsed_by: dict[str, int]
    people: dict[str, int]
    node_hours_out: float
    incidents: dict[str, int] = {}
    fed: dict[str, float] = {}


def card_of(
    site: Site,
    *,
    people: dict[str, int],
    undiagnosed: int = 0,
    stuck: int = 0,
    incidents: dict[str, int] | None = None,
    fed: dict[str, float] | None = None,
) -> Card:
    """After `play`."""
    scenario, work = site.scenario, site.work
    gpu_hours = scenario.job.nodes * scenario.gpus / 3600
    wall = sum(work.spent.values())
    records = list(site.records.values())
    returned = [one for one in records if one.returned_at is not None]
    return Card(
        scenario=scenario.name,
        seed=site.seed,
        mender=site.mender.name,
        days=scenario.days,
        nodes=scenario.nodes,
        effective=round(work.total(Spent.kept) / wall, 5),
        spent={str(kind): round(work.total(kind) / wall, 5) for kind in Spent},
        job_gpu_hours=round(wall * gpu_hours, 1),
        lost_gpu_hours=_rounded({cause: one * gpu_hours for cause, one in work.by_cause().items()}),
        faults=len(records),
        skipped=site.skipped,
        stopped_job=sum(one.stopped_job for one in records),
        by_cause=_counted(one.fault.cause for one in records),
        detect=_times(
            one for record in _broken(records) if (one := _after(record, record.told_at)) is not None
        ),
        decide=_times(
            one for record in _broken(records) if (one := _after(record, record.out_at)) is not None
        ),
        restart=_times(one for record in records if (one := _restarted(record)) is not None),
        drains=site.taken_out,
        wrong_drains=len(site.wrong),
        wrong_per_1000_node_days=round(1000 * len(site.wrong) / (scenario.nodes * scenario.days), 4),
        missed=sum(_is_missed(one, site) for one in records),
        undiagnosed=undiagnosed,
        stuck=stuck,
        returned=len(returned),
        relapsed_day=sum(_relapsed(returned, records, timedelta(days=1)).values()),
        relapsed_week=sum((week := _relapsed(returned, records, timedelta(days=7))).values()),
        relapsed_by=week,
        people=dict(sorted(people.items())),
        node_hours_out=round(site.node_hours_out, 1),
        incidents=dict(sorted((incidents or {}).items())),
        fed={name: round(value, 4) for name, value in (fed or {}).items()},
    )


def _broken(records: Iterable[Record]) -> Iterable[Record]:
    """Faults of nodes: what somebody had to find."""
    return (one for one in records if _is_of_node(one))


def _is_of_node(record: Record) -> bool:
    way = record.fault.way
    return (way.hardware or way.slower > 1) and record.fault.way_name != "unplanned-work"


def _is_missed(record: Record, site: Site) -> bool:
    """Still in service at the end, a day and more after it began."""
    old = site.now - record.fault.at > timedelta(days=1)
    return _is_of_node(record) and old and record.out_at is None and record.repaired_at is None


def _after(record: Record, moment: object) -> float | None:
    return None if moment is None else (moment - record.fault.at).total_seconds()  # type: ignore[operator]


def _restarted(record: Record) -> float | None:
    """Only what stopped the job: how long until it worked again."""
    return _after(record, record.running_at) if record.stopped_job else None


def _relapsed(returned: list[Record], records: list[Record], within: timedelta) -> dict[str, int]:
    """Of the nodes that returned, those that failed again in that time, by why the first such fault came."""
    by_node: dict[str, list[Record]] = {}
    for one in records:
        if _is_of_node(one):
            by_node.setdefault(one.fault.node, []).append(one)
    firsts = (
        next((other for other in by_node.get(one.fault.node, ()) if _follows(other, one, within)), None)
        for one in returned
    )
    return _counted(one.fault.because for one in firsts if one is not None)


def _follows(other: Record, one: Record, within: timedelta) -> bool:
    return one.returned_at is not None and one.returned_at < other.fault.at <= one.returned_at + within


def _times(seconds: Iterable[float]) -> Times:
    known = sorted(seconds)
    if not known:
        return Times(0, None, None)
    return Times(len(known), round(_quantile(known, 0.5), 1), round(_quantile(known, 0.95), 1))


def _quantile(known: list[float], share: float) -> float:
    return known[min(len(known) - 1, int(share * len(known)))]


def _counted(names: Iterable[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name in names:
        found[name] = found.get(name, 0) + 1
    return dict(sorted(found.items(), key=lambda one: (-one[1], one[0])))


def _rounded(hours: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 1) for name, value in sorted(hours.items(), key=lambda one: (-one[1], one[0]))}
