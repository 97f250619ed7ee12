"""Columnar metrics: the contract's form, links and ports, and one bad entry that loses no good one."""

import contextlib
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.model import Part
from healer.signals import columnar
from healer.signals.series import Measured
from healer.signals.wire import BadBody
from tests.support.measuring import NOW, Bench, gpu, known


@pytest.fixture
def bench() -> Bench:
    return Bench()


def take(bench: Bench, *bodies: Any) -> Measured:
    body = bodies[0] if len(bodies) == 1 else list(bodies)
    return bench.translator.columnar(json.dumps(body).encode(), known, NOW)


def test_the_form_of_the_contract(bench: Bench) -> None:
    taken = take(
        bench,
        {
            "cluster": "pod1",
            "node": "gpu0017",
            "time": "2026-11-20T02:59:58Z",
            "gpu": {"DCGM_FI_DEV_GPU_TEMP": [61, None], "sm_clock_mhz": [1980, 1290.5]},
            "host": {"node_load1": 3.1},
        },
    )
    (report,) = taken.reports
    assert (report.cluster, report.node, report.at) == ("pod1", "gpu0017", NOW - timedelta(seconds=2))
    assert report.arrived_at == NOW
    assert bench.values(report) == {
        ("gpu_temp_c", gpu(0)): 61,
        ("sm_clock_mhz", gpu(0)): 1980,
        ("sm_clock_mhz", gpu(1)): 1290.5,
        ("load1", Part()): 3.1,
    }
    assert (taken.samples, taken.unrecognised, taken.rejected) == (4, 0, ())


def test_links_and_ports(bench: Bench) -> None:
    taken = take(
        bench,
        {
            "node": "gpu0001",
            "links": {"nvlink_link_replay_total": [[1, 2], [3]]},
            "ports": {"mlx5_0/1": {"symbol_error": 7}, "eth0": {"net_carrier": 1}},
        },
    )
    assert bench.values(taken.reports[0]) == {
        ("nvlink_link_replay_total", gpu(0, 0)): 1,
        ("nvlink_link_replay_total", gpu(0, 1)): 2,
        ("nvlink_link_replay_total", gpu(1, 0)): 3,
        ("ib_symbol_error_total", Part(port="mlx5_0/1")): 7,
        ("net_carrier", Part(port="eth0")): 1,
    }


def test_units_are_made_ours_and_both_names_of_dcgm_are_one_signal(bench: Bench) -> None:
    old = take(
        bench, {"node": "gpu0001", "gpu": {"DCGM_FI_DEV_POWER_VIOLATION": [2e9], "DCGM_FI_DEV_FB_USED": [3]}}
    )
    assert bench.values(old.reports[0]) == {
        ("power_violation_s_total", gpu(0)): 2.0,
        ("gpu_memory_used_bytes", gpu(0)): 3 * 2**20,
    }
    new = take(bench, {"node": "gpu0001", "gpu": {"DCGM_FI_DEV_BOARD_POWER_WATTS": [650]}})
    assert bench.values(new.reports[0]) == {("power_w", gpu(0)): 650}


@pytest.mark.parametrize(
    "blank",
    [2147483632, 2147483635, 9223372036854775792, 9223372036854775795, 140737488355328.0, 140737488355331.0],
)
def test_blanks_are_no_values(bench: Bench, blank: float) -> None:
    taken = take(bench, {"node": "gpu0001", "gpu": {"DCGM_FI_DEV_FB_USED": [blank, 5]}})
    assert bench.values(taken.reports[0]) == {("gpu_memory_used_bytes", gpu(1)): 5 * 2**20}
    assert taken.samples == 1


def test_a_bare_nan_or_infinity_of_pythons_json_is_unknown_and_loses_no_other(bench: Bench) -> None:
    bare = {"power_w": [float("nan"), 400.0], "gpu_temp_c": [float("inf"), float("-inf")]}
    wrong = {"node": "gpu0002", "gpus": 7}
    for bodies in ([{"node": "gpu0001", "gpu": bare}], [wrong, {"node": "gpu0001", "gpu": bare}]):
        taken = take(bench, *bodies)
        assert bench.values(taken.reports[0]) == {("power_w", gpu(1)): 400.0}
        assert [one.index for one in taken.rejected] == [0] * (len(bodies) - 1)


def test_large_counters_are_values(bench: Bench) -> None:
    taken = take(bench, {"node": "gpu0001", "ports": {"mlx5_0/1": {"ib_rcv_bytes_total": 2**53}}})
    assert bench.values(taken.reports[0]) == {("ib_rcv_bytes_total", Part(port="mlx5_0/1")): 2.0**53}


def test_words_of_enums_and_flags(bench: Bench) -> None:
    taken = take(
        bench,
        {
            "node": "gpu0001",
            "gpu": {
                "fabric_state": ["Completed", "in progress", "N/A"],
                "row_remap_pending": ["No", True, "[Not Supported]"],
                "fabric_status": ["Success", "Insufficient Resources", None],
            },
        },
    )
    assert bench.values(taken.reports[0]) == {
        ("fabric_state", gpu(0)): 3,
        ("fabric_state", gpu(1)): 2,
        ("row_remap_pending", gpu(0)): 0,
        ("row_remap_pending", gpu(1)): 1,
        ("fabric_status", gpu(0)): 0,
        ("fabric_status", gpu(1)): 1,
    }


def test_unknown_or_misplaced_metrics_are_counted_by_name(bench: Bench) -> None:
    taken = take(
        bench,
        {
            "node": "gpu0001",
            "gpu": {"my_metric": [1, 2], "gpu_temp_c": [60]},
            "host": {"gpu_temp_c": 4, "load1": 1},
        },
    )
    assert (taken.samples, taken.unrecognised) == (2, 3)
    assert (taken.unknown["my_metric"].count, taken.unknown["my_metric"].why) == (2, "not in the catalogue")
    assert taken.unknown["gpu_temp_c"].why == "does not belong in `host`"


def test_derived_signals_never_arrive(bench: Bench) -> None:
    taken = take(bench, {"node": "gpu0001", "host": {"slurm_gpus": 8}})
    assert (taken.reports, taken.unrecognised) == ([], 1)


def test_signal_sent_under_two_names_counts_once(bench: Bench) -> None:
    taken = take(bench, {"node": "gpu0001", "gpu": {"gpu_temp_c": [60], "DCGM_FI_DEV_GPU_TEMP": [61]}})
    assert bench.values(taken.reports[0]) == {("gpu_temp_c", gpu(0)): 60}
    assert taken.unknown["DCGM_FI_DEV_GPU_TEMP"].why == "sent more than once"


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"node": "cpu1", "host": {"load1": 1}}, "node: cpu1 is not a node of cluster pod1"),
        ({"node": "gpu 1", "host": {"load1": 1}}, "node: not a valid node name"),
        ({"host": {"load1": 1}}, "missing required field `node`"),
        ({"node": "gpu0001", "gpux": {"gpu_temp_c": [1]}}, "unknown field `gpux`"),
        ({"node": "gpu0001", "gpu": {"gpu_temp_c": 61}}, "gpu[...]: Expected `array`"),
        ({"node": "gpu0001", "host": {"load1": [1]}}, "host[...]"),
        ({"node": "gpu0001", "time": "today", "host": {"load1": 1}}, "time: not an RFC 3339 time"),
        ({"node": "gpu0001", "time": "2026-11-20T03:00:00", "host": {"load1": 1}}, "time: has no time zone"),
        (
            {"node": "gpu0001", "time": "2026-11-20T02:44:59Z", "host": {"load1": 1}},
            "time: older than 15 min",
        ),
        ({"node": "gpu0001", "gpu": {"gpu_temp_c": [1] * 65}}, "gpu: gpu_temp_c has 65 GPUs"),
        ({"node": "gpu0001", "time": "0001-01-01T00:00:00+14:00", "host": {"load1": 1}}, "time: not an RFC"),
        ({"node": "gpu0001", "gpus": [{"index": 64, "pci": "0000:18:00"}]}, "gpus: index 64"),
        ({"node": "gpu0001", "gpus": [{"index": 1, "pci": "0000:18:00"}] * 65}, "gpus: 65 GPUs"),
        (7, "object"),
    ],
)
def test_one_bad_entry_is_named_and_loses_no_other(bench: Bench, entry: Any, reason: str) -> None:
    good = {"node": "gpu0002", "host": {"load1": 2}}
    taken = take(bench, good, entry, good)
    assert [one.node for one in taken.reports] == ["gpu0002", "gpu0002"]
    ((index, why),) = [(one.index, one.reason) for one in taken.rejected]
    assert index == 1
    assert reason in why


def test_body_may_map_gpus_to_addresses(bench: Bench) -> None:
    gpus = [{"index": 1, "pci": "00000000:9B:00.0", "uuid": "GPU-bb"}, {"index": 0, "pci": "0000:18:00"}]
    (inventory,) = take(bench, {"node": "gpu0001", "gpus": gpus}).inventory
    assert inventory.component.node == "gpu0001"
    assert inventory.data["gpus"] == [
        {"index": 0, "pci": "0000:18:00", "uuid": ""},
        {"index": 1, "pci": "0000:9b:00", "uuid": "GPU-bb"},
    ]
    (wrong,) = take(bench, {"node": "gpu0001", "gpus": [{"index": 0, "pci": "18"}]}).rejected
    assert wrong.reason == "gpus: '18' of GPU 0 is not a PCI address such as 0000:9b:00"


def test_a_clock_that_is_ahead_counts_as_arrival(bench: Bench) -> None:
    ahead = {"node": "gpu0001", "time": "2026-11-20T03:00:06Z", "host": {"load1": 1}}
    little = {"node": "gpu0001", "time": "2026-11-20T03:00:04Z", "host": {"load1": 1}}
    assert [one.at for one in take(bench, ahead, little).reports] == [NOW, NOW + timedelta(seconds=4)]


def test_the_same_shape_again_asks_the_book_nothing(bench: Bench) -> None:
    first = take(bench, {"node": "gpu0001", "gpu": {"gpu_temp_c": [1, 2]}}).reports[0]
    again = take(bench, {"node": "gpu0002", "gpu": {"gpu_temp_c": [3, 4]}}).reports[0]
    assert again.columns is first.columns
    assert again.values.tolist() == [3, 4]


def test_a_full_book_still_serves_what_it_knows() -> None:
    bench = Bench(limit=1)
    take(bench, {"node": "gpu0001", "host": {"load1": 1}})
    taken = take(bench, {"node": "gpu0001", "host": {"load1": 2, "load5": 3}})
    assert bench.values(taken.reports[0]) == {("load1", Part()): 2}
    assert taken.unknown["load5"].why == "the limit of series is reached"


def test_ports_without_hardware_are_reported_and_lose_no_other(bench: Bench) -> None:
    ports = {name: {"net_carrier": 1} for name in ("eth0", "docker0", "", "Ethernet1/1")}
    taken = take(bench, {"node": "gpu0001", "ports": ports})
    assert bench.values(taken.reports[0]) == {("net_carrier", Part(port="eth0")): 1}
    assert (taken.samples, taken.unrecognised, taken.rejected) == (1, 3, ())
    assert "hardware port" in taken.unknown["net_carrier"].why


def test_a_node_has_at_most_64_ports_also_in_a_shape_that_is_known(bench: Bench) -> None:
    first = {f"mlx5_{port}/1": {"ib_state": 4} for port in range(64)}
    more = {f"mlx5_{port}/1": {"ib_state": 4} for port in range(64, 70)}
    for node, ports in (("gpu0001", first), ("gpu0002", more)):
        assert take(bench, {"node": node, "ports": ports}).samples == len(ports)
    taken = take(bench, {"node": "gpu0001", "ports": more})
    assert (taken.samples, taken.unrecognised) == (0, 6)
    assert taken.unknown["ib_state"].why == "more than 64 ports on this node"


def test_all_wrong_entries_are_counted_and_a_few_listed(bench: Bench) -> None:
    good = {"node": "gpu0001", "host": {"load1": 1}}
    taken = take(bench, *[1] * 1500, {"node": "cpu1"}, good)
    assert [one.index for one in taken.rejected] == list(range(1000))
    assert (taken.rejected_more, taken.samples) == (501, 1)


def test_a_list_of_far_too_many_entries_is_refused_whole(bench: Bench) -> None:
    for entry in (b"1", b'{"node":"gpu0001"}'):
        with pytest.raises(BadBody, match="20001 entries; at most 20000 are allowed"):
            bench.translator.columnar(b"[" + b",".join([entry] * 20_001) + b"]", known, NOW)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b'{"node":"gpu0001","gpu":{"gpu_temp_c":[' + b"1," * 2_000_001 + b"1]}}", "2000000 values"),
        (b"[" + b"[]" * 1_000_000 + b"]", "1000000 lists"),
        (b"[" + b"{}" * 600_000 + b"]", "500000 objects"),
    ],
    ids=["values", "lists", "objects"],
)
def test_body_that_would_fill_the_memory_is_refused_unread(bench: Bench, raw: bytes, reason: str) -> None:
    with pytest.raises(BadBody, match=f"more than {reason}"):
        bench.translator.columnar(raw, known, NOW)


def test_an_entry_of_far_too_many_values_is_refused_and_numbers_nothing(bench: Bench) -> None:
    grid, full = [[0] * 64] * 64, [[0] * 36] * 64
    bench = Bench(shown=lambda *_: 64)
    wide = {"node": "gpu0001", "links": {f"n{name}": grid for name in range(13)}}
    known_names = [name for name in bench.translator.catalogue.signals if name.startswith("nvlink_link_")]
    long = {"node": "gpu0001", "links": {name: full for name in known_names[:9]}}
    good = {"node": "gpu0001", "host": {"load1": 1}}
    taken = take(bench, wide, long, good)
    assert [one.reason for one in taken.rejected] == [
        "53248 values; at most 50000 are allowed in one entry",
        "20736 samples; at most 20000 are allowed per node and timestamp",
    ]
    assert bench.book.columns([1, 2]).keys() == {1}  # that of load1


def test_of_a_node_the_newest_64_reports_are_taken(bench: Bench) -> None:
    def at(second: int) -> dict[str, Any]:
        time = (NOW - timedelta(seconds=second)).isoformat()
        return {"node": "gpu0001", "time": time, "host": {"load1": second}}

    seconds = [40, *range(100, 170), 20]
    taken = take(bench, *map(at, seconds), {"node": "gpu0002", "host": {"load1": 1}})
    ages = [int((NOW - one.at).total_seconds()) for one in taken.reports if one.node == "gpu0001"]
    assert ages == [40, *range(100, 162), 20]
    assert {one.reason[:16] for one in taken.rejected} == {"too many timesta"}
    assert [one.index for one in taken.rejected] == [index for index, age in enumerate(seconds) if age > 161]
    assert taken.samples == 65


def test_shapes_of_which_nothing_is_kept_are_not_remembered(bench: Bench) -> None:
    layouts = bench.translator._columnar._layouts
    for shape in range(5):
        take(bench, {"node": "gpu0001", "host": {f"unknown_{shape}_{name}": 0 for name in range(100)}})
    assert layouts == {}
    take(bench, {"node": "gpu0001", "host": {"load1": 1}})
    assert len(layouts) == 1


def test_memory_of_shapes_is_bounded_by_their_size(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(columnar, "_LAYOUT_BYTES_MAX", 100_000)
    for shape in range(20):
        unknown = {f"unknown_{shape}_{name}": 0 for name in range(100)}
        assert take(bench, {"node": "gpu0001", "host": {"load1": 1, **unknown}}).samples == 1
    assert 1 <= len(bench.translator._columnar._layouts) <= 5


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"\xff", b'"text"', b"7", b"[" * 5000, b'[{"node":1},{"node":', b'{"node":NaN},{}']
)
def test_a_body_that_is_none(bench: Bench, raw: bytes) -> None:
    with pytest.raises(BadBody):
        bench.translator.columnar(raw, known, NOW)


@given(st.binary(max_size=200))
def test_garbage_is_a_bad_body_or_nothing(raw: bytes) -> None:
    try:
        taken = Bench().translator.columnar(raw, known, NOW)
    except BadBody:
        return
    assert taken.reports == []


_json = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["node", "gpu", "host", "links", "ports", "time", "load1"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@given(_json)
def test_any_json_gets_an_answer(body: Any) -> None:
    with contextlib.suppress(BadBody):
        Bench().translator.columnar(json.dumps(body).encode(), known, NOW)
