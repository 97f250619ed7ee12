"""From a series with labels to its node, its part and the number of its column; and the samples of a request.

Label names differ by exporter and its version; the ones used here are those of dcgm-exporter 1 to 4,
node_exporter and Prometheus itself (`instance`).
"""

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import NamedTuple

import msgspec

from healer.model import (
    DEVICE_MARK,
    OF_DEVICES,
    Alias,
    Catalogue,
    Column,
    Combine,
    Observation,
    Part,
    Scope,
    Signal,
    device_in,
)
from healer.model.telemetry import Report
from healer.ports.measurements import ColumnBook, TooManyColumns
from healer.signals.hardware_names import (
    GPU_BEYOND,
    GPUS_LEAST,
    LINK_BEYOND,
    NO_DEVICE,
    NO_PART,
    TOO_MANY,
    TOO_MANY_DEVICES,
    TOO_MANY_NAMES,
    TOO_MANY_NEW,
    TOO_MANY_PARTS,
    Devices,
    Parts,
    Ports,
    device_of,
    part_of,
    why_refused,
)
from healer.signals.inventory import GPU_LABELS, INFO_SERIES, GpuNames, Where
from healer.signals.kernel_log import normal_pci
from healer.signals.rejects import Rejected, Rejects
from healer.signals.wire import HasNode
from healer.text import NO_WORDS, Said, say

# --- names --------------------------------------------------------------------------------------------------
# From the name of an arriving series to the signals it may be; from signal and part to a number.

#: NVLinks of one GPU that replace a `{link}` in an alias: 18 on Hopper and Blackwell.
LINKS = 18
#: Columns whose number one process remembers; the book itself holds at most as many.
_REMEMBERED = 100_000


class Meaning(msgspec.Struct, frozen=True):
    """One signal that a name may mean. `labels` must match (globs); `link` is the one in the name itself,
    `part` the label of a device's part."""

    signal: Signal
    scale: float
    labels: tuple[tuple[str, str], ...] = ()
    link: int | None = None
    part: str = ""

    @property
    def nvlink(self) -> bool:
        """NVLink signals have that in their name; the other link signals are about ports."""
        return self.signal.scope is Scope.link and self.signal.name.startswith("nvlink")

    def takes(self, labels: dict[str, str]) -> bool:
        return all(fnmatchcase(labels.get(name, ""), form) for name, form in self.labels)


def expanded(alias: Alias) -> list[tuple[str, int | None]]:
    """(name, link) of an alias: one per NVLink if it has `{link}`, else one name without a link."""
    if "{link}" not in alias.name:
        return [(alias.name, None)]
    return [(alias.name.replace("{link}", str(link)), link) for link in range(LINKS)]


class Names:
    """The names of a catalogue. A derived signal has none, because it never arrives."""

    def __init__(self, catalogue: Catalogue) -> None:
        self._meanings: dict[str, list[Meaning]] = {}
        for signal in catalogue.signals.values():
            if signal.derived:
                continue
            self._meanings.setdefault(signal.name, []).append(Meaning(signal, 1.0))
            for alias in signal.aliases:
                labels = tuple(sorted(alias.labels.items()))
                for name, link in expanded(alias):
                    meaning = Meaning(signal, alias.scale, labels, link, alias.part)
                    self._meanings.setdefault(name, []).append(meaning)
        for meanings in self._meanings.values():  # the inlet's temperature before that of any sensor
            meanings.sort(key=lambda meaning: not meaning.labels)

    def __contains__(self, name: str) -> bool:
        return name in self._meanings

    def of_several(self) -> frozenset[str]:
        """Names, other than a signal's own, whose series are each only a part of every signal they may
        mean."""
        return frozenset(
            name
            for name, meanings in self._meanings.items()
            if all(
                meaning.signal.combine is not Combine.last and meaning.signal.name != name
                for meaning in meanings
            )
        )

    def meanings(self, name: str) -> Sequence[Meaning]:
        return self._meanings.get(name, ())

    def plain(self, name: str, scope: Scope, *, nvlink: bool = False) -> Meaning | None:
        """The meaning in a form without labels; the link must not be part of the name."""
        for meaning in self.meanings(name):
            if (
                meaning.signal.scope is scope
                and meaning.nvlink is nvlink
                and not meaning.labels
                and meaning.link is None
            ):
                return meaning
        return None


class Numbers:
    """Numbers of columns, remembered; new ones come from the book."""

    def __init__(self, book: ColumnBook) -> None:
        self._book = book
        self._known: dict[Column, int] = {}

    def of(self, columns: Sequence[Column]) -> list[int]:
        """-1 for a column for which the book has no room."""
        new = list(dict.fromkeys(column for column in columns if column not in self._known))
        if new:
            if len(self._known) + len(new) > _REMEMBERED:
                self._known.clear()
                new = list(dict.fromkeys(columns))
            try:
                self._known.update(zip(new, self._book.ids(new), strict=True))
            except TooManyColumns:
                self._known.update(self._one_by_one(new))
        return [self._known.get(column, -1) for column in columns]

    def _one_by_one(self, columns: Sequence[Column]) -> dict[Column, int]:
        """The numbers of those that have one: a full book still serves known columns."""
        found: dict[Column, int] = {}
        for column in columns:
            try:
                (found[column],) = self._book.ids([column])
            except TooManyColumns:
                continue
        return found


# --- measured -----------------------------------------------------------------------------------------------
# The samples of a request, whatever its wire form.

#: Names listed as unknown per request; samples of the others are only counted.
NAMES_LISTED = 200
#: Limits: reports of one node per request, and samples per report: far above any sender that was not silent
#: for an hour, and above any machine.
REPORTS_MAX = 64
SAMPLES_MAX = 20_000
#: Series that one process knows of one node; 8 GPUs with 18 links each and 30 ports are below 5,000.
SERIES_OF_NODE_MAX = 20_000
TOO_MANY_SERIES = say("signals.series_of_node", most=SERIES_OF_NODE_MAX)
TOO_MANY_MOMENTS = say("signals.too_many_moments", most=REPORTS_MAX)


class Unknown(msgspec.Struct, kw_only=True):
    """Samples under one name that were not stored: why the last one was not, and its labels."""

    why: Said
    count: int
    example: dict[str, str] = {}


class Measured(msgspec.Struct, kw_only=True):
    """`samples` were accepted, into `reports`; `unrecognised` have no place in the catalogue or on a node of
    ours, and `unknown` lists them by name. `rejected_more` were rejected beyond those in `rejected`. `placed`
    series were new. `inventory`: observations of the kinds `gpu_inventory` and `inventory`. `cluster` is the
    default for series that name none, if there is one."""

    cluster: str = ""
    reports: list[Report] = []
    samples: int = 0
    unrecognised: int = 0
    rejected: tuple[Rejected, ...] = ()
    rejected_more: int = 0
    unknown: dict[str, Unknown] = {}
    placed: int = 0
    inventory: list[Observation] = []

    def nodes(self) -> set[tuple[str, str]]:
        """Every (cluster, node) for which something would be stored: for tokens bound to one node."""
        return {(report.cluster, report.node) for report in self.reports} | {
            (observation.component.cluster, observation.component.node or "")
            for observation in self.inventory
        }

    def reject(self, rejects: Rejects) -> None:
        self.rejected, self.rejected_more = rejects.sorted(), rejects.more

    def unplaced(self, name: str, why: Said, count: int = 1, example: dict[str, str] | None = None) -> None:
        """Counts samples that are not stored."""
        self.unrecognised += count
        listed = self.unknown.get(name)
        if listed is not None:
            listed.count += count
            listed.why = why
        elif len(self.unknown) < NAMES_LISTED:
            self.unknown[name] = Unknown(why=why, count=count, example=example or {})


# --- series -------------------------------------------------------------------------------------------------

#: Labels that may name the node, most reliable first; the first one with the name of a known node counts.
NODE_LABELS = ("Hostname", "hostname", "node", "nodename", "host", "instance")
#: Labels that name the cluster; if one names another cluster than ours, it is believed.
CLUSTER_LABELS = ("cluster", "slurm_cluster", "cluster_name")
LABELS_MAX = 64
LABEL_BYTES_MAX = 1024
#: Limit for all labels of a series together: they identify the series, so all are kept.
BLOCK_BYTES_MAX = 4096
NAME_MAX = 200
#: NVLinks of a GPU and GPUs of a node that a label may number.
INDEX_MAX = 63

NOT_KNOWN = say("signals.not_in_catalogue")
NO_NODE = say("signals.no_such_node")
OTHER_CLUSTER = say("signals.other_cluster")
NO_GPU = say("signals.no_such_gpu")
NO_ROOM = say("signals.no_room")
#: Reasons for samples beyond a limit, which also count as a loss.
LIMITS = frozenset(
    {
        NO_ROOM,
        GPU_BEYOND,
        LINK_BEYOND,
        TOO_MANY,
        TOO_MANY_NAMES,
        TOO_MANY_NEW,
        TOO_MANY_DEVICES,
        TOO_MANY_PARTS,
        TOO_MANY_SERIES,
    }
)
OF_A_DEVICE = say("signals.of_device")
OF_A_NODE = say("signals.of_node")


class Series(NamedTuple):
    """Where a series belongs: a node, or a device with its mark. `portable`: its part follows from its labels
    alone, whatever its node. `is_signal_name`: it came under the signal's own name."""

    where: Where
    column: int
    scale: float
    combine: Combine
    portable: bool
    is_signal_name: bool


class Placer:
    """Places series; learns GPU names from series that have both, and the ports of each node."""

    def __init__(
        self, names: Names, numbers: Numbers, gpus: GpuNames, ports: Ports, parts: Parts, cluster: str
    ) -> None:
        self.names, self.gpus, self.ports = names, gpus, ports
        self._numbers, self._parts, self._cluster = numbers, parts, cluster
        self._devices = Devices()
        #: Series learnt since the process began: a measure of the work caused by new ones.
        self.placed = 0

    def place(
        self, name: str, labels: dict[str, str], has_node: HasNode, where: Where | None = None
    ) -> Series | Said:
        """The series, or why it has no place. `where`: the node or device named by the request itself."""
        meanings = self.names.meanings(name)
        self._learn_facts(name, labels, has_node, where)
        if not meanings:
            return NOT_KNOWN
        if labels.get("GPU_I_ID"):
            return say("signals.mig_instance")
        meanings = [meaning for meaning in meanings if meaning.takes(labels)]
        if not meanings:
            return say("signals.no_signal_fits")
        of_device = where is not None and device_in(where[1]) is not None
        home, why = where, NO_WORDS
        for meaning in meanings:
            if meaning.signal.scope in OF_DEVICES:
                fits = where is None or of_device
                found = self._device(meaning, labels, has_node, where) if fits else OF_A_DEVICE
                if isinstance(found, str):
                    why = why or found
                    continue
                place, part, portable = *found, True
            elif of_device:
                why = why or OF_A_NODE
                continue
            else:
                found = home or node_of_labels(labels, has_node, self._cluster)
                if isinstance(found, str):
                    why = found
                    continue
                place = home = found
                part, portable = self._part(meaning, labels, home)
            if isinstance(part, str):
                why = part
                continue
            (column,) = self._numbers.of([Column(meaning.signal.name, part)])
            if column < 0:
                return NO_ROOM
            return Series(
                place,
                column,
                meaning.scale,
                meaning.signal.combine,
                portable,
                is_signal_name=name == meaning.signal.name,
            )
        return why

    def _learn_facts(self, name: str, labels: dict[str, str], has_node: HasNode, where: Where | None) -> None:
        """A series is placed once, and again when its labels change, so facts in its labels are read equally
        often."""
        if name not in INFO_SERIES and GPU_LABELS.keys().isdisjoint(labels):
            return
        home = where or node_of_labels(labels, has_node, self._cluster)
        if not isinstance(home, str) and device_in(home[1]) is None:
            self.gpus.facts.from_labels(home, name, labels)

    def _device(
        self, meaning: Meaning, labels: dict[str, str], has_node: HasNode, where: Where | None
    ) -> tuple[Where, Part] | Said:
        """The device named by the request or the labels, and its part; or why there is none."""
        if where is None and is_foreign(labels, self._cluster):
            return OTHER_CLUSTER
        device = device_of(labels) if where is None else device_in(where[1])
        if device is None:
            return NO_DEVICE
        where = self._cluster, DEVICE_MARK + device
        part = part_of(labels, meaning.part) if meaning.signal.scope is Scope.device_part else ""
        if part is None:
            return NO_PART
        if why := why_refused(device, self._cluster, has_node):
            return why
        return self._devices.wrong(device, part or None) or (where, Part(port=part or None))

    def _part(self, meaning: Meaning, labels: dict[str, str], where: Where) -> tuple[Part | Said, bool]:
        """(part, whether it follows from the labels alone), or (why there is none, True)."""
        if meaning.signal.scope is Scope.node:
            return Part(), True
        if meaning.signal.scope is Scope.link and not meaning.nvlink:
            return self._port(labels, where), True
        link = meaning.link if meaning.link is not None else gpu_index(labels.get("nvlink"))
        if meaning.nvlink and link is None:
            return say("signals.no_label", name="nvlink"), True
        if not meaning.nvlink and labels.get("nvlink"):
            return say("signals.one_link"), True
        index = gpu_index(labels.get("gpu"))
        if beyond := self._parts.wrong(where, index, link):
            return beyond, True
        gpu, portable = self._gpu(index, labels, where)
        if gpu is None:
            return NO_GPU, True
        if beyond := self._parts.wrong(where, gpu, link):  # a heartbeat may list more than Slurm shows
            return beyond, True
        return Part(gpu=gpu, link=link if meaning.nvlink else None), portable

    def _gpu(self, index: int | None, labels: dict[str, str], where: Where) -> tuple[int | None, bool]:
        uuid = labels.get("UUID") or labels.get("uuid") or labels.get("gpu_uuid")
        pci = normal_pci(labels.get("pci_bus_id") or "")
        if index is not None:
            if uuid or pci:
                self.gpus.learn(where, index, uuid, pci)
            return index, index < GPUS_LEAST
        return self.gpus.index(where, uuid or labels.get("gpu"), pci), False

    def _port(self, labels: dict[str, str], where: Where) -> Part | Said:
        device, port = labels.get("device", ""), labels.get("port", "")
        if not device:
            return say("signals.no_label", name="device")
        name = f"{device}/{port}" if port else device
        return self.ports.wrong(where, (name,)).get(name) or Part(port=name)


def is_foreign(labels: Mapping[str, str], cluster: str) -> bool:
    return any(labels.get(label, cluster) not in ("", cluster) for label in CLUSTER_LABELS)


def node_of_labels(labels: Mapping[str, str], has_node: HasNode, cluster: str) -> Where | Said:
    """The node of `cluster` named by the labels, or why it is not ours."""
    if is_foreign(labels, cluster):
        return OTHER_CLUSTER
    for label in NODE_LABELS:
        name = labels.get(label)
        if not name:
            continue
        if label == "instance":
            name = name.rsplit(":", 1)[0]
        if has_node(cluster, name):
            return cluster, name
        short, *domain = name[:LABEL_BYTES_MAX].split(".")
        if not domain or not has_node(cluster, short):
            continue
        if any(word != cluster and has_node(word, short) for word in domain):
            return OTHER_CLUSTER  # gpu0001.pod2.example: clusters may use equal node names
        return cluster, short
    return NO_NODE


def gpu_index(text: str | None) -> int | None:
    """None for an invalid index, such as `00`: it would name the same GPU as `0`, and overwrite it."""
    if not text or len(text) > 2 or not (text.isascii() and text.isdigit()):
        return None
    return index if (index := int(text)) <= INDEX_MAX and text == str(index) else None


def example(labels: dict[str, str]) -> dict[str, str]:
    """Some labels, short: for the list of unknown series."""
    return {name[:64]: value[:100] for name, value in list(labels.items())[:10]}


def check_labels(labels: dict[str, str]) -> Said:
    """Why these labels are too large; empty if they are not."""
    if len(labels) > LABELS_MAX:
        return say("signals.too_many_labels", most=LABELS_MAX)
    sizes = [len(name) + len(value) for name, value in labels.items()]
    if max(sizes, default=0) > LABEL_BYTES_MAX:
        return say("signals.label_too_long", most=LABEL_BYTES_MAX)
    if sum(sizes) > BLOCK_BYTES_MAX:
        return say("signals.labels_too_long", most=BLOCK_BYTES_MAX)
    return NO_WORDS
