"""What the provider publishes: its addresses and its keys, both kept for a while."""

import threading
import time
from typing import Any
from urllib.parse import urlsplit

import httpx
import msgspec
from joserfc.errors import JoseError
from joserfc.jwk import KeySet

from healer.ports.sign_in import ProviderAway
from healer.text import Said, quoted, said_by, say

#: Addresses and keys are asked for again after this; for an unknown key at once, but no more often than that.
KEPT_S, UNKNOWN_KEY_S = 3600.0, 10.0
TIMEOUT_S = 5.0
_PATH = "/.well-known/openid-configuration"
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


class Published(msgspec.Struct, frozen=True):
    """The provider's document, as far as it is used; further fields are ignored."""

    issuer: str
    authorization_endpoint: str
    token_endpoint: str
    jwks_uri: str
    userinfo_endpoint: str = ""
    device_authorization_endpoint: str = ""
    scopes_supported: tuple[str, ...] = ("openid", "profile", "email")
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class ProviderDocument:
    """For all threads of a process."""

    def __init__(self, issuer: str, http: httpx.Client) -> None:
        self.issuer, self._http = issuer, http
        self._lock = threading.Lock()
        self._published: Published | None = None
        self._keys: KeySet | None = None
        self._read_at = self._keys_at = float("-inf")

    def published(self) -> Published:
        """Raises ProviderAway."""
        with self._lock:
            if self._published is None or time.monotonic() - self._read_at > KEPT_S:
                try:
                    self._published = self._read()
                    self._read_at = time.monotonic()
                except ProviderAway:
                    if self._published is None:
                        raise
            return self._published

    def keys(self, key_id: str | None) -> KeySet:
        """Those in force, with the key of this id where the provider has it. Raises ProviderAway."""
        address = self.published().jwks_uri
        with self._lock:
            age_s = time.monotonic() - self._keys_at
            is_known = self._keys is not None and (
                key_id is None or any(key.kid == key_id for key in self._keys.keys)
            )
            if self._keys is None or age_s > KEPT_S or (not is_known and age_s > UNKNOWN_KEY_S):
                try:
                    self._keys = KeySet.import_key_set(self.document(address))
                except (JoseError, ValueError, TypeError, KeyError) as error:
                    raise self.away(say("adapters.oidc_keys")) from error
                self._keys_at = time.monotonic()
            return self._keys

    def document(self, address: str, *, headers: dict[str, str] | None = None) -> Any:
        """A JSON object of the provider. Raises ProviderAway."""
        try:
            answer = self._http.get(address, headers=headers)
        except httpx.HTTPError as error:
            raise self.away(quoted(str(error) or type(error).__name__)) from error
        return self.read(answer)

    def read(self, answer: httpx.Response) -> Any:
        if answer.status_code != 200:
            raise self.away(
                say("adapters.path_answers", path=answer.request.url.path, status=answer.status_code)
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
    """https, or on this machine: what goes over the network in clear proves nothing."""
    parts = urlsplit(address)
    return parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in _LOOPBACK)
