"""Where a running `healer up` can be reached: one private file in the data directory.

It lets `healer token create` and its like find the embedded database without a setting.
"""

import os
from pathlib import Path

import msgspec

from healer.embedded.user import EmbeddedError


class Running(msgspec.Struct, frozen=True, kw_only=True):
    """`pid` is the process of `healer up`; `parts` and `servers` (postgres, redis) are its children."""

    pid: int
    url: str
    database_url: str
    broker_url: str
    parts: dict[str, int] = {}
    servers: dict[str, int] = {}


def note(data_dir: Path, running: Running) -> None:
    """Writes the file whole or not at all."""
    fresh = data_dir / "running.json.new"
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(msgspec.json.encode(running))
    fresh.rename(data_dir / "running.json")


def forget(data_dir: Path) -> None:
    (data_dir / "running.json").unlink(missing_ok=True)


def find(data_dir: Path) -> Running:
    """What runs on this data directory. Raises EmbeddedError when nothing does, or it is somebody else's."""
    try:
        running = msgspec.json.decode((data_dir / "running.json").read_bytes(), type=Running)
    except FileNotFoundError:
        raise EmbeddedError(
            f"no healer runs on {data_dir}: start `healer up`, or set HEALER_DATABASE_URL or HEALER_DATA_DIR."
        ) from None
    except PermissionError:
        raise EmbeddedError(f"{data_dir} belongs to another user: run this command as that user.") from None
    try:
        os.kill(running.pid, 0)
    except ProcessLookupError:
        raise EmbeddedError(f"the healer on {data_dir} has ended: start `healer up` again.") from None
    except PermissionError:
        pass  # it lives, as somebody else
    return running
