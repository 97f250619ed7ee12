"""The form of an account's secret, who answers for it, and which accounts end soon."""

from datetime import UTC, datetime, timedelta
from typing import Any

from healer.model import Role
from healer.ports.service_accounts import (
    AHEAD,
    TokenRow,
    account_secret,
    ending,
    id_in,
    is_person,
    is_well_formed,
    person_of,
)

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
DAY = timedelta(days=1)


def test_one_changed_letter_is_no_secret_of_ours() -> None:
    secret = account_secret("0a1b2c3d")
    assert secret.startswith("healer_sa_0a1b2c3d_") and id_in(secret) == "0a1b2c3d"
    assert is_well_formed(secret)
    for place in range(len(secret)):
        other = "b" if secret[place] != "b" else "c"
        assert not is_well_formed(secret[:place] + other + secret[place + 1 :])
    assert not is_well_formed(secret[:-1]) and not is_well_formed(secret + "a")


def test_tokens_of_before_keep_their_form() -> None:
    assert is_well_formed("heal_0a1b2c3d_secret") and id_in("heal_0a1b2c3d_secr_et") == "0a1b2c3d"
    assert id_in("0a1b2c3d") == "0a1b2c3d"
    assert not is_well_formed("nope_0a1b2c3d_secret")


def test_a_person_answers_for_an_account() -> None:
    assert (is_person("ann"), is_person("ann/ci")) == (True, False)
    assert (person_of("ann"), person_of("ann/ci")) == ("ann", "ann")


def account(left: timedelta, whole: timedelta = 90 * DAY, **fields: Any) -> TokenRow:
    made: dict[str, Any] = {"id": "a", "role": Role.viewer, "name": "ann/ci", "owner": "ann"}
    made |= {"created_at": NOW + left - whole, "expires_at": NOW + left}
    return TokenRow(**made | fields)


def notices(*rows: TokenRow) -> list[tuple[str, timedelta]]:
    return [(row.id, ahead) for row, ahead in ending(rows, NOW)]


def test_people_are_informed_two_weeks_and_three_days_ahead_and_at_the_end() -> None:
    first, last, ended = 14 * DAY, 3 * DAY, timedelta(0)
    assert notices(account(15 * DAY)) == []
    assert notices(account(14 * DAY)) == notices(account(4 * DAY)) == [("a", first)]
    assert notices(account(3 * DAY)) == notices(account(timedelta(minutes=1))) == [("a", last)]
    assert notices(account(timedelta(0))) == notices(account(-DAY)) == [("a", ended)]
    assert notices(account(-2 * DAY)) == notices(account(DAY, revoked_at=NOW)) == []


def test_replaced_account_gives_no_notice_after_its_end() -> None:
    assert notices(account(-DAY), account(80 * DAY, id="b")) == []


def test_rotated_or_short_lived_account_gives_no_notice() -> None:
    assert notices(account(5 * DAY), account(80 * DAY, id="b")) == []
    assert notices(account(5 * DAY), account(80 * DAY, id="b", revoked_at=NOW)) == [("a", AHEAD[0])]
    assert notices(account(5 * DAY), account(4 * DAY, id="b")) == [("a", AHEAD[0])]
    assert notices(account(2 * DAY, whole=3 * DAY)) == []
    assert notices(account(timedelta(hours=3), whole=timedelta(hours=12))) == []
