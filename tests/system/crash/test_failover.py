"""The files of deploy/ha with real programs on three hosts: the host of the primary loses its database."""

import random

from benchmarks.failover import play


def test_a_lost_primary_loses_nothing_and_heals_once() -> None:
    """Figures: `python -m benchmarks.failover`."""
    took, faults = play(["database"], random.Random(0))
    assert faults == []
    assert len(took) == 1
