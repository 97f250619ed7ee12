"""Check of `healer doctor`: the users as whom the parts on this machine run."""

import pwd
import re
from collections.abc import Iterable
from pathlib import Path

from healer.adapters.postgres.local_processes import connected_here
from healer.bootstrap.doctor_checks import Check, ask_database
from healer.settings import Settings
from healer.text import joined, quoted, say

#: The names of the parts' connections begin so.
_PART = re.compile(r"healer (api|detector|scheduler|scraper|worker)\b")
_USER = re.compile(r"^Uid:\s+\d+\s+(\d+)", re.M)


def check_users(settings: Settings) -> list[Check]:
    """Other installations have parts on this machine, too: its own are those in its database."""
    return check_users_of_parts(users_here(settings), together=settings.database_url is None)


def users_here(settings: Settings) -> dict[str, set[int]]:
    """Part -> the user ids as whom it runs on this machine."""
    connected = ask_database(settings, lambda _, conn: {*connected_here(conn)}) or set()
    return users_of_parts(Path("/proc"), connected)


def users_of_parts(proc: Path, connected: Iterable[tuple[str, int]]) -> dict[str, set[int]]:
    """Part -> the user ids that its processes have. `connected`: names of connections and their processes."""
    found: dict[str, set[int]] = {}
    for name, pid in connected:
        try:
            # A container may have this machine's name and other numbers.
            is_healer = b"healer" in (proc / str(pid) / "cmdline").read_bytes()
            user = _USER.search((proc / str(pid) / "status").read_text())
        except OSError:
            continue  # it has ended
        part = _PART.match(name)
        if part and user and is_healer:
            found.setdefault(part[1], set()).add(int(user[1]))
    return found


def check_users_of_parts(parts: dict[str, set[int]], *, together: bool) -> list[Check]:
    """Only the worker may change Slurm: no other part has its user, none is root's. `together`: by `healer
    up`, which runs all of them as the ordinary user who starts it."""
    acting = parts.get("worker", set())
    others = {part: uids for part, uids in parts.items() if part != "worker"}
    if not others and not acting:
        return []
    name, repair = say("doctor.users"), say("doctor.users_repair")
    roots = [part for part, uids in sorted({**others, "worker": acting}.items()) if 0 in uids]
    if roots:
        return [Check(name, False, say("doctor.users_root", parts=", ".join(roots)), repair)]
    shared = [part for part, uids in sorted(others.items()) if uids & acting]
    if shared:
        whose = {"parts": ", ".join(shared), "user": _names(acting)}
        return [Check(name, together, say("doctor.users_shared", **whose), repair)]
    each = [quoted(f"{part}: {_names(uids)}") for part, uids in sorted(parts.items())]
    return [Check(name, True, joined(each, "comma"))]


def _names(uids: set[int]) -> str:
    return ", ".join(sorted(_name(uid) for uid in uids))


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
