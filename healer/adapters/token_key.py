"""The key of the tokens' digests, in a file that the API's user alone reads and the database never holds."""

import os
from pathlib import Path

from healer.adapters.secret_file import create_once

KEY_FILE = "token-key"
KEY_BYTES = 32


class TokenKeyUnreadable(Exception):
    """The key exists and cannot be used. It is never replaced silently: every token would be worthless."""


def token_key(path: Path) -> bytes:
    """The key in this file, which is made if it is missing. Raises TokenKeyUnreadable."""
    try:
        if not path.exists():
            _make(path)
        key = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise TokenKeyUnreadable(
            f"the tokens' key {path} cannot be read ({error}): run this as healer's user or root, or put the "
            "key back from a backup."
        ) from None
    if len(key) < KEY_BYTES:
        raise TokenKeyUnreadable(f"the tokens' key {path} is shorter than {KEY_BYTES} bytes in hex.")
    return key


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    create_once(path, f"{os.urandom(KEY_BYTES).hex()}\n".encode())
