"""Proofs of detection rules, kept on this machine: running all cases takes seconds, at every start.

A proof is of one rule: a site that changes one proves only that one. It depends on the rule, its cases and
the code that ran them. Its name is a digest of all three; an empty file of that name in the user's cache
means that it held. Only a cache: without it rules are proven again, and one that others may write is not
trusted.
"""

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from fcntl import LOCK_EX, LOCK_NB, flock
from functools import cache
from hashlib import sha256
from pathlib import Path

#: Files are the names of proofs; the oldest go. Some hundred rules, and their versions.
MOST_KEPT = 2000
#: All rules of a site are proven in less on a busy machine.
LONGEST_S = 30.0
#: The code that a proof runs: a change there may change what a rule says.
_CODE = ("detection", "observations", "model", "signals")
_READERS = (
    "rulebook/cases/detection_cases.py",
    "rulebook/detection_rules.py",
    "rulebook/rule_checks.py",
    "rulebook/signal_rules.py",
    "rulebook/source.py",
)


def saved_proofs(proofs: Iterable[str]) -> set[str]:
    """Those that held here before, with this very code."""
    folder = _folder()
    if folder is None or not _is_ours(folder):
        return set()
    return {proof for proof in proofs if (folder / _named(proof)).is_file()}


def save_proofs(proofs: Iterable[str]) -> None:
    """Keeps them. Where nothing can be written nothing is kept."""
    folder = _folder()
    if folder is None:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(folder):
            return
        for proof in proofs:
            (folder / _named(proof)).touch()
        kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in kept[:-MOST_KEPT]:
            path.unlink(missing_ok=True)
    except OSError:
        return


@contextmanager
def proof_lock() -> Iterator[None]:
    """The processes of healer see a changed file in the same second: the first proves it, the others wait and
    find the proof. Without a usable folder there is no wait, and none waits long for a process that was
    stopped while proving."""
    folder = _folder()
    with ExitStack() as stack:
        if folder is not None:
            with suppress(OSError):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
                # Neither emptied nor followed: in a folder that others may write it could be a link.
                lock = folder.with_suffix(".lock")
                held = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                stack.callback(os.close, held)
                _lock(held)
        yield


def _lock(held: int) -> None:
    deadline = time.monotonic() + LONGEST_S
    while time.monotonic() < deadline:
        try:
            flock(held, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return


def _folder() -> Path | None:
    """By the XDG Base Directory Specification."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if cache.is_absolute():
        return cache / "healer" / "proven"
    try:
        return Path.home() / ".cache" / "healer" / "proven"
    except RuntimeError:
        return None


def _is_ours(folder: Path) -> bool:
    try:
        status = folder.stat()
    except OSError:
        return False
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _named(proof: str) -> str:
    return sha256(f"{proof} {code_digest()}".encode()).hexdigest()


@cache
def code_digest() -> str:
    """Read once, when the code is: an upgrade of a running healer puts other files in their place."""
    digest = sha256()
    for path in _files():
        digest.update(str(path.name).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _files() -> Iterator[Path]:
    here = Path(__file__).parents[1]
    yield from (here / name for name in _READERS)
    for name in _CODE:
        yield from sorted((here / name).rglob("*.py"))
