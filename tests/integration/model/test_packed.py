"""Samples as bytes and back, every bit of them."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from healer.model.packed import (
    BadBlock,
    PackedReport,
    pack_report,
    pack_steps,
    unpack_reports,
    unpack_steps,
)
from healer.model.telemetry import Report, StepBatch
from tests.support.measuring import NOW

pytestmark = pytest.mark.heavy

AT = NOW - timedelta(seconds=3)
_int32 = np.dtype(np.int32)
_int64 = np.dtype(np.int64)
_float64 = np.dtype(np.float64)


def report(columns: np.ndarray, values: np.ndarray) -> Report:
    return Report("pod1", "gpu0001", AT, NOW, columns, values)


def report_arrays(n: int) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    return st.tuples(arrays.arrays(_int32, n), arrays.arrays(_float64, n))


def packed(blob: bytes, number: int = 0) -> PackedReport:
    return PackedReport(f"gpu{number}", AT, NOW + number * timedelta(seconds=1), blob)


@given(st.integers(0, 300).flatmap(report_arrays))
def test_a_report_comes_back_bit_for_bit(columns: tuple[np.ndarray, np.ndarray]) -> None:
    (back,) = unpack_reports("pod1", [packed(pack_report(report(*columns)))])
    assert isinstance(back, Report)
    assert (back.cluster, back.node, back.at, back.arrived_at) == ("pod1", "gpu0", AT, NOW)
    assert (back.columns.dtype, back.values.dtype) == (_int32, _float64)
    assert back.columns.tobytes() == columns[0].tobytes()
    assert back.values.tobytes() == columns[1].tobytes()


@given(
    st.lists(arrays.arrays(_int32, st.integers(0, 4)), min_size=1, max_size=3).flatmap(
        lambda sets: st.lists(
            st.none()
            | st.sampled_from(sets).flatmap(
                lambda columns: st.tuples(st.just(columns), arrays.arrays(_float64, len(columns)))
            ),
            max_size=12,
        )
    )
)
def test_reports_of_all_kinds_come_back_in_their_order(
    many: list[tuple[np.ndarray, np.ndarray] | None],
) -> None:
    """Whatever columns they have; what cannot be read costs no other one."""
    blobs = [b"\x02no block" if one is None else pack_report(report(*one)) for one in many]
    found = unpack_reports("pod1", [packed(blob, number) for number, blob in enumerate(blobs)])
    assert len(found) == len(many)
    for number, (one, back) in enumerate(zip(many, found, strict=True)):
        if one is None:
            assert isinstance(back, BadBlock)
            continue
        assert isinstance(back, Report)
        assert (back.node, back.arrived_at) == (f"gpu{number}", NOW + number * timedelta(seconds=1))
        assert back.columns.tobytes() == one[0].tobytes()
        assert back.values.tobytes() == one[1].tobytes()


@given(st.data(), st.integers(0, 50), st.lists(st.text(max_size=5), max_size=4))
def test_step_times_come_back_bit_for_bit(data: st.DataObject, n: int, nodes: list[str]) -> None:
    kinds = dict.fromkeys(("rank", "node", "gpu", "stage"), _int32) | {"step": _int64}
    measures = ("at", "step_s", "compute_s", "comm_s", "data_s", "work", "loss", "grad_norm")
    kinds |= dict.fromkeys(measures, _float64)
    columns = {name: data.draw(arrays.arrays(kind, n)) for name, kind in kinds.items()}
    batch = StepBatch(cluster="pod1", job="4711", restart=3, arrived_at=NOW, nodes=tuple(nodes), **columns)
    back = unpack_steps(pack_steps(batch), cluster="pod1", job="4711", arrived_at=NOW)
    assert (back.cluster, back.job, back.restart, back.nodes) == ("pod1", "4711", 3, tuple(nodes))
    for name, array in columns.items():
        assert getattr(back, name).dtype == array.dtype
        assert getattr(back, name).tobytes() == array.tobytes()


def test_a_usual_report_stays_inside_its_row() -> None:
    """PostgreSQL moves values of 2 kB and more out of their row."""
    rng = np.random.default_rng(5)
    kinds = (
        rng.integers(30, 90, (12, 8)),  # temperatures, clocks in use
        rng.uniform(100, 700, (4, 8)).round(3),  # power
        rng.integers(0, 10**9, (6, 8)) * 1e-9,  # times
        np.zeros((8, 8)),  # errors
    )
    values = np.concatenate([kind.ravel() for kind in kinds]).astype(np.float64)
    assert len(values) == 240
    assert len(pack_report(report(np.arange(900, 1140, dtype=np.int32), values))) < 2000


@pytest.mark.parametrize("blob", [b"", b"\x02abc", b"\x01", b"\x01\x00\x00\x00", b"\x01\xff\xff\xff\x7f\x00"])
def test_invalid_blocks_are_refused(blob: bytes) -> None:
    assert isinstance(unpack_reports("pod1", [packed(blob)])[0], BadBlock)
    with pytest.raises(BadBlock):
        unpack_steps(blob, cluster="pod1", job="1", arrived_at=NOW)
