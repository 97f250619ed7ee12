"""The files of deploy/ha with real programs on three hosts: the host of the primary loses its database."""

import random

import httpx

from benchmarks.failover import under_load, verdicts


def test_a_lost_primary_loses_nothing_and_heals_once() -> None:
    """Of more blows, and with figures: `python -m benchmarks.failover`."""
    with under_load(2, random.Random(0), print, runs=4) as play:
        primary = play.site.primary()
        assert primary is not None
        # This machine is none of the three hosts: Prometheus may read, and no one else may change anything.
        patroni = f"http://{primary.address}:8008"
        assert httpx.get(f"{patroni}/metrics").status_code == 200
        assert httpx.patch(f"{patroni}/config", json={"ttl": 60}).status_code == 403
        play.strike("database lost", primary, 5)
        assert verdicts(play) == []
