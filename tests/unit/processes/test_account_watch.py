"""Notices of service accounts that end: doctor says the same."""

from datetime import UTC, datetime, timedelta

from healer.bootstrap.access_checks import account_checks, break_glass_check
from healer.model import Role
from healer.ports.break_glass import GlassState
from healer.ports.service_accounts import TokenRow
from healer.telling.news import account_ending_message

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
DAY = timedelta(days=1)


def account(left: timedelta) -> TokenRow:
    made, until = NOW + left - 90 * DAY, NOW + left
    return TokenRow(
        id="0a", role=Role.operator, name="ann/ci", owner="ann", created_at=made, expires_at=until
    )


def test_a_notice_says_who_owns_the_account_and_what_replaces_it() -> None:
    first, last = (account_ending_message("pod1", account(3 * DAY), ahead) for ahead in (14 * DAY, 3 * DAY))
    assert first.id != last.id, "each notice is sent once"
    assert "ann/ci ends 03:00 on 23 Nov" in first.title
    assert "ann owns it" in first.text and "healer token rotate 0a" in first.text
    ended = account_ending_message("pod1", account(-DAY), timedelta(0))
    assert "ann/ci ended 03:00 on 19 Nov" in ended.title


def test_doctor_fails_for_an_account_that_has_ended_alone() -> None:
    looks = [account_checks([account(left)], NOW) for left in (20 * DAY, 3 * DAY, -DAY)]
    assert [[look.ok for look in found] for found in looks] == [[], [True], [False]]


def test_doctor_fails_while_break_glass_is_active_or_its_seal_is_broken() -> None:
    sealed = GlassState(sealed_at=NOW - DAY, sealed_by="root")
    used = GlassState(
        sealed_at=NOW - DAY, used_at=NOW, used_by="break-glass (ada)", reason="away", until=NOW + DAY / 24
    )
    assert [break_glass_check(state, NOW).ok for state in (GlassState(), sealed, used)] == [True, True, False]
    assert "is an administrator until 04:00" in break_glass_check(used, NOW).text
    later = break_glass_check(used, NOW + DAY)
    assert (later.ok, "the seal is broken" in later.text) == (False, True)
