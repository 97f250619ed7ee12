"""Checks of `healer doctor`: files and folders that healer made. What is wrong with them it may mend."""

import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from healer.adapters.signing import KEY_FILE
from healer.adapters.token_key import KEY_FILE as TOKEN_KEY_FILE
from healer.bootstrap.doctor_checks import Look
from healer.embedded.running import find, forget
from healer.embedded.user import EmbeddedError
from healer.settings import Settings

#: Mode bits that a secret of healer's own must not have, and a folder that healer made.
_OF_OTHERS, _WRITABLE = 0o077, 0o022
NAME = "files"


def look_at_files(settings: Settings) -> list[Look]:
    """Folders that are missing, modes, and the note of a healer that has ended."""
    found = [*_folder(settings), *_secrets(settings), *_note(settings)]
    return found or [Look(NAME, True, f"modes in {settings.data_dir}")]


def _folder(settings: Settings) -> Iterator[Look]:
    folder = settings.data_dir
    if not folder.exists():
        make = partial(folder.mkdir, mode=0o711, parents=True)
        # No fault before the first start, which makes it.
        yield Look(NAME, True, f"{folder} is missing", f"mkdir -p {folder}", make)
    for path in dict.fromkeys((folder, settings.published_audit)):
        if path.is_dir() and (mode := stat.S_IMODE(path.stat().st_mode)) & _WRITABLE:
            yield _mode(path, mode, mode & ~_WRITABLE, "write to")


def _secrets(settings: Settings) -> Iterator[Look]:
    made_here = (settings.data_dir / KEY_FILE, settings.token_key_file or settings.data_dir / TOKEN_KEY_FILE)
    for path in made_here:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue  # of another part, or not made yet
        if mode & _OF_OTHERS:
            yield _mode(path, mode, mode & ~_OF_OTHERS, "read")


def _mode(path: Path, mode: int, better: int, verb: str) -> Look:
    text = f"other users can {verb} {path} (mode {mode:04o})"
    return Look(NAME, False, text, f"chmod {better:04o} {path}", partial(path.chmod, better))


def _note(settings: Settings) -> Iterator[Look]:
    note = settings.data_dir / "running.json"
    if not note.exists() or not os.access(note, os.R_OK):
        return
    try:
        find(settings.data_dir)
    except EmbeddedError:
        text = f"{note} is of a healer that was killed"
        yield Look(NAME, False, text, f"rm {note}", partial(forget, settings.data_dir))
