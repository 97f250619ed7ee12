"""Combinations of faults drawn by chance: no replay breaks a law (`tests/support/drawn_recordings.py`)."""

import pytest

from benchmarks.drawn_recordings import complaints

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize("seed", range(30))
def test_a_drawn_recording_keeps_the_laws(seed: int) -> None:
    assert complaints(seed) == []
