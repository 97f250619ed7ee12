"""Finds and runs Slurm's commands on this machine, and determines their release."""

import contextlib
import os
import pwd
import re
import shutil
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path

from healer.adapters.slurm import parse_json, process
from healer.adapters.slurm import slurm_words as words
from healer.ports.scheduling import SchedulerUnavailable
from healer.text import Said, said_by, say

_PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin:/opt/slurm/bin"
_VERSION = re.compile(r"slurm\S*\s+(\d+)\.(\d+)(\S*)")
_SHAPE = re.compile(r"v0\.0\.\d+")
#: Allowed first words (after options) of these programs for read-only use.
_READ_WORDS: dict[str, tuple[list[str], ...]] = {
    "scontrol": (["show"], ["ping"]),
    "sacctmgr": (["show"],),
    "squeue": ([],),
    "sdiag": ([],),
}


class ReadCommands:
    """Runs commands that read, and no other. `slurm_conf` is passed as SLURM_CONF. Safe for threads.

    `bin_dir`: the folder of all commands, so that no command of another installation is used.
    """

    def __init__(self, slurm_conf: str | None, bin_dir: Path | str | None, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._path = str(bin_dir) if bin_dir else f"{_PATH}:{os.environ.get('PATH', '')}"
        # %s makes Slurm print times as Unix seconds, without a time zone. Where a site shows federations
        # (`fed_display`), jobs of another cluster would seem to hold nodes of the same names.
        self._env = {
            "PATH": f"{bin_dir}:{_PATH}" if bin_dir else _PATH,
            "LC_ALL": "C",
            "SLURM_TIME_FORMAT": "%s",
            "SCONTROL_LOCAL": "1",
            "SQUEUE_LOCAL": "1",
        }
        conf = slurm_conf or os.environ.get("SLURM_CONF")
        if conf:
            self._env["SLURM_CONF"] = conf
        self._found: dict[str, str] = {}
        self._lock = threading.Lock()
        self._version: tuple[str, str | None] | None = None

    def where(self, program: str) -> str | None:
        """The program's path; None if it is not installed."""
        path = self._found.get(program)
        if path is None:
            path = shutil.which(program, path=self._path)
            if path is not None:
                self._found[program] = path
        return path

    def version(self) -> tuple[str, str | None]:
        """Slurm's version and, from 23.02, the newest data_parser that both sides know. Determined once."""
        with self._lock:
            if self._version is None:
                text = self.ask(say("slurm.to_tell_version"), "scontrol", "--version").text
                match = _VERSION.search(text)
                if match is None:
                    why = say("slurm.printed", program="scontrol --version", words=text[:80])
                    raise SchedulerUnavailable(why, sent=False)
                version = f"{match[1]}.{match[2]}{match[3]}"
                new = (int(match[1]), int(match[2])) >= (23, 2)
                self._version = (version, self._newest_shape(version) if new else None)
            return self._version

    def pin(self) -> tuple[str, ...]:
        """The option that pins the data_parser: the default differs between releases (d.1)."""
        shape = self.version()[1]
        return (f"--json={shape}",) if shape else ()

    def ask(self, action: Said, *command: str, patience: int = 1, stdin: bytes = b"") -> process.Output:
        """Like `run`, but a failure is raised as the error in its message."""
        output = self.run(*command, patience=patience, stdin=stdin)
        if output.code:
            raise words.error(words.not_done(action), output.words)
        return output

    def run(self, program: str, *arguments: str, patience: int = 1, stdin: bytes = b"") -> process.Output:
        """Runs one command, without a shell, within `patience` times the time-out."""
        self._check(program, arguments)
        path = self.where(program)
        if path is None:
            raise SchedulerUnavailable(say("slurm.not_installed", program=program), sent=False)
        return process.run((path, *arguments), self._env, self._timeout_s * patience, stdin=stdin)

    def _check(self, program: str, arguments: Sequence[str]) -> None:
        """Raises ValueError for a command that may change Slurm."""
        words = [word for word in arguments if not word.startswith("-")]
        allowed = _READ_WORDS.get(program, ())
        # Without a word scontrol takes commands from its standard input.
        reads = words[:1] in allowed and "--reset" not in arguments
        if not reads and (program, arguments) != ("scontrol", ("--version",)):
            raise ValueError(f"{program} {' '.join(arguments)[:80]} is no command that only reads")

    def _newest_shape(self, version: str) -> str:
        output = self.run("scontrol", "show", "node", "--json=list")
        offered = set(_SHAPE.findall(output.text + output.words))
        for shape in parse_json.DATA_PARSERS:
            if shape in offered:
                return shape
        why = say("slurm.no_json", version=version, offered=", ".join(sorted(offered)))
        raise SchedulerUnavailable(why, sent=False)


class Commands(ReadCommands):
    """Runs any of Slurm's commands: only for the worker."""

    def _check(self, program: str, arguments: Sequence[str]) -> None:
        pass


@contextlib.contextmanager
def parse_errors() -> Iterator[None]:
    """Raises SchedulerUnavailable for an answer that is not understood."""
    try:
        yield
    except parse_json.NotUnderstood as error:
        raise SchedulerUnavailable(said_by(error)) from error


@contextlib.contextmanager
def only_reading() -> Iterator[None]:
    """Marks failures of the reads before a write: nothing was changed (`sent` is False)."""
    try:
        yield
    except SchedulerUnavailable as error:
        error.sent = False
        raise


def own_account() -> str:
    """The name of the user that this process runs as."""
    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())
