"""What the provider's tokens claim, once their signature, issuer, audience and times are checked."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from joserfc import jws, jwt
from joserfc.errors import JoseError
from joserfc.jwk import KeySet
from joserfc.jwt import JWTClaimsRegistry

from healer.model.person_names import is_person_name
from healer.ports.sign_in import LoggedOut, SignInRefused
from healer.text import said_by, say

#: Signatures by the provider's private key; one by the shared secret would need the secret to check it.
ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA", "Ed25519"]
#: How far the provider's clock may differ from this one.
SKEW_S = 60
#: Oldest logout token that is believed.
_LOGOUT_S = 600
_LOGOUT_EVENT = "http://schemas.openid.net/event/backchannel-logout"
_GROUPS_MAX = 1000


class Checked:
    """Checks the tokens that `issuer` makes for `client`. `keys`: those in force, by the id of one."""

    def __init__(self, issuer: str, client: str, keys: Callable[[str | None], KeySet]) -> None:
        self._issuer, self._client, self._keys = issuer, client, keys

    def id_token(self, text: str, *, nonce: str | None, now: datetime) -> dict[str, Any]:
        """Its claims. `nonce` None: of the device flow, which has none. Raises SignInRefused."""
        claims = self._claims(text)
        registry = self._registry(
            now,
            sub={"essential": True},
            exp={"essential": True},
            nonce={"essential": False} if nonce is None else {"essential": True, "value": nonce},
        )
        self._validate(registry, claims)
        audience = claims["aud"]
        party = claims.get("azp")
        if party not in (None, self._client) or (
            isinstance(audience, list) and len(audience) > 1 and not party
        ):
            raise _refused(say("adapters.oidc_client"))
        return claims

    def _registry(self, now: datetime, **more: Any) -> JWTClaimsRegistry:
        """What every token of the provider has to claim, and `more`."""
        return JWTClaimsRegistry(
            now=int(now.timestamp()),
            leeway=SKEW_S,
            iss={"essential": True, "value": self._issuer},
            aud={"essential": True, "value": self._client},
            iat={"essential": True},
            **more,
        )

    def logout_token(self, text: str, now: datetime) -> LoggedOut:
        """Raises SignInRefused."""
        claims = self._claims(text)
        registry = self._registry(now, jti={"essential": True})
        self._validate(registry, claims)
        events = claims.get("events")
        subject, sid = claims.get("sub", ""), claims.get("sid", "")
        is_logout = isinstance(events, dict) and _LOGOUT_EVENT in events and "nonce" not in claims
        is_young = now.timestamp() - claims["iat"] <= _LOGOUT_S
        texts = isinstance(subject, str) and isinstance(sid, str)
        if not is_logout or not is_young or not texts or not (subject or sid):
            raise _refused(say("adapters.oidc_logout"))
        return LoggedOut(subject, sid)

    def _claims(self, text: str) -> dict[str, Any]:
        try:
            header = jws.extract_compact(text.encode()).headers()
            key_id = header.get("kid")
            keys = self._keys(key_id if isinstance(key_id, str) else None)
            return dict(jwt.decode(text, keys, algorithms=ALGORITHMS).claims)
        except (JoseError, ValueError, TypeError) as error:
            raise _refused(said_by(error)) from error

    def _validate(self, registry: JWTClaimsRegistry, claims: dict[str, Any]) -> None:
        try:
            registry.validate(claims)
        except (JoseError, ValueError, TypeError) as error:
            raise _refused(said_by(error)) from error


def _refused(why: str) -> SignInRefused:
    return SignInRefused(say("api.sign_in_token_refused", why=why))


def names_of(claims: Mapping[str, Any], issuer: str) -> tuple[str, ...]:
    """What the person may be called, the best first; the last is always theirs."""
    email = claims.get("email") if claims.get("email_verified", True) is not False else None
    found = [claims.get("preferred_username"), email, claims["sub"]]
    digest = hashlib.sha256(f"{issuer}\0{claims['sub']}".encode()).hexdigest()
    names = [name for name in found if isinstance(name, str) and is_person_name(name)]
    return (*dict.fromkeys(names), f"person-{digest[:12]}")


def groups_of(claims: Mapping[str, Any], claim: str) -> tuple[str, ...] | None:
    """None if the claim is missing. `a.b` is b within a, unless a claim has that very name."""
    found: Any = claims.get(claim)
    if found is None:
        found = claims
        for part in claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
    if found is None:
        return None
    listed: Sequence[Any] = [found] if isinstance(found, str) else found if isinstance(found, list) else []
    return tuple(group for group in listed if isinstance(group, str) and group)[:_GROUPS_MAX]


def proven_at(claims: Mapping[str, Any], now: datetime, *, again: bool) -> datetime:
    """When the person proved their identity to the provider. Without `auth_time`, a provider that was asked
    to authenticate again has done so now; otherwise it is long ago. Raises SignInRefused if it did not
    authenticate again."""
    moment = claims.get("auth_time")
    if not isinstance(moment, int | float) or isinstance(moment, bool):
        return now if again else now - timedelta(days=1)
    at = datetime.fromtimestamp(max(0, min(moment, now.timestamp())), UTC)
    if again and (now - at).total_seconds() > SKEW_S + 300:
        raise SignInRefused(say("api.sign_in_not_again"))
    return at
