"""Callers: tokens, sessions, credentials of nodes and jobs; and answers kept for repeated requests."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Protocol

import msgspec

from healer.model import Role
from healer.model.grants import Grant
from healer.text import say

#: Values of `healer token create --vouches`.
KERNEL = "kernel"


class Caller(msgspec.Struct, frozen=True, kw_only=True):
    """A token or a session. `id` is the token's id; `name` is the person: equal names are one person. With a
    `cluster` it is bound to that cluster."""

    id: str
    name: str
    role: Role
    node: str | None = None
    job: str | None = None
    cluster: str | None = None
    #: A multiple of the usual quota of signals: `healer.api.quotas`.
    quota: float = 1.0
    #: `kernel`: a relay whose kernel lines the site accepts as the nodes' own reports; empty: none.
    vouches: str = ""
    #: A service account's groups of routes; none: all that its role may use.
    routes: tuple[str, ...] = ()
    #: Whether the audit's chain contains the record of the token's creation; before that it is not valid.
    sealed: bool = True
    #: Set for a console session: unsafe methods must send it as X-Healer-CSRF.
    csrf: str | None = None
    #: Who vouches that the name is a person's: the identity provider, or `local`; empty: no one.
    issuer: str = ""
    #: For a sign-in through the provider; None: the role is the token's own.
    granted: "Granted | None" = None
    session: "Session | None" = None
    #: The key for quotas and shares: the token; for a job, which may have many tokens, the job.
    owner: str = ""

    def __post_init__(self) -> None:
        if not self.owner:  # computed once per caller, as ten thousand requests a second need it
            owner = f"job {self.cluster} {self.job}" if self.job else self.id
            msgspec.structs.force_setattr(self, "owner", owner)

    @property
    def signature(self) -> str:
        """Its name as the sender of a relayed signal."""
        return f"{self.name} ({self.id})"

    def relay_of(self, node: str | None) -> str:
        """The relay's name for its reports about this node; empty if they are the node's own: from a token
        that is bound to the node, or that vouches for the kernel (law 2)."""
        is_own = self.vouches == KERNEL or (self.node is not None and self.node == node)
        return "" if is_own else self.signature

    @property
    def clusters(self) -> tuple[str, ...] | None:
        """The clusters it is bound to, if several but not all."""
        return self.granted.clusters if self.granted is not None else None

    @property
    def is_of_person(self) -> bool:
        """Whether a person signed in, whose groups alone bind them to clusters: their own tokens are bound to
        none by that."""
        return self.granted is not None and bool(self.granted.subject)

    @property
    def names_clusters(self) -> bool:
        """Whether its groups grant roles at some clusters, and not only at all."""
        return self.granted is not None and not all(grant.everywhere for grant in self.granted.grants)


class Granted(msgspec.Struct, frozen=True, kw_only=True):
    """The groups of the sign-in, and what they grant now. `clusters`: see `Caller`."""

    subject: str
    groups: tuple[str, ...]
    grants: tuple[Grant, ...] = ()
    clusters: tuple[str, ...] | None = None


class Session(msgspec.Struct, frozen=True, kw_only=True):
    """`proven_at`: when its person last proved who they are; `has_account`: by a local account they can prove
    it again."""

    id: str
    proven_at: datetime
    has_account: bool = False


NOT_SEALED = say("api.token_not_sealed")


class NewToken(msgspec.Struct, frozen=True, kw_only=True):
    """A token to create. `quota`: a multiple of the usual quota of signals. `vouches` and `routes`: see
    `Caller`. `owner`: the person who owns a service account; empty for other tokens."""

    role: Role
    name: str = ""
    node: str | None = None
    job: str | None = None
    cluster: str | None = None
    expires_at: datetime | None = None
    once: bool = False
    quota: float = 1.0
    vouches: str = ""
    owner: str = ""
    routes: tuple[str, ...] = ()


class Credential(msgspec.Struct, frozen=True, kw_only=True):
    """A valid munge credential: its creator, the address (as reported by its munged), and the time."""

    uid: int
    host: str
    encoded_at: datetime
    decoded_at: datetime
    payload: bytes


class CredentialRefused(Exception):
    """Not a valid credential. The text continues "the credential is refused: "."""


class Credentials(Protocol):
    def decode(self, credential: str) -> Credential:
        """Each one once. Raises CredentialRefused, and Unavailable when munge itself does not work."""
        ...


class SlurmToken(msgspec.Struct, frozen=True, kw_only=True):
    """The owner of a token according to Slurm. `once`: the same for every spelling of the same token."""

    user: str
    made_at: datetime
    once: str


class SlurmTokens(Protocol):
    def owner(self, token: str) -> SlurmToken:
        """Raises CredentialRefused, and Unavailable when Slurm does not answer."""
        ...


def enrolled_name(kind: str, cluster: str, subject: str) -> str:
    """The name of the token that a node or a job (`kind`) gets by enrolment."""
    return f"{kind} {cluster}/{subject}"


class Enrolled(msgspec.Struct, frozen=True, kw_only=True):
    """A token's secret, shown only once, and its expiry."""

    token: str
    expires_at: datetime


class Tokens(Protocol):
    """Tokens and sessions. All digests are SHA-256. Expired, revoked and ended ones are never found, nor any
    whose role or limits differ from the audit's record of its creation."""

    def by_token(self, digest: bytes, now: datetime) -> Caller | None:
        """Never finds a one-time sign-in link."""
        ...

    def by_tokens(self, digests: Sequence[bytes], now: datetime) -> dict[bytes, Caller]:
        """The same for many, by digest; those not found are left out."""
        ...

    def by_session(self, digest: bytes, now: datetime) -> Caller | None:
        """`csrf` of the answer is empty; the API derives it from the cookie."""
        ...

    def sign_in(self, digest: bytes, session: bytes, *, now: datetime, until: datetime) -> Caller | None:
        """Uses up a one-time link and opens a session; None if it is unknown, used, expired or revoked.
        Raises Unavailable, without using it up, before it is sealed."""
        ...

    def sign_out(self, session: bytes, now: datetime) -> None: ...

    def enroll(
        self, cluster: str, node: str, *, nonce: str, by: str, now: datetime, proven: bool = False
    ) -> Enrolled:
        """A token for signals of this node only; it uses up `nonce` for good. The node's earlier tokens end
        after a grace period. They end immediately, with an audit record, if the node enrolled before and the
        caller is not `proven`, meaning that they showed no valid token of the node. Raises Conflict if the
        nonce is used, Forbidden if a person revoked the node's newest token, TooMany.
        """
        ...

    def enroll_job(
        self, cluster: str, job: str, *, nodes: int, nonce: str, by: str, now: datetime
    ) -> Enrolled:
        """A token for step times and checkpoints of this job only, for a day; it uses up `nonce`. `nodes`:
        the number of nodes that the job holds, each of which may enroll. Raises like `enroll`; a revoked
        token refuses the whole job.
        """
        ...


#: The session cookie.
SESSION_COOKIE = "healer_session"


class Sessions(Protocol):
    """The sessions of the console."""

    def session(self, cookie: str, address: str) -> Caller | None:
        """The person of a session cookie from this address; None if it is unknown, ended or expired, or may
        see no pages."""
        ...

    def job_owner(self, cookie: str, address: str) -> Caller | None:
        """The person of a session cookie who has no role, and may see only jobs of the Slurm user of the same
        name; None: there is none, or the site shows people no jobs."""
        ...

    def sign_in(self, token: str, address: str) -> str | None:
        """Uses up a one-time token that came from this address; the session cookie, or None if the token is
        unknown, used or expired."""
        ...

    def sign_out(self, cookie: str) -> None: ...


class StoredResponse(msgspec.Struct, frozen=True):
    """An answer kept for a repeat of the same request."""

    status: int
    headers: dict[str, str]
    body: bytes


class KeyInFlight(Exception):
    """Another request with this key is in progress."""


class KeyReused(Exception):
    """The key was used with a different body."""


class Idempotency(Protocol):
    def once(
        self, key: str, who: str, request: bytes, now: datetime, act: Callable[[], StoredResponse]
    ) -> StoredResponse:
        """Runs `act` once per (key, who) in 24 h and keeps its answer; a repeat gets the kept answer.
        The row is committed before `act`; when the process dies in between, the next request with the key
        runs `act` again, with the same request id. Answers of 500 and above are not kept.
        """
        ...
