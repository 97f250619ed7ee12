"""Dumps of NCCL's flight recorder: real ones, and what a user could put in their place."""

import os
import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.detection.flight_recorder import Group, RecorderError, read
from tests.support.recorders import document, dump, entry

#: By torch 2.13 in two ranks over gloo: both call two all_reduce, rank 0 a third that rank 1 never calls.
REAL = Path(__file__).parent / "recorder_dumps"


def test_a_real_dump_of_a_rank_that_waits() -> None:
    (group,) = read((REAL / "rank_0.pickle").read_bytes()).values()
    assert (group.enqueued, group.completed, group.ranks) == (3, 2, (0, 1))
    assert group.open is not None
    assert (group.open.seq, group.open.op, group.open.sizes) == (3, "gloo:all_reduce", "[[8, 3]]")
    assert group.open.created_ns == 1795274663860730677


def test_a_real_dump_of_a_rank_that_never_came() -> None:
    for form in ("pickle", "json"):
        (group,) = read((REAL / f"rank_1.{form}").read_bytes()).values()
        assert (group.enqueued, group.completed, group.open, group.ranks) == (2, 2, None, (0, 1))


def test_both_forms_say_the_same() -> None:
    entries = [entry(1, state="completed"), entry(2), entry(5, group="7"), entry(9, is_p2p=True)]
    members = {"0": [0, 1, 2], "7": [1, 2]}
    found = read(dump(entries, members))
    assert found == read(dump(entries, members, as_json=True))
    assert found["0"].ranks == (0, 1, 2) and found["7"].open is not None and found["7"].open.seq == 5
    assert found["0"].ops == {1: "nccl:all_reduce", 2: "nccl:all_reduce"}


def test_no_members_given_and_no_entry_left() -> None:
    (group,) = read(dump([entry(3, state="completed")], {})).values()
    assert (group.ranks, group.open, group.completed) == ((), None, 3)
    assert read(dump([], {})) == {}


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_of_a_dump_is_ever_carried_out(tmp_path: Path, protocol: int) -> None:
    dump_document = document([entry(1)], {}) | {"entries": [Evil(tmp_path / "was-run")]}
    with pytest.raises(RecorderError):
        read(pickle.dumps(dump_document, protocol=protocol))
    assert not (tmp_path / "was-run").exists()


def doubled(times: int) -> Any:
    """A list that holds the last one twice, and so on: small to write, endless to walk."""
    found: Any = []
    for _ in range(times):
        found = [found, found]
    return found


def nested_key(times: int) -> bytes:
    key = b")" + b"".join(b"q%c0h%c\x86" % (n, n) for n in range(times))
    return b"\x80\x02}" + key + b"Ns."


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{", b"{}", b"[]", b"\x80\x02.", b"\x80\x02}.", b"N.", b"\x80\x02K\x01K\x02s.",
        b"\x80\x02h\x00.", b"\x80\x02a.", b"\x80\x02u.", b"cos\nsystem\n.", b"\x80\x02]q\x00(h\x00e.",
        b"garbage",         nested_key(60),
        b'{"entries": 4}', b"\x80\x02J\xff\xff\xff\xff.", b"\x80\x04\x95\xff\xff\xff\xff\xff\xff\xff\x7f.",
    ],
)  # fmt: skip
def test_invalid_dump_is_reported(data: bytes) -> None:
    with pytest.raises(RecorderError):
        read(data)


def test_values_of_other_kinds_than_they_should_have_become_nothing() -> None:
    twice = doubled(60)
    wild = entry(1) | {
        "profiling_name": twice, "state": twice, "input_sizes": twice, "process_group": [twice, twice],
        "pg_id": 10**4000, "time_created_ns": "x",
    }  # fmt: skip
    dump_document = document([wild, 5, "x", entry(2) | {"collective_seq_id": 10**4000}], {}) | {
        "pg_config": twice
    }
    (one, other) = read(pickle.dumps(dump_document, protocol=2)).values()
    assert one.open is not None and (one.open.op, one.open.created_ns) == ("", 0)
    assert other == Group(enqueued=None, completed=-1, ops={-1: "nccl:all_reduce"}, ranks=())


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    for one in (data, b"\x80\x02" + data, (REAL / "rank_0.pickle").read_bytes()[: len(data) * 7] + data):
        try:
            read(one)
        except RecorderError:
            continue
