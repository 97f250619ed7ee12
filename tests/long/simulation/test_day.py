"""Half a day in simulated time over a real database: memory stays flat, and what is old goes.

A whole one, of more nodes: `python -m benchmarks.day`.
"""

import pytest
import sqlalchemy as sa

from tests.support.day import Day

MIB = 1 << 20
#: Windows hold 15 minutes, the store an hour and the partition that is not over yet.
SETTLED_H = 3
HOURS = 6


@pytest.mark.timeout(900)
def test_hours_leave_memory_flat_and_the_disk_bounded(fresh_database: sa.Engine) -> None:
    day = Day(fresh_database, nodes=8, every_s=60)
    hours = list(day.hours(HOURS))
    assert day.reports > 8 * 60 * (HOURS - 1)
    settled, last = hours[SETTLED_H - 1], hours[-1]
    assert last.memory - settled.memory < 10 * MIB, [one.memory // MIB for one in hours]
    most = max(one.samples for one in hours[:SETTLED_H])
    assert 0 < last.samples <= 1.2 * most, [one.samples for one in hours]
    # Of each node a beat a minute: those of the last hour and a quarter, and the GPUs that each reported.
    assert last.inbox_rows < 8 * 60 * 1.5, [one.inbox_rows for one in hours]
    # Rows that were deleted leave room behind, which is used again.
    assert last.inbox <= 1.5 * max(one.inbox for one in hours[:SETTLED_H]) + MIB
    assert day.place.incidents() == []
