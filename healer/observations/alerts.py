"""Which alerts of other systems fire now. The same observations in the same order give the same answer."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from healer.model import Component, Observation

#: Alerts of one cluster that are remembered; beyond it the oldest is forgotten.
ALERTS_MAX = 20_000


@dataclass(slots=True)
class HeardAlert:
    """One alert by its fingerprint. `digest` is that of the first telling, by which evidence knows it.

    `rule` is for its reader's use: what the rules of `rules_version` make of it.
    """

    seen: Observation
    digest: str
    heard_at: datetime
    begun_at: datetime
    ended: bool = False
    told_at: datetime | None = None
    rule: str | None = None
    stays_h: float = 0.0
    rules_version: str = ""


class Alerts:
    """By cluster and fingerprint."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], HeardAlert] = {}
        #: What alerts stand for now, by the last look: (fault, place). An incident of theirs that is not here
        #: is over.
        self.standing: frozenset[tuple[str, Component]] = frozenset()

    def __len__(self) -> int:
        return len(self._known)

    def take(self, seen: Observation) -> None:
        """One telling. What was told before, or of a time that is over, changes nothing.

        Alertmanager keeps the earliest beginning when it merges two tellings of one alert, so what it repeats
        or resolves may have begun before what was heard: it is the same alert as long as its end says so.
        """
        key = _key(seen)
        begun = datetime.fromisoformat(str(seen.data["starts_at"]))
        ended = seen.data.get("status") == "resolved"
        known = self._known.get(key)
        if known is not None and begun <= known.begun_at and known.ended:
            return
        if known is not None and begun <= known.begun_at and not ended:
            known.heard_at = max(known.heard_at, seen.arrived_at)
            return
        if known is not None and begun < known.begun_at:
            over = seen.data.get("ends_at")
            if over and datetime.fromisoformat(str(over)) > known.begun_at:
                known.ended, known.heard_at = True, seen.arrived_at
            return
        again = seen.data.get("again")
        told = known.told_at if known is not None and begun == known.begun_at else None
        # The newest stands last: it is forgotten last.
        self._known.pop(key, None)
        self._known[key] = HeardAlert(
            seen=seen if known is None or not ended else known.seen,
            digest=str(again or seen.digest) if known is None or not ended else known.digest,
            heard_at=seen.arrived_at,
            begun_at=begun,
            ended=ended,
            told_at=told,
        )
        if len(self._known) > ALERTS_MAX:
            del self._known[next(iter(self._known))]

    def firing(self) -> Iterator[HeardAlert]:
        return (one for one in self._known.values() if not one.ended)

    def forget(self, alerts: Iterable[HeardAlert]) -> None:
        """They are over, although nobody said so."""
        for one in alerts:
            del self._known[_key(one.seen)]

    def told(self, digests: Iterable[str], now: datetime) -> None:
        """A walk has taken these in."""
        wanted = set(digests)
        if wanted:
            for one in self._known.values():
                if one.digest in wanted:
                    one.told_at = now


def _key(seen: Observation) -> tuple[str, str]:
    return seen.component.cluster, str(seen.data["fingerprint"])
