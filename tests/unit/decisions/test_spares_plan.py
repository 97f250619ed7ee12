"""How many spares: the closed form beside the simulator's own account of random faults."""

import math
import random
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from healer.decisions.spares_plan import (
    SparesAsked,
    SparesPlan,
    best_of,
    plan_spares,
    plans_up_to_best,
)
from healer.model.goodput import Spent
from healer.sim.fleet.scenario import JobSpec
from healer.sim.fleet.site import NOBODY, Work

START = datetime(2026, 1, 5, tzinfo=UTC)
ASKED = SparesAsked(
    nodes=128, mtbf_h=2000, checkpoint_s=1200, stall_s=5, swap_s=120, requeue_s=1500, gpus_per_node=8
)


def simulated(asked: SparesAsked, spares: int, seed: int, faults: int = 600) -> float:
    """Effective time by `Work`, which books each second, under exponential faults of each node."""
    chance, rate = random.Random(seed), 1 / (asked.mtbf_h * 3600)
    spec = JobSpec(
        nodes=asked.nodes, checkpoint_s=asked.checkpoint_s, checkpoint_stall_s=asked.stall_s, startup_s=0
    )
    work, now, left = Work(spec, START), 0.0, spares

    def at(seconds: float) -> datetime:
        return START + timedelta(seconds=seconds)

    work.be(Spent.productive, NOBODY, START)
    for _ in range(faults):
        now += chance.expovariate(rate * (asked.nodes + left))
        if chance.random() * (asked.nodes + left) < left:
            left -= 1  # a spare
            continue
        work.be(Spent.hung, "fault", at(now))
        stop_s = asked.swap_s if left else asked.requeue_s
        left = left - 1 if left else spares
        while (again := chance.expovariate(rate * asked.nodes)) < stop_s:
            now += again
        now += stop_s
        work.be(Spent.productive, NOBODY, at(now))
    work.close(at(now))
    return work.total(Spent.productive) / now


@pytest.mark.parametrize("spares", [0, 1, 2, 5])
def test_the_closed_form_is_what_the_simulators_account_comes_to(spares: int) -> None:
    found = plan_spares(ASKED, spares)
    assert found.effective == pytest.approx(simulated(ASKED, spares, seed=7 + spares), abs=0.004)


def test_a_job_that_never_fails_needs_no_spare() -> None:
    safe = SparesAsked(nodes=8, mtbf_h=1e9)
    plans = [plan_spares(safe, spares) for spares in range(4)]
    assert plans[0].effective == pytest.approx(1.0, abs=1e-6)
    assert best_of(plans).spares == 0


def test_spares_pay_where_a_requeue_takes_long() -> None:
    plans = [plan_spares(ASKED, spares) for spares in range(8)]
    assert [plan.effective for plan in plans] == sorted(plan.effective for plan in plans)
    assert 0 < best_of(plans).spares < 7
    assert plans[1].requeues_per_day < plans[0].requeues_per_day


def test_a_swap_that_takes_as_long_as_a_requeue_brings_nothing() -> None:
    same = SparesAsked(nodes=128, mtbf_h=2000, swap_s=900, requeue_s=900)
    plans = [plan_spares(same, spares) for spares in range(4)]
    assert best_of(plans).spares == 0
    assert plans[3].effective <= plans[0].effective + 1e-3


def test_of_equals_the_fewest_spares_are_best() -> None:
    first = SparesPlan(spares=0, effective=0.9, per_gpu=0.9, idle_gpus=0, swaps_per_day=0, requeues_per_day=1)
    again = SparesPlan(spares=1, effective=0.9, per_gpu=0.9, idle_gpus=8, swaps_per_day=0, requeues_per_day=1)
    assert best_of([again, first]).spares == 0


def test_plans_are_shown_a_little_past_the_best() -> None:
    plans = plans_up_to_best(ASKED)
    assert [plan.spares for plan in plans] == list(range(best_of(plans).spares + 4))


@pytest.mark.parametrize(
    "wrong",
    [
        {"swap_s": -1}, {"mtbf_h": 0}, {"nodes": 0}, {"swap": 3}, {"mtbf_h": math.inf}, {"swap_s": math.inf},
        {"requeue_s": 1e300}, {"stall_s": math.nan}, {"checkpoint_s": 1e-320}, {"nodes": 10**400},
    ],
)  # fmt: skip
def test_a_wrong_assumption_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"nodes": 8, "mtbf_h": 100} | wrong, SparesAsked)


@pytest.mark.parametrize("nodes", [1, 10**6])
@pytest.mark.parametrize("mtbf_h", [1e-3, 1e9])
@pytest.mark.parametrize("other_s", [0.0, 1e9])
@pytest.mark.parametrize("checkpoint_s", [1e-3, 1e9])
def test_each_accepted_assumption_gives_figures(
    nodes: int, mtbf_h: float, other_s: float, checkpoint_s: float
) -> None:
    times = dict.fromkeys(("stall_s", "swap_s", "requeue_s"), other_s)
    given = {"nodes": nodes, "mtbf_h": mtbf_h, "checkpoint_s": checkpoint_s, **times}
    for plan in plans_up_to_best(msgspec.convert(given, SparesAsked, strict=False)):
        assert all(math.isfinite(figure) for figure in msgspec.structs.astuple(plan))
        assert 0 <= plan.per_gpu <= plan.effective <= 1 + 1e-9


def test_a_job_that_faults_never_let_come_to_a_step_has_no_effective_time() -> None:
    asked = SparesAsked(nodes=10_000, mtbf_h=1.0)
    plans = plans_up_to_best(asked)
    assert {(plan.effective, plan.per_gpu, plan.requeues_per_day) for plan in plans} == {(0.0, 0.0, 0.0)}
    assert best_of(plans).spares == 0
