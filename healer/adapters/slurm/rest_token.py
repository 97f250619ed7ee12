"""Tokens (JWT) for slurmrestd, from a file that is renewed by others, or from a command.

The token is fetched before each request; `refused` reports one that Slurm refused. Tokens are not verified,
and never shown: errors name the file or command and the token's expiry.
"""

import binascii
import math
import os
import re
import stat
import threading
from base64 import urlsafe_b64decode
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

import msgspec

from healer.adapters.slurm import process
from healer.ports.scheduling import SchedulerUnavailable
from healer.text import NO_WORDS, Said, said_by, say

#: `scontrol token` prints SLURM_JWT=…; three parts of base64url with dots between them (RFC 7519).
_TOKEN = re.compile(r"(?:SLURM_JWT=)?([A-Za-z0-9_-]+\.([A-Za-z0-9_-]+)\.[A-Za-z0-9_-]*)")
#: A token has some hundred bytes; with many claims of an identity provider a few thousand.
_MOST_BYTES = 64 * 1024
#: Renewed after this share of its lifetime, because it must outlast a request.
_LIFE_USED = 0.75
#: The pause after a failed renewal.
_TRY_AGAIN_S = 15.0


class Claims(msgspec.Struct, frozen=True):
    """Unix seconds on the issuer's clock; `exp` None: no expiry. `sun` is Slurm's claim for the user."""

    exp: float | None = None
    iat: float | None = None
    sun: str | None = None


class ReadToken(msgspec.Struct, frozen=True):
    text: str
    claims: Claims

    def renew_at(self, now: float) -> float:
        """The time to renew a token that was obtained at `now`.

        The issuer's clock may differ: an impossible remaining time is replaced by the whole lifetime.
        """
        end, start = self.claims.exp, self.claims.iat
        if end is None:
            return math.inf
        left = end - now
        if start is not None and not 0 < left <= end - start:
            left = end - start
        return now + max(left, 0.0) * _LIFE_USED


class FileToken:
    """The token in a file, read again when the file has changed or Slurm refused the token."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path)
        self._lock = threading.Lock()
        self._seen: tuple[int, ...] | None = None
        self._token = ""

    def current(self, now: datetime) -> str:
        """The current token. Raises SchedulerUnavailable with the problem of the file."""
        with self._lock:
            try:
                with self._path.open("rb") as file:
                    status = os.fstat(file.fileno())
                    if status.st_mode & (stat.S_IROTH | stat.S_IWOTH):
                        raise _away(say("slurm.token_readable", path=str(self._path)))
                    seen = (status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size)
                    if seen != self._seen:
                        self._token = _read(file.read(_MOST_BYTES), str(self._path)).text
                        self._seen = seen
            except OSError as error:
                why = say("slurm.token_file_unread", path=str(self._path), error=error.strerror)
                raise _away(why) from None
            return self._token

    def refused(self, token: str) -> None:
        """Slurm refused this token: the file is read again, even if it looks unchanged."""
        with self._lock:
            if token == self._token:
                self._seen = None


class CommandToken:
    """The token that a command prints, such as `scontrol token username=healer lifespan=3600`.

    The command runs without a shell in healer's environment, again after three quarters of the token's
    lifetime or when Slurm refused it.
    """

    def __init__(
        self, argv: Sequence[str], timeout_s: float = 4.0, *, slurm_conf: Path | str | None = None
    ) -> None:
        """`slurm_conf` is set as SLURM_CONF, for `scontrol token`."""
        if not argv:
            raise ValueError(say("slurm.token_command_empty"))
        self._argv, self._timeout_s = tuple(argv), timeout_s
        self._more = {"SLURM_CONF": str(slurm_conf)} if slurm_conf else {}
        self._lock = threading.Lock()
        self._token = ""
        self._failure = NO_WORDS
        self._renew_at = -math.inf

    def current(self, now: datetime) -> str:
        """The current token. Raises SchedulerUnavailable with the problem of the command."""
        with self._lock:
            at = now.timestamp()
            if at >= self._renew_at:
                try:
                    token = self._made()
                except SchedulerUnavailable as error:
                    # Slurm may still accept the old token. Without one, all callers fail at once until the
                    # next attempt.
                    self._failure, self._renew_at = said_by(error), at + _TRY_AGAIN_S
                else:
                    self._token, self._renew_at = token.text, token.renew_at(at)
            if not self._token:
                raise SchedulerUnavailable(self._failure, sent=False)
            return self._token

    def refused(self, token: str) -> None:
        """Slurm refused this token: the next call makes a new one, unless there is one already."""
        with self._lock:
            if token == self._token:
                self._token, self._renew_at = "", -math.inf

    def _made(self) -> ReadToken:
        # Not shown: its arguments and its output, which may contain a secret.
        name = say("slurm.token_command", program=self._argv[0])
        try:
            output = process.run(
                self._argv, {**os.environ, **self._more}, self._timeout_s, most_bytes=_MOST_BYTES
            )
        except SchedulerUnavailable as error:
            raise _away(say("slurm.token_failed", name=name, error=said_by(error))) from None
        if output.code:
            raise _away(say("slurm.token_code", name=name, code=output.code))
        return _read(output.out, name)


def ends_at(token: str) -> float | None:
    """The expiry of a token, in Unix seconds on the issuer's clock; None if it never expires."""
    return read_token(token).claims.exp


def user_of(token: str) -> str:
    """The user of a token; empty without the claim `sun` (identity providers may use another one)."""
    return read_token(token).claims.sun or ""


def read_token(text: str) -> ReadToken:
    """The claims in a token. Raises SchedulerUnavailable if it is not a token."""
    return _read(text.encode(), "it")


def _read(raw: bytes, where: str) -> ReadToken:
    found = _TOKEN.fullmatch(raw.decode("ascii", "replace").strip())
    if found is None:
        raise _away(say("slurm.no_token", name=where))
    try:
        padded = found[2] + "=" * (-len(found[2]) % 4)
        claims = msgspec.json.decode(urlsafe_b64decode(padded), type=Claims)
    except (binascii.Error, msgspec.DecodeError, UnicodeDecodeError):
        raise _away(say("slurm.token_unread", name=where)) from None
    return ReadToken(found[1], claims)


def _away(text: Said) -> SchedulerUnavailable:
    return SchedulerUnavailable(say("slurm.rest_not_asked", why=text), sent=False)
