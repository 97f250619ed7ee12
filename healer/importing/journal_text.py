"""Kernel lines of systemd's journal: `journalctl -o json` and its kin, `journalctl -o export`.

Only a record that journald itself marks as the kernel's counts; its fields are judged by `signals.logs`.
"""

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from healer.importing.happenings import Found
from healer.importing.kernel_text import KernelGroups, KernelRecord
from healer.importing.local_stamps import is_time, micros, moment_of
from healer.importing.source_text import Bytes, blocks, lines_in, pieces
from healer.model import LineBook
from healer.signals.logs import (
    export_records,
    fields_and_marks,
    is_kernel_record,
    json_records,
    kernel_entry,
)
from healer.signals.rejects import BadBody, BadEntry, utc_time
from healer.signals.wire import is_id, normal_boot_id
from healer.text import quoted, said_by, say

#: What a record of the kernel has to hold; the others are only counted.
_KERNEL = re.compile(rb'"_TRANSPORT"\s*:\s*"kernel"|imkmsg|imjournal')
#: Of one that is spread over several lines, in one of the first.
_SPREAD = re.compile(rb'\s*"(?:__REALTIME_TIMESTAMP|_TRANSPORT)"\s*:')
_HOST = re.compile(rb'"_HOSTNAME"\s*:\s*"([\w.:-]{1,253})"')
_TIME = re.compile(rb'"__REALTIME_TIMESTAMP"\s*:\s*"(\d{1,40})"')
_EXPORTED_HOST = re.compile(rb"^_HOSTNAME=([\w.:-]{1,253})$", re.MULTILINE)
_EXPORTED_TIME = re.compile(rb"^__REALTIME_TIMESTAMP=(\d{1,40})$", re.MULTILINE)
#: The longest record of the export format that is kept.
RECORD_BYTES = 4 << 20
_SIZE_BYTES = 8
#: How much of a decoder's message is kept.
_WHY_LETTERS = 100
_DAY_US = 86_400_000_000


class JournalText:
    """One file. `host`: if the records name none."""

    def __init__(self, found: Found, book: LineBook, host: str = "") -> None:
        self._found, self._host = found, host
        self._groups = KernelGroups(found, book)
        #: (host, day as a number) -> heard.
        self._heard: set[tuple[bytes, int]] = set()
        #: Lines of a record that is spread over several.
        self._spread: list[bytes] = []
        self._spread_bytes = 0

    def read_json(self, file: Bytes) -> None:
        """One object on each line, or over several, as `json-pretty` and jq print it."""
        for block in blocks(file, self._found.tally):
            taken, is_spread = 0, bool(self._spread)
            for each in lines_in(block, self._found.tally):
                line = without_mark(each)
                if self._spread or line.strip() == b"{":
                    is_spread = True
                    taken += self._spread_line(line)
                elif _KERNEL.search(line) is not None:
                    taken += 1
                    self._json(line)
            self._found.tally.plain += block.count(b"\n") - taken
            if not is_spread:
                self._hear(_HOST.findall(block), _TIME.findall(block))
        self._without_end()
        self._end()

    def _spread_line(self, line: bytes) -> int:
        """How many lines are read with this one: all of a record that it ends."""
        if self._spread and line.rstrip() == self._spread[0].rstrip():
            self._without_end()
        self._spread_bytes = self._spread_bytes + len(line) if self._spread else 0
        self._spread.append(line)
        if line.rstrip().removesuffix(b",") != self._spread[0].rstrip().replace(b"{", b"}"):
            if self._spread_bytes > RECORD_BYTES:
                self._found.tally.skip(say("importing.long_record", mib=RECORD_BYTES >> 20), self._spread[1])
                self._spread.clear()
            return 0
        count, raw = len(self._spread), b"\n".join(self._spread).rstrip().removesuffix(b",")
        self._spread.clear()
        self._hear(_HOST.findall(raw)[:1], _TIME.findall(raw)[:1])
        if _KERNEL.search(raw) is None:
            return 0
        self._json(raw)
        return count

    def _without_end(self) -> None:
        """A record that was cut off, or a lone bracket: lines behind it may be records."""
        raw = b"\n".join(self._spread)
        self._spread.clear()
        if _KERNEL.search(raw) is not None:
            self._json(raw)

    def _json(self, raw: bytes) -> None:
        try:
            records = json_records(raw)
        except (BadBody, ValueError) as error:
            self._found.tally.skip(say("importing.not_json", why=str(error)[:_WHY_LETTERS]), raw)
            return
        for record in records:
            if record.wrong:
                self._found.tally.skip(quoted(record.wrong), raw)
            else:
                self._record(record.places[0], raw)

    def read_export(self, file: Bytes) -> None:
        for raw in self._exported(self._as_written(pieces(file, self._found.tally))):
            self._found.tally.lines += 1
            self._hear(_EXPORTED_HOST.findall(raw)[:1], _EXPORTED_TIME.findall(raw)[:1])
            if b"\n_TRANSPORT=kernel\n" not in b"\n" + raw + b"\n":
                self._found.tally.plain += 1
                continue
            try:
                for fields in export_records(raw + b"\n"):
                    self._record(fields, raw)
            except BadBody as error:
                self._found.tally.skip(say("importing.broken_record", why=str(error)[:_WHY_LETTERS]), raw)
        self._end()

    def _as_written(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Its bytes before Windows's line ends were put into it, up to the first field with a size: that size
        may be wrong now, and what a program wrote into the field would pass for a record."""
        first, why = next(parts, b""), None
        parts = itertools.chain((first,), parts)
        if not first.partition(b"\n")[0].endswith(b"\r"):
            yield from parts
            return
        rest = b""
        for each in itertools.chain(parts, (None,)):
            part = (b"\r\n" if rest else b"") if each is None else each
            *lines, rest = (rest + part).split(b"\r\n")
            whole = list(itertools.takewhile(_is_plain_field, lines))
            yield b"".join(line + b"\n" for line in whole)
            if len(whole) < len(lines):
                why = say("importing.changed_line_ends")
            elif len(rest) > RECORD_BYTES:
                why = say("importing.long_record", mib=RECORD_BYTES >> 20)
            if why is not None:
                self._found.tally.skip(why, (lines[len(whole) :] or [rest])[0][:100])
                return

    def _exported(self, parts: Iterator[bytes]) -> Iterator[bytes]:
        """Records, each with its last line end. The size of a binary field is respected: text that a program
        wrote into one is never read as a record."""
        held, place, left, is_long = b"", 0, 0, False
        for part in parts:
            held += part[left:]
            left = max(0, left - len(part))
            start = 0
            while (after := _next_field(held, place)) is not None and after <= len(held):
                if after - place == 1:
                    if not is_long:
                        yield held[start:place]
                    start, is_long = after, False
                place = after
            held, place = held[start:], place - start
            if len(held) > RECORD_BYTES:
                if not is_long:
                    self._found.tally.skip(say("importing.long_record", mib=RECORD_BYTES >> 20), held[:100])
                held, left = _dropped(held[place:])
                place, is_long = 0, True
        if held.strip() and not is_long:
            yield held

    def _record(self, item: Mapping[Any, Any], raw: bytes) -> None:
        fields, marks = fields_and_marks((item,))
        if not is_kernel_record(marks):
            self._found.tally.skip(say("importing.not_of_kernel"), raw)
            return
        try:
            outer, entry = kernel_entry(fields, None, lambda *_: False, cluster="", node=self._host or None)
            at_us = micros(utc_time(entry.get("time") or ""))
        except (BadEntry, ValueError) as error:
            self._found.tally.skip(said_by(error), raw)
            return
        boot_id = normal_boot_id(outer["boot_id"])
        if not outer["node"] or not is_id(boot_id):
            self._found.tally.skip(say("importing.no_host"), raw)
            return
        self._found.tally.saw(at_us)
        self._groups.take(KernelRecord(at_us, outer["node"], entry["line"], entry.get("seq"), boot_id))

    def _hear(self, hosts: list[bytes], times: list[bytes]) -> None:
        if len(hosts) == len(times):
            days = dict.fromkeys((host, int(at) // _DAY_US) for host, at in zip(hosts, times, strict=True))
            for host, day in days:
                if (host, day) not in self._heard and is_time(day * _DAY_US):
                    name = host.decode("utf-8", "replace")
                    if self._found.hear(name, f"{moment_of(day * _DAY_US):%Y-%m-%d}"):
                        self._heard.add((host, day))
        if times:
            self._found.tally.saw(int(times[0]))
            self._found.tally.saw(int(times[-1]))

    def _end(self) -> None:
        self._groups.close()


def _is_plain_field(line: bytes) -> bool:
    """Whether it is `NAME=value`, or the end of a record."""
    return not line or (b"=" in line and b"\n" not in line)


def _next_field(held: bytes, place: int) -> int | None:
    """Where the field that begins at `place` ends, which may be behind what is here; None: it is not known
    yet."""
    end = held.find(b"\n", place) + 1
    if not end:
        return None
    if end - place == 1 or b"=" in held[place:end]:
        return end
    size = held[end : end + _SIZE_BYTES]
    return None if len(size) < _SIZE_BYTES else end + _SIZE_BYTES + int.from_bytes(size, "little") + 1


def _dropped(field: bytes) -> tuple[bytes, int]:
    """Of the last field of a record that is too long: what is kept of it, and how many bytes are to come."""
    after = _next_field(field, 0)
    if after is not None:
        return b"", after - len(field)
    return (b"_=" if len(field) > RECORD_BYTES else field), 0


def is_record(line: bytes) -> bool:
    """Whether a line is a record as `journalctl -o json` or a template of rsyslog prints it."""
    raw = without_mark(line)
    if not raw.startswith(b"{"):
        return False
    try:
        item = msgspec.json.decode(raw)
    except (ValueError, RecursionError):
        return False
    return isinstance(item, dict) and bool({"__REALTIME_TIMESTAMP", "_TRANSPORT", "inputname"} & item.keys())


def is_spread_record(lines: Sequence[bytes]) -> bool:
    """Whether a file whose first lines these are, without blank ones, begins with such a record over several
    lines."""
    begin = lines[1:] if lines[0].strip() == b"[" else lines
    return len(begin) > 0 and begin[0].strip() == b"{" and any(map(_SPREAD.match, begin[1:200]))


def without_mark(line: bytes) -> bytes:
    """Without what `json-seq` and `json-sse` put before each record."""
    return line.removeprefix(b"\x1e").removeprefix(b"data: ")
