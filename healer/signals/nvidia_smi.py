"""`POST /signals/nvidia-smi`: the XML of `nvidia-smi -q -x`, as hooks and node agents send it.

Paths below <gpu> are aliases of the catalogue (`nvidia-smi:temperature/gpu_temp`). The index of a GPU is its
place in the output, which is the order of PCI addresses, as long as every GPU answers.
"""

import math
from dataclasses import dataclass, field
from datetime import datetime
from xml.parsers import expat

import numpy as np

from healer.model import Catalogue, Column, Part, Scope, Signal
from healer.model.samples import Report
from healer.signals.gpu_names import GpuNames
from healer.signals.kernel_log import normal_pci
from healer.signals.measured import Measured
from healer.signals.names import Numbers
from healer.signals.values import clean, number
from healer.signals.wire import BadBody, Known, Rejected, wrong_node

#: Real output is about 12 kB per GPU.
XML_LIMIT_BYTES = 8 * 2**20
_DEPTH_MAX, _GPUS_MAX, _TEXT_MAX = 16, 64, 4096
_PREFIX = "nvidia-smi:"
#: Words of values that a GPU prints which does not answer any more.
_LOST = ("gpu is lost", "err!", "unknown error", "unable to determine the device handle")
#: A GPU that answers has at least these; nvidia-smi prints them for every model.
_ALWAYS = ("uuid", "pci/pci_bus_id")


@dataclass(slots=True)
class _Gpu:
    """One <gpu>: its values by path; the first counts where a path stands twice (processes, ports)."""

    address: str
    values: dict[str, str] = field(default_factory=dict)

    @property
    def lost(self) -> bool:
        return any(
            self.values.get(path, "").strip("[] ").lower().startswith(_LOST)
            for path in (*_ALWAYS, "product_name", "temperature/gpu_temp", "performance_state")
        )


class NvidiaSmi:
    """Output -> reports, by the aliases of one catalogue."""

    def __init__(self, catalogue: Catalogue, numbers: Numbers, gpus: GpuNames, cluster: str) -> None:
        self._numbers, self._gpus, self._cluster = numbers, gpus, cluster
        self._count = catalogue.signals.get("gpu_count")
        self._paths: list[tuple[str, Signal, float]] = []
        for signal in catalogue.signals.values():
            if signal.scope is Scope.gpu:
                for alias in signal.aliases:
                    if alias.name.startswith(_PREFIX):
                        self._paths.append((alias.name.removeprefix(_PREFIX), signal, alias.scale))

    def take(self, raw: bytes, known: Known, now: datetime, *, node: str) -> Measured:
        """Raises BadBody for what is not nvidia-smi's XML. Words that say nothing are no samples."""
        gpus = _parse(raw)
        out = Measured()
        if wrong := wrong_node(self._cluster, node, known):
            out.rejected = (Rejected(0, wrong),)
            return out
        where = (self._cluster, node)
        columns: list[Column] = []
        values: list[float] = []
        answering = 0
        for place, gpu in enumerate(gpus):
            pci = normal_pci(gpu.values.get("pci/pci_bus_id", "")) or normal_pci(gpu.address)
            if gpu.lost:
                continue  # its values are unknown, and so is its index from now on
            answering += 1
            # A driver that still lists a lost GPU may have put it anywhere: what was learned before wins.
            index = self._gpus.index(where, None, pci) if answering <= place else place
            if index is None:
                index = place
            self._gpus.learn(where, index, gpu.values.get("uuid"), pci)
            for signal, value in self._values(gpu):
                columns.append(Column(signal.name, Part(gpu=index)))
                values.append(value)
        if self._count is not None:
            columns.append(Column(self._count.name))
            values.append(float(answering))
        self._store(where, now, columns, values, out)
        out.inventory = self._gpus.inventory([where], now)
        return out

    def _store(
        self,
        where: tuple[str, str],
        now: datetime,
        columns: list[Column],
        values: list[float],
        out: Measured,
    ) -> None:
        ids, told = np.array(self._numbers.of(columns), np.int32), np.array(values)
        kept = (ids >= 0) & ~np.isnan(clean(told))
        if kept.any():
            out.samples = int(kept.sum())
            out.reports.append(Report(*where, now, now, ids[kept], told[kept]))

    def _values(self, gpu: _Gpu) -> list[tuple[Signal, float]]:
        """What this GPU tells, each signal once: the first of its paths that says something."""
        found: dict[str, tuple[Signal, float]] = {}
        for path, signal, scale in self._paths:
            if signal.name in found:
                continue
            if path.endswith("/"):
                value = _mask(path, signal, gpu)
            elif path in gpu.values:
                value = number(signal, gpu.values[path]) * scale
            else:
                continue
            if value is not None and not math.isnan(value):
                found[signal.name] = signal, value
        return list(found.values())


def _mask(folder: str, signal: Signal, gpu: _Gpu) -> float | None:
    """The bits whose word is Active, of a folder with one element for each; None when it has none."""
    told = [(path, text) for path, text in gpu.values.items() if path.startswith(folder)]
    mask = 0
    for path, text in told:
        if text.strip().lower() == "active":
            tail = path.removeprefix(folder)
            # hw_slowdown is the end of `clocks_event_reason_hw_slowdown` alone, not of hw_thermal_slowdown.
            mask |= next((bit for name, bit in signal.bits.items() if tail.endswith(f"_reason_{name}")), 0)
    known = any(text.strip().lower() in {"active", "not active"} for _, text in told)
    return float(mask) if known else None


def _parse(raw: bytes) -> list[_Gpu]:
    """The GPUs, in order. No entity is ever expanded and no file read: a document with its own is refused."""
    if len(raw) > XML_LIMIT_BYTES:
        raise BadBody(f"the body is {len(raw)} bytes, at most {XML_LIMIT_BYTES} are taken")
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.EntityDeclHandler = reader.entity
    parser.ExternalEntityRefHandler = lambda *_: False
    try:
        parser.Parse(raw, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise BadBody(f"the body is not the XML of `nvidia-smi -q -x`: {error}") from None
    if not reader.is_log:
        raise BadBody("the body is not the XML of `nvidia-smi -q -x`: no <nvidia_smi_log>")
    return reader.gpus


class _Reader:
    def __init__(self) -> None:
        self.gpus: list[_Gpu] = []
        self.is_log = False
        self._path: list[str] = []
        self._words: list[str] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.is_log |= not self._path and tag == "nvidia_smi_log"
        if len(self._path) >= _DEPTH_MAX:
            raise ValueError("elements too deep in each other")
        if len(self._path) == 1 and tag == "gpu":
            if len(self.gpus) >= _GPUS_MAX:
                raise ValueError(f"more than {_GPUS_MAX} GPUs")
            self.gpus.append(_Gpu(attributes.get("id", "")))
        self._path.append(tag)
        self._words = []

    def text(self, words: str) -> None:
        if sum(map(len, self._words)) < _TEXT_MAX:
            self._words.append(words)

    def end(self, _: str) -> None:
        if len(self._path) > 2 and self._path[1] == "gpu" and (text := "".join(self._words).strip()):
            self.gpus[-1].values.setdefault("/".join(self._path[2:]), text[:_TEXT_MAX])
        self._path.pop()
        self._words = []

    def entity(self, *_: object) -> None:
        raise ValueError("it defines an entity")
