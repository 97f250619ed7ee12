"""One request to healer: no proxy, no redirect, bounded in time and in what is read."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from healer_steps._environ import Settings

TIMEOUT_S = 10.0
_ANSWER_BYTES = 1 << 20


class _Stays(urllib.request.HTTPRedirectHandler):
    """A token goes nowhere else."""

    def redirect_request(self, *_: Any) -> urllib.request.Request | None:
        return None


class Link:
    """Not shared between threads."""

    def __init__(self, settings: Settings) -> None:
        self._url = settings.url
        self._ca_file = settings.ca_file
        self._opener: urllib.request.OpenerDirector | None = None
        self.timeout_s = TIMEOUT_S
        #: Of the last answer: when healer asks to be asked again.
        self.retry_after_s = 0.0

    def post(self, path: str, body: bytes, token: str) -> tuple[int, dict[str, Any]]:
        """Status and answer (empty when it is no object). Raises OSError or HTTPException when there was no
        answer, ValueError where the address is none."""
        if self._opener is None:
            self._opener = self._made()  # not earlier: a CA file that is missing now may come
        headers = {"Content-Type": "application/json"}
        if token:
            headers["Authorization"] = "Bearer " + token
        request = urllib.request.Request(self._url + path, data=body, headers=headers)  # noqa: S310
        self.retry_after_s = 0.0
        try:
            with self._opener.open(request, timeout=self.timeout_s) as answer:
                return answer.status, _object(answer.read(_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            with error:
                self.retry_after_s = _seconds(error.headers.get("Retry-After"))
                return error.code, _object(error.read(_ANSWER_BYTES))

    def _made(self) -> urllib.request.OpenerDirector:
        handlers = [urllib.request.ProxyHandler({}), _Stays()]
        if self._url.startswith("https:"):
            import ssl  # not every Python has it

            try:
                context = ssl.create_default_context(cafile=self._ca_file or None)
            except OSError as error:
                raise OSError("HEALER_CA_FILE %s: %s" % (self._ca_file, error)) from None
            handlers.append(urllib.request.HTTPSHandler(context=context))
        return urllib.request.build_opener(*handlers)


def _object(raw: bytes) -> dict[str, Any]:
    try:
        answer = json.loads(raw.decode("utf-8", "replace"))
    except ValueError:
        return {}
    return answer if isinstance(answer, dict) else {}


def _seconds(text: str | None) -> float:
    return float(text) if text and text.isdecimal() else 0.0
