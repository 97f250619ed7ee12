"""How a request reached this site: by which scheme and name, and from which address.

`Forwarded` and `X-Forwarded-*` count only from proxies that the site named (HEALER_PROXIES). A `Host` that is
not a name of this site is refused: otherwise a page of another site could reach healer by a name of its own.
"""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import NamedTuple, cast
from urllib.parse import urlsplit

from starlette.types import Scope

from healer.api.problems import Problem
from healer.text import Said, say

Networks = tuple[IPv4Network | IPv6Network, ...]
#: Key of a request's scope for its `Reached`.
REACHED = "healer.reached"
#: Key of a request's scope for the address that connected: the proxy's, if there is one.
PEER = "healer.peer"
#: Never a name of another site.
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_SCHEMES = frozenset({"http", "https"})
#: Accepted pairs of a host and the address that it reached; no honest site has more.
_CACHED = 1000
#: A quoted string of RFC 7239.
_QUOTED = r'"(?:[^"\\]|\\.)*"'
#: All up to a quote that none ends: only there is a search for its end in vain, and it must not be repeated.
_BALANCED = re.compile(rf'(?:{_QUOTED}|[^"])*')
_ELEMENT = re.compile(rf'(?:{_QUOTED}|[^",])+')
#: A pair: its value is a token or a quoted string.
_PAIR = re.compile(rf'(?<![A-Za-z])([A-Za-z]+)=({_QUOTED}|[^";,\s]*)')


class WrongHost(Problem):
    """421, answered late: answered at once, a thousand connections with a wrong name kept people waiting."""

    delay_s = 2.0

    def __init__(self, detail: Said) -> None:
        super().__init__(421, detail, code="wrong_host")


class Reached(NamedTuple):
    """`host` is the name that the client used, with its port; empty where it used none. `client` is the
    client's address, behind all named proxies."""

    scheme: str
    host: str
    client: str


def site_address(scope: Scope) -> Reached:
    """How this request reached the site."""
    return cast("SiteNames", scope["app"].state.site).reached(scope)


def client_address(scope: Scope) -> str:
    """The address that sent this request, for logs, quotas and budgets; empty if there is none."""
    return cast("SiteNames", scope["app"].state.site).reached(scope).client


def peer_of(scope: Scope) -> str:
    """The address that connected, which no header changes; empty if there is none."""
    return scope.get(PEER, "")


def is_own_origin(scope: Scope, origin: str) -> bool:
    """Whether `origin`, as a browser sends it, is that of this site."""
    site, reached = cast("SiteNames", scope["app"].state.site), site_address(scope)
    return origin == site.public_url or origin.partition("://")[2] == reached.host


class SiteNames:
    """The names of this site and its proxies. `names` are those of its certificate; `any_host` is for an
    application that no browser can reach."""

    def __init__(
        self,
        public_url: str | None = None,
        proxies: Networks = (),
        *,
        names: Callable[[], Iterable[str]] = tuple,
        any_host: bool = False,
    ) -> None:
        self.public_url = public_url
        self._public = urlsplit(public_url or "")
        self._proxies, self._names, self._any_host = proxies, names, any_host
        self._accepted: set[tuple[bytes, str]] = set()
        self._is_proxy = lru_cache(4096)(self._in_proxies)

    def reached(self, scope: Scope) -> Reached:
        found: Reached | None = scope.get(REACHED)
        if found is None:
            found = scope[REACHED] = self._reached(scope)
        return found

    def check_host(self, scope: Scope) -> None:
        """Raises Problem 421 for a name that is not one of this site."""
        if self._any_host:
            return
        server = scope["server"][0] if scope.get("server") else ""
        # All of them: a proxy may have believed another one than is read here.
        named = (b",".join([value for name, value in scope["headers"] if name == b"host"]), server)
        # Ten thousand requests come in a second. Behind a proxy another header may name the host.
        if named in self._accepted and not self._proxies:
            return
        host = self.reached(scope).host
        if b"," in named[0] or not self._is_ours(name_of(host), server):
            raise WrongHost(say("api.site_address_not_a_name_here", host=host[:100]))
        if len(self._accepted) >= _CACHED:
            self._accepted.clear()
        self._accepted.add(named)

    def _is_ours(self, name: str, server: str) -> bool:
        """No name is that of an old client, never of a browser."""
        if not name or name in _LOOPBACK or name in (self._public.hostname, server.lower()):
            return True
        return any(matches(name, pattern.lower()) for pattern in self._names())

    def _reached(self, scope: Scope) -> Reached:
        client = scope["client"][0] if scope.get("client") else ""
        scheme, host = scope.get("scheme", "http"), _header(scope, b"host").decode("latin-1")
        if self._proxies and self._is_proxy(client):
            client, proto, named = self._forwarded(scope, client)
            scheme, host = proto if proto in _SCHEMES else scheme, named or host
        if self._public.scheme == "https" and name_of(host) == self._public.hostname:
            scheme = "https"  # the browser asked by https, and a proxy did not say so
        return Reached(scheme, host, client)

    def _forwarded(self, scope: Scope, proxy: str) -> tuple[str, str, str]:
        """(client, scheme, host) by what a named proxy says; the scheme and the host may be empty."""
        standard = _pairs(_values(scope, b"forwarded"))
        chain = [pairs.get("for", "") for pairs in standard]
        usual = [part.strip() for part in _values(scope, b"x-forwarded-for").split(",") if part.strip()]
        client, at = self._first_stranger(chain, proxy)
        if usual:
            found, _ = self._first_stranger(usual, proxy)
            if standard and found != client:
                # A proxy writes one of the two and may pass on the other as the client sent it.
                return proxy, "", ""
            client = found
        last = standard[at] if standard else {}
        proto = _last(_values(scope, b"x-forwarded-proto")) or last.get("proto", "")
        host = _last(_values(scope, b"x-forwarded-host")) or last.get("host", "")
        return client, proto.lower(), host

    def _first_stranger(self, chain: list[str], proxy: str) -> tuple[str, int]:
        """The last address of the chain that is no proxy of ours, and its place: each proxy appends whom it
        saw, so what is before that may be invented."""
        client, at = proxy, -1
        for place in reversed(range(len(chain))):
            address = _address(chain[place])
            if address is None:
                break  # unknown, or hidden on purpose
            client, at = address, place
            if not self._is_proxy(address):
                break
        return client, at

    def _in_proxies(self, address: str) -> bool:
        try:
            parsed = ip_address(address)
        except ValueError:
            return False
        parsed = getattr(parsed, "ipv4_mapped", None) or parsed
        return any(parsed in network for network in self._proxies)


def name_of(host: str) -> str:
    """The name in a `Host`, without its port and in lower case."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.partition(":")[0].lower().removesuffix(".")


def matches(name: str, pattern: str) -> bool:
    """Whether a name of a certificate is `name`; `*` is any one label."""
    if pattern.startswith("*."):
        return name.partition(".")[2] == pattern[2:]
    return name == pattern


def _header(scope: Scope, wanted: bytes) -> bytes:
    for name, value in scope["headers"]:
        if name == wanted:
            return value
    return b""


def _values(scope: Scope, wanted: bytes) -> str:
    """All values of a header, in the order in which proxies appended them."""
    return ", ".join(value.decode("latin-1") for name, value in scope["headers"] if name == wanted)


def _last(values: str) -> str:
    return values.rpartition(",")[2].strip()


def _pairs(forwarded: str) -> list[dict[str, str]]:
    """The elements of `Forwarded`, each with its pairs. A quote without an end ends an element: it must not
    hide what a proxy appended."""
    whole = cast("re.Match[str]", _BALANCED.match(forwarded))[0]
    elements = _ELEMENT.findall(whole + forwarded[len(whole) :].replace('"', ","))
    return [
        {name.lower(): re.sub(r"\\(.)", r"\1", value.strip('"')) for name, value in _PAIR.findall(element)}
        for element in elements
    ]


def _address(text: str) -> str | None:
    """An address of `for=` or X-Forwarded-For, without its port; None for anything else."""
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        return str(ip_address(text))
    except ValueError:
        return None
