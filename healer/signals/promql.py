"""Answers of a Prometheus-compatible server (`/api/v1/query`, `/api/v1/query_range`) -> reports.

Its JSON is that of Prometheus' HTTP API, which VictoriaMetrics, Mimir and Thanos speak too: `data.resultType`
is `vector` (one sample of each series) or `matrix` (several), times are seconds with fractions, values are
strings. A series is identified by the raw bytes of its labels.
"""

import math
import re
from collections.abc import Iterable, Sequence
from datetime import datetime

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model import Catalogue, Combine, Signal
from healer.ports.measurements import ANSWER_BYTES_MAX
from healer.signals.inventory import Where
from healer.signals.rejects import NOT_JSON, BadBody
from healer.signals.series import NODE_LABELS, Measured, Placer, expanded
from healer.signals.slots import Samples, Slots
from healer.signals.values import blanks_to_nan, is_plain
from healer.signals.wire import HasNode
from healer.text import said_by, say

_MS = 1000
#: (times in s since 1970, values), (n,) each, by time.
Line = tuple[NDArray[np.float64], NDArray[np.float64]]
_SERIES = ("vector", "matrix")


class _Series(msgspec.Struct):
    metric: msgspec.Raw
    value: tuple[float, str] | None = None
    values: list[tuple[float, str]] = []


class _Data(msgspec.Struct, frozen=True):
    resultType: str = ""
    result: msgspec.Raw = msgspec.Raw(b"[]")


class _Answer(msgspec.Struct):
    status: str
    data: _Data = _Data()
    error: str = ""
    isPartial: bool = False
    warnings: msgspec.Raw = msgspec.Raw(b"null")


class _Names(msgspec.Struct):
    status: str
    data: list[str] = []
    error: str = ""


_answer = msgspec.json.Decoder(_Answer)
_series = msgspec.json.Decoder(list[_Series])
_names = msgspec.json.Decoder(_Names)
_labels = msgspec.json.Decoder(dict[str, str])
_warnings = msgspec.json.Decoder(list[str] | None)


class QueryResults:
    """Answers to reports. Remembers series, bounded. Samples of one moment are complete: a scrape, a
    query."""

    def __init__(self, placer: Placer) -> None:
        self._slots: Slots[bytes] = Slots(placer, whole=True)

    def take(self, raw: bytes, has_node: HasNode, now: datetime, *, signal: str = "") -> Measured:
        """`signal`: the signal of every series, whatever its name in the answer. Raises BadBody."""
        slots, out = self._slots, Measured()
        slots.forget(now)
        found: list[int] = []
        counts: list[int] = []
        values: list[str] = []
        times: list[float] = []
        for series in result(raw):
            samples = series.values if series.value is None else [series.value]
            if not samples:
                continue
            # Under a signal's own name the same labels are a different series than under the server's name.
            key = signal.encode() + bytes(series.metric)
            slot = slots.by_key.get(key)
            if slot is None:
                slot = slots.refused.get(key)
            if slot is None:
                slot = slots.add(key, *_named(series.metric, signal), has_node)
            found.append(slot)
            counts.append(len(samples))
            times += [at for at, _ in samples]
            values += [value for _, value in samples]
        taken = Samples(np.repeat(np.array(found, np.int32), counts), _floats(values), _milliseconds(times))
        slots.report(taken, has_node, now, out)
        slots.add_inventory(out, now)
        return out

    def lines(self, raw: bytes, has_node: HasNode) -> dict[tuple[Where, int], Line]:
        """(node, column) -> its points, for pages; of any age. Raises BadBody."""
        parts: dict[tuple[Where, int], tuple[Combine, list[Line]]] = {}
        for series in result(raw):
            found = self._slots.placer.place(*_named(series.metric, ""), has_node)
            samples = series.values if series.value is None else [series.value]
            if isinstance(found, str) or not samples:
                continue
            values = blanks_to_nan(_floats([value for _, value in samples])) * found.scale
            line = (np.array([at for at, _ in samples], np.float64), values)
            parts.setdefault((found.where, found.column), (found.combine, []))[1].append(line)
        return {key: _combined(how, lines) for key, (how, lines) in parts.items()}


_TOGETHER = {Combine.sum: np.add, Combine.max: np.maximum, Combine.min: np.minimum}


def _combined(how: Combine, lines: Sequence[Line]) -> Line:
    """Several series of one column as one: at each moment combined as the catalogue's `combine` says."""
    times = np.concatenate([at for at, _ in lines])
    values = np.concatenate([part for _, part in lines])
    valid = ~np.isnan(values)
    order = np.argsort(times[valid], kind="stable")
    times, values = times[valid][order], values[valid][order]
    if not len(times):
        return times, values
    first = np.flatnonzero(np.append(True, times[1:] != times[:-1]))
    if how in _TOGETHER:
        return times[first], _TOGETHER[how].reduceat(values, first)
    return times[first], values[np.append(first[1:], len(values)) - 1]


def result(raw: bytes) -> list[_Series]:
    """The series of an answer. Raises BadBody, including if the server reports an error."""
    return _decoded(raw)[1]


def result_and_lack(raw: bytes) -> tuple[list[_Series], str]:
    """The series, and why they are incomplete, for example VictoriaMetrics without one of its stores or
    Thanos without one of its sources. Empty for a complete answer. Raises BadBody."""
    answer, series = _decoded(raw)
    try:
        warnings = _warnings.decode(answer.warnings)
    except NOT_JSON as error:
        raise BadBody(say("signals.not_prometheus", error=said_by(error))) from None
    return series, next(iter(warnings or ()), "isPartial" if answer.isPartial else "")[:300]


def _decoded(raw: bytes) -> tuple[_Answer, list[_Series]]:
    if len(raw) > ANSWER_BYTES_MAX:
        raise BadBody(say("signals.answer_too_large", most=ANSWER_BYTES_MAX))
    try:
        answer = _answer.decode(raw)
        if answer.status != "success":
            raise BadBody(say("signals.server_says", error=answer.error[:300] or answer.status[:300]))
        if answer.data.resultType not in _SERIES:
            raise BadBody(say("signals.answer_kind", kind=answer.data.resultType[:50]))
        return answer, _series.decode(answer.data.result)
    except NOT_JSON as error:
        raise BadBody(say("signals.not_prometheus", error=said_by(error))) from None


def decode_names(raw: bytes) -> list[str]:
    """The names in an answer of `/api/v1/label/__name__/values`. Raises BadBody."""
    try:
        answer = _names.decode(raw)
    except NOT_JSON as error:
        raise BadBody(say("signals.not_prometheus", error=said_by(error))) from None
    if answer.status != "success":
        raise BadBody(say("signals.server_says", error=answer.error[:300] or answer.status[:300]))
    return answer.data


def _named(metric: msgspec.Raw, signal: str) -> tuple[str, dict[str, str]]:
    try:
        labels = _labels.decode(metric)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise BadBody(say("signals.labels_not_text")) from None
    name = labels.pop("__name__", "")
    return signal or name, labels


def _floats(values: Sequence[str]) -> np.ndarray:
    try:
        if not is_plain("".join(values)):
            raise ValueError
        return np.array(values, np.float64) if values else np.zeros(0)
    except ValueError:
        raise BadBody(say("signals.value_not_number")) from None


def _milliseconds(times: Sequence[float]) -> np.ndarray:
    with np.errstate(over="ignore"):  # too large values become infinite, and are refused
        at = np.array(times, np.float64) * _MS
    if not np.all(np.abs(at) < 1e15):
        raise BadBody(say("signals.time_not_time"))
    return at.astype(np.int64)


# --- queries --------------------------------------------------------------------------------------------


def signals_by_series_name(catalogue: Catalogue) -> dict[str, list[str]]:
    """Possible names of the catalogue's signals in a Prometheus -> the signals."""
    found: dict[str, list[str]] = {}
    for signal in catalogue.signals.values():
        for name in series_names(signal):
            found.setdefault(name, []).append(signal.name)
    return found


def series_names(signal: Signal) -> list[str]:
    """A signal's own name and its aliases, except those of nvidia-smi; none for a derived signal."""
    if signal.derived:
        return []
    names = [signal.name]
    for alias in signal.aliases:
        if alias.name.startswith("nvidia-smi:"):
            continue
        names += [name for name, _ in expanded(alias)]
    return list(dict.fromkeys(names))


def selector(names: Iterable[str], matchers: str = "") -> str:
    """A selector of series by name: `{__name__=~"a|b"}`."""
    forms = "|".join(re.escape(name).replace("\\", "\\\\") for name in names)
    return f'{{__name__=~"{forms}"{"," + matchers if matchers else ""}}}'


def node_selector(names: Iterable[str], node: str, matchers: str = "") -> str:
    """The series of these names with a label that may name the node, with or without a domain or a port.

    More than the node's own series may match; the labels then decide, in the order used by every form.
    """
    series_names = list(names)
    form = re.escape(node).replace("\\", "\\\\") + "([.:].*)?"
    more = f",{matchers}" if matchers else ""
    return " or ".join(selector(series_names, f'{label}=~"{form}"{more}') for label in NODE_LABELS)


def chart_step_s(span_s: float, points: int) -> int:
    """Whole seconds between points of a chart, at least the windows' five."""
    return max(5, math.ceil(span_s / points))
