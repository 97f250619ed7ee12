"""Dumps of NCCL's flight recorder as PyTorch writes them, for ranks that a test makes up."""

import json
import pickle
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from healer.model import GpuActivity, JobOnNode, JobStacks, RecorderFile, Stack


def entry(
    seq: int, op: str = "nccl:all_reduce", *, group: str = "0", state: str = "started", **fields: Any
) -> dict[str, Any]:
    """One collective. `created_ns` since 1970."""
    return {
        "collective_seq_id": seq, "p2p_seq_id": 0, "is_p2p": False, "pg_id": int(group),
        "process_group": (group, "default_pg" if group == "0" else "tp"), "profiling_name": op,
        "input_sizes": [[8, 3]], "state": state, "retired": state == "completed",
        "time_created_ns": fields.pop("created_ns", 1_000_000_000 + seq),
        "frames": [{"name": "step", "filename": "train.py", "line": 9}],
    } | fields  # fmt: skip


def document(entries: Sequence[Mapping[str, Any]], members: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    config = {name: {"name": name, "desc": "", "ranks": str(list(ranks))} for name, ranks in members.items()}
    return {"version": "2.10", "entries": list(entries), "pg_config": config, "pg_status": {}}


def dump(
    entries: Sequence[Mapping[str, Any]], members: Mapping[str, Sequence[int]], *, as_json: bool = False
) -> bytes:
    content = document(entries, members)
    return json.dumps(content).encode() if as_json else pickle.dumps(content, protocol=2)


def up_to(last: int, *, members: int, waits: bool, at: datetime, stalled_s: float = 600) -> bytes:
    """A rank of one group that has completed all up to `last`; `waits`: it is stuck in the next one."""
    called_ns = int((at.timestamp() - stalled_s) * 1e9)
    entries = [entry(seq, state="completed", created_ns=called_ns - 1) for seq in range(1, last + 1)]
    if waits:
        entries.append(entry(last + 1, created_ns=called_ns))
    return dump(entries, {"0": range(members)})


QUIET = GpuActivity(pci="00000000:10:00.0", util_percent=100, power_w=180, power_limit_w=700)
IDLE = GpuActivity(pci="00000000:10:00.0", util_percent=0, power_w=70, power_limit_w=700)
BUSY = GpuActivity(pci="00000000:10:00.0", util_percent=99, power_w=650, power_limit_w=700)
STACKS = JobStacks(
    processes=9,
    stacks=(Stack(pid=4711, threads={"MainThread": ("wait (work.py:12)", "step (train.py:9)")}),),
)


def on_node(
    dumps: Mapping[int, bytes | None], at: datetime, *, gpu: GpuActivity = QUIET, text: str = ""
) -> JobOnNode:
    files = tuple(RecorderFile(rank=rank, at=at, data=data) for rank, data in dumps.items())
    return JobOnNode(processes=9, gpus=(gpu,) * 8, dumps=files, text=text)
