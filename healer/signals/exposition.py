"""`POST /signals/openmetrics`: the text that exporters print, Prometheus' and OpenMetrics' alike.

A line is a series and its value. What a series means is worked out once; after that its text up to the
closing brace is looked up, so a line costs one split, one look-up and one `float`. Lines with exemplars,
odd spaces or escapes take the careful way every time.
"""

import math
import re
from datetime import datetime

from healer.model import Combine
from healer.signals.gather import Group, at_ms, combined, report, still_known, too_old
from healer.signals.gpu_names import Where
from healer.signals.measured import REJECTED_TOLD, Measured
from healer.signals.series import NO_NODE, NOT_KNOWN, Placer, Series, check_labels, example
from healer.signals.values import is_blank
from healer.signals.wire import BadBody, Known, Rejected, wrong_node

#: Series remembered by one process, then forgotten all at once.
SERIES_MAX = 500_000
LINE_LIMIT = 16_384

_NAME = re.compile(r"\s*([a-zA-Z_:][a-zA-Z0-9_:]{0,199})(?=[\s{])\s*")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(,|(?=\}))')
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_VALUE = re.compile(r"\s*(\S+)(?:\s+([-+0-9.eE]+))?\s*(?:#.*)?")


class _BadLine(ValueError):
    """Not a sample; the text says why."""


class Exposition:
    """Text -> reports. Remembers series, bounded."""

    def __init__(self, placer: Placer, cluster: str) -> None:
        self._placer, self._cluster = placer, cluster
        self._generation = placer.gpus.generation
        #: By the text up to the closing brace: of requests that name their node, and of the others.
        self._of_node: dict[str, Series] = {}
        self._of_labels: dict[str, Series] = {}

    def take(self, raw: bytes, known: Known, now: datetime, *, node: str | None) -> Measured:
        """Raises BadBody when it is not text. An index is a line's number, from 0."""
        try:
            text = raw.decode()
        except UnicodeDecodeError as error:
            raise BadBody(f"the body is not UTF-8: byte {error.start}") from None
        where = (self._cluster, node) if node else None
        if where is not None and (wrong := wrong_node(*where, known)):
            return Measured(rejected=(Rejected(0, wrong),))
        self._forget()
        return _Reading(self, self._placer, known, now, where).read(text)

    def cache(self, where: Where | None) -> dict[str, Series]:
        return self._of_labels if where is None else self._of_node

    def _forget(self) -> None:
        if self._generation != self._placer.gpus.generation:
            self._of_node.clear()
            self._of_labels.clear()
            self._generation = self._placer.gpus.generation
        for cache in (self._of_node, self._of_labels):
            if len(cache) >= SERIES_MAX // 2:
                cache.clear()


class _Reading:
    """One request."""

    def __init__(
        self, owner: Exposition, placer: Placer, known: Known, now: datetime, where: Where | None
    ) -> None:
        self.placer, self.known, self.now, self.where = placer, known, now, where
        self.cache = owner.cache(where)
        self.out = Measured()
        self.rejected: list[Rejected] = []
        #: Columns and values by node and time; series of which several make one number, apart.
        self.groups: dict[Group, tuple[list[int], list[float]]] = {}
        self.first_line: dict[Group, int] = {}
        self.several: dict[tuple[Group, int], float] = {}

    def read(self, text: str) -> Measured:
        find, where, last = self.cache.get, self.where, Combine.last
        group: Group | None = None
        columns: list[int] = []
        values: list[float] = []
        for number, line in enumerate(text.split("\n")):
            key, brace, rest = line.rpartition("} ")
            if not brace:
                key, _, rest = line.partition(" ")
            series = find(key)
            if series is None or not (series.portable or where is None or series.where == where):
                found = self._first_time(number, line)
                if found is None:
                    continue
                series, rest = found
            stamp = None
            try:
                value = float(rest)
            except ValueError:
                try:
                    value, stamp = _value(rest)
                except _BadLine as error:
                    self._reject(number, str(error))
                    continue
            if series.scale != 1.0:
                value = math.nan if is_blank(value) else value * series.scale
            place = (where or series.where, stamp)
            if place != group:
                group = place
                columns, values = self.groups.setdefault(place, ([], []))
                self.first_line.setdefault(place, number)
            if series.combine is last:
                columns.append(series.column)
                values.append(value)
            else:
                which = (place, series.column)
                value = math.nan if is_blank(value) else value
                self.several[which] = combined(series.combine, self.several.get(which), value)
        return self._done()

    def _first_time(self, number: int, line: str) -> tuple[Series, str] | None:
        """A line whose series is not known yet: the series and the text after it; None when it has none."""
        # Most lines that come here are of names that nobody wants: they are told by the name alone.
        name = line.partition("{")[0].partition(" ")[0]
        if not name or line[0] == "#" or line.isspace():
            return None
        if name not in self.placer.names and _NAME.fullmatch(name + " "):
            self.out.unplaced(name, NOT_KNOWN)
            return None
        try:
            name, labels, end = _series(line)
        except _BadLine as error:
            self._reject(number, str(error))
            return None
        found = check_labels(labels) or self.placer.place(name, labels, self.known, self.where)
        if isinstance(found, str):
            self.out.unplaced(name, found, example=example(labels))
            return None
        if line[end - 1] == "}":
            self.cache[line[: end - 1]] = found
        elif not labels:
            self.cache[name] = found
        return found, line[end:]

    def _reject(self, number: int, reason: str) -> None:
        if len(self.rejected) < REJECTED_TOLD:
            self.rejected.append(Rejected(number, reason))

    def _done(self) -> Measured:
        for (group, column), value in self.several.items():
            columns, values = self.groups[group]
            columns.append(column)
            values.append(value)
        seen: dict[Where, bool] = {}
        for group, (columns, values) in self.groups.items():
            where, stamp = group
            at = self.now if stamp is None else at_ms(stamp, self.now)
            if at is None:
                too_old(self.rejected, self.first_line[group], where)
            elif not still_known(where, self.known, seen):
                self.out.unplaced("", NO_NODE, len(columns), {"node": where[1]})
            else:
                report(where, at, self.now, columns, values, self.out)
        self.out.rejected = tuple(sorted(self.rejected, key=lambda one: one.index))
        self.out.inventory = self.placer.gpus.inventory({where for where, _ in self.groups}, self.now)
        return self.out


def _series(line: str) -> tuple[str, dict[str, str], int]:
    """(name, labels, where the series ends)."""
    if len(line) > LINE_LIMIT:
        raise _BadLine(f"a line of more than {LINE_LIMIT} characters")
    match = _NAME.match(line)
    if match is None:
        raise _BadLine("not a sample: a name, labels in braces and a number")
    name, place = match[1], match.end()
    if line[place : place + 1] != "{":
        return name, {}, match.end(1)
    place += 1
    labels: dict[str, str] = {}
    while True:
        match = _LABEL.match(line, place)
        if match is None:
            break
        value = match[2]
        labels[match[1]] = _ESCAPE.sub(_unescaped, value) if "\\" in value else value
        place = match.end()
    end = line.find("}", place)
    if end < 0 or line[place:end].strip():
        raise _BadLine(f"the labels of {name} cannot be read")
    return name, labels, end + 1


def _unescaped(match: re.Match[str]) -> str:
    return {"n": "\n", '"': '"', "\\": "\\"}.get(match[1], match[0])


def _value(text: str) -> tuple[float, int | None]:
    """(value, time in ms since 1970). OpenMetrics tells seconds, Prometheus' own text milliseconds."""
    match = _VALUE.fullmatch(text)
    if match is None:
        raise _BadLine("no value after the series")
    try:
        value = float(match[1])
        stamp = float(match[2]) if match[2] else None
    except ValueError:
        raise _BadLine(f"{match[0].strip()[:40]!r} is not a number") from None
    if stamp is None:
        return value, None
    if math.isnan(stamp) or abs(stamp) > 1e15:
        raise _BadLine("the time stamp is not a time")
    return value, int(stamp if abs(stamp) > 1e11 else stamp * 1000)
