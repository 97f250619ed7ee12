"""Samples: the text exposition, `promtool tsdb dump`, and answers of `/api/v1/query_range`.

Only names that healer's catalogue of signals has are kept. They go into the recording as the text that
`signals/openmetrics` takes, each with its time, so the parser of production reads them.
"""

import re
from collections.abc import Container, Iterable, Mapping, Sequence

import msgspec

from healer.importing.happenings import Found, Sampled
from healer.importing.json_parts import objects
from healer.importing.source_text import Bytes, pieces, texts_of
from healer.text import say

#: Text of one happening, and of one minute in the recording.
TEXT_BYTES = 256 << 10
_MINUTE_US = 60_000_000
#: How much of a decoder's message is kept.
_WHY_LETTERS = 100
_NAME = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(\{.*\})?\s+(\S+)(?:\s+(-?[0-9.eE+]+))?\s*$")
#: `promtool tsdb dump` writes the name as a label.
_DUMPED = re.compile(r'\{__name__="([a-zA-Z_:][a-zA-Z0-9_:]*)"(?:, ?)?(.*)\}\s+(\S+)\s+(\d{1,15})\s*$')
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


class MeasuredText:
    """One file. `names`: of the catalogue. `written_us`: the time of samples that have none."""

    def __init__(self, found: Found, names: Container[str], written_us: int) -> None:
        self._found, self._names, self._written_us = found, names, written_us
        self._minute = -1
        self._last_us = 0
        self._held: list[str] = []
        self._held_bytes = 0

    def read(self, file: Bytes) -> None:
        tally = self._found.tally
        for line in texts_of(file, tally):
            if not line.strip() or line.startswith("#"):
                tally.plain += 1
            else:
                self._line(line)
        self._flush()

    def _line(self, line: str) -> None:
        if dumped := _DUMPED.match(line):
            name, labels, value, stamp = dumped.groups()
            self._take(name, f"{{{labels.replace(', ', ',')}}}", value, int(stamp))
            return
        match = _NAME.match(line)
        if match is None:
            self._found.tally.skip(say("importing.no_sample"), line)
            return
        name, labels, value, stamp = match.groups()
        try:
            at_ms = self._written_us // 1000 if stamp is None else _milliseconds(stamp)
        except (ValueError, OverflowError):
            self._found.tally.skip(say("importing.no_time"), line)
            return
        self._take(name, labels or "", value, at_ms)

    def read_ranges(self, file: Bytes) -> None:
        """`data.result` of a range query: a series with its values in each object."""
        tally = self._found.tally
        for raw in objects(pieces(file, tally), "result", tally):
            tally.lines += 1
            try:
                series = _series(raw)
                points = _points(series.values or [series.value or (0, "")])
            except (ValueError, OverflowError, RecursionError) as error:
                tally.skip(say("importing.no_series", why=str(error)[:_WHY_LETTERS]), raw)
                continue
            name, text = _named(series.metric)
            for at_ms, value in points:
                self._take(name, text, value, at_ms)
        self._flush()

    def take_series(
        self, series: Iterable[tuple[Mapping[str, str], Sequence[tuple[float, str]]]], after_ms: int
    ) -> None:
        """Series of one window, each with its labels; samples up to `after_ms` are of the window before."""
        samples = [
            (at_ms, *_named(labels), value)
            for labels, points in series
            for at_ms, value in _points(points)
            if at_ms > after_ms
        ]
        for at_ms, name, text, value in sorted(samples):
            self._take(name, text, value, at_ms)
        self._flush()

    def _take(self, name: str, labels: str, value: str, at_ms: int) -> None:
        if name not in self._names:
            self._found.tally.skip(say("importing.unknown_name"), name)
            return
        at_us = at_ms * 1000
        text = f"{name}{labels} {value} {at_ms}\n"
        if at_us // _MINUTE_US != self._minute or self._held_bytes > TEXT_BYTES:
            self._flush()
            self._minute = at_us // _MINUTE_US
        self._last_us = max(self._last_us, at_us) if self._held else at_us
        self._held.append(text)
        self._held_bytes += len(text)

    def _flush(self) -> None:
        if self._held:
            self._found.add(self._last_us, Sampled("".join(self._held)), len(self._held), line=0)
        self._held, self._held_bytes = [], 0


def _milliseconds(stamp: str) -> int:
    """Prometheus writes milliseconds, OpenMetrics seconds with a fraction."""
    number = float(stamp)
    return round(number * 1000) if abs(number) < 1e11 else round(number)


def _points(points: Iterable[tuple[float, str]]) -> list[tuple[int, str]]:
    """(ms since 1970, value) of each. Raises OverflowError and ValueError."""
    return [(round(at_s * 1000), value) for at_s, value in points]


def _named(metric: Mapping[str, str]) -> tuple[str, str]:
    """The name, and the other labels as the text exposition writes them."""
    labels = sorted((key, value) for key, value in metric.items() if key != "__name__")
    text = ",".join(f'{key}="{value.translate(_ESCAPES)}"' for key, value in labels)
    return metric.get("__name__", ""), f"{{{text}}}"


class _Series(msgspec.Struct):
    metric: Mapping[str, str]
    values: list[tuple[float, str]] = []
    value: tuple[float, str] | None = None


_series = msgspec.json.Decoder(_Series).decode
