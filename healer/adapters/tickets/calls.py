"""JSON over HTTP to a ticket system, with errors that contain neither address nor token.

All requests of a delivery end within `BUDGET_S`, before the claim on the delivery (60 s) expires, so that no
second process starts the same delivery.
"""

import base64
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import httpx
import msgspec

from healer import __version__
from healer.adapters.webhook import (
    PACKED,
    TIMEOUT_S,
    decode_json,
    failed_before_answer,
    read_body,
    retry_after_s,
)
from healer.ports.outbound import DeliveryFailed
from healer.text import Said, say, to_text

BUDGET_S = 45.0
#: Enough for a page of 100 issues with long texts.
_ANSWER_MAX = 8 * 1024 * 1024
_WORDS_MAX = 300
#: 4xx after which a retry may succeed: time-out, conflict, too early, too many.
_LATER = (408, 409, 425, 429)


class Reply(msgspec.Struct, frozen=True):
    """`headers` by lower-case name. `body` is None if it is empty or no JSON."""

    who: str
    status: int
    headers: Mapping[str, str]
    body: Any

    def object(self) -> dict[str, Any]:
        """The body. Raises DeliveryFailed if it is no JSON object, but for example a log-in page."""
        if not isinstance(self.body, dict):
            raise DeliveryFailed(say("adapters.who_no_object", who=self.who, status=self.status))
        return self.body

    def list(self) -> list[dict[str, Any]]:
        if not isinstance(self.body, list) or not all(isinstance(item, dict) for item in self.body):
            raise DeliveryFailed(say("adapters.who_no_list", who=self.who, status=self.status))
        return self.body


class Answered(DeliveryFailed):
    """The answer was not 2xx."""

    def __init__(
        self, text: Said, retry_after_s: float | None, *, refused: bool, is_full: bool, reply: Reply
    ) -> None:
        is_locked_out = reply.status == httpx.codes.UNAUTHORIZED
        super().__init__(text, retry_after_s, refused=refused, is_full=is_full, is_locked_out=is_locked_out)
        self.reply = reply


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """The address and account of a ticket system. With a `user`, `token` is its password or API token.

    `project`: Jira's key, GitHub's `owner/name`, ServiceNow's table. `kind`: Jira's issue type. `closes_by`:
    Jira's transition or status, ServiceNow's resolution code; empty: the default.
    """

    url: str
    project: str
    token: str
    user: str = ""
    kind: str = "Task"
    closes_by: str = ""
    timeout_s: float = TIMEOUT_S


class Manner(msgspec.Struct, frozen=True):
    """How to read a system's errors: `words` returns the message in a body, `pause_s` the seconds of a rate
    limit that is not in Retry-After, or None."""

    words: Callable[[Any], str]
    pause_s: Callable[[Reply], float | None] = lambda _: None


class Calls:
    """One ticket system. Safe to use from several threads. `who` names it in errors."""

    def __init__(
        self, who: str, access: Access, manner: Manner, headers: Mapping[str, str] | None = None
    ) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs every request's address at INFO
        self.who, self._manner = who, manner
        self._url, self._timeout_s = access.url.rstrip("/"), access.timeout_s
        usual = {
            "user-agent": f"healer/{__version__}",
            "accept": "application/json",
            **PACKED,
            "authorization": _authorization(access),
        }
        self._client = httpx.Client(follow_redirects=False, headers={**usual, **(headers or {})})
        self._thread = threading.local()

    @contextmanager
    def delivery(self) -> Iterator[None]:
        """The requests of this thread inside are one delivery."""
        self._thread.until = time.monotonic() + BUDGET_S
        try:
            yield
        finally:
            self._thread.until = None

    def ask(
        self, method: str, path: str, *, query: Mapping[str, str] | None = None, body: Any = None
    ) -> Reply:
        """A 2xx answer. Raises Answered for other answers, else DeliveryFailed; `refused` if a retry cannot
        help."""
        content = None if body is None else msgspec.json.encode(body, enc_hook=to_text)
        headers = {} if body is None else {"content-type": "application/json; charset=utf-8"}
        until = getattr(self._thread, "until", None) or time.monotonic() + BUDGET_S
        left_s = until - time.monotonic()
        if left_s <= 0:
            raise DeliveryFailed(say("adapters.who_slow", who=self.who, seconds=BUDGET_S))
        timeout_s = min(self._timeout_s, left_s)
        try:
            with self._client.stream(
                method, self._url + path, params=query, content=content, headers=headers, timeout=timeout_s
            ) as response:
                return self._read(response, min(until, time.monotonic() + self._timeout_s))
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise failed_before_answer(self.who, error, timeout_s) from None

    def path_of(self, address: str) -> str | None:
        """The path of an address of this system; None for any other, which must not get the token."""
        return address.removeprefix(self._url) if address.startswith(f"{self._url}/") else None

    def close(self) -> None:
        self._client.close()

    def _read(self, response: httpx.Response, until: float) -> Reply:
        content = read_body(response, _ANSWER_MAX, until)
        if content is None:
            raise DeliveryFailed(say("adapters.who_endless", who=self.who))
        body = decode_json(content)
        reply = Reply(self.who, response.status_code, dict(response.headers), body)
        if response.is_success:
            return reply
        pause_s = self._manner.pause_s(reply)
        words = " ".join(self._manner.words(body).split())[:_WORDS_MAX]
        status = f"{response.status_code} {response.reason_phrase}".rstrip()
        answered = say("adapters.who_answered", who=self.who, status=status)
        raise Answered(
            say("signals.field", field=answered, text=words) if words else answered,
            pause_s if pause_s is not None else retry_after_s(reply.headers),
            refused=response.is_client_error and response.status_code not in _LATER and pause_s is None,
            is_full=response.status_code == httpx.codes.TOO_MANY_REQUESTS or pause_s is not None,
            reply=reply,
        )


def _authorization(access: Access) -> str:
    """Basic with a user, Bearer without."""
    if not access.user:
        return f"Bearer {access.token}"
    return "Basic " + base64.b64encode(f"{access.user}:{access.token}".encode()).decode()


def utc_now() -> datetime:
    return datetime.now(UTC)
