"""`POST /signals/metrics`: one node's samples as columns of JSON.

The shape of a node's body hardly ever changes, so what its names mean is worked out once per shape
(`_Layout`); after that a body is decoded, flattened and copied, 240 samples in some 20 µs.
"""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model import Column, Part, Scope, Signal
from healer.model.samples import Report
from healer.signals.gpu_names import GpuNames, Where
from healer.signals.kernel_log import normal_pci
from healer.signals.measured import REJECTED_TOLD, Measured
from healer.signals.names import Names, Numbers, Way
from healer.signals.values import TOO_OLD, clean, moment, number
from healer.signals.wire import BadBody, Gpu, Known, Rejected, sentence, wrong_node

#: GPUs of one node, NVLinks of one GPU, names of one body: far above what any machine has.
GPUS_MAX = 64
LINKS_MAX = 64
NAMES_MAX = 4096
#: Shapes remembered, then forgotten all at once.
_LAYOUTS_MAX = 4096

_Name = Annotated[str, msgspec.Meta(max_length=200)]
_Number = float | None
_Word = float | bool | Annotated[str, msgspec.Meta(max_length=100)] | None


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    """One node's samples, all of them numbers: the form that is decoded fast."""

    node: _Name
    cluster: _Name | None = None
    time: str | None = None
    gpu: dict[_Name, list[_Number]] = {}
    host: dict[_Name, _Number] = {}
    ports: dict[_Name, dict[_Name, _Number]] = {}
    links: dict[_Name, list[list[_Number]]] = {}
    gpus: list[Gpu] = []


class _Wordy(msgspec.Struct, forbid_unknown_fields=True):
    """The same with words among the values, such as `"Completed"`."""

    node: _Name
    cluster: _Name | None = None
    time: str | None = None
    gpu: dict[_Name, list[_Word]] = {}
    host: dict[_Name, _Word] = {}
    ports: dict[_Name, dict[_Name, _Word]] = {}
    links: dict[_Name, list[list[_Word]]] = {}
    gpus: list[Gpu] = []


class _Layout(msgspec.Struct, frozen=True):
    """What one shape of body means. `take` are the places of the flat values that are kept (None: all)."""

    columns: NDArray[np.int32]
    take: NDArray[np.intp] | None
    scale: NDArray[np.float64] | None
    #: By place of the flat values.
    signals: tuple[Signal | None, ...]
    #: Name, why, samples.
    unknown: tuple[tuple[str, str, int], ...]


class _Bad(ValueError):
    """One entry is wrong; the text is the reason."""


_fast = msgspec.json.Decoder(list[_Body] | _Body)
_any = msgspec.json.Decoder(Any)


class Columnar:
    """Bodies of this form -> reports. Remembers layouts, bounded."""

    def __init__(self, names: Names, numbers: Numbers, gpus: GpuNames, cluster: str) -> None:
        self._names, self._numbers, self._gpus, self._cluster = names, numbers, gpus, cluster
        self._layouts: dict[tuple[Any, ...], _Layout] = {}

    def take(self, raw: bytes, known: Known, now: datetime) -> Measured:
        """Raises BadBody when it is not JSON, or neither an object nor a list."""
        out = Measured()
        rejected: list[Rejected] = []
        for index, body in _bodies(raw, rejected):
            try:
                self._one(body, known, now, out)
            except _Bad as error:
                rejected.append(Rejected(index, str(error)))
        out.rejected = tuple(sorted(rejected, key=lambda one: one.index)[:REJECTED_TOLD])
        return out

    def _one(self, body: _Body | _Wordy, known: Known, now: datetime, out: Measured) -> None:
        cluster = body.cluster or self._cluster
        if wrong := wrong_node(cluster, body.node, known):
            raise _Bad(wrong)
        at = now if body.time is None else _time(body.time, now)
        if body.gpus:
            self._learn((cluster, body.node), body.gpus, now, out)
        layout = self._layout(body)
        flat: list[Any] = list(chain.from_iterable(body.gpu.values()))
        if body.links:
            flat += chain.from_iterable(chain.from_iterable(body.links.values()))
        flat += body.host.values()
        if body.ports:
            flat += chain.from_iterable(port.values() for port in body.ports.values())
        if type(body) is _Wordy:
            _read_words(flat, layout.signals)
        values = np.array(flat, np.float64)
        if layout.take is not None:
            values = values[layout.take]
        values = clean(values)
        if layout.scale is not None:
            values *= layout.scale
        for name, why, count in layout.unknown:
            out.unplaced(name, why, count)
        samples = len(values) - int(np.count_nonzero(np.isnan(values)))
        if samples:
            out.samples += samples
            out.reports.append(Report(cluster, body.node, at, now, layout.columns, values))

    def _learn(self, where: Where, gpus: list[Gpu], now: datetime, out: Measured) -> None:
        for gpu in gpus:
            pci = normal_pci(gpu.pci)
            if pci is None or gpu.index >= GPUS_MAX:
                raise _Bad(f"gpus: {gpu.pci!r} of GPU {gpu.index} is not a PCI address such as 0000:9b:00")
            self._gpus.learn(where, gpu.index, gpu.uuid[:64], pci)
        out.inventory += self._gpus.inventory([where], now)

    def _layout(self, body: _Body | _Wordy) -> _Layout:
        key = (
            tuple(body.gpu),
            tuple(map(len, body.gpu.values())),
            tuple(body.host),
            tuple((name, tuple(map(len, gpus))) for name, gpus in body.links.items()),
            tuple((port, tuple(values)) for port, values in body.ports.items()),
        )
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= _LAYOUTS_MAX:
                self._layouts.clear()
            layout = self._layouts[key] = self._worked_out(body)
        return layout

    def _worked_out(self, body: _Body | _Wordy) -> _Layout:
        _check_sizes(body)
        places = list(self._places(body))
        wanted = [column for _, _, column, _ in places if column is not None]
        numbers = dict(zip(wanted, self._numbers.of(wanted), strict=True))
        take: list[int] = []
        columns: list[int] = []
        scale: list[float] = []
        unknown: dict[tuple[str, str], int] = {}
        seen: set[int] = set()
        for place, (name, way, column, why_not) in enumerate(places):
            given = numbers[column] if column is not None else -1
            why = why_not
            if column is not None:
                why = "no room for more series" if given < 0 else "told twice" if given in seen else ""
            if why or way is None:
                unknown[name, why] = unknown.get((name, why), 0) + 1
                continue
            seen.add(given)
            take.append(place)
            columns.append(given)
            scale.append(way.scale)
        ids = np.array(columns, np.int32)
        ids.setflags(write=False)  # shared by all reports of this shape
        return _Layout(
            columns=ids,
            take=None if len(take) == len(places) else np.array(take, np.intp),
            scale=None if all(one == 1 for one in scale) else np.array(scale),
            signals=tuple(way.signal if way else None for _, way, _, _ in places),
            unknown=tuple((name, why, count) for (name, why), count in unknown.items()),
        )

    def _places(self, body: _Body | _Wordy) -> Iterator[tuple[str, Way | None, Column | None, str]]:
        """(name, way, column, why not) for each flat value, in its order."""
        for name, values in body.gpu.items():
            way = self._names.plain(name, Scope.gpu) or next(
                (one for one in self._names.ways(name) if one.link is not None), None
            )
            for gpu in range(len(values)):
                yield self._place(name, way, Part(gpu=gpu, link=way.link if way else None), "gpu")
        for name, gpus in body.links.items():
            way = self._names.plain(name, Scope.link, nvlink=True)
            for gpu, links in enumerate(gpus):
                for link in range(len(links)):
                    yield self._place(name, way, Part(gpu=gpu, link=link), "links")
        for name in body.host:
            yield self._place(name, self._names.plain(name, Scope.node), Part(), "host")
        for port, values in body.ports.items():
            for name in values:
                yield self._place(name, self._names.plain(name, Scope.link), Part(port=port), "ports")

    def _place(
        self, name: str, way: Way | None, part: Part, field: str
    ) -> tuple[str, Way | None, Column | None, str]:
        if way is not None:
            return name, way, Column(way.signal.name, part), ""
        why = f"does not belong in `{field}`" if name in self._names else "not in the catalogue"
        return name, None, None, why


def _bodies(raw: bytes, rejected: list[Rejected]) -> Iterator[tuple[int, _Body | _Wordy]]:
    """(index, body) of each entry that has the right form; the others go to `rejected`."""
    try:
        body = _fast.decode(raw)
        yield from enumerate(body if isinstance(body, list) else [body])
        return
    except msgspec.ValidationError:
        pass  # one by one: one bad entry never loses the good ones
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"the body is not JSON: {error}") from None
    try:
        items = _any.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(f"the body is not JSON: {error}") from None
    if not isinstance(items, dict | list):
        raise BadBody("the body: expected an object with `node` and `gpu` or `host`, or a list of them")
    for index, item in enumerate(items if isinstance(items, list) else [items]):
        try:
            yield index, msgspec.convert(item, _Wordy)
        except msgspec.ValidationError as error:
            rejected.append(Rejected(index, sentence(error)))


def _check_sizes(body: _Body | _Wordy) -> None:
    names = len(body.gpu) + len(body.host) + len(body.links) + sum(map(len, body.ports.values()))
    if names > NAMES_MAX:
        raise _Bad(f"{names} names, at most {NAMES_MAX} are taken")
    for field, lists in (("gpu", body.gpu), ("links", body.links)):
        for name, values in lists.items():
            if len(values) > GPUS_MAX:
                raise _Bad(f"{field}: {name} has {len(values)} GPUs, at most {GPUS_MAX} are taken")
    for name, gpus in body.links.items():
        if any(len(links) > LINKS_MAX for links in gpus):
            raise _Bad(f"links: {name} has more than {LINKS_MAX} links on a GPU")
    for port in body.ports:
        if not port or len(port) > 64 or not port.isprintable():
            raise _Bad(f"ports: {port!r} is no name of a port, such as mlx5_0/1 or eth0")


def _read_words(flat: list[Any], signals: tuple[Signal | None, ...]) -> None:
    for place, value in enumerate(flat):
        if isinstance(value, str):
            signal = signals[place]
            flat[place] = number(signal, value) if signal is not None else None


def _time(text: str, now: datetime) -> datetime:
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise _Bad("time: not an RFC 3339 time, such as 2026-11-20T03:00:00Z") from None
    if at.tzinfo is None:
        raise _Bad("time: has no time zone; write Z or an offset")
    at = moment(at if at.tzinfo is UTC else at.astimezone(UTC), now)
    if at is None:
        raise _Bad(TOO_OLD)
    return at
