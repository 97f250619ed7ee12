"""The common part of the channels: JSON over HTTP, errors, and texts cut to limits."""

import html
import logging
import re
import time
from datetime import datetime
from typing import Any

import httpx
import msgspec

from healer import __version__
from healer.adapters.webhook import (
    PACKED,
    TIMEOUT_S,
    bad_answer,
    decode_json,
    failed_before_answer,
    http_date,
    read_body,
    retry_after_s,
)
from healer.ports.outbound import DeliveryFailed, Notice
from healer.text import say, to_text

#: The part of an answer that is read: enough for 200 messages of Slack with their metadata.
ANSWER_MAX = 8 * 1024 * 1024
#: A short label at the start of a line, which is set in bold: `Where: gpu0017`.
_LABEL = re.compile(r"[^:：]{1,24}(?:: |：)")


class Reply(msgspec.Struct, frozen=True):
    """`body` is None if it is empty or no JSON; `is_page`: it is a page for people (HTML); `at`: by the clock
    of the service, where it gives that."""

    status: int
    body: Any
    retry_after_s: float | None
    is_page: bool
    at: datetime | None


class Talk:
    """One service. Safe to use from several threads. `who` names it in errors."""

    def __init__(self, who: str, *, timeout_s: float = TIMEOUT_S) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request's address at INFO
        self.who, self._timeout_s = who, timeout_s
        self._client = httpx.Client(
            timeout=timeout_s,
            follow_redirects=False,
            headers={"user-agent": f"healer/{__version__}", **PACKED},
        )

    def post(self, url: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        """A 2xx answer. Raises DeliveryFailed otherwise, `refused` if a retry cannot help."""
        content = msgspec.json.encode(body, enc_hook=to_text)
        headers = {"content-type": "application/json; charset=utf-8", **(headers or {})}
        return self._ask("POST", url, content=content, headers=headers)

    def hand_in(self, url: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        """The same for a service whose 2xx says that it has taken it. A page of a proxy or a log-in says
        nothing of the kind, and raises DeliveryFailed."""
        reply = self.post(url, body, headers)
        if reply.is_page:
            raise DeliveryFailed(say("adapters.who_no_json", who=self.who))
        return reply

    def get(self, url: str, query: dict[str, str], headers: dict[str, str]) -> Reply:
        return self._ask("GET", url, params=query, headers=headers)

    def close(self) -> None:
        self._client.close()

    def _ask(self, method: str, url: str, **sent: Any) -> Reply:
        try:
            with self._client.stream(method, url, **sent) as response:
                return self._read(response)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise failed_before_answer(self.who, error, self._timeout_s) from None

    def _read(self, response: httpx.Response) -> Reply:
        wait_s = retry_after_s(response.headers)
        if not response.is_success:
            raise bad_answer(self.who, response, wait_s)
        content = read_body(response, ANSWER_MAX, time.monotonic() + self._timeout_s)
        if content is None:
            raise DeliveryFailed(say("adapters.who_endless", who=self.who))
        is_page = content.lstrip().startswith(b"<")
        at = http_date(response.headers.get("date", ""))
        return Reply(response.status_code, decode_json(content), wait_s, is_page=is_page, at=at)


class OneWay:
    """A channel that can neither find sent messages nor has buttons."""

    can_find = False
    has_buttons = False

    def find(self, notice: Notice, ref: str = "") -> str:
        return ""


def label_of(line: str) -> tuple[str, str]:
    """("Where:", "gpu0017"), or ("", line) without a short label."""
    found = _LABEL.match(line)
    return (found[0].strip(), line[found.end() :]) if found else ("", line)


def cut_bytes(text: str, most: int) -> str:
    """At most this many bytes of UTF-8, without partial characters, with `…` if something is cut."""
    raw = text.encode()
    if len(raw) <= most:
        return text
    return raw[: most - len("…".encode())].decode(errors="ignore").rstrip() + "…"


def as_markdown(notice: Notice) -> str:
    """For the group bots: labels in bold, a paragraph for each line, all markup in the text escaped."""
    lines = [f"**{_plain(notice.title)}**"]
    for line in (*notice.lines, *notice.preview):
        label, rest = label_of(line)
        lines.append(f"**{_plain(label)}** {_plain(rest)}" if label else _plain(rest))
    return "\n\n".join(lines)


def links(notice: Notice) -> list[tuple[str, str]]:
    """(label, address) of the links of channels without buttons."""
    found = [(notice.translated(say("adapters.look_and_approve")), notice.approve)] if notice.approve else []
    return found + (
        [(notice.translated(say("adapters.open_in_healer")), notice.console)] if notice.console else []
    )


def as_html(notice: Notice) -> str:
    def row(line: str) -> str:
        label, rest = label_of(line)
        head = f"<b>{html.escape(label)}</b> " if label else ""
        return f"<p>{head}{html.escape(rest)}</p>"

    buttons = "".join(f'<p><a href="{html.escape(url)}">{word}</a></p>' for word, url in links(notice))
    body = "".join(map(row, (*notice.lines, *notice.preview)))
    return f"<h3>{html.escape(notice.title)}</h3>{body}{buttons}"


def _plain(text: str) -> str:
    """Escapes markdown: texts of logs and people must not become links, mentions, or bold."""
    for mark in "\\`*[]<>#":
        text = text.replace(mark, f"\\{mark}" if mark in "\\`*[]#" else {"<": "&lt;", ">": "&gt;"}[mark])
    # Where a program does not know the backslash, the brackets alone must not make a link.
    return text.replace("](", "] (")
