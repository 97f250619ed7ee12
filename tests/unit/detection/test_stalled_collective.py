"""Which collective is stalled, and who never arrived: over dumps that tests make."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from healer.detection.flight_recorder import Group, Stall, describe_stall, find_stall, read
from tests.support.recorders import dump, entry

REAL = Path(__file__).parent / "recorder_dumps"
ALL = {"0": range(4)}


def ranks(
    entries_of: Mapping[int, Sequence[Mapping[str, Any]]], members: Mapping[str, Sequence[int]] = ALL
) -> dict[int, dict[str, Group]]:
    return {rank: read(dump(entries, members)) for rank, entries in entries_of.items()}


def done(*seqs: int, **fields: Any) -> list[dict[str, Any]]:
    return [entry(seq, state="completed", **fields) for seq in seqs]


def found(
    entries_of: Mapping[int, Sequence[Mapping[str, Any]]], members: Mapping[str, Sequence[int]] = ALL
) -> Stall:
    stand = find_stall(ranks(entries_of, members))
    assert stand is not None
    return stand


def test_two_real_ranks() -> None:
    stand = find_stall({rank: read((REAL / f"rank_{rank}.pickle").read_bytes()) for rank in (0, 1)})
    assert stand is not None and stand.whole
    assert (stand.seq, stand.arrived, stand.missing, stand.unheard) == (3, (0,), (1,), ())
    assert (
        describe_stall(stand, {1: "gpu0002"})
        == "gloo:all_reduce 3 of group 0 is stalled: rank 1 (gpu0002) never arrived, 1 wait"
    )


def test_one_rank_never_came() -> None:
    stand = found({rank: [*done(1, 2), *([entry(3)] if rank != 2 else [])] for rank in range(4)})
    assert (stand.seq, stand.arrived, stand.missing, stand.whole) == (3, (0, 1, 3), (2,), True)


def test_all_came_and_it_does_not_end() -> None:
    stand = found({rank: [*done(1), entry(2)] for rank in range(4)})
    assert (stand.missing, stand.arrived, stand.whole) == ((), (0, 1, 2, 3), True)
    assert (
        describe_stall(stand, {})
        == "nccl:all_reduce 2 of group 0 is stalled: all ranks arrived, and it does not finish"
    )


def test_a_rank_that_ended_it_already_came_too() -> None:
    entries_of = {rank: [*done(1), entry(2)] for rank in range(4)} | {3: done(1, 2)}
    assert found(entries_of).arrived == (0, 1, 2, 3)


def test_of_a_rank_without_a_dump_nothing_is_known() -> None:
    stand = found({rank: [*done(1), entry(2)] for rank in (0, 1, 3)})
    assert (stand.missing, stand.unheard, stand.whole) == ((), (2,), False)
    assert describe_stall(stand, {}).endswith("3 ranks arrived, and it does not finish, 1 did not report")


def test_without_members_the_group_is_incomplete() -> None:
    stand = found({rank: [entry(1)] for rank in range(4)}, {})
    assert (stand.arrived, stand.whole) == ((0, 1, 2, 3), False)


def test_no_rank_waits() -> None:
    assert find_stall(ranks({rank: done(1, 2) for rank in range(4)})) is None
    assert find_stall({}) is None


def test_other_calls_under_the_same_number_are_the_programs_own_error() -> None:
    entries_of = {rank: [*done(1), entry(2)] for rank in range(4)} | {
        3: [*done(1), entry(2, "nccl:all_gather")]
    }
    stand = found(entries_of)
    assert stand.differs == {"nccl:all_gather": (3,)}
    assert "rank 3 called nccl:all_gather instead" in describe_stall(stand, {})


def test_the_group_whose_missing_rank_waits_nowhere_is_the_root() -> None:
    """Rank 1 never comes to its tensor group; rank 0 waits for it there, 2 and 3 in the world's for both."""
    members = {"0": range(4), "1": [0, 1], "2": [2, 3]}
    entries_of = {
        0: [*done(1), entry(1, group="1", created_ns=7)],
        1: done(1),
        2: [*done(1), *done(1, group="2"), entry(2, created_ns=5)],
        3: [*done(1), *done(1, group="2"), entry(2, created_ns=6)],
    }
    entries_of[1] = [*entries_of[1], *done(0, group="1")]
    stand = found(entries_of, members)
    assert (stand.group, stand.missing) == ("1", (1,))


def test_two_groups_waiting_for_each_other_are_traced_to_the_start() -> None:
    members = {"1": [0, 1], "2": [0, 1]}
    entries_of = {
        0: [entry(2, group="1", created_ns=5), *done(1, group="2")],
        1: [*done(1, group="1"), entry(2, group="2", created_ns=9)],
    }
    assert found(entries_of, members).group == "1"


@given(st.dictionaries(st.integers(0, 5), st.tuples(st.integers(0, 4), st.booleans()), max_size=6))
def test_ranks_without_a_dump_or_with_arrival_are_not_called_missing(
    progress: Mapping[int, tuple[int, bool]],
) -> None:
    members = {"0": range(6)}
    made = {
        rank: [*done(*range(1, last + 1)), *([entry(last + 1)] if waits else [])]
        for rank, (last, waits) in progress.items()
    }
    stand = find_stall(ranks(made, members))
    reached = {rank: last + waits for rank, (last, waits) in progress.items()}
    assert (stand is None) == (not any(waits for _, waits in progress.values()))
    if stand is not None:
        assert set(stand.missing) <= {rank for rank, seq in reached.items() if 0 < seq < stand.seq}
        assert all(reached[rank] >= stand.seq for rank in stand.arrived)
        assert sorted((*stand.arrived, *stand.missing, *stand.unheard)) == list(range(6))
