"""Blanks that DCGM reports instead of numbers, and their neighbours, which are numbers."""

import math

import numpy as np
import pytest

from healer.signals.values import blanks_to_nan, number
from tests.support.measuring import shipped

INT32, FLOAT, INT64 = 0x7FFFFFF0, 2.0**47, 2.0**63


@pytest.mark.parametrize("blank", [INT32, INT32 + 3, FLOAT, FLOAT + 3.5, INT64, -INT64, math.inf, -math.inf])
def test_a_blank_is_no_number(blank: float) -> None:
    assert np.isnan(blanks_to_nan(np.array([1.0, blank, 2.0]))).tolist() == [False, True, False]


def test_text_around_a_blank_is_kept() -> None:
    beside = [INT32 - 1, INT32 + 4, FLOAT - 1, FLOAT + 4, np.nextafter(INT64, 0), -INT32, -FLOAT, 0.0]
    values = np.array([*beside, math.nan])
    assert blanks_to_nan(values) is values
    assert values[:-1].tolist() == beside


def test_the_shape_stays() -> None:
    assert blanks_to_nan(np.array([[1.0, INT32], [INT64, 4.0]])).tolist()[0][0] == 1.0
    assert blanks_to_nan(np.empty((0, 3))).shape == (0, 3)


@pytest.mark.parametrize("word", ["1_000", "\uff13", "1\uff13", "_1"])
def test_numbers_in_python_only_syntax_are_unknown(word: str) -> None:
    assert math.isnan(number(shipped().signals["gpu_temp_c"], word))
    assert number(shipped().signals["gpu_temp_c"], "61 C") == 61
