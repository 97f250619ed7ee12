"""The key of the tokens' digests, in a file that only the API's user reads and the database never holds."""

import os
from pathlib import Path

from healer.adapters.secret_file import create_once
from healer.text import say

KEY_FILE = "token-key"
KEY_BYTES = 32


class TokenKeyUnreadable(Exception):
    """The key exists and cannot be used. It is never replaced silently: every token would be invalid."""


def token_key(path: Path) -> bytes:
    """The key in this file, which is made if it is missing. Raises TokenKeyUnreadable."""
    try:
        if not path.exists():
            _make(path)
        key = bytes.fromhex(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise TokenKeyUnreadable(
            say("adapters.token_key_unreadable", path=str(path), error=str(error))
        ) from None
    if len(key) < KEY_BYTES:
        raise TokenKeyUnreadable(say("adapters.token_key_short", path=str(path), most=KEY_BYTES))
    return key


def _make(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    create_once(path, f"{os.urandom(KEY_BYTES).hex()}\n".encode())
