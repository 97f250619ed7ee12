"""Group bots of DingTalk, Feishu (Lark) and WeCom. They answer 200 also for refusals: the body has a code.

DingTalk: https://open.dingtalk.com/document/robots/custom-robot-access. The signature is part of the address:
base64 of HMAC-SHA256 over `milliseconds LF secret` with the secret as key. Limit: 20 messages a minute, then
a block of ten minutes.

Feishu: https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot. The signature is part of the body:
base64 of HMAC-SHA256 over nothing, with `seconds LF secret` as key. Limits: 100 messages a minute and 5 a
second, 20 KB each.

WeCom: https://developer.work.weixin.qq.com/document/path/91770. Limit: 20 messages a minute.
"""

import base64
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus

from healer.adapters.notify.talk import OneWay, Reply, Talk, as_markdown, cut_bytes, links
from healer.model import Severity, Stage
from healer.model.shown import cut
from healer.ports.outbound import DeliveryFailed, Notice
from healer.text import say

_DINGTALK_BYTES, _FEISHU_BYTES, _WECOM_BYTES, _WECOM_CALL_BYTES = 18_000, 15_000, 4096, 2048
_COLOUR = {Severity.P0: "red", Severity.P1: "orange", Severity.P2: "yellow"}


class _Bot(OneWay):
    """`code` and `words`: the answer's fields with code and message; `limits`: codes for rate limits; `busy`:
    codes for server errors; `pause_s`: how long a rate limit lasts."""

    who: str
    code, words = "errcode", "errmsg"
    limits: tuple[int, ...]
    busy: tuple[int, ...] = (-1,)
    pause_s = 60.0

    def __init__(
        self, url: str, *, now: Callable[[], datetime] = lambda: datetime.now(UTC), talk: Talk | None = None
    ) -> None:
        self._url, self._now, self._talk = url, now, talk or Talk(self.who)

    def _send(self, url: str, body: dict[str, Any]) -> None:
        reply: Reply = self._talk.post(url, body)
        code = reply.body.get(self.code) if isinstance(reply.body, dict) else None
        if not isinstance(code, int):
            raise DeliveryFailed(
                say("adapters.who_without", who=self.who, status=reply.status, code=self.code)
            )
        if code == 0:
            return
        error = f"{code} {cut(str(reply.body.get(self.words, '')), 200)}".rstrip()
        why = say("adapters.who_refused", who=self.who, error=error)
        wait_s = self.pause_s if code in self.limits else None
        raise DeliveryFailed(why, retry_after_s=wait_s, refused=code not in (*self.limits, *self.busy))


class DingTalkBot(_Bot):
    who = "DingTalk"
    limits = (130101, 410100)
    pause_s = 600.0

    def __init__(self, url: str, secret: str, mobiles: tuple[str, ...] = (), **given: Any) -> None:
        super().__init__(url, **given)
        self._secret, self._mobiles = secret, mobiles

    def send(self, notice: Notice, ref: str) -> str:
        self._send(_signed(self._url, self._secret, self._now()), _dingtalk_body(notice, self._mobiles))
        return notice.thread


def _signed(url: str, secret: str, at: datetime) -> str:
    """The address with `timestamp` (milliseconds) and `sign`."""
    stamp = str(int(at.timestamp() * 1000))
    made = hmac.digest(secret.encode(), f"{stamp}\n{secret}".encode(), "sha256")
    return f"{url}&timestamp={stamp}&sign={quote_plus(base64.b64encode(made))}"


def _dingtalk_body(notice: Notice, mobiles: tuple[str, ...]) -> dict[str, Any]:
    """A card with buttons, which cannot mention people; a page that mentions people is markdown."""
    text, buttons = cut_bytes(as_markdown(notice), _DINGTALK_BYTES), links(notice)
    if notice.page and mobiles:
        mentions = " ".join(f"@{mobile}" for mobile in mobiles)  # required in the text too
        tail = "".join(f"\n\n[{word}]({url})" for word, url in buttons)
        markdown = {"title": cut(notice.title, 64), "text": f"{text}{tail}\n\n{mentions}"}
        at = {"atMobiles": list(mobiles), "isAtAll": False}
        return {"msgtype": "markdown", "markdown": markdown, "at": at}
    if not buttons:
        return {"msgtype": "markdown", "markdown": {"title": cut(notice.title, 64), "text": text}}
    return {
        "msgtype": "actionCard",
        "actionCard": {
            "title": cut(notice.title, 64),
            "text": text,
            "btnOrientation": "0",
            "btns": [{"title": word, "actionURL": url} for word, url in buttons],
        },
    }


class FeishuBot(_Bot):
    who = "Feishu"
    code, words = "code", "msg"
    limits = (11232, 9499001)
    busy = ()

    def __init__(self, url: str, secret: str | None, **given: Any) -> None:
        super().__init__(url, **given)
        self._secret = secret

    def send(self, notice: Notice, ref: str) -> str:
        proof = _signature(self._secret, self._now()) if self._secret else {}
        self._send(self._url, {**proof, **_feishu_body(notice)})
        return notice.thread


def _signature(secret: str, at: datetime) -> dict[str, str]:
    stamp = str(int(at.timestamp()))
    made = hmac.digest(f"{stamp}\n{secret}".encode(), b"", "sha256")
    return {"timestamp": stamp, "sign": base64.b64encode(made).decode()}


def _feishu_body(notice: Notice) -> dict[str, Any]:
    """A card with plain text, so that logs are not taken as markup."""
    colour = "green" if notice.stage is Stage.resolved else _COLOUR.get(notice.severity, "blue")
    text = "\n".join((*notice.lines, *notice.preview))
    elements: list[dict[str, Any]] = [
        {"tag": "div", "text": {"tag": "plain_text", "content": cut_bytes(text, _FEISHU_BYTES)}}
    ]
    buttons = [
        {"tag": "button", "text": {"tag": "plain_text", "content": word}, "url": url,
         "type": "primary" if url == notice.approve else "default"}
        for word, url in links(notice)
    ]  # fmt: skip
    if buttons:
        elements.append({"tag": "action", "actions": buttons})
    title = {"tag": "plain_text", "content": cut(notice.title, 200)}
    card = {"header": {"template": colour, "title": title}, "elements": elements}
    return {"msg_type": "interactive", "card": card}


class WeComBot(_Bot):
    who = "WeCom"
    limits = (45009,)

    def __init__(self, url: str, mobiles: tuple[str, ...] = (), **given: Any) -> None:
        super().__init__(url, **given)
        self._mobiles = mobiles

    def send(self, notice: Notice, ref: str) -> str:
        self._send(self._url, _wecom_body(notice))
        # Markdown cannot mention people by number, so a second, short message does.
        if notice.page and self._mobiles:
            # `<@name>` mentions a person, and this kind of message has no way to escape it.
            content = cut_bytes(notice.title.replace("<", "‹"), _WECOM_CALL_BYTES)
            text = {"content": content, "mentioned_mobile_list": list(self._mobiles)}
            self._send(self._url, {"msgtype": "text", "text": text})
        return notice.thread


def _wecom_body(notice: Notice) -> dict[str, Any]:
    colour = "info" if notice.stage is Stage.resolved else "warning" if notice.page else "comment"
    tail = "".join(f"\n\n[{word}]({url})" for word, url in links(notice))
    head = f'<font color="{colour}">{notice.severity}</font>\n\n'
    # A long text is cut to keep the links.
    room = _WECOM_BYTES - len(tail.encode()) - len(head.encode())
    content = head + cut_bytes(as_markdown(notice), room) + tail
    return {"msgtype": "markdown", "markdown": {"content": content}}
