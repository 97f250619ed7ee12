"""The pages of tokens and of what a person holds: each role sees its own, and who may sees all."""

from datetime import UTC, datetime, timedelta

import pytest
from fastapi.testclient import TestClient

from healer.console.views.people_view import token_row
from healer.model import Role
from healer.ports.service_accounts import TokenRow
from tests.support.console_site import Site, make_sample

COOKIE = {"Cookie": "healer_session=cookie-good"}


def page(path: str, role: Role) -> tuple[int, str]:
    answer = TestClient(Site(make_sample(4), role=role).app).get(path, headers=COOKIE)
    return answer.status_code, answer.text


@pytest.mark.parametrize("role", [Role.viewer, Role.operator])
def test_a_person_sees_his_own_tokens_and_accounts(role: Role) -> None:
    status, text = page("/tokens", role)
    assert (status, "mara/night-ci" in text, "jon" in text) == (200, True, False)
    assert "/api/v1/tokens/0a0a0a02/revoke" in text


def test_an_auditor_sees_all_and_ends_none_of_others() -> None:
    status, text = page("/tokens?ended=true", Role.auditor)
    assert (status, "jon/old" in text, "revoked" in text) == (200, True, True)
    assert "/api/v1/tokens/0a0a0a04/revoke" not in text
    assert page("/tokens", Role.admin)[1].count("/api/v1/tokens/") == 3


def test_a_persons_page_is_for_admins_and_auditors() -> None:
    assert page("/people/jon", Role.operator)[0] == 403
    status, text = page("/people/mara", Role.auditor)
    assert (status, "mara/board" in text, "/api/v1/people/mara/end" in text) == (200, True, False)


def test_an_admin_ends_another_and_not_himself() -> None:
    assert "/api/v1/people/mara/end" not in page("/people/mara", Role.admin)[1]
    assert "/api/v1/people/jon/end" in page("/people/jon", Role.admin)[1]


@pytest.mark.parametrize(
    ("age", "left", "tone"),
    [(80, 20, ""), (80, 10, "warn"), (88, 2, "bad"), (0.1, 0.4, ""), (10, None, "warn")],
)
def test_an_end_is_marked_when_it_is_near_and_not_where_it_always_was(
    age: float, left: float | None, tone: str
) -> None:
    """Such as that of a session, 12 hours after its beginning."""
    now = datetime(2026, 11, 20, tzinfo=UTC)
    row = TokenRow(
        id="0a0a0a0a",
        role=Role.operator,
        name="ann",
        created_at=now - timedelta(days=age),
        expires_at=None if left is None else now + timedelta(days=left),
    )
    assert token_row(row, now, may_revoke=False).tone == tone
