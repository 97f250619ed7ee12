"""Who sends, from the environment that Slurm, torchrun and the site give a process."""

from __future__ import annotations

import os
import re
from typing import Mapping

_JOB = re.compile(r"[0-9A-Za-z_.+\[\]-]{1,64}")


class Settings:
    """`url` empty: nothing is sent. `gpu` as nvidia-smi counts on that node; None where it is not known."""

    def __init__(self, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        self.url = env.get("HEALER_URL", "").rstrip("/")
        self.token = env.get("HEALER_TOKEN", "").strip()
        self.token_file = env.get("HEALER_TOKEN_FILE", "")
        self.ca_file = env.get("HEALER_CA_FILE", "")
        self.munge_socket = env.get("HEALER_MUNGE_SOCKET", "")
        self.cluster = env.get("HEALER_CLUSTER", "")
        self.job = env.get("SLURM_JOB_ID") or env.get("SLURM_JOBID") or ""
        self.restart = _number(env, "SLURM_RESTART_COUNT") or 0
        self.rank = _first(env, "RANK", "SLURM_PROCID") or 0
        self.local_rank = _first(env, "LOCAL_RANK", "SLURM_LOCALID") or 0
        self.node = env.get("HEALER_NODE") or env.get("SLURMD_NODENAME") or ""
        self.gpu = gpu_of(env, self.local_rank)

    def wrong(self) -> str | None:
        """Why nothing can be sent, in one sentence; None when all is there."""
        if not re.match(r"https?://[^/]", self.url):
            return "HEALER_URL: %.100r is no http address" % self.url
        if not _JOB.fullmatch(self.job):
            return "there is no SLURM_JOB_ID, so healer would not know whose steps these are"
        return None


def gpu_of(env: Mapping[str, str], local_rank: int) -> int | None:
    """The GPU of this rank. CUDA_VISIBLE_DEVICES may count anew within a job; Slurm's lists do not."""
    told = env.get("SLURM_STEP_GPUS") or env.get("SLURM_JOB_GPUS") or ""
    gpus = [int(one) for one in told.split(",") if one.strip().isdigit()]
    if len(gpus) == 1:
        return gpus[0]
    return gpus[local_rank] if 0 <= local_rank < len(gpus) else None


def _first(env: Mapping[str, str], *names: str) -> int | None:
    for name in names:
        number = _number(env, name)
        if number is not None:
            return number
    return None


def _number(env: Mapping[str, str], name: str) -> int | None:
    text = env.get(name, "").strip()
    return int(text) if text.isdigit() and len(text) < 10 else None
