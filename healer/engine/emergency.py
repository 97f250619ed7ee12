"""Break-glass access: who may become an administrator without the identity provider, for how long, and who is
paged. It needs no sign-in; the sealed secret is the proof.

The page is queued and the audit record written in the transaction that creates the token, and the token
becomes valid only once the audit has sealed that record. Delivery of the page is not awaited.
"""

import base64
import secrets

from healer.model.person_names import glass_name
from healer.ports.break_glass import LASTS, BreakGlass, GlassState, Opening
from healer.ports.clock import Clock
from healer.ports.request_errors import Conflict, Invalid
from healer.telling.news import glass_ended_message, glass_page, glass_sealed_message
from healer.text import say

#: 160 bits as base32 in groups of four, so that it can be typed from paper.
_BYTES, _GROUP = 20, 4
_PREFIX = "GLASS"


class Emergency:
    """Raises Unavailable if the database does not answer; in that case nothing was done."""

    def __init__(self, store: BreakGlass, cluster: str, clock: Clock) -> None:
        self._store, self._cluster, self._clock = store, cluster, clock

    def seal(self, *, by: str) -> str:
        """A new secret, shown only once. The previous one becomes invalid."""
        letters = base64.b32encode(secrets.token_bytes(_BYTES)).decode()
        groups = [letters[at : at + _GROUP] for at in range(0, len(letters), _GROUP)]
        now = self._clock.now()
        message = glass_sealed_message(self._cluster, by, now)
        self._store.seal(plain_secret(letters), by=by, now=now, message=message)
        return "-".join((_PREFIX, *groups))

    def use(self, secret: str, *, person: str, reason: str) -> Opening | None:
        """Administrator access for one hour; None if the secret does not match a seal in force."""
        if "/" in person or "(" in person:
            raise Invalid("person", say("engine.glass_person"))
        now, identity = self._clock.now(), secrets.token_hex(4)
        opening = Opening(
            token=f"heal_{identity}_{secrets.token_urlsafe(32)}",
            cookie=f"{identity}.{secrets.token_urlsafe(32)}",
            name=glass_name(person),
            reason=reason,
            at=now,
            until=now + LASTS,
        )
        page = glass_page(self._cluster, person, reason, opening)
        if not self._store.use(plain_secret(secret), opening, page):
            return None
        self._store.wait_for_seal(opening.token)  # if this times out, the first use of the token reports it
        return opening

    def end(self, *, by: str, reason: str) -> GlassState:
        """Ends the access immediately; once it is over, answers how it ended. Raises Conflict if there was
        none."""
        ended = self._store.end(
            by=by,
            reason=reason,
            now=self._clock.now(),
            message=lambda state: glass_ended_message(self._cluster, state, reason),
        )
        if ended is None:
            ended = self._store.state()
            if ended.used_at is None:
                raise Conflict(say("engine.glass_not_open"))
        return ended

    def state(self) -> GlassState:
        return self._store.state()


def plain_secret(text: str) -> str:
    """The secret's letters in upper case, without its prefix and separators."""
    letters = "".join(text.split()).replace("-", "").upper().removeprefix(_PREFIX)
    return letters.replace("0", "O").replace("1", "I").replace("8", "B")
