"""Break-glass on the console: a banner on every page while it is active, and its state on /tokens."""

from datetime import timedelta

import msgspec
import pytest
from fastapi.testclient import TestClient

from healer.model import Role
from healer.ports.break_glass import GlassState
from tests.support.console_sample import NOW
from tests.support.console_site import Site, make_sample

COOKIE = {"Cookie": "healer_session=cookie-good"}
SEALED = GlassState(sealed_at=NOW - timedelta(days=9), sealed_by="root")
HOUR = GlassState(
    sealed_at=NOW - timedelta(days=9), sealed_by="root", used_at=NOW, used_by="break-glass (ada)",
    reason="the provider is away", until=NOW + timedelta(hours=1),
)  # fmt: skip


def page(path: str, state: GlassState, role: Role = Role.viewer) -> str:
    sample = make_sample(4)
    sample.standing = msgspec.structs.replace(sample.standing, glass=state)
    return TestClient(Site(sample, role=role).app).get(path, headers=COOKIE).text


@pytest.mark.parametrize("path", ["/", "/runs", "/access", "/audit", "/tokens"])
def test_a_banner_says_who_is_an_administrator_while_it_is_active(path: str) -> None:
    assert "break-glass (ada) is an administrator." in page(path, HOUR)
    assert "is an administrator." not in page(path, SEALED)


def test_an_administrator_may_end_it_there() -> None:
    end = 'data-act="/api/v1/break-glass/end"'
    assert end in page("/", HOUR, Role.admin)
    assert end not in page("/", HOUR, Role.operator) and end not in page("/", SEALED, Role.admin)


def test_its_state_is_for_admins_and_auditors() -> None:
    assert "the provider is away" in page("/tokens", HOUR, Role.auditor)
    assert "not used." in page("/tokens", SEALED, Role.admin)
    assert "No seal:" in page("/tokens", GlassState(), Role.admin)
    assert "Break-glass access" not in page("/tokens", SEALED, Role.operator)
