"""All wire forms of samples to reports, with what one process has learnt about series so far."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from healer.model import Catalogue
from healer.ports.measurements import ColumnBook
from healer.signals.columnar import Columnar
from healer.signals.exposition import Exposition
from healer.signals.hardware_names import Parts, Ports, Shown, unknown_shape
from healer.signals.inventory import GpuNames, Where
from healer.signals.nvidia_smi import NvidiaSmi
from healer.signals.otlp_metrics import Otlp
from healer.signals.promql import Line, QueryResults
from healer.signals.remote_write import RemoteWrite
from healer.signals.series import Measured, Names, Numbers, Placer
from healer.signals.wire import HasNode


class Translator:
    """One per process; not thread-safe. Its memory is bounded. Replaced when the catalogue changes.

    Every method raises `wire.BadBody` if nothing of the body can be read; other errors of the book or of
    `has_node` pass through. `has_node` is called for each node before anything is learnt or numbered for it.
    """

    def __init__(
        self, catalogue: Catalogue, book: ColumnBook, cluster: str, shown: Shown = unknown_shape
    ) -> None:
        """`shown`: the number of GPUs that Slurm shows for a node; others are not accepted."""
        self.catalogue, self._cluster = catalogue, cluster
        names, numbers = Names(catalogue), Numbers(book)
        gpus = self._gpus = GpuNames()
        ports, parts = Ports(), Parts(shown)
        placer = self._placer = Placer(names, numbers, gpus, ports, parts, cluster)
        self._placed = 0
        self._columnar = Columnar(names, numbers, gpus, ports, parts, cluster)
        self._exposition = Exposition(placer, cluster)
        self._remote_write = RemoteWrite(placer)
        self._queried = QueryResults(placer)
        self._otlp = Otlp(placer)
        self._nvidia_smi = NvidiaSmi(catalogue, numbers, gpus, parts, cluster)

    def learn_gpus(self, node: str, gpus: Iterable[Mapping[str, Any]]) -> None:
        """The GPUs listed in a heartbeat of the node: series that name a GPU only by its UUID or address are
        placed by it."""
        self._gpus.learn_listed((self._cluster, node), gpus)

    def columnar(self, raw: bytes, has_node: HasNode, now: datetime) -> Measured:
        """`POST /signals/metrics`."""
        return self._counted(self._columnar.take(raw, has_node, now))

    def exposition(self, raw: bytes, has_node: HasNode, now: datetime, *, node: str | None) -> Measured:
        """`POST /signals/openmetrics`; without `node` the labels of each series name it."""
        return self._counted(self._exposition.take(raw, has_node, now, node=node))

    def remote_write(self, raw: bytes, has_node: HasNode, now: datetime, *, packed: bool = True) -> Measured:
        """`POST /signals/prometheus/write`: protobuf, 1.0; `packed`: in snappy."""
        return self._counted(self._remote_write.take(raw, has_node, now, packed=packed))

    def queried(self, raw: bytes, has_node: HasNode, now: datetime, *, signal: str = "") -> Measured:
        """An answer of a Prometheus-compatible server; with `signal` all its series are of that signal."""
        return self._counted(self._queried.take(raw, has_node, now, signal=signal))

    def charted(self, raw: bytes, has_node: HasNode) -> dict[tuple[Where, int], Line]:
        """The same as points of charts, of any age, by node and column."""
        return self._queried.lines(raw, has_node)

    def otlp(self, raw: bytes, has_node: HasNode, now: datetime, *, json: bool) -> Measured:
        """`POST /signals/otlp/v1/metrics`: in protobuf, or in `json`."""
        return self._counted(self._otlp.take(raw, has_node, now, json=json))

    def nvidia_smi(self, raw: bytes, has_node: HasNode, now: datetime, *, node: str) -> Measured:
        """`POST /signals/nvidia-smi`: the XML of `nvidia-smi -q -x`."""
        return self._counted(self._nvidia_smi.take(raw, has_node, now, node=node))

    def _counted(self, measured: Measured) -> Measured:
        measured.cluster = self._cluster
        measured.placed, self._placed = self._placer.placed - self._placed, self._placer.placed
        return measured
