"""`POST /signals/step-times`: how long training steps took, by rank -> batches, one or two per body.

Only `step_s` is required, or `open_s` for a rank that has ended no step for a while. A sample without `rank`
is of rank 0; one without `step` is numbered by the second of its time, so that one sender's steps stay
separate and in order.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import astuple
from numpy.typing import NDArray

from healer.model.telemetry import DOING, PARTS, RESULTS, StepBatch
from healer.signals.rejects import (
    NOT_JSON,
    BadBody,
    BadEntry,
    Rejected,
    Rejects,
    check_marks,
    python_json,
    sentence,
    utc_time,
)
from healer.signals.values import FUTURE_LIMIT, OLD_LIMIT, TOO_OLD, accepted_time
from healer.signals.wire import HasNode, Short, is_job_id, node_of
from healer.text import Said, say

#: More than the ranks of any job times the steps that a sender would hold back; bodies per request.
SAMPLES_MAX = 200_000
BODIES_MAX = 10_000
#: A longer step than a day is a mistake of units.
_SECONDS_MAX = 86_400.0

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1, max_length=64)]
#: JSON has no number for these, and a loss that becomes one is news.
_NoNumber = Literal["NaN", "nan", "Infinity", "-Infinity", "inf", "-inf"]


#: (cluster, job) -> why the sender may not report on that job, None if it may.
WrongJob = Callable[[str, str], Said | None]


class StepSample(msgspec.Struct, forbid_unknown_fields=True):
    """One step of one rank. Times in s; `work` in tokens or samples; `time` is RFC 3339 with a zone.

    A `loss` or `grad_norm` that is no number is sent as the word `"NaN"`. With `open_s` in place of
    `step_s` the rank has ended no step for so long, and `doing` says what it does in `step`.
    """

    step_s: float | None = None
    open_s: float | None = None
    doing: Literal["compute", "collective", "between", "checkpoint", "evaluation"] | None = None
    compute_s: float | None = None
    comm_s: float | None = None
    data_s: float | None = None
    work: float | None = None
    loss: float | _NoNumber | None = None
    grad_norm: float | _NoNumber | None = None
    step: Annotated[int, msgspec.Meta(ge=0, le=2**62)] | None = None
    rank: _Count | None = None
    node: Short | None = None
    gpu: Annotated[int, msgspec.Meta(ge=0, le=63)] | None = None
    stage: _Count | None = None
    time: str | None = None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    job: str | int
    samples: list[StepSample]
    cluster: _Name | None = None
    restart: _Count = 0


class Steps(msgspec.Struct, kw_only=True):
    """`accepted` samples are in `batches`. Indexes of `rejected` count samples through all bodies;
    `rejected_more` were rejected too, and are only counted."""

    batches: list[StepBatch] = []
    accepted: int = 0
    rejected: tuple[Rejected, ...] = ()
    rejected_more: int = 0


class _Entry(NamedTuple):
    """One body: the number of its samples, and the valid ones with their index in it."""

    body: _Body
    sample_count: int
    samples: list[tuple[int, StepSample]]


_fast = msgspec.json.Decoder(list[_Body] | _Body)
_any = msgspec.json.Decoder(Any)


def step_batches(
    raw: bytes, has_node: HasNode, now: datetime, *, cluster: str, wrong_job: WrongJob | None = None
) -> Steps:
    """One body or a list of them. The job need not be in the Slurm snapshot yet; a named node must be one of
    the cluster. All samples of a body are rejected if `wrong_job` gives a reason. Raises BadBody."""
    rejects = Rejects()
    out = Steps()
    index = 0
    check_marks(raw, values=(b",", 20 * SAMPLES_MAX), objects=(b"{", SAMPLES_MAX + BODIES_MAX))
    for body, count, samples in _bodies(raw, rejects):
        rows: list[tuple[StepSample, datetime]] = []
        #: As sent -> as Slurm names it.
        names: dict[str, str] = {}
        where = body.cluster or cluster
        why = wrong_job(where, str(body.job)) if wrong_job is not None else None
        for number, sample in samples:
            try:
                if why is not None:
                    raise BadEntry(why)
                rows.append((sample, _checked(sample, where, has_node, now, names)))
            except BadEntry as error:
                rejects.add(index + number, error)
        index += count
        out.accepted += len(rows)
        rows = _by_our_clock(rows, now)
        for is_open in (False, True):
            if some := [row for row in rows if (row[0].open_s is not None) is is_open]:
                out.batches.append(_batch(body, where, some, names, now, is_open=is_open))
    out.rejected, out.rejected_more = rejects.sorted(), rejects.more
    return out


def _bodies(raw: bytes, rejects: Rejects) -> list[_Entry]:
    """The bodies of a request; invalid samples go to `rejects`."""
    try:
        decoded = _fast.decode(raw)
    except NOT_JSON:
        try:
            anything = _any.decode(raw)
        except NOT_JSON as error:
            anything = python_json(raw, error)
        return _one_by_one(anything, rejects)
    bodies = decoded if isinstance(decoded, list) else [decoded]
    _check_size(len(bodies), sum(len(body.samples) for body in bodies))
    for body in bodies:
        _check_job(body.job)
    return [_Entry(body, len(body.samples), list(enumerate(body.samples))) for body in bodies]


def _one_by_one(decoded: Any, rejects: Rejects) -> list[_Entry]:
    """The same if something is invalid: only the invalid sample is lost. The structure around it must be
    valid."""
    items = decoded if isinstance(decoded, list) else [decoded]
    found: list[_Entry] = []
    start = 0
    for number, item in enumerate(items):
        where = f"[{number}]" if isinstance(decoded, list) else say("signals.body")
        samples = item.get("samples") if isinstance(item, dict) else None
        if not isinstance(samples, list):
            raise BadBody(say("signals.steps_shape", where=where))
        try:
            body = msgspec.convert(item | {"samples": []}, _Body)
        except msgspec.ValidationError as error:
            raise BadBody(say("signals.field", field=where, text=sentence(error))) from None
        _check_job(body.job)
        _check_size(len(items), start + len(samples))
        good: list[tuple[int, StepSample]] = []
        for place, sample in enumerate(samples):
            try:
                good.append((place, msgspec.convert(sample, StepSample)))
            except msgspec.ValidationError as error:
                rejects.add(start + place, error)
        start += len(samples)
        found.append(_Entry(body, len(samples), good))
    return found


def _check_job(job: str | int) -> None:
    if not is_job_id(str(job)):
        raise BadBody(say("signals.bad_job", job=repr(str(job)[:70])))


def _check_size(bodies: int, samples: int) -> None:
    if bodies > BODIES_MAX:
        raise BadBody(say("signals.too_many_bodies", n=bodies, most=BODIES_MAX))
    if samples > SAMPLES_MAX:
        raise BadBody(say("signals.too_many_steps", n=samples, most=SAMPLES_MAX))


def _checked(
    sample: StepSample, cluster: str, has_node: HasNode, now: datetime, names: dict[str, str]
) -> datetime:
    """When the step ended, by its sender's clock. Raises BadEntry."""
    _check_whole(sample)
    for name in PARTS:
        value = getattr(sample, name)
        if value is not None and not 0 <= value <= _SECONDS_MAX:
            raise BadEntry(say("signals.not_within_a_day", name=name))
    if sample.work is not None and not (sample.work > 0 and math.isfinite(sample.work)):
        raise BadEntry(say("signals.work_positive"))
    if sample.node is not None and sample.node not in names:
        names[sample.node] = node_of(cluster, sample.node, has_node)
    if sample.time is None:
        return now
    at = utc_time(sample.time)
    if accepted_time(at, now) is None:
        raise BadEntry(TOO_OLD)
    return at


def _by_our_clock(
    rows: list[tuple[StepSample, datetime]], now: datetime
) -> list[tuple[StepSample, datetime]]:
    """Rows of a rank whose clock is ahead, moved back until its newest one is of this moment: with the time
    of arrival for all of them the job would show no pace, and no hang."""
    ahead: dict[int | None, datetime] = {}
    for sample, at in rows:
        if at > now + FUTURE_LIMIT:
            ahead[sample.rank] = max(at, ahead.get(sample.rank, at))

    def moved(sample: StepSample, at: datetime) -> datetime:
        newest = ahead.get(sample.rank)
        if newest is None or sample.time is None:
            return at
        behind = newest - at
        return now - behind if behind <= OLD_LIMIT else min(at, now)  # one wrong time moves no other one

    return [(sample, moved(sample, at)) for sample, at in rows] if ahead else rows


def _check_whole(sample: StepSample) -> None:
    """Raises BadEntry."""
    if sample.open_s is None:
        if sample.doing is not None:
            raise BadEntry(say("signals.doing_alone"))
        if sample.step_s is None:
            raise BadEntry(say("signals.no_step_s"))
        if not 0 < sample.step_s <= _SECONDS_MAX:
            raise BadEntry(say("signals.step_s_range"))
        return
    if sample.step_s is not None:
        raise BadEntry(say("signals.open_and_step"))
    if not 0 <= sample.open_s <= _SECONDS_MAX:
        raise BadEntry(say("signals.not_within_a_day", name="open_s"))
    if sample.doing is None or sample.step is None:
        raise BadEntry(say("signals.open_s_needs"))


def _result(value: float | str) -> float:
    return math.inf if isinstance(value, str) or not math.isfinite(value) else value


def _batch(
    body: _Body,
    cluster: str,
    rows: list[tuple[StepSample, datetime]],
    names: dict[str, str],
    now: datetime,
    *,
    is_open: bool,
) -> StepBatch:
    fields = zip(*[astuple(sample) for sample, _ in rows], strict=True)
    columns: dict[str, tuple[Any, ...]] = dict(zip(StepSample.__struct_fields__, fields, strict=True))

    def whole(values: Iterable[int | None]) -> NDArray[np.int32]:
        return np.array([-1 if value is None else value for value in values], np.int32)

    def measure(values: Sequence[float | None]) -> NDArray[np.float64]:
        if not any(values) and values.count(None) == len(values):  # no sample has it
            return np.full(len(values), np.nan)
        return np.array(values, np.float64)

    def result(values: Sequence[float | str | None]) -> NDArray[np.float64]:
        return measure([None if value is None else _result(value) for value in values])

    at = [when.timestamp() for _, when in rows]
    nodes = [names.get(node) for node in columns["node"]]
    places = {node: place for place, node in enumerate(dict.fromkeys(filter(None, nodes)))}
    step = [int(when) if number is None else number for number, when in zip(columns["step"], at, strict=True)]
    return StepBatch(
        cluster=cluster,
        job=str(body.job),
        restart=body.restart,
        arrived_at=now,
        sent_by="",
        nodes=tuple(places),
        rank=np.array([rank or 0 for rank in columns["rank"]], np.int32),
        step=np.array(step, np.int64),
        at=np.array(at),
        node=whole(places.get(node) if node is not None else None for node in nodes),
        gpu=whole(columns["gpu"]),
        stage=whole(columns["stage"]),
        step_s=measure(columns["open_s" if is_open else "step_s"]),
        doing=np.array([*map(DOING.index, columns["doing"])], np.int8) if is_open else None,
        work=measure(columns["work"]),
        **{name: measure(columns[name]) for name in PARTS},
        **{name: result(columns[name]) for name in RESULTS},
    )
