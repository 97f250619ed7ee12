"""E-mail by SMTP, with one thread for each incident.

A Message-ID is derived from the message (RFC 5322, 3.6.4): a repeat has that of the first attempt, and no
other mail has it, as a mail system drops the second mail of one Message-ID. The first of a thread is its
reference.
"""

import os
import smtplib
import socket
import ssl
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from hashlib import sha256
from typing import Any

from healer.adapters.notify.talk import OneWay, as_html, links
from healer.model import Channel
from healer.model.shown import cut
from healer.ports.outbound import DeliveryFailed, Notice, PartlyRefused
from healer.text import name_some, say

#: A mail server may look names up before it greets, and scan a mail before it answers. Who gives up earlier
#: sends a mail again that has arrived.
WHOLE_S = 60.0
#: Mails that wait for some of their recipients; beyond these all get them again.
_PUT_OFF_MAX = 1000
#: So long a mail waits for them, from the first time: longer than greylisting takes.
_PUT_OFF_FOR = timedelta(hours=1)


class Mail(OneWay):
    def __init__(
        self,
        channel: Channel,
        password: str | None = None,
        *,
        context: ssl.SSLContext | None = None,
        whole_s: float = WHOLE_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._channel, self._password, self._context = channel, password, context
        self._whole_s, self._now = whole_s, now
        #: By Message-ID, of mails that the server put off for some: since when, and its last word about the
        #: others. They get no second one.
        self._put_off: dict[str, tuple[datetime, dict[str, int]]] = {}

    def send(self, notice: Notice, ref: str) -> str:
        """Sends one mail to all. Raises DeliveryFailed, which is `refused` for 5xx, and PartlyRefused."""
        mail = letter(notice, ref, self._channel, self._now())
        begun = time.monotonic()
        try:
            refused = self._send(mail)
        except (smtplib.SMTPException, OSError) as error:
            if time.monotonic() - begun >= self._whole_s:
                raise DeliveryFailed(say("adapters.mail_slow", seconds=self._whole_s)) from None
            raise _failed(error) from None
        reference = ref or str(mail["Message-ID"])
        if refused:
            named = name_some([f"{address} ({code})" for address, code in sorted(refused.items())], 5)
            raise PartlyRefused(say("adapters.mail_refused_some", addresses=named), reference)
        return reference

    def _send(self, mail: EmailMessage) -> dict[str, int]:
        host, _, port = self._channel.server.rpartition(":")
        tls, user = self._channel.tls, self._channel.user
        connection = (
            _SafeConnection(host, int(port), timeout=self._whole_s, context=self._safe())
            if tls == "tls"
            else _Connection(host, int(port), timeout=self._whole_s)
        )
        try:
            if tls == "starttls":
                connection.starttls(context=self._safe())
            if user and self._password is not None:
                connection.login(user, self._password)
            refused = self._hand_in(connection, mail)
            with suppress(smtplib.SMTPException, OSError):  # it has taken the mail, however it says goodbye
                connection.quit()
            return refused
        finally:
            connection.close()

    def _hand_in(self, connection: smtplib.SMTP, mail: EmailMessage) -> dict[str, int]:
        """To all who do not have it; returns whom the server refused for good, with its codes. Raises
        DeliveryFailed where it put the mail off for some (4xx), as servers do that do not know the sender
        yet; no longer after an hour, as for a full mailbox."""
        name = str(mail["Message-ID"])
        since, answers = self._put_off.get(name, (self._now(), dict[str, int]()))
        # Without their names, which need no more than ASCII of the server: the header has them encoded.
        to = [address.addr_spec for address in mail["To"].addresses]
        rest = [address for address in to if address not in answers]
        try:
            rejected = connection.send_message(mail, to_addrs=rest)
        except smtplib.SMTPRecipientsRefused as error:
            if not answers:
                raise
            rejected = error.recipients
        answers = (
            dict.fromkeys(to, 250) | answers | {address: code for address, (code, _) in rejected.items()}
        )
        later = [code for code in answers.values() if 400 <= code < 500]
        self._put_off.pop(name, None)
        if later and self._now() - since < _PUT_OFF_FOR:
            if len(self._put_off) >= _PUT_OFF_MAX:
                self._put_off.clear()
            final = {address: code for address, code in answers.items() if not 400 <= code < 500}
            self._put_off[name] = since, final
            text = say("adapters.mail_later", n=len(later), code=later[0])
            raise DeliveryFailed(text, is_partial=True)
        return {address: code for address, code in answers.items() if code >= 400}

    def _safe(self) -> ssl.SSLContext:
        return self._context or ssl.create_default_context()


def _failed(error: smtplib.SMTPException | OSError) -> DeliveryFailed:
    """`SMTPException` is an `OSError` itself."""
    match error:
        case smtplib.SMTPRecipientsRefused():
            codes = [code for code, _ in error.recipients.values()]
            return DeliveryFailed(say("adapters.mail_recipients", code=codes[0]), refused=min(codes) >= 500)
        case smtplib.SMTPNotSupportedError():
            return DeliveryFailed(say("adapters.mail_lacks", error=str(error)), refused=True)
        case smtplib.SMTPResponseException():
            code = error.smtp_code
            return DeliveryFailed(say("adapters.mail_answered", code=code), refused=code >= 500)
        case ssl.SSLError():
            return DeliveryFailed(say("adapters.mail_tls", error=error.reason or type(error).__name__))
        case smtplib.SMTPException():
            return DeliveryFailed(say("adapters.mail_broke_off", error=type(error).__name__))
    return DeliveryFailed(say("adapters.mail_unreached", error=error.strerror or type(error).__name__))


class _Connection(smtplib.SMTP):
    """Ends `timeout` after its begin: for smtplib itself that is the time of each read, and a server that
    drips would hold its channel for good."""

    def connect(self, *address: Any, **more: Any) -> tuple[int, bytes]:
        self._closed = threading.Event()
        threading.Thread(target=self._watch, args=(self._closed,), daemon=True).start()
        try:
            return super().connect(*address, **more)
        except BaseException:
            self._closed.set()
            raise

    def close(self) -> None:
        super().close()
        self._closed.set()

    def _watch(self, closed: threading.Event) -> None:
        closed.wait(self.timeout)
        while not closed.is_set():
            if self.sock is not None:
                # A socket of its own: TLS lets no other thread end its session.
                with suppress(OSError), socket.socket(fileno=os.dup(self.sock.fileno())) as line:
                    line.shutdown(socket.SHUT_RDWR)
            closed.wait(1)


class _SafeConnection(smtplib.SMTP_SSL, _Connection):
    """With TLS from the first byte."""


def letter(notice: Notice, ref: str, channel: Channel, now: datetime) -> EmailMessage:
    """`ref`: the reference of the thread; empty for its first mail."""
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Date"] = channel.sender, ", ".join(channel.to), format_datetime(now)
    mail["Subject"] = cut(" ".join(notice.title.split()), 200)
    mail["Message-ID"] = _message_id(f"{notice.cluster}\0{notice.id}")
    if ref:
        mail["In-Reply-To"] = mail["References"] = ref
    mail["Auto-Submitted"] = "auto-generated"
    mail["X-Incident-Id"] = " ".join(notice.thread.split())
    if notice.page:
        mail["X-Priority"] = "1"
    lines = [*notice.lines, *notice.preview, *(f"{word}: {url}" for word, url in links(notice))]
    mail.set_content("\n".join(lines) + "\n")
    mail.add_alternative(as_html(notice), subtype="html")
    return mail


def _message_id(name: str) -> str:
    return f"<{sha256(name.encode('utf-8', 'replace')).hexdigest()[:40]}@healer.invalid>"
