"""Tokens and people as rows and buttons."""

from datetime import datetime
from urllib.parse import quote

from healer.console.views import Shown
from healer.console.views.buttons import Button, InputField, worded
from healer.engine.leavers import PersonHolds
from healer.ports.callers import Caller
from healer.ports.service_accounts import AHEAD, TokenRow, is_person
from healer.text import say


def token_row(row: TokenRow, now: datetime, *, may_revoke: bool) -> Shown:
    """`person`: its holder. `state`: why it is no longer valid; empty while it is. `tone`: of its end."""
    person = row.owner or row.name
    return Shown(
        row=row,
        person=person if is_person(person) else "",
        state=_state(row, now),
        tone=_tone(row, now),
        revoke=Button(**worded("revoke", name=row.name), action=f"/api/v1/tokens/{row.id}/revoke")
        if may_revoke and row.is_in_force(now)
        else None,
    )


def end_button(held: PersonHolds, caller: Caller) -> Button | None:
    """Shown while the person holds anything that can be ended; for an admin of the whole site."""
    if caller.name == held.name or not is_person(held.name):
        return None
    if not (held.tokens or held.sessions or held.incidents or held.account):
        return None
    to = InputField(
        name="to", help=say("console.people_takes_over"), default="", required=bool(held.incidents)
    )
    action = f"/api/v1/people/{quote(held.name, safe='')}/end"
    inputs = (to,) if held.incidents else ()
    return Button(**worded("end_person", name=held.name), action=action, inputs=inputs, flat=True)


def _state(row: TokenRow, now: datetime) -> str:
    if row.revoked_at is not None:
        return say("console.people_revoked")
    return "" if row.is_in_force(now) else say("console.people_expired")


def _tone(row: TokenRow, now: datetime) -> str:
    if row.expires_at is None:
        return "warn"
    first, last, ended = AHEAD
    left, whole = row.expires_at - now, row.expires_at - row.created_at
    if left <= ended:
        return ""
    return "bad" if left <= last < whole else "warn" if left <= first < whole else ""
