"""`POST /signals/openmetrics`: the text that exporters print, in Prometheus' or OpenMetrics' format.

A line is a series and its value. A series is resolved once; after that its text up to the last space is
looked up, so a line costs one split, one look-up and one `float`. Lines with time stamps, exemplars or
unusual spaces take the slow path every time. A scrape that differs from an earlier one only in its values is
read as a whole (`templates`), with the same result.
"""

import math
import re
from datetime import datetime
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model import device_in
from healer.signals.hardware_names import wrong_device
from healer.signals.inventory import Where
from healer.signals.rejects import BadBody, Rejected, Rejects, check_marks
from healer.signals.series import Measured, Placer
from healer.signals.slots import NO_TIME, Samples, Slots
from healer.signals.templates import (
    NO_SAMPLE,
    UNWANTED,
    Key,
    Line,
    Template,
    Templates,
    first_sample_of,
    key_of,
)
from healer.signals.values import float_of, float_or_none
from healer.signals.wire import HasNode, wrong_node
from healer.text import say

LINE_LIMIT = 16_384
#: One exporter prints fewer than 50,000 lines.
LINES_MAX = 1_000_000

_NAME = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]{0,199})(?=[\s{])\s*")
_NO_NAME = re.compile(r"\s*(?=\{)")
_PLAIN = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]{0,199}")
#: A label; or, in quotes and without a value, the name of the series, as Prometheus 3 writes a name with
#: characters other than letters, digits, `_` and `:`. Label names may be quoted too.
_LABEL = re.compile(
    r'\s*(?:([a-zA-Z_][a-zA-Z0-9_]*)|"((?:[^"\\]|\\.)*)")(?:\s*=\s*"((?:[^"\\]|\\.)*)")?\s*(,|(?=\}))'
)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPED = {"n": "\n", '"': '"', "\\": "\\"}
_VALUE = re.compile(r"\s*(\S+)(?:\s+([-+0-9.eE]+))?\s*(?:#.*)?")
_NO_SAMPLE = say("signals.not_a_sample")

_json_numbers = msgspec.json.Decoder(list[float])


class _BadLine(ValueError):
    """Not a sample; the text is the reason."""


class Exposition:
    """Text to reports. Remembers series, bounded: separately for requests that name their node and for
    others."""

    def __init__(self, placer: Placer, cluster: str) -> None:
        self._cluster = cluster
        self._of_node, self._of_labels, self._of_device = (_Memory(placer) for _ in range(3))

    def take(self, raw: bytes, has_node: HasNode, now: datetime, *, node: str | None) -> Measured:
        """Raises BadBody if no line of it is text. An index is a line's number, from 0. `node`: or a device,
        with its mark."""
        check_marks(raw, lines=(b"\n", LINES_MAX))
        where = (self._cluster, node) if node else None
        memory = self._of_labels if where is None else self._of_node
        wrong = wrong_node(*where, has_node) if where is not None else None
        if where is not None and (device := device_in(where[1])) is not None:
            wrong, memory = wrong_device(device, self._cluster, has_node), self._of_device
        if wrong:
            _text(raw, Rejects())
            return Measured(rejected=(Rejected(0, wrong),))
        memory.slots.forget(now)
        return _Reading(memory, has_node, now, where).read(raw)


class _Memory:
    """What is known about series and about whole scrapes."""

    def __init__(self, placer: Placer) -> None:
        self.slots: Slots[str] = Slots(placer, whole=True)
        self.templates = Templates()


def _text(raw: bytes, rejects: Rejects) -> str:
    """The body; a line that is not UTF-8 is rejected and left blank. Raises BadBody if no line is."""
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        first = error.start
    lines: list[str] = []
    for number, line in enumerate(raw.split(b"\n")):
        try:
            lines.append(line.decode())
        except UnicodeDecodeError as error:
            lines.append("")
            if not line.startswith(b"#"):
                rejects.add(number, say("signals.line_not_utf8", byte=error.start))
    if not any(line.strip() for line in lines):
        raise BadBody(say("signals.not_utf8", byte=first))
    return "\n".join(lines)


class _Careful(NamedTuple):
    """A sample whose line is not in the table."""

    slot: int
    value: float
    time: int
    line: int


class _Reading:
    """One request."""

    def __init__(self, memory: _Memory, has_node: HasNode, now: datetime, where: Where | None) -> None:
        self.slots, self.templates = memory.slots, memory.templates
        self.has_node, self.now, self.where = has_node, now, where
        self.out = Measured()
        self.rejects = Rejects()

    def read(self, raw: bytes) -> Measured:
        begin = first_sample_of(self.where[1] if self.where else "", raw)
        fitting = self.templates.read(begin, raw, self.slots.age()) if begin else None
        if fitting is not None:
            self._report_again(*fitting)
        else:
            text = _text(raw, self.rejects)
            plain = self._report_lines(text)
            if begin and plain and self.templates.worth_making(key := key_of(begin, raw)):
                self._remember(key, text)
        self.slots.add_inventory(self.out, self.now)
        return self.out

    def _report_again(self, template: Template, values: NDArray[np.float64]) -> None:
        """Reports the samples of a body that fits the template."""
        for name, count in template.unwanted.items():
            self.slots.unwanted(name, dict, self.out, count)
        prepared = template.prepared
        if prepared is None or not prepared.report(values, self.has_node, self.now, self.out):
            times = np.full(len(values), NO_TIME, np.int64)
            samples = Samples(template.slots, values, times)
            self.slots.report(
                samples, self.has_node, self.now, self.out, where=self.where, rejects=self.rejects
            )

    def _remember(self, key: Key, text: str) -> None:
        """Makes a template of a body in which each line is a known series and its value, or no sample."""
        made: list[Line] = []
        for line in text.split("\n"):
            place = line.rfind(" ") + 1
            series = line[: place - 1] if place else ""
            name = line.partition("{")[0].partition(" ")[0]
            slot = self._slot_of(series)
            if slot is None and _says_nothing(line):
                made.append(Line(line.encode(), NO_SAMPLE))
            elif slot is None and _PLAIN.fullmatch(name) and place and self.slots.is_unwanted(name):
                made.append(Line(line[:place].encode(), UNWANTED, name))
            elif slot is not None:
                made.append(Line(line[:place].encode(), slot))
            else:
                return
        slots = np.array([line.slot for line in made if line.slot >= 0], np.int32)
        template = Template(made, self.slots.age(slots), self.slots.prepare(slots, self.where))
        self.templates.add(key, template)

    def _slot_of(self, series: str) -> int | None:
        # A GPU that is identified only by this node's learnt names is keyed by node and series.
        slot = self.slots.by_key.get(series, self.slots.refused.get(series))
        if slot is None and self.where is not None:
            slot = self.slots.by_key.get(f"{self.where[1]}\n{series}")
        return slot

    def _report_lines(self, text: str) -> bool:
        """Reports line by line. Returns whether all samples are current and all lines were valid."""
        find, refused = self.slots.by_key.get, self.slots.refused.get
        found: list[int] = []
        words: list[str] = []
        numbers: list[int] = []
        careful: list[_Careful] = []
        add_slot, add_word, add_number = found.append, words.append, numbers.append
        for number, line in enumerate(text.split("\n")):
            series, _, word = line.rpartition(" ")
            slot = find(series)
            if slot is None:
                slot = refused(series)
            if slot is not None:
                add_slot(slot)
                add_word(word)
                add_number(number)
            elif not line.startswith("#") and (sample := self._careful(number, line)) is not None:
                careful.append(sample)
        samples = Samples.of(
            found + [sample.slot for sample in careful],
            self._numbers(text, words) + [sample.value for sample in careful],
            [NO_TIME] * len(found) + [sample.time for sample in careful],
        )
        if careful:  # if a series occurs twice, the last line counts
            numbers += [sample.line for sample in careful]
            order = np.argsort(np.array(numbers), kind="stable")
            lines = dict(enumerate(sorted(numbers)))
            samples = Samples(samples.slots[order], samples.values[order], samples.times[order], lines)
        self.slots.report(samples, self.has_node, self.now, self.out, where=self.where, rejects=self.rejects)
        return not self.rejects.count and all(sample.time == NO_TIME for sample in careful)

    def _numbers(self, text: str, words: list[str]) -> list[float]:
        """The values; NaN if a word is not a number, in which case its line is rejected."""
        try:
            # Most numbers that exporters print are JSON numbers, and those are read at a fifth of the cost.
            values = _json_numbers.decode(f"[{','.join(words)}]")
            if len(values) == len(words):
                return values
        except msgspec.DecodeError:
            pass
        values = [float_or_none(word) for word in words]
        wrong = {word for word, value in zip(words, values, strict=True) if value is None}
        for number, line in enumerate(text.split("\n") if wrong else ()):
            series, _, word = line.rpartition(" ")
            if word in wrong and (series in self.slots.by_key or series in self.slots.refused):
                self.rejects.add(number, say("signals.not_a_number", word=repr(word[:40])))
        return [math.nan if value is None else value for value in values]

    def _careful(self, number: int, line: str) -> _Careful | None:
        """The sample of a line that is not in the table; None if it has none."""
        # Most lines that come here have names outside the catalogue: the name alone decides.
        name = line.partition("{")[0].partition(" ")[0]
        if _PLAIN.fullmatch(name) and self.slots.unwanted(name, lambda: _labels(line), self.out):
            return None
        if _says_nothing(line):
            return None
        try:
            name, labels, end = _series(line)
            value, stamp = _value(line[end:])
        except _BadLine as error:
            self.rejects.add(number, error)
            return None
        key = line[:end]
        slot = self._slot_of(key)
        if slot is None:
            node_key = f"{self.where[1]}\n{key}" if self.where is not None else None
            slot = self.slots.add(key, name, labels, self.has_node, self.where, node_key)
        return _Careful(slot, value, stamp, number)


def _series(line: str) -> tuple[str, dict[str, str], int]:
    """(name, labels, where the series ends)."""
    if len(line) > LINE_LIMIT:
        raise _BadLine(say("signals.line_of_text_too_long", most=LINE_LIMIT))
    match = _NAME.match(line) or _NO_NAME.match(line)
    if match is None:
        raise _BadLine(_NO_SAMPLE)
    name, place = match[1] if match.re is _NAME else "", match.end()
    if line[place : place + 1] != "{":
        return name, {}, match.end(1)
    place += 1
    labels: dict[str, str] = {}
    while (match := _LABEL.match(line, place)) is not None:
        plain, quoted, value = match[1], match[2], match[3]
        if value is not None:
            labels[_plain(quoted) if plain is None else plain] = _plain(value)
        elif quoted and not name:
            name = _plain(quoted)
        else:
            break
        place = match.end()
    end = line.find("}", place)
    if end < 0 or line[place:end].strip():
        raise _BadLine(say("signals.labels_unreadable", name=name) if name else _NO_SAMPLE)
    if not name:
        raise _BadLine(_NO_SAMPLE)
    return name, labels, end + 1


def _labels(line: str) -> dict[str, str]:
    """The labels of a line, none when they cannot be read."""
    try:
        return _series(line)[1]
    except _BadLine:
        return {}


def _says_nothing(line: str) -> bool:
    """Whether it is blank or a comment, possibly indented."""
    return line.lstrip(" \t\r")[:1] in ("", "#")


def _plain(quoted: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPED.get(match[1], match[0]), quoted) if "\\" in quoted else quoted


def _value(text: str) -> tuple[float, int]:
    """(value, time in ms since 1970). OpenMetrics uses seconds, Prometheus' own text milliseconds."""
    match = _VALUE.fullmatch(text)
    if match is None:
        raise _BadLine(say("signals.no_value"))
    try:
        value = float_of(match[1])
        stamp = float(match[2]) if match[2] else None
    except ValueError:
        raise _BadLine(say("signals.not_a_number", word=repr(match[0].strip()[:40]))) from None
    if stamp is None:
        return value, NO_TIME
    if math.isnan(stamp) or abs(stamp) > 1e15:
        raise _BadLine(say("signals.bad_timestamp"))
    return value, int(stamp if abs(stamp) > 1e11 else stamp * 1000)
