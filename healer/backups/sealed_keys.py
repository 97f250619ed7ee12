"""The keys of an installation, encrypted by a passphrase: scrypt, then Fernet (AES-128-CBC with HMAC-SHA256).

`healer keys 1`, a newline, 16 bytes of salt, and the Fernet token of a JSON document.
"""

import os
from base64 import urlsafe_b64encode
from pathlib import Path

import msgspec
from cryptography.fernet import Fernet, InvalidToken
from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from healer.backups.archive import BackupUnusable, Member
from healer.text import say

_BEGIN = b"healer keys 1\n"
_SALT_BYTES = 16
#: 64 MiB and 0.2 s for each guess.
_WORK = {"n": 2**16, "r": 8, "p": 1}
_SHORTEST = 12


class SealedKeys(msgspec.Struct, frozen=True, kw_only=True):
    """`files`: name -> bytes. `members`: the sums of the other members, so that they cannot be changed by
    those who lack the passphrase."""

    files: dict[str, bytes]
    members: dict[str, Member]


def read_passphrase(path: Path) -> bytes:
    """The first line of the file. Raises BackupUnusable."""
    try:
        first = path.read_bytes().partition(b"\n")[0].strip()
    except OSError as error:
        raise BackupUnusable(
            say("backups.passphrase_file_cannot_read", path=str(path), why=error.strerror)
        ) from None
    if len(first) < _SHORTEST:
        raise BackupUnusable(
            say("backups.passphrase_shorter_than_characters", path=str(path), shortest=_SHORTEST)
        )
    return first


def seal_keys(keys: SealedKeys, passphrase: bytes) -> bytes:
    salt = os.urandom(_SALT_BYTES)
    return _BEGIN + salt + _cipher(passphrase, salt).encrypt(msgspec.json.encode(keys))


def open_keys(sealed: bytes, passphrase: bytes) -> SealedKeys:
    """Raises BackupUnusable for another passphrase, or bytes that were changed."""
    begin, rest = sealed[: len(_BEGIN)], sealed[len(_BEGIN) :]
    if begin != _BEGIN:
        raise BackupUnusable(say("backups.keys_backup_are_format"))
    salt, token = rest[:_SALT_BYTES], rest[_SALT_BYTES:]
    try:
        return msgspec.json.decode(_cipher(passphrase, salt).decrypt(token), type=SealedKeys)
    except (InvalidToken, msgspec.MsgspecError):
        raise BackupUnusable(say("backups.passphrase_backup_its_keys")) from None


def _cipher(passphrase: bytes, salt: bytes) -> Fernet:
    return Fernet(urlsafe_b64encode(Scrypt(salt=salt, length=32, **_WORK).derive(passphrase)))
