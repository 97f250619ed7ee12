"""Checks of `healer doctor`: how healer is reached. Certificate and key, names, plain HTTP, proxies."""

import socket
import ssl
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from healer.adapters.certificate_files import Certificate, CertificateUnusable, read_certificate
from healer.api.site_address import matches
from healer.bootstrap import certificate_files
from healer.bootstrap.doctor_checks import Check, valid_rules
from healer.embedded.running import unchecked_tls
from healer.settings import Settings, SettingsError, own_url, plain_http_problem
from healer.text import joined, quoted, said_by, say

#: A certificate that ends sooner is a fault: its renewal has failed.
ENDS_WITHIN = timedelta(days=21)
#: Networks with more addresses than this hold more than proxies.
_PROXIES_MAX = 2**16


def check_listener(settings: Settings) -> list[Check]:
    return [
        *_tls(settings, datetime.now(UTC)),
        *_plain_http(settings),
        *_public(settings),
        *_proxies(settings),
    ]


def _tls(settings: Settings, now: datetime) -> list[Check]:
    if settings.tls_cert is None or settings.tls_key is None:
        return []
    name = say("doctor.tls")
    try:
        certificate_files(settings)  # as the API would load them
        certificate = read_certificate(settings.tls_cert)
        mode = settings.tls_key.stat().st_mode
    except (CertificateUnusable, SettingsError, OSError) as error:
        return [Check(name, False, said_by(error), say("doctor.tls_repair"))]
    ends = f"{certificate.ends:%Y-%m-%d %H:%M} UTC"
    if certificate.ends <= now:
        return [Check(name, False, say("doctor.tls_ended", at=ends), say("doctor.tls_renew"))]
    if certificate.ends - now < ENDS_WITHIN:
        return [Check(name, False, say("doctor.tls_ends", at=ends), say("doctor.tls_ends_repair"))]
    if certificate.begins > now:
        begins = f"{certificate.begins:%Y-%m-%d %H:%M} UTC"
        return [Check(name, False, say("doctor.tls_not_yet", at=begins))]
    if mode & 0o007:
        why = say("doctor.others_read", path=str(settings.tls_key), mode=f"{mode & 0o777:04o}")
        return [Check(name, False, why, quoted(f"chmod 0640 {settings.tls_key}"))]
    names = joined(certificate.names[:5], "comma") or say("doctor.tls_no_names")
    return [_served(settings, certificate) or Check(name, True, say("doctor.tls_well", names=names, at=ends))]


def _served(settings: Settings, certificate: Certificate) -> Check | None:
    """A fault if the API serves another certificate than the file's; another check says if it is away."""
    assert settings.tls_cert is not None
    url = urlsplit(own_url(settings))
    try:
        with (
            socket.create_connection((url.hostname or "", url.port or 443), 5) as plain,
            unchecked_tls().wrap_socket(plain) as link,
        ):
            served = link.getpeercert(binary_form=True)
    except OSError:
        return None
    if served == ssl.PEM_cert_to_DER_cert(_first(settings.tls_cert.read_text("ascii", "replace"))):
        return None
    why = say("doctor.tls_other", file=str(settings.tls_cert))
    return Check(say("doctor.tls"), False, why, say("doctor.tls_other_repair"))


def _first(pem: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return begin + pem.partition(begin)[2].partition(end)[0] + end


def _plain_http(settings: Settings) -> list[Check]:
    problem = plain_http_problem(settings)
    if problem is None:
        return []
    return [Check(say("doctor.plain_http"), False, problem, say("doctor.plain_http_repair"))]


def _public(settings: Settings) -> list[Check]:
    name = say("doctor.public_url")
    if settings.public_url is None:
        return [Check(name, True, say("doctor.public_url_none"), say("doctor.public_url_set"))]
    host = urlsplit(settings.public_url).hostname or ""
    found = [Check(name, True, quoted(settings.public_url))]
    if settings.tls_cert is not None:
        try:
            names = read_certificate(settings.tls_cert).names
        except CertificateUnusable:
            names = (host,)  # it has a fault of its own
        if not any(matches(host, name.lower()) for name in names):
            listed = joined(names[:5], "comma") or say("doctor.nothing")
            why = say("doctor.public_url_unnamed", host=host, names=listed)
            found = [Check(name, False, why, say("doctor.public_url_fix"))]
    rules = valid_rules(settings)
    console = rules.notifications.console_url.rstrip("/") if rules is not None else ""
    if console and console != settings.public_url:
        why = say("doctor.public_url_other", console=console, url=settings.public_url)
        found.append(Check(name, False, why, say("doctor.public_url_remove")))
    return found


def _proxies(settings: Settings) -> list[Check]:
    name = say("doctor.proxies")
    if not settings.proxies:
        if settings.tls_cert is None and (settings.public_url or "").startswith("https://"):
            return [Check(name, False, say("doctor.proxies_none"), say("doctor.proxies_set"))]
        return []
    wide = [str(network) for network in settings.proxies if network.num_addresses > _PROXIES_MAX]
    if wide:
        why = say("doctor.proxies_wide", networks=joined(wide, "comma"))
        return [Check(name, False, why, say("doctor.proxies_narrow"))]
    return [Check(name, True, joined([str(network) for network in settings.proxies], "comma"))]
