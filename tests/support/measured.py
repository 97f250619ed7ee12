"""Nodes that measure, for tests of windows and peers: reports by signal name, a few signals."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import numpy as np

from healer.model import (
    Catalogue,
    Column,
    Part,
    Scope,
    Signal,
    SignalKind,
    SlurmJob,
    SlurmNode,
    SlurmSnapshot,
)
from healer.model.telemetry import Report
from healer.sim.stores import MemoryColumns

CLUSTER = "pod1"
START = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def signal(name: str, kind: SignalKind, scope: Scope, **fields: object) -> Signal:
    signal_fields = {"unit": "count", "text": "", "source": "test", **fields}
    return Signal(name=name, kind=kind, scope=scope, **signal_fields)  # type: ignore[arg-type]


def catalogue(*more: Signal) -> Catalogue:
    """A gauge and a counter of each axis, and what Slurm's picture gives."""
    signals = [
        signal("heat_c", SignalKind.gauge, Scope.gpu),
        signal("replay_total", SignalKind.counter, Scope.gpu),
        signal("load", SignalKind.gauge, Scope.node),
        signal("swapped_total", SignalKind.counter, Scope.node),
        signal("speed", SignalKind.gauge, Scope.link),
        signal("crc_total", SignalKind.counter, Scope.link),
        *(
            signal(name, SignalKind.gauge, Scope.node, derived=True)
            for name in (
                "slurm_gpus",
                "slurm_cpus",
                "slurm_allocated",
                "slurm_gpus_allocated",
                "slurm_drained",
            )
        ),
        *more,
    ]
    return Catalogue(signals={one.name: one for one in signals})


class Sender:
    """Writes reports in the numbers of one book."""

    def __init__(self, book: MemoryColumns) -> None:
        self.book = book

    def report(
        self,
        node: str,
        at_s: float,
        values: Mapping[tuple[str, Part], float] | Mapping[str, float],
        *,
        arrived_s: float | None = None,
        cluster: str = CLUSTER,
    ) -> Report:
        """Times are seconds after START."""
        columns = [Column(key) if isinstance(key, str) else Column(*key) for key in values]
        return Report(
            cluster=cluster,
            node=node,
            at=after(at_s),
            arrived_at=after(at_s if arrived_s is None else arrived_s),
            columns=np.array(self.book.ids(columns), np.int32),
            values=np.array(list(values.values()), np.float64),
        )


def shown(*nodes: SlurmNode, jobs: tuple[SlurmJob, ...] = (), at_s: float = 0.0) -> SlurmSnapshot:
    return SlurmSnapshot(
        cluster=CLUSTER,
        taken_at=after(at_s),
        nodes={node.name: node for node in nodes},
        jobs={job.id: job for job in jobs},
    )


def node(
    name: str, *, gpus: int = 8, model: str = "h100", state: str = "IDLE", switch: str = ""
) -> SlurmNode:
    return SlurmNode(name=name, state=tuple(state.split("+")), gpus=gpus, gpu_model=model, switch=switch)


def job(
    name: str, gpus: Mapping[str, tuple[int, ...]] | None, *nodes: str, state: str = "RUNNING"
) -> SlurmJob:
    """`gpus` None: Slurm does not report which."""
    return SlurmJob(id=name, state=state, nodes=nodes or tuple(gpus or ()), gpus=dict(gpus or {}))
