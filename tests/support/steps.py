"""A training job in miniature: step times of all its ranks, and the Slurm that shows it."""

from datetime import UTC, datetime, timedelta

import numpy as np

from healer.model import SlurmJob, SlurmNode, SlurmSnapshot
from healer.model.telemetry import StepBatch

CLUSTER = "pod1"
START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


def node_name(index: int) -> str:
    return f"gpu{index:04}"


def slurm(nodes: int = 4, per: int = 8, job: str = "4711", state: str = "RUNNING") -> SlurmSnapshot:
    names = [node_name(index) for index in range(nodes)]
    return SlurmSnapshot(
        cluster=CLUSTER,
        taken_at=START,
        nodes={name: SlurmNode(name=name, state=("ALLOCATED",), gpus=per) for name in names},
        jobs={
            job: SlurmJob(
                id=job,
                state=state,
                nodes=tuple(names),
                gpus={name: tuple(range(per)) for name in names},
            )
        },
    )


def batch(step: int, compute_s: np.ndarray | None, **more: object) -> StepBatch:
    """One step of all ranks, 8 on a node, 5 s a step. `compute_s` (R,), NaN: that rank is not in it."""
    per = int(more.get("per", 8))  # type: ignore[call-overload]
    n = len(compute_s) if compute_s is not None else int(more.get("ranks", 1))  # type: ignore[call-overload]
    rank = np.arange(n, dtype=np.int32)
    keep = np.isfinite(compute_s) if compute_s is not None else np.ones(n, bool)
    at = more.get("at", START + timedelta(seconds=5 * step))
    assert isinstance(at, datetime)
    none = np.full(n, np.nan)
    whole = more.get("step_s", 5.0)
    columns = {
        "rank": rank,
        "step": np.full(n, step, np.int64),
        "at": np.full(n, at.timestamp()),
        "node": rank // per if more.get("placed", True) else np.full(n, -1, np.int32),
        "gpu": rank % per if more.get("placed", True) else np.full(n, -1, np.int32),
        "stage": np.broadcast_to(np.asarray(more.get("stage", -1), np.int32), n),
        "step_s": np.broadcast_to(np.asarray(whole, float), n),
        "compute_s": none if compute_s is None else compute_s,
        "comm_s": none,
        "data_s": none,
        "work": np.broadcast_to(np.asarray(more.get("work", np.nan), float), n),
        "loss": np.broadcast_to(np.asarray(more.get("loss", np.nan), float), n),
        "grad_norm": np.broadcast_to(np.asarray(more.get("grad_norm", np.nan), float), n),
    }
    return StepBatch(
        cluster=CLUSTER,
        job=str(more.get("job", "4711")),
        restart=int(more.get("restart", 0)),  # type: ignore[call-overload]
        arrived_at=at,
        nodes=tuple(node_name(index) for index in range(-(-n // per))) if more.get("placed", True) else (),
        **{name: values[keep] for name, values in columns.items()},  # type: ignore[arg-type]
    )
