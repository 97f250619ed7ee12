"""What clocks do to signals: old logs sent again, reboots, hours that come twice, clocks that leap, a
detector that was away. Over a real database: which line is new, and which one acts, is decided there."""

from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from healer.model import Observation
from healer.signals.wire import (
    NodeBoot,
    heartbeat_observations,
    kernel_log_observations,
    kernel_text_observations,
)
from tests.support.detector import Place
from tests.support.loop import CLUSTER, LOST, START, name

BOOT, NEXT_BOOT = "0b11d014-1685-04bd-26ed-5fc0bc1c44ae", "7c42d1aa-9d0e-4c3b-8f5e-3a3c1f9e2b10"
DMESG = f"""[    0.000000] Linux version 6.1.0
[    3.400584] nvidia: loading out-of-tree module taints kernel.
[ 7211.018844] {LOST}
[ 7211.021100] usb 1-1: new high-speed USB device number 2
"""


@pytest.fixture
def place(fresh_database: sa.Engine) -> Place:
    return Place(fresh_database)


def text(place: Place, lines: str, *, node: int = 1, boot_id: str | None = BOOT) -> int:
    """Lines as a shipper sends them, now; how many were new."""
    taken = kernel_text_observations(
        lines, lambda *_: True, place.clock.now(), NodeBoot(CLUSTER, name(node), boot_id)
    )
    return place.inbox.add(list(taken.observations))


def said(place: Place, line: str, at: datetime, *, node: int = 1, boot_id: str | None = BOOT) -> int:
    """One line with its sender's time for it."""
    body = {
        "node": name(node),
        "boot_id": boot_id,
        "entries": [{"line": line, "time": at.isoformat()}],
    }
    taken = kernel_log_observations(body, lambda *_: True, place.clock.now(), cluster=CLUSTER)
    return place.inbox.add(list(taken.observations))


def beats(place: Place, *, node: int = 1, boot_id: str = BOOT, ahead_s: float = 0.0) -> None:
    """Four heartbeats, 10 s apart, of a node whose clock is so far ahead."""
    for _ in range(4):
        place.clock.advance(10)
        at = place.clock.now() + timedelta(seconds=ahead_s)
        body = {"node": name(node), "boot_id": boot_id, "time": at.isoformat()}
        beat = heartbeat_observations(body, lambda *_: True, place.clock.now(), cluster=CLUSTER)
        place.inbox.add(list(beat.observations))


def nodes_with_incidents(place: Place) -> list[str | None]:
    return sorted(one.root.node or "" for one in place.incidents())


# --- a log that is sent again ---


def test_a_replayed_dmesg_is_nothing_new(place: Place) -> None:
    detector = place.detector()
    assert text(place, DMESG) == 1
    detector.once()
    assert nodes_with_incidents(place) == [name(1)]
    for later in (timedelta(minutes=1), timedelta(hours=3), timedelta(days=20)):
        place.clock.advance(later.total_seconds())
        assert text(place, DMESG) == 0, f"the same boot's log after {later}"
        detector.once()
    assert len(place.incidents()) == 1


def test_an_old_dmesg_of_an_unknown_boot_is_stored_and_acts_on_nothing(place: Place) -> None:
    detector = place.detector()
    assert text(place, f"[Thu Nov 19 07:12:44 2026] {LOST}\n", boot_id=None) == 1
    assert said(place, LOST, START - timedelta(hours=5), node=2, boot_id=None) == 1
    detector.once()
    assert nodes_with_incidents(place) == []
    assert place.inbox.unconsumed(10) == []


# --- a reboot ---


def test_after_a_reboot_the_old_boots_lines_are_history_and_the_new_ones_act(place: Place) -> None:
    detector = place.detector()
    beats(place)
    place.clock.advance(60)
    beats(place, boot_id=NEXT_BOOT)
    detector.once()
    assert text(place, DMESG) == 1, "the journal of the boot before, sent now"
    detector.once()
    assert nodes_with_incidents(place) == []
    assert text(place, DMESG, boot_id=NEXT_BOOT) == 1, "the same words and the same stamp, in the new boot"
    detector.once()
    assert nodes_with_incidents(place) == [name(1)]


def test_a_fault_at_boot_acts_though_the_clock_was_ahead_before_and_is_right_now(place: Place) -> None:
    detector = place.detector()
    beats(place, ahead_s=1800)
    detector.once()
    place.clock.advance(30)
    said(place, LOST, place.clock.now(), boot_id=NEXT_BOOT)  # before the first heartbeat of the new boot
    detector.once()
    assert nodes_with_incidents(place) == [name(1)]


# --- an hour that comes twice, and one that never comes ---


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("Nov 20 04:59:58", "Nov 20 04:00:02", id="autumn"),
        pytest.param("Nov 20 03:59:58", "Nov 20 05:00:02", id="spring"),
    ],
)
def test_local_stamps_around_a_daylight_saving_jump_are_neither_old_nor_doubled(
    place: Place, before: str, after: str
) -> None:
    """rsyslog's traditional stamp has no zone: at the jump an hour of it comes twice, or is left out."""
    detector = place.detector()
    for node, stamp in ((1, before), (2, after)):
        line = f"{stamp} {name(node)} kernel: [ 7211.01{node}844] {LOST}\n"
        assert text(place, line, node=node, boot_id=None) == 1
        assert text(place, line, node=node, boot_id=None) == 0, "sent again at once"
        detector.once()
        place.clock.advance(4)
    assert nodes_with_incidents(place) == [name(1), name(2)]


def test_stamps_with_their_offset_are_taken_at_their_word_across_the_jump(place: Place) -> None:
    detector = place.detector()
    for number, stamp in enumerate(("2026-11-20T04:59:58+02:00", "2026-11-20T04:00:02+01:00"), 1):
        place.clock.advance(4)
        assert said(place, LOST, datetime.fromisoformat(stamp), node=number, boot_id=None) == 1
    seen = {one.component.node: one.event_at for one in place.inbox.unconsumed(10)}
    assert seen[name(2)] - seen[name(1)] == timedelta(seconds=4)
    detector.once()
    assert nodes_with_incidents(place) == [name(1), name(2)]


# --- a clock that leaps ---


@pytest.mark.parametrize("ahead_s", [7200.0, -7200.0, 8 * 3600.0, -8 * 3600.0])
@pytest.mark.parametrize("boot_id", [BOOT, None], ids=["boot known", "boot unknown"])
def test_a_fault_acts_after_its_nodes_clock_has_leapt(
    place: Place, ahead_s: float, boot_id: str | None
) -> None:
    """The RTC was set to local time, say. Heartbeats show by how much: a line is as old as it is by ours."""
    detector = place.detector()
    beats(place)
    detector.once()
    beats(place, ahead_s=ahead_s)
    beats(place, ahead_s=ahead_s)
    beats(place, ahead_s=ahead_s)
    detector.once()
    assert said(place, LOST, place.clock.now() + timedelta(seconds=ahead_s - 1), boot_id=boot_id) == 1
    detector.once()
    assert nodes_with_incidents(place) == [name(1)]


@pytest.mark.parametrize("ahead_h", [-2, 4])
def test_an_old_line_stays_old_where_the_clock_is_wrong(place: Place, ahead_h: int) -> None:
    detector = place.detector()
    beats(place, ahead_s=ahead_h * 3600)
    two_hours_old = place.clock.now() + timedelta(hours=ahead_h - 2)
    assert said(place, LOST, two_hours_old, boot_id=None) == 1
    detector.once()
    assert nodes_with_incidents(place) == []


def test_line_without_a_time_gets_its_arrival_time_regardless_of_the_node_clock(place: Place) -> None:
    detector = place.detector()
    beats(place, ahead_s=7200)
    assert text(place, LOST + "\n", boot_id=None) == 1
    detector.once()
    assert nodes_with_incidents(place) == [name(1)]


def test_a_leap_makes_no_sender_silent_and_no_node_reboot(place: Place) -> None:
    detector = place.detector()
    for ahead_s in (0.0, 3 * 3600.0, -3 * 3600.0, 0.0):
        for node in range(1, 11):
            place.inbox.add(_beat(place, node, ahead_s))
        place.clock.advance(10)
        place.poll()
        detector.once()
    assert place.incidents() == []


def _beat(place: Place, node: int, ahead_s: float) -> list[Observation]:
    at = (place.clock.now() + timedelta(seconds=ahead_s)).astimezone(UTC)
    body = {"node": name(node), "boot_id": BOOT, "time": at.isoformat()}
    return list(
        heartbeat_observations(body, lambda *_: True, place.clock.now(), cluster=CLUSTER).observations
    )


# --- a detector that was away ---


def test_detector_away_for_20_minutes_acts_on_the_backlog_and_calls_no_node_silent(
    place: Place,
) -> None:
    detector = place.detector()
    for _ in range(6):
        for node in range(1, 11):
            place.inbox.add(_beat(place, node, 0.0))
        place.clock.advance(10)
        detector.once()
    lost_at = place.clock.now() + timedelta(minutes=2)
    for minute in range(20):
        place.clock.advance(60)
        if minute == 2:
            said(place, LOST, lost_at, node=7)
        for node in range(1, 11):
            place.inbox.add(_beat(place, node, 0.0))
    place.poll()
    again = place.detector()
    while again.once():
        pass
    assert nodes_with_incidents(place) == [name(7)], "the fault acts at any age: it is of the current boot"
    for _ in range(12):
        place.clock.advance(10)
        for node in range(1, 11):
            place.inbox.add(_beat(place, node, 0.0))
        place.poll()
        again.once()
    assert nodes_with_incidents(place) == [name(7)]
