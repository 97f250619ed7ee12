"""Workers that fork from a process which has imported torch already: `--start-method=forkserver`.

torchrun starts a script as a new Python, which imports torch again after each failure and each swap. With
this option its workers are processes of multiprocessing, and this file is the script that they run: it runs
the user's as `python -u` would.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import runpy
import signal
import sys
import threading
import traceback
from multiprocessing import util
from typing import Any, Callable, NoReturn

METHOD = "forkserver"


def use(args: Any) -> bool:
    """Changes torchrun's options so that its workers fork, where they ask for that; whether they do."""
    if args.start_method != METHOD or args.no_python:
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
    _return_at_exit()
    try:
        if kind == "module":
            sys.path[0] = os.getcwd()
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            sys.path[0] = os.path.dirname(os.path.realpath(name))
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        if end.code not in (None, 0):
            raise


def _become_a_process_of_its_own() -> None:
    from healer_steps import _preload

    for number, handler in _preload.IGNORED.items():
        signal.signal(number, handler)
    multiprocessing.set_start_method(None, force=True)  # a script may choose it once
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(write_through=True)  # type: ignore[union-attr]


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


def _return_at_exit() -> None:
    """A script may end with `os._exit(0)`, so that nothing hangs at its end. torch would wait for ever."""
    exit_now, own = os._exit, os.getpid()

    def leave(status: int) -> NoReturn:
        if status == 0 and os.getpid() == own and threading.current_thread() is threading.main_thread():
            raise SystemExit(0)
        exit_now(status)

    os._exit = leave


if __name__ == "__main__":
    run(*sys.argv[1:])
