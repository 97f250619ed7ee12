"""The key that signs the audit's checkpoints, and their file.

`audit-key` is the private key (0600) in the worker's data directory, created once. `audit-keys.pub` lists all
public keys that ever signed here, one per line, so that old checkpoints remain valid after a key was lost and
replaced; it and the checkpoints may be in another folder, which others read. Who holds an export may check
it, so every user may read the public keys, whatever the umask of the worker.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from healer.adapters.secret_file import create_once
from healer.text import say

KEY_FILE = "audit-key"
PUBLIC_FILE = "audit-keys.pub"
CHECKPOINT_FILE = "audit-checkpoints.jsonl"


class KeyUnreadable(Exception):
    """The signing key exists but cannot be used. It is never replaced silently; the text says what to do."""


class Ed25519Signer:
    """`healer.audit.chain.Signer` over a key in memory."""

    def __init__(self, private: Ed25519PrivateKey) -> None:
        self._private = private
        self.key = private.public_key().public_bytes_raw().hex()

    def sign(self, data: bytes) -> bytes:
        return self._private.sign(data)


def load_signer(data_dir: Path, published: Path | None = None) -> Ed25519Signer:
    """The signer with this data directory's key, which is created if missing; its public key is noted in
    `published`, else in the same folder. Raises KeyUnreadable."""
    published = published or data_dir
    for folder in (data_dir, published):
        folder.mkdir(parents=True, exist_ok=True)
    path = data_dir / KEY_FILE
    if not path.exists():
        _create(path)
    signer = Ed25519Signer(_read(path))
    if signer.key not in trusted_keys(published):
        _append(published / PUBLIC_FILE, f"{signer.key}\n".encode(), mode=0o644)
    # Each time: an earlier version, or a process that ended right here, left it to the umask.
    with contextlib.suppress(PermissionError):  # another worker's file, of another user
        (published / PUBLIC_FILE).chmod(0o644)
    return signer


def trusted_keys(published: Path) -> frozenset[str]:
    """The public keys that may sign; empty if the folder never had a key."""
    path = published / PUBLIC_FILE
    return frozenset(path.read_text().split()) if path.exists() else frozenset()


class CheckpointFile:
    """`healer.ports.audit_store.CheckpointFile`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def lines(self) -> list[bytes]:
        return self._path.read_bytes().splitlines(keepends=True) if self._path.exists() else []

    def after(self, at: int, most: int) -> tuple[list[bytes], int]:
        """`healer.ports.audit_store.Tail`. A file that became shorter is read from its beginning."""
        if not self._path.exists():
            return [], at
        found: list[bytes] = []
        with self._path.open("rb") as file:
            at = at if at <= file.seek(0, os.SEEK_END) else 0
            file.seek(at)
            while len(found) < most and (line := file.readline()).endswith(b"\n"):
                at += len(line)
                if line.strip():
                    found.append(line)
        return found, at

    def append(self, lines: Iterable[bytes]) -> None:
        data = b"".join(lines)
        if not data:
            return
        # A crash may have left a partial line, which must not merge with the next one.
        if self._path.exists() and not _ends_with_newline(self._path):
            data = b"\n" + data
        _append(self._path, data, mode=0o640)


class PositionFile:
    """`healer.ports.audit_store.Position`. Lost or unreadable it is 0, and everything is sent again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> int:
        try:
            return max(0, int(self._path.read_text()))
        except (OSError, ValueError):
            return 0

    def write(self, at: int) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{at}\n")
        fresh.rename(self._path)


def _create(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    create_once(path, pem)


def _read(path: Path) -> Ed25519PrivateKey:
    try:
        private = load_pem_private_key(path.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise KeyUnreadable(say("adapters.audit_key_unreadable", path=str(path), error=str(error))) from None
    if not isinstance(private, Ed25519PrivateKey):
        raise KeyUnreadable(say("adapters.audit_key_other", path=str(path)))
    return private


def _append(path: Path, data: bytes, *, mode: int) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, mode)
    with os.fdopen(descriptor, "ab") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        if file.seek(0, os.SEEK_END) == 0:
            return True
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
