"""Becomes the process of a unit, as root: `python -m tests.support.unit_program ROOT PART [DROP-IN ...]`."""

import ctypes
import os
import pwd
import subprocess
import sys
from pathlib import Path

from healer.embedded.descent import code_folders, descend
from healer.embedded.user import ServerUser
from tests.support.units import Machine, Unit, arguments, read_unit

_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 1  # libseccomp's SCMP_ACT_ALLOW and SCMP_ACT_ERRNO(EPERM)
_PR_SET_MDWE, _REFUSE_EXEC_GAIN = 65, 1


def main(root: str, part: str, *drop_ins: str) -> None:
    machine, unit = Machine(Path(root)), read_unit(part, *drop_ins)
    calls = allowed_calls(unit)
    user = _user_of(unit)
    _show_credentials(machine, unit, user)
    state = machine.place(f"/var/lib/{unit.one('StateDirectory')}")
    state.mkdir(parents=True, exist_ok=True)
    state.chmod(int(unit.one("StateDirectoryMode"), 8))
    os.chown(state, user.uid, user.gid)
    environ = {name: _value(machine, unit, value) for name, value in unit.environ.items()}
    os.umask(int(unit.one("UMask"), 8))
    descend(user, code_folders())
    if unit.one("MemoryDenyWriteExecute") == "yes":
        _check(ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_MDWE, _REFUSE_EXEC_GAIN, 0, 0, 0))
    _refuse_others(calls)
    os.environ.update(environ)
    os.execv(sys.executable, [sys.executable, "-m", "healer", *arguments(unit)])


def _user_of(unit: Unit) -> ServerUser:
    entry = pwd.getpwnam(unit.one("User"))
    groups = [group for line in unit.lines.get("SupplementaryGroups", []) for group in line.split()]
    gids = tuple(_gid(group) for group in groups)
    final = unit.one("NoNewPrivileges") == "yes"
    return ServerUser(entry.pw_uid, entry.pw_gid, entry.pw_name, drop=True, groups=gids, is_final=final)


def _gid(group: str) -> int:
    return int(subprocess.check_output(["getent", "group", group], text=True).split(":")[2])


def _show_credentials(machine: Machine, unit: Unit, user: ServerUser) -> None:
    """In a folder of its user's own, read-only. Raises FileNotFoundError for one that root did not give."""
    folder = machine.credentials_of(unit.name)
    folder.mkdir(parents=True, exist_ok=True)
    for name, path in unit.credentials.items():
        file = folder / name
        file.unlink(missing_ok=True)
        file.touch(mode=0o400)
        file.write_bytes(machine.place(path).read_bytes())
        os.chown(file, user.uid, user.gid)
    os.chown(folder, user.uid, user.gid)
    folder.chmod(0o500)


def _value(machine: Machine, unit: Unit, value: str) -> str:
    if value.startswith("%d/"):
        return str(machine.credentials_of(unit.name) / value.removeprefix("%d/"))
    return str(machine.place(value)) if value.startswith("/") else value


def allowed_calls(unit: Unit) -> set[str]:
    """What SystemCallFilter leaves, by systemd's own lists."""
    allowed = set[str]()
    for line in unit.lines["SystemCallFilter"]:
        named = {call for group in line.removeprefix("~").split() for call in _calls_of(group)}
        allowed = allowed - named if line.startswith("~") else allowed | named
    return allowed | _calls_of("@default")


def _calls_of(group: str) -> set[str]:
    if not group.startswith("@"):
        return {group}
    said = subprocess.check_output(["systemd-analyze", "syscall-filter", "--no-pager", group], text=True)
    words = [line.strip() for line in said.splitlines()[1:]]
    return {call for word in words if word and not word.startswith("#") for call in _calls_of(word)}


def _refuse_others(calls: set[str]) -> None:
    library = ctypes.CDLL("libseccomp.so.2")
    library.seccomp_init.restype = ctypes.c_void_p
    context = ctypes.c_void_p(library.seccomp_init(ctypes.c_uint32(_REFUSE)))
    for call in calls:
        number = library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # less: not of this processor
            _check(library.seccomp_rule_add(context, ctypes.c_uint32(_ALLOW), number, 0))
    _check(library.seccomp_load(context))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(f"refused: {result}")


if __name__ == "__main__":
    main(*sys.argv[1:])
