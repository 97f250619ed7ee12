"""Workers forked from a process that has already imported torch: `--start-method=forkserver`.

torchrun starts a script as a new Python, which imports torch again after each failure and each swap. With
this option its workers are processes of multiprocessing, and this file is the script that they run: it runs
the user's as `python -u` would.
"""

from __future__ import annotations

import atexit
import contextlib
import io
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import threading
import traceback
from multiprocessing import util
from typing import Any, Callable, Iterator, NoReturn

from healer_steps._slurm import say

METHOD = "forkserver"
#: multiprocessing makes a socket in TMPDIR, with so many letters more, of the 107 that Linux allows.
LONGEST_TMPDIR = 107 - len("/pymp-12345678/listener-12345678")


def use(args: Any) -> bool:
    """Changes torchrun's options so that its workers fork, where they ask for that; whether they do."""
    if args.start_method != METHOD or args.no_python:
        return False
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_TMPDIR:
        say("TMPDIR is too long for a forkserver: workers start as new processes")
        return False
    multiprocessing.set_forkserver_preload(["healer_steps._preload"])
    kind = "module" if args.module else "path"
    args.training_script_args = [kind, args.training_script, *args.training_script_args]
    args.training_script, args.module, args.run_path = os.path.abspath(__file__), False, True
    return True


def run(kind: str, name: str, *argv: str) -> None:
    """Returns where the script ends well, as torch waits for that of each worker."""
    sys.argv[:] = [name, *argv]
    _become_a_process_of_its_own()
    _seed()
    _run_at_exit()
    try:
        with _return_at_exit():
            if kind == "module":
                sys.path[0] = os.getcwd()
                runpy.run_module(name, run_name="__main__", alter_sys=True)
            else:
                sys.path[0] = os.path.dirname(os.path.realpath(name))
                runpy.run_path(os.path.abspath(name), run_name="__main__")
    except SystemExit as end:
        # As a status has eight bits, 256 is 0.
        if not (end.code is None or (isinstance(end.code, int) and end.code & 255 == 0)):
            raise
    except KeyboardInterrupt:
        traceback.print_exc()
        raise SystemExit(128 + signal.SIGINT) from None  # to torch it would be a good end


def _become_a_process_of_its_own() -> None:
    os.setsid()  # as torchrun's workers: a script may signal its group
    multiprocessing.set_start_method(None, force=True)  # a script may choose it once
    for name, number in (("stdout", 1), ("stderr", 2)):
        stream, raw = getattr(sys, name), io.FileIO(number, "w", closefd=False)
        unbuffered = io.TextIOWrapper(
            raw,  # type: ignore[arg-type] # as `python -u` does
            encoding=stream.encoding,
            errors=stream.errors,
            write_through=True,
        )
        setattr(sys, name, unbuffered)


def _seed() -> None:
    """Workers of a node would draw the same numbers of NumPy's. Python's own module seeds itself."""
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()


def _run_at_exit() -> None:
    """multiprocessing ends a process without the functions of atexit (python/cpython#83856)."""
    registered: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = []

    def register(function: Callable[..., Any], *args: Any, **more: Any) -> Callable[..., Any]:
        registered.append((function, args, more))
        return function

    def unregister(function: Callable[..., Any]) -> None:
        registered[:] = [one for one in registered if one[0] != function]

    def call() -> None:
        while registered:
            function, args, more = registered.pop()
            try:
                function(*args, **more)
            except Exception:
                traceback.print_exc()

    atexit.register, atexit.unregister = register, unregister
    util.Finalize(None, call, exitpriority=0)


@contextlib.contextmanager
def _return_at_exit() -> Iterator[None]:
    """A script may end with `os._exit(0)`, so that nothing hangs at its end. torch would wait for ever: here
    the script is left by an exception, and the process ends without threads and functions of atexit."""
    exit_now, own = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        if status == 0 and os.getpid() == own and threading.current_thread() is threading.main_thread():
            util.Finalize(None, exit_now, (0,), exitpriority=sys.maxsize)
            raise SystemExit(0)
        exit_now(status)

    os._exit = leave
    try:
        yield
    finally:
        os._exit = exit_now


if __name__ == "__main__":
    run(*sys.argv[1:])
