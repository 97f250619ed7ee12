"""Checks of `healer doctor`: files and folders that healer made. What is wrong with them it may repair."""

import os
import stat
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

from healer.adapters.signing import KEY_FILE
from healer.adapters.token_key import KEY_FILE as TOKEN_KEY_FILE
from healer.bootstrap.doctor_checks import Check
from healer.embedded.running import find, forget
from healer.embedded.user import EmbeddedError
from healer.settings import Settings, secret_names
from healer.text import quoted, say

#: Mode bits that a secret of healer's own must not have, and a folder that healer made.
_OF_OTHERS, _WRITABLE = 0o077, 0o022
_OF_STRANGERS = 0o007


def check_files(settings: Settings) -> list[Check]:
    """Folders that are missing, modes, and the note of a healer that has ended."""
    found = [*_folder(settings), *_secrets(settings), *_named(settings, os.environ), *_note(settings)]
    return found or [
        Check(say("doctor.files"), True, say("doctor.files_well", folder=str(settings.data_dir)))
    ]


def _folder(settings: Settings) -> Iterator[Check]:
    folder = settings.data_dir
    if not folder.exists():
        make = partial(folder.mkdir, mode=0o711, parents=True)
        # No fault before the first start, which makes it.
        text = say("doctor.missing", path=str(folder))
        yield Check(say("doctor.files"), True, text, quoted(f"mkdir -p {folder}"), make)
    elif not settings.published_audit.is_dir():
        text = say("doctor.no_audit_dir", path=str(settings.published_audit))
        yield Check(say("doctor.files"), False, text, say("doctor.no_audit_dir_repair"))
    for path in dict.fromkeys((folder, settings.published_audit)):
        if path.is_dir() and (mode := stat.S_IMODE(path.stat().st_mode)) & _WRITABLE:
            yield _mode(path, mode, mode & ~_WRITABLE, "write")


def _secrets(settings: Settings) -> Iterator[Check]:
    made_here = (settings.data_dir / KEY_FILE, settings.token_key_file or settings.data_dir / TOKEN_KEY_FILE)
    for path in made_here:
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue  # of another part, or not made yet
        if mode & _OF_OTHERS:
            yield _mode(path, mode, mode & ~_OF_OTHERS, "read")


def _named(settings: Settings, environ: Mapping[str, str]) -> Iterator[Check]:
    """Files of secrets that the site made. A group may read them; `others` never may."""
    for path in secret_files(settings, environ):
        try:
            mode = stat.S_IMODE(path.stat().st_mode)
        except OSError:
            continue  # of another part, or another check says that it is missing
        if mode & _OF_STRANGERS and path.is_file():
            yield _mode(path, mode, mode & ~_OF_STRANGERS, "read")


def secret_files(settings: Settings, environ: Mapping[str, str]) -> list[Path]:
    """Each that a setting names: `…_FILE` of a secret, a key or a token."""
    found: list[Path | None] = []
    for each in (settings, *settings.each()):
        found += [
            getattr(each, name)
            for name in each.__struct_fields__
            if name.endswith(("_key_file", "token_file"))
        ]
    found += [
        Path(value)
        for name, value in environ.items()
        if name.removesuffix("_FILE") in secret_names() and name.endswith("_FILE")
    ]
    return [*dict.fromkeys(path for path in found if path is not None)]


def _mode(path: Path, mode: int, better: int, verb: str) -> Check:
    text, repair = (
        say(f"doctor.others_{verb}", path=str(path), mode=f"{mode:04o}"),
        quoted(f"chmod {better:04o} {path}"),
    )
    return Check(say("doctor.files"), False, text, repair, partial(path.chmod, better))


def _note(settings: Settings) -> Iterator[Check]:
    note = settings.data_dir / "running.json"
    if not note.exists() or not os.access(note, os.R_OK):
        return
    try:
        find(settings.data_dir)
    except EmbeddedError:
        text, repair = say("doctor.stale_note", file=str(note)), quoted(f"rm {note}")
        yield Check(say("doctor.files"), False, text, repair, partial(forget, settings.data_dir))
