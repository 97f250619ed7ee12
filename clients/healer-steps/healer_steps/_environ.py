"""Who sends, from the environment that Slurm, torchrun and the site give a process."""

from __future__ import annotations

import os
import re
import sys
from typing import Mapping, Tuple

_JOB = re.compile(r"[0-9A-Za-z_.+\[\]-]{1,64}")


class Settings:
    """`url` empty: nothing is sent. `rank` and `local_rank` are None where they are uncertain; `gpu`
    as nvidia-smi counts on that node, None where it is not known."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        self.url = env.get("HEALER_URL", "").strip().rstrip("/")
        self.token = env.get("HEALER_TOKEN", "").strip()
        self.token_file = env.get("HEALER_TOKEN_FILE", "")
        self.ca_file = env.get("HEALER_CA_FILE", "")
        self.munge_socket = env.get("HEALER_MUNGE_SOCKET", "")
        self.cluster = env.get("HEALER_CLUSTER", "")
        self.job = env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID") or ""
        self.restart = _number(env, "SLURM_RESTART_COUNT") or 0
        self.node = env.get("HEALER_NODE") or env.get("SLURMD_NODENAME") or ""
        self._env = env
        #: The rank is known for certain: it is not looked up any more.
        self.sure = False
        self._set(*ranks_of(env))

    def placed(self, rank: int, local_rank: int | None) -> None:
        """A trainer knows which rank this process is."""
        self.sure = True
        self._set(rank, local_rank)

    def look(self) -> None:
        """Asks torch.distributed, as soon as this process has set it up. Imports nothing."""
        distributed = getattr(sys.modules.get("torch"), "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            torch_ranks = int(distributed.get_rank()), int(distributed.get_world_size())
            self.placed(*ranks_of(self._env, torch_ranks))  # type: ignore[arg-type]

    def _set(self, rank: int | None, local_rank: int | None) -> None:
        self.rank, self.local_rank = rank, local_rank
        self.gpu = None if rank is None else gpu_of(self._env, local_rank)

    def wrong(self) -> str | None:
        """Why nothing can be sent, in one sentence; None when all is there."""
        if not re.match(r"https?://[^/]", self.url):
            return "HEALER_URL: %.100r is no http address" % self.url
        if not _JOB.fullmatch(self.job):
            return "there is no SLURM_JOB_ID, so healer would not know whose steps these are"
        return None


Ranks = Tuple["int | None", "int | None"]


def ranks_of(env: Mapping[str, str], torch_ranks: tuple[int, int] | None = None) -> Ranks:
    """Rank and local rank, each None where it is uncertain. `torch_ranks`: rank and world size, by torch.

    Slurm's count is right only where each task of a step is one rank. In a batch script SLURM_PROCID is 0 for
    all that it starts, and SLURM_STEP_NUM_TASKS is missing; a task that starts ranks of its own hands its
    number on to them, and the world is larger than the step.
    """
    named, local = _number(env, "RANK"), _number(env, "LOCAL_RANK")
    rank, world = (named, _number(env, "WORLD_SIZE")) if torch_ranks is None else torch_ranks
    task, tasks = _number(env, "SLURM_PROCID"), _number(env, "SLURM_STEP_NUM_TASKS")
    of_slurm = tasks is not None and tasks == _number(env, "SLURM_NTASKS")
    of_slurm = of_slurm and (tasks == world if world is not None else tasks > 1)  # type: ignore[operator]
    if rank is None and of_slurm:
        rank = task
    if rank is None:
        return None, None
    if named is not None and named != rank:  # the environment is the one of who started this process
        return rank, None
    if local is None and of_slurm and task == rank:
        local = _number(env, "SLURM_LOCALID")
    return rank, local


def gpu_of(env: Mapping[str, str], local_rank: int | None) -> int | None:
    """The GPU of this rank. CUDA_VISIBLE_DEVICES may count from 0 within a job; Slurm's lists do not."""
    listed = env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS") or ""
    gpus = [gpu for gpu in map(_whole, listed.split(",")) if gpu is not None]
    if len(gpus) == 1:
        return gpus[0]
    return gpus[local_rank] if local_rank is not None and 0 <= local_rank < len(gpus) else None


def _number(env: Mapping[str, str], name: str) -> int | None:
    return _whole(env.get(name, ""))


def _whole(text: str) -> int | None:
    """Never raises: int() does for some of what is a digit to Unicode, and for thousands of them."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else None
