"""What a browser or a command keeps for healer while a person signs in: signed, and good for a while."""

import hmac
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey
from joserfc.jwt import JWTClaimsRegistry


class SignedNotes:
    """`purpose`: a note that was signed for another one is not read."""

    def __init__(self, key: bytes, purpose: bytes) -> None:
        self._key = OctKey.import_key(hmac.digest(key, purpose, "sha256"))

    def sign(self, claims: Mapping[str, Any], *, until: int) -> str:
        """`until`: seconds since 1970."""
        return jwt.encode({"alg": "HS256"}, {**claims, "exp": until}, self._key)

    def read(self, note: str, now: datetime) -> dict[str, Any] | None:
        """The claims; None for a note of others or of another time."""
        try:
            claims = jwt.decode(note, self._key, algorithms=["HS256"]).claims
            JWTClaimsRegistry(now=int(now.timestamp()), exp={"essential": True}).validate(claims)
        except (JoseError, ValueError):
            return None
        return dict(claims)
