"""E-mail by SMTP, with one thread for each incident.

A Message-ID is derived from the message (RFC 5322, 3.6.4): a repeat has that of the first attempt, and no
other mail has it, as a mail system drops the second mail of one Message-ID. The first of a thread is its
reference.
"""

import smtplib
import ssl
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from email.message import EmailMessage
from email.utils import format_datetime
from hashlib import sha256

import structlog

from healer.adapters.notify.talk import OneWay, as_html, links
from healer.adapters.webhook import TIMEOUT_S
from healer.model import Channel
from healer.model.shown import cut
from healer.ports.outbound import DeliveryFailed, Notice
from healer.text import say

log = structlog.get_logger()


class Mail(OneWay):
    def __init__(
        self,
        channel: Channel,
        password: str | None = None,
        *,
        context: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._channel, self._password, self._context = channel, password, context
        self._timeout_s, self._now = timeout_s, now

    def send(self, notice: Notice, ref: str) -> str:
        """Sends one mail to all. Raises DeliveryFailed, which is `refused` for 5xx."""
        mail = letter(notice, ref, self._channel, self._now())
        try:
            self._send(mail)
        except smtplib.SMTPRecipientsRefused as error:
            codes = [code for code, _ in error.recipients.values()]
            raise DeliveryFailed(
                say("adapters.mail_recipients", code=codes[0]), refused=min(codes) >= 500
            ) from None
        except smtplib.SMTPNotSupportedError as error:
            raise DeliveryFailed(say("adapters.mail_lacks", error=str(error)), refused=True) from None
        except smtplib.SMTPResponseException as error:
            raise DeliveryFailed(
                say("adapters.mail_answered", code=error.smtp_code), refused=error.smtp_code >= 500
            ) from None
        except ssl.SSLError as error:
            raise DeliveryFailed(
                say("adapters.mail_tls", error=error.reason or type(error).__name__)
            ) from None
        except smtplib.SMTPException as error:
            raise DeliveryFailed(say("adapters.mail_broke_off", error=type(error).__name__)) from None
        except OSError as error:
            why = error.strerror or type(error).__name__
            raise DeliveryFailed(say("adapters.mail_unreached", error=why)) from None
        return ref or str(mail["Message-ID"])

    def _send(self, mail: EmailMessage) -> None:
        host, _, port = self._channel.server.rpartition(":")
        tls, user = self._channel.tls, self._channel.user
        if tls == "tls":
            connection: smtplib.SMTP = smtplib.SMTP_SSL(
                host, int(port), timeout=self._timeout_s, context=self._safe()
            )
        else:
            connection = smtplib.SMTP(host, int(port), timeout=self._timeout_s)
        try:
            if tls == "starttls":
                connection.starttls(context=self._safe())
            if user and self._password is not None:
                connection.login(user, self._password)
            for address, (code, _) in connection.send_message(mail).items():
                log.warning("mail server rejected a recipient", address=address, code=code)
            with suppress(smtplib.SMTPException, OSError):  # it has taken the mail, however it says goodbye
                connection.quit()
        finally:
            connection.close()

    def _safe(self) -> ssl.SSLContext:
        return self._context or ssl.create_default_context()


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
