"""Who asks, and who may do what. Every route has the dependency `need(role)`; a test walks them all.

A token is looked up at most once a second, so that its revocation acts within that second.
"""

import asyncio
import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from healer.api.cookies import read_cookie
from healer.api.credential_budget import DELAY_S, CredentialBudget, Hold, StrangersWait
from healer.api.db_health import PATIENCE_S, Crowded, Database, Lane
from healer.api.granted import OF_NO_PERSON, NoRole, check_person, has_role, narrowed, resolved
from healer.api.metrics import REFUSED_ADDRESSES
from healer.api.problems import Problem, field_error, unauthenticated
from healer.api.refusals import BINDINGS, Refusals, refuse, request_line
from healer.api.services import Services, services_of
from healer.api.site_address import client_address, is_own_origin
from healer.model import Component, Role, Run
from healer.model.grants import ACTING
from healer.ports.callers import NOT_SEALED, SESSION_COOKIE, Caller
from healer.ports.clock import Clock
from healer.ports.directory import SESSION_LASTS
from healer.ports.request_errors import NotFound, Unavailable
from healer.ports.service_accounts import ACCOUNT_PREFIX, LOGIN_PREFIX, PREFIX, TokenBook, is_well_formed
from healer.text import Said, say

CSRF_HEADER = "x-healer-csrf"
_READERS = frozenset({Role.viewer, Role.responder, Role.operator, Role.admin, Role.auditor})
#: Roles that pass a route that needs this one: from viewer to admin each includes those before it; auditor
#: and signals are separate.
ALLOWED: dict[Role, frozenset[Role]] = {
    Role.viewer: _READERS,
    Role.responder: frozenset({Role.responder, Role.operator, Role.admin}),
    Role.operator: frozenset({Role.operator, Role.admin}),
    Role.admin: frozenset({Role.admin}),
    Role.auditor: frozenset({Role.auditor, Role.admin}),
    Role.signals: frozenset({Role.signals}),
}
_CACHE_S = 1.0
_CACHE_SIZE = 20_000
#: While the database is away, a token for signals that was valid within this time still writes signals.
REMEMBERED_S = 900.0
#: Threads that look up the credentials of people, and credentials that were not accepted recently.
_OF_PEOPLE, _OF_STRANGERS = 4, 4
#: Tokens of one query.
_TOGETHER = 500
#: How long a look-up waits for others of its address, and how often it asks.
_HELD_S, _HELD_AGAIN_S = 2.0, 0.05
#: While this many strangers' look-ups wait, the answer to a wrong credential waits too.
_MANY_STRANGERS = 20
#: Wrong codes of a local account at once, and seconds until it may show another one.
CODES, CODE_EVERY_S = 5.0, 900.0
_NO_CLUSTER = say("api.bound_without_cluster")
_BEARER = (f"Bearer {PREFIX}".encode(), f"Bearer {ACCOUNT_PREFIX}".encode())
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: How often a token's last use is noted, and of how many tokens.
NOTED_EVERY_S = 60.0
_TOKENS = 10_000


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def is_named_in(secret: str, caller: Caller) -> bool:
    """Whether this secret was made for this very token, as a token and a session's cookie state in plain
    text. Otherwise someone who can write rows could copy the digest of their own secret into another's row,
    or into a session of it."""
    named = (f"heal_{caller.id}_", f"{ACCOUNT_PREFIX}{caller.id}_", f"{LOGIN_PREFIX}{caller.id}_")
    return secret.startswith((*named, f"{caller.id}."))


def csrf_of(cookie: str) -> str:
    """The value that pages carry and send back: derived from the cookie, and reveals nothing of it."""
    return hashlib.sha256(b"healer csrf " + cookie.encode("utf-8", "surrogateescape")).hexdigest()[:43]


class Access:
    """Finds callers, with a cache of a second."""

    def __init__(self, services: Services, database: Database) -> None:
        self._services = services
        self.refusals = Refusals(services)
        self.uses = LastUses(services.token_book, services.clock)
        self.database, self.budget = database, CredentialBudget()
        REFUSED_ADDRESSES.set_function(self.budget.in_debt)
        #: Limit of wrong codes for an account with the right password: someone who knows it must not try all
        #: codes.
        self.codes = CredentialBudget(burst=CODES, per_s=1 / CODE_EVERY_S)
        self._people, self._strangers = Lane(_OF_PEOPLE, "people"), Lane(_OF_STRANGERS, "strangers")
        self._of_senders = Lane(1, "senders")
        self._together = Together(partial(self.database.ask_in, self._of_senders), self._look_up_tokens)
        #: Tokens for signals, and when each was valid last; pages and commands do not use it.
        self._senders: OrderedDict[bytes, tuple[float, Caller | None]] = OrderedDict()
        self._cache: OrderedDict[tuple[str, bytes], tuple[float, Caller | None]] = OrderedDict()
        #: Look-ups, and when each began; ended ones go with the next. Only in the event loop.
        self._looks: dict[tuple[str, bytes], tuple[float, asyncio.Future[Caller | None]]] = {}
        self._lock = threading.Lock()

    def cached(self, kind: str, digest: bytes) -> tuple[bool, Caller | None]:
        """(whether it is cached, caller) without asking the database."""
        entry = self._cache.get((kind, digest))
        if entry is None or time.monotonic() - entry[0] > _CACHE_S:
            return False, None
        return True, entry[1]

    def look_up(self, kind: str, digest: bytes) -> Caller | None:
        """Asks the database; from a thread."""
        # Taken before the query: a caller must not be cached longer than a second after its revocation.
        asked = time.monotonic()
        find = self._services.tokens.by_token if kind == "token" else self._services.tokens.by_session
        return self._noted(kind, digest, asked, find(digest, self._services.clock.now()))

    def _look_up_tokens(self, digests: Sequence[bytes]) -> dict[bytes, Caller | None]:
        """The same for many tokens, in one query."""
        asked = time.monotonic()
        found = self._services.tokens.by_tokens(digests, self._services.clock.now())
        return {digest: self._noted("token", digest, asked, found.get(digest)) for digest in digests}

    def _noted(self, kind: str, digest: bytes, asked: float, caller: Caller | None) -> Caller | None:
        with self._lock:
            newest, _ = self._cache.get((kind, digest), (asked, None))
            if asked < newest:  # it hung, and a later look-up has answered already
                return caller
            self._cache[(kind, digest)] = (asked, caller)
            while len(self._cache) > _CACHE_SIZE:
                self._cache.popitem(last=False)
            if kind == "token":
                self._remember(digest, asked, caller)
        return caller

    def _remember(self, digest: bytes, asked: float, caller: Caller | None) -> None:
        """Ignores a look-up that hung: the token may have been revoked since it was asked."""
        newest, _ = self._senders.get(digest, (asked, None))
        if asked < newest:
            return
        if caller is None or caller.role is not Role.signals:
            if digest in self._senders:
                self._senders[digest] = (asked, None)
        elif time.monotonic() - asked <= PATIENCE_S:
            self._senders.pop(digest, None)
            self._senders[digest] = (asked, caller)
            if len(self._senders) > _CACHE_SIZE:
                self._senders.popitem(last=False)

    async def find(self, kind: str, digest: bytes, lane: Lane) -> Caller | None:
        """Requests with the same token share a look-up under way, if it is as young as a cached caller may
        be: a token for all nodes brings many at once."""
        is_cached, caller = self.cached(kind, digest)
        if is_cached:
            return caller
        key, now = (kind, digest), time.monotonic()
        begun, look = self._looks.get(key, (float("-inf"), None))
        if look is None or look.done() or now - begun > _CACHE_S:
            self._looks = {key: asked for key, asked in self._looks.items() if not asked[1].done()}
            of_sender = kind == "token" and lane is self._of_senders
            if of_sender and self._together.is_busy:
                look = asyncio.ensure_future(self._together.find(digest))
            else:
                look = asyncio.ensure_future(self.database.ask_in(lane, partial(self.look_up, *key)))
                self._together.first = look if of_sender else self._together.first
            self._looks[key] = (now, look)
        return await asyncio.shield(look)

    def _lane(self, hold: Hold) -> Lane:
        """Strangers take no thread from recently accepted callers, nor senders from people."""
        if hold.was_person is None:
            return self._strangers
        return self._people if hold.was_person else self._of_senders

    async def _identify(self, request: HTTPConnection, kind: str, secret: str) -> Caller | None:
        """Whose credential it is, looked up within the budget of the request's address."""
        digest = digest_of(secret)
        is_cached, caller = self.cached(kind, digest)
        if not is_cached:
            with await self._hold(client_address(request.scope), digest) as hold:
                caller = await self._find_in_lane(kind, digest, self._lane(hold))
                self._judge(hold, secret, caller)
        return caller if caller is not None and is_named_in(secret, caller) else None

    async def _find_in_lane(self, kind: str, digest: bytes, lane: Lane) -> Caller | None:
        try:
            return await self.find(kind, digest, lane)
        except Crowded:
            if lane is self._strangers:
                raise StrangersWait from None
            raise

    async def _hold(self, address: str, digest: bytes) -> Hold:
        until = time.monotonic() + _HELD_S
        while (hold := self.budget.hold(address, digest)) is None:
            if time.monotonic() >= until:
                return self.budget.hold_now(address, digest)
            await asyncio.sleep(_HELD_AGAIN_S)
        return hold

    def _judge(self, hold: Hold, secret: str, caller: Caller | None) -> None:
        if caller is None or not is_named_in(secret, caller):
            hold.wrong()
        else:
            hold.person = caller.role is not Role.signals

    def cached_sender(self, authorization: bytes | None) -> Caller | None:
        """The caller of this header if its token was looked up within the last second; else None: use
        `sender`."""
        if authorization is None or not authorization.startswith(_BEARER):
            return None
        token = authorization[7:].strip()
        _, caller = self.cached("token", hashlib.sha256(token).digest())
        if caller is None or not is_named_in(token.decode("latin-1"), caller):
            return None
        return self._checked(caller)

    async def sender(self, request: HTTPConnection) -> Caller:
        """The sender of signals. While the database does not answer, a token for signals that was recently
        valid still counts, only for this: otherwise its signals would be lost when they matter most."""
        try:
            return await self.caller(request)
        except Crowded:
            raise  # the database answers, and may say otherwise by now
        except Unavailable:
            token = request.headers.get("authorization", "").partition(" ")[2].strip()
            seen_at, caller = self._senders.get(digest_of(token), (float("-inf"), None))
            if caller is None or time.monotonic() - seen_at > REMEMBERED_S or not is_named_in(token, caller):
                raise
            return self._checked(caller)

    async def caller(self, request: HTTPConnection) -> Caller:
        """The caller. Raises 401, or 403 for a session without its CSRF proof."""
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            secret = token.strip()
            if scheme.lower() != "bearer" or not (secret.startswith(PREFIX) or is_well_formed(secret)):
                raise unauthenticated()
            # A command's session needs no CSRF proof: no browser sends this header by itself.
            kind = "session" if secret.startswith(LOGIN_PREFIX) else "token"
            caller = await self._identify(request, kind, secret)
        else:
            secret = read_cookie(request, SESSION_COOKIE)
            if not secret or secret.startswith(LOGIN_PREFIX):
                raise unauthenticated()
            caller = await self._identify(request, "session", secret)
            if caller is not None:
                caller = msgspec.structs.replace(caller, csrf=csrf_of(secret))
                _check_csrf(request, caller)
        if caller is None:
            wrong = unauthenticated(given=True)
            wrong.delay_s = DELAY_S if self._strangers.queued >= _MANY_STRANGERS else 0.0
            raise wrong
        return self._checked(caller)

    def _checked(self, caller: Caller) -> Caller:
        """503 for a token that the audit has not sealed yet, 403 for one of a node or job whose cluster is
        unknown."""
        if not caller.sealed:
            raise Problem(503, NOT_SEALED, code="not_sealed", headers={"Retry-After": "1"})
        if (caller.node or caller.job) and not caller.cluster and not self._services.only:
            raise Problem(403, _NO_CLUSTER)
        self.uses.note(caller)
        if caller.granted is not None:
            caller = resolved(caller, self._services.rules().access)
        if caller.role not in ACTING:
            return caller
        return check_person(caller, provided=self._services.sign_in is not None)

    def narrowed(self, caller: Caller, roles: Collection[Role]) -> Caller | None:
        """See `healer.api.granted`. From a thread."""
        return narrowed(caller, roles, _site_clusters(self._services, caller))

    # --- what the console's pages use ---

    def session(self, cookie: str, address: str) -> Caller | None:
        """The caller of a session cookie that came from `address`, for pages; from a thread.

        Pages show the whole cluster: a token bound to a node or job, or one for signals, opens none.
        """
        caller = self._of_cookie(cookie, address)
        try:
            granted = None if caller is None else self.narrowed(self._checked(caller), _READERS)
        except Problem:
            return None
        return None if granted is None else msgspec.structs.replace(granted, csrf=csrf_of(cookie))

    def _of_cookie(self, cookie: str, address: str) -> Caller | None:
        """Raises OverBudget."""
        if not cookie or cookie.startswith(LOGIN_PREFIX):
            return None
        digest = digest_of(cookie)
        is_cached, caller = self.cached("session", digest)
        if not is_cached:
            with self.budget.hold_now(address, digest) as hold:
                caller = self.look_up("session", digest)
                self._judge(hold, cookie, caller)
        if caller is None or not is_named_in(cookie, caller) or not caller.sealed:
            return None
        if caller.node or caller.job or caller.role is Role.signals:
            return None
        return caller

    def job_owner(self, cookie: str, address: str) -> Caller | None:
        """The person of a session cookie who has no role, and may see only jobs of the Slurm user of the same
        name; None: there is none, or the site shows people no jobs. From a thread."""
        caller = self._of_cookie(cookie, address)
        try:
            if caller is not None:
                self._checked(caller)
        except NoRole as error:
            return self.as_owner(error)
        except Problem:
            pass
        return None

    def as_owner(self, error: NoRole) -> Caller | None:
        """The caller without a role, if the site lets people see their own jobs."""
        return error.caller if self._services.rules().access.job_owners else None

    def sign_in(self, token: str, address: str) -> str | None:
        """Uses up a sign-in link; the value of the session cookie, or None."""
        now, digest = self._services.clock.now(), digest_of(token)
        cookie = f"{token.removeprefix('heal_').partition('_')[0]}.{secrets.token_urlsafe(32)}"
        with self.budget.attempt(address) as hold:
            caller = self._services.tokens.sign_in(
                digest, digest_of(cookie), now=now, until=now + SESSION_LASTS
            )
            if caller is None or not is_named_in(token, caller):
                hold.wrong()
                return None
        self.budget.accept_session(digest_of(cookie))
        return cookie

    def sign_out(self, cookie: str) -> None:
        digest = digest_of(cookie)
        self._services.tokens.sign_out(digest, self._services.clock.now())
        with self._lock:
            self._cache.pop(("session", digest), None)


async def narrow(access: Access, caller: Caller, roles: Collection[Role]) -> Caller | None:
    """`Access.narrowed` in the event loop. Only entries that name clusters need the database."""
    if not caller.names_clusters:
        return access.narrowed(caller, roles)
    return await access.database.ask(partial(access.narrowed, caller, roles))


class Together:
    """Look-ups of senders' tokens: one query at a time, for all that came during the one before. Each node of
    a fleet shows its token every few seconds. Only in the event loop."""

    def __init__(
        self,
        ask: Callable[[Callable[[], Any]], Awaitable[Any]],
        look_up: Callable[[Sequence[bytes]], dict[bytes, Caller | None]],
    ) -> None:
        """`ask` runs the query in a thread."""
        self._ask, self._look_up = ask, look_up
        self._waiting: dict[bytes, asyncio.Future[Caller | None]] = {}
        self._task: asyncio.Task[None] | None = None
        #: The look-up of one that found none under way.
        self.first: asyncio.Future[Caller | None] | None = None

    @property
    def is_busy(self) -> bool:
        return any(look is not None and not look.done() for look in (self.first, self._task))

    async def find(self, digest: bytes) -> Caller | None:
        """Once the query under way has ended. Raises Unavailable, as all of the same query."""
        if digest not in self._waiting:
            self._waiting[digest] = asyncio.get_running_loop().create_future()
        answer = self._waiting[digest]
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return await asyncio.shield(answer)

    async def _run(self) -> None:
        if self.first is not None:
            await asyncio.wait([self.first])
        while self._waiting:
            asked = dict(islice(self._waiting.items(), _TOGETHER))
            for digest in asked:
                del self._waiting[digest]
            await self._answer(asked)

    async def _answer(self, asked: dict[bytes, asyncio.Future[Caller | None]]) -> None:
        try:
            found = await self._ask(partial(self._look_up, list(asked)))
        except Exception as error:
            for answer in asked.values():
                answer.set_exception(error)
        else:
            for digest, answer in asked.items():
                answer.set_result(found[digest])


class LastUses:
    """When tokens were used last: noted in memory, and written once a minute at most for each.

    Thread-safe. `note` never raises and never asks the database. Tokens of nodes and jobs are left out: there
    are many, and what they send is counted by sender.
    """

    def __init__(self, book: TokenBook, clock: Clock) -> None:
        self._book, self._clock = book, clock
        self._lock = threading.Lock()
        #: By token id: when it was last recorded, and what is not written yet.
        self._noted: dict[str, float] = {}
        self._waiting: dict[str, datetime] = {}

    def note(self, caller: Caller) -> None:
        if caller.node is not None or caller.job is not None:
            return
        now = time.monotonic()
        if now - self._noted.get(caller.id, float("-inf")) < NOTED_EVERY_S:
            return
        with self._lock:
            if len(self._noted) >= _TOKENS:
                self._noted.clear()
            self._noted[caller.id] = now
            self._waiting[caller.id] = self._clock.now()

    def flush(self) -> None:
        """Writes what waits. Raises Unavailable, and keeps it."""
        with self._lock:
            waiting, self._waiting = self._waiting, {}
        if not waiting:
            return
        try:
            self._book.used(waiting)
        except Unavailable:
            with self._lock:
                self._waiting = waiting | self._waiting
            raise


def _check_csrf(request: HTTPConnection, caller: Caller) -> None:
    if request.scope.get("method", "GET") in _SAFE:
        return
    sent = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(sent.encode(), (caller.csrf or "").encode()):
        raise Problem(403, say("api.wrong_csrf_header"), code="csrf")
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    same = site in {"same-origin", "none"} or (origin is not None and is_own_origin(request.scope, origin))
    if not same:
        raise Problem(403, say("api.foreign_origin"), code="csrf")


class Need:
    """The dependency of a route: `role` is the least role that may pass (see ALLOWED)."""

    def __init__(self, role: Role) -> None:
        self.role = role

    async def __call__(self, request: Request) -> Caller:
        access: Access = request.app.state.access
        caller = await access.caller(request)
        granted = await narrow(access, caller, ALLOWED[self.role])
        if granted is None:
            await refuse(request, caller, _lacking(caller, self.role))
        if (why := outside_routes(caller, request.scope["path"])) is not None:
            await refuse(request, caller, why)
        _only_known_query(request)
        return granted


class NeedJob(Need):
    """For a route about one job: also admits a person without a role, as a caller that is bound to this
    job. The route refuses everyone but its user (`granted.is_stranger`)."""

    async def __call__(self, request: Request) -> Caller:
        try:
            return await super().__call__(request)
        except NoRole as error:
            access: Access = request.app.state.access
            owner = access.as_owner(error)
            if owner is None:
                raise
            _only_known_query(request)
            return msgspec.structs.replace(owner, role=Role.viewer, **request.path_params)


def _lacking(caller: Caller, needed: Role) -> Said:
    if caller.granted is OF_NO_PERSON:
        bounds = "".join(f" --{kind} {bound}" for kind in BINDINGS if (bound := getattr(caller, kind)))
        if bounds:
            return say("api.granted_nobody_bound", name=caller.name, bounds=bounds)
        return say("api.granted_nobody", name=caller.name)
    return say("api.needs_role", needed=needed.value, own=caller.role.value)


def is_role(request: Request, caller: Caller, role: Role, cluster: str | None = None) -> bool:
    """Whether the caller has that role or one that includes it at the cluster; None: at all of the site. From
    a thread."""
    clusters = _site_clusters(services_of(request), caller) if cluster is None else ()
    return has_role(caller, ALLOWED[role], cluster, clusters)


def _site_clusters(services: Services, caller: Caller) -> Sequence[str]:
    """All clusters of the site. For a caller whose entries name clusters, also those that were removed from
    the settings: their records are still there, and only entries that cover them show them."""
    clusters = services.served
    return sorted({*clusters, *services.queries.clusters.names()}) if caller.names_clusters else clusters


def outside_routes(caller: Caller, path: str) -> Said | None:
    """Why a service account may not use this route; None if it may."""
    if not caller.routes or path.removeprefix("/api/v1").split("/")[1] in caller.routes:
        return None
    return say("api.account_confined", name=caller.name, routes=", ".join(caller.routes))


def need(role: Role) -> Any:
    """`caller: Annotated[Caller, need(Role.operator)]`, or in a route's `dependencies`."""
    return Depends(Need(role))


#: The caller of a route, with at least that role.
Viewer = Annotated[Caller, need(Role.viewer)]
JobReader = Annotated[Caller, Depends(NeedJob(Role.viewer))]
Responder = Annotated[Caller, need(Role.responder)]
Operator = Annotated[Caller, need(Role.operator)]
Admin = Annotated[Caller, need(Role.admin)]


def confine(
    request: HTTPConnection,
    caller: Caller,
    *,
    cluster: str | None = None,
    node: str | None = None,
    job: str | None = None,
) -> None:
    """403 unless a bound token is about this very cluster, node or job. From a thread.

    A token bound to a node (or job) reaches that node (or job) and nothing that spans more.
    """
    asked = {"cluster": cluster, "node": node, "job": job}
    for kind in BINDINGS:
        bound = getattr(caller, kind)
        if bound and bound != asked[kind]:
            why = say(f"api.bound_to_{kind}", name=bound)
            if kind == "cluster" and caller.is_of_person:
                why = say("api.granted_elsewhere", clusters=bound)
            break
    else:
        if caller.clusters is None or cluster in caller.clusters:
            return
        why = say("api.granted_elsewhere", clusters=", ".join(caller.clusters))
    access: Access = request.app.state.access
    spoken = [Component(cluster=cluster or "", node=node, job=job)] if cluster or node or job else []
    access.refusals.note(caller, request_line(request), why, spoken)
    raise Problem(403, why)


def allowed_run(request: Request, caller: Caller, id: str) -> Run:
    """404 if there is no such run; 403 for a token bound to something else."""
    run = services_of(request).queries.runs.find(id)
    if run is None:
        raise NotFound(say("engine.no_run", run=id))
    confine(request, caller, cluster=run.cluster, node=run.node, job=run.job)
    return run


def named_cluster(services: Services, caller: Caller | None, wanted: str | None = None) -> str:
    """The cluster as named, else the token's own, else the only one. 422 if that leaves it open."""
    cluster = wanted or (caller and caller.cluster) or services.only
    if not cluster:
        raise field_error("cluster", say("api.name_the_cluster", clusters=", ".join(services.clusters)))
    return cluster


def no_cluster(cluster: str, clusters: Iterable[str]) -> NotFound:
    names = ", ".join(sorted(clusters))
    return NotFound(say("engine.no_cluster", name=cluster, names=names))


def check_cluster(services: Services, cluster: str) -> None:
    """404 for a cluster that is neither in the settings nor has records: a misspelt name must not show an
    empty list, as if all were well there. From a thread."""
    if cluster in services.served:
        return
    recorded = services.queries.clusters.names()
    if cluster not in recorded:
        raise no_cluster(cluster, {*services.served, *recorded})


def check_served(services: Services, cluster: str) -> None:
    """404 for a cluster that is not in the settings, removed ones included: nothing can be done there."""
    if cluster not in services.served:
        raise no_cluster(cluster, services.served)


def allowed_cluster(request: HTTPConnection, caller: Caller, wanted: str | None) -> str:
    """`named_cluster`, 403 unless the caller may act on all of it, 404 if it is unknown. From a thread."""
    services = services_of(request)
    cluster = named_cluster(services, caller, wanted)
    confine(request, caller, cluster=cluster)
    check_cluster(services, cluster)
    return cluster


def clusters_shown(request: HTTPConnection, caller: Caller, wanted: str | None = None) -> list[str] | None:
    """The clusters a list may show this caller; None for all. 403 when it asks for another one, 404 for an
    unknown one. From a thread."""
    if caller.node or caller.job or (wanted and (caller.cluster or caller.clusters)):
        confine(request, caller, cluster=wanted or caller.cluster)
    if wanted:
        check_cluster(services_of(request), wanted)
        return [wanted]
    return [caller.cluster] if caller.cluster else list(caller.clusters) if caller.clusters else None


def _only_known_query(request: Request) -> None:
    """A misspelt filter must not show everything: unknown query parameters are 422."""
    route = request.scope.get("route")
    dependant = getattr(route, "dependant", None)
    if dependant is None or not request.query_params:
        return
    allowed = {field.alias for part in (dependant, *dependant.dependencies) for field in part.query_params}
    unknown = sorted(set(request.query_params) - allowed)
    if unknown:
        errors = [{"field": name[:100], "detail": say("api.unknown_query_parameter")} for name in unknown]
        raise Problem(422, say("api.unknown_query_parameter_named", unknown=unknown[0][:100]), errors=errors)
