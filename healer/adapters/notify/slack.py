"""Slack by its Web API: one message for an incident, kept up to date, with news in its thread.

https://api.slack.com/methods/chat.postMessage, chat.update, conversations.history and .replies. Slack
answers 200 with `ok: false` for refusals. The metadata contains the message's id, so that a message with an
unknown outcome can be found.
"""

from collections.abc import Sequence
from typing import Any

import structlog

from healer.adapters.notify.talk import Talk, label_of
from healer.model import REJECTIONS, Severity, Stage
from healer.model.shown import cut, shown
from healer.ports.outbound import DeliveryFailed, Notice
from healer.text import Said, say

log = structlog.get_logger()

API = "https://slack.com/api"
EVENT = "healer_message"
#: Characters in a section, a header, and the fallback text; and sections: a digest takes four at most.
_SECTION_MAX, _HEADER_MAX, _FALLBACK_MAX = 2900, 150, 3000
_SECTIONS_MAX = 4
#: Errors after which a retry may succeed.
_RETRYABLE = frozenset(
    {
        "ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable",
        "request_timeout", "team_added_to_org", "external_channel_migrating",
    }
)  # fmt: skip
#: The root message cannot be updated, also because its channel is archived and the rules name another: a new
#: one is posted.
_GONE = frozenset(
    {
        "message_not_found", "cant_update_message", "edit_window_closed",
        "channel_not_found", "is_inactive", "is_archived", "not_in_channel",
    }
)  # fmt: skip
#: The prefix of response URLs for pressed buttons.
REPLIES = "https://hooks.slack.com/"
_MARK = {Severity.P0: ":red_circle:", Severity.P1: ":large_orange_circle:"}


class SlackChannel:
    """`ports.outbound.MessageChannel`. A reference is `channel:ts` of the root message."""

    can_find = True

    def __init__(
        self, token: str, channel: str, *, url: str = API, talk: Talk | None = None, buttons: bool = True
    ) -> None:
        self.has_buttons = buttons
        self._url, self._channel = url.rstrip("/"), channel
        self._headers = {"authorization": f"Bearer {token}"}
        self._talk = talk or Talk("Slack")

    def send(self, notice: Notice, ref: str) -> str:
        """Posts the root message, or updates it and adds the news to its thread. Raises DeliveryFailed."""
        channel, _, ts = ref.partition(":")
        if ts and self._update(notice, channel, ts):
            self._post({**message(notice, buttons=False), "channel": channel, "thread_ts": ts,
                        "reply_broadcast": notice.page})  # fmt: skip
            return ref
        found = self._post({**message(notice), "channel": self._channel})
        return f"{found.get('channel', self._channel)}:{found['ts']}"

    def find(self, notice: Notice, ref: str = "") -> str:
        """The thread with this message's id, or an empty string: searches the newest 200 messages of the
        incident's thread, or of the channel."""
        channel, _, ts = ref.partition(":")
        method, query = "conversations.history", {"channel": self._channel}
        if ts:
            method, query = "conversations.replies", {"channel": channel, "ts": ts}
        query |= {"limit": "200", "include_all_metadata": "true"}
        reply = self._talk.get(f"{self._url}/{method}", query, self._headers)
        for item in _checked(reply.body, reply.retry_after_s).get("messages") or ():
            payload = (item.get("metadata") or {}).get("event_payload") or {}
            # The root is updated first and then has the newest id: only the reply proves the delivery.
            if payload.get("id") == notice.id and item.get("ts") != ts:
                return ref or f"{self._channel}:{item['ts']}"
        return ""

    def _update(self, notice: Notice, channel: str, ts: str) -> bool:
        try:
            self._call("chat.update", {**message(notice), "channel": channel, "ts": ts})
        except _Gone:
            return False
        return True

    def _post(self, body: dict[str, Any]) -> dict[str, Any]:
        found = self._call("chat.postMessage", body)
        if not isinstance(found.get("ts"), str):
            raise DeliveryFailed(say("adapters.slack_no_place"))
        return found

    def _call(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = self._talk.post(f"{self._url}/{method}", body, self._headers)
        return _checked(reply.body, reply.retry_after_s)


class SlackReplies:
    """Answers a pressed button, visible only to the person who pressed it."""

    def __init__(self) -> None:
        self._talk = Talk("Slack")

    def respond(self, url: str, text: str) -> None:
        """Best effort: the run's page shows it too. Sends only to Slack's addresses."""
        if not url.startswith(REPLIES):
            return
        body = {"response_type": "ephemeral", "replace_original": False, "text": cut(escaped(text), 2000)}
        try:
            self._talk.post(url, body)
        except DeliveryFailed as error:
            log.warning("Slack rejected the answer to a button", error=str(error))


class _Gone(DeliveryFailed):
    pass


def _checked(body: Any, wait_s: float | None) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise DeliveryFailed(say("adapters.who_no_json", who="Slack"))
    if body.get("ok") is True:
        return body
    error = cut(str(body.get("error") or say("api.no_reason")), 200)
    why = say("adapters.who_refused", who="Slack", error=error)
    failure = _Gone if error in _GONE else DeliveryFailed
    raise failure(why, retry_after_s=wait_s, refused=error not in _RETRYABLE)


# --- layout ----------------------------------------------------------------------------------------------


def message(notice: Notice, *, buttons: bool = True) -> dict[str, Any]:
    """`text` is the fallback in notifications; Slack shows the blocks."""
    return {
        "text": cut(escaped(notice.text), _FALLBACK_MAX),
        "blocks": blocks(notice, buttons=buttons),
        "unfurl_links": False,
        "unfurl_media": False,
        "parse": "none",
        "metadata": {"event_type": EVENT, "event_payload": {"id": notice.id, "thread": notice.thread}},
    }


def blocks(notice: Notice, *, buttons: bool = True) -> list[dict[str, Any]]:
    mark = ":white_check_mark:" if notice.stage is Stage.resolved else _MARK.get(notice.severity, "")
    head = cut(f"{mark} {notice.title}".strip(), _HEADER_MAX)
    found: list[dict[str, Any]] = [
        {"type": "header", "text": {"type": "plain_text", "text": head, "emoji": True}},
        *sections(notice.lines),
    ]
    if notice.preview:
        found += sections(notice.preview)
    if notice.console:
        link = f"<{escaped(notice.console)}|{notice.translated(say('adapters.open_in_healer'))}>"
        found.append({"type": "context", "elements": [{"type": "mrkdwn", "text": link}]})
    if buttons and notice.run:
        found.append(_actions(notice))
    return found


def sections(lines: Sequence[str]) -> list[dict[str, Any]]:
    """The lines in as few sections as hold them; what is too long for `_SECTIONS_MAX` is cut at the end."""
    texts = [""]
    for line in map(_line, lines):
        longer = f"{texts[-1]}\n{line}" if texts[-1] else line
        if texts[-1] and len(longer) > _SECTION_MAX and len(texts) < _SECTIONS_MAX:
            texts.append(line)
        else:
            texts[-1] = longer
    return list(map(_section, texts))


def _section(text: str) -> dict[str, Any]:
    """`verbatim`: Slack makes no links and mentions of names and addresses in a log's line."""
    text = cut(text, _SECTION_MAX) or " "
    return {"type": "section", "text": {"type": "mrkdwn", "text": text, "verbatim": True}}


def escaped(text: str) -> str:
    """Escapes the three characters of Slack's markup, by which a log line could mention a whole channel."""
    text = shown(text, keep="\n")
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _line(line: str) -> str:
    label, rest = label_of(line)
    return f"*{escaped(label)}* {escaped(rest)}" if label else escaped(rest)


def _actions(notice: Notice) -> dict[str, Any]:
    """A button that asks for confirmation, and a menu of reasons to reject."""

    def plain(words: Said) -> dict[str, Any]:
        return {"type": "plain_text", "text": notice.translated(words)}

    words = {
        "title": plain(say("adapters.slack_approve_question")),
        "text": plain(say("adapters.slack_confirm")),
        "confirm": plain(say("adapters.slack_approve")),
        "deny": plain(say("adapters.slack_back")),
    }
    approve = {
        "type": "button", "action_id": "approve", "style": "primary", "value": notice.run,
        "text": plain(say("adapters.slack_approve")), "confirm": words,
    }  # fmt: skip
    reject = {
        "type": "static_select", "action_id": "reject", "placeholder": plain(say("adapters.slack_reject")),
        "options": [
            {"text": plain(text), "value": f"{key}:{notice.run}"} for key, text in REJECTIONS.items()
        ],
    }  # fmt: skip
    return {"type": "actions", "block_id": "approval", "elements": [approve, reject]}
