"""Where `healer login` keeps sessions: a file readable only by the user, with one session per address of
healer."""

import json
import os
import stat
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

from healer.commands import Failed
from healer.text import say

_ITS_OWNER_ALONE = 0o600


class KeptLogin(NamedTuple):
    token: str
    name: str
    expires_at: str


def logins_file(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME") or str(Path.home())
    state = environ.get("XDG_STATE_HOME") or str(Path(home, ".local", "state"))
    return Path(state, "healer", "logins.json")


def kept_login(environ: Mapping[str, str], url: str) -> KeptLogin | None:
    """The session at this very address; None without one. Raises Failed for one that has expired, and for a
    file that others may read or write."""
    entry = _read(logins_file(environ)).get(url)
    if entry is None:
        return None
    try:
        found = KeptLogin(str(entry["token"]), str(entry["name"]), str(entry["expires_at"]))
        has_ended = datetime.fromisoformat(found.expires_at) <= datetime.now(UTC)
    except (KeyError, TypeError, ValueError):
        raise Failed(say("commands.logins_damaged", file=str(logins_file(environ)))) from None
    if has_ended:
        raise Failed(say("commands.login_expired", url=url))
    return found


def keep_login(environ: Mapping[str, str], url: str, login: KeptLogin | None) -> None:
    """Replaces the session at this address; None removes it."""
    path = logins_file(environ)
    entries = _read(path)
    entries.pop(url, None)
    if login is not None:
        entries[url] = login._asdict()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent, delete=False) as file:  # made with mode 0600
            json.dump(entries, file)
        Path(file.name).replace(path)
    except OSError as error:
        raise Failed(say("commands.unwritable", name=str(path), why=str(error))) from error


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            status = os.fstat(file.fileno())
            if stat.S_IMODE(status.st_mode) & ~_ITS_OWNER_ALONE or status.st_uid != os.geteuid():
                raise Failed(say("commands.logins_open", file=str(path)))
            found = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise Failed(say("commands.logins_unreadable", file=str(path), why=str(error))) from error
    return found if isinstance(found, dict) else {}
