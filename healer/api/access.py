"""Who may do what. Every route has the dependency `need(role)`; a test walks them all.

A token is looked up at most once a second, so that its revocation acts within that second.
"""

import asyncio
import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import Annotated, Any, NamedTuple, NoReturn

import msgspec
from fastapi import Depends, Request
from starlette.requests import HTTPConnection

from healer.api.cookies import read_cookie
from healer.api.credential_budget import (
    DELAY_S,
    CredentialBudget,
    Hold,
    OverBudget,
    StrangersWait,
    address_of,
)
from healer.api.db_health import PATIENCE_S, Crowded, Lane, Reach
from healer.api.granted import OF_NO_PERSON, check_person, has_role, narrowed, resolved
from healer.api.metrics import REFUSED_ADDRESSES
from healer.api.problems import Problem, field_error, unauthenticated
from healer.api.services import Services, services_of
from healer.api.site_address import is_own_origin
from healer.api.token_uses import LastUses
from healer.model import AuditRecord, Component, Role
from healer.model.shown import shown
from healer.ports.callers import NOT_SEALED, SESSION_COOKIE, Caller
from healer.ports.directory import SESSION_LASTS
from healer.ports.request_errors import Unavailable
from healer.ports.service_accounts import ACCOUNT_PREFIX, LOGIN_PREFIX, PREFIX, is_well_formed
from healer.text import say

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
#: Threads that look up the credentials of people, and those that were not accepted lately.
_OF_PEOPLE, _OF_STRANGERS = 4, 4
#: How long a look-up waits for others of its address, and how often it asks.
_HELD_S, _HELD_AGAIN_S = 2.0, 0.05
#: While so many strangers' look-ups wait, the answer to a wrong credential does too.
_MANY_STRANGERS = 20
#: Wrong codes of a local account at once, and seconds until it may show another one.
CODES, CODE_EVERY_S = 5.0, 900.0
_NO_CLUSTER = say("api.access_this_token_bound_node_or")
_BEARER = (f"Bearer {PREFIX}".encode(), f"Bearer {ACCOUNT_PREFIX}".encode())
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
#: Refusals recorded per minute: of all, and of one token.
_REFUSALS, _REFUSALS_OF_ONE = 100, 20
#: Components recorded of a refused request, and characters of each name.
_SPOKEN_MAX, _NAME_MAX = 5, 64
_WHAT_MAX = 200
#: Key of a request's scope for the refusals of the requests within it: they become one record.
TOGETHER = "healer.together"
#: What a token may be bound to.
_BINDINGS = ("cluster", "node", "job")
#: (cluster, name of a node or a job).
Pairs = Collection[tuple[str, str]]


def digest_of(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()


def is_named_in(secret: str, caller: Caller) -> bool:
    """Whether this secret was made for this very token, as a token and a session's cookie say in clear. Who
    writes rows could else copy his own secret's digest into the row of another, or into a session of it."""
    named = (f"heal_{caller.id}_", f"{ACCOUNT_PREFIX}{caller.id}_", f"{LOGIN_PREFIX}{caller.id}_")
    return secret.startswith((*named, f"{caller.id}."))


def csrf_of(cookie: str) -> str:
    """The value that pages carry and send back: derived from the cookie, and reveals nothing of it."""
    return hashlib.sha256(b"healer csrf " + cookie.encode("utf-8", "surrogateescape")).hexdigest()[:43]


class Foreign(NamedTuple):
    """Why a bound token is refused, and the components it spoke of without being bound to them."""

    why: str
    spoken: Collection[Component]


def foreign(caller: Caller, nodes: Pairs = (), jobs: Pairs = ()) -> Foreign | None:
    """None where a token may speak of all these: one foreign name refuses the whole request."""
    if caller.cluster:
        at, of = ([pair for pair in named if pair[0] != caller.cluster] for named in (nodes, jobs))
        if at or of:
            return Foreign(
                say("api.access_this_token_bound_cluster", cluster=caller.cluster), _components(at, of)
            )
    if caller.node and (at := [pair for pair in nodes if pair[1] != caller.node]):
        return Foreign(say("api.access_this_token_bound_node", node=caller.node), _components(at))
    if caller.job and (of := [pair for pair in jobs if pair[1] != caller.job]):
        return Foreign(say("api.access_this_token_bound_job", job=caller.job), _components(jobs=of))
    return None


def _components(nodes: Pairs = (), jobs: Pairs = ()) -> list[Component]:
    return [Component(cluster=where, node=node) for where, node in nodes] + [
        Component(cluster=where, job=job) for where, job in jobs
    ]


class Access:
    """Finds callers, with a cache of a second, and bounds what refusals write to the audit."""

    def __init__(self, services: Services, reach: Reach) -> None:
        self._services = services
        self.uses = LastUses(services.token_book, services.clock)
        self.reach, self.budget = reach, CredentialBudget()
        REFUSED_ADDRESSES.set_function(self.budget.in_debt)
        #: Wrong codes of an account whose password was right: who knows it must not try all codes.
        self.codes = CredentialBudget(burst=CODES, per_s=1 / CODE_EVERY_S)
        self._people, self._strangers = Lane(_OF_PEOPLE, "people"), Lane(_OF_STRANGERS, "strangers")
        #: Tokens for signals, and when each was valid last; pages and commands do not use it.
        self._senders: OrderedDict[bytes, tuple[float, Caller | None]] = OrderedDict()
        self._cache: OrderedDict[tuple[str, bytes], tuple[float, Caller | None]] = OrderedDict()
        #: Look-ups under way, and when each began; only in the event loop.
        self._looks: dict[tuple[str, bytes], tuple[float, asyncio.Future[Caller | None]]] = {}
        self._lock = threading.Lock()
        #: Refusals recorded within the last minute: ((id, name), data) -> when.
        self._refused: OrderedDict[tuple[tuple[str, str], str], float] = OrderedDict()

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
        caller = find(digest, self._services.clock.now())
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

    async def find(self, kind: str, digest: bytes) -> Caller | None:
        """Requests with the same token share a look-up under way, if it is as young as a cached caller may
        be: a token for all nodes brings many at once."""
        is_cached, caller = self.cached(kind, digest)
        if is_cached:
            return caller
        key, now = (kind, digest), time.monotonic()
        begun, look = self._looks.get(key, (float("-inf"), None))
        if look is None or now - begun > _CACHE_S:
            look = asyncio.ensure_future(self.reach.ask_in(self._lane(digest), partial(self.look_up, *key)))
            self._looks[key] = (now, look)
            look.add_done_callback(lambda done: self._looked(key, done))
        return await asyncio.shield(look)

    def _lane(self, digest: bytes) -> Lane:
        """Strangers take no thread from those who were accepted lately, nor senders from people."""
        is_person = self.budget.is_person(digest)
        if is_person is None:
            return self._strangers
        return self._people if is_person else self.reach.common

    async def _identify(self, request: HTTPConnection, kind: str, secret: str) -> Caller | None:
        """Whose credential it is, looked up within the budget of the request's address."""
        digest = digest_of(secret)
        is_cached, caller = self.cached(kind, digest)
        if not is_cached:
            with await self._hold(address_of(request), digest) as hold:
                caller = await self._find_in_lane(kind, digest)
                self._judge(hold, secret, caller)
        return caller if caller is not None and is_named_in(secret, caller) else None

    async def _find_in_lane(self, kind: str, digest: bytes) -> Caller | None:
        try:
            return await self.find(kind, digest)
        except Crowded:
            if self._lane(digest) is self._strangers:
                raise StrangersWait from None
            raise

    async def _hold(self, address: str, digest: bytes) -> Hold:
        until = time.monotonic() + _HELD_S
        while (hold := self.budget.hold(address, digest)) is None:
            if time.monotonic() >= until:
                raise OverBudget(address, 1)
            await asyncio.sleep(_HELD_AGAIN_S)
        return hold

    def _judge(self, hold: Hold, secret: str, caller: Caller | None) -> None:
        if caller is None or not is_named_in(secret, caller):
            hold.wrong()
        else:
            hold.right(person=caller.role is not Role.signals)

    def _looked(self, key: tuple[str, bytes], look: "asyncio.Future[Caller | None]") -> None:
        if self._looks.get(key, (0.0, None))[1] is look:
            del self._looks[key]
        if not look.cancelled():
            look.exception()  # retrieved here, so that asyncio does not log it; the waiters got it

    def cached_sender(self, authorization: bytes | None) -> Caller | None:
        """The caller of this header if its token was looked up within the last second; else None: ask
        `sender`."""
        if authorization is None or not authorization.startswith(_BEARER):
            return None
        token = authorization[7:].strip()
        _, caller = self.cached("token", hashlib.sha256(token).digest())
        if caller is None or not is_named_in(token.decode("latin-1"), caller):
            return None
        return self._checked(caller)

    async def sender(self, request: HTTPConnection) -> Caller:
        """Who sends signals. While the database is away, a token for signals that was valid a little while
        ago still counts, only for this: its signals would else be lost in the very minutes that matter."""
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
        """Who asks. Raises 401, or 403 for a session without its CSRF proof."""
        header = request.headers.get("authorization")
        if header is not None:
            scheme, _, token = header.partition(" ")
            secret = token.strip()
            if scheme.lower() != "bearer" or not is_well_formed(secret):
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
            wrong = unauthenticated()
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
        return check_person(caller, provided=self._services.sign_in is not None)

    def narrowed(self, caller: Caller, roles: Collection[Role]) -> Caller | None:
        """See `healer.api.granted`."""
        return narrowed(caller, roles, _all_clusters(self._services))

    def records_refusal(self, caller: Caller) -> bool:
        """Whether one more refusal of this caller would be recorded now."""
        with self._lock:
            return self._has_room(caller)

    def _has_room(self, caller: Caller) -> bool:
        now = time.monotonic()
        while self._refused and next(iter(self._refused.values())) < now - 60:
            self._refused.popitem(last=False)
        of_caller = sum(who == (caller.id, caller.name) for who, _ in self._refused)
        return len(self._refused) < _REFUSALS and of_caller < _REFUSALS_OF_ONE

    def note_refusal(self, caller: Caller, what: str, why: str, spoken: Collection[Component] = ()) -> None:
        """Writes a refusal to the audit, with the components `spoken` of: the same at most once a minute."""
        data: dict[str, Any] = {"what": _plain(what, _WHAT_MAX), "why": why, "role": caller.role.value}
        if bound := {name: value for name in _BINDINGS if (value := getattr(caller, name))}:
            data["bound_to"] = bound
        if spoken:
            data["spoken_of"], data["spoken_of_count"] = _named(spoken)
        key = ((caller.id, caller.name), repr(data))
        with self._lock:
            if key in self._refused or not self._has_room(caller):
                return
            self._refused[key] = time.monotonic()
        self._services.controls.audit(
            AuditRecord(
                cluster=caller.cluster or self._services.cluster,
                at=self._services.clock.now(),
                actor=caller.name,
                verb="access.refused",
                subject=f"token/{caller.id}",
                data=data,
            )
        )

    # --- what the console's pages use ---

    def session(self, cookie: str, address: str) -> Caller | None:
        """The caller of a session cookie that came from `address`, for pages; from a thread.

        Pages show the whole cluster: a token bound to a node or job, or one for signals, opens none.
        """
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
        try:
            granted = self.narrowed(self._checked(caller), _READERS)
        except Problem:
            return None
        return None if granted is None else msgspec.structs.replace(granted, csrf=csrf_of(cookie))

    def sign_in(self, token: str, address: str) -> str | None:
        """Uses up a sign-in link; the value of the session cookie, or None."""
        now, digest = self._services.clock.now(), digest_of(token)
        cookie = f"{token.removeprefix('heal_').partition('_')[0]}.{secrets.token_urlsafe(32)}"
        with self.budget.hold_now(address, digest) as hold:
            caller = self._services.tokens.sign_in(
                digest, digest_of(cookie), now=now, until=now + SESSION_LASTS
            )
            if caller is None or not is_named_in(token, caller):
                hold.wrong()
                return None
        self.budget.accept_credential(digest_of(cookie), person=True)
        return cookie

    def sign_out(self, cookie: str) -> None:
        digest = digest_of(cookie)
        self._services.tokens.sign_out(digest, self._services.clock.now())
        with self._lock:
            self._cache.pop(("session", digest), None)


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


def _check_csrf(request: HTTPConnection, caller: Caller) -> None:
    if request.scope.get("method", "GET") in _SAFE:
        return
    sent = request.headers.get(CSRF_HEADER, "")
    if not hmac.compare_digest(sent.encode(), (caller.csrf or "").encode()):
        raise Problem(403, say("api.access_x_healer_csrf_header_does"), code="csrf")
    site = request.headers.get("sec-fetch-site")
    origin = request.headers.get("origin")
    same = site in {"same-origin", "none"} or (origin is not None and is_own_origin(request.scope, origin))
    if not same:
        raise Problem(403, say("api.access_request_with_session_must_come"), code="csrf")


class Need:
    """The dependency of a route: `role` is the least role that may pass (see ALLOWED)."""

    def __init__(self, role: Role) -> None:
        self.role = role

    async def __call__(self, request: Request) -> Caller:
        access: Access = request.app.state.access
        caller = await access.caller(request)
        granted = access.narrowed(caller, ALLOWED[self.role])
        if granted is None:
            await refuse(request, caller, _lacking(caller, self.role))
        if (why := outside_routes(caller, request.scope["path"])) is not None:
            await refuse(request, caller, why)
        _only_known_query(request)
        return granted


def _lacking(caller: Caller, needed: Role) -> str:
    if caller.granted is OF_NO_PERSON:
        return say("api.granted_nobody", name=caller.name)
    return say("api.access_this_needs_role_yours", value=needed.value, value2=caller.role.value)


def is_role(request: Request, caller: Caller, role: Role, cluster: str | None = None) -> bool:
    """Whether the caller has that role or one that includes it at the cluster; None: at all of the site."""
    return has_role(caller, ALLOWED[role], cluster, _all_clusters(services_of(request)))


def _all_clusters(services: Services) -> Sequence[str]:
    return services.clusters or (services.cluster,)


def outside_routes(caller: Caller, path: str) -> str | None:
    """Why a service account may not use this route; None where it may."""
    if not caller.routes or path.removeprefix("/api/v1").split("/")[1] in caller.routes:
        return None
    return say("api.access_account_confined", name=caller.name, routes=", ".join(caller.routes))


def need(role: Role) -> Any:
    """`caller: Annotated[Caller, need(Role.operator)]`, or in a route's `dependencies`."""
    return Depends(Need(role))


#: The caller of a route, with at least that role.
Viewer = Annotated[Caller, need(Role.viewer)]
Responder = Annotated[Caller, need(Role.responder)]
Operator = Annotated[Caller, need(Role.operator)]
Admin = Annotated[Caller, need(Role.admin)]


async def refuse(
    request: HTTPConnection, caller: Caller, why: str, spoken: Collection[Component] = ()
) -> NoReturn:
    """403, recorded with the components that the request spoke of. Always raises."""
    refusals: list[Foreign] | None = request.scope.get(TOGETHER)
    if refusals is None:
        await note_refusal(request, caller, Foreign(why, spoken))
    else:
        refusals.append(Foreign(why, spoken))
    raise Problem(403, why)


async def note_refusal(request: HTTPConnection, caller: Caller, refused: Foreign) -> None:
    access: Access = request.app.state.access
    await access.reach.ask(access.note_refusal, caller, _asked(request), refused.why, refused.spoken)


def _asked(request: HTTPConnection) -> str:
    return f"{request.scope.get('method', 'GET')} {request.scope['path']}"


def _named(spoken: Iterable[Component]) -> tuple[list[dict[str, str]], int]:
    """The first components that were spoken of, and the number of all."""
    keys = sorted({tuple(getattr(component, name) or "" for name in _BINDINGS) for component in spoken})
    first = [
        {name: _plain(value, _NAME_MAX) for name, value in zip(_BINDINGS, key, strict=True) if value}
        for key in keys[:_SPOKEN_MAX]
    ]
    return first, len(keys)


def _plain(text: str, most: int) -> str:
    """A sender's text for a record: one short line."""
    line = shown(text[:most])
    return f"{line}…" if len(text) > most else line


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
    for kind in _BINDINGS:
        bound = getattr(caller, kind)
        if bound and bound != asked[kind]:
            why = f"this token is bound to the {kind} {bound}"
            break
    else:
        if caller.clusters is None or cluster in caller.clusters:
            return
        why = say("api.granted_elsewhere", clusters=", ".join(caller.clusters))
    access: Access = request.app.state.access
    spoken = [Component(cluster=cluster or "", node=node, job=job)] if cluster or node or job else []
    access.note_refusal(caller, _asked(request), why, spoken)
    raise Problem(403, why)


def named_cluster(services: Services, caller: Caller | None, wanted: str | None = None) -> str:
    """The cluster as named, else the token's own, else the only one. 422 if that leaves it open."""
    cluster = wanted or (caller and caller.cluster) or services.only
    if not cluster:
        raise field_error(
            "cluster", say("api.access_name_cluster_one", clusters=", ".join(services.clusters))
        )
    return cluster


def allowed_cluster(request: HTTPConnection, caller: Caller, wanted: str | None) -> str:
    """`named_cluster`, and 403 unless the caller may act on all of it. From a thread."""
    cluster = named_cluster(services_of(request), caller, wanted)
    confine(request, caller, cluster=cluster)
    return cluster


def clusters_shown(request: HTTPConnection, caller: Caller, wanted: str | None = None) -> list[str] | None:
    """The clusters a list may show this caller; None for all. 403 when it asks for another one."""
    if caller.node or caller.job or (wanted and (caller.cluster or caller.clusters)):
        confine(request, caller, cluster=wanted or caller.cluster)
    if wanted:
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
        errors = [
            {"field": name[:100], "detail": say("api.access_no_such_query_parameter")} for name in unknown
        ]
        raise Problem(
            422, say("api.access_no_such_query_parameter_2", unknown=unknown[0][:100]), errors=errors
        )
