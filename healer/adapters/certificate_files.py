"""The certificate and key by which healer serves TLS, read again when their files change.

New files that cannot be used leave the old ones in force, and the log says why.
"""

import ssl
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import structlog
from cryptography import x509
from cryptography.x509.oid import NameOID

from healer.text import said_by, say

log = structlog.get_logger()
#: The files are checked at most this often, when a client connects.
LOOK_S = 1.0


class CertificateUnusable(Exception):
    """One sentence that names the setting and the file."""


class Certificate(NamedTuple):
    """`names` are those of the certificate: DNS names and addresses."""

    names: tuple[str, ...]
    begins: datetime
    ends: datetime


class CertificateFiles:
    """The files, and the context of each connection. `client_ca` is the authority whose certificates clients
    may show. Raises CertificateUnusable for files that cannot be used now."""

    def __init__(self, cert: Path, key: Path, client_ca: Path | None = None) -> None:
        self._cert, self._key, self._client_ca = cert, key, client_ca
        self._looked_at = time.monotonic()
        self._stamp = self._stamped()
        self.certificate = read_certificate(cert)
        self._context = self._loaded()

    def context(self) -> ssl.SSLContext:
        """For a server, for as long as it runs: each connection gets the context of the newest files."""
        door = self._loaded()
        door.sni_callback = self._choose
        return door

    def names(self) -> Sequence[str]:
        return self.certificate.names

    def refresh(self) -> None:
        """Adopts new files if they can be used."""
        if time.monotonic() - self._looked_at < LOOK_S:
            return
        self._looked_at = time.monotonic()
        stamp = self._stamped()
        if stamp == self._stamp:
            return
        self._stamp = stamp  # a problem is logged once per change
        try:
            certificate, context = read_certificate(self._cert), self._loaded()
        except CertificateUnusable as error:
            log.error("certificate not reloaded", why=str(error), until=self.certificate.ends)
            return
        now = datetime.now(UTC)
        if certificate.ends <= now < self.certificate.ends:
            log.error("certificate not reloaded", why="it has expired", until=self.certificate.ends)
            return
        self.certificate, self._context = certificate, context
        log.warning("certificate reloaded", names=certificate.names, until=certificate.ends)

    def _choose(self, tls: ssl.SSLObject | ssl.SSLSocket, name: str | None, door: ssl.SSLContext) -> None:
        self.refresh()
        tls.context = self._context

    def _stamped(self) -> tuple[object, ...]:
        paths = [path for path in (self._cert, self._key, self._client_ca) if path is not None]
        return tuple(_stamp_of(path) for path in paths)

    def _loaded(self) -> ssl.SSLContext:
        """A new context: one in use must never hold the certificate of one key and another key."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        check_readable("HEALER_TLS_KEY", self._key)
        try:
            context.load_cert_chain(self._cert, self._key, password=_no_passphrase)
        except (ssl.SSLError, OSError) as error:
            why = say("adapters.tls_other_key") if _is_mismatch(error) else _words(error)
            raise CertificateUnusable(
                say("setup.tls_cert_tls_key", cert=str(self._cert), tls_key=str(self._key), why=why)
            ) from None
        if self._client_ca is not None:
            check_readable("HEALER_TLS_CLIENT_CA", self._client_ca)
            try:
                context.load_verify_locations(self._client_ca)
            except (ssl.SSLError, OSError) as error:
                raise CertificateUnusable(
                    say("setup.tls_client_ca_holds", client_ca=str(self._client_ca), why=_words(error))
                ) from None
            context.verify_mode = ssl.CERT_OPTIONAL
        return context


def read_certificate(path: Path) -> Certificate:
    """The first certificate of the file. Raises CertificateUnusable."""
    check_readable("HEALER_TLS_CERT", path)
    try:
        found = x509.load_pem_x509_certificate(path.read_bytes())
        names = _names(found)
    except (ValueError, OSError) as error:
        raise CertificateUnusable(
            say("setup.tls_cert_holds_no", path=str(path), why=said_by(error))
        ) from None
    return Certificate(names, found.not_valid_before_utc, found.not_valid_after_utc)


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    """Browsers take no other names than these; a certificate without any is named by its common name."""
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return tuple(
            str(name.value) for name in certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        )
    addresses = [str(address) for address in names.get_values_for_type(x509.IPAddress)]
    return (*names.get_values_for_type(x509.DNSName), *addresses)


def check_readable(setting: str, path: Path) -> None:
    """Raises CertificateUnusable."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise CertificateUnusable(
            say("setup.names_cannot_read", setting=setting, path=str(path), why=error.strerror)
        ) from None


def _stamp_of(path: Path) -> object:
    try:
        found = path.stat()
    except OSError as error:
        return error.errno
    return found.st_mtime_ns, found.st_size, found.st_ino


def _no_passphrase() -> str:
    raise OSError(say("adapters.tls_passphrase"))  # OpenSSL would ask the terminal


def _is_mismatch(error: Exception) -> bool:
    return isinstance(error, ssl.SSLError) and error.reason == "KEY_VALUES_MISMATCH"


def _words(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").replace("_", " ").lower()
    return str(error)
