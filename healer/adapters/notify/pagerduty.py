"""PagerDuty's Events API v2: https://developer.pagerduty.com/docs/events-api-v2/trigger-events/.

The incident's id is the `dedup_key`: a repeat is the same alert. 202 means accepted, 400 refused. PagerDuty
notifies no one of a repeat of an acknowledged alert: a worse page is an alert of its own.
"""

from typing import Any

from healer.adapters.notify.talk import OneWay, Talk, cut
from healer.model import Severity, Stage
from healer.ports.outbound import Notice
from healer.text import say

EVENTS_URL = "https://events.pagerduty.com/v2/enqueue"
#: PagerDuty's limit is 255, with the severity of a worse page.
_KEY_MAX = 252
_SEVERITY = {Severity.P0: "critical", Severity.P1: "error", Severity.P2: "warning"}
_ACTION = {Stage.opened: "trigger", Stage.acknowledged: "acknowledge", Stage.resolved: "resolve"}


class PagerDuty(OneWay):
    def __init__(self, routing_key: str, *, url: str = EVENTS_URL, talk: Talk | None = None) -> None:
        self._key, self._url, self._talk = routing_key, url, talk or Talk("PagerDuty")

    def send(self, notice: Notice, ref: str) -> str:
        """The reference is the `dedup_key` of the alert that is open, or of the next."""
        first = cut(f"healer:{notice.cluster}:{notice.thread}", _KEY_MAX)
        key = ref if ref.startswith(first) else first
        worse = f"{first}:{notice.severity}"
        wakes = notice.page and notice.worse and key != worse
        self._talk.hand_in(self._url, body(notice, self._key, worse if wakes else key))
        if not wakes:
            return first if notice.stage is Stage.resolved else key
        # Last: a process that dies before it repeats the page, and no moment is without an alert.
        self._talk.hand_in(self._url, _event("resolve", self._key, key))
        return worse


def _event(action: str, routing_key: str, key: str) -> dict[str, Any]:
    return {"routing_key": routing_key, "event_action": action, "dedup_key": key}


def body(notice: Notice, routing_key: str, key: str) -> dict[str, Any]:
    action = _ACTION[notice.stage]
    event = _event(action, routing_key, key)
    if action != "trigger":
        return event
    details: dict[str, Any] = {"text": "\n".join(notice.lines)}
    if notice.preview:
        details["preview"] = list(notice.preview)
    event["payload"] = {
        "summary": cut(notice.title, 1024),
        "source": notice.node or notice.cluster,
        "severity": _SEVERITY.get(notice.severity, "info"),
        "timestamp": notice.at.isoformat(),
        "group": notice.cluster,
        "custom_details": details,
    }
    event["client"] = "healer"
    if notice.console:
        event["client_url"] = notice.console
        event["links"] = [{"href": notice.console, "text": notice.translated(say("adapters.open_in_healer"))}]
    return event
