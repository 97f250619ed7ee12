"""Breaking the glass: who may become an administrator without the identity provider, for how long, and who is
paged. No sign-in is asked for: the secret of the seal is the proof.

The page is queued and the record written in the transaction that makes the token, and the token counts only
once the audit has sealed that record. No channel has to take the page first.
"""

import base64
import secrets

from healer.model.person_names import glass_name
from healer.ports.break_glass import LASTS, BreakGlass, GlassState, Opening
from healer.ports.clock import Clock
from healer.ports.request_errors import Conflict, Invalid
from healer.telling.news import glass_ended_message, glass_page, glass_sealed_message
from healer.text import say

#: 160 bits as base32 in groups of four: to be typed from paper.
_BYTES, _GROUP = 20, 4
_PREFIX = "GLASS"


class Emergency:
    """Raises Unavailable where the database does not answer: then nothing was done."""

    def __init__(self, store: BreakGlass, cluster: str, clock: Clock) -> None:
        self._store, self._cluster, self._clock = store, cluster, clock

    def seal(self, *, by: str) -> str:
        """A new secret, shown this once. The one before opens nothing any more."""
        letters = base64.b32encode(secrets.token_bytes(_BYTES)).decode()
        groups = [letters[at : at + _GROUP] for at in range(0, len(letters), _GROUP)]
        now = self._clock.now()
        message = glass_sealed_message(self._cluster, by, now)
        self._store.seal(plain_secret(letters), by=by, now=now, message=message)
        return "-".join((_PREFIX, *groups))

    def use(self, secret: str, *, person: str, reason: str) -> Opening | None:
        """An hour as an administrator; None when no seal in force fits the secret."""
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
        self._store.wait_for_seal(opening.token)  # without: the answer to its first use says so
        return opening

    def end(self, *, by: str, reason: str) -> GlassState:
        """Ends the hour at once. Raises Conflict when none runs."""
        ended = self._store.end(
            by=by,
            reason=reason,
            now=self._clock.now(),
            message=lambda state: glass_ended_message(self._cluster, state, reason),
        )
        if ended is None:
            raise Conflict(say("engine.glass_not_open"))
        return ended

    def state(self) -> GlassState:
        return self._store.state()


def plain_secret(text: str) -> str:
    """The letters alone, however they were typed."""
    letters = "".join(text.split()).replace("-", "").upper().removeprefix(_PREFIX)
    return letters.replace("0", "O").replace("1", "I").replace("8", "B")
