"""What `healer doctor` says of the database's growth and settings, of the backup, and of tokens that end."""

from datetime import UTC, datetime, timedelta

import pytest

from healer.bootstrap.storage_checks import (
    Size,
    Token,
    backup_age,
    ending_tokens,
    growth,
    postgres_settings,
    standby_checks,
)

NOW = datetime(2026, 11, 20, 3, tzinfo=UTC)
GB = 10**9
DURABLE = {"fsync": "on", "full_page_writes": "on", "synchronous_commit": "on", "autovacuum": "on"}
GOOD = DURABLE | {"max_connections": "200", "used": "31"}


@pytest.mark.parametrize(
    ("free", "ok", "words"),
    [
        (90 * GB, True, "full in 900 days"),
        (400 * GB, True, "full in over 1,000 days"),
        (2.5 * GB, False, "full in 25 days"),
        (9 * GB, False, "9.0 GB of 100.0 GB free; full in 90 days"),
    ],
)
def test_days_left_at_the_pace_so_far(free: float, ok: bool, words: str) -> None:
    found = growth(Size(10 * GB, NOW - timedelta(days=100), int(free), 100 * GB), NOW)
    assert (found.ok, bool(found.repair)) == (ok, not ok)
    assert words in found.text and "100.0 MB a day since 2026-08-12" in found.text


def test_the_first_day_and_another_machine_say_nothing_of_days() -> None:
    young = growth(Size(GB, NOW - timedelta(hours=3), 50 * GB, 100 * GB), NOW)
    assert young.ok and "a day" not in young.text and "full in" not in young.text
    away = growth(Size(GB, NOW - timedelta(days=10), None, None), NOW)
    assert away.ok and away.text.endswith("its disk is another machine's")


@pytest.mark.parametrize("name", sorted(DURABLE))
def test_a_setting_that_loses_what_was_accepted_is_a_fault(name: str) -> None:
    found = postgres_settings(GOOD | {name: "off"})
    assert not found.ok and f"{name} = off" in found.text and name in found.repair


def test_settings_that_are_well_and_too_few_connections() -> None:
    assert postgres_settings(GOOD).state == "ok"
    few = postgres_settings(GOOD | {"max_connections": "50"})
    assert not few.ok and "max_connections" in few.repair
    many = postgres_settings(GOOD, clusters=20)
    assert not many.ok and "860" in many.repair


@pytest.mark.parametrize(
    ("given", "connected", "state", "words"),
    [
        ("", [], "", ""),
        ("", ["b"], "note", "b connected, and no commit waits for it"),
        ("*", ["b"], "ok", "commits wait for b"),
        ("*", [], "fail", "a commit waits for 1, and 0 of them are connected (connected: none)"),
        ('FIRST 1 (a, "Node-B")', ["node-b", "x"], "ok", "commits wait for node-b"),
        ("nodeb", ["node-b"], "fail", "0 of them are connected (connected: node-b)"),
        ("ANY 2 (a, b, c)", ["a", "x"], "fail", "a commit waits for 2, and 1 of them are connected"),
        ("2 (a, b)", ["b", "a"], "ok", "commits wait for a, b"),
    ],
)
def test_a_standby_that_commits_wait_for_must_be_there(
    given: str, connected: list[str], state: str, words: str
) -> None:
    found = standby_checks(GOOD | {"synchronous_standby_names": given}, connected)
    assert [look.state for look in found] == ([state] if state else [])
    assert not found or words in found[0].text


def test_a_local_commit_waits_for_no_standby() -> None:
    values = GOOD | {"synchronous_standby_names": "*", "synchronous_commit": "local"}
    (found,) = standby_checks(values, ["b"])
    assert found.state == "note" and "synchronous_commit" in found.repair


def test_a_backup_is_of_last_night() -> None:
    assert backup_age(NOW - timedelta(hours=26), NOW).state == "ok"
    old = backup_age(NOW - timedelta(hours=51), NOW)
    assert (old.ok, old.text) == (False, "the newest is from 2026-11-18 00:00 UTC")
    never = backup_age(None, NOW)
    assert (never.ok, never.state) == (True, "note"), "a site may have pgBackRest"


def test_tokens_that_end_are_named_by_their_holder() -> None:
    made = NOW - timedelta(days=80)
    rows = [Token(f"t{day}", "" if day else "ann", made, NOW + timedelta(days=day)) for day in range(7)]
    (found,) = ending_tokens(rows, NOW)
    assert not found.ok and found.text.endswith("and 2 more")
    assert found.text.startswith("ann on 2026-11-20, t1 on 2026-11-21, ")
    replaced = Token("new", "ann", NOW, NOW + timedelta(days=90))
    short = Token("short", "bob", NOW - timedelta(days=1), NOW + timedelta(days=1))
    assert ending_tokens([rows[0], replaced, short], NOW) == []
