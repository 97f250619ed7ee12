"""remote_write: the fast way and the walker give the same; what Prometheus sends becomes reports."""

import math
import struct
import tracemalloc
from collections.abc import Mapping
from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from healer.model import Part
from healer.signals import protobuf, remote_write, slots
from healer.signals.remote_write import Order, _outline, _outline_as_before, _Walker, read, unpacked
from healer.signals.series import Measured
from healer.signals.wire import BadBody
from tests.support.measuring import NOW, Bench, gpu, known
from tests.support.pushing import field, label, message, one, sample, snappy, varint

MS = int(NOW.timestamp() * 1000)
DCGM = {"UUID": "GPU-aa", "gpu": "2", "Hostname": "gpu0001", "instance": "10.0.0.7:9400", "job": "dcgm"}


@pytest.fixture
def bench() -> Bench:
    return Bench()


def walk(data: bytes, slot_by_block: dict[bytes, int], resolve: remote_write.Resolve) -> slots.Samples:
    """What `read` gives, by the walker alone: the reference."""
    walker = _Walker(data, slot_by_block, resolve)
    try:
        for number, kind, _, start, stop in protobuf.fields(data, 0, len(data)):
            if number == 1 and kind == protobuf.LENGTH:
                walker.series(start, stop)
    except protobuf.Torn as error:
        raise BadBody(str(error)) from None
    return walker.samples()


def series(name: str, labels: Mapping[str, str], *samples: tuple[float, int]) -> tuple[dict[str, str], list]:
    return {"__name__": name, **labels}, list(samples)


def take(bench: Bench, *all_series: tuple[dict[str, str], list]) -> Measured:
    return bench.translator.remote_write(snappy(message(all_series)), known, NOW)


def test_samples_become_one_report_per_node_and_moment(bench: Bench) -> None:
    other = {"node": "gpu0002", "device": "mlx5_0", "port": "1"}
    sent = (
        series("DCGM_FI_DEV_GPU_TEMP", DCGM, (61, MS - 5000), (62, MS)),
        series("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", DCGM, (0, MS)),
        series("node_infiniband_symbol_error_total", other, (7, MS)),
    )
    for _ in range(2):  # the second time by the fast way
        taken = take(bench, *sent)
        assert [(one.node, one.at, bench.values(one)) for one in taken.reports] == [
            ("gpu0001", NOW - timedelta(seconds=5), {("gpu_temp_c", gpu(2)): 61}),
            ("gpu0001", NOW, {("gpu_temp_c", gpu(2)): 62, ("pcie_replay_total", gpu(2)): 0}),
            ("gpu0002", NOW, {("ib_symbol_error_total", Part(port="mlx5_0/1")): 7}),
        ]
        assert (taken.samples, taken.unrecognised, taken.rejected) == (4, 0, ())


@pytest.mark.parametrize(
    ("labels", "node"),
    [
        ({"Hostname": "gpu0001", "instance": "gpu0002:9400"}, "gpu0001"),
        ({"Hostname": "dcgm-exporter-x7k2p", "node": "gpu0003"}, "gpu0003"),
        ({"hostname": "gpu0004.cluster.local"}, "gpu0004"),
        ({"instance": "gpu0005.cluster.local:9100"}, "gpu0005"),
        ({"instance": "gpu0006"}, "gpu0006"),
        ({"instance": "[fd00::7]:9100", "nodename": "gpu0007"}, "gpu0007"),
    ],
)
def test_the_node_is_the_first_label_that_names_one(bench: Bench, labels: dict[str, str], node: str) -> None:
    assert [one.node for one in take(bench, series("node_load1", labels, (1, MS))).reports] == [node]


def test_series_that_are_not_kept_are_counted_each_time(bench: Bench) -> None:
    sent = (
        series("up", {"job": "x"}, (1, MS)),
        series("node_load1", {"instance": "cpu1:9100"}, (1, MS)),
        series("DCGM_FI_DEV_FB_USED", DCGM | {"GPU_I_ID": "3"}, (1, MS)),
        series("Unwanted", {"A": "before the name"}, (1, MS)),
    )
    for _ in range(2):
        taken = take(bench, *sent)
        assert taken.reports == []
        assert taken.unrecognised == 4
        assert {name: one.why for name, one in taken.unknown.items()} == {
            "up": "not in the catalogue",
            "node_load1": "names no node of this cluster",
            "DCGM_FI_DEV_FB_USED": "MIG instance",
            "Unwanted": "not in the catalogue",
        }
        assert taken.unknown["up"].example == {"job": "x"}


def test_parts_of_a_number_are_not_taken_unless_they_were_put_together(bench: Bench) -> None:
    """Prometheus spreads series over its shards: each request would report another part as the whole."""
    node = {"node": "gpu0001"}
    parts = ("node_edac_uncorrectable_errors_total", "node_hwmon_temp_celsius", "ipmi_power_state")
    sent = [series(name, node | {"part": part}, (3, MS)) for name in parts for part in "ab"]
    unplain = series("node_hwmon_fan_rpm", {"Before": "the name"} | node, (9000, MS))
    recorded = series("psu_state", node, (2, MS))
    for _ in range(2):
        taken = take(bench, *sent, unplain, recorded)
        assert [bench.values(one) for one in taken.reports] == [{("psu_state", Part()): 2}]
        assert {name: one.count for name, one in taken.unknown.items()} == {
            **dict.fromkeys(parts, 2),
            "node_hwmon_fan_rpm": 1,
        }
        assert all("several series" in one.why for one in taken.unknown.values())


def test_stale_markers_and_blanks_are_no_samples(bench: Bench) -> None:
    (stale,) = struct.unpack("<d", bytes.fromhex("020000000000f07f"))
    sent = series("DCGM_FI_DEV_GPU_TEMP", DCGM, (stale, MS), (2147483632, MS + 1), (math.inf, MS + 2))
    assert take(bench, sent).samples == 0


def test_old_samples_are_rejected_and_young_ones_taken(bench: Bench) -> None:
    sent = series("DCGM_FI_DEV_GPU_TEMP", DCGM, (60, MS - 901_000), (61, MS - 899_000), (62, MS + 60_000))
    taken = take(bench, sent)
    assert [one.at for one in taken.reports] == [NOW - timedelta(seconds=899), NOW]
    assert [one.reason for one in taken.rejected] == ["time: older than 15 min (node gpu0001)"]


def test_a_node_that_slurm_no_longer_has_is_no_longer_taken(bench: Bench) -> None:
    raw = snappy(message([series("node_load1", {"node": "gpu0001"}, (1, MS))]))
    assert bench.translator.remote_write(raw, known, NOW).samples == 1
    assert bench.translator.remote_write(raw, lambda *_: False, NOW).samples == 0


def test_metadata_exemplars_and_histograms_are_passed_over(bench: Bench) -> None:
    exemplar, histogram = field(3, sample(1, MS)), field(4, b"\x08\x01")
    labels = {"__name__": "node_load1", "node": "gpu0001"}
    for _ in range(2):
        raw = (
            one(labels, [(2, MS)], exemplar + histogram) + field(3, b"\x08\x01") + one(labels, [(3, MS + 1)])
        )
        taken = bench.translator.remote_write(snappy(raw), known, NOW)
        assert [list(bench.values(report).values()) for report in taken.reports] == [[2], [3]]


@pytest.mark.parametrize(
    "raw", [b"", b"plain text", b"\xff\xff\xff\xff\x7f", snappy(b"not protobuf"), snappy(b"\x0a\x7f")]
)
def test_body_that_is_no_remote_write_is_refused(bench: Bench, raw: bytes) -> None:
    with pytest.raises(BadBody):
        bench.translator.remote_write(raw, known, NOW)


def test_labels_that_are_too_long_are_never_remembered(bench: Bench) -> None:
    slots = bench.translator._remote_write._slots
    node = {"node": "gpu0001"}
    sent = [
        series("node_load1", node | {"x": "a" * 60_000}, (1, MS)),
        series("node_load5", node | {f"x{n}": "a" * 900 for n in range(5)}, (1, MS)),
        series("n" * 300, node, (1, MS)),
    ]
    for _ in range(2):
        taken = take(bench, *sent)
        assert {one.why.partition(" of ")[0] for one in taken.unknown.values()} == {
            "a label",
            "labels",
            "a name",
        }
        assert taken.unrecognised == 3
    assert (slots.by_key, slots.refused) == ({}, {})


def test_series_that_are_not_kept_never_push_out_those_that_are(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots, "REFUSED_BYTES_MAX", 2_000)
    remembered = bench.translator._remote_write._slots
    take(bench, series("DCGM_FI_DEV_GPU_TEMP", DCGM, (61, MS)))
    before = dict(remembered.by_key)
    for part in range(100):
        name = {"device": f"veth{part}", "node": "gpu0001"}
        taken = take(bench, series("node_network_receive_errs_total", name, (1, MS)))
        assert taken.unknown["node_network_receive_errs_total"].why == "virtual interface"
    assert remembered.by_key == before
    assert sum(map(len, remembered.refused)) <= 2_100


def test_remembered_series_keys_are_bounded_in_bytes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "KEY_BYTES_MAX", 3_000)
    remembered = bench.translator._remote_write._slots
    sent = [series("node_load1", {"node": "gpu0001", "x": f"{n:03}" * 30}, (1, MS + n)) for n in range(50)]
    for _ in range(3):
        assert take(bench, *sent).samples == 50
        assert sum(map(len, remembered.by_key)) <= 3_200


def test_a_body_of_far_too_many_new_series(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("healer.signals.remote_write.NEW_SERIES_MAX", 10)
    sent = [series("node_load1", {"node": f"gpu{n:04}"}, (1, MS)) for n in range(11)]
    assert take(bench, *sent[:6]).samples == 6
    assert take(bench, *sent).samples == 11  # six of them are known
    with pytest.raises(BadBody, match="more than 10 new series"):
        bench.translator.remote_write(snappy(b"\x0a\x00" * 11), known, NOW)


def test_a_body_that_unpacks_to_too_much(bench: Bench) -> None:
    with pytest.raises(BadBody, match="at most"):
        unpacked(varint(65 * 2**20) + b"\0")


@settings(deadline=None)
@given(st.binary(max_size=300))
def test_garbage_is_a_bad_body_or_nothing(raw: bytes) -> None:
    bench = Bench()
    for body in (raw, snappy(raw)):
        try:
            assert bench.translator.remote_write(body, known, NOW).reports == []
        except BadBody:
            continue


# --- the fast way against the walker ---

_values = st.floats(width=64) | st.sampled_from([0.0, -0.0, 1.0])
_times = st.sampled_from([MS, MS + 1, 0, 1, 2**41, 2**42, -1]) | st.integers(-(2**63), 2**63 - 1)


def _as_sample(content: bytes) -> bytes:
    return field(2, content)


_label = st.builds(label, st.text(max_size=6), st.text(max_size=20) | st.just("\x12\x10\x09"))
_series = st.builds(
    lambda labels, samples, rest, mixed: field(
        1, b"".join(sorted(labels + samples) if mixed else labels + samples) + rest
    ),
    st.lists(_label, max_size=4),
    st.lists(st.builds(sample, _values, _times) | st.binary(max_size=18).map(_as_sample), max_size=2),
    st.sampled_from([b"", b"", field(3, b""), field(4, b"\x12\x10")]),
    st.booleans(),
)
_messages = st.lists(_series | st.builds(field, st.integers(2, 4), st.binary(max_size=4)), max_size=8)


def _sorted_samples(samples: object) -> list[tuple[int, bytes, int]]:
    slots, values, times, _ = samples  # type: ignore[misc]
    rows = zip(slots.tolist(), values.tolist(), times.tolist(), strict=True)
    return sorted((slot, struct.pack("<d", value), time) for slot, value, time in rows)


@settings(deadline=None)
@given(_messages)
def test_the_fast_way_gives_what_the_walker_gives(parts: list[bytes]) -> None:
    raw = b"".join(parts)
    slots: dict[bytes, int] = {}

    def resolve(block: bytes, labels: dict[str, str]) -> int:
        return slots.setdefault(block, len(slots))

    try:
        slow = _sorted_samples(walk(raw, slots, resolve))
    except BadBody:
        with pytest.raises(BadBody):
            read(raw, slots, resolve, lambda *_: False)
        return
    assert _sorted_samples(read(raw, slots, resolve, lambda *_: False)) == slow
    # And with nothing known before.
    known_now: dict[bytes, int] = {}

    def resolve_again(block: bytes, labels: dict[str, str]) -> int:
        known_now[block] = slots[block]
        return slots[block]

    assert _sorted_samples(read(raw, known_now, resolve_again, lambda *_: False)) == slow


# --- the order in which series come ---

#: Series of different lengths, one of them with a label that ends as a sample does.
_FEW = [
    b"".join((label("__name__", f"m{number}"), label("x", "y" * (number * 29 % 200)))) for number in range(40)
]
_FEW[7] += field(1, b"\x0a\x01z\x12\x08a\x10\x81\x82\x83\x84\x85\x06")  # ends as a sample does
_stretches = st.lists(
    st.tuples(st.integers(0, 39), st.integers(1, 40), st.sampled_from([0.0, 1.5, -7.0]), st.integers(-1, 39)),
    min_size=1,
    max_size=6,
)  # fmt: skip


def _stretch(begin: int, count: int, value: float, odd: int) -> bytes:
    """One request: series in their order from one on, with another value, number `odd` in another form."""
    parts = []
    for number in [(begin + step) % 40 for step in range(count)]:
        samples = sample(value if number % 3 else 0.0, MS)
        if number == odd:
            samples += sample(1.0, MS + 1)
        parts.append(field(1, _FEW[number] + samples))
    return b"".join(parts)


@settings(deadline=None)
@given(_stretches, st.sets(st.integers(0, 39)))
def test_requests_are_independent_of_earlier_ones(requests: list[tuple], unknown: set[int]) -> None:
    slots = {block: number for number, block in enumerate(_FEW) if number not in unknown}
    order = Order()
    for request in requests:
        raw = _stretch(*request)
        fast = read(raw, slots, lambda *_: None, lambda *_: False, order)
        assert _sorted_samples(fast) == _sorted_samples(walk(raw, slots, lambda *_: None))


def test_end_of_series_depends_on_their_previous_length() -> None:
    slots, order = {block: number for number, block in enumerate(_FEW)}, Order()
    for begin, count, value, found in (
        (0, 40, 2.5, False),  # nothing is known
        (0, 40, 3.5, True),
        (5, 20, 3.5, True),
        (30, 20, 3.5, False),  # goes on where nothing is known to follow
        (5, 20, 0.0, False),  # zeros are shorter
        (5, 20, 0.0, True),
        (0, 40, 0.0, False),  # of those between 5 and 25 zeros are expected
    ):
        raw = _stretch(begin, count, value, -1)
        outline = _outline_as_before(raw, slots, order)
        assert (outline is not None) is found
        if outline is not None:
            scanned = _outline(raw, _Walker(raw, slots, lambda *_: None))
            assert [one.tolist() for one in outline] == [one.tolist() for one in scanned]
        read(raw, slots, lambda *_: None, lambda *_: False, order)
    assert _outline_as_before(raw[:-1], slots, order) is None


def _placed(order: Order, blocks: list[bytes], known: dict[bytes, int]) -> list[int]:
    ends = np.cumsum([len(block) for block in blocks], dtype=np.int64)
    starts = ends - np.array([len(block) for block in blocks], np.int64)
    widths = np.full(len(blocks), 18)
    return order.slots(b"".join(blocks), starts, ends, widths, known).tolist()


def test_a_block_gets_the_slot_that_it_has_now() -> None:
    blocks = [b"%d" % number for number in range(32)]
    known = {block: number for number, block in enumerate(blocks[:30])}
    order = Order()
    for _ in range(2):
        assert _placed(order, blocks, known) == [*range(30), -1, -1]
    known[b"31"] = 31
    assert _placed(order, blocks, known) == [*range(30), -1, 31]
    assert _placed(order, blocks[5:9] + blocks[2:4], known) == [5, 6, 7, 8, 2, 3]
    order.forget(2)
    again = {block: 100 - number for number, block in enumerate(blocks)}
    assert _placed(order, blocks, again) == [100 - number for number in range(32)]


def test_remembered_series_order_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_write, "_ORDER_MAX", 100)
    monkeypatch.setattr(remote_write, "_ORDER_BYTES_MAX", 400)
    known = {b"%4d" % number: number for number in range(1000)}
    blocks, order = list(known), Order()
    for begin in (0, 500, 40, 900, 3):
        part = blocks[begin : begin + 60]
        assert _placed(order, part, known) == list(range(begin, begin + 60))
        assert len(order._blocks) <= 100
        assert order._bytes <= 400
    assert _placed(order, blocks, known) == list(range(1000))
    assert len(order._blocks) <= 100


def test_a_body_of_tags_alone_takes_no_memory() -> None:
    """Each byte could be the tag of a time: a place kept for every one was some thirty times the body."""
    raw = field(9, b"\x10" * 2**20)
    tracemalloc.start()
    try:
        assert len(read(raw, {}, lambda *_: None, lambda *_: True).slots) == 0
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 3 * len(raw)


def test_a_series_of_too_many_parts_is_refused(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_write, "PARTS_OF_SERIES_MAX", 3)
    for part in (b"\x0a\x00", b"\x12\x00"):
        with pytest.raises(BadBody, match="more than 3 labels and samples"):
            bench.translator.remote_write(field(1, part * 20), known, NOW, packed=False)
