"""What stands before the kernel's own words in a log line: dmesg, syslog, journald, /dev/kmsg.

A line with the tag of another program is not a kernel line, whatever it says: anybody may run `logger`.
(A person who sets the tag to `kernel` cannot be told apart in text; senders should read the kernel's own
transport, `journalctl -k` or /dev/kmsg.)
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec


class Prefix(msgspec.Struct, frozen=True):
    """`content` is the kernel's words; the rest is what the prefix tells, see `ParsedLine`."""

    content: str
    stamp: str | None = None
    stamp_at: datetime | None = None
    stamp_local: datetime | None = None
    seq: int | None = None
    #: The line is indented: it goes on with the record of the line before.
    continues: bool = False


_START = re.compile(r"NVRM: |nvidia-nvswitch\d")
#: Colours, as `dmesg --color=always` and some consoles print them. The kernel escapes those of programs.
_COLOURS = re.compile("\x1b\\[[0-9;]{0,16}m")
# Control characters and lone surrogates: no log prints them, and PostgreSQL's JSON cannot hold all of them.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")

# What rsyslog makes of a line that comes again: the kernel's words stand in brackets.
_REPEATED = re.compile(r"(?P<before>.{0,120}?kernel: )message repeated \d{1,9} times: \[ ?(?P<said>.*)\]")

# `dmesg -d` and `journalctl -o short-delta` put the time since the line before behind it.
_MONO = r"\[\s*(?P<mono>\d{1,10}\.\d{1,9})(?:\s*<\s*\d{0,10}\.?\d{0,9}\s*>)?\]"
_CALLER = r"(?: ?\[\s*[TC]\d+\])?"  # CONFIG_PRINTK_CALLER
_ISO = r"(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
_MONTH_DAY = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s{1,2}\d{1,2}"
_BSD = rf"(?P<bsd>{_MONTH_DAY} \d\d:\d\d:\d\d(?:\.\d{{1,9}})?)"
_DAY = (
    rf"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<day>{_MONTH_DAY} \d\d:\d\d:\d\d \d{{4}})"
    r"(?:\s*<\s*\d{0,10}\.?\d{0,9}\s*>)?\]"
)
# dmesg -H and -e: the minute, or the time since the line before; neither says when it was.
_RELATIVE = r"\[(?:[A-Z][a-z]{2}\s?\d{1,2} \d\d:\d\d|\s*\+\d{1,10}\.\d{1,9})\]"
# journalctl -o short-full: the zone is a name, and only one name says for sure which.
_FULL = (
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<full>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)"
    r" (?P<zone>[A-Z]{2,5}|[+-]\d{2,4})"
)
_HOST = r"[\w.:-]*[\w.-]"
_PRI = r"(?:<(?P<pri>\d{1,3})>)?"
# rsyslog keeps the kernel's own stamp after the tag, journald takes it away.
_AFTER_TAG = rf"(?:{_MONO}{_CALLER}\s*)?"

#: The forms, most frequent first. A prefix has to fit one of them whole.
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"{_PRI}(?:kern\s*:\w+\s*:\s*)?{_MONO}{_CALLER}\s+",  # dmesg, dmesg -r, dmesg -x
        rf"{_PRI}(?:{_BSD}|{_ISO}|{_DAY}|(?P<unix>\d{{9,11}}\.\d{{1,9}})) {_HOST} kernel: {_AFTER_TAG}",
        # dmesg -T, dmesg --time-format iso, dmesg -H
        rf"{_PRI}(?:kern\s*:\w+\s*:\s*)?(?:{_DAY}|\[?{_ISO}\]?|{_RELATIVE}){_CALLER}\s+",
        rf"{_PRI}(?:{_HOST} )?kernel: {_AFTER_TAG}",  # the time cut off, or kept elsewhere
        # BusyBox's syslogd, or a syslog without the host
        rf"{_PRI}{_BSD} (?:(?:{_HOST} )?kern\.\w{{3,7}} )?kernel: {_AFTER_TAG}",
        r"kern\s*:\w+\s*:\s+",  # dmesg -x -t
        rf"{_FULL} {_HOST} kernel: ",
        r"\[\.\.\.\]\s+",  # the time cut out, as NVIDIA's documents show lines
        _PRI,
        rf"{_MONO} {_HOST} kernel: ",  # journalctl -o short-monotonic, short-delta
        r"(?P<kmsg_pri>\d{1,3}),(?P<seq>\d{1,18}),(?P<mono_us>\d{1,16}),[\w+=,-]{0,40};",  # /dev/kmsg
        rf"{_PRI}1 {_ISO} {_HOST} kernel \S+ \S+ (?:-|(?:\[[^\]]*\])+) \ufeff? ?{_AFTER_TAG}",  # RFC 5424
    )
)
# Priorities are facility * 8 + level; the kernel's facility is 0.
_KERNEL_PRIORITIES = range(8)


def split_prefix(line: str) -> Prefix | None:
    """Cuts the prefix off. None when no driver line starts here, or another program than the kernel spoke."""
    if _START.search(line) is None:
        return None
    line = clean(line)
    start = _START.search(line)
    if start is None or _CONTROL.search(line):
        return None
    at = start.start()
    content = line[at:].rstrip()
    if at == 0:
        return Prefix(content)
    before = line[:at].lstrip()
    if not before:
        return Prefix(content, continues=True)
    for form in _FORMS:
        if match := form.fullmatch(before):
            return _prefix(content, match.groupdict())
    return None


def clean(line: str) -> str:
    """Without its end, without colours, and without rsyslog's words around what comes again."""
    if "\x1b" in line:
        line = _COLOURS.sub("", line)
    line = line.rstrip("\r\n")
    if "message repeated" in line and (match := _REPEATED.fullmatch(line)):
        line = match["before"] + match["said"]
    return line


def readings(line: str) -> Iterator[Prefix]:
    """A line of the kernel whose begin nobody knows: each way to cut off a prefix that fits.

    The whole line is one of them, so whoever looks for words in it has to look from their first letter.
    """
    line = clean(line)
    if _CONTROL.search(line):
        return
    for form in _FORMS:
        if (match := form.match(line)) and (
            prefix := _prefix(line[match.end() :].strip(), match.groupdict())
        ):
            yield prefix


def _prefix(content: str, said: dict[str, str | None]) -> Prefix | None:
    priority = said.get("pri") or said.get("kmsg_pri")
    if priority and int(priority) not in _KERNEL_PRIORITIES:
        return None
    seq = said.get("seq")
    stamp = said.get("mono")
    if micros := said.get("mono_us"):  # as dmesg prints it, so that both routes give one identity
        stamp = f"{int(micros) // 1_000_000}.{int(micros) % 1_000_000:06d}"
    at, local = _moment(said)
    dated = said.get("iso") or said.get("full") or said.get("bsd") or said.get("day") or said.get("unix")
    return Prefix(content, stamp or dated, at, local, int(seq) if seq else None)


def _moment(said: dict[str, str | None]) -> tuple[datetime | None, datetime | None]:
    """(the moment, the same without a zone): at most one of the two is known."""
    try:
        if unix := said.get("unix"):
            return datetime.fromtimestamp(float(unix), UTC), None
        if iso := said.get("iso"):
            moment = datetime.fromisoformat(iso.replace(",", "."))
            return (moment.astimezone(UTC), None) if moment.tzinfo else (None, moment)
        if full := said.get("full"):
            moment = datetime.fromisoformat(full)
            return (moment.replace(tzinfo=UTC), None) if said["zone"] == "UTC" else (None, moment)
        if day := said.get("day"):
            return None, datetime.strptime(" ".join(day.split()), "%b %d %H:%M:%S %Y")  # noqa: DTZ007
        if bsd := said.get("bsd"):
            # Syslog names no year. 1904 stands for "unknown" because it has a 29 February.
            words = " ".join(bsd.partition(".")[0].split())
            return None, datetime.strptime(f"{words} 1904", "%b %d %H:%M:%S %Y")  # noqa: DTZ007
    except (ValueError, OverflowError):
        return None, None  # a date that does not exist (30 February): the line still counts
    return None, None


#: The year of `stamp_local` when the stamp names none.
NO_YEAR = 1904
