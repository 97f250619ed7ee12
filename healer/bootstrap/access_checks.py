"""Checks of `healer doctor`: break-glass, and what ends soon."""

from datetime import datetime

from healer import bootstrap
from healer.adapters.postgres.token_book import accounts_ending, tokens_of_no_person
from healer.adapters.slurm.token_proof import MADE_UP, RestTokens, TokensUnchecked
from healer.adapters.system_clock import SystemClock
from healer.bootstrap.doctor_checks import Look, open_database
from healer.ports.break_glass import GlassState
from healer.ports.callers import CredentialRefused
from healer.ports.request_errors import Unavailable
from healer.ports.service_accounts import TokenRow, ending
from healer.settings import ON, Settings, SettingsError

#: Names that are listed.
_NAMES = 5
_SEAL = "Make a new seal with `healer break-glass seal` and put it in the safe."


def look_at_access(settings: Settings) -> list[Look]:
    """Nothing where the database does not answer, which another check says."""
    now = SystemClock().now()
    try:
        with open_database(settings) as db:
            if db is None:
                return []
            state = bootstrap.emergency(settings, db, "").state()
            unowned = tokens_of_no_person(db, now, provided=bootstrap.has_provider(settings))
            looks = [glass_look(state, now), *account_looks(accounts_ending(db, now), now)]
            return looks + ([person_look(unowned)] if unowned else [])
    except (SettingsError, Unavailable):
        return []


def glass_look(state: GlassState, now: datetime) -> Look:
    name = "break-glass"
    if state.is_open(now):
        text = f"{state.used_by} is an administrator until {state.until:%H:%M} UTC: {state.reason}"
        return Look(name, False, text, "End it with `healer break-glass end` when it is no longer needed.")
    if state.used_at is not None:
        text = f"the seal is broken: {state.used_by} used it at {state.used_at:%Y-%m-%d %H:%M} UTC"
        return Look(name, False, text, _SEAL)
    if not state.is_whole:
        return Look(name, True, "no seal: while sign-in is down, there is no other way in", _SEAL)
    return Look(name, True, f"sealed {state.sealed_at:%Y-%m-%d} by {state.sealed_by}, unused")


def look_at_slurm_login(settings: Settings) -> list[Look]:
    """Whether the slurmrestd by which people sign in looks at their tokens."""
    return [
        _checks_tokens(each.slurm_rest_url, each.cluster)
        for each in settings.each()
        if each.slurm_login == ON and each.slurm_rest_url is not None
    ]


def _checks_tokens(url: str, cluster: str | None) -> Look:
    name = "sign-in by Slurm tokens"
    try:
        RestTokens(url, cluster=cluster, timeout_s=bootstrap.SLURM_TIMEOUT_S).owner(MADE_UP)
    except TokensUnchecked as error:
        return Look(name, False, str(error))
    except CredentialRefused:
        return Look(name, True, f"slurmrestd at {url} refuses a made-up token")
    except Unavailable as error:
        return Look(name, False, str(error), "Nobody signs in by a Slurm token until it responds.")
    raise AssertionError("a made-up token was proven")


def person_look(names: list[str]) -> Look:
    """`names`: of tokens above viewer that may only read; at least one."""
    shown = ", ".join(names[:_NAMES]) + (f" and {len(names) - _NAMES} more" if len(names) > _NAMES else "")
    text = f"{shown}: no known person and no service account, so they may only read"
    repair = "Create others with `healer token create --role ROLE --name PERSON`, and revoke these."
    return Look("tokens above viewer", False, text, repair)


def account_looks(rows: list[TokenRow], now: datetime) -> list[Look]:
    return [
        Look(
            f"service account {row.name}",
            row.is_in_force(now),
            f"{'ends' if row.is_in_force(now) else 'ended'} {row.expires_at:%Y-%m-%d %H:%M} UTC",
            f"{row.owner} can replace it with `healer token rotate {row.id}`.",
        )
        for row, _ in ending(rows, now)
    ]
