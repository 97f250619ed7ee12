"""`ports.SiteCommands` on this machine: each command has its own runner process and a record in a file."""

import contextlib
import json
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from healer.adapters.commands import runner
from healer.model import CommandSeen
from healer.ports.node_exec import CommandFailed
from healer.text import say

#: The time-out for starting the runner: less than an effect may take.
START_S = 4.0
#: The end of the command's output that the run's log gets.
OUTPUT_CHARS = 4000
_KEY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,120}")


class Commands:
    """`folder` contains the records; it is created if missing. Safe for threads and processes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, key: str, argv: tuple[str, ...], timeout_s: float) -> None:
        if not os.access(argv[0], os.X_OK) or not Path(argv[0]).is_file():
            raise CommandFailed(say("nodes.command_missing", path=argv[0]))
        with self._writable():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        asked = {"folder": str(self._folder), "key": _checked(key), "argv": argv, "timeout_s": timeout_s}
        words = [sys.executable, "-I", "-S", runner.__file__]
        try:
            done = subprocess.run(
                words,
                input=json.dumps(asked).encode(),
                capture_output=True,
                timeout=START_S,
                check=False,
                env={},
            )
        except subprocess.TimeoutExpired:
            return  # it may have started: `look` will show it
        except OSError as error:
            raise CommandFailed(say("nodes.command_no_process", error=error.strerror)) from error
        if done.returncode and self.look(key).state == "never":
            message = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
            raise CommandFailed(say("nodes.command_runner", error=message[:300]))

    def place(self) -> str:
        """A name that the folder was given once, and keeps."""
        name = self._folder / "place"
        with self._writable():
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not name.exists():
                new = self._folder / f"place.{secrets.token_hex(8)}"
                new.write_text(secrets.token_hex(8), encoding="ascii")
                with contextlib.suppress(FileExistsError):  # another process was first
                    os.link(new, name)
                new.unlink()
            return name.read_text(encoding="ascii")

    @contextlib.contextmanager
    def _writable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = say("nodes.command_unwritable", folder=str(self._folder), error=error.strerror)
            raise CommandFailed(text) from error

    def look(self, key: str) -> CommandSeen:
        record = self._record(key)
        if record is not None and record["state"] == "running" and not self._lives(key):
            record = self._record(key)  # it may have ended in between
            if record is not None and record["state"] == "running":
                return CommandSeen(state="lost")
        if record is None:
            return CommandSeen(state="never")
        output = str(record.get("output", ""))[-OUTPUT_CHARS:]
        return CommandSeen(state=record["state"], code=record.get("code"), output=output)

    def _record(self, key: str) -> dict | None:
        try:
            return json.loads((self._folder / f"{_checked(key)}.json").read_bytes())
        except FileNotFoundError:
            return None

    def _lives(self, key: str) -> bool:
        fd = runner.locked(self._folder / f"{key}.lock")
        if fd is None:
            return True
        os.close(fd)
        return False


def _checked(key: str) -> str:
    if not _KEY.fullmatch(key):
        raise ValueError(f"{key!r} cannot name a command's run")
    return key
