"""Step times and checkpoints: the contract's forms, and one bad entry that loses no good one."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.model import ObservationKind, Topology
from healer.model.packed import pack_steps, unpack_steps
from healer.observations.picture import Picture
from healer.recordings.recorder import steps_body
from healer.signals.step_times import Steps, step_batches
from healer.signals.wire import BadBody, checkpoint_observations
from tests.support.measuring import NOW, known

FULL = {
    "time": "2026-11-20T02:59:59Z",
    "step": 120,
    "rank": 3,
    "node": "gpu0001",
    "gpu": 3,
    "step_s": 1.93,
    "compute_s": 1.41,
    "comm_s": 0.46,
    "data_s": 0.06,
    "work": 8192,
    "stage": 0,
    "loss": 2.31,
}


def take(body: Any) -> Steps:
    return step_batches(json.dumps(body).encode(), known, NOW, cluster="pod1")


def test_the_form_of_the_contract() -> None:
    taken = take({"cluster": "pod1", "job": "4711", "restart": 2, "samples": [FULL, {"step_s": 2.0}]})
    (batch,) = taken.batches
    assert (taken.accepted, taken.rejected) == (2, ())
    assert (batch.cluster, batch.job, batch.restart, batch.arrived_at) == ("pod1", "4711", 2, NOW)
    assert batch.nodes == ("gpu0001",)
    assert (batch.node.tolist(), batch.gpu.tolist(), batch.stage.tolist()) == ([0, -1], [3, -1], [0, -1])
    assert batch.rank.tolist() == [3, 0]
    second = int(NOW.timestamp())
    assert (batch.step.tolist(), batch.at.tolist()) == ([120, second], [second - 1, second])
    assert batch.step_s.tolist() == [1.93, 2.0]
    for name, value in (
        ("compute_s", 1.41),
        ("comm_s", 0.46),
        ("data_s", 0.06),
        ("work", 8192),
        ("loss", 2.31),
    ):
        column = getattr(batch, name)
        assert column[0] == value
        assert np.isnan(column[1])
    assert np.isnan(batch.grad_norm).all()


def test_stalled_rank_is_distinguished_from_finished_steps() -> None:
    """Recorded and read again it is the same, and so it is from the store."""
    word = {"time": FULL["time"], "step": 121, "rank": 3, "node": "gpu0001", "gpu": 3}
    word |= {"open_s": 12.5, "doing": "collective"}
    taken = take({"job": "4711", "samples": [word, FULL]})
    ended, stalled = taken.batches
    assert taken.accepted == 2 and ended.doing is None and ended.step.tolist() == [120]
    assert stalled.doing is not None
    assert (stalled.doing.tolist(), stalled.step_s.tolist(), stalled.step.tolist()) == ([1], [12.5], [121])
    assert stalled.nodes[stalled.node[0]] == "gpu0001"
    (again,) = step_batches(msgspec.json.encode(steps_body(stalled)), known, NOW, cluster="pod1").batches
    stored = unpack_steps(pack_steps(stalled), cluster="pod1", job="4711", arrived_at=NOW)
    for one in (again, stored):
        assert one.doing is not None and one.doing.tolist() == [1] and one.doing.dtype == np.int8
        assert (one.step_s.tolist(), one.step.tolist(), one.at.tolist()) == (
            [12.5],
            [121],
            stalled.at.tolist(),
        )
    assert unpack_steps(pack_steps(ended), cluster="pod1", job="4711", arrived_at=NOW).doing is None


def test_a_list_of_bodies_is_a_batch_each() -> None:
    taken = take(
        [{"job": 1, "samples": [{"step_s": 1, "step": 5}]}, {"job": "2_3", "samples": [{"step_s": 1}]}]
    )
    assert [batch.job for batch in taken.batches] == ["1", "2_3"]


@pytest.mark.parametrize(
    ("sample", "reason"),
    [
        ({}, "step_s"),
        ({"step_s": "1.9"}, "step_s: Expected `float"),
        ({"open_s": 3}, "open_s: requires doing and step"),
        ({"open_s": 3, "step": 1}, "open_s: requires doing and step"),
        ({"open_s": 3, "step": 1, "doing": "sleep"}, "doing: "),
        ({"open_s": -1, "step": 1, "doing": "compute"}, "open_s: must be between 0 s and one day"),
        ({"open_s": 3, "step_s": 3, "step": 1, "doing": "compute"}, "open_s: send either open_s"),
        ({"step_s": 3, "doing": "compute"}, "doing: only goes with open_s"),
        ({"step_s": 0}, "step_s: must be greater than 0"),
        ({"step_s": 1e9}, "step_s: must be greater than 0 s and at most one day"),
        ({"step_s": 1, "compute_s": -1}, "compute_s: must be between 0 s and one day"),
        ({"step_s": 1, "work": 0}, "work: must be greater than 0"),
        ({"step_s": 1, "node": "cpu1"}, "node: cpu1 is not a node of cluster pod1"),
        ({"step_s": 1, "gpu": 64}, "gpu: "),
        ({"step_s": 1, "rank": -1}, "rank: "),
        ({"step_s": 1, "rnak": 1}, "rnak"),
        ({"step_s": 1, "time": "2026-11-20T01:00:00Z"}, "time: older than 15 min"),
        ({"step_s": 1, "time": "2026-11-20T03:00:00"}, "time: has no time zone"),
        (5, "object"),
    ],
)
def test_one_bad_sample_is_named_and_loses_no_other(sample: Any, reason: str) -> None:
    good = {"step_s": 1, "rank": 7}
    taken = take([{"job": 1, "samples": [good]}, {"job": 1, "samples": [good, sample, good]}])
    assert [len(batch.rank) for batch in taken.batches] == [1, 2]
    ((index, why),) = [(one.index, one.reason) for one in taken.rejected]
    assert index == 2  # counted through all bodies
    assert reason in why
    assert taken.accepted == 3


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (7, "expected an object"),
        ({"samples": []}, "job"),
        ({"job": "a b", "samples": []}, "job: 'a b' is not a Slurm job ID"),
        ({"job": "1", "samples": {}}, "expected an object with `job` and a list `samples`"),
        ({"job": "1", "restart": -1, "samples": []}, "restart"),
        ([{"job": "1", "samples": []}, 5], r"\[1\]: expected an object"),
    ],
)
def test_envelope_around_the_samples_must_be_valid(body: Any, reason: str) -> None:
    with pytest.raises(BadBody, match=reason):
        take(body)


def test_numbers_that_json_does_not_have_cost_their_own_row_or_none() -> None:
    """Python's json writes a bare NaN or Infinity, and a loss becomes one when a training diverges."""
    good, nan, infinite = {"step_s": 1, "rank": 7}, float("nan"), float("inf")
    news = [good | {"loss": nan}, good | {"grad_norm": infinite}, good | {"loss": -infinite}]
    bad = [good | {"compute_s": nan}, {"step_s": infinite}, good | {"step": nan}]
    taken = take([{"job": 1, "samples": [*news, good]}, {"job": 1, "samples": [*bad, good]}])
    first, second = taken.batches
    assert (np.isinf(first.loss).tolist(), np.isinf(first.grad_norm).tolist()) == (
        [True, False, True, False],
        [False, True, False, False],
    )
    assert len(second.rank) == 1 and taken.accepted == 5
    assert [(one.index, one.reason.partition(":")[0]) for one in taken.rejected] == [
        (4, "compute_s"), (5, "step_s"), (6, "step"),
    ]  # fmt: skip
    half = rb'{"cluster": "\ud800", "job": 1, "samples": [{"step_s": NaN}]}'
    for raw in (b'{"job": 1, "samples": [NaN', b'{"job": NaN, "samples": []}', b"NaN", half):
        with pytest.raises(BadBody):
            step_batches(raw, known, NOW, cluster="pod1")


def test_all_wrong_samples_are_counted_and_a_few_listed() -> None:
    wrong = [{"step_s": -1}] * 700
    for samples in ([*wrong, *wrong, {"step_s": 1}], [*wrong, *wrong[1:], {"step_s": "x"}, {"step_s": 1}]):
        taken = take({"job": "1", "samples": samples})
        assert len(taken.rejected) == 1000
        assert (taken.rejected_more, taken.accepted) == (400, 1)


def test_a_request_of_far_too_much_is_refused_whole() -> None:
    half = b'{"job":"1","samples":[' + b",".join([b'{"step_s":1}'] * 100_001) + b"]}"
    for raw, reason in (
        (b"[" + half + b"," + half + b"]", "200002 entries; at most 200000"),
        (b"[" + b",".join([b'{"job":"1","samples":[]}'] * 10_001) + b"]", "the body has 10001 objects"),
        (b'{"job":"1","samples":[' + b"1," * 4_000_001 + b"1]}", "more than 4000000 values"),
        (b"[" + b"{}," * 400_000 + b"1]", "more than 210000 objects"),
    ):
        with pytest.raises(BadBody, match=reason):
            step_batches(raw, known, NOW, cluster="pod1")


def test_a_time_that_has_no_utc_is_rejected_alone() -> None:
    odd = {"step_s": 1, "time": "0001-01-01T00:00:00+14:00"}
    taken = take({"job": "1", "samples": [odd, {"step_s": 1}]})
    assert (taken.rejected[0].reason[:21], taken.accepted) == ("time: not an RFC 3339", 1)
    taken = checkpoint_observations([CHECKPOINT | {"time": odd["time"]}, CHECKPOINT], NOW, cluster="pod1")
    assert ([one.index for one in taken.rejected], len(taken.observations)) == ([0], 1)


@pytest.mark.parametrize("ahead_s", [0.0, 7.0, 3600.0])
def test_steps_of_a_rank_whose_clock_is_ahead_keep_their_distances(ahead_s: float) -> None:
    """All at the time of arrival, the job would have no pace, and no hang of it would be seen."""
    samples = [
        {"rank": rank, "step": at, "step_s": 1.0,
         "time": (NOW + timedelta(seconds=at - 4 + ahead_s * rank)).isoformat()}
        for at in range(5) for rank in (0, 1)
    ]  # fmt: skip
    (batch,) = take({"job": "1", "samples": [*samples, {"rank": 1, "step_s": 1.0}]}).batches
    by_rank = [(batch.at[batch.rank == rank] - NOW.timestamp()).tolist() for rank in (0, 1)]
    assert by_rank == [[-4, -3, -2, -1, 0], [-4, -3, -2, -1, 0, 0]]


def test_one_time_of_a_far_future_moves_no_other() -> None:
    times = (NOW - timedelta(seconds=9), datetime.max.replace(tzinfo=UTC), NOW)
    samples = [{"step_s": 1.0, "time": at.isoformat()} for at in times]
    (batch,) = take({"job": "1", "samples": samples}).batches
    assert (batch.at - NOW.timestamp()).tolist() == [-9, 0, 0]


def test_a_body_that_is_no_json() -> None:
    for raw in (b"", b"{", b"\xff", b"[" * 5000):
        with pytest.raises(BadBody):
            step_batches(raw, known, NOW, cluster="pod1")


@given(
    st.recursive(
        st.none() | st.floats() | st.integers() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["job", "samples", "step_s", "rank", "node", "time"]), inner, max_size=4
            )
        ),
        max_leaves=10,
    )
)
def test_any_json_gets_an_answer(body: Any) -> None:
    try:
        taken = take(body)
    except BadBody:
        return
    assert taken.accepted == sum(len(batch.rank) for batch in taken.batches)


# --- checkpoints ---

CHECKPOINT = {
    "cluster": "pod1",
    "job": "4711",
    "restart": 1,
    "step": 1000,
    "path": "/ckpt/1000",
    "durable": True,
}


def test_a_checkpoint_is_an_observation_of_its_job() -> None:
    taken = checkpoint_observations(CHECKPOINT | {"time": "2026-11-20T02:50:00Z"}, NOW, cluster="other")
    (seen,) = taken.observations
    assert seen.kind is ObservationKind.checkpoint
    assert (seen.component.cluster, seen.component.job, seen.component.node) == ("pod1", "4711", None)
    assert seen.data == {"restart": 1, "step": 1000, "path": "/ckpt/1000", "durable": True}
    assert (seen.event_at, seen.arrived_at) == (datetime(2026, 11, 20, 2, 50, tzinfo=UTC), NOW)


def test_the_same_checkpoint_has_the_same_digest_and_becoming_durable_is_news() -> None:
    later = NOW + timedelta(hours=1)
    first = checkpoint_observations(CHECKPOINT, NOW, cluster="pod1").observations[0]
    again = checkpoint_observations([CHECKPOINT | {"job": 4711}], later, cluster="pod1").observations[0]
    assert again.digest == first.digest
    for change in ({"durable": False}, {"step": 1001}, {"restart": 2}, {"path": "/b"}, {"cluster": "pod2"}):
        other = checkpoint_observations(CHECKPOINT | change, NOW, cluster="pod1").observations[0]
        assert other.digest != first.digest


def test_a_bad_checkpoint_loses_no_other() -> None:
    bad = [
        {"job": "1"},
        CHECKPOINT | {"durable": "yes"},
        CHECKPOINT | {"path": ""},
        CHECKPOINT | {"job": "a b"},
        7,
    ]
    taken = checkpoint_observations([*bad, CHECKPOINT], NOW, cluster="pod1")
    assert [one.index for one in taken.rejected] == [0, 1, 2, 3, 4]
    assert len(taken.observations) == 1
    with pytest.raises(BadBody):
        checkpoint_observations("text", NOW, cluster="pod1")


def test_a_checkpoint_teaches_the_picture_of_nodes_nothing() -> None:
    picture = Picture("pod1", watching_since=NOW)
    seen = checkpoint_observations(CHECKPOINT, NOW, cluster="pod1").observations
    assert picture.update(seen, Topology()) == []
    assert picture.nodes == {}
