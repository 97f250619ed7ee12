"""The users of the parts and of the embedded servers, and the location of the servers' files.

If root starts healer, the parts run as `healer`, the worker as `healer-worker` and the servers as
`healer-db`, so that nothing that faces the network owns the database's files; otherwise all run as the
current user. Permissions change only for directories that healer created.
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

from healer.model.vocabulary import UserError
from healer.text import Said, SaidError, say

#: System users: of the parts, of the worker, of the embedded servers.
SERVICE, WORKER, SERVERS = "healer", "healer-worker", "healer-db"
#: useradd's exit status where another process made the user meanwhile.
_USER_EXISTS = 9

#: The location of root's servers' files if they cannot enter the data directory.
ROOT_STATE = Path("/var/lib/healer")

#: A unix socket's path on Linux has at most 107 bytes; the longest name in the folder has 16.
SOCKET_FOLDER_MAX = 90


class EmbeddedError(SaidError, UserError):
    """An embedded server could not be started. One sentence for people."""


class FolderUnusable(EmbeddedError):
    """The data directory cannot be used. `why`: the reason without the advice for `healer up`, for programs
    that choose their folder in another way."""

    def __init__(self, data_dir: Path, why: Said) -> None:
        super().__init__(say("embedded.folder_unusable", folder=str(data_dir), why=why))
        self.why = why


@contextmanager
def usable(data_dir: Path) -> Iterator[None]:
    """Turns OSErrors about files into FolderUnusable."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            raise
        raise FolderUnusable(
            data_dir, say("embedded.cannot_used", filename=error.filename, why=error.strerror)
        ) from None


#: PostgreSQL's messages for a full disk: the kernel's, or a hint.
_FULL = (os.strerror(errno.ENOSPC), "Check free disk space")


def refused(data_dir: Path, text: Said) -> EmbeddedError:
    """The error for a failed server's message; FolderUnusable if the disk is full."""
    if any(words in text for words in _FULL):
        return FolderUnusable(data_dir, say("embedded.has_no_space_left"))
    return EmbeddedError(text)


@dataclass(frozen=True)
class ServerUser:
    """`drop`: whether processes must be started as another user than the current one. `shared`: the group
    of those who may connect to what this user serves. `is_final`: it never takes another user's rights."""

    uid: int
    gid: int
    name: str
    drop: bool
    groups: tuple[int, ...] = ()
    home: str = "/"
    shared: int | None = None
    is_final: bool = False

    def popen(self) -> dict[str, Any]:
        """Arguments for subprocess that start a program as this user."""
        if not self.drop:
            return {}
        return {"user": self.uid, "group": self.gid, "extra_groups": list(self.groups)}

    def folder(self, path: Path) -> Path:
        """Makes a private folder (0700) that belongs to this user, with all that is in it: an earlier
        version may have run as another."""
        path.mkdir(mode=0o700, exist_ok=True)
        if self.drop and path.lstat().st_uid != self.uid:
            for folder, folders, files in os.walk(path):
                for name in (*folders, *files):
                    os.chown(Path(folder, name), self.uid, self.gid, follow_symlinks=False)
        self.chown(path)
        path.chmod(0o700)
        return path

    def meeting_folder(self, path: Path) -> Path:
        """The same, and the group `shared` may enter it and connect to sockets in it."""
        self.folder(path)
        if self.drop and self.shared is not None:
            os.chown(path, self.uid, self.shared)
            path.chmod(0o2750)
        return path

    def chown(self, path: Path) -> None:
        if self.drop:
            os.chown(path, self.uid, self.gid)

    def runs(self, program: Path) -> bool:
        """Whether this user can run `program`."""
        try:
            done = subprocess.run(
                [program, "--version"], capture_output=True, cwd="/", timeout=20, check=False, **self.popen()
            )
        except OSError:
            return False
        return done.returncode == 0

    def can_enter(self, folder: Path) -> bool:
        """Whether this user can reach `folder`, by the mode bits of it and all folders above."""
        if not self.drop:
            return True
        folder = folder.resolve()
        return all(self.may_pass(step) for step in (folder, *folder.parents))

    def may_pass(self, folder: Path) -> bool:
        status = folder.stat()
        if status.st_uid == self.uid:
            return bool(status.st_mode & stat.S_IXUSR)
        if status.st_gid in {self.gid, *self.groups}:
            return bool(status.st_mode & stat.S_IXGRP)
        return bool(status.st_mode & stat.S_IXOTH)


@dataclass(frozen=True)
class Users:
    """The users of the parts, the worker, and the embedded servers."""

    service: ServerUser
    worker: ServerUser
    servers: ServerUser


def system_users() -> Users:
    """The users of this installation. Raises EmbeddedError if root has none to start parts as."""
    if os.geteuid() != 0:
        me = ServerUser(os.geteuid(), os.getegid(), name_of(os.geteuid()), drop=False)
        return Users(me, me, me)
    if missing := missing_users():
        raise EmbeddedError(
            say("embedded.does_run_root_its", command=" && ".join(" ".join(command) for command in missing))
        )
    uids = {name: pwd.getpwnam(name).pw_uid for name in (SERVICE, WORKER, SERVERS)}
    if len({0, *uids.values()}) <= len(uids):
        listed = ", ".join(f"{name} {uid}" for name, uid in uids.items())
        raise EmbeddedError(say("embedded.s_users_need_user", listed=listed))
    shared = pwd.getpwnam(SERVICE).pw_gid
    return Users(
        service=_entry(SERVICE, shared, is_final=True),
        worker=_entry(WORKER, shared),  # the site's commands may ask sudo
        servers=_entry(SERVERS, shared, is_final=True),
    )


def missing_users() -> list[list[str]]:
    """The commands that make the system users which this machine lacks."""
    names = {entry.pw_name for entry in pwd.getpwall()}
    make = [
        "useradd", "--system", "--user-group", "--home-dir", "/nonexistent", "--shell", "/usr/sbin/nologin",
    ]  # fmt: skip
    return [[*make, name] for name in (SERVICE, WORKER, SERVERS) if name not in names]


def make_users() -> list[str]:
    """Makes the system users that are missing, and returns their names. Raises EmbeddedError."""
    commands = missing_users()
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except OSError as error:
            raise EmbeddedError(
                say("embedded.user_cannot_made_useradd", command=command[-1], why=error.strerror)
            ) from None
        if done.returncode not in {0, _USER_EXISTS}:
            raise EmbeddedError(
                say("embedded.user_cannot_made", command=command[-1], why=done.stderr.strip())
            )
    return [command[-1] for command in commands]


def _entry(name: str, shared: int, *, is_final: bool = False) -> ServerUser:
    entry = pwd.getpwnam(name)
    groups = {*os.getgrouplist(name, entry.pw_gid)} - {entry.pw_gid, 0}
    if name != SERVERS:
        groups.add(shared)
    return ServerUser(
        entry.pw_uid, entry.pw_gid, name, drop=True, groups=tuple(sorted(groups)), home=entry.pw_dir,
        shared=shared, is_final=is_final,
    )  # fmt: skip


def server_user() -> ServerUser:
    """The user for the embedded servers. Raises EmbeddedError if there is none."""
    return system_users().servers


def name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        raise EmbeddedError(say("embedded.user_id_has_no", uid=uid)) from None


def make_data_dir(data_dir: Path) -> Path:
    """Makes the data directory if missing, with mode 0711: servers may pass through, but not list it."""
    try:
        data_dir.mkdir(mode=0o711, parents=True)
        data_dir.chmod(0o711)
    except FileExistsError:
        if not data_dir.is_dir():
            raise FolderUnusable(data_dir, say("embedded.file")) from None
    except OSError as error:
        raise FolderUnusable(data_dir, say("embedded.cannot_made", why=error.strerror)) from None
    return data_dir.resolve()


def server_home(data_dir: Path, user: ServerUser, *, state: Path = ROOT_STATE) -> Path:
    """The location of the servers' files: the data directory, or a folder of root's that they can enter.

    The choice is stored in `servers-at` in the data directory, so that a later change of permissions does not
    hide the database.
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
        raise EmbeddedError(say("embedded.user_who_runs_servers", name=user.name, home=str(home)))
    return home


def shared_folder(path: Path) -> Path:
    """Makes a folder that servers may pass through, but not list."""
    if not path.exists():
        path.mkdir(mode=0o711)
        path.chmod(0o711)
    return path


def start_server(
    arguments: Sequence[str | Path], log: Path, environ: Mapping[str, str], options: Mapping[str, Any]
) -> "subprocess.Popen[Any]":
    """Starts a server with output to `log`. `options`: more arguments for subprocess."""
    with log.open("ab") as out:
        return subprocess.Popen(
            arguments, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/", env=environ,
            **{"start_new_session": True, **options},
        )  # fmt: skip


def socket_folder(home: Path, server: str, user: ServerUser) -> Path:
    """A folder for the server's unix socket, for its clients alone; under /tmp if its path is too long."""
    folder = home / server / "run"
    if len(os.fsencode(folder)) <= SOCKET_FOLDER_MAX:
        return user.meeting_folder(folder)
    digest = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    folder = Path("/tmp") / f"healer-{server}-{digest}"  # noqa: S108 - checked below: ours, private, no link
    folder.mkdir(mode=0o700, exist_ok=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid not in {os.geteuid(), user.uid}:
        raise EmbeddedError(say("embedded.owned_by_other_user", folder=str(folder)))
    return user.meeting_folder(folder)
