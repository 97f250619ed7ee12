"""Samples as bytes and back, every bit of them."""

from datetime import timedelta

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from healer.model.samples import Report, StepBatch
from healer.signals.packed import BadBlock, pack_report, pack_steps, unpack_report, unpack_steps
from tests.unit.signals.measuring import NOW

AT = NOW - timedelta(seconds=3)
_int32 = np.dtype(np.int32)
_int64 = np.dtype(np.int64)
_float64 = np.dtype(np.float64)


def report(columns: np.ndarray, values: np.ndarray) -> Report:
    return Report("pod1", "gpu0001", AT, NOW, columns, values)


@given(st.integers(0, 300).flatmap(lambda n: st.tuples(arrays.arrays(_int32, n), arrays.arrays(_float64, n))))
def test_a_report_comes_back_bit_for_bit(told: tuple[np.ndarray, np.ndarray]) -> None:
    blob = pack_report(report(*told))
    back = unpack_report(blob, cluster="pod1", node="gpu0001", at=AT, arrived_at=NOW)
    assert (back.cluster, back.node, back.at, back.arrived_at) == ("pod1", "gpu0001", AT, NOW)
    assert (back.columns.dtype, back.values.dtype) == (_int32, _float64)
    assert back.columns.tobytes() == told[0].tobytes()
    assert back.values.tobytes() == told[1].tobytes()


@given(st.data(), st.integers(0, 50), st.lists(st.text(max_size=5), max_size=4))
def test_step_times_come_back_bit_for_bit(data: st.DataObject, n: int, nodes: list[str]) -> None:
    kinds = dict.fromkeys(("rank", "node", "gpu", "stage"), _int32) | {"step": _int64}
    measures = ("at", "step_s", "compute_s", "comm_s", "data_s", "work", "loss", "grad_norm")
    kinds |= dict.fromkeys(measures, _float64)
    told = {name: data.draw(arrays.arrays(kind, n)) for name, kind in kinds.items()}
    batch = StepBatch(cluster="pod1", job="4711", restart=3, arrived_at=NOW, nodes=tuple(nodes), **told)
    back = unpack_steps(pack_steps(batch), cluster="pod1", job="4711", arrived_at=NOW)
    assert (back.cluster, back.job, back.restart, back.nodes) == ("pod1", "4711", 3, tuple(nodes))
    for name, array in told.items():
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
def test_bytes_that_are_no_block(blob: bytes) -> None:
    with pytest.raises(BadBlock):
        unpack_report(blob, cluster="pod1", node="gpu0001", at=AT, arrived_at=NOW)
    with pytest.raises(BadBlock):
        unpack_steps(blob, cluster="pod1", job="1", arrived_at=NOW)
