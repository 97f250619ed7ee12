"""The scheduler's duty that makes models anew: one process an hour, ended with the scheduler."""

from datetime import UTC, datetime, timedelta

from healer.processes.scheduler import FIRST_REFIT_AFTER, LONGEST_REFIT, REFIT_EVERY, Refitting

START = datetime(2026, 11, 20, tzinfo=UTC)


class Clock:
    def __init__(self) -> None:
        self.at = START

    def now(self) -> datetime:
        return self.at


class Child:
    def __init__(self) -> None:
        self.told: str | None = None
        self.stopped = False

    def problem(self) -> str | None:
        return self.told

    def stop(self) -> None:
        self.stopped = True


def begun() -> tuple[Refitting, Clock, list[Child]]:
    clock, children = Clock(), []

    def begin() -> Child:
        children.append(Child())
        return children[-1]

    return Refitting(begin, clock), clock, children


def test_one_at_a_time_an_hour_apart() -> None:
    duty, clock, children = begun()
    duty()
    assert children == []
    clock.at += FIRST_REFIT_AFTER
    duty()
    clock.at += timedelta(minutes=20)
    duty()
    assert [child.stopped for child in children] == [False]
    children[0].told = ""
    duty()
    assert [child.stopped for child in children] == [True]
    clock.at = START + FIRST_REFIT_AFTER + REFIT_EVERY - timedelta(seconds=1)
    duty()
    assert len(children) == 1
    clock.at += timedelta(seconds=1)
    duty()
    assert len(children) == 2
    duty.close()
    assert children[1].stopped


def test_one_that_fails_or_hangs_is_ended_and_tried_again_later() -> None:
    duty, clock, children = begun()
    clock.at += FIRST_REFIT_AFTER
    duty()
    clock.at += LONGEST_REFIT + timedelta(seconds=1)
    duty()
    assert children[0].stopped
    clock.at += REFIT_EVERY
    duty()
    children[1].told = "the database is away"
    duty()
    assert children[1].stopped
    duty.close()


def test_a_clock_that_goes_back_leaves_nobody_waiting() -> None:
    duty, clock, children = begun()
    clock.at -= timedelta(days=30)
    duty()
    assert len(children) == 1
    duty.close()
