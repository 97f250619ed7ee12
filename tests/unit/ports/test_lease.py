"""Who may take an abandoned run, and when: by a stopwatch, never by a clock."""

from datetime import UTC, datetime, timedelta

import pytest

from healer.adapters.postgres.claims import Left
from healer.ports.lease import LEASE, LEASE_S, is_unheard

NOW = datetime(2026, 11, 21, 3, 0, tzinfo=UTC)


class Stopwatch:
    def __init__(self) -> None:
        self.s = 100.0

    def __call__(self) -> float:
        return self.s


def test_a_run_is_taken_only_a_lease_after_it_was_first_seen_to_be_left() -> None:
    watch = Stopwatch()
    left = Left(watch)
    assert left.epoch("r") is None, "it is not abandoned yet"
    left.seen("r", 3)
    watch.s += LEASE_S - 0.1
    left.seen("r", 3)
    assert left.epoch("r") is None
    watch.s += 0.1
    assert left.epoch("r") == 3, "a second look does not restart the wait"


def test_lease_taken_and_released_meanwhile_restarts_the_wait() -> None:
    watch = Stopwatch()
    left = Left(watch)
    left.seen("r", 3)
    watch.s += LEASE_S
    left.seen("r", 4)
    assert left.epoch("r") is None
    watch.s += LEASE_S
    assert left.epoch("r") == 4
    left.taken("r")
    assert left.epoch("r") is None


def test_old_leases_are_forgotten_when_there_are_many() -> None:
    watch = Stopwatch()
    left = Left(watch)
    for number in range(1001):
        left.seen(f"r{number}", 1)
    watch.s += 601
    left.seen("new", 1)
    assert left.epoch("r0") is None
    watch.s += LEASE_S
    assert left.epoch("new") == 1


@pytest.mark.parametrize(
    ("lease_in_s", "unheard"),
    [(None, True), (-1, True), (7.9, True), (8.1, False), (10, False), (19, False), (21, True), (3600, True)],
)
def test_worker_counts_as_lost_without_lease_renewal_or_with_a_wrong_clock(
    lease_in_s: float | None, unheard: bool
) -> None:
    until = None if lease_in_s is None else NOW + timedelta(seconds=lease_in_s)
    assert is_unheard(until, NOW) is unheard
    assert timedelta(seconds=LEASE_S) == LEASE
