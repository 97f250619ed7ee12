"""Findings from step times: stragglers, slow jobs, results that differ, losses that jump."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.detection.protocol import new_evidence, percent
from healer.detection.streams import Pace, alike, medians, side_by_side
from healer.model import Chart, ChartLine, Component, FaultClass, Finding, Sense
from healer.observations.step_columns import PARTS
from healer.observations.steps import JobSteps, Places
from healer.text import Said, joined, name_some, quoted, say

STRAGGLER = "straggler"
JOB_SLOW = "job-slow"
#: Steps in a chart.
CHART_STEPS = 60
#: With fewer reporting ranks nothing can be compared.
PEERS_LEAST = 4
#: The most ranks and nodes that a sentence names.
_NAMED = 4

Floats = NDArray[np.float64]


class Ratios(NamedTuple):
    """(R,) log of each rank's compute per work over the median of its peers in the step, NaN where unknown;
    and the log of that median, averaged over the groups of peers."""

    x: Floats
    level: float


def ratios_of(steps: Sequence[tuple[JobSteps, int]]) -> list[Ratios | None]:
    """For each job and row; None if no rank has enough peers."""
    peers = [(index, ranks) for index, (job, _) in enumerate(steps) for ranks in job.peers()]
    compute = [steps[index][0].compute[steps[index][1], ranks].astype(np.float64) for index, ranks in peers]
    found: list[Floats | None] = [None] * len(steps)
    levels: list[list[float]] = [[] for _ in steps]
    for part in alike([len(values) for values in compute]):
        values = side_by_side([compute[group] for group in part])
        enough = np.count_nonzero(np.isfinite(values), axis=1) >= PEERS_LEAST
        middle = medians(values)
        logs = np.log(values / middle[:, None])
        for row in np.flatnonzero(enough).tolist():
            index, ranks = peers[part[row]]
            ratios = found[index]
            if ratios is None:
                ratios = found[index] = np.full(steps[index][0].ranks, np.nan)
            ratios[ranks] = logs[row, : len(ranks)]
            levels[index].append(float(middle[row]))
    return [
        None if x is None else Ratios(x, float(np.mean(np.log(level))))
        for x, level in zip(found, levels, strict=True)
    ]


def straggler(
    job: JobSteps, where: Component, ranks: NDArray[np.intp], since: int, limit: float, now: datetime
) -> Finding:
    """`ranks` run at `where` and are slow after step `since`; `limit` is the log ratio that is too high."""
    numbers, ratio, low, high = _history(job, ranks)
    since_then = ratio[numbers > since]
    share = float(np.exp(np.nanmedian(since_then if np.isfinite(since_then).any() else ratio)) - 1)
    steps = max(1, int((numbers > since).sum()))
    or_more = len(numbers) == steps and steps >= CHART_STEPS
    by_stage, with_work = (job.stage[ranks] >= 0).all(), job.with_work[ranks].all()
    text = say(
        "detection.straggler",
        count=len(ranks),
        ranks=name_some([str(rank) for rank in ranks.tolist()], _NAMED),
        where=str(where),
        share=percent(share),
        compute=say("detection.compute_per_work" if with_work else "detection.compute"),
        peers=say("detection.its_stage" if by_stage else "detection.its_peers"),
        steps=say("detection.steps_or_more" if or_more else "detection.steps", n=steps),
        since=since + 1,
        job=job.job,
    )
    chart = _chart(
        say("detection.chart_compute"),
        "ratio",
        numbers,
        _line(quoted(str(where)), "own", np.exp(ratio)),
        _line(say("detection.chart_peers_share", share=percent(0.1)), "low", np.exp(low)),
        _line(say("detection.chart_peers_share", share=percent(0.9)), "high", np.exp(high)),
        _line(say("detection.chart_too_slow"), "threshold", np.full(len(numbers), np.exp(limit))),
    )
    chart = msgspec.structs.replace(chart, node=where.node, gpu=where.gpu)
    kind = "gpu" if where.gpu is not None else "node"
    title = say(f"detection.straggling_{kind}", share=percent(share), job=job.job)
    return finding_at(Onset(job, where, since, now), STRAGGLER, text=text, title=title, chart=chart)


def job_slow(job: JobSteps, pace: Pace, now: datetime) -> Finding:
    numbers, rows = _rows(job)
    step_s = medians(job.step_s[rows])
    more = percent(pace.now_s / pace.before_s - 1)
    text = say(
        "detection.job_slow_text",
        job=job.job,
        now=pace.now_s,
        since=pace.since,
        more=more,
        before=pace.before_s,
    )
    chart = _chart(
        say("detection.chart_step_time"),
        "s",
        numbers,
        _line(say("detection.chart_job", job=job.job), "own", step_s),
        _line(say("detection.chart_before"), "peers", np.full(len(numbers), pace.before_s)),
        _line(say("detection.chart_too_slow"), "threshold", np.full(len(numbers), pace.limit_s)),
    )
    where = Component(cluster=job.cluster, job=job.job)
    title = say("detection.job_slow", job=job.job, more=more)
    return finding_at(Onset(job, where, pace.since - 1, now), JOB_SLOW, text=text, title=title, chart=chart)


def _chart(title: Said, unit: str, steps: NDArray[np.int64], *lines: ChartLine) -> Chart:
    return Chart(title=title, unit=unit, x="step", times=tuple(float(step) for step in steps), lines=lines)


class Onset(NamedTuple):
    """Where and when an effect on a job began. `since`: the last step before it; for results, the first step
    with it. `now`: when it is reported."""

    job: JobSteps
    where: Component
    since: int
    now: datetime


def finding_at(onset: Onset, fault: str, *, title: Said, text: Said, chart: Chart | None = None) -> Finding:
    """The finding; the same onset in the same life always gives the same digest."""
    job, where, since, now = onset
    fault_class, confidence = _OF_RESULTS.get(fault, (FaultClass.informational, 0.9))
    row = job.row(since if fault in _OF_RESULTS else since + 1)
    ended_s = float(job.at[row]) if row is not None else float("nan")
    at = datetime.fromtimestamp(ended_s, UTC) if np.isfinite(ended_s) else now
    identity = f"{fault}|{where.cluster}|{where.node}|{where.gpu}|{job.job}|{job.restart}|{since}"
    evidence = new_evidence(identity, where, min(at, now), text, now, Sense.step_times)
    return Finding.from_evidence(
        msgspec.structs.replace(evidence, job=job.job),
        fault=fault,
        fault_class=FaultClass.degraded if fault == STRAGGLER else fault_class,
        title=title,
        confidence=confidence,
        charts=(chart,) if chart is not None else (),
    )


def _rows(job: JobSteps) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """The last steps and their rows, oldest first."""
    rows = np.flatnonzero(job.number >= 0)
    rows = rows[np.argsort(job.number[rows])][-CHART_STEPS:]
    return job.number[rows], rows


def _history(job: JobSteps, ranks: NDArray[np.intp]) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Steps, the ranks' mean log ratio, and the 10 and 90 % quantiles of all others."""
    numbers, rows = _rows(job)
    ratio, low, high = np.full((3, len(rows)), np.nan)
    for index, ratios in enumerate(ratios_of([(job, row) for row in rows.tolist()])):
        if ratios is None:
            continue
        x = ratios.x
        chosen = np.zeros(len(x), bool)
        chosen[ranks[ranks < len(x)]] = True
        others = x[~chosen & np.isfinite(x)]
        if len(others):
            low[index], high[index] = np.quantile(others, (0.1, 0.9))
        ratio[index] = np.mean(x[chosen]) if chosen.any() else np.nan
    return numbers, ratio, low, high


def _line(label: Said, role: str, values: NDArray) -> ChartLine:
    shown = tuple(round(float(value), 5) if np.isfinite(value) else None for value in values)
    return ChartLine(label=label, role=role, values=shown)


SLOWNESS_SHARED = "slowness-shared"
#: A part of the step is named if it makes up this share of the growth of all parts, and they of the step's.
MOST = 0.6
#: Steps before and since that must be available for the comparison.
LEAST = 3


@dataclass(frozen=True, slots=True)
class Together:
    """The last step before it began, and a sentence that describes it."""

    since: int
    text: Said

    def finding(self, job: JobSteps, now: datetime) -> Finding:
        title = say("detection.job_slow_whole", job=job.job)
        where = Component(cluster=job.cluster, job=job.job)
        return finding_at(Onset(job, where, self.since, now), SLOWNESS_SHARED, text=self.text, title=title)


def slower_parts(job: JobSteps, pace: Pace) -> Together | None:
    """Which part of the step grew on all ranks, if they report parts and that explains the growth: otherwise
    some ranks grew, and the others wait for them."""
    rows = np.flatnonzero(job.number >= 0)
    before = rows[job.number[rows] < pace.since]
    since = rows[job.number[rows] >= pace.since]
    if len(before) < LEAST or len(since) < LEAST:
        return None
    was, now = job.parts.of_all(before), job.parts.of_all(since)
    if not np.isfinite(was[0]) or not np.isfinite(now[0]):
        return None  # only whole step times
    grown = np.clip(np.nan_to_num(now - was), 0, None)
    if grown.sum() < MOST * (pace.now_s - pace.before_s):
        return None
    part = int(np.argmax(grown))
    share = grown[part] / grown.sum()
    figures = [
        say(f"detection.part_of_step_{name}", was=float(was[index]), now=float(now[index]))
        for index, name in enumerate(PARTS)
        if np.isfinite(was[index]) and np.isfinite(now[index])
    ]
    text = say(
        "detection.job_slow_whole_text",
        job=job.job,
        now=pace.now_s,
        since=pace.since,
        more=percent(pace.now_s / pace.before_s - 1),
        what=say(f"detection.grown_{PARTS[part] if share >= MOST else 'several'}"),
        figures=joined(figures, "comma"),
    )
    return Together(pace.since - 1, text)


def slow_many(
    job: JobSteps, places: Places, slow: NDArray[np.bool_], height: NDArray[np.float64], since: float
) -> Together:
    """More ranks than one part could affect compute longer than the rest. `slow` (R,), `height` (R,): logs of
    their ratios."""
    ranks = np.flatnonzero(slow)
    node = places.node[ranks[ranks < len(places.node)]]
    names = [places.nodes[index] for index in np.unique(node[node >= 0]).tolist()]
    who = say("detection.some_ranks", n=len(ranks), of=int(job.seen.sum()))
    if names:
        who = say("detection.ranks_on", ranks=who, nodes=name_some(names, _NAMED))
    heights, longer = height[ranks][np.isfinite(height[ranks])], say("detection.longer")
    if len(heights):
        longer = say("detection.longer_by", share=percent(float(np.expm1(np.median(heights)))))
    text = say("detection.slow_many", job=job.job, ranks=who, longer=longer, since=int(since) + 1)
    return Together(int(since), text)


RESULT_DIFFERS = "result-differs"
LOSS_NAN = "loss-nan"
LOSS_SPIKE = "loss-spike"
#: By fault of a step's result: its class, and its confidence.
_OF_RESULTS = {
    RESULT_DIFFERS: (FaultClass.degraded, 0.8),
    LOSS_NAN: (FaultClass.application, 0.8),
    LOSS_SPIKE: (FaultClass.application, 0.8),
}


#: How a rank's result was before it differed, as named by `detection.was_`.
Past = Literal["the_same", "the_same_elsewhere", "alike"]


class Wrong(NamedTuple):
    """A rank that reported a different result from all others: both latest results, and the first such step.

    `past`: how it was before. If it was `alike`, `others` is their median; otherwise all others reported that
    value.
    """

    name: str
    rank: int
    value: float
    others: float
    since: int
    past: Past


def differs(job: JobSteps, where: Component, wrong: Sequence[Wrong], now: datetime) -> Finding:
    first = min(wrong, key=lambda result: (result.since, result.rank))
    ranks = sorted({result.rank for result in wrong})
    who = say("detection.rank", rank=first.rank)
    if len(ranks) > 1:
        who = say("detection.rank_and_more", rank=who, n=len(ranks) - 1)
    others = _exact(first.others)
    text = say(
        "detection.differs_text",
        rank=who,
        where=str(where),
        job=job.job,
        result=say(f"detection.result_{first.name}"),
        value=_exact(first.value),
        others=say(
            "detection.median_of_all_is" if first.past == "alike" else "detection.all_others_have",
            value=others,
        ),
        since=first.since,
        before=say(f"detection.was_{first.past}"),
    )
    title = say("detection.differs", count=len(ranks), job=job.job)
    return finding_at(Onset(job, where, first.since, now), RESULT_DIFFERS, title=title, text=text)


def no_number(job: JobSteps, where: Component, since: int, now: datetime) -> Finding:
    text = say("detection.loss_no_number_text", job=job.job, since=since)
    title = say("detection.loss_no_number", job=job.job)
    return finding_at(Onset(job, where, since, now), LOSS_NAN, title=title, text=text)


def spike(job: JobSteps, where: Component, since: int, loss: float, usual: float, now: datetime) -> Finding:
    text = say("detection.loss_jumped_text", job=job.job, loss=loss, since=since, usual=usual)
    title = say("detection.loss_jumped", job=job.job)
    return finding_at(Onset(job, where, since, now), LOSS_SPIKE, title=title, text=text)


def _exact(value: float) -> str:
    """All digits: two results may differ only in the last one."""
    return repr(value) if np.isfinite(value) else say("detection.no_number")
