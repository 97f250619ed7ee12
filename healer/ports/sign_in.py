"""The site's identity provider, which proves who a person is."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from healer.ports.directory import Arrival


class SignInRefused(Exception):
    """The person is not signed in. The text is one sentence for the person."""


class ProviderAway(SignInRefused):
    """The provider does not answer, or not as one does."""


class Begun(msgspec.Struct, frozen=True):
    """Where the browser goes, and what it keeps in a cookie until it comes back."""

    url: str
    kept: str


class Proven(msgspec.Struct, frozen=True):
    """Who came back, and the page that they wanted."""

    arrival: Arrival
    target: str


class DeviceBegun(msgspec.Struct, frozen=True, kw_only=True):
    """A person types `code` at `address`, or opens `link`, which has the code in it, where there is one. The
    command brings `kept` back every `interval_s`, until `expires_s` are over."""

    code: str
    address: str
    link: str
    interval_s: int
    expires_s: int
    kept: str


class StillWaiting(msgspec.Struct, frozen=True):
    """The person has not confirmed the code yet. `slow_down`: ask 5 s less often from now on."""

    slow_down: bool


class LoggedOut(msgspec.Struct, frozen=True):
    """What the provider has ended: a session of it, or all of a subject where `sid` is empty."""

    subject: str
    sid: str


class IdentityProvider(Protocol):
    """Raises SignInRefused."""

    issuer: str

    def begin(self, target: str, *, again: bool = False) -> Begun:
        """`again`: the person has to prove again who they are, although the provider may know them."""
        ...

    def finish(self, kept: str, *, state: str, code: str, issuer: str, claim: str) -> Proven:
        """`issuer`: as the answer names it, or empty; `claim`: the one with the groups."""
        ...

    def logged_out(self, logout_token: str) -> LoggedOut: ...


class DeviceSignIn(Protocol):
    """Signing in by a code that is typed at another machine (RFC 8628). Raises SignInRefused."""

    def begin(self) -> DeviceBegun: ...

    def finish(self, kept: str, *, claim: str) -> Arrival | StillWaiting: ...


class SignInProxy(Protocol):
    """A proxy in front of healer that has signed people in, and says so in headers."""

    def arrival(self, address: str, headers: Iterable[tuple[str, str]]) -> Arrival | None:
        """Whom it vouches for; None where the request is not from it, or says something twice."""
        ...


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """How people sign in: by the provider, in a browser or by a device code, or by the proxy."""

    provider: IdentityProvider | None = None
    devices: DeviceSignIn | None = None
    proxy: SignInProxy | None = None
