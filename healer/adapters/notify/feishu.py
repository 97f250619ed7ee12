"""A custom bot of Feishu or Lark: https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot.

The signature stands in the body: base64 of HMAC-SHA256 over nothing, with `seconds LF secret` as key. It
answers 200 also where it refuses: `code` tells. 100 messages a minute and 5 a second, 20 KB each.
"""

import base64
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from healer.adapters.notify.notice import cut, cut_bytes, label_of, links
from healer.adapters.notify.talk import Talk, code_in
from healer.model import Severity, Stage
from healer.ports.outbound import DeliveryFailed, Notice

TEXT_MAX_BYTES = 15_000
_TOO_OFTEN = (11232, 9499001)
_WINDOW_S = 60.0
_COLOUR = {Severity.P0: "red", Severity.P1: "orange", Severity.P2: "yellow"}


class FeishuBot:
    can_find = False
    has_buttons = False

    def __init__(
        self,
        url: str,
        secret: str | None,
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        talk: Talk | None = None,
    ) -> None:
        self._url, self._secret, self._now, self._talk = url, secret, now, talk or Talk("Feishu")

    def tell(self, notice: Notice, ref: str) -> str:
        proof = signature(self._secret, self._now()) if self._secret else {}
        reply = self._talk.post(self._url, {**proof, **body(notice)})
        code = code_in("Feishu", reply, "code")
        if code != 0:
            why = f"Feishu refused: {code} {cut(str(reply.body.get('msg', '')), 200)}".rstrip()
            often = code in _TOO_OFTEN
            raise DeliveryFailed(why, retry_after_s=_WINDOW_S if often else None, refused=not often)
        return notice.thread

    def find(self, notice: Notice, ref: str = "") -> str:
        return ""


def signature(secret: str, at: datetime) -> dict[str, str]:
    stamp = str(int(at.timestamp()))
    made = hmac.digest(f"{stamp}\n{secret}".encode(), b"", "sha256")
    return {"timestamp": stamp, "sign": base64.b64encode(made).decode()}


def body(notice: Notice) -> dict[str, Any]:
    """A card. Its text is plain, so that nothing of a log is taken as markup."""
    colour = "green" if notice.stage is Stage.resolved else _COLOUR.get(notice.severity, "blue")
    text = "\n".join(map(_line, (*notice.lines, *notice.preview)))
    elements: list[dict[str, Any]] = [
        {"tag": "div", "text": {"tag": "plain_text", "content": cut_bytes(text, TEXT_MAX_BYTES)}}
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


def _line(line: str) -> str:
    label, rest = label_of(line)
    return f"{label}: {rest}" if label else rest
