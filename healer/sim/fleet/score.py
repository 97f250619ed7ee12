"""The score card of one simulation: what was trained, what was found, and the cost."""

from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

import msgspec

from healer.model import FaultClass, Incident
from healer.model.goodput import Spent
from healer.sim.fleet.scenario import Scenario
from healer.sim.fleet.schedule import Fault
from healer.sim.fleet.site import Record, Site
from healer.sim.planted_faults import WAYS, Way
from healer.text import NO_WORDS, Said, joined, say

#: Of the time of the nodes that work: idle spares are in `Inside`, and the simulator knows all.
SIMULATED = tuple(kind for kind in Spent if kind not in {Spent.spare, Spent.unknown})


class Times(msgspec.Struct, frozen=True):
    """Seconds from the fault, over those that came so far."""

    count: int
    median_s: float | None
    p95_s: float | None


class Inside(msgspec.Struct, frozen=True, kw_only=True):
    """Spares that the job held inside its allocation. `swaps`: nodes that left it while it ran; `requeues`:
    its restarts in Slurm; `spare_gpu_hours`: the class `spare`, of the nodes that it held and did not work
    on, in addition to `job_gpu_hours`."""

    swaps: int
    requeues: int
    spare_gpu_hours: float


# Wide: the fields of one score card, as `healer simulate --json` prints them.
class Card(msgspec.Struct, frozen=True, kw_only=True):
    """`spent`: share of the job's time by kind; `lost_gpu_hours`: of the job, by cause; both add up with
    `kept`. `relapsed`: of the nodes that returned, those that failed again within a day and within a week.
    `inside`: UNSET for a job without spares."""

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
    #: The share of returned nodes that fail again within a week whatever is done: `repeat_floor`.
    relapsed_floor: float
    people: dict[str, int]
    node_hours_out: float
    incidents: dict[str, int] = {}
    fed: dict[str, float] = {}
    inside: Inside | msgspec.UnsetType = msgspec.UNSET


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
    returned = [record for record in records if record.returned_at is not None]
    return Card(
        scenario=scenario.name,
        seed=site.seed,
        mender=site.mender.name,
        days=scenario.days,
        nodes=scenario.nodes,
        effective=round(work.total(Spent.productive) / wall, 5),
        spent={str(kind): round(work.total(kind) / wall, 5) for kind in SIMULATED},
        job_gpu_hours=round(wall * gpu_hours, 1),
        lost_gpu_hours=_rounded({cause: seconds * gpu_hours for cause, seconds in work.by_cause().items()}),
        faults=len(records),
        skipped=site.skipped,
        stopped_job=sum(record.stopped_job for record in records),
        by_cause=_counted(record.fault.cause for record in records),
        detect=_times(_after(record, record.found_at) for record in records if _is_of_node(record)),
        decide=_times(_after(record, record.out_at) for record in records if _is_of_node(record)),
        restart=_times(_after(record, record.running_at) for record in records if record.stopped_job),
        drains=site.taken_out,
        wrong_drains=len(site.wrong),
        wrong_per_1000_node_days=round(1000 * len(site.wrong) / (scenario.nodes * scenario.days), 4),
        missed=sum(_is_missed(record, site) for record in records),
        undiagnosed=undiagnosed,
        stuck=stuck,
        returned=len(returned),
        relapsed_day=sum(_relapsed(returned, records, timedelta(days=1)).values()),
        relapsed_week=sum((week := _relapsed(returned, records, timedelta(days=7))).values()),
        relapsed_by=week,
        relapsed_floor=round(repeat_floor(scenario), 4),
        people=dict(sorted(people.items())),
        node_hours_out=round(site.node_hours_out, 1),
        incidents=dict(sorted((incidents or {}).items())),
        fed={name: round(value, 4) for name, value in (fed or {}).items()},
        inside=_inside(site) if scenario.job.spares else msgspec.UNSET,
    )


def _inside(site: Site) -> Inside:
    hours = site.launcher.idle_s * site.scenario.gpus / 3600
    requeues = site.snapshot().jobs[site.job].restarts
    return Inside(swaps=site.launcher.swaps, requeues=requeues, spare_gpu_hours=round(hours, 1))


def _is_of_node(record: Record) -> bool:
    """Faults that someone had to find."""
    return is_of_node(record.fault.way)


def is_of_node(way: Way) -> bool:
    """Whether the node is broken or slow, and not only worked on."""
    return (way.hardware or way.slower > 1) and way != WAYS["unplanned-work"]


def finds(incident: Incident, fault: Fault) -> bool:
    """Whether the incident names the fault's node since. A program's error is no word of a broken node."""
    named = {incident.root.node, *(component.node for component in incident.affected)}
    of_program = incident.fault_class is FaultClass.application and is_of_node(fault.way)
    return fault.node in named and incident.opened >= fault.at and not of_program


def _is_missed(record: Record, site: Site) -> bool:
    """Still in service at the end, a day and more after it began."""
    old = site.now - record.fault.at > timedelta(days=1)
    return _is_of_node(record) and old and record.out_at is None and record.repaired_at is None


def _after(record: Record, moment: datetime | None) -> float | None:
    return None if moment is None else (moment - record.fault.at).total_seconds()


def _relapsed(returned: list[Record], records: list[Record], within: timedelta) -> dict[str, int]:
    """Of the nodes that returned, those that failed again in that time, by why the first such fault came."""
    by_node: dict[str, list[Record]] = {}
    for record in records:
        if _is_of_node(record):
            by_node.setdefault(record.fault.node, []).append(record)
    firsts = (
        next((other for other in by_node.get(record.fault.node, ()) if _follows(other, record, within)), None)
        for record in returned
    )
    return _counted(record.fault.because for record in firsts if record is not None)


def repeat_floor(scenario: Scenario) -> float:
    """The expected share of repaired nodes that fail again within a week of their return, for any policy that
    returns them: relapses, and repairs that did not take and pass the tests, are drawn without regard to
    anything that shows. Faults of the node's own rate come on top."""
    faults, ways = (
        scenario.faults,
        [
            (WAYS[way], cause.count * weight / sum(cause.ways.values()))
            for cause in scenario.mix
            for way, weight in cause.ways.items()
        ],
    )
    total = sum(weight for _, weight in ways)
    of_node = sum(weight for way, weight in ways if is_of_node(way)) / total if total else 0.0
    relapses = faults.relapse * min(1.0, 7 / faults.relapse_days) * of_node
    return 1 - (1 - relapses) * (1 - faults.not_taken * (1 - scenario.tests.find))


def _follows(other: Record, returned: Record, within: timedelta) -> bool:
    return (
        returned.returned_at is not None
        and returned.returned_at < other.fault.at <= returned.returned_at + within
    )


def _times(seconds: Iterable[float | None]) -> Times:
    ordered = sorted(value for value in seconds if value is not None)
    if not ordered:
        return Times(0, None, None)
    return Times(len(ordered), round(_quantile(ordered, 0.5), 1), round(_quantile(ordered, 0.95), 1))


def _quantile(ordered: list[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(names).items(), key=lambda item: (-item[1], item[0])))


def _rounded(hours: dict[str, float]) -> dict[str, float]:
    return {
        name: round(value, 1) for name, value in sorted(hours.items(), key=lambda item: (-item[1], item[0]))
    }


_TOP = 10


def card_text(card: Card) -> Said:
    """What `healer simulate` prints of healer's own card."""
    lines = [
        say(
            "simulation.card", scenario=card.scenario, seed=card.seed, nodes=card.nodes, days=card.days,
            mender=card.mender,
        ),
        "",
        say("simulation.spent_productive", share=card.effective),
        *(say(f"simulation.spent_{kind}", share=card.spent[kind]) for kind in SIMULATED[1:]),
        "",
        say("simulation.faults", faults=card.faults, stopped=card.stopped_job, skipped=card.skipped),
        say("simulation.found", after=_times_text(card.detect)),
        say("simulation.taken_out", after=_times_text(card.decide)),
        say("simulation.works_again", after=_times_text(card.restart)),
        say(
            "simulation.drains", drains=card.drains, wrong=card.wrong_drains,
            rate=card.wrong_per_1000_node_days,
        ),
        say("simulation.missed", missed=card.missed),
        say("simulation.undiagnosed", undiagnosed=card.undiagnosed, stuck=card.stuck),
        say(
            "simulation.returned", returned=card.returned, day=card.relapsed_day, week=card.relapsed_week,
            why=_why(card.relapsed_by), floor=card.relapsed_floor,
        ),
        say("simulation.out", hours=card.node_hours_out),
        *_inside_text(card.inside),
        "",
        say("simulation.people"),
        *(f"  {name:24}{count}" for name, count in card.people.items()),
        "",
        say("simulation.lost"),
        *(f"  {name:24}{hours:>14,.1f}" for name, hours in list(card.lost_gpu_hours.items())[:_TOP]),
    ]  # fmt: skip
    if card.incidents:
        lines += ["", say("simulation.incidents")]
        lines += [f"  {name:40}{count}" for name, count in card.incidents.items()]
    if card.fed:
        fed = joined([f"{value:,g} {name}" for name, value in card.fed.items()], "comma")
        lines += ["", say("simulation.fed", fed=fed)]
    return joined(lines, "line")


def _inside_text(inside: Inside | msgspec.UnsetType) -> list[Said]:
    if inside is msgspec.UNSET:
        return []
    return [
        say(
            "simulation.inside", swaps=inside.swaps, requeues=inside.requeues, hours=inside.spare_gpu_hours
        )
    ]  # fmt: skip


def _why(counted: dict[str, int]) -> Said:
    reasons = [say(f"simulation.because_{because}", n=count) for because, count in counted.items()]
    return say("simulation.why", reasons=joined(reasons, "comma")) if reasons else NO_WORDS


def _times_text(times: Times) -> Said:
    if times.median_s is None or times.p95_s is None:
        return say("simulation.never")
    return say("simulation.times", median=times.median_s, p95=times.p95_s, n=times.count)


def compared(cards: Sequence[Card]) -> list[tuple[str, ...]]:
    """A row of headings, and one for each."""
    heads = ("effective", "found", "works_again", "drains", "wrong", "missed", "people", "out")
    return [("", *(say(f"simulation.head_{head}") for head in heads))] + [
        (
            card.mender,
            f"{card.effective:.4f}",
            _median_text(card.detect),
            _median_text(card.restart),
            str(card.drains),
            str(card.wrong_drains),
            str(card.missed),
            str(sum(card.people.values())),
            f"{card.node_hours_out:,.0f}",
        )
        for card in cards
    ]


def _median_text(times: Times) -> str:
    if times.median_s is None:
        return "-"
    if times.median_s < 600:
        return say("simulation.seconds", n=times.median_s)
    return say("simulation.minutes", n=times.median_s / 60)
