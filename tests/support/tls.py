"""A proxy with TLS and a certificate authority of its own, as sites put before slurmrestd."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


class Certificates(NamedTuple):
    """Files in PEM: the authority's certificate, and the server's own with its key."""

    authority: Path
    server: Path


def certificates(folder: Path) -> Certificates:
    """An authority and a certificate of it for 127.0.0.1, good for an hour."""
    authority_key, server_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    authority = _signed("Test CA", authority_key, "Test CA", authority_key, is_authority=True)
    server = _signed("127.0.0.1", server_key, "Test CA", authority_key, is_authority=False)
    found = Certificates(folder / "ca.pem", folder / "server.pem")
    found.authority.write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    key = server_key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    found.server.write_bytes(key + server.public_bytes(serialization.Encoding.PEM))
    return found


def _signed(
    name: str,
    key: ec.EllipticCurvePrivateKey,
    issuer: str,
    issuer_key: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool,
) -> x509.Certificate:
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if not is_authority:
        here = x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))])
        builder = builder.add_extension(here, critical=False)
    return builder.sign(issuer_key, hashes.SHA256())


@contextmanager
def serve_tls(server_pem: Path, port: int) -> Iterator[str]:
    """Passes on what comes by TLS to 127.0.0.1:`port` in plain; yields its https address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(server_pem)
    listening = socket.create_server(("127.0.0.1", 0))

    def accept() -> None:
        while True:
            try:
                plain, _ = listening.accept()
            except OSError:
                return  # closed: the test is over
            threading.Thread(target=pass_on, args=(plain,), daemon=True).start()

    def pass_on(plain: socket.socket) -> None:
        try:
            with (
                context.wrap_socket(plain, server_side=True) as outside,
                socket.create_connection(("127.0.0.1", port)) as inside,
            ):
                back = threading.Thread(target=copy, args=(inside, outside), daemon=True)
                back.start()
                copy(outside, inside)
                back.join()
        except OSError:
            plain.close()

    def copy(source: socket.socket, sink: socket.socket) -> None:
        # One side may have gone for good; then the other gets no more.
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield f"https://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        listening.close()
        thread.join()
