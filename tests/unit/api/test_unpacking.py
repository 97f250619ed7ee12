"""Packed bodies: gzip and zstd, by one function for every route, bounded before anything is unpacked."""

import gzip
import json
import tracemalloc
from collections.abc import Callable

import cramjam
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.datastructures import Headers

from healer.api.problems import Problem
from healer.api.request_preamble import MEMBERS_MAX, packing_of, unpacked
from tests.support.api import Api

Served = tuple[Api, httpx.Client]
MB = 2**20


def zstd(body: bytes) -> bytes:
    return bytes(cramjam.zstd.compress(body))


PACK: dict[str, Callable[[bytes], bytes]] = {"gzip": gzip.compress, "zstd": zstd}
each_packing = pytest.mark.parametrize("packing", ["gzip", "zstd"])


def refused(raw: bytes, encoding: str, limit: int) -> tuple[int, str]:
    with pytest.raises(Problem) as caught:
        unpacked(raw, encoding, limit)
    return caught.value.status, caught.value.detail


@each_packing
def test_compressed_bodies_are_unpacked(packing: str) -> None:
    pack = PACK[packing]
    assert unpacked(pack(b"one"), packing, 3) == b"one"
    assert unpacked(pack(b"one") + pack(b"") + pack(b"two"), packing, 6) == b"onetwo"
    assert unpacked(b"plain", "identity", 5) == b"plain"


@each_packing
def test_the_bound_is_exact(packing: str) -> None:
    pack = PACK[packing]
    assert refused(pack(b"four"), packing, 3)[0] == 413
    assert refused(pack(b"two") + pack(b"s"), packing, 3)[0] == 413
    assert refused(b"four", "identity", 3)[0] == 413


@each_packing
def test_damaged_compressed_body_is_answered_with_400(packing: str) -> None:
    good = PACK[packing](b"a body")
    for raw in (b"", b"x", good[:-1], good + b"x", good[1:], good + good[:9]):
        status, why = refused(raw, packing, 100)
        assert (status, packing in why) == (400, True), raw


@each_packing
def test_a_bomb_takes_no_more_memory_than_its_bound(packing: str) -> None:
    """16 GiB (zstd) or 1 GiB (gzip) in a megabyte, in many members."""
    pack = PACK[packing]
    bomb = pack(bytes(MB)) * (16_384 if packing == "zstd" else 900)
    assert len(bomb) < 2 * MB
    tracemalloc.start()
    try:
        assert refused(bomb, packing, 8 * MB)[0] == 413
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 20 * MB


def test_many_members_are_refused_before_they_cost_anything() -> None:
    assert unpacked(gzip.compress(b"") * MEMBERS_MAX, "gzip", 10) == b""
    assert refused(gzip.compress(b"") * (MEMBERS_MAX + 1), "gzip", 10)[0] == 400


def test_a_frame_that_wants_a_huge_window_is_refused() -> None:
    """A header of a few bytes may ask for 2 GiB: magic number, no flags, the window's exponent, no block."""
    assert unpacked(b"\x28\xb5\x2f\xfd\x00" + bytes([17 << 3]) + b"\x01\0\0", "zstd", 10) == b""  # 128 MiB
    assert refused(b"\x28\xb5\x2f\xfd\x00" + bytes([21 << 3]) + b"\x01\0\0", "zstd", 10)[0] == 400


@pytest.mark.parametrize(
    ("lines", "means"),
    [
        ([], "identity"),
        ([""], "identity"),
        (["Identity"], "identity"),
        ([" GZIP "], "gzip"),
        (["x-gzip"], "gzip"),
        (["zstd"], "zstd"),
        (["gzip, zstd"], "gzip, zstd"),
        (["gzip", "zstd"], "gzip, zstd"),
    ],
)
def test_the_header_is_read_whole(lines: list[str], means: str) -> None:
    assert packing_of(Headers(raw=[(b"content-encoding", one.encode()) for one in lines])) == means


@pytest.mark.parametrize("named", ["br", "gzip, zstd", "gzip, gzip", "deflate"])
def test_another_packing_or_a_pack_in_a_pack_is_415_by_name(named: str) -> None:
    status, why = refused(b"x", named, 10)
    assert (status, named in why) == (415, True)


@given(raw=st.binary(max_size=400), packing=st.sampled_from(["gzip", "zstd"]), cut=st.integers(0, 60))
def test_nothing_but_a_problem_comes_of_any_bytes(raw: bytes, packing: str, cut: int) -> None:
    for body in (raw, PACK[packing](raw)[:cut], PACK[packing](raw) + raw[:cut]):
        try:
            assert len(unpacked(body, packing, 300)) <= 300
        except Problem as problem:
            assert problem.status in {400, 413}


@each_packing
def test_acting_routes_take_packed_bodies_too(served: Served, packing: str) -> None:
    api, client = served
    headers = {**api.headers("operator"), "Content-Type": "application/json", "Content-Encoding": packing}
    pause = "/api/v1/pauses"
    good = PACK[packing](json.dumps({"reason": "packed"}).encode())
    assert client.post(pause, content=good, headers=headers).status_code == 201
    bomb = PACK[packing](b" " * MB)
    assert client.post(pause, content=bomb, headers=headers).status_code == 413
    assert client.post(pause, content=good[:-1], headers=headers).status_code == 400
    twice = {**headers, "Content-Encoding": f"{packing}, {packing}"}
    assert client.post(pause, content=good, headers=twice).status_code == 415


@pytest.mark.parametrize("size", [2**20 - 1, 2**20, 2**20 + 1, 3 * 2**20])
def test_a_body_that_ends_where_a_step_of_unpacking_ends(size: int) -> None:
    """What zlib has left over when its room is full comes with the next step."""
    body = bytes(size)
    assert unpacked(gzip.compress(body), "gzip", size) == body
    assert unpacked(gzip.compress(body) * 2, "gzip", 2 * size) == body * 2
