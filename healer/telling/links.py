"""Links in messages that show one page without signing in, for a day. They show, and allow nothing.

`?look=UNTIL.SIGNATURE`: the second until which it opens, and the first 32 hex digits of HMAC-SHA256 over
`PATH|UNTIL` with the site's secret (HEALER_LINK_SECRET).
"""

import hashlib
import hmac
from datetime import datetime, timedelta

LASTS = timedelta(hours=24)
NAME = "look"


def signed(path: str, secret: str, since: datetime) -> str:
    """The path with what opens it, the same each time for the same moment."""
    until = int((since + LASTS).timestamp())
    return f"{path}?{NAME}={until}.{_signature(path, until, secret)}"


def opens(path: str, look: str, secret: str, now: datetime) -> bool:
    """Whether this is ours, for this page, and not over."""
    stamp, _, given = look.partition(".")
    if not (stamp.isascii() and stamp.isdigit() and len(stamp) < 12):
        return False
    until = int(stamp)
    return hmac.compare_digest(_signature(path, until, secret).encode(), given.encode()) and (
        now.timestamp() < until
    )


def _signature(path: str, until: int, secret: str) -> str:
    return hmac.new(secret.encode(), f"{path}|{until}".encode(), hashlib.sha256).hexdigest()[:32]
