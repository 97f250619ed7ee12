"""What several processes of the tests make once and use together, outside of the repository."""

from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from pathlib import Path

CACHE = Path("/var/cache/healer")


@contextmanager
def shared(place: Path) -> Iterator[None]:
    """Only one process at a time looks whether `place` is there, and makes it."""
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_name(f"{place.name}.lock").open("w") as file:
        flock(file, LOCK_EX)
        yield
