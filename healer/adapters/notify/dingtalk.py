"""A custom bot of DingTalk: https://open.dingtalk.com/document/robots/custom-robot-access.

The signature stands in the address: base64 of HMAC-SHA256 over `milliseconds LF secret` with the secret as
key. It answers 200 also where it refuses: `errcode` tells. 20 messages a minute; whoever sends more is shut
out for ten minutes.
"""

import base64
import hmac
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote_plus

from healer.adapters.notify.notice import as_markdown, cut, cut_bytes, links
from healer.adapters.notify.talk import Talk, code_in
from healer.ports.outbound import DeliveryFailed, Notice

TEXT_MAX_BYTES = 18_000
_TOO_OFTEN, _BUSY = (130101, 410100), -1
_SHUT_OUT_S = 600.0


class DingTalkBot:
    can_find = False
    has_buttons = False

    def __init__(
        self,
        url: str,
        secret: str,
        mobiles: tuple[str, ...] = (),
        *,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        talk: Talk | None = None,
    ) -> None:
        self._url, self._secret, self._mobiles, self._now = url, secret, mobiles, now
        self._talk = talk or Talk("DingTalk")

    def tell(self, notice: Notice, ref: str) -> str:
        reply = self._talk.post(signed(self._url, self._secret, self._now()), body(notice, self._mobiles))
        code = code_in("DingTalk", reply, "errcode")
        if code != 0:
            why = f"DingTalk refused: {code} {cut(str(reply.body.get('errmsg', '')), 200)}".rstrip()
            wait_s = _SHUT_OUT_S if code in _TOO_OFTEN else None
            raise DeliveryFailed(why, retry_after_s=wait_s, refused=code not in (*_TOO_OFTEN, _BUSY))
        return notice.thread

    def find(self, notice: Notice, ref: str = "") -> str:
        return ""


def signed(url: str, secret: str, at: datetime) -> str:
    """The address with `timestamp` (milliseconds) and `sign`."""
    stamp = str(int(at.timestamp() * 1000))
    made = hmac.digest(secret.encode(), f"{stamp}\n{secret}".encode(), "sha256")
    return f"{url}&timestamp={stamp}&sign={quote_plus(base64.b64encode(made))}"


def body(notice: Notice, mobiles: tuple[str, ...] = ()) -> dict[str, Any]:
    """With links a card with buttons, which calls nobody; a page that calls by number is plain markdown."""
    text, buttons = cut_bytes(as_markdown(notice), TEXT_MAX_BYTES), links(notice)
    if notice.page and mobiles:
        called = " ".join(f"@{one}" for one in mobiles)  # only who stands in the text is called
        tail = "".join(f"\n\n[{word}]({url})" for word, url in buttons)
        told = {"title": cut(notice.title, 64), "text": f"{text}{tail}\n\n{called}"}
        return {"msgtype": "markdown", "markdown": told, "at": {"atMobiles": list(mobiles), "isAtAll": False}}
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
