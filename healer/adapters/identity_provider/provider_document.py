"""What the provider publishes: its addresses and its keys, both kept for a while."""

import threading
import time
from collections.abc import Callable
from typing import Any, Generic, TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from healer.adapters.webhook import PACKED, read_body
from healer.ports.sign_in import ProviderAway
from healer.text import NO_WORDS, Said, quoted, said_by, say

T = TypeVar("T")

#: Addresses and keys are fetched again after this; for an unknown key immediately, but no more often than
#: this.
KEPT_S, UNKNOWN_KEY_S = 3600.0, 10.0
TIMEOUT_S = 5.0
#: The most bytes of an answer: keys with their certificates, or a person's groups, have at most some 100 KB.
_ANSWER_MAX = 1024 * 1024
_PATH = "/.well-known/openid-configuration"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Published(msgspec.Struct, frozen=True):
    """The fields used of the provider's document; further ones are ignored."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    device_authorization_endpoint: str = ""
    scopes_supported: tuple[str, ...] = ("openid", "profile", "email")
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class _CachedAnswer(Generic[T]):
    """What the provider answered last. One thread at a time asks for it again, and others wait for that one;
    once the provider has failed they do not: anybody may begin a sign-in, and threads are few."""

    def __init__(self) -> None:
        self._asking = threading.Lock()
        self.value: T | None = None
        self._at = float("-inf")
        self._failed: Said | None = None

    def read(self, ask: Callable[[], T], is_old: Callable[[T, float], bool]) -> T:
        """`is_old`: whether the answer is to be asked for again, by its age in s. Raises ProviderAway."""
        kept = self.value
        if kept is not None and not is_old(kept, time.monotonic() - self._at):
            return kept
        if not self._asking.acquire(blocking=self._failed is None):
            raise ProviderAway(self._failed or NO_WORDS)
        try:
            if self.value is None or is_old(self.value, time.monotonic() - self._at):
                self.value, self._at = ask(), time.monotonic()
            self._failed = None
            return self.value
        except ProviderAway as error:
            self._failed = said_by(error)
            raise
        finally:
            self._asking.release()


class ProviderDocument:
    """For all threads of a process."""

    def __init__(self, issuer: str, http: httpx.Client) -> None:
        self.issuer, self._http = issuer, http
        self._published, self._keys = _CachedAnswer[Published](), _CachedAnswer[KeySet]()

    def published(self) -> Published:
        """Raises ProviderAway."""
        try:
            return self._published.read(self._read, lambda _, age_s: age_s > KEPT_S)
        except ProviderAway:
            if self._published.value is None:
                raise
            return self._published.value

    def keys(self, key_id: str | None) -> KeySet:
        """Those in force, with the key of this id where the provider has it. Raises ProviderAway."""
        address = self.published().jwks_uri

        def ask() -> KeySet:
            try:
                return KeySet.import_key_set(self.document(address))
            except (JoseError, ValueError, TypeError, KeyError) as error:
                raise self.away(say("adapters.oidc_keys")) from error

        def is_old(keys: KeySet, age_s: float) -> bool:
            is_known = key_id is None or any(key.kid == key_id for key in keys.keys)
            return age_s > (KEPT_S if is_known else UNKNOWN_KEY_S)

        return self._keys.read(ask, is_old)

    def document(self, address: str, *, headers: dict[str, str] | None = None) -> Any:
        """A JSON object of the provider. Raises ProviderAway."""
        return self.read(self.ask("GET", address, headers=headers))

    def ask(
        self, method: str, address: str, *, headers: dict[str, str] | None = None, **more: Any
    ) -> httpx.Response:
        """The provider's answer, whose body is read within its bound. `more`: as for httpx. Raises
        ProviderAway."""
        headers, until = {**PACKED, **(headers or {})}, time.monotonic() + TIMEOUT_S
        try:
            with self._http.stream(method, address, headers=headers, **more) as answer:
                content = read_body(answer, _ANSWER_MAX, until)
        except httpx.HTTPError as error:
            raise self.away(quoted(str(error) or type(error).__name__)) from error
        if content is None:
            raise self.away(say("adapters.who_endless", who=answer.request.url.path))
        return httpx.Response(answer.status_code, content=content, request=answer.request)

    def read(self, answer: httpx.Response) -> Any:
        if answer.status_code != 200:
            raise self.away(
                say("adapters.who_answered", who=answer.request.url.path, status=answer.status_code)
            )
        try:
            found = answer.json()
        except ValueError as error:
            raise self.away(say("adapters.path_no_json", path=answer.request.url.path)) from error
        if not isinstance(found, dict):
            raise self.away(say("adapters.path_no_object", path=answer.request.url.path))
        return found

    def away(self, why: Said) -> ProviderAway:
        return ProviderAway(say("api.sign_in_provider_away", issuer=self.issuer, why=why))

    def _read(self) -> Published:
        try:
            found = msgspec.convert(self.document(self.issuer.rstrip("/") + _PATH), Published)
        except msgspec.ValidationError as error:
            raise self.away(said_by(error)) from error
        if found.issuer != self.issuer:
            raise self.away(say("adapters.oidc_other_issuer", issuer=found.issuer))
        addresses = (found.authorization_endpoint, found.token_endpoint, found.jwks_uri)
        optional = (found.userinfo_endpoint, found.device_authorization_endpoint)
        for address in filter(None, (*addresses, *optional)):
            if not is_safe(address):
                raise self.away(say("adapters.not_https", address=address))
        return found


def is_safe(address: str) -> bool:
    """https, or on this machine: plain text over the network proves nothing."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
