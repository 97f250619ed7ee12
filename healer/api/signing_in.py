"""Completes a sign-in: opens a session for a person vouched for by the provider or proven by a local
account."""

import hashlib
import secrets
from collections.abc import Callable

import msgspec

from healer.api.access import Access, digest_of
from healer.api.credential_budget import OverBudget
from healer.api.services import Services
from healer.engine.local_accounts import Attempt, LocalAccounts
from healer.model import Role
from healer.model.grants import strongest
from healer.ports.account_book import Account
from healer.ports.directory import Arrival
from healer.ports.request_errors import Conflict
from healer.ports.sign_in import SignInRefused
from healer.text import said_by, say

_AGENT_MAX = 200


class Opened(msgspec.Struct, frozen=True):
    """`secret`: the session's cookie, or the secret that a command uses as a token."""

    secret: str
    name: str
    role: Role


def cookie_secret(identity: str) -> str:
    return f"{identity}.{secrets.token_urlsafe(32)}"


def open_by_account(services: Services, access: Access, attempt: Attempt, address: str, agent: str) -> str:
    """The session's cookie. Raises SignInRefused, and OverBudget for an address that shows too many wrong
    ones."""
    account, arrival = _proven(_accounts(services), access, attempt, address)
    return open_session(services, access, arrival, agent, role=account.role).secret


def change_password(
    services: Services, access: Access, attempt: Attempt, new: str, address: str, *, keep: str = ""
) -> int:
    """The person's sessions that ended: all but the session `keep`. Raises as `open_by_account`, and Invalid
    for what is no good password."""
    accounts = _accounts(services)
    account, _ = _proven(accounts, access, attempt, address)
    return accounts.change_password(account, attempt.password, new, keep=keep)


def _accounts(services: Services) -> LocalAccounts:
    if services.accounts is None:
        raise SignInRefused(say("api.sign_in_no_accounts"))
    return services.accounts


def _proven(
    accounts: LocalAccounts, access: Access, attempt: Attempt, address: str
) -> tuple[Account, Arrival]:
    with access.budget.attempt(address) as hold:
        account = accounts.account_of(attempt.name, attempt.password)
        arrival = None if account is None else _arrival(accounts, access, account, attempt.code)
        if account is None or arrival is None:
            hold.wrong()
            raise SignInRefused(say("api.sign_in_wrong"))
    return account, arrival


def _arrival(accounts: LocalAccounts, access: Access, account: Account, code: str) -> Arrival | None:
    try:
        with access.codes.hold_now(account.id, digest_of(code)) as hold:
            arrival = accounts.arrival(account, code)
            if arrival is None:
                hold.wrong()
            return arrival
    except OverBudget:  # the same answer: a stranger does not learn that the password is right
        return None


def open_session(
    services: Services,
    access: Access,
    arrival: Arrival,
    agent: str,
    *,
    role: Role | None = None,
    make: Callable[[str], str] = cookie_secret,
) -> Opened:
    """`role`: the account's own, where no groups grant one. `make`: the secret for the id of the session's
    token. Raises SignInRefused."""
    rules = services.rules().access
    role = role or strongest(rules.grants_of(arrival.subject, arrival.groups))
    # For a browser's session, the groups' grants are checked at each request, so this role itself opens
    # nothing.
    if rules.job_owners and make is cookie_secret:
        role = role or Role.viewer
    if role is None:
        raise SignInRefused(say("api.granted_no_role", name=arrival.names[0]))
    # By what makes this arrival one: the primary key refuses the same one twice.
    token = hashlib.sha256(f"sign in\0{arrival.issuer}\0{arrival.once}".encode()).hexdigest()[:24]
    secret = make(token)
    plain = "".join(letter for letter in agent if letter.isprintable())[:_AGENT_MAX]
    try:
        person = services.people.arrive(
            arrival, digest_of(secret), token=token, role=role, agent=plain, now=services.clock.now()
        )
    except Conflict as error:
        raise SignInRefused(said_by(error)) from error
    if not services.people.wait_for_seal(token):
        raise SignInRefused(say("api.sign_in_not_sealed"))
    access.budget.accept_session(digest_of(secret))
    return Opened(secret, person.name, role)


def end_by_provider(services: Services, logout_token: str) -> int:
    """Ends the sessions that the provider has ended; returns their number. Raises SignInRefused."""
    provider = services.sign_in.provider if services.sign_in is not None else None
    if provider is None:
        raise SignInRefused(say("api.sign_in_no_provider"))
    gone, now = provider.logged_out(logout_token), services.clock.now()
    return services.people.end_by_provider(provider.issuer, subject=gone.subject, sid=gone.sid, now=now)
