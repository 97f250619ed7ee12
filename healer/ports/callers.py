"""Who asks: tokens, sessions, credentials of nodes and jobs; and the answer that is kept for a repeat."""

from collections.abc import Callable
from datetime import datetime
from typing import Protocol

import msgspec

from healer.model import Role


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A token or a session. `id` is the token's id; `name` is the person: equal names are one person."""

    id: str
    name: str
    role: Role
    node: str | None = None
    job: str | None = None
    cluster: str | None = None
    #: How many times the usual quota of signals it may send: `healer.api.quotas`.
    quota: float = 1.0
    #: Set for a console session: unsafe methods must bring it as X-Healer-CSRF.
    csrf: str | None = None
    #: What quotas and shares are counted for: the token; of a job, which may have many tokens, the job.
    owner: str = ""

    def __post_init__(self) -> None:
        if not self.owner:  # once per caller, as ten thousand requests a second ask for it
            owner = f"job {self.cluster} {self.job}" if self.job else self.id
            msgspec.structs.force_setattr(self, "owner", owner)


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token to make. `quota`: how many times the usual quota of signals it may send."""

    role: Role
    name: str = ""
    node: str | None = None
    job: str | None = None
    cluster: str | None = None
    expires_at: datetime | None = None
    once: bool = False
    quota: float = 1.0


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """A munge credential that was good: who made it, at which address (as its munged knows itself), when."""

    uid: int
    host: str
    encoded_at: datetime
    decoded_at: datetime
    payload: bytes


class CredentialRefused(Exception):
    """Not a good credential. The text goes on after "the credential is refused: "."""


class Credentials(Protocol):
    def decode(self, credential: str) -> Credential:
        """Each one once. Raises CredentialRefused, and Unavailable when munge itself does not work."""
        ...


class Enrolled(msgspec.Struct, frozen=True, kw_only=True):
    """A token's secret, told this once, and until when it works."""

    token: str
    expires_at: datetime


class Tokens(Protocol):
    """Tokens and sessions. All digests are SHA-256. Expired, revoked and ended ones are never found."""

    def by_token(self, digest: bytes, now: datetime) -> Caller | None:
        """Never finds a one-time sign-in link."""
        ...

    def by_session(self, digest: bytes, now: datetime) -> Caller | None:
        """`csrf` of the answer is empty; the API derives it from the cookie."""
        ...

    def sign_in(self, digest: bytes, session: bytes, *, now: datetime, until: datetime) -> Caller | None:
        """Uses up a one-time link and opens a session; None when it is unknown, used, expired or revoked."""
        ...

    def sign_out(self, session: bytes, now: datetime) -> None: ...

    def enroll(self, cluster: str, node: str, *, nonce: str, by: str, now: datetime) -> Enrolled:
        """A token for signals of this node alone; `nonce` is spent by it, for ever.
        Those it got before end after a grace. Raises Conflict when the nonce is spent, Forbidden when the
        node's newest token was revoked (a person's word), TooMany.
        """
        ...

    def enroll_job(
        self, cluster: str, job: str, *, nodes: int, nonce: str, by: str, now: datetime
    ) -> Enrolled:
        """A token for step times and checkpoints of this job alone, for a day; `nonce` is spent by it.
        `nodes` is how many the job holds: each may ask. Raises like `enroll`; a revoked one is a no to all of
        the job.
        """
        ...


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """Who looks. `csrf` goes into the page and comes back in `X-Healer-CSRF`; `clusters` empty means all."""

    name: str
    role: Role
    csrf: str = ""
    clusters: tuple[str, ...] = ()


class NewSession(msgspec.Struct, frozen=True, kw_only=True):
    """What the browser gets for a sign-in link: the value of the session cookie and how long it lasts."""

    cookie: str
    max_age_s: int


#: Name of the session cookie.
SESSION_COOKIE = "healer_session"


#: The value of the session cookie -> who it is; None when it is unknown, ended or over.
SessionOf = Callable[[str], Session | None]


#: A one-time token -> a session; None when the link is unknown, used or expired (the page tells no more).
SignIn = Callable[[str], NewSession | None]


#: Ends the session with this cookie value.
SignOut = Callable[[str], None]


class Kept(msgspec.Struct, frozen=True):
    """An answer kept for a repeat of the same request."""

    status: int
    headers: dict[str, str]
    body: bytes


class KeyInFlight(Exception):
    """Another request with this key is being worked on."""


class KeyReused(Exception):
    """The key was used with another body."""


class Idempotency(Protocol):
    def once(self, key: str, who: str, request: bytes, now: datetime, act: Callable[[], Kept]) -> Kept:
        """Runs `act` once per (key, who) in 24 h and keeps its answer; a repeat gets the kept answer.
        The row is committed before `act`; when the process dies in between, the next request with the key
        runs `act` again, with the same request id. Answers of 500 and above are not kept.
        """
        ...
