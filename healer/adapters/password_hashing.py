"""argon2id by OWASP's least figures: the passwords are generated, so there is little to slow down."""

import os
from threading import BoundedSemaphore

from cryptography.exceptions import InvalidKey
from cryptography.hazmat.primitives.kdf.argon2 import Argon2id

from healer.ports.request_errors import Unavailable
from healer.text import say

_MEMORY_KIB, _PASSES, _LANES, _BYTES = 19_456, 2, 1, 32
#: Concurrent hashes, and waiting ones: callers without credentials can use no more memory and threads.
_AT_ONCE, _WAITING = 2, 8


class Argon2:
    """`healer.ports.account_book.Passwords`."""

    def __init__(self) -> None:
        self._working, self._waiting = BoundedSemaphore(_AT_ONCE), BoundedSemaphore(_WAITING)

    def sealed(self, material: bytes) -> str:
        with self._working:
            return Argon2id(
                salt=os.urandom(16), length=_BYTES, iterations=_PASSES, lanes=_LANES, memory_cost=_MEMORY_KIB
            ).derive_phc_encoded(material)

    def fits(self, material: bytes, sealed: str) -> bool:
        if not self._waiting.acquire(blocking=False):
            raise Unavailable(say("api.sign_in_crowded"))
        try:
            with self._working:
                Argon2id.verify_phc_encoded(material, sealed)
        except InvalidKey:
            return False
        else:
            return True
        finally:
            self._waiting.release()
