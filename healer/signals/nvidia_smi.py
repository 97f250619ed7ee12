"""`POST /signals/nvidia-smi`: the XML of `nvidia-smi -q -x`, as sent by hooks and node agents.

Paths below <gpu> are aliases of the catalogue (`nvidia-smi:temperature/gpu_temp`). The index of a GPU is its
minor number (/dev/nvidiaN, as Slurm counts), or its position if the output lists all GPUs of the node:
`nvidia-smi -q -x -i 3` lists one and still gives the number of attached GPUs.
"""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from xml.parsers import expat

import numpy as np

from healer.model import Catalogue, Column, Part, Scope, Signal
from healer.model.telemetry import Report
from healer.signals.hardware_names import Parts
from healer.signals.inventory import GpuNames, Where
from healer.signals.kernel_log import normal_pci
from healer.signals.rejects import BadBody, Rejected
from healer.signals.series import NO_GPU, Measured, Numbers
from healer.signals.values import blanks_to_nan, number
from healer.signals.wire import HasNode, wrong_node
from healer.text import said_by, say

#: Real output is about 12 kB per GPU.
XML_LIMIT_BYTES = 8 * 2**20
_DEPTH_MAX, _GPUS_MAX, _TEXT_MAX = 16, 64, 4096
#: Limits: characters of an element's name, and different paths per GPU. Real output has names of up to 50 and
#: some 300 paths. The path of each element is joined again, so long names would mean unbounded work.
_TAG_MAX, _PATHS_MAX = 128, 4096
_PREFIX = "nvidia-smi:"
#: Values printed for a GPU that no longer answers; and for any value that could not be read.
_LOST = ("gpu is lost", "unable to determine the device handle")
_UNREAD = ("err!", "unknown error")
#: NVML_ERROR_RESET_REQUIRED, printed in place of readings: the GPU cannot be used until it is reset.
_NEEDS_RESET = "gpu requires reset"
#: Facts about the node (`healer.model.FACTS`): elements of the output, and paths of each GPU.
_NODE_FACTS = {"driver_version": "driver", "cuda_version": "cuda"}
_GPU_FACTS = {
    "product_name": "gpu",
    "vbios_version": "vbios",
    "gsp_firmware_version": "gsp_firmware",
    "inforom_version/img_version": "inforom",
}
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: A GPU that answers has at least these; nvidia-smi prints them for every model.
_ALWAYS = ("uuid", "pci/pci_bus_id")
#: What the driver has to ask a GPU for, and every model has.
_READINGS = ("temperature/gpu_temp", "performance_state")
_ACTION = "gpu_recovery_action"


@dataclass(slots=True)
class _Gpu:
    """One <gpu>: its values by path; if a path occurs twice (processes, ports), the first counts."""

    address: str
    values: dict[str, str] = field(default_factory=dict)

    @property
    def uuid(self) -> str | None:
        return self.values.get("uuid")

    @property
    def pci(self) -> str | None:
        return normal_pci(self.values.get("pci/pci_bus_id", "")) or normal_pci(self.address)

    @property
    def minor(self) -> int | None:
        return _small(self.values.get("minor_number", ""), _GPUS_MAX - 1)

    @property
    def lost(self) -> bool:
        names = [self._word(path) for path in (*_ALWAYS, "product_name")]
        readings = [word for path in _READINGS if (word := self._word(path))]
        return (
            any(word.startswith(_LOST) for word in names + readings)
            or any(word.startswith(_UNREAD) for word in names)
            # One sensor may fail on a GPU that answers all else.
            or (bool(readings) and all(word.startswith(_UNREAD) for word in readings))
        )

    def needs_reset(self) -> bool:
        """Its readings say so, and its own recovery action says nothing (older drivers print none)."""
        asks = any(self._word(path) == _NEEDS_RESET for path in _READINGS)
        return asks and self._word(_ACTION) in ("", "n/a")

    def _word(self, path: str) -> str:
        return self.values.get(path, "").strip("[] ").lower()


class NvidiaSmi:
    """Output to reports, by the aliases of one catalogue."""

    def __init__(
        self, catalogue: Catalogue, numbers: Numbers, gpus: GpuNames, parts: Parts, cluster: str
    ) -> None:
        self._numbers, self._gpus, self._parts, self._cluster = numbers, gpus, parts, cluster
        self._count = catalogue.signals.get("gpu_count")
        self._paths: list[tuple[str, Signal, float]] = []
        for signal in catalogue.signals.values():
            if signal.scope is Scope.gpu:
                for alias in signal.aliases:
                    if alias.name.startswith(_PREFIX):
                        self._paths.append((alias.name.removeprefix(_PREFIX), signal, alias.scale))

    def take(self, raw: bytes, has_node: HasNode, now: datetime, *, node: str) -> Measured:
        """Raises BadBody if it is not nvidia-smi's XML. Values that mean unknown are no samples."""
        log = parse_log(raw)
        gpus, whole = log.gpus, log.attached == len(log.gpus)
        out = Measured()
        if wrong := wrong_node(self._cluster, node, has_node):
            out.rejected = (Rejected(0, wrong),)
            return out
        where = (self._cluster, node)
        columns: list[Column] = []
        values: list[float] = []
        answering = [gpu for gpu in gpus if not gpu.lost]  # values of a lost one are unknown
        seen: set[int] = set()
        for gpu, index in zip(answering, self._indexes(where, gpus, answering, whole), strict=True):
            samples = self._values(gpu)
            beyond = self._parts.wrong(where, index, None)
            if index is None or index in seen or beyond:
                for signal, _ in samples:
                    out.unplaced(signal.name, beyond or NO_GPU, 1, {"pci_bus_id": gpu.address[:64]})
                continue
            seen.add(index)
            for signal, value in samples:
                columns.append(Column(signal.name, Part(gpu=index)))
                values.append(value)
        if self._count is not None and whole:
            columns.append(Column(self._count.name))
            values.append(float(len(answering)))
        self._learn_facts(where, log, gpus)
        self._store(where, now, columns, values, out)
        out.inventory = self._gpus.inventory([where], now)
        return out

    def _learn_facts(self, where: Where, log: "_Reader", gpus: list[_Gpu]) -> None:
        for name, value in log.versions.items():
            self._gpus.facts.learn(where, name, value)
        if domain := next(filter(None, map(_domain, gpus)), ""):
            self._gpus.facts.learn(where, "nvlink_domain", domain)
        for gpu in gpus:
            for path, name in _GPU_FACTS.items():
                if path in gpu.values:
                    self._gpus.facts.learn(where, name, gpu.values[path], gpu.address)

    def _indexes(
        self, where: Where, gpus: list[_Gpu], answering: list[_Gpu], whole: bool
    ) -> Sequence[int | None]:
        """The index of each GPU that answers, None if unknown; learns those that are certain."""
        minors = [gpu.minor for gpu in answering]
        if None not in minors and len(set(minors)) == len(minors):
            indexes = minors
        elif whole:
            indexes = [place for place, gpu in enumerate(gpus) if not gpu.lost]
            if len(answering) < len(gpus):
                # A driver that still lists a lost GPU may have put it anywhere: learnt indexes win, and a
                # position counts only while no other GPU has it.
                learned = [self._gpus.index(where, gpu.uuid, gpu.pci) for gpu in answering]
                free = set(indexes) - set(learned)
                indexes = [
                    place if learned_index is None and place in free else learned_index
                    for learned_index, place in zip(learned, indexes, strict=True)
                ]
        else:
            return [self._gpus.index(where, gpu.uuid, gpu.pci) for gpu in answering]
        for gpu, index in zip(answering, indexes, strict=True):
            if index is not None:
                self._gpus.learn(where, index, gpu.uuid, gpu.pci, gpu.values.get("serial"))
        return indexes

    def _store(
        self, where: tuple[str, str], now: datetime, columns: list[Column], values: list[float], out: Measured
    ) -> None:
        ids, numbers = np.array(self._numbers.of(columns), np.int32), np.array(values)
        kept = (ids >= 0) & ~np.isnan(blanks_to_nan(numbers))
        if kept.any():
            out.samples = int(kept.sum())
            out.reports.append(Report(*where, now, now, ids[kept], numbers[kept]))

    def _values(self, gpu: _Gpu) -> list[tuple[Signal, float]]:
        """Samples of this GPU, each signal once: the first of its paths with a value."""
        found: dict[str, tuple[Signal, float]] = {}
        if gpu.needs_reset():
            gpu.values[_ACTION] = _NEEDS_RESET
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


def _domain(gpu: _Gpu) -> str:
    """The multi-node NVLink domain of the GPU: its cluster and clique. Empty: none, as on nodes with
    NVSwitches of their own."""
    cluster = gpu.values.get("fabric/clusterUuid", "").strip().lower()
    clique = gpu.values.get("fabric/cliqueId", "").strip()
    if not _UUID.fullmatch(cluster) or not cluster.strip("0-") or not clique.isdigit():
        return ""
    return f"{cluster}.{clique}"


def _mask(folder: str, signal: Signal, gpu: _Gpu) -> float | None:
    """The bits with the word Active, of a folder with one element per bit; None if it has none."""
    flags = [(path, text) for path, text in gpu.values.items() if path.startswith(folder)]
    mask = 0
    for path, text in flags:
        if text.strip().lower() == "active":
            tail = path.removeprefix(folder)
            # hw_slowdown is the end of `clocks_event_reason_hw_slowdown` alone, not of hw_thermal_slowdown.
            mask |= next((bit for name, bit in signal.bits.items() if tail.endswith(f"_reason_{name}")), 0)
    is_mask = any(text.strip().lower() in {"active", "not active"} for _, text in flags)
    return float(mask) if is_mask else None


def _small(text: str, most: int) -> int | None:
    """A number up to `most`; None for any other text."""
    number = int(text) if re.fullmatch(r"[0-9]{1,2}", text) else None
    return number if number is not None and number <= most else None


def parse_log(raw: bytes) -> "_Reader":
    """The GPUs, in order. No entity is expanded and no file read: a document with entities is refused. Raises
    BadBody."""
    if len(raw) > XML_LIMIT_BYTES:
        raise BadBody(say("signals.body_too_large", size=len(raw), most=XML_LIMIT_BYTES))
    reader = _Reader()
    parser = expat.ParserCreate()
    parser.buffer_text = True
    parser.StartElementHandler = reader.start
    parser.EndElementHandler = reader.end
    parser.CharacterDataHandler = reader.text
    parser.EntityDeclHandler = reader.entity
    parser.ExternalEntityRefHandler = lambda *_: False
    try:
        parser.Parse(_xml_alone(raw), True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise BadBody(say("signals.not_smi", error=said_by(error))) from None
    if not reader.is_log:
        raise BadBody(say("signals.not_smi", error=say("signals.smi_no_log")))
    return reader


def _xml_alone(raw: bytes) -> bytes:
    """Without warnings around the document, and without its lists of processes: a program chooses its name,
    and nvidia-smi has printed it as it is. Raises ValueError where a name looks like output: each GPU has
    one list, and the number of GPUs comes before the first."""
    head, closing, _ = raw.rpartition(b"</nvidia_smi_log>")
    document = head[max(0, head.find(b"<?xml")) :] + closing if closing else raw
    first, *others = document.split(b"<processes>")
    attached = first.partition(b"<attached_gpus>")[2].partition(b"<")[0].strip()
    gpus = document.count(b"<gpu id=")
    most = int(attached) if attached.isdigit() and len(attached) < 3 else gpus
    if others and not len(others) == document.count(b"</processes>") <= gpus <= most:
        raise ValueError(say("signals.smi_process_name"))
    return first + b"".join(other.partition(b"</processes>")[2] for other in others)


class _Reader:
    def __init__(self) -> None:
        self.gpus: list[_Gpu] = []
        self.is_log = False
        #: What the output says about the whole node; None if nothing.
        self.attached: int | None = None
        #: Facts of the whole node, by their names.
        self.versions: dict[str, str] = {}
        self._path: list[str] = []
        self._words: list[str] = []

    def start(self, tag: str, attributes: dict[str, str]) -> None:
        self.is_log |= not self._path and tag == "nvidia_smi_log"
        if len(self._path) >= _DEPTH_MAX:
            raise ValueError(say("signals.smi_depth"))
        if len(tag) > _TAG_MAX:
            raise ValueError(say("signals.smi_name", most=_TAG_MAX))
        if len(self._path) == 1 and tag == "gpu":
            if len(self.gpus) >= _GPUS_MAX:
                raise ValueError(say("signals.smi_gpus", most=_GPUS_MAX))
            self.gpus.append(_Gpu(attributes.get("id", "")))
        self._path.append(tag)
        self._words = []

    def text(self, words: str) -> None:
        if sum(map(len, self._words)) < _TEXT_MAX:
            self._words.append(words)

    def end(self, tag: str) -> None:
        if len(self._path) == 2 and tag == "attached_gpus":
            self.attached = _small("".join(self._words).strip(), _GPUS_MAX)
        if len(self._path) == 2 and tag in _NODE_FACTS:
            self.versions[_NODE_FACTS[tag]] = "".join(self._words)[:_TEXT_MAX]
        if len(self._path) > 2 and self._path[1] == "gpu" and (text := "".join(self._words).strip()):
            values = self.gpus[-1].values
            values.setdefault("/".join(self._path[2:]), text[:_TEXT_MAX])
            if len(values) > _PATHS_MAX:
                raise ValueError(say("signals.smi_elements", most=_PATHS_MAX))
        self._path.pop()
        self._words = []

    def entity(self, *_: object) -> None:
        raise ValueError(say("signals.smi_entity"))
