"""What stragglers and slow jobs are told as: figures in plain English, a chart by step, a stable identity."""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from healer.detection.pace import Pace
from healer.detection.ragged import alike, medians, side_by_side
from healer.model import Chart, ChartLine, Component, Evidence, FaultClass, Finding, Sense
from healer.observations.steps import JobSteps

STRAGGLER = "straggler"
JOB_SLOW = "job-slow"
#: Steps in a chart.
CHART_STEPS = 60
#: Ranks of which fewer tell say nothing of each other.
PEERS_LEAST = 4
_RANKS_NAMED = 4

Floats = NDArray[np.float64]


def ratios_of(steps: Sequence[tuple[JobSteps, int]]) -> list[Floats | None]:
    """(R,) of each job and row: log of each rank's compute per work to the median of its peers in that step,
    NaN where unknown; None: of nobody."""
    peers = [(index, ranks) for index, (job, _) in enumerate(steps) for ranks in job.peers()]
    told = [steps[index][0].compute[steps[index][1], ranks].astype(np.float64) for index, ranks in peers]
    found: list[Floats | None] = [None] * len(steps)
    for part in alike([len(one) for one in told]):
        values = side_by_side([told[one] for one in part])
        enough = np.count_nonzero(np.isfinite(values), axis=1) >= PEERS_LEAST
        logs = np.log(values / medians(values)[:, None])
        for row in np.flatnonzero(enough).tolist():
            index, ranks = peers[part[row]]
            own = found[index]
            if own is None:
                own = found[index] = np.full(steps[index][0].ranks, np.nan)
            own[ranks] = logs[row, : len(ranks)]
    return found


def straggler(
    job: JobSteps, where: Component, ranks: NDArray[np.intp], since: int, limit: float, now: datetime
) -> Finding:
    """`ranks` run at `where` and are slow after step `since`; `limit` is the log ratio that is too much."""
    numbers, own, low, high = _history(job, ranks)
    new = own[numbers > since]
    share = float(np.exp(np.nanmedian(new if np.isfinite(new).any() else own)) - 1)
    steps = max(1, int((numbers > since).sum()))
    more = "or more " if len(numbers) == steps and steps >= CHART_STEPS else ""
    peers = "its stage" if (job.stage[ranks] >= 0).all() else "its peers"
    work = " per unit of work" if job.with_work[ranks].all() else ""
    text = (
        f"{_named(ranks)} on {where}: {share:.0%} more compute{work} than {peers} for {steps} {more}steps, "
        f"since step {since + 1}; job {job.job} waits for it"
    ).replace("%", " %")
    chart = Chart(
        title="Compute per unit of work, ratio to the peers' median",
        unit="ratio",
        x="step",
        times=tuple(float(number) for number in numbers),
        lines=(
            _line(str(where), "own", np.exp(own)),
            _line("peers, 10 %", "low", np.exp(low)),
            _line("peers, 90 %", "high", np.exp(high)),
            _line("too slow", "threshold", np.full(len(numbers), np.exp(limit))),
        ),
        node=where.node,
        gpu=where.gpu,
    )
    title = f"{'GPU' if where.gpu is not None else 'Node'} {share:.0%} slower than its peers in job {job.job}"
    return _finding(
        job, where, since, now, fault=STRAGGLER, text=text, title=title.replace("%", " %"), chart=chart
    )


def job_slow(job: JobSteps, pace: Pace, now: datetime) -> Finding:
    numbers, rows = _rows(job)
    with np.errstate(all="ignore"):
        own = np.array([_median(job.step_s[row]) for row in rows])
    share = pace.now_s / pace.before_s - 1
    text = (
        f"job {job.job}: {pace.now_s:.3g} s a step since step {pace.since}, {share:.0%} more than its own "
        f"{pace.before_s:.3g} s before; step times alone do not tell which node"
    ).replace("%", " %")
    chart = Chart(
        title="Step time",
        unit="s",
        x="step",
        times=tuple(float(number) for number in numbers),
        lines=(
            _line(f"job {job.job}", "own", own),
            _line("before", "peers", np.full(len(numbers), pace.before_s)),
            _line("too slow", "threshold", np.full(len(numbers), pace.limit_s)),
        ),
    )
    where = Component(cluster=job.cluster, job=job.job)
    title = f"Job {job.job} makes its steps {share:.0%} slower than before".replace("%", " %")
    return _finding(job, where, pace.since - 1, now, fault=JOB_SLOW, text=text, title=title, chart=chart)


def finding_at(
    job: JobSteps, where: Component, since: int, now: datetime, *, fault: str, text: str, title: str
) -> Finding:
    """In words alone; `since`: the last step before."""
    return _finding(job, where, since, now, fault=fault, text=text, title=title)


def _finding(
    job: JobSteps,
    where: Component,
    since: int,
    now: datetime,
    *,
    fault: str,
    text: str,
    title: str,
    chart: Chart | None = None,
) -> Finding:
    """`since`: the last step before. The same onset of the same life always has the same digest."""
    row = job.row(since + 1)
    told = float(job.at[row]) if row is not None else float("nan")
    at = datetime.fromtimestamp(told, UTC) if np.isfinite(told) else now
    identity = f"{fault}|{where.cluster}|{where.node}|{where.gpu}|{job.job}|{job.restart}|{since}"
    evidence = Evidence(
        digest=sha256(identity.encode()).hexdigest(),
        at=min(at, now),
        component=where,
        text=text,
        arrived_at=now,
        job=job.job,
        sense=Sense.step_times,
    )
    return Finding(
        rule=fault,
        fault=fault,
        fault_class=FaultClass.degraded if fault == STRAGGLER else FaultClass.informational,
        component=where,
        at=min(at, now),
        arrived_at=now,
        text=text,
        title=title,
        confidence=0.9,
        evidence=(evidence,),
        jobs=(job.job,),
        charts=(chart,) if chart is not None else (),
    )


def _rows(job: JobSteps) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
    """The last steps and where they lie, oldest first."""
    rows = np.flatnonzero(job.number >= 0)
    rows = rows[np.argsort(job.number[rows])][-CHART_STEPS:]
    return job.number[rows], rows


def _history(job: JobSteps, ranks: NDArray[np.intp]) -> tuple[NDArray, NDArray, NDArray, NDArray]:
    """Steps, the ranks' mean log ratio, and the 10 and 90 % quantiles of all others."""
    numbers, rows = _rows(job)
    own, low, high = np.full((3, len(rows)), np.nan)
    for index, x in enumerate(ratios_of([(job, row) for row in rows.tolist()])):
        if x is None:
            continue
        mine = np.zeros(len(x), bool)
        mine[ranks[ranks < len(x)]] = True
        others = x[~mine & np.isfinite(x)]
        if len(others):
            low[index], high[index] = np.quantile(others, (0.1, 0.9))
        own[index] = np.mean(x[mine]) if mine.any() else np.nan
    return numbers, own, low, high


def _named(ranks: NDArray[np.intp]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    named = ", ".join(str(rank) for rank in ranks[:_RANKS_NAMED])
    return f"ranks {named}" + (f" and {len(ranks) - _RANKS_NAMED} more" if len(ranks) > _RANKS_NAMED else "")


def _median(values: NDArray) -> float:
    known = values[np.isfinite(values)]
    return float(np.median(known)) if len(known) else float("nan")


def _line(label: str, role: str, values: NDArray) -> ChartLine:
    shown = tuple(round(float(value), 5) if np.isfinite(value) else None for value in values)
    return ChartLine(label=label, role=role, values=shown)
