"""The code flow with PKCE, state and nonce. All three wait in a signed cookie of the browser that began: no
other one ends that sign-in, and beginning many fills no table."""

import base64
import hashlib
import hmac
import secrets
from typing import Any
from urllib.parse import urlencode

from healer.adapters.identity_provider.provider_client import ProviderClient, error_of
from healer.adapters.identity_provider.signed_notes import SignedNotes
from healer.ports.sign_in import Begun, LoggedOut, Proven, SignInRefused
from healer.text import say

#: From the first page to the answer of the provider.
BEGUN_LASTS_S = 600
#: How long a proof of identity is valid for actions that need a fresh one.
FRESH_S = 300


class OidcProvider:
    """`healer.ports.sign_in.IdentityProvider`. `key` signs the cookie."""

    def __init__(self, client: ProviderClient, redirect: str, key: bytes) -> None:
        self.issuer, self._client, self._redirect = client.issuer, client, redirect
        self._notes = SignedNotes(key, b"healer sign-in")

    def begin(self, target: str, *, again: bool = False) -> Begun:
        published, now = self._client.document.published(), int(self._client.now().timestamp())
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=")
        asked = {
            "response_type": "code",
            "client_id": self._client.id,
            "redirect_uri": self._redirect,
            "scope": self._client.scope(),
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge.decode(),
            "code_challenge_method": "S256",
        }
        if again:
            asked |= {"prompt": "login", "max_age": str(FRESH_S)}
        claims = {"state": state, "nonce": nonce, "verifier": verifier, "target": target, "again": again}
        kept = self._notes.sign(claims, until=now + BEGUN_LASTS_S)
        glue = "&" if "?" in published.authorization_endpoint else "?"
        return Begun(f"{published.authorization_endpoint}{glue}{urlencode(asked)}", kept)

    def finish(self, kept: str, *, state: str, code: str, issuer: str, claim: str) -> Proven:
        begun = self._notes.read(kept, self._client.now())
        if begun is None or not code or not hmac.compare_digest(state.encode(), begun["state"].encode()):
            raise SignInRefused(say("api.sign_in_not_begun_here"))
        if issuer and issuer != self.issuer:
            raise SignInRefused(say("api.sign_in_token_refused", why=say("adapters.oidc_issuer")))
        answer = self._exchange(code, begun["verifier"])
        arrival = self._client.arrival(
            answer, nonce=begun["nonce"], again=begun["again"], claim=claim, once=begun["state"]
        )
        return Proven(arrival, begun["target"])

    def logged_out(self, logout_token: str) -> LoggedOut:
        return self._client.checked.logout_token(logout_token, self._client.now())

    def _exchange(self, code: str, verifier: str) -> dict[str, Any]:
        form = {"grant_type": "authorization_code", "code": code, "redirect_uri": self._redirect}
        address = self._client.document.published().token_endpoint
        answer = self._client.post(address, form | {"code_verifier": verifier})
        if 400 <= answer.status_code < 500:
            raise SignInRefused(say("api.sign_in_code_refused", why=error_of(answer)))
        return self._client.document.read(answer)
