"""The token of this job: given by the site, or got by the job's own munge credential.

The ranks of one node share what was got, in a folder of this user alone, so that healer is asked once a node.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import time
from contextlib import contextmanager, suppress
from typing import Any, Callable, Dict, Iterator, Tuple

from healer_steps._environ import Settings

_FOLDERS = ("/usr/bin", "/usr/local/bin", "/opt/munge/bin")
_MUNGE_S = 5.0
#: A token with less than this left is renewed (healer gives them for a day).
_RENEW_S = 6 * 3600.0
#: How long a rank waits for another one of its node that is getting the token.
_WAIT_S = 20.0

_TOKEN = re.compile(r"[!-~]+")

#: (path, body, token) -> status, answer.
Post = Callable[[str, bytes, str], Tuple[int, Dict[str, Any]]]


class NoToken(Exception):
    """There is none now. `soon`: that is usual for a job's first seconds, and no reason to complain."""

    def __init__(self, text: str, soon: bool = False) -> None:
        super().__init__(text)
        self.soon = soon


class Token:
    """`value()` each time something is sent; `refused()` when healer answered 401."""

    def __init__(self, settings: Settings, post: Post, folder: str | None = None) -> None:
        self._settings = settings
        self._post = post
        # Not tempfile: its lock, held by this thread while the program forks, would stay held in the child.
        place = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - the folder is this user's alone, or not used
        self._folder = folder or os.path.join(place, "healer-steps-%d" % os.getuid())
        self._held = ""
        self._until = 0.0

    def value(self) -> str:
        """Raises NoToken, OSError."""
        given = self._given()
        if given:
            return given
        if not self._held or self._until - time.time() < _RENEW_S:
            self._get()
        return self._held

    def refused(self) -> None:
        """The token that `value` gave is no good: another one is got, where that is ours to do."""
        if not self._given():
            self._forget()

    def _given(self) -> str:
        if self._settings.token:
            return _checked(self._settings.token, "HEALER_TOKEN")
        if not self._settings.token_file:
            return ""
        with open(self._settings.token_file, errors="replace") as file:  # read again: a site may renew it
            return _checked(file.read(1000).strip(), "HEALER_TOKEN_FILE")

    # --- by munge ---

    def _get(self) -> None:
        with self._shared() as path:
            kept = _read(path)
            if kept is None or kept["until"] - time.time() < _RENEW_S:
                kept = self._enroll()
                _write(path, kept)
            self._held, self._until = kept["token"], kept["until"]

    def _forget(self) -> None:
        with self._shared() as path:
            kept = _read(path)
            if path and kept is not None and kept["token"] == self._held:
                os.unlink(path)
            self._held = ""

    def _enroll(self) -> dict[str, Any]:
        job = self._settings.job
        claim = {"for": "healer enroll job", "job": job, "nonce": os.urandom(16).hex()}
        body = {"credential": credential(json.dumps(claim), self._settings.munge_socket)}
        if self._settings.cluster:
            body["cluster"] = self._settings.cluster
        status, answer = self._post("/api/v1/enroll", json.dumps(body).encode(), "")
        if status != 201:
            why = "healer gave the job %s no token (%d): %.300s" % (job, status, answer.get("detail", ""))
            raise NoToken(why, soon=status in (409, 429, 503))
        if not answer.get("token"):
            raise NoToken("%s is not a healer API" % self._settings.url)
        # By this machine's clock, which may differ from healer's: half of the day is left unused anyway.
        return {"token": str(answer["token"]), "until": time.time() + 24 * 3600.0}

    @contextmanager
    def _shared(self) -> Iterator[str]:
        """The path of what the ranks share, held by this rank alone; empty where there is no safe place."""
        about = f"{self._settings.url}\0{self._settings.cluster}\0{self._settings.job}"
        name = hashlib.sha256(about.encode()).hexdigest()[:24]
        if not _own_folder(self._folder):
            yield ""
            return
        path = os.path.join(self._folder, name)
        lock = os.open(path + ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            _lock(lock)
            yield path
        finally:
            _unlock(lock)


def _checked(token: str, where: str) -> str:
    """What http.client would say of a wrong one holds the token."""
    if token and not _TOKEN.fullmatch(token):
        raise NoToken(where + " holds spaces or characters that no token has")
    return token


def credential(payload: str, socket: str = "") -> str:
    """What `munge` prints for this payload. Raises NoToken."""
    program = shutil.which("munge", path=os.pathsep.join(_FOLDERS))
    if program is None:
        raise NoToken("there is no HEALER_TOKEN or HEALER_TOKEN_FILE, and no munge to get a token with")
    command = [program] + (["--socket=" + socket] if socket else [])
    try:
        done = subprocess.run(  # noqa: PLW1510 - the status is looked at
            command, input=payload.encode(), capture_output=True, timeout=_MUNGE_S, env={},
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise NoToken("munge did not answer") from None
    if done.returncode:
        raise NoToken(
            "munge gave no credential: {:.300}".format(done.stderr.decode("ascii", "replace").strip())
        )
    return done.stdout.decode("ascii", "replace").strip()


def _own_folder(path: str) -> bool:
    """Makes it; false where it has another owner, or is open to others."""
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        pass
    except OSError:
        return False
    try:
        found = os.lstat(path)
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o077


def _lock(file: int) -> None:
    import fcntl  # not everywhere, and where it is not, importing this has to do all the same

    until = time.monotonic() + _WAIT_S
    while True:
        try:
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                raise NoToken("another rank of this node is getting the token") from None
            time.sleep(0.05)
        except OSError:  # a file system without locks: each rank asks for itself
            return None


def _unlock(file: int) -> None:
    """Closing alone would not do: a child that was forked meanwhile, a loader's worker, holds it too."""
    import fcntl

    with suppress(OSError):
        fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)


def _read(path: str) -> dict[str, Any] | None:
    if not path:
        return None
    try:
        with open(path) as file:
            kept = json.loads(file.read(10_000))
        return {"token": str(kept["token"]), "until": float(kept["until"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _write(path: str, kept: dict[str, Any]) -> None:
    if not path:
        return
    try:
        file = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(file, "w") as out:
            out.write(json.dumps(kept))
        os.replace(path + ".new", path)
    except OSError:
        pass  # the other ranks ask for themselves
