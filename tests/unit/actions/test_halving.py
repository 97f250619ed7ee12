"""By halves to the slow node: whatever the nodes, the right one is named, in few tests."""

from collections.abc import Callable, Collection
from math import ceil, log2

import numpy as np
import pytest

from healer.actions.group_job import LEAST, Answer, Found, Wanted, search
from tests.support.loop import name

FULL = 60.0


def nodes(count: int) -> list[str]:
    return [name(one) for one in range(1, count + 1)]


def groups(
    count: int,
    answer_of: Callable[[Collection[str]], Answer],
    *,
    named: Collection[str] = (),
    standard: dict[str, float] | None = None,
) -> tuple[Found, list[tuple[str, ...]]]:
    """The result of the search over these answers of groups, and the groups that it asked for."""
    answers: dict[tuple[str, ...], Answer] = {}
    asked = []
    while True:
        found = search(nodes(count), tuple(named), answers, standard)
        if isinstance(found, Found):
            return found, asked
        assert isinstance(found, Wanted) and len(set(found.nodes)) == len(found.nodes) >= 2
        key = tuple(sorted(found.nodes))
        assert key not in answers, "no group is tested twice"
        answers[key] = answer_of(found.nodes)
        asked.append(found.nodes)


def slow(*bad: str, share: float = 0.8, noise: float = 0.0, seed: int = 0) -> Callable[..., Answer]:
    random = np.random.default_rng(seed)

    def answer_of(group: Collection[str]) -> Answer:
        own = [FULL * (share if one in bad else 1) * (1 + noise * random.standard_normal()) for one in group]
        return Answer(figures={"gemm_tflop_per_s": min(own)})

    return answer_of


@pytest.mark.parametrize("count", [4, 5, 6, 7, 8, 13, 16, 31, 64, 256])
def test_one_slow_node_is_named_at_any_position(count: int) -> None:
    for bad in nodes(count)[:: max(1, count // 9)]:
        found, asked = groups(count, slow(bad))
        assert list(found.slow) == [bad] and not found.between and not found.open
        assert len(asked) <= 2 * ceil(log2(count))
        assert "80% of 60" in found.slow[bad]


@pytest.mark.parametrize("count", [4, 9, 32, 100])
def test_one_percent_noise_names_no_node_and_hides_no_node(count: int) -> None:
    for seed in range(10):
        clean, asked = groups(count, slow(noise=0.01, seed=seed))
        assert clean.clean and len(asked) == 3
        found, _ = groups(count, slow(name(count), noise=0.01, seed=seed))
        assert list(found.slow) == [name(count)]


def test_two_slow_nodes_of_one_half_are_both_named() -> None:
    found, _ = groups(16, slow(name(2), name(7)))
    assert set(found.slow) == {name(2), name(7)} and not found.open


def test_one_in_each_half_takes_a_good_nodes_figures() -> None:
    """Each half is as slow as the other: only the speed of a good node decides."""
    answer_of = slow(name(2), name(15))
    assert groups(16, answer_of)[0].clean
    found, _ = groups(16, answer_of, standard={"gemm_tflop_per_s": FULL})
    assert set(found.slow) == {name(2), name(15)}


def test_a_suspect_is_looked_at_first() -> None:
    plain, many = groups(64, slow(name(40)))
    found, few = groups(64, slow(name(40)), named=[name(40)])
    assert list(plain.slow) == list(found.slow) == [name(40)]
    assert len(few) == 6 < len(many) == 12


def test_two_nodes_that_are_well_with_others_and_not_together_are_a_way() -> None:
    def answer_of(group: Collection[str]) -> Answer:
        return Answer(
            figures={"nccl_group_busbw_gb_per_s": 10.0 if {name(5), name(6)} <= set(group) else FULL}
        )

    found, _ = groups(8, answer_of)
    assert found.between == (((name(5),), (name(6),)),) and not found.slow and not found.open


def test_halves_well_apart_but_not_together_are_reported_as_that() -> None:
    def answer_of(group: Collection[str]) -> Answer:
        both = {name(1), name(8)} & set(group)
        return Answer(figures={"nccl_group_busbw_gb_per_s": 10.0 if len(both) == 2 else FULL})

    found, asked = groups(8, answer_of)
    assert found.between == ((tuple(nodes(8)[:4]), tuple(nodes(8)[4:])),) and len(asked) == 3


def test_a_larger_group_is_slower_by_itself_and_no_nodes_fault() -> None:
    """As collectives are: the smaller half is filled up, and a smaller group measures no larger one."""
    bad = name(3)

    def answer_of(group: Collection[str]) -> Answer:
        own = FULL / (1 + 0.04 * log2(len(group))) * (0.7 if bad in group else 1)
        return Answer(figures={"nccl_group_busbw_gb_per_s": own})

    for count in (8, 13, 32):
        assert list(groups(count, answer_of)[0].slow) == [bad]


def test_failed_group_counts_as_slow_regardless_of_figures() -> None:
    def answer_of(group: Collection[str]) -> Answer:
        return Answer(failed="nccl_pair: wrong sums") if name(4) in group else Answer(figures={"x_per_s": 1})

    assert groups(8, answer_of)[0].slow == {name(4): "nccl_pair: wrong sums"}


def test_no_node_is_named_slow_when_all_are_below_the_standard() -> None:
    found, _ = groups(4, slow(*nodes(4)), standard={"gemm_tflop_per_s": FULL})
    assert not found.slow and set(found.open) == {(name(1), name(2)), (name(3), name(4))}


def test_fewer_than_four_are_not_searched() -> None:
    with pytest.raises(ValueError, match="too few"):
        search(nodes(LEAST - 1), (), {})
