"""One `healer up` per data directory."""

import fcntl
import os
import time
from pathlib import Path

from healer.embedded.user import EmbeddedError

#: A killed healer's guardian ends everything within 9 s and holds the lock until then.
WAIT_S = 12.0


def lock(data_dir: Path) -> int:
    """Takes the data directory's lock; returns the descriptor that holds it. Raises EmbeddedError.

    The lock goes with the last process that has the descriptor: ours, or the guardian we give it to.
    """
    descriptor = os.open(data_dir / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
            if _lives(holder) or time.monotonic() > deadline:
                os.close(descriptor)
                raise EmbeddedError(
                    f"another healer (process {holder or 'unknown'}) runs on {data_dir}: stop it, or choose "
                    "another with --data-dir or HEALER_DATA_DIR."
                ) from None
            time.sleep(0.1)
            continue
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        return descriptor


def _lives(holder: str) -> bool:
    if not holder.isdigit():
        return False
    try:
        os.kill(int(holder), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    try:
        # A killed process that nobody has waited for yet is no holder any more.
        return Path(f"/proc/{holder}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return True
