"""Who runs the embedded servers, and where their files may lie.

PostgreSQL refuses to run as root. Started by root, healer runs its servers as the system user `healer` where
the machine has one, else as `nobody`; started by anybody else, as that person. No user is ever created and no
permission of a directory that healer did not make is ever changed.
"""

import errno
import hashlib
import os
import pwd
import stat
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Names tried in turn when root starts the servers.
SERVICE_USERS = ("healer", "nobody")

#: Where root's servers keep their files when the data directory lies in a home that they cannot enter.
ROOT_STATE = Path("/var/lib/healer")

#: Longest path of a unix socket on Linux is 107 bytes; the longest name we put into the folder has 16.
SOCKET_FOLDER_MAX = 90


class EmbeddedError(Exception):
    """An embedded server could not be started. One sentence for people."""


class FolderUnusable(EmbeddedError):
    """The data directory cannot be used. `why` follows on its name: a program with another way to choose the
    folder than `healer up` says its own."""

    def __init__(self, data_dir: Path, why: str) -> None:
        super().__init__(
            f"the data directory {data_dir} {why}; choose another with --data-dir or HEALER_DATA_DIR."
        )
        self.why = why


@contextmanager
def usable(data_dir: Path) -> Iterator[None]:
    """What cannot be read or written there at the start is a FolderUnusable."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise FolderUnusable(data_dir, f"cannot be used ({error.filename}: {error.strerror})") from None


#: How PostgreSQL says that a disk is full: as the kernel does, or in a hint of its own.
_FULL = (os.strerror(errno.ENOSPC), "Check free disk space")


def refused(data_dir: Path, text: str) -> EmbeddedError:
    """What an embedded server said when it did not do its work; a full disk is no fault of the server's."""
    if any(words in text for words in _FULL):
        return FolderUnusable(data_dir, "has no space left")
    return EmbeddedError(text)


@dataclass(frozen=True)
class ServerUser:
    """`drop` says whether processes have to be started as somebody else than we are."""

    uid: int
    gid: int
    name: str
    drop: bool

    def popen(self) -> dict[str, Any]:
        """Arguments for subprocess that start a program as this user."""
        if not self.drop:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": []}

    def folder(self, path: Path) -> Path:
        """Makes a private folder (0700) that belongs to this user."""
        path.mkdir(mode=0o700, exist_ok=True)
        self.own(path)
        path.chmod(0o700)
        return path

    def own(self, path: Path) -> None:
        if self.drop:
            os.chown(path, self.uid, self.gid)

    def runs(self, program: Path) -> bool:
        """Whether this user may start `program`."""
        try:
            done = subprocess.run(
                [program, "--version"], capture_output=True, cwd="/", timeout=20, check=False, **self.popen()
            )
        except OSError:
            return False
        return done.returncode == 0

    def can_enter(self, folder: Path) -> bool:
        """Whether this user may walk down to `folder`, by the mode bits of it and everything above."""
        if not self.drop:
            return True
        folder = folder.resolve()
        return all(self._may_pass(step) for step in (folder, *folder.parents))

    def _may_pass(self, folder: Path) -> bool:
        status = folder.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid == self.gid:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


def server_user() -> ServerUser:
    """The user for the embedded servers. Raises EmbeddedError when root finds none."""
    if os.geteuid() != 0:
        return ServerUser(os.geteuid(), os.getegid(), _name_of(os.geteuid()), drop=False)
    for name in SERVICE_USERS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return ServerUser(entry.pw_uid, entry.pw_gid, name, drop=True)
    raise EmbeddedError(
        "PostgreSQL does not run as root, and this machine has neither a user `healer` nor `nobody` to run "
        "it as: create one with `useradd --system healer`, or set HEALER_DATABASE_URL."
    )


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise EmbeddedError(
            f"the user id {uid} has no name in this machine's user list, and PostgreSQL does not start "
            "without one: add it to /etc/passwd, or set HEALER_DATABASE_URL."
        ) from None


def make_data_dir(data_dir: Path) -> Path:
    """Makes the data directory where it is missing (0711: servers pass through, nobody lists it)."""
    try:
        data_dir.mkdir(mode=0o711, parents=True)
        data_dir.chmod(0o711)
    except FileExistsError:
        if not data_dir.is_dir():
            raise FolderUnusable(data_dir, "is a file") from None
    except OSError as error:
        raise FolderUnusable(data_dir, f"cannot be made: {error.strerror}") from None
    return data_dir.resolve()


def server_home(data_dir: Path, user: ServerUser, *, state: Path = ROOT_STATE) -> Path:
    """Where the servers' own files lie: the data directory, or a place of root's that they can enter.

    The choice is written to `servers-at` in the data directory, so that a later change of permissions never
    makes a database seem lost.
    """
    note = data_dir / "servers-at"
    if note.exists():
        home = Path(note.read_text().strip())
    elif user.can_enter(data_dir):
        home = data_dir
    else:
        digest = hashlib.sha256(os.fsencode(data_dir)).hexdigest()[:8]
        home = state / f"{data_dir.name.strip('.')}-{digest}"
        for folder in (state, home):
            shared_folder(folder)
        note.write_text(f"{home}\n")
    if not user.can_enter(home):
        raise EmbeddedError(f"the user {user.name}, who runs the servers, cannot enter {home}.")
    return home


def shared_folder(path: Path) -> Path:
    """Servers pass through it, nobody lists it."""
    if not path.exists():
        path.mkdir(mode=0o711)
        path.chmod(0o711)
    return path


def start_server(
    arguments: Sequence[str | Path], log: Path, environ: Mapping[str, str], options: Mapping[str, Any]
) -> "subprocess.Popen[Any]":
    """`options`: more arguments for subprocess."""
    with log.open("ab") as out:
        return subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=environ,
            **{"start_new_session": True, **options},
        )  # fmt: skip


def socket_folder(home: Path, server: str, user: ServerUser) -> Path:
    """A private folder for the server's unix socket; under /tmp where the path would be too long for one."""
    folder = home / server / "run"
    if len(os.fsencode(folder)) <= SOCKET_FOLDER_MAX:
        return user.folder(folder)
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    folder = Path("/tmp") / f"healer-{server}-{digest}"  # noqa: S108 - checked below: ours, private, no link
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {os.geteuid(), user.uid}:
        raise EmbeddedError(
            f"{folder} belongs to somebody else: remove it, or choose a shorter data directory."
        )
    return user.folder(folder)
