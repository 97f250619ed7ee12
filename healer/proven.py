"""What was proven on this machine: to run the detection rules on their cases takes seconds, at every start.

A proof depends on the rules, their cases and the code that ran them. Its name is a digest of all three; an
empty file of that name in the user's cache says that it held. A cache only: whoever loses it proves again,
and one that others may write is not believed.
"""

import os
from collections.abc import Iterator
from functools import cache
from hashlib import sha256
from pathlib import Path

#: Files are the names of proofs; the oldest go.
MOST_KEPT = 64
#: The code that a proof runs: a change there may change what a rule says.
_CODE = ("detection", "observations", "model", "signals")


def is_proven(proof: str) -> bool:
    """Whether this proof of the rules held here before, with this very code."""
    folder = _folder()
    return folder is not None and _is_ours(folder) and (folder / _named(proof)).is_file()


def note_proven(proof: str) -> None:
    """Keeps it. Where nothing can be written nothing is kept."""
    folder = _folder()
    if folder is None:
        return
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not _is_ours(folder):
            return
        (folder / _named(proof)).touch()
        kept = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime)
        for path in kept[:-MOST_KEPT]:
            path.unlink(missing_ok=True)
    except OSError:
        return


def _folder() -> Path | None:
    """By the XDG Base Directory Specification."""
    told = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if told.is_absolute():
        return told / "healer" / "proven"
    try:
        return Path.home() / ".cache" / "healer" / "proven"
    except RuntimeError:
        return None


def _is_ours(folder: Path) -> bool:
    try:
        told = folder.stat()
    except OSError:
        return False
    return told.st_uid == os.geteuid() and not told.st_mode & 0o022


def _named(proof: str) -> str:
    return sha256(f"{proof} {_code()}".encode()).hexdigest()


@cache
def _code() -> str:
    digest = sha256()
    for path in _files():
        digest.update(str(path.name).encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _files() -> Iterator[Path]:
    here = Path(__file__).parent
    yield here / "detectioncases.py"
    yield here / "casetracks.py"
    for name in _CODE:
        yield from sorted((here / name).rglob("*.py"))
