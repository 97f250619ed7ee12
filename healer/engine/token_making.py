"""Tokens and service accounts: the checks when one is created, and its successor."""

from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from healer.model.grants import ACTING
from healer.model.person_names import broke_glass, is_person_name
from healer.model.shown import shown
from healer.ports.callers import NewToken
from healer.ports.request_errors import Conflict, Invalid
from healer.ports.service_accounts import (
    LASTS_AT_MOST,
    LASTS_LONGER,
    ROUTE_GROUPS,
    TokenRow,
    is_person,
    person_of,
)
from healer.signals.wire import is_job_id, is_node_name
from healer.text import quoted, say


def checked_token(new: NewToken, now: datetime) -> NewToken:
    """The token to create. A name with a slash makes it a service account, which needs an owner. A service
    account and a token above viewer must expire. Raises Invalid, which names the field."""
    if shown(new.name) != new.name:
        raise Invalid("name", say("engine.name_unseen", name=new.name))
    if broke_glass(new.name):
        raise Invalid("name", say("engine.name_of_glass", name=new.name))
    if new.node is not None and not is_node_name(new.node):
        raise Invalid("node", say("engine.token_of_one_node", name=quoted(new.node)))
    if new.job is not None and not is_job_id(new.job):
        raise Invalid("job", say("engine.token_of_one_job", name=quoted(new.job)))
    if is_person(new.name):
        if new.routes:
            raise Invalid("only", say("engine.only_for_accounts"))
        if new.role in ACTING and not is_person_name(new.name):
            raise Invalid("name", say("engine.token_person_name", name=new.name, role=new.role.value))
        return new if new.role in LASTS_LONGER else msgspec.structs.replace(new, expires_at=_end(new, now))
    owner, _, name = new.name.partition("/")
    if not owner.strip() or not name.strip() or not is_person(name):
        raise Invalid("name", say("engine.account_name", name=new.name))
    if new.once:
        raise Invalid("once", say("engine.account_no_link"))
    _check_routes(new.routes)
    routes = tuple(sorted(set(new.routes)))
    return msgspec.structs.replace(new, expires_at=_end(new, now), owner=person_of(new.name), routes=routes)


def _end(new: NewToken, now: datetime) -> datetime:
    """The expiry. Raises Invalid if it is too far away."""
    until = new.expires_at if new.expires_at is not None else now + LASTS_AT_MOST
    if new.role not in LASTS_LONGER and until > now + LASTS_AT_MOST:
        raise Invalid("expires", say("engine.token_too_long", role=new.role.value, days=LASTS_AT_MOST.days))
    return until


def _check_routes(routes: Sequence[str]) -> None:
    for route in routes:
        if route not in ROUTE_GROUPS:
            raise Invalid("only", say("engine.no_route_group", name=route, names=", ".join(ROUTE_GROUPS)))


def successor(row: TokenRow, now: datetime, lasts: timedelta | None = None) -> NewToken:
    """The token that replaces this one: the same rights, and the same lifetime unless `lasts` is given.
    Raises Conflict, Invalid."""
    if not row.is_in_force(now):
        raise Conflict(say("engine.token_ended", token=row.id))
    if row.once or row.node or row.job:
        raise Conflict(say("engine.not_rotated"))
    if row.role in ACTING and row.name == f"{row.role}-{row.id}":  # created before such tokens had names
        raise Conflict(say("engine.token_unnamed", token=row.id))
    if lasts is None and row.expires_at is not None:
        lasts = row.expires_at - row.created_at
    return checked_token(
        NewToken(
            role=row.role,
            name=row.name,
            cluster=row.cluster,
            expires_at=now + lasts if lasts is not None else None,
            quota=row.quota,
            vouches=row.vouches,
            routes=row.routes,
        ),
        now,
    )
