"""A small client of the REST API for the command line. Imported when a command runs, not before."""

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx

DEFAULT_URL = "http://127.0.0.1:8080"
PREFIX = "/api/v1"


class ClientError(Exception):
    """One sentence for people; `problem` is the body of an RFC 9457 answer, empty when there was none."""

    def __init__(self, text: str, problem: Mapping[str, Any] | None = None) -> None:
        super().__init__(text)
        self.problem = dict(problem or {})


class Client:
    """Speaks to HEALER_URL with HEALER_TOKEN, or the token in the file HEALER_TOKEN_FILE."""

    def __init__(self, environ: Mapping[str, str] | None = None, *, timeout_s: float = 30) -> None:
        known = os.environ if environ is None else environ
        self.url = (known.get("HEALER_URL") or DEFAULT_URL).rstrip("/")
        self._http = httpx.Client(
            base_url=self.url,
            timeout=timeout_s,
            headers={"Authorization": f"Bearer {_token(known)}"},
            follow_redirects=False,
        )

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        return self._ask("GET", path, params=_given(query))

    def post(self, path: str, body: Any, *, key: str | None = None, **query: Any) -> Any:
        headers = {"Idempotency-Key": key} if key else {}
        return self._ask("POST", path, json=body, params=_given(query), headers=headers)

    def send(self, path: str, content: bytes, kind: str, *, packed: str | None = None, **query: Any) -> Any:
        """A body that is not JSON. `packed` is its Content-Encoding."""
        headers = {"Content-Type": kind} | ({"Content-Encoding": packed} if packed else {})
        return self._ask("POST", path, content=content, params=_given(query), headers=headers)

    def download(self, path: str) -> bytes:
        """A file as it is."""
        answer = self._answer("GET", path)
        if answer.is_success:
            return answer.content
        return self._read(answer)

    def delete(self, path: str, body: Any) -> Any:
        return self._ask("DELETE", path, json=body)

    def items(self, path: str, most: int, **query: Any) -> Iterator[dict[str, Any]]:
        """The items of a list, page by page, `most` at most."""
        cursor: str | None = None
        left = most
        while left > 0:
            page = self.get(path, limit=min(left, 500), cursor=cursor, **query)
            yield from page["items"]
            left -= len(page["items"])
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _ask(self, method: str, path: str, **more: Any) -> Any:
        return self._read(self._answer(method, path, **more))

    def _answer(self, method: str, path: str, **more: Any) -> httpx.Response:
        try:
            return self._http.request(method, PREFIX + path, **more)
        except httpx.HTTPError as error:
            raise ClientError(f"{self.url} does not answer: {error}") from error

    def _read(self, answer: httpx.Response) -> Any:
        """Its JSON; ClientError where it is a problem."""
        try:
            body = answer.json() if answer.content else None
        except json.JSONDecodeError:
            raise ClientError(f"{self.url} answered {answer.status_code}, but not as healer does") from None
        if answer.is_success:
            return body
        problem = body if isinstance(body, dict) else {}
        detail = problem.get("detail") or answer.reason_phrase
        raise ClientError(f"{detail} ({answer.status_code})", problem)


def _given(query: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in query.items() if value not in (None, "", [], ())}


def _token(environ: Mapping[str, str]) -> str:
    token = environ.get("HEALER_TOKEN", "").strip()
    path = environ.get("HEALER_TOKEN_FILE")
    if not token and path:
        try:
            token = Path(path).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ClientError(f"HEALER_TOKEN_FILE: {path} cannot be read: {error}") from error
    if not token:
        raise ClientError("no token: set HEALER_TOKEN or HEALER_TOKEN_FILE (`healer token create` makes one)")
    if not token.isascii() or not token.isprintable():
        raise ClientError("the token holds characters that no token has")
    return token
