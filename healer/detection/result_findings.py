"""What differing results and jumping losses are told as: figures in plain English, a stable identity."""

from collections.abc import Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import NamedTuple

import numpy as np

from healer.model import Component, Evidence, FaultClass, Finding, Sense
from healer.observations.steps import JobSteps

RESULT_DIFFERS = "result-differs"
LOSS_NAN = "loss-nan"
LOSS_SPIKE = "loss-spike"
_WORDS = {"loss": "loss", "grad_norm": "gradient norm"}


class Wrong(NamedTuple):
    """A rank that told another result than all others: what both told last, and since which step.

    `exact`: all others told the same; else `others` is their median.
    """

    name: str
    rank: int
    own: float
    others: float
    since: int
    exact: bool


def differs(job: JobSteps, where: Component, wrong: Sequence[Wrong], now: datetime) -> Finding:
    first = min(wrong, key=lambda one: (one.since, one.rank))
    ranks = sorted({one.rank for one in wrong})
    more = f" and {len(ranks) - 1} more of the node" if len(ranks) > 1 else ""
    own, others = _exact(first.own), _exact(first.others)
    how = f"all others have {others}" if first.exact else f"the median of all ranks is {others}"
    before = "all had the same" if first.exact else "it was like the others"
    text = (
        f"rank {first.rank}{more} on {where}, job {job.job}: {_WORDS[first.name]} {own} where {how}, "
        f"since step {first.since}; before, {before}"
    )
    title = f"{'Ranks' if more else 'A rank'} of job {job.job} computed other results than all others"
    return _finding(job, where, first.since, now, fault=RESULT_DIFFERS, title=title, text=text)


def no_number(job: JobSteps, where: Component, since: int, now: datetime) -> Finding:
    text = (
        f"job {job.job}: its loss is no number since step {since}, on most ranks; "
        f"no single rank stands out, so this names no node"
    )
    title = f"The loss of job {job.job} is no number"
    return _finding(job, where, since, now, fault=LOSS_NAN, title=title, text=text)


def spike(job: JobSteps, where: Component, since: int, loss: float, usual: float, now: datetime) -> Finding:
    text = (
        f"job {job.job}: loss {loss:.4g} since step {since}, {usual:.4g} before; "
        f"all ranks together, so this names no node"
    )
    title = f"The loss of job {job.job} jumped"
    return _finding(job, where, since, now, fault=LOSS_SPIKE, title=title, text=text)


def _exact(value: float) -> str:
    """All digits: two results may differ in the last one alone."""
    return repr(value) if np.isfinite(value) else "no number"


def _finding(
    job: JobSteps, where: Component, since: int, now: datetime, *, fault: str, title: str, text: str
) -> Finding:
    """The same onset of the same life always has the same digest."""
    row = job.row(since)
    told = float(job.at[row]) if row is not None else float("nan")
    at = min(datetime.fromtimestamp(told, UTC), now) if np.isfinite(told) else now
    named = f"{fault}|{where.cluster}|{where.node}|{where.gpu}|{job.job}|{job.restart}|{since}"
    evidence = Evidence(
        digest=sha256(named.encode()).hexdigest(),
        at=at,
        component=where,
        text=text,
        arrived_at=now,
        job=job.job,
        sense=Sense.step_times,
    )
    return Finding(
        rule=fault,
        fault=fault,
        fault_class=FaultClass.degraded if fault == RESULT_DIFFERS else FaultClass.application,
        component=where,
        at=at,
        arrived_at=now,
        text=text,
        title=title,
        confidence=0.8,
        evidence=(evidence,),
        jobs=(job.job,),
    )
