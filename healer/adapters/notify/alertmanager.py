"""Alerts to an Alertmanager: POST /api/v2/alerts, https://github.com/prometheus/alertmanager (openapi.yaml).

An alert expires at its `endsAt`. healer repeats open alerts every minute, with an end four minutes ahead: if
healer dies, they expire, and with them `HealerAlive`, the dead man's switch.
"""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from healer.adapters.notify.talk import OneWay, Talk
from healer.model import Stage
from healer.ports.outbound import Notice
from healer.text import in_language, say
from healer.text.language import Language

#: The interval of repeats, and the lifetime of an alert.
REPOST_S = 60.0
LASTS = timedelta(seconds=4 * REPOST_S)


class Alertmanager(OneWay):
    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        talk: Talk | None = None,
    ) -> None:
        self._url, self._now = f"{url.rstrip('/')}/api/v2/alerts", now
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._talk = talk or Talk("Alertmanager")
        self._behind = timedelta(0)

    def send(self, notice: Notice, ref: str) -> str:
        self._post(lambda now: [alert(notice, now)])
        return notice.thread

    def renew(self, notices: Sequence[Notice]) -> None:
        """Repeats open alerts. Raises DeliveryFailed."""
        self._post(lambda now: [alert(notice, now) for notice in notices])

    def alive(self, clusters: tuple[str, ...], lasts: timedelta = LASTS, language: Language = "en") -> None:
        """Sends the dead man's switch. Raises DeliveryFailed."""
        words = in_language(say("adapters.watchdog"), language)
        self._post(lambda now: [watchdog(name, words, now, lasts) for name in clusters], lasts)

    def _post(self, alerts: Callable[[datetime], list[dict[str, Any]]], lasts: timedelta = LASTS) -> None:
        """Sends the alerts, by the clock of the Alertmanager where ours is far behind; again where it took
        them for ended."""
        now = self._now() + self._behind
        its = self._talk.hand_in(self._url, alerts(now), self._headers).at or now
        behind = its - self._now()
        self._behind = behind if behind > lasts / 2 else timedelta(0)  # else it lasts until it is repeated
        if its >= now + lasts:
            self._talk.hand_in(self._url, alerts(its), self._headers)


def alert(notice: Notice, now: datetime) -> dict[str, Any]:
    """The labels identify the alert, so none of them changes except the severity."""
    labels = {
        "alertname": "HealerIncident", "cluster": notice.cluster, "incident": notice.thread,
        "severity": str(notice.severity), **({"node": notice.node} if notice.node else {}),
    }  # fmt: skip
    ends = now if notice.stage is Stage.resolved else now + LASTS
    found: dict[str, Any] = {
        "labels": labels,
        "annotations": {"summary": notice.title, "description": "\n".join((*notice.lines, *notice.preview))},
        "startsAt": min(notice.at, now).isoformat(),
        "endsAt": ends.isoformat(),
    }
    if notice.console:
        found["generatorURL"] = notice.console
    return found


def watchdog(cluster: str, words: str, now: datetime, lasts: timedelta) -> dict[str, Any]:
    return {
        "labels": {"alertname": "HealerAlive", "cluster": cluster, "severity": "none"},
        "annotations": {"summary": words},
        "endsAt": (now + lasts).isoformat(),
    }
