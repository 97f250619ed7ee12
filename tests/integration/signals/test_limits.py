"""Series that a machine cannot have, or too many: not kept, named, and no matter to others."""

import json

import pytest

from healer.model import Scope
from healer.signals.hardware_names import (
    GPU_BEYOND,
    GPUS_UNKNOWN,
    LINK_BEYOND,
    NAMES_FREE,
    NAMES_MAX,
    NAMES_OF_NODE,
    NVLINKS_MAX,
    PORTS_MAX,
    TOO_MANY,
    TOO_MANY_NAMES,
    TOO_MANY_NEW,
)
from healer.signals.series import LIMITS, SERIES_OF_NODE_MAX, TOO_MANY_SERIES, Names
from tests.support.measuring import NOW, Bench, known, shipped

pytestmark = pytest.mark.heavy

LINK = "nvlink_link_replay_total"


def text(bench: Bench, *lines: str) -> dict[str, str]:
    """Why series were not kept, by name."""
    measured = bench.translator.exposition("\n".join(lines).encode() + b"\n", known, NOW, node=None)
    return {name: one.why for name, one in measured.unknown.items()}


def series(node: str, gpu: int, link: int | None = None, more: str = "") -> str:
    if link is None:
        return f'gpu_temp_c{{node="{node}",gpu="{gpu}"{more}}} 60'
    return f'{LINK}{{node="{node}",gpu="{gpu}",nvlink="{link}"{more}}} 1'


@pytest.mark.parametrize(
    ("shown", "most"), [(None, GPUS_UNKNOWN), (0, GPUS_UNKNOWN), (4, 8), (8, 8), (20, 20)]
)
def test_a_gpu_beyond_what_slurm_shows_is_not_kept(shown: int | None, most: int) -> None:
    bench = Bench(shown=lambda *_: shown)
    assert text(bench, series("gpu0001", most - 1)) == {}
    assert text(bench, series("gpu0001", most)) == {"gpu_temp_c": GPU_BEYOND}
    body = {"node": "gpu0002", "gpu": {"gpu_temp_c": [60] * (most + 1)}, "host": {"load1": 1}}
    measured = bench.translator.columnar(json.dumps(body).encode(), known, NOW)
    assert (measured.samples, measured.unknown["gpu_temp_c"].why) == (most + 1, GPU_BEYOND)


def test_the_same_line_of_a_larger_and_of_a_smaller_node() -> None:
    """With ?node= a line is the same text for both; what one has the other does not get by it."""
    bench = Bench(shown=lambda _, node: 16 if node == "gpu0016" else 8)

    def sent(node: str) -> int:
        return bench.translator.exposition(b'gpu_temp_c{gpu="9"} 60\n', known, NOW, node=node).samples

    assert [sent("gpu0016"), sent("gpu0008"), sent("gpu0016"), sent("gpu0008")] == [1, 0, 1, 0]


def test_a_link_beyond_what_a_gpu_has_is_not_kept() -> None:
    bench = Bench(shown=lambda *_: 8)
    assert text(bench, series("gpu0001", 0, NVLINKS_MAX - 1)) == {}
    assert text(bench, series("gpu0001", 0, NVLINKS_MAX)) == {LINK: LINK_BEYOND}
    body = {"node": "gpu0001", "links": {LINK: [[0] * (NVLINKS_MAX + 2), [0]]}}
    measured = bench.translator.columnar(json.dumps(body).encode(), known, NOW)
    assert (measured.samples, measured.unknown[LINK].count, measured.unknown[LINK].why) == (
        NVLINKS_MAX + 1,
        2,
        LINK_BEYOND,
    )


def test_forged_links_of_all_nodes_leave_room_for_honest_series() -> None:
    """Each signal of links on each GPU and link that two digits can say, of 50 nodes."""
    bench = Bench(shown=lambda *_: 8)
    signals = [one.name for one in shipped().signals.values() if one.name.startswith("nvlink_link_")][:3]
    for node in range(1, 51):
        lines = [
            f'{name}{{node="gpu{node:04d}",gpu="{gpu}",nvlink="{link}"}} 1'
            for name in signals
            for gpu in range(0, 64, 7)
            for link in range(0, 64, 7)
        ]
        text(bench, *lines)
    numbered = bench.book.columns(range(1, 100_001)).values()
    assert 0 < len(numbered) <= len(signals) * 8 * NVLINKS_MAX
    assert {column.part.gpu < 8 and column.part.link < NVLINKS_MAX for column in numbered} == {True}  # type: ignore[operator]
    assert text(bench, series("gpu0060", 7), series("gpu0060", 7, 17)) == {}


def test_all_columns_of_a_cluster_fit_the_book_many_times() -> None:
    """What one who may speak of all nodes can fill at worst: parts and names of ports are bounded."""
    signals = shipped().signals.values()
    names = Names(shipped())
    nvlink = {one.name for one in signals if any(meaning.nvlink for meaning in names.meanings(one.name))}
    ports = [one for one in signals if one.scope is Scope.link and one.name not in nvlink]
    gpus = [one for one in signals if one.scope is Scope.gpu]
    nodes = [one for one in signals if one.scope is Scope.node]
    most = len(gpus) * 16 + len(nvlink) * 16 * NVLINKS_MAX + len(ports) * NAMES_MAX + len(nodes)
    print(
        f"{most} columns at most: {len(gpus)} signals of GPUs, {len(nvlink)} of NVLinks, {len(ports)} ports"
    )
    assert most < 100_000


def test_names_of_ports_are_bounded_in_a_cluster() -> None:
    bench = Bench(shown=lambda *_: 8)

    def ports(node: int, first: int) -> dict[str, str]:
        lines = [
            f'net_carrier{{node="gpu{node:04d}",device="eth{first + port}"}} 1' for port in range(PORTS_MAX)
        ]
        return text(bench, *lines)

    free = NAMES_FREE // PORTS_MAX
    for node in range(1, free + 1):
        assert ports(node, node * 100) == {}
    last = free + (NAMES_MAX - NAMES_FREE) // NAMES_OF_NODE
    for node in range(free + 1, last):
        assert ports(node, node * 100) == {"net_carrier": TOO_MANY_NEW}
    assert ports(last, last * 100) == {"net_carrier": TOO_MANY_NAMES}, "it brings the last of them"
    assert ports(100, 100_00) == {"net_carrier": TOO_MANY_NAMES}
    assert ports(101, 100) == {}, "names that are known are taken of any node"
    assert text(bench, 'net_carrier{node="gpu0101",device="eth200"} 1') == {"net_carrier": TOO_MANY}


def test_a_node_has_so_many_series_and_others_go_on() -> None:
    """200,000 label sets of one node: each is a series of its own, and the same column."""
    bench = Bench(shown=lambda *_: 8)
    refused = 0
    for start in range(0, 200_000, 50_000):
        lines = [series("gpu0001", 0, more=f',x="{number}"') for number in range(start, start + 50_000)]
        measured = bench.translator.exposition("\n".join(lines).encode(), known, NOW, node=None)
        refused += measured.unknown["gpu_temp_c"].count if measured.unknown else 0
        assert text(bench, series("gpu0002", 1), series("gpu0003", 1, 2)) == {}
    assert refused == 200_000 - SERIES_OF_NODE_MAX
    assert measured.unknown["gpu_temp_c"].why == TOO_MANY_SERIES
    assert len(bench.book.columns(range(1, 1000))) == 3


def test_new_series_are_counted_for_their_senders_quota() -> None:
    bench = Bench()
    first = bench.translator.exposition(
        f"{series('gpu0001', 0)}\n{series('gpu0001', 1)}\n".encode(), known, NOW, node=None
    )
    again = bench.translator.exposition(
        f"{series('gpu0001', 0)}\n{series('gpu0001', 2)}\n".encode(), known, NOW, node=None
    )
    assert (first.placed, again.placed) == (2, 1)


def test_every_limit_is_a_loss() -> None:
    assert {GPU_BEYOND, LINK_BEYOND, TOO_MANY, TOO_MANY_NAMES, TOO_MANY_SERIES} <= LIMITS
