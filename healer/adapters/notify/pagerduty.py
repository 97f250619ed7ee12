"""PagerDuty's Events API v2: https://developer.pagerduty.com/docs/events-api-v2/trigger-events/.

The incident's id is the `dedup_key`: a repeat is the same alert. 202 means accepted, 400 refused.
"""

from typing import Any

from healer.adapters.notify.talk import OneWay, Talk, cut
from healer.model import Severity, Stage
from healer.ports.outbound import Notice
from healer.text import say

EVENTS_URL = "https://events.pagerduty.com/v2/enqueue"
_SEVERITY = {Severity.P0: "critical", Severity.P1: "error", Severity.P2: "warning"}
_ACTION = {Stage.opened: "trigger", Stage.acknowledged: "acknowledge", Stage.resolved: "resolve"}


class PagerDuty(OneWay):
    def __init__(self, routing_key: str, *, url: str = EVENTS_URL, talk: Talk | None = None) -> None:
        self._key, self._url, self._talk = routing_key, url, talk or Talk("PagerDuty")

    def send(self, notice: Notice, ref: str) -> str:
        self._talk.hand_in(self._url, body(notice, self._key))
        return dedup_key(notice)


def dedup_key(notice: Notice) -> str:
    return cut(f"healer:{notice.cluster}:{notice.thread}", 255)


def body(notice: Notice, routing_key: str) -> dict[str, Any]:
    action = _ACTION[notice.stage]
    event: dict[str, Any] = {
        "routing_key": routing_key, "event_action": action, "dedup_key": dedup_key(notice),
    }  # fmt: skip
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
