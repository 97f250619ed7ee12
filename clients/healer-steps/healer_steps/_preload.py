"""Imported by the process that workers fork from (`_forked.py`): what takes their scripts long to import.

No thread may start here, nor CUDA: a child of a fork could not use it.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
from typing import Iterator

from healer_steps._slurm import say

#: Slurm signals all processes of a step, and a worker may have a use for it: what it forks from goes on, as
#: its end would be that of its workers. Here are the handlers that each of them gets back.
_ignored = {
    number: signal.signal(number, signal.SIG_IGN)
    for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
}


def _restore() -> None:
    while _ignored:  # once: what a worker forks has the worker's handlers
        signal.signal(*_ignored.popitem())


os.register_at_fork(after_in_child=_restore)
#: torch then asks NVML whether there are GPUs, and does not start CUDA for it.
NVML = "PYTORCH_NVML_BASED_CUDA_CHECK"


@contextlib.contextmanager
def without_cuda() -> Iterator[None]:
    given = os.environ.get(NVML)
    os.environ[NVML] = given or "1"
    try:
        yield
    finally:
        if given is None:
            del os.environ[NVML]


def load(name: str) -> None:
    """What fails here fails in the script, where it is seen."""
    try:
        module = importlib.import_module(name)
        if name == "torch":
            # The first optimizer imports Dynamo, which takes longer than torch itself.
            module.optim.SGD([module.zeros(1, requires_grad=True)], lr=0.1)
    except Exception as error:
        say("%s is not imported ahead of the workers: %s: %s" % (name, type(error).__name__, error))


with without_cuda():
    for one in ("torch", *os.environ.get("HEALER_PRELOAD", "").split(",")):
        if one.strip():
            load(one.strip())
