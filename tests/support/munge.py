"""Real munge daemons of a realm of their own: one for each machine that a test needs."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.wait import wait_until

_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"}


class Realm:
    """Machines that share a munge key. Files lie in `folder`, whose path must be short."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.key = folder / "munge.key"
        self.key.touch(0o600)
        self.key.write_bytes(os.urandom(128))
        self._daemons: list[subprocess.Popen[bytes]] = []

    def machine(self, origin: str, *, key: Path | None = None) -> Path:
        """Starts the munged of a machine at that address; its socket."""
        at = self.folder / str(len(self._daemons))
        at.mkdir(mode=0o755)
        socket = at / "s"
        command = [
            "munged", "--foreground", "--force", "--num-threads=2", f"--origin={origin}",
            f"--key-file={key or self.key}", f"--socket={socket}", f"--pid-file={at}/pid",
            f"--log-file={at}/log", f"--seed-file={at}/seed",
        ]  # fmt: skip
        with (at / "said").open("wb") as said:
            self._daemons.append(subprocess.Popen(command, env=_ENV, stdout=said, stderr=said))
        wait_until(socket.exists, 10, what=f"munged at {origin} opened its socket")
        return socket

    def stop(self) -> None:
        for daemon in self._daemons:
            daemon.kill()
            daemon.wait()


@contextmanager
def realm(folder: Path) -> Iterator[Realm]:
    one = Realm(folder)
    try:
        yield one
    finally:
        one.stop()


def credential(socket: Path, payload: str, *options: str, uid: int = 0) -> str:
    """What `munge` prints for this payload, run by this user."""
    done = subprocess.run(
        ["munge", f"--socket={socket}", *options],
        input=payload, text=True, env=_ENV, capture_output=True, check=True, timeout=10, user=uid,
    )  # fmt: skip
    return done.stdout.strip()
