"""How many wrong credentials an address may show before the database is no longer asked about what it sends.

Each look-up runs within a hold: it takes one off the budget of its address before the database is asked, and
gives it back unless the credential is wrong. So a thousand look-ups at once cost no more than the budget. A
credential that was accepted lately passes whatever its address owes: people and nodes behind one address do
not pay for a stranger behind it.
"""

import hashlib
import ipaddress
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import NamedTuple, TypeVar

from starlette.requests import HTTPConnection

from healer.api.metrics import CREDENTIALS_REFUSED
from healer.api.problems import Problem
from healer.api.services import Services
from healer.api.site_address import client_address
from healer.text import say

K = TypeVar("K")
V = TypeVar("V")
#: Wrong credentials of an address at once, and per second afterwards.
BURST, PER_S = 60.0, 0.5
#: The same wrong credential counts once in this time: a browser whose session ended asks every few seconds.
COUNTED_S = 60.0
#: How long an accepted credential passes the budget.
SEEN_S = 86_400.0
#: An address that is forgotten, the longest unheard, begins with a whole budget.
ADDRESSES, CREDENTIALS = 10_000, 50_000
#: Seconds before a refusal is answered: a connection that sends the next credential after the answer costs us
#: little.
DELAY_S = 2.0
#: An address is reported once it is refused for this long, without a pause of that length.
LONG_S, PAUSE_S = 300.0, 60.0
#: Leading bits of an IPv6 address that count: a host has a network of this size to choose from.
_PREFIX = 64


class OverBudget(Problem):
    """429 with the seconds until this address may show another credential."""

    lost = 0
    delay_s = DELAY_S

    def __init__(self, address: str, wait_s: int) -> None:
        super().__init__(
            429,
            say("api.budget_over", address=address, seconds=wait_s),
            code="credentials",
            headers={"Retry-After": str(wait_s)},
        )


class StrangersWait(Problem):
    """503: too many credentials that were not accepted recently wait to be looked up."""

    lost = 0
    delay_s = DELAY_S

    def __init__(self) -> None:
        super().__init__(503, say("api.budget_strangers_wait"), headers={"Retry-After": "2"})


class Flood(NamedTuple):
    """An address that has been refused for long: for how many seconds, and how many times."""

    address: str
    lasts_s: float
    refused: int


@dataclass(slots=True)
class _Account:
    """What is left of the budget at a time. `held` of it are look-ups under way."""

    at: float
    left: float
    held: int = 0
    refused: int = 0
    refused_first: float = 0.0
    refused_last: float = float("-inf")


class Hold:
    """One look-up of a credential from an address. Before it ends, set `person` if the credential was right,
    else call `wrong`; a failed look-up is neither. `was_person`: whether the recently accepted credential is
    a person's; None: it was not accepted recently."""

    def __init__(self, budget: "CredentialBudget", address: str, mark: bytes, account: _Account | None):
        self._budget, self._address, self._mark, self._account = budget, address, mark, account
        self.was_person: bool | None = None
        self.person: bool | None = None

    def __enter__(self) -> "Hold":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._account is not None:
            self._budget.release(self._account)
        if self.person is not None:
            self._budget.accept(self._mark, person=self.person)

    def wrong(self) -> None:
        self._budget.charge(self._address, self._mark)


class CredentialBudget:
    """Thread-safe. `clock` only goes forward, in s."""

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, *, burst: float = BURST, per_s: float = PER_S
    ) -> None:
        self._clock, self._lock, self._key = clock, threading.Lock(), secrets.token_bytes(32)
        self._burst, self._per_s = burst, per_s
        self._accounts: OrderedDict[str, _Account] = OrderedDict()
        #: By their marks: when each was accepted last, and whether it is a person's.
        self._accepted: OrderedDict[bytes, tuple[float, bool]] = OrderedDict()
        #: When each wrong credential was counted.
        self._counted: OrderedDict[bytes, float] = OrderedDict()

    def hold(self, address: str, digest: bytes) -> Hold | None:
        """None while the rest of the budget is held by look-ups under way: ask again in a moment. Raises
        OverBudget when it is spent."""
        address, mark = counted_address(address), self._mark(digest)
        with self._lock:
            now = self._clock()
            if self._is_accepted(mark, now):
                hold = Hold(self, address, mark, None)
                hold.was_person = self._accepted[mark][1]
                return hold
            account = self._account(address, now)
            if account.left < 1:
                _refuse(account, now)
                raise OverBudget(address, math.ceil((1 - account.left) / self._per_s))
            if account.left - account.held < 1:
                return None
            account.held += 1
            return Hold(self, address, mark, account)

    def hold_now(self, address: str, digest: bytes) -> Hold:
        """The same for callers that cannot wait: raises OverBudget in both cases."""
        held = self.hold(address, digest)
        if held is None:
            raise OverBudget(counted_address(address), 1)
        return held

    def attempt(self, address: str) -> Hold:
        """`hold_now` for a form that a person fills in: each attempt counts, also the same one again, as each
        costs a hash or a transaction."""
        return self.hold_now(address, secrets.token_bytes(32))

    def accept_session(self, digest: bytes) -> None:
        """For the session that a person's sign-in has just created."""
        self.accept(self._mark(digest), person=True)

    def accept(self, mark: bytes, *, person: bool) -> None:
        with self._lock:
            _keep(self._accepted, mark, (self._clock(), person), CREDENTIALS)

    def charge(self, address: str, mark: bytes) -> None:
        CREDENTIALS_REFUSED.labels("wrong").inc()
        with self._lock:
            now = self._clock()
            self._accepted.pop(mark, None)
            if now - self._counted.get(mark, float("-inf")) >= COUNTED_S:
                _keep(self._counted, mark, now, CREDENTIALS)
                self._account(address, now).left -= 1

    def release(self, account: _Account) -> None:
        with self._lock:
            account.held -= 1

    def floods(self) -> list[Flood]:
        """The addresses that are refused for long, the worst first."""
        with self._lock:
            now = self._clock()
            found = [
                Flood(address, now - account.refused_first, account.refused)
                for address, account in self._accounts.items()
                if now - account.refused_last < PAUSE_S and now - account.refused_first >= LONG_S
            ]
        return sorted(found, key=lambda flood: -flood.refused)

    def _mark(self, digest: bytes) -> bytes:
        """A credential in this table: a copy of the memory is no list to try secrets against."""
        return hashlib.blake2b(digest, key=self._key, digest_size=16).digest()

    def _is_accepted(self, mark: bytes, now: float) -> bool:
        return mark in self._accepted and now - self._accepted[mark][0] < SEEN_S

    def _account(self, address: str, now: float) -> _Account:
        account = self._accounts.get(address)
        if account is None:
            account = _Account(now, self._burst)
        account.left = min(self._burst, account.left + (now - account.at) * self._per_s)
        account.at = now
        _keep(self._accounts, address, account, ADDRESSES)
        return account

    def in_debt(self) -> int:
        """How many addresses are refused now."""
        with self._lock:
            now = self._clock()
            return sum(
                account.left + (now - account.at) * self._per_s < 1 for account in self._accounts.values()
            )


class FloodReports:
    """Has people notified of addresses that are refused for long, once an hour."""

    def __init__(self, budget: CredentialBudget, services: Services) -> None:
        self._budget, self._services = budget, services
        self._reported: datetime | None = None

    def flush(self) -> None:
        """From a thread. Raises Unavailable; then it is reported the next time."""
        floods = self._budget.floods()
        hour = self._services.clock.now().replace(minute=0, second=0, microsecond=0)
        if floods and hour != self._reported:
            refused = sum(flood.refused for flood in floods)
            self._services.controls.report_flood([flood.address for flood in floods], refused)
            self._reported = hour


def _refuse(account: _Account, now: float) -> None:
    CREDENTIALS_REFUSED.labels("budget").inc()
    if now - account.refused_last >= PAUSE_S:
        account.refused, account.refused_first = 0, now
    account.refused += 1
    account.refused_last = now


def _keep(kept: OrderedDict[K, V], key: K, value: V, most: int) -> None:
    """Puts it last, and forgets the first beyond `most`."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def address_of(request: HTTPConnection) -> str:
    """The address of a request, for IPv6 its network: the key of a budget."""
    return counted_address(client_address(request.scope))


def counted_address(text: str) -> str:
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return text
    if isinstance(address, ipaddress.IPv4Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Network((address, _PREFIX), strict=False))
