"""Checks of `healer doctor`: how healer is reached. Certificate and key, names, plain HTTP, proxies."""

import socket
import ssl
from datetime import UTC, datetime, timedelta
from urllib.parse import urlsplit

from healer.adapters.certificate_files import Certificate, CertificateUnusable, read_certificate
from healer.api.site_address import matches
from healer.bootstrap import certificate_files
from healer.bootstrap.doctor_checks import Look
from healer.embedded.running import unchecked_tls
from healer.rulebook import ruleset
from healer.settings import Settings, SettingsError, own_url, plain_http_problem, rules_folder

#: A certificate that ends sooner is a fault: its renewal has failed.
ENDS_WITHIN = timedelta(days=21)
#: Networks with more addresses than this hold more than proxies.
_PROXIES_MAX = 2**16


def look_at_listener(settings: Settings) -> list[Look]:
    return [
        *_tls(settings, datetime.now(UTC)),
        *_plain_http(settings),
        *_public(settings),
        *_proxies(settings),
    ]


def _tls(settings: Settings, now: datetime) -> list[Look]:
    if settings.tls_cert is None or settings.tls_key is None:
        return []
    repair = "See docs/tls.md for these files and their renewal."
    try:
        certificate_files(settings)  # as the API would load them
        certificate = read_certificate(settings.tls_cert)
        mode = settings.tls_key.stat().st_mode
    except (CertificateUnusable, SettingsError, OSError) as error:
        return [Look("TLS", False, str(error), repair)]
    ends = f"{certificate.ends:%Y-%m-%d %H:%M} UTC"
    if certificate.ends <= now:
        return [Look("TLS", False, f"the certificate expired at {ends}", f"Renew it. {repair}")]
    if certificate.ends - now < ENDS_WITHIN:
        return [
            Look(
                "TLS",
                False,
                f"the certificate expires at {ends}",
                f"Find out why it was not renewed. {repair}",
            )
        ]
    if certificate.begins > now:
        return [
            Look("TLS", False, f"the certificate is not valid before {certificate.begins:%Y-%m-%d %H:%M} UTC")
        ]
    if mode & 0o007:
        why = f"other users can read {settings.tls_key} (mode {mode & 0o777:04o})"
        return [Look("TLS", False, why, f"chmod 0640 {settings.tls_key}")]
    return [_served(settings, certificate) or Look("TLS", True, f"{_named(certificate)}, until {ends}")]


def _named(certificate: Certificate) -> str:
    return ", ".join(certificate.names[:5]) or "a certificate without names"


def _served(settings: Settings, certificate: Certificate) -> Look | None:
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
    why = f"the API serves a different certificate than {settings.tls_cert}: it could not load the new files"
    return Look("TLS", False, why, "Read the API's log; its user must be able to read the files.")


def _first(pem: str) -> str:
    begin, end = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"
    return begin + pem.partition(begin)[2].partition(end)[0] + end


def _plain_http(settings: Settings) -> list[Look]:
    problem = plain_http_problem(settings)
    if problem is None:
        return []
    return [Look("plain HTTP", False, problem, "Set HEALER_TLS_CERT and HEALER_TLS_KEY: docs/tls.md.")]


def _public(settings: Settings) -> list[Look]:
    if settings.public_url is None:
        return [
            Look(
                "public URL", True, f"not set: links begin with {own_url(settings)}", "Set HEALER_PUBLIC_URL."
            )
        ]
    host = urlsplit(settings.public_url).hostname or ""
    found = [Look("public URL", True, settings.public_url)]
    if settings.tls_cert is not None:
        try:
            names = read_certificate(settings.tls_cert).names
        except CertificateUnusable:
            names = (host,)  # it has a fault of its own
        if not any(matches(host, name.lower()) for name in names):
            why = f"the certificate does not name {host}, but {', '.join(names[:5]) or 'nothing'}"
            found = [Look("public URL", False, why, "Fix HEALER_PUBLIC_URL or the certificate.")]
    try:
        console = ruleset.load(rules_folder(settings), prove=False).notifications.console_url.rstrip("/")
    except ruleset.RulesInvalid:
        console = ""
    if console and console != settings.public_url:
        why = f"links in messages begin with {console}, not with {settings.public_url}"
        found.append(Look("public URL", False, why, "Remove console_url from rules/notifications.yaml."))
    return found


def _proxies(settings: Settings) -> list[Look]:
    if not settings.proxies:
        if settings.tls_cert is None and (settings.public_url or "").startswith("https://"):
            why = "not set, although a proxy terminates TLS: every request appears to come from the proxy"
            return [Look("proxies", False, why, "Set HEALER_PROXIES to its address: docs/tls.md.")]
        return []
    wide = [str(network) for network in settings.proxies if network.num_addresses > _PROXIES_MAX]
    if wide:
        why = f"{', '.join(wide)} covers more than the proxies: any client there can forge its address"
        return [Look("proxies", False, why, "Set HEALER_PROXIES to the addresses of the proxies only.")]
    return [Look("proxies", True, ", ".join(str(network) for network in settings.proxies))]
