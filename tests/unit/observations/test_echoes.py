"""Which repetition of a line is the same event."""

from datetime import UTC, datetime, timedelta

import msgspec

from healer.model import Component, Observation, ObservationKind
from healer.observations.node_picture import LINES_KEPT, Echoes, is_from_before, uptime_of

NOW = datetime(2026, 11, 20, 3, 0, 0, 250_000, tzinfo=UTC)
WHERE = Component(cluster="pod1", node="gpu0001", pci="0000:9b:00")


def seen(
    arrival_s: float,
    *,
    event_s: float | None = None,
    boot_id: str | None = None,
    seq: int | None = None,
    where: Component = WHERE,
    code: int = 94,
    stamp: str = "",
    process: bool = True,
) -> Observation:
    arrived = NOW + timedelta(seconds=arrival_s)
    return Observation(
        digest=f"{arrival_s}",
        kind=ObservationKind.xid,
        component=where,
        event_at=arrived if event_s is None else NOW + timedelta(seconds=event_s),
        arrived_at=arrived,
        boot_id=boot_id,
        seq=seq,
        code=code,
        line=f"{stamp}NVRM: Xid (PCI:0000:9b:00): 94, Contained",
        data={"pid": 7} if process else {},
    )


def echoes(*lines: Observation, renewed_at: datetime | None = None) -> list[bool]:
    known = Echoes()
    return [known.is_echo(line, line.event_at, renewed_at) for line in lines]


FOLLOWER = seen(1, event_s=0, boot_id="b1", seq=5)


def test_a_line_that_is_walked_again_is_no_echo_of_itself() -> None:
    """After a walk that failed, or a restart that read it before it was walked."""
    relayed = seen(2)
    assert echoes(FOLLOWER, relayed, FOLLOWER, relayed) == [False, True, False, True]
    sent_again = msgspec.structs.replace(FOLLOWER, arrived_at=NOW + timedelta(days=8))
    assert echoes(FOLLOWER, sent_again) == [False, True]


def test_a_line_that_is_walked_again_is_not_known_by_itself() -> None:
    known = Echoes()
    known.is_echo(FOLLOWER, FOLLOWER.event_at, None)
    assert [known.knows(FOLLOWER), known.knows(seen(2))] == [False, True]


def test_a_line_without_anything_echoes_one_within_the_hour_before() -> None:
    assert echoes(FOLLOWER, seen(3590)) == [False, True]
    assert echoes(FOLLOWER, seen(3700)) == [False, False]


def test_the_better_informed_line_may_come_second() -> None:
    assert echoes(seen(1), seen(1800, event_s=0, boot_id="b1", seq=5)) == [False, True]
    assert echoes(seen(1), seen(1800, event_s=1700)) == [False, False]


def test_another_boot_or_sequence_number_is_another_event() -> None:
    assert echoes(FOLLOWER, seen(9, event_s=0, boot_id="b2")) == [False, False]
    assert echoes(FOLLOWER, seen(9, boot_id="b1", seq=6)) == [False, False]
    assert echoes(FOLLOWER, seen(9, boot_id="b1", seq=5)) == [False, True]


def test_another_part_or_code_is_another_event() -> None:
    other = Component(cluster="pod1", node="gpu0001", pci="0000:1b:00")
    assert echoes(FOLLOWER, seen(9, where=other), seen(9, code=95)) == [False, False, False]


def test_events_of_three_senders_are_bounded_by_all_of_them() -> None:
    """The relay's time says which of the follower's two events the bare line may be."""
    second = seen(901, event_s=900, boot_id="b1", seq=6)
    assert echoes(FOLLOWER, seen(2, event_s=0.3), second, seen(902, event_s=900.3)) == [
        False,
        True,
        False,
        True,
    ]


def test_one_sender_reports_an_event_once() -> None:
    assert echoes(FOLLOWER, seen(901, event_s=0.5, boot_id="b1", seq=6)) == [False, False]
    assert echoes(seen(1), seen(700)) == [False, False]


def test_after_a_repair_a_line_is_an_old_one_only_where_a_sender_gave_its_time() -> None:
    repaired = NOW + timedelta(seconds=60)
    first, again = seen(1, process=False), seen(300, boot_id="b1", process=False)
    assert echoes(first, again, renewed_at=repaired) == [False, False]
    assert echoes(seen(1), seen(300, event_s=0.2), renewed_at=repaired) == [False, True]
    assert echoes(FOLLOWER, seen(300), renewed_at=repaired) == [False, True]


def test_the_words_of_a_process_are_old_ones_after_a_repair_where_another_sender_repeats_them() -> None:
    """Hours later. A daemon may live on: its own sender's second line is a second fault."""
    repaired = NOW + timedelta(seconds=60)
    assert echoes(FOLLOWER, seen(9000), seen(9300), renewed_at=repaired) == [False, True, False]
    assert echoes(seen(1), seen(9000), renewed_at=repaired) == [False, False]
    assert echoes(FOLLOWER, seen(9000, event_s=8999), renewed_at=repaired) == [False, False]


def test_only_so_many_lines_are_remembered() -> None:
    known = Echoes()
    known.is_echo(FOLLOWER, FOLLOWER.event_at, None)
    for code in range(1000, 1000 + LINES_KEPT):
        known.is_echo(seen(2, code=code), NOW, None)
    assert not known.is_echo(seen(3), NOW, None)


def test_the_kernels_stamp_is_read_from_each_form_that_has_it() -> None:
    rest = "NVRM: Xid (PCI:0000:9b:00): 94"
    syslog = "Nov 20 03:00:00 gpu0001 kernel:"
    for stamp in (
        "[ 1234.567890] ",
        f"{syslog} [ 1234.567890] ",
        f"{syslog}[ 1234.567890] ",
        "6,12,1234567890,-;",
    ):
        assert uptime_of(stamp + rest) == 1234.56789
    assert uptime_of("Nov 20 03:00:00 gpu0001 kernel: " + rest) is None
    assert uptime_of(rest + ", name=[ 1234.567890] ") is None, "what a process calls itself is no stamp"


def test_the_kernels_stamp_is_the_records_identity_within_a_boot() -> None:
    """Also days later, after a repair, and where one route sent the time and another the boot."""
    timed = seen(1, event_s=0, stamp="[  99.000001] ")
    again = seen(90_000, boot_id="b1", stamp="[  99.000001] ")
    assert echoes(timed, again, renewed_at=NOW + timedelta(hours=1)) == [False, True]
    assert echoes(timed, seen(5, event_s=0, boot_id="b1", stamp="[  99.000002] ")) == [False, False]
    assert echoes(seen(1, boot_id="b0", stamp="[  99.000001] "), again) == [False, False]


def test_the_stamp_and_slurms_boot_time_show_what_is_older_than_a_repair() -> None:
    booted, up = NOW - timedelta(seconds=1000), "[ 1000.000000] "  # written at NOW
    read = seen(3000, stamp=up)
    assert is_from_before(read, booted, NOW + timedelta(seconds=90))
    assert not is_from_before(read, booted, NOW + timedelta(seconds=30)), "BootTime is a minute unsure"
    assert not is_from_before(seen(3000), booted, NOW + timedelta(seconds=90)), "no stamp"
    rebooted = NOW + timedelta(seconds=2500)
    assert is_from_before(read, rebooted, rebooted), "the present boot is younger than the stamp"
    long_up = seen(3000, stamp="[4000000.000000] ")
    assert not is_from_before(long_up, NOW - timedelta(seconds=4e6), NOW + timedelta(seconds=400)), "drift"
