"""Who wrote a line: the kernel, or another program."""

from datetime import UTC, datetime

import pytest

from healer.signals.kernel_log import split_prefix

SAID = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("before", "stamp"),
    [
        ("", None),
        ("[6781753.400584] ", "6781753.400584"),
        ("[    3.400584] ", "3.400584"),
        ("[    3.400584][ T1234] ", "3.400584"),
        ("<4>[    3.400584] ", "3.400584"),
        ("<4>", None),
        ("kern  :warn  : [    3.400584] ", "3.400584"),
        ("[Fri Nov 20 03:00:00 2026] ", "Nov 20 03:00:00 2026"),
        ("kernel: ", None),
        ("kernel: [    3.400584] ", "3.400584"),
        ("Nov 20 03:00:00 gpu0001 kernel: ", "Nov 20 03:00:00"),
        ("Nov  2 2026 03:00:00.25 gpu0001 kernel: ", "Nov  2 2026 03:00:00.25"),
        ("Nov  2 03:00:00 gpu0001.site.org kernel: [    3.400584] ", "3.400584"),
        ("<4>Nov 20 03:00:00 gpu0001 kernel: ", "Nov 20 03:00:00"),
        # rsyslog's `%syslogtag%%msg%`: the kernel's message has no blank in front
        ("Nov 20 03:00:00 gpu0001 kernel:[    3.400584] ", "3.400584"),
        ("Nov 20 03:00:00 gpu0001 kernel:", "Nov 20 03:00:00"),
        ("2026-11-20T03:00:00+01:00 gpu0001 kernel:[    3.400584] ", "3.400584"),
        ("1763607600.123456 gpu0001 kernel:[    3.400584] ", "3.400584"),
        ("2026-11-20T03:00:00.123456+01:00 gpu0001 kernel: [    3.400584] ", "3.400584"),
        ("2026-11-20T03:00:00+0000 gpu0001 kernel: ", "2026-11-20T03:00:00+0000"),
        ("1763607600.123456 gpu0001 kernel: ", "1763607600.123456"),
        ("[    3.400584] gpu0001 kernel: ", "3.400584"),
        ("<4>1 2026-11-20T03:00:00.123Z gpu0001 kernel - - - ", "2026-11-20T03:00:00.123Z"),
        ('<4>1 2026-11-20T03:00:00.123Z gpu0001 kernel - - [a b="c"] [3.400584] ', "3.400584"),
        ("4,1234,3400584,-;", "3.400584"),
        ("[    3.400584] [      T0] ", "3.400584"),
        ("gpu0001 kernel: ", None),
        ("[Fri Nov 20 03:00:00 2026] gpu0001 kernel: ", "Nov 20 03:00:00 2026"),
        ("Fri 2026-11-20 03:00:00 UTC gpu0001 kernel: ", "2026-11-20 03:00:00"),
        ("Fri 2026-11-20 03:00:00.123456 CET gpu0001 kernel: ", "2026-11-20 03:00:00.123456"),
        ("kern  :err   : ", None),
        ("[...] ", None),
    ],
)
def test_the_kernel_spoke(before: str, stamp: str | None) -> None:
    found = split_prefix(before + SAID + "\n")
    assert found is not None
    assert (found.content, found.stamp) == (SAID, stamp)


@pytest.mark.parametrize(
    "before",
    [
        "Nov 20 03:00:00 gpu0001 alice: ",
        "Nov 20 03:00:00 gpu0001 alice[4242]: ",
        "Nov 20 03:00:00 gpu0001 alice: kernel: ",
        "Nov 20 03:00:00 alice: kernel: ",
        "Nov 20 2026 03:00:00 alice: kernel: ",
        "Nov 20 2026 gpu0001 kernel: ",
        "2026-11-20T03:00:00+01:00 gpu0001 alice: ",
        "<13>Nov 20 03:00:00 gpu0001 kernel: ",
        "<13>",
        "12,1234,3400584,-;",
        "<14>1 2026-11-20T03:00:00.123Z gpu0001 kernel - - - ",
        "<4>1 2026-11-20T03:00:00.123Z gpu0001 alice - - - ",
        "alice: ",
        "echo ",
        "[3.400584] alice: ",
        "notkernel: ",
        "alice: gpu0001 kernel: ",
        "Fri 2026-11-20 03:00:00 UTC gpu0001 alice: ",
        "daemon:err   : ",
    ],
)
def test_line_of_another_program_has_no_kernel_prefix(before: str) -> None:
    assert split_prefix(before + SAID) is None


def test_sequence_number_of_kmsg() -> None:
    found = split_prefix("4,1234,3400584,-;" + SAID)
    assert found is not None
    assert found.seq == 1234


def test_a_stamp_with_a_zone_is_a_moment() -> None:
    found = split_prefix("2026-11-20T03:00:00+01:00 gpu0001 kernel: " + SAID)
    assert found is not None
    assert found.stamp_at == datetime(2026, 11, 20, 2, 0, tzinfo=UTC)


def test_a_year_of_syslog_is_taken_at_its_word() -> None:
    found = split_prefix("Nov 20 2024 03:00:00 gpu0001 kernel: " + SAID)
    assert found is not None
    assert found.stamp_local == datetime(2024, 11, 20, 3, 0)  # noqa: DTZ001 - its zone is not known


def test_a_stamp_without_a_zone_is_none() -> None:
    found = split_prefix("[Fri Nov 20 03:00:00 2026] " + SAID)
    assert found is not None
    assert found.stamp_at is None
    assert found.stamp_local == datetime(2026, 11, 20, 3, 0)  # noqa: DTZ001


def test_a_day_that_does_not_exist_costs_the_stamp_alone() -> None:
    found = split_prefix("Feb 31 03:00:00 gpu0001 kernel: " + SAID)
    assert found is not None
    assert found.stamp_local is None


def test_a_zone_by_name_is_a_moment_where_the_name_is_sure() -> None:
    sure = split_prefix("Fri 2026-11-20 03:00:00 UTC gpu0001 kernel: " + SAID)
    unsure = split_prefix("Fri 2026-11-20 03:00:00 CST gpu0001 kernel: " + SAID)
    assert sure is not None
    assert unsure is not None
    assert sure.stamp_at == datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
    assert (unsure.stamp_at, unsure.stamp_local) == (None, datetime(2026, 11, 20, 3, 0))  # noqa: DTZ001


def test_words_that_rsyslog_folded_are_the_kernels_own() -> None:
    before = "Nov 20 03:00:00 gpu0001 kernel: "
    found = split_prefix(f"{before}message repeated 3 times: [ {SAID}]")
    assert found == split_prefix(before + SAID)
    assert split_prefix(f"Nov 20 03:00:00 gpu0001 alice: message repeated 3 times: [ {SAID}]") is None
