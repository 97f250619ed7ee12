"""PagerDuty's Events API v2: https://developer.pagerduty.com/docs/events-api-v2/trigger-events/.

The incident's id is the `dedup_key`: a repeat is the same alert. 202 means accepted, 400 refused. PagerDuty
notifies no one of a repeat of an acknowledged alert, so a page of a P0 is an alert of its own. An end closes
both: PagerDuty takes the end of an alert that does not exist, and nothing has to be known of what it took.
"""

from typing import Any

from healer.adapters.notify.talk import OneWay, Talk
from healer.model import Severity, Stage
from healer.model.shown import cut
from healer.ports.outbound import Notice
from healer.text import say

EVENTS_URL = "https://events.pagerduty.com/v2/enqueue"
#: PagerDuty's limit is 255, with the severity.
_KEY_MAX = 252
_SEVERITY = {Severity.P0: "critical", Severity.P1: "error", Severity.P2: "warning"}
_ACTION = {Stage.acknowledged: "acknowledge", Stage.resolved: "resolve"}


class PagerDuty(OneWay):
    def __init__(self, routing_key: str, *, url: str = EVENTS_URL, talk: Talk | None = None) -> None:
        self._key, self._url, self._talk = routing_key, url, talk or Talk("PagerDuty")

    def send(self, notice: Notice, ref: str) -> str:
        """The reference is the `dedup_key` of the alert that was triggered last."""
        first = cut(f"healer:{notice.cluster}:{notice.thread}", _KEY_MAX)
        urgent = f"{first}:{Severity.P0}"
        if notice.stage is not Stage.opened:
            for key in (first, urgent):
                self._talk.hand_in(self._url, _event(_ACTION[notice.stage], self._key, key))
            return first if notice.stage is Stage.resolved else ref or first
        wakes = notice.page and notice.severity is Severity.P0
        key = urgent if wakes or ref == urgent else first
        self._talk.hand_in(self._url, body(notice, self._key, key))
        return key


def _event(action: str, routing_key: str, key: str) -> dict[str, Any]:
    return {"routing_key": routing_key, "event_action": action, "dedup_key": key}


def body(notice: Notice, routing_key: str, key: str) -> dict[str, Any]:
    event = _event("trigger", routing_key, key)
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
