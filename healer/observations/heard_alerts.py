"""Which alerts of other systems fire now. The same observations in the same order give the same answer."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from healer.model import Component, Observation

#: Alerts of one cluster that are remembered, and of one node: no node's sender makes the others' forgotten.
#: Beyond them one that is over is forgotten first, else the oldest.
ALERTS_MAX, OF_NODE_MAX = 20_000, 100

#: (cluster, node, switch, gpu, pci, nic, device, fingerprint). The sender chooses the fingerprint: alone it
#: would let one node's sender end another node's alert.
_Key = tuple[str, str | None, str | None, int | None, str | None, str | None, str | None, str]


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
    """By place and fingerprint."""

    def __init__(self) -> None:
        self._known: OrderedDict[_Key, HeardAlert] = OrderedDict()
        #: Those of each node, and those that are over: the oldest first.
        self._of_node: dict[str, dict[_Key, None]] = {}
        self._over: OrderedDict[_Key, None] = OrderedDict()
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
                self._over[key] = None
            return
        again = seen.data.get("again")
        told = known.told_at if known is not None and begun == known.begun_at else None
        # The newest stands last: it is forgotten last.
        self._drop(key)
        self._known[key] = HeardAlert(
            seen=seen if known is None or not ended else known.seen,
            digest=str(again or seen.digest) if known is None or not ended else known.digest,
            heard_at=seen.arrived_at,
            begun_at=begun,
            ended=ended,
            told_at=told,
        )
        if ended:
            self._over[key] = None
        if key[1] is not None:
            self._of_node.setdefault(key[1], {})[key] = None
        self._bound(key[1])

    def _bound(self, node: str | None) -> None:
        own = self._of_node.get(node, {}) if node is not None else {}
        if len(own) > OF_NODE_MAX:
            self._drop(next((one for one in own if one in self._over), next(iter(own))))
        if len(self._known) > ALERTS_MAX:
            self._drop(next(iter(self._over or self._known)))

    def _drop(self, key: _Key) -> None:
        self._known.pop(key, None)
        self._over.pop(key, None)
        own = self._of_node.get(key[1], {}) if key[1] is not None else {}
        own.pop(key, None)
        if key[1] is not None and not own:
            self._of_node.pop(key[1], None)

    def firing(self) -> Iterator[HeardAlert]:
        return (one for one in self._known.values() if not one.ended)

    def forget(self, alerts: Iterable[HeardAlert]) -> None:
        """They are over, although nobody said so."""
        for one in alerts:
            self._drop(_key(one.seen))

    def told(self, digests: Iterable[str], now: datetime) -> None:
        """A walk has taken these in."""
        wanted = set(digests)
        if wanted:
            for one in self._known.values():
                if one.digest in wanted:
                    one.told_at = now


def _key(seen: Observation) -> _Key:
    at = seen.component
    return at.cluster, at.node, at.switch, at.gpu, at.pci, at.nic, at.device, str(seen.data["fingerprint"])
