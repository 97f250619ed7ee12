"""healer as a client of the provider: what both ways of signing in share."""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import httpx

from healer.adapters.identity_provider.provider_document import TIMEOUT_S, ProviderDocument
from healer.adapters.identity_provider.token_claims import Checked, groups_of, names_of, proven_at
from healer.ports.directory import Arrival
from healer.ports.sign_in import SignInRefused
from healer.text import say

_SCOPES = ("openid", "profile", "email", "groups")


class ProviderClient:
    """`client`: the id and the secret; without a secret healer is a public client."""

    def __init__(self, issuer: str, client: tuple[str, str], now: Callable[[], datetime]) -> None:
        self.issuer, (self.id, self._secret), self.now = issuer, client, now
        self.document = ProviderDocument(issuer, httpx.Client(timeout=TIMEOUT_S, follow_redirects=False))
        self.checked = Checked(issuer, self.id, self.document.keys)

    def scope(self) -> str:
        """Those that the provider lists."""
        listed = self.document.published().scopes_supported
        return " ".join(name for name in _SCOPES if name in ("openid", *listed))

    def post(self, address: str, form: Mapping[str, str]) -> httpx.Response:
        """The provider's answer to this form, sent as healer. Raises ProviderAway."""
        auth = None
        if (
            self._secret
            and "client_secret_basic" in self.document.published().token_endpoint_auth_methods_supported
        ):
            auth = httpx.BasicAuth(self.id, self._secret)
        else:
            named = {"client_id": self.id} | ({"client_secret": self._secret} if self._secret else {})
            form = {**form, **named}
        return self.document.ask("POST", address, data=dict(form), auth=auth or httpx.USE_CLIENT_DEFAULT)

    def arrival(
        self, answer: Mapping[str, Any], *, nonce: str | None, again: bool, claim: str, once: str
    ) -> Arrival:
        """Whom this answer of the token endpoint names. Raises SignInRefused."""
        now = self.now()
        claims = self.checked.id_token(str(answer.get("id_token", "")), nonce=nonce, now=now)
        groups = groups_of(claims, claim)
        if groups is None:
            claims = self._with_userinfo(claims, str(answer.get("access_token", "")))
            groups = groups_of(claims, claim) or ()
        sid = claims.get("sid")
        return Arrival(
            issuer=self.issuer,
            subject=claims["sub"],
            names=names_of(claims, self.issuer),
            groups=groups,
            proven_at=proven_at(claims, now, again=again),
            once=once,
            sid=sid if isinstance(sid, str) else "",
        )

    def _with_userinfo(self, claims: dict[str, Any], access_token: str) -> dict[str, Any]:
        address = self.document.published().userinfo_endpoint
        if not address or not access_token:
            return claims
        found = self.document.document(address, headers={"Authorization": f"Bearer {access_token}"})
        if found.get("sub") != claims["sub"]:
            raise SignInRefused(say("api.sign_in_token_refused", why=say("adapters.oidc_subject")))
        return found | claims


def error_of(answer: httpx.Response) -> str:
    """The provider's own name of the error; else the status."""
    try:
        found = answer.json().get("error")
    except (ValueError, AttributeError):
        found = None
    return found if isinstance(found, str) and found.isprintable() else str(answer.status_code)
