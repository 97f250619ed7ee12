"""The site's identity provider, which proves a person's identity."""

from collections.abc import Iterable
from typing import Protocol

import msgspec

from healer.ports.directory import Arrival


class SignInRefused(Exception):
    """The person is not signed in. The text is one sentence for the person."""


class ProviderAway(SignInRefused):
    """The provider does not answer, or not as it should."""


class Begun(msgspec.Struct, frozen=True):
    """The browser's destination, and the value of its cookie until it comes back."""

    url: str
    kept: str


class Proven(msgspec.Struct, frozen=True):
    """The returning person, and the page that they requested."""

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
    """What the provider has ended: one of its sessions, or all of a subject if `sid` is empty."""

    subject: str
    sid: str


class IdentityProvider(Protocol):
    """Raises SignInRefused."""

    issuer: str

    def begin(self, target: str, *, again: bool = False) -> Begun:
        """`again`: the person must authenticate again, even if the provider already knows them."""
        ...

    def finish(self, kept: str, *, state: str, code: str, issuer: str, claim: str) -> Proven:
        """`issuer`: as named in the answer, or empty; `claim`: the claim with the groups."""
        ...

    def logged_out(self, logout_token: str) -> LoggedOut: ...


class DeviceSignIn(Protocol):
    """Sign-in with a code that is typed on another machine (RFC 8628). Raises SignInRefused."""

    def begin(self) -> DeviceBegun: ...

    def finish(self, kept: str, *, claim: str) -> Arrival | StillWaiting: ...


class SignInProxy(Protocol):
    """A proxy in front of healer that has signed people in, and reports that in headers."""

    def arrival(self, address: str, headers: Iterable[tuple[str, str]]) -> Arrival | None:
        """The person it vouches for; None if the request is not from it, or repeats a header."""
        ...


class SignIn(msgspec.Struct, frozen=True, kw_only=True):
    """How people sign in: by the provider, in a browser or by a device code, or by the proxy."""

    provider: IdentityProvider | None = None
    devices: DeviceSignIn | None = None
    proxy: SignInProxy | None = None
