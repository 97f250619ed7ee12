"""The device flow of RFC 8628: a person at a terminal types a code into the provider's page, in any browser.

healer is the provider's client here too: a command sees neither healer's secret nor a token of the provider.
The device code waits at the command, signed, so that beginning many fills no table."""

import hashlib

import msgspec

from healer.adapters.identity_provider.provider_client import ProviderClient, error_of
from healer.adapters.identity_provider.provider_document import is_safe
from healer.adapters.identity_provider.signed_notes import SignedNotes
from healer.model.shown import shown
from healer.ports.directory import SESSION_LASTS, Arrival
from healer.ports.sign_in import DeviceBegun, SignInRefused, StillWaiting
from healer.text import said_by, say

_GRANT = "urn:ietf:params:oauth:grant-type:device_code"
#: Where the provider names no interval (RFC 8628, 3.2); the longest that healer waits for a person.
_INTERVAL_S, _LASTS_AT_MOST_S = 5, 1800
_WAITING = {"authorization_pending": StillWaiting(slow_down=False), "slow_down": StillWaiting(slow_down=True)}


class _Answer(msgspec.Struct, frozen=True):
    """The fields used of the provider's answer."""

    device_code: str
    user_code: str
    verification_uri: str
    expires_in: int
    verification_uri_complete: str = ""
    interval: int = _INTERVAL_S


class DeviceFlow:
    """`healer.ports.sign_in.DeviceSignIn`. `key` signs the value that the command keeps."""

    def __init__(self, client: ProviderClient, key: bytes) -> None:
        self._client = client
        self._notes = SignedNotes(key, b"healer device sign-in")

    def begin(self) -> DeviceBegun:
        document = self._client.document
        address = document.published().device_authorization_endpoint
        if not address:
            raise SignInRefused(say("api.login_no_device_endpoint", issuer=self._client.issuer))
        asked = {"scope": self._client.scope(), "max_age": str(int(SESSION_LASTS.total_seconds()))}
        answer = self._client.post(address, asked)  # the second, for some name no `auth_time` unasked
        if 400 <= answer.status_code < 500:
            raise SignInRefused(say("api.login_device_refused", why=error_of(answer)))
        try:
            made = msgspec.convert(document.read(answer), _Answer)
        except msgspec.ValidationError as error:
            raise document.away(said_by(error)) from error
        for where in filter(None, (made.verification_uri, made.verification_uri_complete)):
            if not is_safe(where) or shown(where) != where:
                raise document.away(say("adapters.not_https", address=shown(where)))
        lasts_s = max(1, min(made.expires_in, _LASTS_AT_MOST_S))
        until = int(self._client.now().timestamp()) + lasts_s
        return DeviceBegun(
            code=made.user_code,
            address=made.verification_uri,
            link=made.verification_uri_complete,
            interval_s=max(1, made.interval),
            expires_s=lasts_s,
            kept=self._notes.sign({"code": made.device_code}, until=until),
        )

    def finish(self, kept: str, *, claim: str) -> Arrival | StillWaiting:
        begun = self._notes.read(kept, self._client.now())
        if begun is None:
            raise _refused("expired_token")
        code = str(begun["code"])
        address = self._client.document.published().token_endpoint
        answer = self._client.post(address, {"grant_type": _GRANT, "device_code": code})
        if 400 <= answer.status_code < 500:
            why = error_of(answer)
            if why in _WAITING:
                return _WAITING[why]
            raise _refused(why)
        found = self._client.document.read(answer)
        once = hashlib.sha256(b"device\0" + code.encode()).hexdigest()
        return self._client.arrival(found, nonce=None, again=False, claim=claim, once=once)


def _refused(why: str) -> SignInRefused:
    if why == "access_denied":
        return SignInRefused(say("api.login_denied"))
    if why == "expired_token":
        return SignInRefused(say("api.login_expired"))
    return SignInRefused(say("api.login_device_refused", why=why))
