"""Checks of `healer doctor`: break-glass, and what ends soon."""

from datetime import datetime

from sqlalchemy.exc import SQLAlchemyError

from healer import bootstrap
from healer.adapters.postgres.token_book import accounts_ending, tokens_of_no_person
from healer.adapters.slurm.token_proof import MADE_UP, RestTokens, TokensUnchecked
from healer.adapters.system_clock import SystemClock
from healer.bootstrap.doctor_checks import NAMED, Check, open_database
from healer.ports.break_glass import GlassState
from healer.ports.callers import CredentialRefused
from healer.ports.request_errors import Unavailable
from healer.ports.service_accounts import TokenRow, ending
from healer.settings import ON, Settings, SettingsError
from healer.text import name_some, quoted, said_by, say


def check_access(settings: Settings) -> list[Check]:
    """Empty if the database does not answer, has older tables or keeps these from this login, which another
    check reports."""
    now = SystemClock().now()
    try:
        with open_database(settings) as db:
            if db is None:
                return []
            state = bootstrap.emergency(settings, db, "").state()
            unowned = tokens_of_no_person(db, now, provided=bootstrap.has_provider(settings))
            results = [break_glass_check(state, now), *account_checks(accounts_ending(db, now), now)]
            return results + ([unowned_tokens_check(unowned)] if unowned else [])
    except (SettingsError, SQLAlchemyError, Unavailable):
        return []


def break_glass_check(state: GlassState, now: datetime) -> Check:
    name, seal = say("doctor.break_glass"), say("doctor.seal_repair")
    if state.is_open(now):
        until, reason = f"{state.until:%H:%M} UTC", quoted(state.reason)
        text = say("doctor.glass_open", who=state.used_by, until=until, reason=reason)
        return Check(name, False, text, say("doctor.glass_end"))
    if state.used_at is not None:
        text = say("doctor.glass_used", who=state.used_by, at=f"{state.used_at:%Y-%m-%d %H:%M} UTC")
        return Check(name, False, text, seal)
    if not state.is_whole:
        return Check(name, True, say("doctor.glass_none"), seal)
    return Check(
        name, True, say("doctor.glass_ready", day=f"{state.sealed_at:%Y-%m-%d}", who=state.sealed_by)
    )


def check_slurm_login(settings: Settings) -> list[Check]:
    """Whether the slurmrestd by which people sign in looks at their tokens."""
    return [
        _checks_tokens(each.slurm_rest_url, each.cluster)
        for each in settings.each()
        if each.slurm_login == ON and each.slurm_rest_url is not None
    ]


def _checks_tokens(url: str, cluster: str | None) -> Check:
    name = say("doctor.slurm_sign_in")
    try:
        RestTokens(url, cluster=cluster, timeout_s=bootstrap.SLURM_TIMEOUT_S).owner(MADE_UP)
    except TokensUnchecked as error:
        return Check(name, False, said_by(error))
    except CredentialRefused:
        return Check(name, True, say("doctor.slurm_sign_in_well", url=url))
    except Unavailable as error:
        return Check(name, False, said_by(error), say("doctor.slurm_sign_in_repair"))
    raise AssertionError("a made-up token was proven")


def unowned_tokens_check(names: list[str]) -> Check:
    """`names`: of tokens above viewer that may only read; at least one."""
    text = say("doctor.tokens_unowned", names=name_some(names, NAMED))
    return Check(say("doctor.tokens"), False, text, say("doctor.tokens_unowned_repair"))


def account_checks(rows: list[TokenRow], now: datetime) -> list[Check]:
    return [
        Check(
            say("doctor.account", name=row.name),
            row.is_in_force(now),
            say(
                "doctor.account_ends" if row.is_in_force(now) else "doctor.account_ended",
                at=f"{row.expires_at:%Y-%m-%d %H:%M} UTC",
            ),
            say("doctor.account_repair", owner=row.owner, id=row.id),
        )
        for row, _ in ending(rows, now)
    ]
