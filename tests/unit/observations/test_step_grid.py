"""Step times as matrices: what is compared with what, and what stays unknown."""

import numpy as np
import pytest

from healer.model.telemetry import StepBatch
from healer.observations.step_grid import STEPS_KEPT, deviation, grid, slowest
from tests.support.console_sample import NOW


def batch(
    rows: list[dict], *, restart: int = 0, nodes: tuple[str, ...] = ("n0", "n1", "n2", "n3")
) -> StepBatch:
    def column(name: str, kind: type, none: float) -> np.ndarray:
        return np.array([row.get(name, none) for row in rows], kind)

    return StepBatch(
        cluster="c", job="1", restart=restart, arrived_at=NOW, nodes=nodes,
        rank=column("rank", np.int32, 0), step=column("step", np.int64, 0),
        at=column("at", np.float64, np.nan), node=column("node", np.int32, -1),
        gpu=column("gpu", np.int32, -1), stage=column("stage", np.int32, -1),
        **{name: column(name, np.float64, np.nan) for name in
           ("step_s", "compute_s", "comm_s", "data_s", "work", "loss", "grad_norm")},
    )  # fmt: skip


def of_ranks(compute: dict[int, float], step: int = 1, **fields: float) -> list[dict]:
    return [{"rank": rank, "step": step, "compute_s": value, **fields} for rank, value in compute.items()]


def test_no_steps_give_no_grid() -> None:
    assert grid([]) is None
    assert grid([batch([])]) is None


def test_a_rank_is_compared_with_its_own_stage() -> None:
    samples = [(1, 0), (1, 0), (1.5, 0), (3, 1), (3, 1), (3, 1)]
    rows = [
        {"rank": rank, "step": 1, "compute_s": seconds, "stage": stage}
        for rank, (seconds, stage) in enumerate(samples)
    ]
    made = grid([batch(rows)])
    assert made is not None
    assert deviation(made)[:, 0].tolist() == pytest.approx([0, 0, 0.5, 0, 0, 0])


def test_twice_the_work_may_take_twice_as_long() -> None:
    rows = [
        {"rank": rank, "step": 1, "compute_s": seconds, "work": work}
        for rank, (seconds, work) in enumerate([(1, 10), (2, 20), (1, 10), (1.2, 10)])
    ]
    made = grid([batch(rows)])
    assert made is not None
    assert deviation(made)[:, 0].tolist() == pytest.approx([0, 0, 0, 0.2])


def test_work_missing_from_one_rank_is_not_used() -> None:
    rows = [
        {"rank": rank, "step": 1, "compute_s": 1.0, "work": work} for rank, work in enumerate([10, 10, 40])
    ]
    rows.append({"rank": 3, "step": 1, "compute_s": 1.0})
    made = grid([batch(rows)])
    assert made is not None
    assert deviation(made)[:, 0].tolist() == pytest.approx([0, 0, 0, 0])


def test_whole_steps_alone_are_compared_over_time() -> None:
    rows = [
        {"rank": rank, "step": step, "step_s": 8.0 if step == 3 else 4.0}
        for rank in range(2)
        for step in range(5)
    ]
    made = grid([batch(rows)])
    assert made is not None and not made.has_compute
    assert deviation(made)[0].tolist() == pytest.approx([0, 0, 0, 1, 0])


def test_missing_values_stay_unknown() -> None:
    made = grid([batch([*of_ranks({0: 1, 1: 1, 2: 1}, step=1), *of_ranks({0: 1, 2: 1}, step=2)])])
    assert made is not None
    assert np.isnan(deviation(made)[1]).tolist() == [False, True]


def test_only_the_latest_life_and_the_last_steps_are_kept() -> None:
    old = batch(of_ranks({0: 9.0}, step=10_000))
    new = [batch(of_ranks({0: 1.0, 1: 1.0}, step=step), restart=1) for step in range(STEPS_KEPT + 50)]
    made = grid([old, *new])
    assert made is not None
    assert (made.restart, made.step[0], made.step[-1]) == (1, 50, STEPS_KEPT + 49)


def test_a_repeat_is_the_later_word() -> None:
    made = grid([batch(of_ranks({0: 1.0})), batch(of_ranks({0: 2.0}))])
    assert made is not None
    assert made.compute_s.tolist() == [[2.0]]


def test_nodes_of_several_senders_are_one_list() -> None:
    first = batch([{"rank": 0, "step": 1, "compute_s": 1.0, "node": 1}], nodes=("x", "y"))
    second = batch([{"rank": 1, "step": 1, "compute_s": 1.0, "node": 0}], nodes=("y",))
    made = grid([first, second])
    assert made is not None
    assert [made.nodes[index] for index in made.node] == ["y", "y"]


def test_ranks_without_a_place_are_laid_over_slurms_nodes() -> None:
    rows = of_ranks(dict.fromkeys(range(4), 1.0))
    made = grid([batch(rows, nodes=())], slurm_nodes=("a", "b"))
    assert made is not None and made.placed_by_order
    assert [made.nodes[index] for index in made.node] == ["a", "a", "b", "b"]
    odd = grid([batch(rows, nodes=())], slurm_nodes=("a", "b", "c"))
    assert odd is not None and not odd.placed_by_order and odd.node.tolist() == [-1] * 4


def test_the_slowest_come_first_and_need_three_steps() -> None:
    rows = [
        row for step in range(10) for row in of_ranks({0: 1.0, 1: 1.0, 2: 1.2, 3: 1.0}, step=step, node=1)
    ]
    rows += [row for step in range(2) for row in of_ranks({4: 9.0}, step=step)]
    made = grid([batch(rows)])
    assert made is not None
    found = slowest(made, deviation(made))
    assert [one.rank for one in found] == [2, 0, 1, 3]
    assert (found[0].node, found[0].slow_steps) == ("n1", 10)
    assert found[0].slower == pytest.approx(0.2)


def test_a_job_that_went_back_to_a_checkpoint_is_shown_as_it_is_now() -> None:
    """A node left it, and its launcher began again from step 100 on the other one."""

    def made_by(ranks: int, first: int, last: int, begun: float) -> list[StepBatch]:
        return [
            batch(of_ranks(dict.fromkeys(range(ranks), 1.0), step=step, at=begun + step - first, node=0))
            for step in range(first, last)
        ]

    gone = [
        batch([{"rank": 2, "step": step, "compute_s": 9.0, "at": float(step), "node": 1}])
        for step in range(300)
    ]
    made = grid([*made_by(2, 0, 300, 0.0), *gone, *made_by(2, 100, 130, 400.0)])
    assert made is not None
    assert (made.step[0], made.step[-1], made.rank.tolist()) == (100, 129, [0, 1])
    assert made.at.tolist() == [400.0 + step for step in range(30)]
    assert [one.rank for one in slowest(made, deviation(made))] == [0, 1]
