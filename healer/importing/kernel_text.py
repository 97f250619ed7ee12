"""Kernel lines in log files: syslog of RFC 3164 and 5424, rsyslog's own form, `dmesg -T`.

A block of lines is searched at once for what healer knows: nearly all lines of a site say nothing of a
fault, and each of them must cost next to nothing.
"""

import itertools
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, time
from typing import Any, NamedTuple

import re2

from healer.importing.controller_log import ControllerLog
from healer.importing.happenings import Found, Lines
from healer.importing.local_stamps import LocalStamps, micros, moment_of, rfc3339
from healer.importing.node_log import WORDS, NodeLog
from healer.importing.node_names import short_name
from healer.importing.source_text import Bytes, blocks, lines_in
from healer.model import LineBook
from healer.model.kernel_lines import AUTOMATON_BYTES, pattern_options
from healer.signals.wire import entries_observations, wrong_node
from healer.text import quoted, say

#: Lines of one node that follow each other within this are one group: a lost GPU takes three lines.
TOGETHER_US, GROUP_MOST = 1_000_000, 500
#: A block of lines of more months is read line by line: a stamp without a year is of the year that puts it
#: nearest to the line before.
MONTHS_MOST = 4
#: Groups that wait for a further line. A sender may invent hosts.
OPEN_MOST = 20_000
_NAMED_GROUP = re.compile(r"\(\?P<\w+>")
#: Looked for in addition to the shapes: lines of the driver, and of Slurm's daemons that write to syslog.
_DRIVER = ("NVRM: ", "nvidia-nvswitch[0-9]", "detected NVSwitch", r"slurmctld(?:\[[0-9]+\])?: ", *WORDS)
_DAEMON = re.compile(r"(?:slurm(?:ctld|d|stepd)|nhc(?:\{\w*\})?)(?:\[\d+\])?: ")

_BSD = (
    r"(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?:(?P<year>\d{4}) )?(?P<clock>\d\d:\d\d:\d\d(?:\.\d{1,9})?)"
)
_ISO = r"(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?P<zone>Z|[+-]\d\d:?\d\d)?"
_PRI = r"(?:<\d{1,3}>)?(?:1 )?"
_HOST = r"[\w.:-]*[\w.-]"
#: `dmesg -T`, `dmesg --time-format iso`: no host. A comma before six digits is dmesg's own.
_DMESG = re.compile(
    r"(?:<\d{1,3}>|kern *:\w+ *: *)?(?:\[[A-Z][a-z]{2} (?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2})"
    r" (?P<clock>\d\d:\d\d:\d\d) (?P<year>\d{4})\]"
    r"|(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d,\d{6})(?P<zone>[+-]\d\d:?\d\d) (?!\S+ kernel: ))"
)
#: The kernel's own stamp counts from a boot that a log does not know; a replay would date the line by it.
_UPTIME = re.compile(r"kernel: ?\[ *\d{1,10}\.\d{1,9}\](?: ?\[ *[TC]\d+\])? ")


class Form(NamedTuple):
    """How each line of a log begins. `head`: its time and its host; a word with a colon behind it begins a
    message. `heard`: the day and the host of each line of a block, for when a host wrote at all; it begins
    with a line's end, which is found much faster than `^`."""

    head: re.Pattern[str]
    heard: re.Pattern[bytes]

    @staticmethod
    def of(before: str, day: str, clock: str) -> "Form":
        return Form(
            re.compile(rf"{before} (?P<host>{_HOST}) "), re.compile(rf"\n{day}{clock} ({_HOST}) ".encode())
        )


_DAY, _CLOCK = r"\d{4}-\d\d-\d\d", r"\d\d:\d\d:\d\d"
_SYSLOG = Form.of(
    rf"{_PRI}(?:{_BSD}|{_ISO})", rf"{_PRI}([A-Z][a-z]{{2}} [ \d]?\d(?: \d{{4}})?|{_DAY})", rf"[ T]{_CLOCK}\S*"
)
_ZONE = r"(?:[A-Z]{2,5}|[+-]\d{2,4})"
#: `journalctl -o short-full`, `-o short-unix`.
_OF_JOURNAL = (
    Form.of(
        rf"[A-Z][a-z]{{2}} (?P<iso>{_DAY} {_CLOCK}(?:\.\d{{1,9}})?) (?P<zone>{_ZONE})",
        rf"[A-Z][a-z]{{2}} ({_DAY})",
        rf" {_CLOCK}\S* {_ZONE}",
    ),
    Form.of(r"(?P<unix>\d{9,10}\.\d{6})", r"(\d{9,10})", r"\.\d{6}"),
)
#: Lines in which a form shows: the journal's own notes are before them.
_FIRST_LINES = 50


def form_of(lines: Sequence[bytes]) -> Form | None:
    """The form of the journal in which most of the first of these lines are; None if that is syslog's. A
    program's own output among them may look like another."""
    texts = [line.decode("utf-8", "replace") for line in lines[:_FIRST_LINES]]
    forms = (_SYSLOG, *_OF_JOURNAL)
    most = max(forms, key=lambda form: sum(form.head.match(text) is not None for text in texts))
    return most if most is not _SYSLOG else None


class Needles:
    """The possible beginnings of kernel lines that healer knows, as one pattern over a block of lines."""

    def __init__(self, book: LineBook) -> None:
        self._book = book
        options = pattern_options()
        options.max_mem, options.never_nl = AUTOMATON_BYTES, True
        options.encoding = re2.Options.Encoding.LATIN1
        shapes = (f"(?:{_NAMED_GROUP.sub('(?:', line.pattern)})" for line in book.lines)
        self._pattern = re2.compile("|".join((*_DRIVER, *shapes)).encode(), options)

    def __reduce__(self) -> tuple[type["Needles"], tuple[LineBook]]:
        return Needles, (self._book,)

    def lines(self, block: bytes) -> Iterator[tuple[int, bytes]]:
        """Where each line of the block begins that may say something, and the line without its end."""
        end = 0
        for match in self._pattern.finditer(block):
            if match.start() < end:
                continue
            start = block.rfind(b"\n", 0, match.start()) + 1
            end = block.find(b"\n", match.end() - 1) + 1 or len(block)
            yield start, block[start:end].rstrip(b"\r\n")


class KernelRecord(NamedTuple):
    at_us: int
    host: str
    text: str
    seq: int | None = None
    boot_id: str | None = None
    #: Another program's word is skipped, the kernel's is of no interest.
    by_kernel: bool = True
    #: The number of the line in its file.
    number: int = 0


class KernelGroups:
    """Lines of hosts -> happenings. What the parser of production does not take is skipped."""

    def __init__(self, found: Found, book: LineBook) -> None:
        self._found, self._book = found, book
        self._open: dict[tuple[str, str | None], list[KernelRecord]] = {}

    def take(self, record: KernelRecord) -> None:
        line = record._replace(number=self._found.tally.lines)
        key = (line.host, line.boot_id)
        group = self._open.get(key)
        if group and (abs(line.at_us - group[-1].at_us) > TOGETHER_US or len(group) >= GROUP_MOST):
            self._close(self._open.pop(key))
        elif not group and len(self._open) >= OPEN_MOST:
            self._close(self._open.pop(next(iter(self._open))))
        self._open.setdefault(key, []).append(line)

    def close(self) -> None:
        for group in self._open.values():
            self._close(group)
        self._open.clear()

    def _close(self, group: list[KernelRecord]) -> None:
        found, host, boot_id = self._found, group[0].host, group[0].boot_id
        if wrong := wrong_node("c", short_name(host), lambda *_: True):
            found.tally.skip(quoted(wrong), group[0].text, len(group), line=group[0].number)
            return
        last_us = max(line.at_us for line in group)
        entries = [_entry(line) for line in group]
        outer = {"cluster": "c", "node": "n", "boot_id": boot_id}
        items = [(index, outer, entry) for index, entry in enumerate(entries)]
        taken = entries_observations(items, lambda *_: True, moment_of(last_us), book=self._book)
        for wrong in taken.rejected:
            line = group[wrong.index]
            found.tally.skip(quoted(wrong.reason), line.text, line=line.number)
        foreign = [not line.by_kernel and taken.unrecognised > 0 for line in group]
        for line in itertools.compress(group, foreign):
            found.tally.skip(say("importing.not_kernels_line"), line.text, line=line.number)
        if not taken.observations:
            found.tally.plain += len(group) - sum(foreign)
            return
        for seen in taken.observations:
            part = f"{seen.component.pci} {seen.code} {seen.text[:60]}"
            found.marks.saw(f"line {short_name(host)} {part}", micros(seen.event_at))
        found.hosts.add(host)
        wrong_ones = {wrong.index for wrong in taken.rejected}
        kept = [
            entry for index, entry in enumerate(entries) if index not in wrong_ones and not foreign[index]
        ]
        found.add(last_us, Lines(host, boot_id, kept), line=group[0].number)


def _entry(line: KernelRecord) -> dict[str, Any]:
    entry: dict[str, Any] = {"time": rfc3339(line.at_us), "line": line.text}
    return entry if line.seq is None else entry | {"seq": line.seq}


class KernelText:
    """One log file. `host`: of `dmesg`, which names none."""

    def __init__(self, found: Found, stamps: LocalStamps, book: LineBook, host: str = "") -> None:
        self._found, self._stamps, self._host = found, stamps, host
        self._groups = KernelGroups(found, book)
        self._needles = Needles(book)
        self._controller, self._slurmd = ControllerLog(found, stamps), NodeLog(found, stamps)
        self._form = Form(_DMESG, _SYSLOG.heard) if host else _SYSLOG
        #: (date, host) of remembered lines.
        self._heard: set[tuple[str, bytes]] = set()
        #: The latest line that may say something.
        self._last: KernelRecord | None = None

    def read(self, file: Bytes) -> None:
        tally = self._found.tally
        for block in blocks(file, tally):
            before, taken = tally.lines, 0
            if not (before or self._host):
                self._form = form_of(block.split(b"\n", _FIRST_LINES)) or _SYSLOG
            heard = [] if self._host else list(dict.fromkeys(self._form.heard.findall(b"\n" + block)))
            is_long = len({day[:3] for day, _ in heard}) > MONTHS_MOST
            ends = self._ends(block, is_long=is_long)
            self._hear(heard)
            for line in lines_in(block, tally) if ends else self._telling(block):
                taken += self._line(line, every=ends)
            tally.plain += max(0, tally.lines - before - taken)
            if is_long:
                self._see(_last_line(block), self._stamps.peek())
            if self._host and (last := tally.last) is not None:
                self._found.hear(self._host, f"{last:%Y-%m-%d}")
        self.close()

    def _telling(self, block: bytes) -> Iterator[bytes]:
        """Lines that may say something; all are counted."""
        tally, counted = self._found.tally, 0
        before = tally.lines
        for start, line in self._needles.lines(block):
            before, counted = before + block.count(b"\n", counted, start), start
            tally.lines = before + 1
            yield line
        tally.lines = before + block.count(b"\n", counted)

    def take_line(self, raw: bytes) -> bool:
        """Whether the line, of a file with other content, may say something and has its time and host."""
        text = raw.decode("utf-8", "replace")
        is_line = self._form.head.match(text) is not None or self._record_before(text) is not None
        return is_line and any(self._needles.lines(raw)) and bool(self._line(raw))

    def close(self) -> None:
        self._groups.close()
        if self._stamps.assumed_year is not None:
            self._found.tally.note(say("importing.no_year", year=self._stamps.assumed_year))

    def _ends(self, block: bytes, *, is_long: bool) -> bool:
        """Notes the time span. True: each line's time counts, as the clock is set within the block, or as it
        is so long that the years of its lines follow only from each other."""
        first = self._see(block[: block.find(b"\n")], self._stamps)
        if is_long:
            return True
        last = self._see(_last_line(block), self._stamps.peek())
        return first is not None and last is not None and self._stamps.changes_between(first, last)

    def _see(self, line: bytes, stamps: LocalStamps) -> int | None:
        moment = self._moment(line.decode("utf-8", "replace"), stamps)
        if moment is None:
            return None
        self._found.tally.saw(moment[0])
        return moment[0]

    def _line(self, raw: bytes, *, every: bool = False) -> int:
        """1 if the line may say something. `every`: only its time is known to matter."""
        text = raw.decode("utf-8", "replace")
        moment = self._moment(text, self._stamps)
        if every and not any(self._needles.lines(raw + b"\n")):
            return 0
        if moment is None:
            if record := self._record_before(text):
                self._take(record._replace(text=text))
            else:
                self._found.tally.skip(say("importing.no_time_and_host"), text)
            return 1
        at_us, host, end = moment
        if daemon := _DAEMON.match(text, end):
            message = text[daemon.end() :]
            if daemon[0].startswith("slurmctld"):
                return self._controller.take(at_us, message)
            return self._slurmd.take(host, at_us, message)
        text = _UPTIME.sub("kernel: ", text, count=1)
        by_kernel = bool(self._host) or text.startswith("kernel", end)
        self._take(KernelRecord(at_us, host, text, by_kernel=by_kernel))
        return 1

    def _record_before(self, text: str) -> KernelRecord | None:
        """The record that an indented line continues: dmesg and journalctl print its inner line ends so."""
        last = self._last
        is_rest = last is not None and text[:1] == " " and last.number == self._found.tally.lines - 1
        return last if is_rest else None

    def _take(self, record: KernelRecord) -> None:
        self._last = record._replace(number=self._found.tally.lines)
        self._groups.take(self._last)

    def _moment(self, text: str, stamps: LocalStamps) -> tuple[int, str, int] | None:
        """(time, host, start of the rest)."""
        match = self._form.head.match(text)
        if match is None:
            return None
        try:
            at_us = _at(match, stamps)
        except ValueError:
            return None
        return at_us, self._host or match["host"], match.end()

    def _hear(self, heard: list[tuple[bytes, bytes]]) -> None:
        """Which hosts wrote on which day, before the lines of that block are read."""
        stamps, dates = self._stamps.peek(), dict[bytes, str]()
        # In the order of the lines, so that the same are remembered wherever a block ends.
        for day, host in heard:
            if day not in dates:
                dates[day] = _date(day, stamps)
            pair = dates[day], host
            if pair not in self._heard and self._found.hear(host.decode("utf-8", "replace"), dates[day]):
                self._heard.add(pair)


def _last_line(block: bytes) -> bytes:
    return block[block.rfind(b"\n", 0, -1) + 1 :]


def _date(day: bytes, stamps: LocalStamps) -> str:
    """A day as a log writes it; empty for one that does not exist."""
    text = day.decode()
    if text.isdigit():
        return f"{moment_of(int(text) * 1_000_000):%Y-%m-%d}"
    if text[:1].isdigit():
        return text
    month, number, *year = text.split()
    try:
        at_us = _of_words(month, number, "12:00:00", year[0] if year else None, stamps)
    except ValueError:
        return ""
    return f"{moment_of(at_us):%Y-%m-%d}"


def _at(match: re.Match[str], stamps: LocalStamps) -> int:
    """Raises ValueError for a date that does not exist."""
    parts = match.groupdict()
    if unix := parts.get("unix"):
        return stamps.at(moment_of(int(unix.replace(".", ""))))
    if iso := parts.get("iso"):
        local, zone = datetime.fromisoformat(iso.replace(",", ".")), parts["zone"] or ""
        if zone in ("UTC", "GMT"):
            zone = "Z"
        if zone[1:].isdigit() or ":" in zone or zone == "Z":
            return micros(datetime.fromisoformat(local.isoformat() + zone))
        return stamps.at(local, zone)
    return _of_words(parts["month"] or "", parts["day"] or "0", parts["clock"] or "", parts["year"], stamps)


def _of_words(month: str, day: str, clock: str, year: str | None, stamps: LocalStamps) -> int:
    """Raises ValueError."""
    if year is None:
        return stamps.without_year(month, int(day), clock)
    date = datetime.strptime(f"{month} {day} {year}", "%b %d %Y")  # noqa: DTZ007
    return stamps.at(datetime.combine(date, time.fromisoformat(clock)))
