"""Whose Slurm token (JWT) a caller shows. healer has no key to check it: Slurm itself is asked with it.

slurmctld takes a token that comes with a name (X-SLURM-USER-NAME) only where both are the same user, or
where the token is root's or SlurmUser's, who can make one of anybody. So what is read from the token is sent
as that name, and Slurm's yes is a yes to it. Seen on 24.11: `/ping` says 200 to any token, and where
slurmrestd takes its own user over a socket for itself (`rest_auth/local`) a token is not looked at. So the
same token with a damaged signature has to be refused first.
"""

import hashlib
from datetime import UTC, datetime

from healer.adapters.slurm.rest_link import ReadLink, Request, TokenRefused
from healer.adapters.slurm.rest_token import read_token
from healer.ports.callers import CredentialRefused, SlurmToken
from healer.ports.request_errors import Unavailable
from healer.ports.scheduling import SchedulerError
from healer.text import said_by, say

#: In the form of a token that no user has.
MADE_UP = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJpYXQiOjAsImV4cCI6MCwic3VuIjoibm9ib2R5In0.AAAA"
#: Every user may read it, only with a valid token, and it is small.
_READ = Request("GET", "/licenses")


class TokensUnchecked(CredentialRefused):
    """slurmrestd takes any token there."""


class RestTokens:
    """`healer.ports.callers.SlurmTokens` by the slurmrestd at this address."""

    def __init__(self, url: str, *, cluster: str | None, timeout_s: float) -> None:
        self._url, self._cluster, self._timeout_s = url, cluster, timeout_s

    def owner(self, token: str) -> SlurmToken:
        shown, held = _shown(token)
        try:
            link = ReadLink(
                self._url, user=shown.user, token=held, timeout_s=self._timeout_s, cluster=self._cluster
            )
        except ValueError:  # no user has such a name
            raise CredentialRefused(say("slurm.token_nobody")) from None
        try:
            self._ask(link, held)
        except TokenRefused as error:
            raise CredentialRefused(said_by(error)) from None
        except SchedulerError as error:
            raise Unavailable(said_by(error)) from None
        finally:
            link.close()
        return shown

    def _ask(self, link: ReadLink, held: "_Held") -> None:
        link.found()
        whole, held.text = held.text, _damaged(held.text)
        what = say("slurm.to_check_token")
        try:
            link.call(_READ, what)
        except TokenRefused:
            held.text = whole
            link.call(_READ, what)
        else:
            raise TokensUnchecked(say("slurm.token_unchecked", where=self._url))


class _Held:
    """`healer.adapters.slurm.rest_link.Token`: the one to ask with now."""

    def __init__(self, text: str) -> None:
        self.text = text

    def current(self, now: datetime) -> str:
        return self.text

    def refused(self, token: str) -> None:
        """There is no other one."""


def _shown(token: str) -> tuple[SlurmToken, _Held]:
    try:
        read = read_token(token)
        user, iat = read.claims.sun, read.claims.iat
        signed, _, signature = read.text.rpartition(".")
        if not user or iat is None or not signature:
            raise CredentialRefused(say("slurm.token_nobody"))
        made_at = datetime.fromtimestamp(iat, UTC)
    except (SchedulerError, ValueError, OverflowError, OSError):  # the last three: a time out of range
        raise CredentialRefused(say("slurm.token_nobody")) from None
    # By what is signed: a signature can be spelled in several ways.
    once = hashlib.sha256(signed.encode()).hexdigest()
    return SlurmToken(user=user, made_at=made_at, once=once), _Held(read.text)


def _damaged(token: str) -> str:
    """The same token with another signature."""
    signed, _, signature = token.rpartition(".")
    return f"{signed}.{'B' if signature[0] == 'A' else 'A'}{signature[1:]}"
