"""The worker's own settings in `healer up`: no other process of its tree has them, in memory or environment.

What a process was started with stays in /proc/PID/environ of all that it forks. So `healer up` starts its
program again without these settings, and keeps them in a file without a name (memfd), which the worker
alone reads.
"""

import json
import os
import sys
from collections.abc import Mapping

from healer.settings import privileged_names

_FILE = "EXECUTOR_SETTINGS_FD"


def withhold() -> None:
    """Replaces this process by the same program without the worker's settings in its environment, if any are
    there."""
    if _FILE in os.environ:
        os.set_inheritable(int(os.environ[_FILE]), False)
        return
    withheld = {name: os.environ[name] for name in privileged_names() & os.environ.keys() if os.environ[name]}
    if not withheld:
        return
    file = os.memfd_create("executor-settings", 0)
    os.write(file, json.dumps(withheld).encode())
    rest = {name: text for name, text in os.environ.items() if name not in withheld}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], rest | {_FILE: str(file)})  # noqa: S606


def environ_of(part: str, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a part, in its own process after the fork; closes the file of `withhold` there."""
    withheld = {name: text for name, text in environ.items() if name in privileged_names()}
    rest = {name: text for name, text in environ.items() if name not in withheld and name != _FILE}
    executes = part.partition("-")[0] == "worker"
    if _FILE in environ:
        file = int(environ[_FILE])
        if executes:
            withheld |= json.loads(os.pread(file, os.fstat(file).st_size, 0))
        os.close(file)
    return rest | withheld if executes else rest
