"""People whom a proxy in front of healer has signed in: oauth2-proxy, Open OnDemand, Apache with mod_auth_*.

Headers alone prove nothing. They count from the proxy's address together with a secret that only it sends."""

import hashlib
import hmac
import secrets
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from ipaddress import IPv4Network, IPv6Network, ip_address

from healer.adapters.identity_provider.token_claims import names_of
from healer.ports.directory import Arrival

SECRET_HEADER = "x-healer-proxy-secret"  # noqa: S105
ISSUER = "proxy"
_READ = frozenset(
    {
        SECRET_HEADER,
        "x-forwarded-user",
        "x-forwarded-preferred-username",
        "x-forwarded-email",
        "x-forwarded-groups",
    }
)


class TrustedProxy:
    """`healer.ports.sign_in.SignInProxy`."""

    def __init__(
        self, networks: Sequence[IPv4Network | IPv6Network], secret: str, now: Callable[[], datetime]
    ) -> None:
        self._networks, self._now = tuple(networks), now
        self._digest = hashlib.sha256(secret.encode()).digest()

    def arrival(self, address: str, headers: Iterable[tuple[str, str]]) -> Arrival | None:
        sent = [(key, value) for name, value in headers if (key := name.lower()) in _READ]
        values = dict(sent)
        if len(values) < len(sent):  # a browser's own, and a proxy that appended its word to it
            return None
        given = hashlib.sha256(values.get(SECRET_HEADER, "").encode()).digest()
        if not self._is_near(address) or not hmac.compare_digest(given, self._digest):
            return None
        subject = values.get("x-forwarded-user", "").strip()
        if not subject:
            return None
        preferred = values.get("x-forwarded-preferred-username", "").strip() or subject
        claims = {"sub": subject, "preferred_username": preferred}
        claims["email"] = values.get("x-forwarded-email", "").strip()
        groups = values.get("x-forwarded-groups", "")
        return Arrival(
            issuer=ISSUER,
            subject=subject,
            names=names_of(claims, ISSUER),
            groups=tuple(name for part in groups.split(",") if (name := part.strip())),
            proven_at=self._now() - timedelta(days=1),  # the proxy does not say when
            once=secrets.token_urlsafe(32),
        )

    def _is_near(self, address: str) -> bool:
        try:
            here = ip_address(address)
        except ValueError:
            return False
        return any(here in network for network in self._networks)
