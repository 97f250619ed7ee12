"""The goodput ledger: every GPU-second has one class, and the classes are those that were counted by hand."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from healer.incidents.goodput_partition import harms_of, partition
from healer.model import HitBasis, JobHit, Review
from healer.model.faults import HANG
from healer.model.goodput import HOURS_KEPT, Harm, Held, JobLife, SavedStep, Slice, Spent, Stretch, effective
from tests.support.ledgers import incident as an_incident

START = datetime(2026, 1, 5, tzinfo=UTC)
GPUS = 16


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def life(begin: float, started: float, end: float | None, **fields: object) -> JobLife:
    values: dict[str, object] = {
        "restart": 0,
        "queued_at": at(begin),
        "started_at": at(started),
        "ended_at": None if end is None else at(end),
        "state": "RUNNING" if end is None else "FAILED",
        "held": (Held(at(started), GPUS),),
    }
    return JobLife(**(values | fields))  # type: ignore[arg-type]


def steps(begin: float, first: int, last: int, step_s: float = 10.0) -> Stretch:
    return Stretch(at(begin), at(begin + (last - first + 1) * step_s), first, last)


def harm(since: float, until: float | None = None, **fields: float) -> Harm:
    moments = {name: at(value) for name, value in fields.items()}
    return Harm(incident="i1", cause="xid-79", since=at(since), until=until and at(until), **moments)


def seconds(found: Sequence[Slice]) -> dict[tuple[str, str], float]:
    sums: Counter[tuple[str, str]] = Counter()
    for each in found:
        sums[each.spent.value, each.incident] += each.gpu_s / GPUS
    return {key: pytest.approx(value) for key, value in sums.items()}


def test_a_crash_loses_the_steps_that_the_next_life_makes_again() -> None:
    first = life(0, 20, 500, stretches=(steps(120, 1, 30),), harms=(harm(420, stopped_at=425),))
    then = life(500, 510, None, restart=1, stretches=(steps(610, 21, 40),), saved=(SavedStep(at(800), 40),))
    assert seconds(partition([first, then], at(810))) == {
        ("queued", ""): 20,
        ("starting", ""): 100,
        ("productive", ""): 200 + 200,
        ("lost", "i1"): 100 + 5,  # steps 21 to 30, and the unfinished one
        ("hung", "i1"): 75,
        ("queued", "i1"): 10,
        ("starting", "i1"): 100,
    }


def test_without_step_times_nothing_is_productive() -> None:
    assert seconds(partition([life(0, 50, 1000, state="COMPLETED")], at(2000))) == {
        ("queued", ""): 50,
        ("unknown", ""): 950,
    }


def test_without_step_times_an_incident_still_tells_what_was_lost() -> None:
    lost = harm(600, stopped_at=600, lost_since=400)
    assert seconds(partition([life(0, 0, 700, harms=(lost,))], at(700))) == {
        ("unknown", ""): 400,
        ("lost", "i1"): 200,
        ("hung", "i1"): 100,
    }


def test_what_did_not_keep_a_job_from_its_end_stopped_nothing() -> None:
    """A line said that its GPU was lost, and the job without step times completed hours later."""
    lost = harm(600, stopped_at=600)
    over = life(0, 0, 7000, state="COMPLETED", harms=(lost,))
    assert seconds(partition([over], at(7000))) == {("unknown", ""): 7000}


def test_running_steps_are_unsaved_until_a_checkpoint_holds_them() -> None:
    runs = life(0, 0, None, stretches=(steps(0, 1, 10),), saved=(SavedStep(at(60), 6),))
    assert seconds(partition([runs], at(100))) == {("productive", ""): 60, ("unsaved", ""): 40}


def test_a_pause_is_a_checkpoint_only_where_the_job_reported_one() -> None:
    parts = (steps(0, 1, 10), steps(130, 11, 20), steps(300, 21, 30))
    runs = life(0, 0, 400, stretches=parts, saved=(SavedStep(at(128), 10),), state="COMPLETED")
    assert seconds(partition([runs], at(400))) == {
        ("productive", ""): 300,
        ("checkpointing", ""): 30,
        ("unknown", ""): 70,
    }


def test_slow_steps_cost_what_they_took_longer_than_usual() -> None:
    parts = (steps(0, 1, 100), steps(1000, 101, 200, 12.5), steps(2250, 201, 300))
    runs = life(0, 0, 3250, stretches=parts, harms=(harm(1100, 2200),), state="COMPLETED")
    assert seconds(partition([runs], at(3250))) == {("productive", ""): 3000, ("slowed", "i1"): 250}


def test_slow_steps_that_no_incident_explains_are_the_jobs_own() -> None:
    parts = (steps(0, 1, 100), steps(1000, 101, 200, 12.5))
    runs = life(0, 0, 2250, stretches=parts, state="COMPLETED")
    assert seconds(partition([runs], at(2250))) == {("productive", ""): 2250}


def test_a_hang_is_the_time_without_steps_that_an_incident_explains() -> None:
    parts = (steps(0, 1, 10), steps(900, 11, 20))
    runs = life(0, 0, 1000, stretches=parts, harms=(harm(400, 800),), state="COMPLETED")
    assert seconds(partition([runs], at(1000))) == {
        ("productive", ""): 200,
        ("hung", "i1"): 700,
        ("starting", "i1"): 100,
    }


def test_each_pause_belongs_to_the_incident_that_began_with_it() -> None:
    """The node of the first one is repaired while the job goes on without it."""
    first, noise = harm(100, stopped_at=100), replace(harm(150, 5000), incident="i2", cause="xid-31")
    second = replace(harm(305, stopped_at=305), incident="i3", cause="xid-79")
    hang = replace(harm(301), incident="i4", cause=HANG)
    stretches = steps(0, 1, 10), steps(140, 1, 16), steps(350, 1, 15), steps(600, 16, 25)
    one = life(
        0, 0, None, stretches=stretches, harms=(first, noise, hang, second), saved=(SavedStep(at(700), 25),)
    )
    spent = seconds(partition([one], at(700)))
    assert {key: value for key, value in spent.items() if key[1]} == {
        ("lost", "i1"): 100,
        ("hung", "i1"): 40,
        ("lost", "i3"): 160 + 5,
        ("hung", "i3"): 45,
    }
    assert spent["unknown", ""] == 100  # no incident began with the last pause


def test_a_hang_is_of_the_fault_that_stopped_the_work_though_samples_date_it_before_the_last_step() -> None:
    """A later fault hits a job that makes no steps any more."""
    samples = harm(285, stopped_at=285)
    later = replace(harm(4000, stopped_at=3990), incident="i2", cause="nic-stays-down")
    runs = life(0, 0, None, stretches=(steps(0, 1, 60, step_s=5.0),), harms=(samples, later))
    spent = seconds(partition([runs], at(9000)))
    assert spent["hung", "i1"] == 8700
    assert ("hung", "i2") not in spent


def test_a_part_of_a_greater_incident_costs_what_that_one_costs() -> None:
    """Links of some nodes fail, and half a minute later their switch is found to be the cause."""

    hit = JobHit(job="7", basis=HitBasis.runs_on)
    switch = an_incident(id="i1", fault="switch-fault", opened=at(130), closed=at(700), hit=(hit,))
    link = an_incident(
        id="i2", fault="nvlink-down", opened=at(100), closed=at(130), hit=(hit,), merged_into="i1"
    )
    harms = harms_of("7", 0, [link, switch])
    runs = life(0, 0, None, stretches=(steps(0, 1, 10), steps(700, 11, 20)), harms=harms)
    spent = [(each.spent, each.cause, each.incident) for each in partition([runs], at(800)) if each.cause]
    assert spent == [(Spent.hung, "switch-fault", "i1")]


@pytest.mark.parametrize(
    ("review", "ended_at", "explains"),
    [(Review.false_alarm, None, False), (Review.false_alarm, at(90), True), (Review.unclear, None, True)],
)
def test_a_false_alarm_explains_only_the_end_that_healer_made(
    review: Review, ended_at: datetime | None, explains: bool
) -> None:
    hit = JobHit(job="7", basis=HitBasis.runs_on, ended_at=ended_at)
    alarm = an_incident(opened=at(100), hit=(hit,), review=review)
    assert bool(harms_of("7", 0, [alarm])) is explains


def test_a_false_alarm_ended_no_work_that_goes_on() -> None:
    hit = JobHit(job="7", basis=HitBasis.start, ended_at=at(110))
    alarm = an_incident(opened=at(100), hit=(hit,), review=Review.false_alarm)
    assert harms_of("7", 0, [alarm], is_cut=False) == ()


def test_two_incidents_that_two_people_merged_into_each_other_are_counted() -> None:
    """Each asked for it before the other's wish was stored."""
    hit = JobHit(job="7", basis=HitBasis.runs_on)
    one = an_incident(id="i1", hit=(hit,), merged_into="i2")
    other = an_incident(id="i2", hit=(hit,), merged_into="i1")
    assert len(harms_of("7", 0, [one, other])) == 2


def test_steps_that_took_no_time_keep_no_job_from_being_counted() -> None:
    none = Stretch(at(50), at(50), -1, -1)
    runs = life(0, 0, 100, stretches=(none,), saved=(SavedStep(at(70), 0),))
    assert seconds(partition([runs], at(100))) == {("starting", ""): 100}


def test_times_of_a_wrong_clock_are_cut() -> None:
    wrong = life(-60 * 365 * 86_400, 0, 137 * 365 * 86_400, state="COMPLETING")
    found = partition([wrong], at(100))
    assert (found[0].begin, found[-1].end) == (at(100) - HOURS_KEPT, at(100))


def test_spares_in_the_allocation_are_idle() -> None:
    runs = life(0, 0, 100, stretches=(steps(0, 1, 10),), held=(Held(at(0), GPUS, 8),), state="COMPLETED")
    assert seconds(partition([runs], at(100))) == {("productive", ""): 50, ("spare", ""): 50}


def test_a_node_that_leaves_takes_its_gpus_with_it() -> None:
    held = (Held(at(0), GPUS), Held(at(50), GPUS // 2))
    runs = life(0, 0, 100, stretches=(steps(0, 1, 10),), held=held, state="COMPLETED")
    assert seconds(partition([runs], at(100))) == {("productive", ""): 75}


def test_steps_after_the_last_checkpoint_of_a_job_that_failed_are_lost() -> None:
    over = life(0, 0, 100, stretches=(steps(0, 1, 10),), saved=(SavedStep(at(70), 7),))
    assert seconds(partition([over], at(900))) == {("productive", ""): 70, ("lost", ""): 30}


@pytest.mark.parametrize("step", [10**12, 2**62])
def test_a_checkpoint_may_be_numbered_by_anything(step: int) -> None:
    """By tokens, say: one job must not keep those of all others from being counted."""
    runs = life(0, 0, None, stretches=(steps(0, 1, 10),), saved=(SavedStep(at(60), step),))
    assert seconds(partition([runs], at(100))) == {("productive", ""): 100}


@pytest.mark.parametrize("first", [1, -1])
def test_steps_of_a_job_that_slurm_forgot_while_it_ran_may_have_been_kept(first: int) -> None:
    """Slurm or healer was away when it ended: whether it completed is unknown."""
    stretch = steps(0, first, first + 9)
    over = life(0, 0, 100, state="RUNNING", stretches=(stretch,), saved=(SavedStep(at(70), 7),))
    assert seconds(partition([over], at(900))) == {("productive", ""): 70, ("unsaved", ""): 30}


def test_steps_without_numbers_are_kept_by_the_time_of_the_checkpoint() -> None:
    over = life(0, 0, 100, stretches=(Stretch(at(0), at(100), -1, 8),), saved=(SavedStep(at(70), 0),))
    assert seconds(partition([over], at(900))) == {("productive", ""): 70, ("lost", ""): 30}


def test_effective_time_is_unknown_where_nothing_is_certain() -> None:
    assert effective([(Spent.unknown, 100.0)]) is None
    assert effective([(Spent.unknown, 100.0), (Spent.queued, 3.0), (Spent.hung, 1.0)]) is None
    assert effective([(Spent.productive, 90.0), (Spent.lost, 5.0), (Spent.unknown, 5.0)]) == 0.9


_TIMES = st.integers(0, 5000)


@st.composite
def _stretches(draw: st.DrawFn) -> tuple[Stretch, ...]:
    found, now = [], draw(_TIMES)
    for _ in range(draw(st.integers(0, 5))):
        first, count = draw(st.integers(-1, 50)), draw(st.integers(1, 30))
        last = first + count - 1
        found.append(Stretch(at(now), at(now + count * draw(st.sampled_from([1, 3, 7]))), first, last))
        now += draw(st.integers(0, 400))  # it may begin before the last one ended
    return tuple(found)


@st.composite
def _harms(draw: st.DrawFn) -> Harm:
    def moment() -> datetime | None:
        return draw(st.none() | _TIMES.map(at))

    since, fields = draw(_TIMES), {"until": moment(), "stopped_at": moment(), "lost_since": moment()}
    return Harm(incident=draw(st.sampled_from("ab")), cause="c", since=at(since), **fields)


@st.composite
def _lives(draw: st.DrawFn) -> list[JobLife]:
    """As a sender that errs, or a clock that jumps, would report them."""
    found, now = [], 0
    for restart in range(draw(st.integers(1, 3))):
        began, waits, runs = now + draw(st.integers(-50, 300)), draw(_TIMES), draw(_TIMES)
        gpus, changed = draw(st.integers(0, 64)), draw(st.integers(0, 64))
        held = (
            Held(at(began + waits), gpus, draw(st.integers(0, 8))),
            Held(at(began + waits + runs // 2), changed),
        )
        state = draw(st.sampled_from(["COMPLETED", "FAILED", "REQUEUED", "RUNNING"]))
        found.append(
            life(
                began,
                began + waits,
                began + waits + runs,
                restart=restart,
                state=state,
                held=held[: draw(st.integers(0, 2))],
                stretches=draw(_stretches()),
                saved=tuple(SavedStep(at(each), draw(_TIMES)) for each in sorted(draw(st.lists(_TIMES)))),
                harms=tuple(draw(st.lists(_harms(), max_size=3))),
            )
        )
        now = began + waits + runs
    return found


@given(lives=_lives(), now=_TIMES.map(at))
@settings(max_examples=100, deadline=None)
def test_the_classes_sum_to_the_time_in_the_queue_and_in_allocations(
    lives: list[JobLife], now: datetime
) -> None:
    found = partition(lives, now)
    assert all(each.begin < each.end and each.gpus >= 0 for each in found)
    expected, begin, gpus = 0.0, lives[0].queued_at, 0
    for each in lives:
        begin = max(begin, each.queued_at)
        end = max(begin, min(each.ended_at or now, now))
        start = min(end, max(begin, each.started_at or end))
        gpus = each.held[0].gpus if each.held else gpus
        expected += gpus * (start - begin).total_seconds()
        for at_, held in enumerate(each.held):
            since = start if at_ == 0 else max(start, held.since)
            until = min(end, each.held[at_ + 1].since) if at_ + 1 < len(each.held) else end
            expected += held.gpus * max(0.0, (until - since).total_seconds())
        begin, gpus = end, each.held[-1].gpus if each.held else gpus
    assert sum(each.gpu_s for each in found) == pytest.approx(expected, abs=0.5)
    for before, after in pairwise(found):
        same_time = (before.begin, before.end) == (after.begin, after.end)
        assert same_time or before.end == after.begin or before.restart < after.restart
        assert same_time or before.end <= after.begin
