"""Signed webhooks: pages and messages, tickets, and the feed of audit records.

The body is a CloudEvents 1.0 document in JSON. The signature follows Standard Webhooks: `webhook-id`,
`webhook-timestamp` (Unix seconds) and `webhook-signature: v1,` + base64 of HMAC-SHA256 over
`id.timestamp.body`. A repeat has the same id. Errors and logs never show the secret, nor the address, which
often contains a token.
"""

import base64
import binascii
import contextlib
import hmac
import logging
import time
import zlib
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from hashlib import sha256
from typing import Any

import httpx
import msgspec

from healer import __version__
from healer.model import AuditRecord, Message, Ticket
from healer.model.shown import one_line, shown
from healer.ports.outbound import DeliveryFailed
from healer.text import say, to_plain, to_text

TIMEOUT_S = 10.0
#: The part of an answer that is read; a reference is short.
_ANSWER_MAX = 64 * 1024
#: 4xx after which a retry may succeed: time-out, too early, too many.
_LATER = (408, 425, 429)
#: The prefix of a base64 secret in Standard Webhooks.
_SECRET_PREFIX = "whsec_"  # noqa: S105

#: The encoding that `read_body` unpacks; what servers call deflate comes with or without a header.
PACKED = {"accept-encoding": "gzip"}

_REFERENCE_MAX = 200
#: Verbs that the feed leaves out: deliveries to sinks, among them those of the feed.
_NOT_FED = ("message.",)


class Answer(msgspec.Struct, frozen=True):
    """A 2xx answer: its body ({} if that is no JSON object) and its `Location`."""

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
        """`secret`: `whsec_` and base64, or any other text as it is; None: no signature."""
        # httpx logs the address of every request at INFO.
        logging.getLogger("httpx").setLevel(logging.WARNING)
        self._url, self._key, self._timeout_s, self._now = url, _key(secret), timeout_s, now
        self._client = httpx.Client(timeout=timeout_s, follow_redirects=False)

    def post(self, event: dict[str, Any]) -> Answer:
        """Sends one CloudEvents document, whose `id` identifies the delivery. Raises DeliveryFailed."""
        body = msgspec.json.encode(event, enc_hook=to_text)
        headers = {
            "content-type": "application/cloudevents+json",
            "user-agent": f"healer/{__version__}",
            **PACKED,
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
            raise bad_answer("the sink", response, retry_after_s(response.headers, self._now()))
        content = None
        # A long or badly encoded body does not matter: the sink has accepted the message.
        with contextlib.suppress(httpx.DecodingError):
            content = read_body(response, _ANSWER_MAX, time.monotonic() + self._timeout_s)
        body = decode_json(content or b"")
        return Answer(body if isinstance(body, dict) else {}, response.headers.get("location", ""))


class WebhookNotifier:
    """`healer.ports.outbound.Notifier` (HEALER_NOTIFY_WEBHOOK_URL)."""

    def __init__(self, webhook: SignedWebhook) -> None:
        self._webhook = webhook

    def send(self, message: Message) -> None:
        """Raises DeliveryFailed unless the answer is 2xx."""
        kind = "page" if message.page else "message"
        data = {**to_plain(message), **_texts(message)}
        del data["about"]  # only for channels that render messages
        self._webhook.post(cloud_event(message.id, kind, message.cluster, message.incident, data))


class WebhookTickets:
    """`healer.ports.outbound.Tickets` (HEALER_TICKET_WEBHOOK_URL). The sink recognises a repeated delivery by
    the event's id, and the ticket by the data's `key`."""

    def __init__(self, webhook: SignedWebhook) -> None:
        self._webhook = webhook

    def send(self, ticket: Ticket) -> str:
        """Returns the answer's `reference` (JSON body), else its Location, else the known reference, else our
        id. Raises DeliveryFailed."""
        data = {**to_plain(ticket), **_texts(ticket), "key": ticket.key}
        answer = self._webhook.post(cloud_event(ticket.id, "ticket", ticket.cluster, ticket.incident, data))
        return _reference(answer) or ticket.reference or ticket.id

    def check(self) -> str:
        """Sends nothing: any request would open a ticket."""
        return say("adapters.webhook_not_asked")


def _texts(item: Message | Ticket) -> dict[str, str]:
    """What the sink shows to people."""
    return {"title": one_line(item.title), "text": shown(item.text, keep="\n\t")}


def _reference(answer: Answer) -> str:
    given = answer.body.get("reference")
    if isinstance(given, int) and not isinstance(given, bool):
        given = str(given)
    text = given if isinstance(given, str) and given else answer.location
    return text[:_REFERENCE_MAX]


class EventSink:
    """Sends audit records (HEALER_EVENTS_WEBHOOK_URL), one at a time, each with the same id at every
    attempt."""

    def __init__(self, webhook: SignedWebhook) -> None:
        self._webhook = webhook

    def send(self, seq: int, record: AuditRecord) -> None:
        """Raises DeliveryFailed unless the answer is 2xx."""
        if not record.verb.startswith(_NOT_FED):
            self._webhook.post(event_of(seq, record))


def event_of(seq: int, record: AuditRecord) -> dict[str, Any]:
    """A CloudEvents 1.0 document: `type` is the record's verb, `subject` the node's name or the record's
    subject, and `id` the record's position in its cluster's chain."""
    kind, _, name = record.subject.partition("/")
    subject = name if kind == "node" and name else record.subject
    return {
        "specversion": "1.0",
        "id": f"{record.cluster}:{seq}",
        "source": f"/healer/{record.cluster}",
        "type": f"io.healer.{record.verb}.v1",
        **({"subject": subject} if subject else {}),
        "time": record.at.isoformat(),
        "datacontenttype": "application/json",
        "data": {
            "cluster": record.cluster,
            "actor": record.actor,
            "verb": record.verb,
            "subject": record.subject,
            "data": record.data,
        },
    }


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

    An id that is not printable ASCII is replaced by its SHA-256; the body has the original id.
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
    """The error for a request without an answer. Never contains the address, which often holds a token."""
    if isinstance(error, httpx.TimeoutException):
        return DeliveryFailed(say("adapters.who_silent", who=who, seconds=timeout_s))
    if isinstance(error, httpx.RequestError):
        return DeliveryFailed(
            say("adapters.who_unreached", who=who, error=system_words(error) or type(error).__name__)
        )
    return DeliveryFailed(say("adapters.who_not_a_url", who=who), refused=True)


def bad_answer(who: str, response: httpx.Response, wait_s: float | None) -> DeliveryFailed:
    """The error for an answer that is not 2xx."""
    status = f"{response.status_code} {response.reason_phrase}".rstrip()
    return DeliveryFailed(
        say("adapters.who_answered", who=who, status=status),
        retry_after_s=wait_s,
        refused=response.is_client_error and response.status_code not in _LATER,
        is_full=response.status_code == httpx.codes.TOO_MANY_REQUESTS,
    )


def retry_after_s(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The Retry-After of an answer (RFC 9110, 10.2.3: seconds or a date) in seconds; None without one."""
    value = headers.get("retry-after")
    if not value:
        return None
    if value.isascii() and value.strip().isdigit():
        return float(value)
    until = http_date(value)
    return None if until is None else max(0.0, (until - (now or datetime.now(UTC))).total_seconds())


def http_date(value: str) -> datetime | None:
    """Parses a date in an HTTP header (RFC 9110, 5.6.7); None if it is malformed."""
    try:
        found = parsedate_to_datetime(value)
        # `-0000` and the old forms of a date name no zone: they are UTC, wherever this process runs.
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except (ValueError, OverflowError):
        return None


def _key(secret: str | None) -> bytes | None:
    if secret is None or not secret.startswith(_SECRET_PREFIX):
        return secret.encode() if secret else None
    try:
        return base64.b64decode(secret.removeprefix(_SECRET_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(say("adapters.webhook_secret")) from None


def read_body(response: httpx.Response, most: int, until: float) -> bytes | None:
    """The body of a streamed answer; None if it is longer than `most` bytes or not complete by `until`
    (`time.monotonic`): a time-out of the client is for each byte, so that one that drips never ends. It is
    unpacked here, as httpx makes gigabytes of a part of a few bytes; ask for it with `PACKED`."""
    content, size = bytearray(), 0
    packed = response.headers.get("content-encoding", "identity").strip().lower()
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16) if packed == "gzip" else None
    try:
        for part in response.iter_raw():
            size += len(part)
            content += unpacker.decompress(part, most + 1 - len(content)) if unpacker else part
            if max(size, len(content)) > most or time.monotonic() > until:
                return None
    except zlib.error as error:
        raise httpx.DecodingError(str(error), request=response.request) from error
    return bytes(content)


def decode_json(content: bytes) -> Any:
    """The document; None if it is empty or no JSON, also for texts that are not UTF-8 and endless nesting."""
    try:
        return msgspec.json.decode(content)
    except (ValueError, RecursionError):
        return None


def system_words(error: BaseException) -> str | None:
    """The operating system's message (`Connection refused`), which never contains an address; or None."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return None


def cause_of(error: Exception) -> str:
    """The operating system's message if there is one, else the error's own."""
    return system_words(error) or str(error) or type(error).__name__
