"""Time-based one-time codes (RFC 6238): SHA-1, six digits, 30 s, as supported by every authenticator app."""

import base64
import hmac
from datetime import datetime
from urllib.parse import quote, urlencode

PERIOD_S, DIGITS = 30, 6
#: Codes of the neighbouring steps are valid too: clocks differ, and people type slowly.
_SKEW = (0, -1, 1)


def code_at(secret: bytes, step: int) -> str:
    digest = hmac.digest(secret, step.to_bytes(8, "big"), "sha1")
    offset = digest[-1] & 0xF
    number = int.from_bytes(digest[offset : offset + 4], "big") & 0x7FFFFFFF
    return f"{number % 10**DIGITS:0{DIGITS}d}"


def step_of(secret: bytes, code: str, now: datetime) -> int | None:
    """The time step with this code; None: the code is not valid now."""
    current = int(now.timestamp()) // PERIOD_S
    typed = "".join(code.split()).encode()
    near = (current + skew for skew in _SKEW)
    found = [step for step in near if hmac.compare_digest(code_at(secret, step).encode(), typed)]
    return found[0] if found else None


def as_text(secret: bytes) -> str:
    """The secret as people type it into an app."""
    return base64.b32encode(secret).decode().rstrip("=")


def app_uri(secret: bytes, *, issuer: str, name: str) -> str:
    """The text for an authenticator app's QR code."""
    label = quote(f"{issuer}:{name}", safe=":")
    return f"otpauth://totp/{label}?{urlencode({'secret': as_text(secret), 'issuer': issuer})}"
