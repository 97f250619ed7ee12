"""`python -m healer …` forked from a process that has imported it, as `healer up` starts its parts; and the
same for agents of torch and for trainings.

Three of the five CPU-seconds of a start read the same modules and rules each time; the import of torch takes
five, that of Lightning ten. What a process shows of how it was started (`/proc/PID/environ`, what its parts
have loaded) is a matter of tests that start the program itself: `tests/system/crash/test_up.py`,
`tests/system/security`.
"""

import atexit
import ctypes
import functools
import gc
import grp
import importlib
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO, NamedTuple

ROOT = Path(__file__).parents[2]
#: An interpreter reads these when it starts: with others of them there is nothing to fork from.
_OF_THE_INTERPRETER = ("PYTHON", "LD_")
_LONGEST = 1 << 17
_CLONE_NEWUSER = 0x10000000
_NO_STATUS = "the process that forks has ended"


class Program(NamedTuple):
    """`python -m module`, or a script, which is the first of its words, where `module` is empty. `loads` is
    imported before; `environ` is what the process that imports it has more than this one."""

    python: str
    module: str
    loads: tuple[str, ...] = ()
    environ: tuple[tuple[str, str], ...] = ()


HEALER = Program(sys.executable, "healer")


class Forked:
    """What tests use of a `subprocess.Popen`, of a process that another one forked."""

    def __init__(self, answers: socket.socket) -> None:
        self._answers = answers
        self.returncode: int | None = None
        self.pid = self._answer()

    def _answer(self) -> int:
        answer = self._answers.recv(64)
        assert answer, _NO_STATUS
        return int(answer)

    def poll(self) -> int | None:
        """The exit status, below 0 a signal; None while it runs."""
        if self.returncode is None and select.select([self._answers], [], [], 0)[0]:
            self.returncode = self._answer()
            self._answers.close()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None and not select.select([self._answers], [], [], timeout)[0]:
            raise subprocess.TimeoutExpired("healer", timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def popen(
    words: Sequence[str],
    environ: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    given: IO[bytes] | None = None,
) -> "subprocess.Popen[bytes] | Forked":
    """Starts `healer WORDS` in the checkout, in a session of its own."""
    if _of_the_interpreter(environ) != _of_the_interpreter(os.environ):
        return subprocess.Popen(
            [sys.executable, "-m", "healer", *words],
            stdin=given or subprocess.DEVNULL, stdout=output, stderr=errors or output, env=dict(environ),
            cwd=ROOT, start_new_session=True,
        )  # fmt: skip
    return fork(HEALER, words, environ, output, errors, given)


def fork(
    program: Program,
    words: Sequence[str],
    environ: Mapping[str, str],
    output: IO[bytes],
    errors: IO[bytes] | None = None,
    given: IO[bytes] | None = None,
    *,
    folder: Path = ROOT,
    is_root: bool = True,
) -> Forked:
    """Starts it in this folder, in a session of its own. Without `is_root` as `processes.NOT_ROOT` does."""
    answers, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked = json.dumps([list(words), dict(environ), str(folder), is_root]).encode()
    with theirs, open(os.devnull, "rb") as nothing:
        streams = (given or nothing, output, errors or output)
        socket.send_fds(_forker(program), [asked], [theirs.fileno(), *(one.fileno() for one in streams)])
    return Forked(answers)


def run(
    words: Sequence[str],
    environ: Mapping[str, str],
    *,
    timeout: float = 60,
    given: str = "",
    program: Program = HEALER,
    folder: Path = ROOT,
) -> "subprocess.CompletedProcess[str]":
    """`healer WORDS`, or another program, with `given` as its input, and what it printed. Raises
    subprocess.TimeoutExpired, and leaves nothing running."""
    with ExitStack() as stack:
        output, errors, read = (stack.enter_context(tempfile.TemporaryFile()) for _ in range(3))
        read.write(given.encode())
        read.seek(0)
        if program is HEALER:
            process = popen(words, environ, output, errors, read)
        else:
            process = fork(program, words, environ, output, errors, read, folder=folder)
        try:
            status = process.wait(timeout)
        finally:
            process.kill()
        said = []
        for file in (output, errors):
            file.seek(0)
            said.append(file.read().decode().replace("\r\n", "\n"))
    return subprocess.CompletedProcess(["healer", *words], status, *said)


def _of_the_interpreter(environ: Mapping[str, str]) -> tuple[dict[str, str], bool]:
    """Its settings, and whether its texts are UTF-8, as they are in the C locale too."""
    locales = (environ.get(name) for name in ("LC_ALL", "LC_CTYPE", "LANG"))
    locale = next((locale.upper() for locale in locales if locale), "C")
    settings = {name: text for name, text in environ.items() if name.startswith(_OF_THE_INTERPRETER)}
    return settings, locale in {"C", "POSIX"} or "UTF" in locale


@functools.cache
def _forker(program: Program) -> socket.socket:
    """To the process that forks it, which ends when this one does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * _LONGEST)
    words = [str(theirs.fileno()), program.module, *program.loads]
    with theirs:
        process = subprocess.Popen(
            [program.python, "-m", "tests.support.forked", *words],
            pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, cwd=ROOT,
            env=os.environ | dict(program.environ),
        )  # fmt: skip
    atexit.register(process.wait)
    atexit.register(ours.close)  # before it waits
    return ours


# --- in the process that forks --------------------------------------------------------------------------


def _load(module: str, names: Sequence[str]) -> None:
    gc.disable()
    if module == "healer":
        _load_healer()
    for name in names:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    gc.enable()


def _load_healer() -> None:
    """Imports commands and parts, without what acts, and reads the shipped rules."""
    from setproctitle import setproctitle

    setproctitle("healer of tests")  # in a child, with another environment, it finds no room for a title
    from healer import commands
    from healer.bootstrap.tree_parts import preload
    from healer.settings import load

    preload(load())
    for module in pkgutil.iter_modules(commands.__path__, "healer.commands."):
        importlib.import_module(module.name)


def _serve(asked: socket.socket) -> list[str]:
    """Forks until no one is left to ask. Returns in each child, with its words."""
    woken, wake = socket.socketpair()
    for end in (woken, wake):
        end.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(wake.fileno())
    running: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([asked, woken], [], [])
        if woken in ready:
            woken.recv(1024)
            _report(running)
        if asked not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(asked, _LONGEST, 4)
        if not message:
            sys.exit()
        answers, *streams = descriptors
        child = os.fork()
        if not child:
            signal.set_wakeup_fd(-1)
            ours = [end.detach() for end in (asked, woken, wake)]
            words, environ, folder, is_root = json.loads(message)
            _become(streams, [*ours, answers, *running.values()], environ)
            os.chdir(folder)
            if not is_root and os.geteuid() == 0:
                _leave_root()
            return words
        for descriptor in streams:
            os.close(descriptor)
        running[child] = answers
        os.write(answers, str(child).encode())


def _report(running: dict[int, int]) -> None:
    """The exit status of each child that has ended, to who asked for it."""
    for child in [*running]:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            answers = running.pop(child)
            with suppress(BrokenPipeError):  # who asked has gone
                os.write(answers, str(os.waitstatus_to_exitcode(status)).encode())
            os.close(answers)


def _become(streams: Sequence[int], closed: Sequence[int], environ: Mapping[str, str]) -> None:
    """What a new process has: a session, signals, streams and an environment of its own."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in (*streams, *closed):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()


def _leave_root() -> None:
    """Its user id in a namespace of its own is not 0, and outside it has none of root's rights."""
    os.setgroups([grp.getgrnam("healer").gr_gid])
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", "1000 0 1"), ("gid_map", "1000 0 1")):
        Path("/proc/self", name).write_text(text)


if __name__ == "__main__":
    _descriptor, _module, *_loads = sys.argv[1:]
    _load(_module, _loads)
    _words = _serve(socket.socket(fileno=int(_descriptor)))
    if _module:
        sys.argv[1:] = _words
        sys.orig_argv[1:] = ["-m", _module, *_words]
        runpy.run_module(_module, run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = _words
        sys.orig_argv[1:] = _words
        sys.path[0] = str(Path(_words[0]).parent)
        runpy.run_path(_words[0], run_name="__main__")
