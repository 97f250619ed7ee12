"""Requests to healer-node, signed by the worker: ECDSA with P-256 and SHA-256."""

import base64
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from healer.ports.node_exec import NodeError
from healer.text import say

#: Prefix of the signed text: a signature is valid for no other purpose.
FORM = "healer-node 1"


@dataclass(frozen=True)
class Request:
    """What a signature binds the words to. `run` is empty for looks outside of a run; `until` in seconds
    since 1970; `call_id` is good for one call."""

    cluster: str
    node: str
    run: str
    until: float
    call_id: str


class Signer:
    """Raises NodeError for a file that cannot be used."""

    def __init__(self, key_file: Path) -> None:
        self._key = read_key(key_file)

    def signed(self, request: Request, words: tuple[str, ...]) -> tuple[str, ...]:
        """The words of a signed request, as healer-node takes them."""
        cluster, run = request.cluster or "-", request.run or "-"
        bound = (cluster, request.node, run, str(int(request.until) + 1), request.call_id, *words)
        signature = sign(self._key, " ".join((FORM, *bound)).encode("ascii"))
        return ("signed", base64.b64encode(signature).decode("ascii"), *bound)


def sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    """As `openssl dgst -sha256 -verify` reads it."""
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A private key of P-256 that only its user may read. Raises NodeError."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            key = serialization.load_pem_private_key(file.read(), password=None)
    except OSError as error:
        raise NodeError(say("nodes.signing_key_unread", path=str(path), error=error.strerror)) from None
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise NodeError(say("nodes.signing_key_no_key", path=str(path), error=str(error))) from None
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise NodeError(say("nodes.signing_key_no_p256", path=str(path)))
    # Of root's file the group may be the mask of an access list, as systemd gives a unit its credentials.
    others = stat.S_IRWXO if status.st_uid == 0 != os.geteuid() else stat.S_IRWXO | stat.S_IRWXG
    if status.st_mode & others:
        raise NodeError(say("nodes.signing_key_open", path=str(path)))
    return key


def make_key(path: Path) -> Path:
    """Writes a new private key for its user alone, and the public one next to it (`.pub`), whose path it
    returns. Raises FileExistsError and other OSError."""
    key = ec.generate_private_key(ec.SECP256R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    path.touch(mode=0o600, exist_ok=False)
    path.write_bytes(private)
    public_path = path.with_suffix(".pub")
    public_path.write_bytes(public)
    public_path.chmod(0o644)
    return public_path
