"""Rings of step times: what comes twice, late or in pieces, a job that went back, what is forgotten."""

from dataclasses import replace
from datetime import datetime, timedelta

import msgspec
import numpy as np
import pytest

from healer.model import SlurmSnapshot
from healer.model.telemetry import StepBatch
from healer.observations import steps as module
from healer.observations.steps import JobSteps, StepTimes, joined
from tests.support.steps import CLUSTER, START, batch, slurm


def fed(*batches: StepBatch, shown: SlurmSnapshot | None = None) -> tuple[StepTimes, JobSteps]:
    times = StepTimes(CLUSTER)
    times.update(batches, shown or slurm(), max(one.arrived_at for one in batches))
    job = times.job("4711")
    assert job is not None
    return times, job


def begun_again(restarts: int) -> SlurmSnapshot:
    shown = slurm()
    jobs = {"4711": msgspec.structs.replace(shown.jobs["4711"], restarts=restarts)}
    return msgspec.structs.replace(shown, jobs=jobs)


def values(job: JobSteps, step: int) -> list[float]:
    row = job.row(step)
    assert row is not None
    return job.compute[row, : job.ranks].tolist()


def test_compute_is_kept_per_unit_of_work() -> None:
    _, job = fed(batch(3, np.array([2.0, 4.0]), work=[4.0, 8.0]))
    assert values(job, 3) == [0.5, 0.5]


def test_without_work_compute_is_used_and_such_ranks_have_no_other_peers() -> None:
    _, job = fed(batch(3, np.full(8, 2.0), work=[8.0] * 4 + [np.nan] * 4))
    assert values(job, 3) == [0.25] * 4 + [2.0] * 4
    assert [part.tolist() for part in job.peers()] == [[4, 5, 6, 7], [0, 1, 2, 3]]


def test_a_repeat_is_nothing_and_the_first_word_stays() -> None:
    _, job = fed(batch(3, np.array([2.0, 4.0])))
    job.take(batch(3, np.array([9.0, 9.0])))
    assert values(job, 3) == [2.0, 4.0]


def test_step_sent_in_pieces_is_one_step() -> None:
    x = np.arange(1.0, 9.0)
    _, job = fed(batch(3, np.where(x < 5, x, np.nan)), batch(3, np.where(x < 5, np.nan, x)))
    assert values(job, 3) == x.tolist()


@pytest.mark.parametrize("bad", [0.0, -1.0, np.inf])
def test_a_time_that_cannot_be_is_unknown(bad: float) -> None:
    given = batch(3, np.array([2.0, 2.0]))
    given.compute_s[1] = bad
    _, job = fed(given)
    assert np.isnan(values(job, 3)[1])


def test_the_ring_forgets_what_is_128_steps_old_and_takes_nothing_older() -> None:
    times, job = fed(*[batch(step, np.ones(4)) for step in range(130)])
    assert job.row(1) is None
    assert job.row(2) is not None
    before = times.dropped
    times.update([batch(1, np.ones(4))], slurm(), START)
    assert job.row(1) is None
    assert job.row(129) is not None
    assert times.dropped == before + 4


def test_job_that_went_back_to_a_checkpoint_starts_over() -> None:
    _, job = fed(*[batch(step, np.ones(4)) for step in range(100)])
    later = START + timedelta(hours=1)
    job.take(batch(50, np.full(4, 2.0), at=later))
    assert job.rewound == 1
    assert job.newest == 50
    assert values(job, 50) == [2.0] * 4
    assert job.row(51) is None


def test_old_steps_that_come_late_do_not_look_like_a_rewind() -> None:
    _, job = fed(*[batch(step, np.ones(4)) for step in range(100)])
    job.take(batch(50, np.full(4, 2.0)))
    assert (job.rewound, job.newest) == (0, 99)


def test_step_is_ready_when_all_reported_or_most_are_further() -> None:
    x = np.ones(10)
    missing = np.where(np.arange(10) < 9, 1.0, np.nan)
    times, job = fed(batch(1, x), batch(2, missing))
    heard = START + timedelta(seconds=10)
    assert job.ready(-1, heard) == [1]
    times.update([batch(3, x)], slurm(), START)
    assert job.ready(1, heard) == [2, 3]
    assert job.ready(3, heard) == []


def test_step_reported_by_too_few_is_never_ready() -> None:
    half = np.where(np.arange(10) < 5, 1.0, np.nan)
    _, job = fed(batch(1, np.ones(10)), batch(2, half))
    assert job.ready(1, START + timedelta(hours=1)) == []


@pytest.mark.parametrize(("goes_on_at", "steps"), [(50, 2), (100, 2 * 128)])
def test_a_job_that_goes_on_with_fewer_nodes_is_not_waited_for(goes_on_at: int, steps: int) -> None:
    """It began again from a checkpoint, or from where it was."""
    times, job = fed(*[batch(step, np.ones(32)) for step in range(100)])
    for number in range(steps):
        at = START + timedelta(seconds=5 * (200 + number))
        times.update([batch(goes_on_at + number, np.ones(16), at=at)], slurm(2), at)
    last = goes_on_at + steps - 1
    assert job.ready(last - 1, job.heard_at) == [last]
    assert [int((job.places(slurm(2)).node == node).sum()) for node in range(4)] == [8, 8, 0, 0]
    assert len(np.concatenate(job.peers())) == 16


def test_wait_for_the_last_step_is_bounded() -> None:
    most = np.where(np.arange(10) < 9, 1.0, np.nan)
    _, job = fed(batch(1, np.ones(10)), batch(2, most))
    assert job.ready(1, job.heard_at + timedelta(seconds=5)) == []
    assert job.ready(1, job.heard_at + timedelta(seconds=11)) == [2]


def test_senders_say_where_ranks_run_and_slurm_must_agree() -> None:
    _, job = fed(batch(1, np.ones(32)))
    places = job.places(slurm(4))
    assert [places.nodes[index] for index in places.node[[0, 8, 31]]] == ["gpu0000", "gpu0001", "gpu0003"]
    assert places.gpu[[0, 9, 31]].tolist() == [0, 1, 7]
    smaller = slurm(3)
    places = job.places(smaller)
    assert places.node[24:].tolist() == [-1] * 8
    assert places.gpu[24:].tolist() == [-1] * 8


@pytest.mark.parametrize(
    ("ranks", "node", "gpu"),
    [(32, [0, 1, 3], [0, 0, 7]), (4, [0, 1, 3], [-1, -1, -1]), (12, [-1, -1, -1], [-1, -1, -1])],
)
def test_without_word_from_senders_slurms_order_places_ranks_where_the_counts_fit(
    ranks: int, node: list[int], gpu: list[int]
) -> None:
    _, job = fed(batch(1, np.ones(ranks), placed=False))
    places = job.places(slurm(4))
    some = [0, ranks // 4, ranks - 1]
    assert places.node[some].tolist() == node
    assert places.gpu[some].tolist() == gpu


def test_batches_of_several_senders_are_joined_with_their_own_names_of_nodes() -> None:
    one, other = batch(1, np.ones(8)), batch(1, np.ones(8), per=2)
    whole = joined([one, other])
    nodes = [whole.nodes[index] for index in whole.node]
    assert nodes == ["gpu0000"] * 8 + ["gpu0000"] * 2 + ["gpu0001"] * 2 + ["gpu0002"] * 2 + ["gpu0003"] * 2
    assert len(whole.rank) == 16


def test_a_requeued_job_is_looked_at_in_its_latest_life() -> None:
    again = begun_again(1)
    times, _ = fed(batch(1, np.ones(4)), batch(1, np.full(4, 2.0), restart=1), shown=again)
    assert [job.restart for job in times.jobs()] == [1]
    later = START + timedelta(minutes=11)
    times.update([], again, START)
    times.update([], again, later)
    assert len(times) == 1


def test_a_job_that_slurm_shows_no_more_is_forgotten_after_ten_minutes() -> None:
    times, _ = fed(batch(1, np.ones(4)))
    over = slurm(state="COMPLETED")
    times.update([], over, START + timedelta(minutes=1))
    assert len(times) == 1
    times.update([], over, START + timedelta(minutes=12))
    assert len(times) == 0


def test_without_a_word_from_slurm_nothing_is_forgotten() -> None:
    times, _ = fed(batch(1, np.ones(4)))
    times.update([], None, START + timedelta(days=1))
    assert len(times) == 1


def test_the_longest_unheard_jobs_go_first_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIVES_MAX", 2)
    times = StepTimes(CLUSTER)
    for number in range(3):
        at = START + timedelta(seconds=number)
        times.update([batch(1, np.ones(4), job=str(number), at=at)], None, START)
    assert sorted(job.job for job in times.jobs()) == ["1", "2"]


def test_ranks_beyond_what_a_job_may_have_are_dropped_and_counted() -> None:
    given = batch(1, np.ones(4))
    given.rank[3] = 2_000_000
    given.rank[2] = -1
    times, job = fed(given)
    assert job.ranks == 2
    assert times.dropped == 2


# --- what is invented takes little room ---------------------------------------------------------------------


def lone(job: str, rank: int, restart: int = 0, at: datetime = START) -> StepBatch:
    """One row of one rank."""
    sent = batch(1, np.ones(1), job=job, restart=restart, at=at)
    sent.rank[0] = rank
    return sent


def test_a_rank_beyond_twice_the_gpus_of_the_job_is_dropped_and_counted() -> None:
    times, job = fed(lone("4711", 63), lone("4711", 64), shown=slurm(4))
    assert (job.ranks, times.dropped) == (64, 1)


def test_of_a_job_only_three_lives_are_kept_and_an_older_one_pushes_none_out() -> None:
    times = StepTimes(CLUSTER)
    times.update([lone("9", 0, restart) for restart in (5, 3, 4, 6, 2)], None, START)
    job = times.job("9")
    assert (len(times), times.dropped) == (3, 1)
    assert job is not None
    assert job.restart == 6


@pytest.mark.heavy
def test_invented_jobs_share_a_small_room_and_push_no_real_one_out() -> None:
    times, job = fed(batch(1, np.ones(32)))
    for number in range(600):
        # Heard later than the real one, each with as many ranks as it may.
        at = START + timedelta(seconds=number)
        times.update([lone(f"x{number}", 4095 if number % 3 else 7, at=at)], slurm(), START)
    assert times.job("4711") is job
    strangers = [one for one in times.jobs() if one.job != "4711"]
    assert 1 <= len(strangers) <= 50
    assert sum(one.capacity for one in strangers) <= 4096


def test_many_small_invented_jobs_are_bounded_by_their_number() -> None:
    times, job = fed(batch(1, np.ones(32)))
    times.update([lone(f"x{number}", 0) for number in range(600)], slurm(), START)
    assert times.job("4711") is job
    assert len(times) == 51


def test_no_moment_holds_more_ranks_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANKS_TOTAL", 100)
    times = StepTimes(CLUSTER)
    most = []
    grow = JobSteps._grow

    def noted(self: JobSteps, capacity: int) -> None:
        grow(self, capacity)
        most.append(sum(one.capacity for one in times.jobs()))

    monkeypatch.setattr(JobSteps, "_grow", noted)
    times.update([lone(str(number), 39) for number in range(20)], None, START)
    assert len(most) == 20
    assert max(most) <= 100


def test_of_a_batch_of_very_many_steps_only_the_last_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    cleared = []
    monkeypatch.setattr(JobSteps, "_clear", lambda self, number: cleared.append(number))
    sent = joined([batch(step, np.ones(1)) for step in range(1000)])
    JobSteps(CLUSTER, "4711", 0, START).take(sent)
    assert len(cleared) == 128


# --- whose word counts --------------------------------------------------------------------------------------


def batch_from(
    node: str, ranks: slice, seconds: float = 0.0, step: int = 1, compute_s: float = 9.0
) -> StepBatch:
    """These ranks, reported by a sender that says they run on `node`."""
    compute = np.full(32, np.nan)
    compute[ranks] = compute_s
    sent = batch(step, compute, at=START + timedelta(seconds=seconds))
    return replace(sent, nodes=(node,), node=np.zeros(len(sent.rank), np.int32))


def test_rows_of_a_node_that_the_job_does_not_hold_do_not_count() -> None:
    times, job = fed(batch_from("gpu0099", slice(8, 16)), batch(1, np.ones(32)))
    assert values(job, 1) == [1.0] * 32
    assert times.dropped == 8
    places = job.places(slurm())
    assert {places.nodes[index] for index in places.node[8:16]} == {"gpu0001"}


def test_a_node_of_the_job_has_no_say_in_ranks_that_run_on_another() -> None:
    times, job = fed(batch(1, np.ones(32)))
    times.update([batch_from("gpu0000", slice(8, 16), 5, step=2)], slurm(), START)
    times.update([batch(2, np.ones(32))], slurm(), START)
    assert values(job, 2) == [1.0] * 32
    places = job.places(slurm())
    assert [places.nodes[index] for index in places.node[8:16]] == ["gpu0001"] * 8
    assert times.dropped == 8


def test_rank_has_moved_once_its_node_stops_reporting_it() -> None:
    times, job = fed(batch(1, np.ones(32)))
    times.update([batch_from("gpu0000", slice(8, 16), 36, step=6)], slurm(), START + timedelta(minutes=5))
    assert values(job, 6)[8:16] == [9.0] * 8
    places = job.places(slurm())
    assert [places.nodes[index] for index in places.node[8:16]] == ["gpu0000"] * 8


def test_a_row_without_a_place_takes_none_away() -> None:
    times, job = fed(batch(1, np.ones(32)))
    times.update([batch(2, np.ones(32), placed=False)], slurm(), START)
    assert job.places(slurm()).node[[0, 8, 31]].tolist() == [0, 1, 3]


def test_a_life_that_slurm_has_not_begun_is_none() -> None:
    times, _ = fed(batch(1, np.ones(32)), batch(9, np.ones(32), restart=2**31 - 1))
    assert [job.restart for job in times.jobs()] == [0]
    assert times.dropped == 32


def test_steps_from_before_slurm_showed_the_job_are_dropped_when_it_does() -> None:
    times = StepTimes(CLUSTER)
    none = slurm(job="1")
    for restart in (0, 7):
        times.update([batch(1, np.full(32, 9.0), restart=restart)], none, START)
    assert len(times) == 2
    times.update([batch(1, np.ones(32))], slurm(), START)
    job = times.job("4711")
    assert len(times) == 1
    assert job is not None
    assert values(job, 1) == [1.0] * 32


def test_a_picture_without_the_job_costs_nothing_that_was_known() -> None:
    times, job = fed(batch(1, np.ones(32)))
    times.update([batch(2, np.ones(32))], slurm(job="1"), START)
    assert job.row(2) is None
    times.update([batch(3, np.ones(32))], slurm(), START)
    assert times.job("4711") is job
    assert (job.row(1), job.row(3)) == (1, 3)


@pytest.mark.parametrize("ahead_s", [20, 3600])
def test_samples_from_a_clock_far_ahead_count_as_now(ahead_s: int) -> None:
    sent = batch(1, np.ones(4), at=START + timedelta(seconds=ahead_s))
    times = StepTimes(CLUSTER)
    times.update([sent], slurm(), START)
    job = times.job("4711")
    assert job is not None
    expected = START if ahead_s > 30 else sent.arrived_at
    assert (job.ended_at, job.heard_at) == (expected.timestamp(), expected)


def test_other_clusters_are_not_ours() -> None:
    times = StepTimes("pod2")
    times.update([batch(1, np.ones(4))], None, START)
    assert len(times) == 0


def test_first_report_of_each_newer_step_counts_as_news() -> None:
    """Any rank may report it; a later report of the same step by another rank does not count."""
    _, job = fed(batch(1, np.ones(4)))
    for step, later_s in ((2, 3), (2, 5), (3, 8)):
        sent = batch(step, np.ones(4))
        job.take(replace(sent, arrived_at=START + timedelta(seconds=5 + later_s)))
    assert job.news_at == START + timedelta(seconds=13)
    assert list(job.news_s) == [3.0, 5.0]


def test_ranks_of_a_heterogeneous_job_run_on_all_its_components() -> None:
    """Slurm gives every task of it the leader's number."""
    shown = slurm()
    whole = shown.jobs["4711"]
    first, second = ({name: whole.gpus[name] for name in half} for half in (whole.nodes[:2], whole.nodes[2:]))
    leader = msgspec.structs.replace(whole, nodes=tuple(first), gpus=first, het_job="4711", het_offset=0)
    other = msgspec.structs.replace(leader, id="4712", nodes=tuple(second), gpus=second, het_offset=1)
    ended = msgspec.structs.replace(other, id="4713", nodes=("gpu0009",), state="COMPLETED", het_offset=2)
    jobs = {one.id: one for one in (leader, other, ended)}
    parts = msgspec.structs.replace(shown, jobs=jobs)
    times, job = fed(batch(1, np.ones(32)), shown=parts)
    assert (values(job, 1), times.dropped) == ([1.0] * 32, 0)
    places = job.places(parts)
    assert [places.nodes[index] for index in places.node[::8]] == list(whole.nodes)
    unplaced = fed(batch(1, np.ones(32), placed=False), shown=parts)[1].places(parts)
    assert [unplaced.nodes[index] for index in unplaced.node[::8]] == list(whole.nodes)
