"""How many spare nodes a job should hold: effective training time and idle GPUs, by the number of spares.

A renewal process. Nodes fail independently at a constant rate. A fault of a working node stops the job: while
spares are left, the job continues without the bad node after a swap; otherwise it is requeued, and the new
allocation has all its spares again. A fault of a spare stops nothing, but uses it up. Bad nodes leave the
job.
"""

import math
from collections.abc import Sequence
from typing import Annotated

import msgspec

#: Beyond these no figure means anything, and the model's arithmetic ends in infinities.
_LEAST, _LONGEST = 1e-3, 1e9
_AtLeast0 = Annotated[float, msgspec.Meta(ge=0, le=_LONGEST)]
_Above0 = Annotated[float, msgspec.Meta(ge=_LEAST, le=_LONGEST)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=10**6)]
#: Plans shown beyond the best one, and the most plans.
_PAST_BEST, _MOST = 3, 100


class SparesAsked(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`nodes`: working nodes. `mtbf_h`: mean time between faults of one node that stop a job. `checkpoint_s`:
    work between two checkpoints, each of which stops it for `stall_s`. `swap_s` and `requeue_s`: time from a
    fault to the next step, with a spare and with a requeue (detection, queue, start-up)."""

    nodes: _Count
    mtbf_h: _Above0
    gpus_per_node: _Count = 8
    checkpoint_s: _Above0 = 1800.0
    stall_s: _AtLeast0 = 0.0
    swap_s: _AtLeast0 = 60.0
    requeue_s: _AtLeast0 = 900.0


class SparesPlan(msgspec.Struct, frozen=True, kw_only=True):
    """`effective`: productive time over wall time. `per_gpu`: productive GPU-time over the GPU-time that is
    held or waits, including spares. Long-run means."""

    spares: int
    effective: float
    per_gpu: float
    idle_gpus: float
    swaps_per_day: float
    requeues_per_day: float


def plan_spares(asked: SparesAsked, spares: int) -> SparesPlan:
    """The plan, computed over one cycle from one requeue to the next. Faults also come during stops: within a
    stop of `d` seconds the next fault comes with probability 1 - exp(-rate × d), and restarts the stop."""
    rate = 1 / (asked.mtbf_h * 3600)
    up_s, idle_s, swaps = 0.0, 0.0, 0.0
    for left in range(spares, -1, -1):
        stay_s = 1 / (rate * (asked.nodes + left))
        up_s += stay_s
        idle_s += left * stay_s
        swaps += asked.nodes / (asked.nodes + left) if left else 0.0
    job_rate = rate * asked.nodes
    # Without a spare there is no swap, however long one would take.
    swapping_s = swaps * _stop_s(asked.swap_s, job_rate) if swaps else 0.0
    down_s = swapping_s + _stop_s(asked.requeue_s, job_rate)
    wall_s = up_s + down_s
    kept_s = _kept_share(asked, job_rate) * up_s
    idle = idle_s / up_s
    day = 86_400 / wall_s
    return SparesPlan(
        spares=spares,
        effective=kept_s / wall_s,
        per_gpu=kept_s / wall_s * asked.nodes / (asked.nodes + idle),
        idle_gpus=idle * asked.gpus_per_node,
        swaps_per_day=swaps * day,
        requeues_per_day=day,
    )


def _stop_s(seconds: float, rate: float) -> float:
    """The mean length of a stop that each further fault restarts."""
    return _grown(rate * seconds) / rate


def _kept_share(asked: SparesAsked, rate: float) -> float:
    """The share of the time between two stops that is work saved by a checkpoint. The number of whole
    checkpoints before a fault is geometrically distributed."""
    cycle_s = asked.checkpoint_s + asked.stall_s
    return asked.checkpoint_s * rate / _grown(rate * cycle_s)


def _grown(exponent: float) -> float:
    """exp(x) - 1; infinite if faults come faster than anything ends."""
    try:
        return math.expm1(exponent)
    except OverflowError:
        return math.inf


def plans_up_to_best(asked: SparesAsked) -> list[SparesPlan]:
    """The plans from no spares to a few more than the best number."""
    plans: list[SparesPlan] = []
    for spares in range(_MOST + 1):
        plans.append(plan_spares(asked, spares))
        if spares >= best_of(plans).spares + _PAST_BEST:
            break
    return plans


def best_of(plans: Sequence[SparesPlan]) -> SparesPlan:
    """The plan with the most productive time per held GPU; on a tie, the one with the fewest spares."""
    return max(plans, key=lambda plan: (round(plan.per_gpu, 6), -plan.spares))
