"""Firing alerts of other systems. The state is owned by the caller."""

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from healer.model import Component, Observation

#: Limits on the alerts kept per cluster and per node, so that one node's sender does not push out the alerts
#: of others. Beyond a limit an ended alert is dropped first, otherwise the oldest.
ALERTS_MAX, OF_NODE_MAX = 20_000, 100

#: (cluster, node, switch, gpu, pci, nic, device, fingerprint). The sender chooses the fingerprint: on its own
#: it would let one node's sender end another node's alert.
_Key = tuple[str, str | None, str | None, int | None, str | None, str | None, str | None, str]


@dataclass(slots=True)
class HeardAlert:
    """One alert by its fingerprint. `digest` is that of the first report, which evidence refers to.

    `rule` is set by the reader: the matching entry of the rules of `rules_version`.
    """

    seen: Observation
    digest: str
    heard_at: datetime
    begun_at: datetime
    ended: bool = False
    reported_at: datetime | None = None
    rule: str | None = None
    stays_h: float = 0.0
    rules_version: str = ""


class Alerts:
    """Alerts by place and fingerprint."""

    def __init__(self) -> None:
        #: Remembered alerts, including ended ones.
        self.heard: OrderedDict[_Key, HeardAlert] = OrderedDict()
        #: Alerts of each node, and ended alerts, oldest first.
        self._of_node: dict[str, dict[_Key, None]] = {}
        self._over: OrderedDict[_Key, None] = OrderedDict()
        #: (fault, place) that firing alerts support, as of the last look. An incident of theirs that is not
        #: listed here has ended.
        self.standing: frozenset[tuple[str, Component]] = frozenset()

    def take(self, seen: Observation) -> None:
        """Processes one report. A repeat, or a report about a time that is over, changes nothing.

        Alertmanager keeps the earliest start when it merges two reports of one alert, so a repeated or
        resolved alert may have started before the one we know: it is the same alert as long as its end says
        so.
        """
        key = _key(seen)
        begun = datetime.fromisoformat(str(seen.data["starts_at"]))
        ended = seen.data.get("status") == "resolved"
        before = self.heard.get(key)
        if before is not None and begun <= before.begun_at and before.ended:
            return
        if before is not None and begun <= before.begun_at and not ended:
            before.heard_at = max(before.heard_at, seen.arrived_at)
            return
        if before is not None and begun < before.begun_at:
            over = seen.data.get("ends_at")
            if over and datetime.fromisoformat(str(over)) > before.begun_at:
                before.ended, before.heard_at = True, seen.arrived_at
                self._over[key] = None
            return
        same = before is not None and begun == before.begun_at
        # The newest goes to the end, so that it is dropped last.
        self._drop(key)
        self.heard[key] = HeardAlert(
            seen=seen if before is None or not ended else before.seen,
            digest=str(seen.data.get("again") or seen.digest)
            if before is None or not ended
            else before.digest,
            heard_at=seen.arrived_at,
            begun_at=begun,
            ended=ended,
            reported_at=before.reported_at if before is not None and same else None,
        )
        if ended:
            self._over[key] = None
        if key[1] is not None:
            self._of_node.setdefault(key[1], {})[key] = None
        self._bound(key[1])

    def _bound(self, node: str | None) -> None:
        keys = self._of_node.get(node, {}) if node is not None else {}
        if len(keys) > OF_NODE_MAX:
            self._drop(next((key for key in keys if key in self._over), next(iter(keys))))
        if len(self.heard) > ALERTS_MAX:
            self._drop(next(iter(self._over or self.heard)))

    def _drop(self, key: _Key) -> None:
        self.heard.pop(key, None)
        self._over.pop(key, None)
        keys = self._of_node.get(key[1], {}) if key[1] is not None else {}
        keys.pop(key, None)
        if key[1] is not None and not keys:
            self._of_node.pop(key[1], None)

    def firing(self) -> Iterator[HeardAlert]:
        return (alert for alert in self.heard.values() if not alert.ended)

    def forget(self, alerts: Iterable[HeardAlert]) -> None:
        """Treats these alerts as ended, although no end was reported."""
        for alert in alerts:
            self._drop(_key(alert.seen))

    def note_reported(self, digests: Iterable[str], now: datetime) -> None:
        """Records that a walk has processed these alerts."""
        wanted = set(digests)
        for alert in self.heard.values():
            if alert.digest in wanted:
                alert.reported_at = now


def _key(seen: Observation) -> _Key:
    at = seen.component
    return at.cluster, at.node, at.switch, at.gpu, at.pci, at.nic, at.device, str(seen.data["fingerprint"])
