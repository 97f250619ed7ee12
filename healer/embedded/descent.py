"""How a part that root started becomes its own user, before it opens anything.

Code, Python and rules may be in a folder that only root may enter (a checkout in root's home). Their folders
are then shown to the part in a mount namespace of its own, and nothing else of that folder: no permission on
disk changes.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from healer.embedded.user import EmbeddedError, ServerUser
from healer.text import say

_CLONE_NEWNS = 0x00020000
_MS_NOSUID, _MS_NODEV, _MS_BIND, _MS_REC, _MS_PRIVATE = 2, 4, 4096, 16384, 1 << 18
_PR_SET_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def descend(user: ServerUser, needed: Iterable[Path]) -> None:
    """Makes this process `user`, for good: without groups of root, capabilities, or, where the user takes no
    other, a way to new privileges. `needed`: what it reads later. Raises EmbeddedError if it cannot."""
    if not user.drop:
        return
    paths = _outermost(path.resolve() for path in needed if path.exists())
    _show(user, paths)
    os.setgroups(user.groups)
    os.setresgid(user.gid, user.gid, user.gid)
    os.setresuid(user.uid, user.uid, user.uid)
    if user.is_final:
        _check(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl")
    os.environ |= {"HOME": user.home, "USER": user.name, "LOGNAME": user.name}
    try:
        os.chdir(Path.cwd())
    except OSError:
        os.chdir("/")
    for path in paths:
        if not os.access(path, os.X_OK if path.is_dir() else os.R_OK):
            raise EmbeddedError(say("embedded.user_cannot_read_put", name=user.name, path=str(path)))


def code_folders() -> list[Path]:
    """Where Python, its packages and healer are."""
    return [Path(sys.prefix), Path(sys.base_prefix), Path(__file__).parents[2]]


def as_user(user: ServerUser, work: Callable[[], str], needed: Iterable[Path] = ()) -> str:
    """What `work` returns in a process of this user; empty if it fails."""
    if not user.drop:
        return work()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            descend(user, needed)
            os.write(writing, work().encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    os.waitpid(pid, 0)
    return text


def _outermost(paths: Iterable[Path]) -> list[Path]:
    found: list[Path] = []
    for path in sorted(set(paths)):
        if not any(path.is_relative_to(before) for before in found):
            found.append(path)
    return found


def _show(user: ServerUser, paths: Iterable[Path]) -> None:
    """Shows the paths that lie below folders which the user may not pass; does nothing without the right to
    mount, as in many containers."""
    hidden: dict[Path, list[Path]] = {}
    for path in paths:
        closed = next((step for step in reversed(path.parents) if not user.may_pass(step)), None)
        if closed is not None:
            hidden.setdefault(closed, []).append(path)
    if not hidden or _libc.unshare(_CLONE_NEWNS) != 0:
        return
    _mount("none", Path("/"), "", _MS_REC | _MS_PRIVATE, "")
    before = os.umask(0o022)  # root's own may be stricter, and the user has to pass through these folders
    try:
        _show_each(hidden)
    finally:
        os.umask(before)


def _show_each(hidden: Mapping[Path, Sequence[Path]]) -> None:
    for closed, below in hidden.items():
        opened = [(path, os.open(path, os.O_PATH)) for path in below]
        _mount("healer", closed, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0711,size=1m")
        for path, descriptor in opened:
            if Path(f"/proc/self/fd/{descriptor}").is_dir():
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            _mount(f"/proc/self/fd/{descriptor}", path, "", _MS_BIND | _MS_REC, "")
            os.close(descriptor)


def _mount(source: str, target: Path, kind: str, flags: int, options: str) -> None:
    texts = (source.encode(), os.fsencode(target), kind.encode())
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), options.encode()), f"mount {target}")


def _check(result: int, what: str) -> None:
    if result != 0:
        raise EmbeddedError(say("words.labelled", label=what, text=os.strerror(ctypes.get_errno())))
