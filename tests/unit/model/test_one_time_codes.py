"""One-time codes against the vectors of RFC 6238, appendix B, cut to six digits."""

from datetime import UTC, datetime

import pytest

from healer.model.one_time_codes import app_uri, code_at, step_of

SECRET = b"12345678901234567890"


@pytest.mark.parametrize(
    ("at", "code"),
    [
        (59, "287082"),
        (1111111109, "081804"),
        (1111111111, "050471"),
        (1234567890, "005924"),
        (2000000000, "279037"),
        (20000000000, "353130"),
    ],
)
def test_the_codes_are_those_of_the_rfc(at: int, code: str) -> None:
    assert code_at(SECRET, at // 30) == code
    assert step_of(SECRET, f" {code[:3]} {code[3:]}", datetime.fromtimestamp(at, UTC)) == at // 30


@pytest.mark.parametrize(("later_s", "counts"), [(-60, False), (-30, True), (30, True), (60, False)])
def test_a_neighbouring_step_counts_and_no_other(later_s: int, counts: bool) -> None:
    at = 1_000_000_000
    found = step_of(SECRET, code_at(SECRET, at // 30), datetime.fromtimestamp(at + later_s, UTC))
    assert found == (at // 30 if counts else None)


def test_text_that_is_no_one_time_code_is_refused() -> None:
    for typed in ("", "12345", "2870820", "２８７０８２", "abcdef"):
        assert step_of(SECRET, typed, datetime.fromtimestamp(59, UTC)) is None, typed


def test_an_app_reads_name_and_secret() -> None:
    uri = app_uri(SECRET, issuer="healer", name="ann b")
    assert uri == "otpauth://totp/healer:ann%20b?secret=GEZDGNBVGY3TQOJQGEZDGNBVGY3TQOJQ&issuer=healer"
