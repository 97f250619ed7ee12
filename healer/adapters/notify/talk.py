"""JSON over HTTP to a chat or a pager: one request, its answer, and failures in words without an address."""

import logging
from typing import Any

import httpx
import msgspec

from healer import __version__
from healer.adapters.webhook import TIMEOUT_S, failed_before_answer, retry_after_s
from healer.ports.outbound import DeliveryFailed

#: 4xx that do not mean "never": a time-out, too early, too many.
_LATER = (408, 425, 429)


class Reply(msgspec.Struct, frozen=True):
    status: int
    body: Any
    retry_after_s: float | None


class Talk:
    """One service. Safe to use from several threads. `who` names it in errors."""

    def __init__(self, who: str, *, timeout_s: float = TIMEOUT_S) -> None:
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells every request's address at INFO
        self.who, self._timeout_s = who, timeout_s
        self._client = httpx.Client(
            timeout=timeout_s, follow_redirects=False, headers={"user-agent": f"healer/{__version__}"}
        )

    def post(self, url: str, body: Any, headers: dict[str, str] | None = None) -> Reply:
        """Any 2xx. Raises DeliveryFailed for all else; `refused` where a repeat cannot help."""
        content = msgspec.json.encode(body)
        told = {"content-type": "application/json; charset=utf-8", **(headers or {})}
        return self._answer(lambda: self._client.post(url, content=content, headers=told))

    def get(self, url: str, query: dict[str, str], headers: dict[str, str]) -> Reply:
        return self._answer(lambda: self._client.get(url, params=query, headers=headers))

    def close(self) -> None:
        self._client.close()

    def _answer(self, ask: Any) -> Reply:
        try:
            response = ask()
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise failed_before_answer(self.who, error, self._timeout_s) from None
        wait_s = retry_after_s(response)
        if not response.is_success:
            raise DeliveryFailed(
                f"{self.who} answered {response.status_code} {response.reason_phrase}".rstrip(),
                retry_after_s=wait_s,
                refused=response.is_client_error and response.status_code not in _LATER,
            )
        try:
            decoded = msgspec.json.decode(response.content)
        except msgspec.DecodeError:
            decoded = None
        return Reply(response.status_code, decoded, wait_s)


def code_in(who: str, reply: Reply, name: str) -> int:
    """The code that the bots put into a body of status 200. Without one nobody knows whether it was taken."""
    code = reply.body.get(name) if isinstance(reply.body, dict) else None
    if not isinstance(code, int):
        raise DeliveryFailed(f"{who} answered {reply.status} without {name}")
    return code
