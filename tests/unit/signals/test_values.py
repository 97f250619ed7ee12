"""Words of exporters as numbers."""

import math

import pytest

from healer.signals.values import number
from tests.unit.signals.measuring import shipped


@pytest.mark.parametrize(
    ("signal", "text", "value"),
    [
        # Any UUID is a cluster, also one that begins like a number.
        ("fabric_cluster_known", "0e5f1a2b-1111-2222-3333-444455556666", 1),
        ("fabric_cluster_known", "7f3a0000-1111-2222-3333-444455556666", 1),
        ("fabric_cluster_known", "00000000-0000-0000-0000-000000000000", 0),
        ("fabric_cluster_known", "N/A", math.nan),
        ("fabric_status", "Success", 0),
        ("fabric_status", "7 of 8 links", 1),
        ("fabric_status", "0", 0),
        ("gpu_temp_c", "61 C", 61),
        ("pcie_link_width", "16x", 16),
        ("performance_state", "P2", 2),
    ],
)
def test_what_a_word_means(signal: str, text: str, value: float) -> None:
    assert number(shipped().signals[signal], text) == pytest.approx(value, nan_ok=True)
