"""A detector that restarts in the middle of a repeat keeps counting, from what PostgreSQL holds."""

from collections.abc import Sequence
from datetime import timedelta

import pytest
import sqlalchemy as sa

from healer.model import Incident, Mode, Remedy
from tests.support.detector import Place
from tests.support.loop import START, lines, name

PCI = "NVRM: Xid (PCI:0000:9b:00): "
HUNG = PCI + "119, pid=7, Timeout after 6s of waiting for RPC response from GPU3 GSP!"
NOTHING = PCI + "154, pid=7, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
CONTAINED = PCI + "94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No"
PUSH_BUFFER = PCI + "43, pid=7, name=python, Ch 00000010"

#: After so many hours, the line, and the job that its sender names.
Step = tuple[float, str, str | None]
FAILS_AND_HEALS: tuple[Step, ...] = (
    (0.1, HUNG, None), (1, NOTHING, None), (48, HUNG, None), (1, NOTHING, None), (96, HUNG, None),
)  # fmt: skip
THREE_JOBS: tuple[Step, ...] = ((0.1, PUSH_BUFFER, "1"), (5, PUSH_BUFFER, "2"), (5, PUSH_BUFFER, "3"))


def incidents_of(place: Place, steps: Sequence[Step], *, restarts: bool) -> list[Incident]:
    """All incidents, the oldest first; with a new detector before each line, or one for all."""
    detector = place.detector(mode=Mode.shadow)
    for hours, line, job in steps:
        place.clock.advance(hours * 3600)
        place.poll()
        if restarts:
            detector = place.detector(mode=Mode.shadow)
        place.inbox.add(lines(name(1), line, at=place.clock.now(), boot_id="b1", job=job))
        for _ in range(2):
            detector.once()
            place.clock.advance(20)
            place.poll()
    return sorted(place.all_incidents(), key=lambda one: one.opened)


@pytest.mark.parametrize("restarts", [False, True], ids=["one detector", "a new one each time"])
def test_the_third_failure_in_seven_days_is_a_lemon(fresh_database: sa.Engine, restarts: bool) -> None:
    *before, last = incidents_of(Place(fresh_database), FAILS_AND_HEALS, restarts=restarts)
    assert [(one.fault, one.is_open) for one in before] == [("xid-119", False)] * 2
    assert not any(Remedy.replace in one.remedy for one in before)
    assert last.is_open and last.remedy[0] is Remedy.replace
    assert any(one.text.startswith("A lemon: 3 faults of this part within 7 days") for one in last.evidence)


@pytest.mark.parametrize("restarts", [False, True], ids=["one detector", "a new one each time"])
def test_faults_older_than_seven_days_make_no_lemon(fresh_database: sa.Engine, restarts: bool) -> None:
    late = (*FAILS_AND_HEALS[:-1], (24 * 6, HUNG, None))
    *_, last = incidents_of(Place(fresh_database), late, restarts=restarts)
    assert last.is_open and last.opened - START > timedelta(days=8)
    assert last.remedy[0] is Remedy.drain_then_reset


@pytest.mark.parametrize("restarts", [False, True], ids=["one detector", "a new one each time"])
def test_a_second_contained_error_in_a_day_asks_for_a_reset(
    fresh_database: sa.Engine, restarts: bool
) -> None:
    steps: tuple[Step, ...] = ((0.1, CONTAINED, None), (3, CONTAINED, None))
    found = incidents_of(Place(fresh_database), steps, restarts=restarts)
    assert "gpu-contained-again" in [one.rule for one in found]


@pytest.mark.parametrize("restarts", [False, True], ids=["one detector", "a new one each time"])
def test_the_same_error_of_a_third_job_is_no_jobs_own(fresh_database: sa.Engine, restarts: bool) -> None:
    (found,) = incidents_of(Place(fresh_database), THREE_JOBS, restarts=restarts)
    assert found.rule == "gpu-push-buffer-errors"
    assert found.opened - START > timedelta(hours=10)
