"""What is refused when a service account is made, and what takes its place."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from healer.engine.token_making import checked_token, successor
from healer.model import Role
from healer.ports.callers import NewToken
from healer.ports.request_errors import Conflict, Invalid
from healer.ports.service_accounts import TokenRow

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
DAY = timedelta(days=1)


def account(**fields: Any) -> NewToken:
    return NewToken(**{"role": Role.operator, "name": "ann/ci", **fields})


@pytest.mark.parametrize(
    ("new", "field"),
    [
        (account(expires_at=NOW + 91 * DAY), "expires"),
        (account(role=Role.auditor, expires_at=NOW + 91 * DAY), "expires"),
        (account(name="ann", expires_at=NOW + 91 * DAY), "expires"),
        (account(once=True), "once"),
        (account(routes=("nodes", "no-such")), "only"),
        (account(name="ann", routes=("nodes",)), "only"),
        (account(name="/ci"), "name"),
        (account(name="ann/"), "name"),
        (account(name="ann/ci/2"), "name"),
        (account(name="ann\u200b"), "name"),
        (account(name=""), "name"),
        (account(name="healer"), "name"),
        (NewToken(role=Role.signals, node="gpu0001,gpu0002"), "node"),
        (NewToken(role=Role.signals, node="gpu[0001-0002]"), "node"),
        (NewToken(role=Role.signals, node=""), "node"),
        (NewToken(role=Role.signals, job="4711,4712"), "job"),
        (NewToken(role=Role.signals, job="4711 4712"), "job"),
        (NewToken(role=Role.signals, job=""), "job"),
    ],
)
def test_invalid_account_is_refused_with_its_field(new: NewToken, field: str) -> None:
    with pytest.raises(Invalid) as refused:
        checked_token(new, NOW)
    assert refused.value.field == field


def test_an_account_has_an_owner_and_an_end() -> None:
    made = checked_token(account(routes=("runs", "nodes", "runs")), NOW)
    assert (made.owner, made.routes, made.expires_at) == ("ann", ("nodes", "runs"), NOW + 90 * DAY)
    longer = checked_token(account(role=Role.viewer, expires_at=NOW + 365 * DAY), NOW)
    assert longer.expires_at == NOW + 365 * DAY


def test_a_persons_token_ends_too_unless_it_only_reads_or_sends() -> None:
    made = checked_token(NewToken(role=Role.admin, name="ann"), NOW)
    assert (made.name, made.owner, made.expires_at) == ("ann", "", NOW + 90 * DAY)
    for role in (Role.viewer, Role.signals):
        new = NewToken(role=role, name="wall")
        assert checked_token(new, NOW) is new


def row(**fields: Any) -> TokenRow:
    made: dict[str, Any] = {"id": "0a0a0a0a", "role": Role.operator, "name": "ann/ci", "owner": "ann"}
    made |= {"created_at": NOW - 20 * DAY, "expires_at": NOW + 10 * DAY, "routes": ("runs",)}
    return TokenRow(**made | fields)


def test_a_successor_has_the_same_rights_and_lasts_as_long() -> None:
    new = successor(row(cluster="pod1", quota=2.0), NOW)
    assert (new.role, new.name, new.owner, new.routes) == (Role.operator, "ann/ci", "ann", ("runs",))
    assert (new.cluster, new.quota, new.expires_at) == ("pod1", 2.0, NOW + 30 * DAY)
    assert successor(row(), NOW, 2 * DAY).expires_at == NOW + 2 * DAY
    with pytest.raises(Invalid):
        successor(row(), NOW, 91 * DAY)


@pytest.mark.parametrize(
    "ended", [{"revoked_at": NOW}, {"expires_at": NOW}, {"once": True}, {"node": "gpu0001"}, {"job": "4711"}]
)
def test_ended_or_self_renewing_token_has_no_successor(ended: dict[str, Any]) -> None:
    with pytest.raises(Conflict):
        successor(row(**ended), NOW)


def test_a_token_without_a_name_stays_without_a_successor_above_viewer() -> None:
    with pytest.raises(Conflict, match="has no name"):
        successor(row(name="operator-0a0a0a0a", owner="", routes=()), NOW)
    old = row(role=Role.viewer, name="viewer-0a0a0a0a", owner="", routes=())
    assert (successor(old, NOW).name, successor(old, NOW).expires_at) == (old.name, NOW + 30 * DAY)
    endless = row(name="ann", owner="", routes=(), expires_at=None)
    assert successor(endless, NOW).expires_at == NOW + 90 * DAY, "made before such tokens had an end"


def test_the_name_of_who_broke_the_glass_is_no_token_s() -> None:
    with pytest.raises(Invalid, match="reserved for break-glass"):
        checked_token(NewToken(role=Role.admin, name="break-glass (ann)"), NOW)
