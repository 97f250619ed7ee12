"""The files of deploy/ha with real programs on three hosts: the host of the primary loses its database."""

import random

from benchmarks.failover import under_load, verdicts


def test_a_lost_primary_loses_nothing_and_heals_once() -> None:
    """Of more blows, and with figures: `python -m benchmarks.failover`."""
    with under_load(2, random.Random(0), print, runs=4) as play:
        primary = play.site.primary()
        assert primary is not None
        play.strike("database lost", primary, 5)
        assert verdicts(play) == []
