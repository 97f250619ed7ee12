"""A secret that the first process to need it makes."""

import os
import tempfile
from pathlib import Path


def create_once(path: Path, secret: bytes) -> None:
    """Creates a complete file of mode 0600, on disk. Does nothing if it exists: of several processes, one
    creates it."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # 0600
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(fresh, path)  # fails if the name exists
        except FileExistsError:
            return
    finally:
        fresh.unlink()
