"""Local accounts: how they are created, and what proves a person's identity at sign-in.

A row in the database alone lets no one in: the password is hashed together with the account's name, role and
groups under a key that the database never holds, and the secret of the one-time codes is derived from that
key.
"""

import base64
import hmac
import json
import secrets
from contextlib import suppress
from typing import NamedTuple

from healer.model import Role
from healer.model.one_time_codes import app_uri, as_text, step_of
from healer.model.person_names import is_person_name
from healer.model.shown import shown
from healer.ports.account_book import Account, AccountBook, Passwords
from healer.ports.clock import Clock
from healer.ports.directory import LOCAL, Arrival
from healer.ports.request_errors import Invalid, Unavailable
from healer.text import say

#: 100 bits as base32 in groups of five: typed once, then stored in a password manager.
_PASSWORD_LETTERS, _GROUP = 20, 5
_CODE_BYTES = 20
#: Length limits in characters for a chosen password; sign-in also needs a code.
_PASSWORD_LEAST, _PASSWORD_MOST = 12, 200
#: How long the answer of `exist` is cached.
_EXIST_S = 2.0
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


class Made(NamedTuple):
    """A new account and its secrets, shown only once."""

    account: Account
    password: str
    code_secret: str
    uri: str


class Attempt(NamedTuple):
    """A sign-in attempt: the values that the person typed."""

    name: str
    password: str
    code: str


class LocalAccounts:
    """Raises Unavailable."""

    def __init__(self, book: AccountBook, passwords: Passwords, key: bytes, clock: Clock) -> None:
        self.book, self._passwords, self._key, self._clock = book, passwords, key, clock
        #: A hash that no password matches, so that an unknown name takes as long to check as a known one.
        self._decoy = ""
        #: When the database was last asked, and whether there were accounts.
        self._exist = (float("-inf"), False)

    def exist(self) -> bool:
        """Whether there are any accounts. Cached, because anyone can open the sign-in page, which asks."""
        now = self._clock.now().timestamp()
        if abs(now - self._exist[0]) > _EXIST_S:
            with suppress(Unavailable):  # the sign-in page works without the answer
                self._exist = now, bool(self.book.all())
        return self._exist[1]

    def make(self, name: str, *, role: Role | None, groups: tuple[str, ...], by: str) -> Made:
        """A new account, or new secrets for an existing one, whose sessions end. Raises Invalid, Conflict."""
        _check(name, role, groups)
        account = Account(
            id=secrets.token_hex(8), name=name, role=role, groups=tuple(sorted(set(groups))),
            created_at=self._clock.now(), created_by=by,
        )  # fmt: skip
        letters = "".join(secrets.choice(_LETTERS) for _ in range(_PASSWORD_LETTERS))
        password = "-".join(letters[at : at + _GROUP] for at in range(0, len(letters), _GROUP))
        self.book.put(account, self._passwords.sealed(self._material(account, password)))
        code = self._code_secret(account)
        return Made(account, password, as_text(code), app_uri(code, issuer="healer", name=name))

    def change_password(self, account: Account, old: str, new: str, *, keep: str = "") -> int:
        """The number of the person's sessions that ended: all but `keep`. The account, its one-time codes and
        its rights stay the same. Raises Invalid, and Conflict if the account was reset or ended meanwhile."""
        if not _PASSWORD_LEAST <= len(new) <= _PASSWORD_MOST or new != new.strip():
            raise Invalid("new", say("engine.account_password", least=_PASSWORD_LEAST, most=_PASSWORD_MOST))
        if new == old:
            raise Invalid("new", say("engine.account_password_same"))
        sealed = self._passwords.sealed(self._material(account, new))
        return self.book.reseal(account, sealed, keep=keep, now=self._clock.now())

    def account_of(self, name: str, password: str) -> Account | None:
        """The account with this name and password; None if they do not match."""
        found = self.book.find(name) if is_person_name(name) else None
        if found is None:
            self._decoy = self._decoy or self._passwords.sealed(secrets.token_bytes(32))
            self._passwords.fits(password.encode(), self._decoy)
            return None
        account, sealed = found
        return account if self._passwords.fits(self._material(account, password), sealed) else None

    def arrival(self, account: Account, code: str) -> Arrival | None:
        """The identity proven by this code; None if the code is not valid now. `once` makes an arrival, and
        so a code, valid only once."""
        now = self._clock.now()
        step = step_of(self._code_secret(account), code, now)
        if step is None:
            return None
        return Arrival(
            issuer=LOCAL, subject=account.name, names=(account.name,), groups=account.groups,
            proven_at=now, once=f"{account.id} {step}", sid=account.id,
        )  # fmt: skip

    def _material(self, account: Account, password: str) -> bytes:
        role = account.role.value if account.role is not None else None
        whole = [account.id, account.name, role, account.groups, password]
        text = hmac.digest(self._key, b"password\0" + json.dumps(whole).encode(), "sha256")
        return base64.b64encode(text)

    def _code_secret(self, account: Account) -> bytes:
        return hmac.digest(self._key, f"one-time codes\0{account.id}".encode(), "sha256")[:_CODE_BYTES]


def _check(name: str, role: Role | None, groups: tuple[str, ...]) -> None:
    if not is_person_name(name):
        raise Invalid("name", say("engine.account_person_name", name=name))
    if (role is None) is (not groups):
        raise Invalid("role", say("engine.account_role_or_groups"))
    if role is Role.signals:
        raise Invalid("role", say("engine.account_sends_nothing"))
    for group in groups:
        if not group.strip() or shown(group) != group:
            raise Invalid("group", say("engine.account_group", group=group))
