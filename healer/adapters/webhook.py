"""A signed POST to a site's own address: what the notification and the ticket sink share.

The body is a CloudEvents 1.0 document in JSON. The signature follows Standard Webhooks: `webhook-id`,
`webhook-timestamp` (Unix seconds) and `webhook-signature: v1,` + base64 of HMAC-SHA256 over
`id.timestamp.body`. A repeat carries the same id. Neither address nor secret ever stands in an error or a log
line: an address often holds a token.
"""

import base64
import binascii
import contextlib
import hmac
import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any

import httpx
import msgspec

from healer import __version__
from healer.ports.outbound import DeliveryFailed

TIMEOUT_S = 10.0
#: More than this of an answer is not read; a reference is short.
_ANSWER_MAX = 64 * 1024
#: 4xx that do not mean "never": a time-out, too early, too many.
_LATER = (408, 425, 429)
#: Standard Webhooks: what follows is base64.
_SECRET_PREFIX = "whsec_"  # noqa: S105


class Answer(msgspec.Struct, frozen=True):
    """A 2xx answer: the JSON object of its body ({} when it is none) and its `Location`."""

    body: dict[str, Any]
    location: str


class SignedWebhook:
    """One address. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        secret: str | None,
        *,
        timeout_s: float = TIMEOUT_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`secret`: `whsec_` and base64, or any other text as it is; None sends without a signature."""
        # httpx tells every request's address at INFO.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._url, self._key, self._timeout_s, self._now = url, _key(secret), timeout_s, now
        self._client = httpx.Client(timeout=timeout_s, follow_redirects=False)

    def post(self, event: dict[str, Any]) -> Answer:
        """Sends one CloudEvents document; its `id` is the delivery's. Raises DeliveryFailed."""
        body = msgspec.json.encode(event)
        headers = {
            "content-type": "application/cloudevents+json",
            "user-agent": f"healer/{__version__}",
            **signed_headers(self._key, event["id"], self._now(), body),
        }
        try:
            with self._client.stream("POST", self._url, content=body, headers=headers) as response:
                return self._read(response)
        except (httpx.RequestError, httpx.InvalidURL) as error:
            raise failed_before_answer("the sink", error, self._timeout_s) from None

    def close(self) -> None:
        self._client.close()

    def _read(self, response: httpx.Response) -> Answer:
        if not response.is_success:
            raise DeliveryFailed(
                f"the sink answered {response.status_code} {response.reason_phrase}".rstrip(),
                retry_after_s=_retry_after(response.headers.get("retry-after"), self._now()),
                refused=response.is_client_error and response.status_code not in _LATER,
            )
        content, deadline = b"", time.monotonic() + self._timeout_s
        # What is left, or packed wrongly, does not matter: the sink has taken the message.
        with contextlib.suppress(httpx.DecodingError):
            for part in response.iter_bytes():
                content += part
                if len(content) > _ANSWER_MAX or time.monotonic() > deadline:
                    break
        return Answer(body=_object(content), location=response.headers.get("location", ""))


def cloud_event(
    number: str, kind: str, cluster: str, incident: str | None, data: dict[str, Any]
) -> dict[str, Any]:
    """A CloudEvents 1.0 document. `kind` is page, message or ticket."""
    subject = {"subject": f"incident/{incident}"} if incident else {}
    return {
        "specversion": "1.0",
        "id": number,
        "source": f"/healer/{cluster}",
        "type": f"healer.{kind}.v1",
        **subject,
        "datacontenttype": "application/json",
        "data": data,
    }


def signed_headers(key: bytes | None, number: str, at: datetime, body: bytes) -> dict[str, str]:
    """`webhook-id`, `webhook-timestamp` and, with a key, `webhook-signature`.

    An id that no header can carry (not printable ASCII) goes as its SHA-256; the body keeps the id itself.
    """
    if not (number.isascii() and number.isprintable()):
        number = sha256(number.encode()).hexdigest()
    stamp = str(int(at.timestamp()))
    headers = {"webhook-id": number, "webhook-timestamp": stamp}
    if key is not None:
        made = hmac.digest(key, f"{number}.{stamp}.".encode() + body, "sha256")
        headers["webhook-signature"] = "v1," + base64.b64encode(made).decode()
    return headers


def failed_before_answer(who: str, error: Exception, timeout_s: float) -> DeliveryFailed:
    """What went wrong before there was an answer, without the address: it often holds a token."""
    if isinstance(error, httpx.TimeoutException):
        return DeliveryFailed(f"{who} did not answer in {timeout_s:g} s")
    if isinstance(error, httpx.RequestError):
        return DeliveryFailed(f"{who} cannot be reached: {_cause(error)}")
    return DeliveryFailed(f"the address of {who} is not a URL", refused=True)


def retry_after_s(response: httpx.Response, now: datetime | None = None) -> float | None:
    """How long the other side asks to be left alone; None where it does not say."""
    return _retry_after(response.headers.get("retry-after"), now or datetime.now(UTC))


def _key(secret: str | None) -> bytes | None:
    if secret is None or not secret.startswith(_SECRET_PREFIX):
        return secret.encode() if secret else None
    try:
        return base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError("HEALER_WEBHOOK_SECRET starts with whsec_, but what follows is not base64") from None


def _retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds, or a date (RFC 9110, 10.2.3). What is neither counts as not said."""
    if not value:
        return None
    if value.strip().isdigit():
        return float(value)
    try:
        until = parsedate_to_datetime(value)
    except ValueError:
        return None
    return max(0.0, (until.astimezone(UTC) - now).total_seconds())


def _object(content: bytes) -> dict[str, Any]:
    try:
        found = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return {}
    return found if isinstance(found, dict) else {}


def _cause(error: httpx.RequestError) -> str:
    """The system's words (`Connection refused`) if there are any, never the address."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__
