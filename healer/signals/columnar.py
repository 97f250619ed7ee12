"""`POST /signals/metrics`: one node's samples as columns of JSON.

The shape of a node's body rarely changes, so its names are resolved once per shape (`_Layout`); after that a
body is decoded, flattened and copied, 240 samples in some 20 µs.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import chain
from typing import Annotated, Any, Generic, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model import Column, Part, Scope, Signal
from healer.model.telemetry import Report
from healer.signals.hardware_names import GPU_BEYOND, GPUS_LEAST, LINK_BEYOND, NVLINKS_MAX, Parts, Ports
from healer.signals.inventory import GpuNames, Where
from healer.signals.kernel_log import normal_pci
from healer.signals.rejects import NOT_JSON, BadBody, BadEntry, Rejects, check_marks, python_json
from healer.signals.series import (
    NO_ROOM,
    NOT_KNOWN,
    REPORTS_MAX,
    SAMPLES_MAX,
    TOO_MANY_MOMENTS,
    Meaning,
    Measured,
    Names,
    Numbers,
)
from healer.signals.values import blanks_to_nan, float_array, number, sample_time
from healer.signals.wire import Gpu, HasNode, Short, node_of
from healer.text import NO_WORDS, Said, said_by, say

# --- columnar body ------------------------------------------------------------------------------------------
# Parsing of columnar metrics: their form, their limits, one entry after the other.

#: Limits: GPUs per node, NVLinks per GPU, names per body: far above any machine.
GPUS_MAX = 64
LINKS_MAX = 64
NAMES_MAX = 4096
#: Values of one entry, known and unknown names together.
PLACES_MAX = 50_000
#: Entries of one request; values, objects and lists in it.
ENTRIES_MAX = 20_000
VALUES_MAX, OBJECTS_MAX, LISTS_MAX = 2_000_000, 500_000, 1_000_000
_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Text = Annotated[str, msgspec.Meta(max_length=1000)]
_Number = float | None
_Value = TypeVar("_Value")
_Word = float | bool | Annotated[str, msgspec.Meta(max_length=100)] | None


class _Samples(msgspec.Struct, Generic[_Value], forbid_unknown_fields=True):
    """One node's samples. `inventory` are facts about the node by the names of `healer.model.FACTS`; other
    names are passed over."""

    node: Short
    cluster: _Name | None = None
    time: str | None = None
    gpu: dict[_Name, list[_Value]] = {}
    host: dict[_Name, _Value] = {}
    ports: dict[_Name, dict[_Name, _Value]] = {}
    links: dict[_Name, list[list[_Value]]] = {}
    gpus: list[Gpu] = []
    inventory: dict[_Name, _Text] = {}


class Body(_Samples[_Number]):
    """A body of numbers only: the form that decodes fast."""


class Wordy(_Samples[_Word]):
    """A body with words among the values, such as `"Completed"`."""


_fast = msgspec.json.Decoder(list[Body] | Body)
_whole = msgspec.json.Decoder(msgspec.Raw)
_list = msgspec.json.Decoder(list[msgspec.Raw])
_wordy = msgspec.json.Decoder(Wordy)


def bodies(raw: bytes, rejects: Rejects) -> Iterator[tuple[int, Body | Wordy]]:
    """(index, body) of each valid entry; the others go to `rejects`."""
    check_marks(raw, values=(b",", VALUES_MAX), objects=(b"{", OBJECTS_MAX), lists=(b"[", LISTS_MAX))
    try:
        body = _fast.decode(raw)
    except NOT_JSON:
        pass  # one by one, so that one bad entry never loses the good ones
    else:
        bodies = body if isinstance(body, list) else [body]
        _check_entries(len(bodies))
        yield from enumerate(bodies)
        return
    for index, item in enumerate(_items(raw)):
        try:
            yield index, _wordy.decode(item)
        except msgspec.ValidationError as error:
            rejects.add(index, error)
        except NOT_JSON as error:
            raise BadBody(say("signals.not_json", error=said_by(error))) from None


def _items(raw: bytes) -> Sequence[msgspec.Raw]:
    """The entries as raw bytes: each is decoded, judged and dropped before the next one. A bare NaN or
    Infinity becomes null, which is unknown too."""
    begin = raw.lstrip(b" \t\r\n")[:1]
    if begin not in (b"{", b"["):
        raise BadBody(say("signals.metrics_shape"))
    decoder = _whole if begin == b"{" else _list
    try:
        found = decoder.decode(raw)
    except NOT_JSON as error:
        found = decoder.decode(msgspec.json.encode(python_json(raw, error)))
    items = found if isinstance(found, list) else [found]
    _check_entries(len(items))
    return items


def _check_entries(count: int) -> None:
    if count > ENTRIES_MAX:
        raise BadBody(say("signals.most_entries", n=count, most=ENTRIES_MAX))


def check_sizes(body: Body | Wordy) -> None:
    names = (
        len(body.inventory)
        + len(body.gpu)
        + len(body.host)
        + len(body.links)
        + sum(map(len, body.ports.values()))
    )
    if names > NAMES_MAX:
        raise BadEntry(say("signals.too_many_names", n=names, most=NAMES_MAX))
    for field, lists in (("gpu", body.gpu), ("links", body.links)):
        for name, values in lists.items():
            if len(values) > GPUS_MAX:
                raise BadEntry(
                    say("signals.too_many_gpus", field=field, name=name, n=len(values), most=GPUS_MAX)
                )
    for name, gpus in body.links.items():
        if any(len(links) > LINKS_MAX for links in gpus):
            raise BadEntry(say("signals.too_many_links", name=name, most=LINKS_MAX))
    places = (
        sum(map(len, body.gpu.values()))
        + sum(len(links) for gpus in body.links.values() for links in gpus)
        + len(body.host)
        + sum(map(len, body.ports.values()))
    )
    if places > PLACES_MAX:
        raise BadEntry(say("signals.too_many_values", n=places, most=PLACES_MAX))


# --- columnar -----------------------------------------------------------------------------------------------

#: Limits on remembered shapes and their approximate memory; beyond them all are forgotten at once.
_LAYOUTS_MAX = 4096
_LAYOUT_BYTES_MAX = 64 * 2**20


class _Layout(msgspec.Struct, frozen=True):
    """The meaning of one shape of body. `take`: the indices of the flat values that are kept (None: all)."""

    columns: NDArray[np.int32]
    take: NDArray[np.intp] | None
    scale: NDArray[np.float64] | None
    #: By index of the flat values.
    signals: tuple[Signal | None, ...]
    #: Name, why, samples.
    unknown: tuple[tuple[str, Said, int], ...]


class Columnar:
    """Bodies of this form to reports. Remembers layouts, bounded."""

    def __init__(
        self, names: Names, numbers: Numbers, gpus: GpuNames, ports: Ports, parts: Parts, cluster: str
    ) -> None:
        self._names, self._numbers, self._gpus, self._ports = names, numbers, gpus, ports
        self._parts, self._cluster = parts, cluster
        self._layouts: dict[tuple[Any, ...], _Layout] = {}
        self._layout_bytes = 0

    def take(self, raw: bytes, has_node: HasNode, now: datetime) -> Measured:
        """Raises BadBody if it is not JSON, neither an object nor a list, or far too large."""
        out = Measured()
        rejects = Rejects()
        #: Index of the entry of each report.
        entries: list[int] = []
        with_inventory: set[Where] = set()
        for index, body in bodies(raw, rejects):
            try:
                self._take_body(body, has_node, now, out, with_inventory)
            except BadEntry as error:
                rejects.add(index, error)
            if len(out.reports) > len(entries):
                entries.append(index)
        _drop_moments(out, entries, rejects)
        # Last, because this marks the inventory as sent, and until here the body may still be refused.
        out.inventory = self._gpus.inventory(with_inventory, now)
        out.reject(rejects)
        return out

    def _take_body(
        self, body: Body | Wordy, has_node: HasNode, now: datetime, out: Measured, with_inventory: set[Where]
    ) -> None:
        cluster = body.cluster or self._cluster
        node = node_of(cluster, body.node, has_node)
        at = now if body.time is None else sample_time(body.time, now)
        where = (cluster, node)
        if body.ports:
            self._without_strange_ports(body, where, out)
        self._without_parts_beyond(body, where, out)
        layout = self._layout(body)
        if body.gpus:
            self._learn(where, body.gpus)
            with_inventory.add(where)
        if body.inventory:
            check_sizes(body)
            for name, value in body.inventory.items():
                self._gpus.facts.learn(where, name, value)
            with_inventory.add(where)
        flat: list[Any] = list(chain.from_iterable(body.gpu.values()))
        if body.links:
            flat += chain.from_iterable(chain.from_iterable(body.links.values()))
        flat += body.host.values()
        if body.ports:
            flat += chain.from_iterable(port.values() for port in body.ports.values())
        if type(body) is Wordy:
            _read_words(flat, layout.signals)
        values = float_array(flat)
        if layout.take is not None:
            values = values[layout.take]
        values = blanks_to_nan(values)
        if layout.scale is not None:
            values *= layout.scale
        for name, why, count in layout.unknown:
            out.unplaced(name, why, count)
        samples = len(values) - int(np.count_nonzero(np.isnan(values)))
        if samples:
            out.samples += samples
            out.reports.append(Report(cluster, node, at, now, layout.columns, values))

    def _learn(self, where: Where, gpus: list[Gpu]) -> None:
        if len(gpus) > GPUS_MAX:
            raise BadEntry(say("signals.too_many_gpus_listed", n=len(gpus), most=GPUS_MAX))
        addresses = [normal_pci(gpu.pci) for gpu in gpus]
        for gpu, pci in zip(gpus, addresses, strict=True):
            if pci is None:
                raise BadEntry(say("signals.bad_pci", pci=repr(gpu.pci[:40]), gpu=gpu.index))
            if gpu.index >= GPUS_MAX:
                raise BadEntry(say("signals.gpu_index", index=gpu.index, most=GPUS_MAX - 1))
        for gpu, pci in zip(gpus, addresses, strict=True):
            self._gpus.learn(where, gpu.index, gpu.uuid, pci, gpu.serial)

    def _without_strange_ports(self, body: Body | Wordy, where: Where, out: Measured) -> None:
        for port, why in self._ports.wrong(where, body.ports).items():
            for name in body.ports.pop(port):
                out.unplaced(name, why, 1, {"port": port[:100]})

    def _without_parts_beyond(self, body: Body | Wordy, where: Where, out: Measured) -> None:
        """Cuts lists with more GPUs than the node has, or more links than a GPU can have."""
        longest = max(map(len, body.gpu.values()), default=0)
        if body.links:
            longest = max(longest, *map(len, body.links.values()))
        if longest <= GPUS_LEAST and not body.links:
            return  # the usual case
        if longest > GPUS_LEAST or any(len(links) > NVLINKS_MAX for links in chain(*body.links.values())):
            check_sizes(body)
        if longest > GPUS_LEAST and longest > (most := self._parts.gpus(where)):
            for name, values in body.gpu.items():
                _cut(name, values, most, GPU_BEYOND, out)
            for name, gpus in body.links.items():
                for links in gpus[most:]:
                    out.unplaced(name, GPU_BEYOND, len(links))
                del gpus[most:]
        for name, gpus in body.links.items():
            for links in gpus:
                _cut(name, links, NVLINKS_MAX, LINK_BEYOND, out)

    def _layout(self, body: Body | Wordy) -> _Layout:
        key = (
            tuple(body.gpu),
            tuple(map(len, body.gpu.values())),
            tuple(body.host),
            tuple([(name, *map(len, gpus)) for name, gpus in body.links.items()]),
            tuple([(port, *values) for port, values in body.ports.items()]),
        )
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._worked_out(body)
            if len(layout.columns):  # a shape without any kept value is not worth the memory
                self._remember(key, layout, body)
        return layout

    def _remember(self, key: tuple[Any, ...], layout: _Layout, body: Body | Wordy) -> None:
        names = chain(body.gpu, body.host, body.links, body.ports, *body.ports.values())
        size = 40 * len(layout.signals) + sum(200 + len(name) for name in names)
        self._layout_bytes += size
        if len(self._layouts) >= _LAYOUTS_MAX or self._layout_bytes > _LAYOUT_BYTES_MAX:
            self._layouts.clear()
            self._layout_bytes = size
        self._layouts[key] = layout

    def _worked_out(self, body: Body | Wordy) -> _Layout:
        check_sizes(body)
        places = list(self._places(body))
        wanted = [column for _, _, column, _ in places if column is not None]
        if len(wanted) > SAMPLES_MAX:
            raise BadEntry(say("signals.too_many_samples_of_node", n=len(wanted), most=SAMPLES_MAX))
        numbers = dict(zip(wanted, self._numbers.of(wanted), strict=True))
        take: list[int] = []
        columns: list[int] = []
        scale: list[float] = []
        unknown: dict[tuple[str, Said], int] = {}
        seen: set[int] = set()
        for place, (name, meaning, column, why_not) in enumerate(places):
            given = numbers[column] if column is not None else -1
            why = why_not
            if column is not None:
                why = NO_ROOM if given < 0 else say("signals.repeated") if given in seen else NO_WORDS
            if why or meaning is None:
                unknown[name, why] = unknown.get((name, why), 0) + 1
                continue
            seen.add(given)
            take.append(place)
            columns.append(given)
            scale.append(meaning.scale)
        ids = np.array(columns, np.int32)
        ids.setflags(write=False)  # shared by all reports of this shape
        return _Layout(
            columns=ids,
            take=None if len(take) == len(places) else np.array(take, np.intp),
            scale=None if all(factor == 1 for factor in scale) else np.array(scale),
            signals=tuple(meaning.signal if meaning else None for _, meaning, _, _ in places),
            unknown=tuple((name, why, count) for (name, why), count in unknown.items()),
        )

    def _places(self, body: Body | Wordy) -> Iterator[tuple[str, Meaning | None, Column | None, Said]]:
        """(name, meaning, column, reason for rejection) for each flat value, in order."""
        for name, values in body.gpu.items():
            meaning = self._names.plain(name, Scope.gpu) or next(
                (meaning for meaning in self._names.meanings(name) if meaning.link is not None), None
            )
            for gpu in range(len(values)):
                yield self._place(name, meaning, Part(gpu=gpu, link=meaning.link if meaning else None), "gpu")
        for name, gpus in body.links.items():
            meaning = self._names.plain(name, Scope.link, nvlink=True)
            for gpu, links in enumerate(gpus):
                for link in range(len(links)):
                    yield self._place(name, meaning, Part(gpu=gpu, link=link), "links")
        for name in body.host:
            yield self._place(name, self._names.plain(name, Scope.node), Part(), "host")
        for port, values in body.ports.items():
            for name in values:
                yield self._place(name, self._names.plain(name, Scope.link), Part(port=port), "ports")

    def _place(
        self, name: str, meaning: Meaning | None, part: Part, field: str
    ) -> tuple[str, Meaning | None, Column | None, Said]:
        if meaning is not None:
            return name, meaning, Column(meaning.signal.name, part), NO_WORDS
        why = say("signals.wrong_section", field=field) if name in self._names else NOT_KNOWN
        return name, None, None, why


def _cut(name: str, values: list[Any], most: int, why: Said, out: Measured) -> None:
    if len(values) > most:
        out.unplaced(name, why, len(values) - most)
        del values[most:]


def _drop_moments(out: Measured, entries: list[int], rejects: Rejects) -> None:
    """Keeps the newest reports of a node that has too many. `entries`: index of the entry of each report."""
    counts = (
        Counter((report.cluster, report.node) for report in out.reports) if len(entries) > REPORTS_MAX else {}
    )
    many = {where: count - REPORTS_MAX for where, count in counts.items() if count > REPORTS_MAX}
    if not many:
        return
    dropped: set[int] = set()
    for place in sorted(range(len(entries)), key=lambda place: out.reports[place].at):
        report = out.reports[place]
        where = (report.cluster, report.node)
        if many.get(where, 0) > 0:
            many[where] -= 1
            dropped.add(place)
            rejects.add(entries[place], TOO_MANY_MOMENTS)
            out.samples -= int(np.count_nonzero(~np.isnan(report.values)))
    out.reports = [report_ for place, report_ in enumerate(out.reports) if place not in dropped]


def _read_words(flat: list[Any], signals: tuple[Signal | None, ...]) -> None:
    for place, value in enumerate(flat):
        if isinstance(value, str):
            signal = signals[place]
            flat[place] = number(signal, value) if signal is not None else None
