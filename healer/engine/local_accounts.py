"""Local accounts: how one is made, and what proves who signs in.

No row of the database lets anybody in: the password is hashed together with the account's name, role and
groups under a key that the database never holds, and the secret of the codes is derived from that key.
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

#: 100 bits as base32 in groups of five: typed once, then kept by a password manager.
_PASSWORD_LETTERS, _GROUP = 20, 5
_CODE_BYTES = 20
#: Characters of a password that a person chooses; a code is needed too.
_PASSWORD_LEAST, _PASSWORD_MOST = 12, 200
#: How long it is known whether there are accounts.
_EXIST_S = 2.0
_LETTERS = "abcdefghijklmnopqrstuvwxyz234567"


class Made(NamedTuple):
    """A new account and its secrets, shown this once."""

    account: Account
    password: str
    code_secret: str
    uri: str


class Attempt(NamedTuple):
    """What a person typed."""

    name: str
    password: str
    code: str


class LocalAccounts:
    """Raises Unavailable."""

    def __init__(self, book: AccountBook, passwords: Passwords, key: bytes, clock: Clock) -> None:
        self.book, self._passwords, self._key, self._clock = book, passwords, key, clock
        #: A hash that no password fits: an unknown name takes as long as a known one.
        self._decoy = ""
        #: Whether there are accounts, and when that was asked.
        self._exist = (float("-inf"), False)

    def exist(self) -> bool:
        """Whether there are any; the page of signing in asks, which everybody can open."""
        now = self._clock.now().timestamp()
        if abs(now - self._exist[0]) > _EXIST_S:
            with suppress(Unavailable):  # the page is shown all the same
                self._exist = now, bool(self.book.all())
        return self._exist[1]

    def make(self, name: str, *, role: Role | None, groups: tuple[str, ...], by: str) -> Made:
        """A new account, or new secrets for one: the sessions of the one before end. Raises Invalid,
        Conflict."""
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
        """How many of the person's sessions ended: all but `keep`. The account, its one-time codes and what
        it may do stay. Raises Invalid, and Conflict where it was reset or ended meanwhile."""
        if not _PASSWORD_LEAST <= len(new) <= _PASSWORD_MOST or new != new.strip():
            raise Invalid("new", say("engine.account_password", least=_PASSWORD_LEAST, most=_PASSWORD_MOST))
        if new == old:
            raise Invalid("new", say("engine.account_password_same"))
        sealed = self._passwords.sealed(self._material(account, new))
        return self.book.reseal(account, sealed, keep=keep, now=self._clock.now())

    def account_of(self, name: str, password: str) -> Account | None:
        """The account whose password this is."""
        found = self.book.find(name) if is_person_name(name) else None
        if found is None:
            self._decoy = self._decoy or self._passwords.sealed(secrets.token_bytes(32))
            self._passwords.fits(password.encode(), self._decoy)
            return None
        account, sealed = found
        return account if self._passwords.fits(self._material(account, password), sealed) else None

    def arrival(self, account: Account, code: str) -> Arrival | None:
        """Who has just proved who they are; None: it is no code of now. A code counts once: an arrival
        does."""
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
