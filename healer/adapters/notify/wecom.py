"""A group bot of WeCom: https://developer.work.weixin.qq.com/document/path/91770.

It answers 200 also where it refuses: `errcode` tells. 20 messages a minute. It can neither update nor find
what it wrote.
"""

from typing import Any

from healer.adapters.notify.notice import as_markdown, cut, cut_bytes, links
from healer.adapters.notify.talk import Talk, code_in
from healer.model import Stage
from healer.ports.outbound import DeliveryFailed, Notice

MARKDOWN_MAX_BYTES = 4096
TEXT_MAX_BYTES = 2048
_TOO_OFTEN, _BUSY = 45009, -1
_WINDOW_S = 60.0


class WeComBot:
    can_find = False
    has_buttons = False

    def __init__(self, url: str, mobiles: tuple[str, ...] = (), *, talk: Talk | None = None) -> None:
        self._url, self._mobiles, self._talk = url, mobiles, talk or Talk("WeCom")

    def tell(self, notice: Notice, ref: str) -> str:
        self._send(body(notice))
        # Markdown calls nobody by number: a second, short message does.
        if notice.page and self._mobiles:
            self._send(call(notice, self._mobiles))
        return notice.thread

    def find(self, notice: Notice, ref: str = "") -> str:
        return ""

    def _send(self, content: dict[str, Any]) -> None:
        reply = self._talk.post(self._url, content)
        code = code_in("WeCom", reply, "errcode")
        if code == 0:
            return
        why = f"WeCom refused: {code} {cut(str(reply.body.get('errmsg', '')), 200)}".rstrip()
        wait_s = _WINDOW_S if code == _TOO_OFTEN else None
        raise DeliveryFailed(why, retry_after_s=wait_s, refused=code not in (_TOO_OFTEN, _BUSY))


def body(notice: Notice) -> dict[str, Any]:
    colour = "info" if notice.stage is Stage.resolved else "warning" if notice.page else "comment"
    tail = "".join(f"\n\n[{word}]({url})" for word, url in links(notice))
    head = f'<font color="{colour}">{notice.severity}</font>\n\n'
    # The links are what one presses: the text before them gives way.
    room = MARKDOWN_MAX_BYTES - len(tail.encode()) - len(head.encode())
    content = head + cut_bytes(as_markdown(notice), room) + tail
    return {"msgtype": "markdown", "markdown": {"content": content}}


def call(notice: Notice, mobiles: tuple[str, ...]) -> dict[str, Any]:
    content = cut_bytes(notice.title, TEXT_MAX_BYTES)
    return {"msgtype": "text", "text": {"content": content, "mentioned_mobile_list": list(mobiles)}}
