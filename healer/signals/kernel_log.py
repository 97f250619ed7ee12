"""Kernel-log lines of the NVIDIA driver, parsed. Pure: bytes, not meaning; no clock, no catalogue.

The forms are those of the driver's own format strings (open GPU kernel modules 595.45) and of lines seen in
the field; `docs/signals.md` lists them. Lines without a code are found by the shapes of a `LineBook`. Any
other line, and any line that is not the kernel's, gives None.
"""

import functools
import re
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from healer.model import NO_LINES, LineBook, ObservationKind
from healer.model.kernel_lines import CONTENT_MAX, Pattern, encodable

# --- prefix -------------------------------------------------------------------------------------------------
# The text before the kernel's own message in a log line: dmesg, syslog, journald, /dev/kmsg.
#
# A line with the tag of another program is not a kernel line, whatever it says: anyone may run `logger`.
# (A user who sets the tag to `kernel` cannot be detected in text; senders should read the kernel's own
# transport, `journalctl -k` or /dev/kmsg.)


class Prefix(msgspec.Struct, frozen=True):
    """`content` is the kernel's message; the rest comes from the prefix, see `ParsedLine`."""

    content: str
    stamp: str | None = None
    stamp_at: datetime | None = None
    stamp_local: datetime | None = None
    seq: int | None = None
    #: The line is indented: it continues the record of the line before.
    continues: bool = False


_START = re.compile(r"NVRM: |nvidia-nvswitch\d")
_CODED = ("NVRM: Xid", "nvidia-nvswitch")
#: Colours, as `dmesg --color=always` and some consoles print them. The kernel escapes those of programs.
COLOURS = re.compile("\x1b\\[[0-9;]{0,16}m")
# Control characters and lone surrogates: no log prints them, and PostgreSQL's JSON cannot hold all of them.
_CONTROL = re.compile("[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")

# rsyslog folds repeated lines and puts the kernel's message in brackets.
_REPEATED = re.compile(r"(?P<before>.{0,120}?kernel: )message repeated \d{1,9} times: \[ ?(?P<said>.*)\]")

# `dmesg -d` and `journalctl -o short-delta` put the time since the line before behind it.
_MONO = r"\[\s*(?P<mono>\d{1,10}\.\d{1,9})(?:\s*<\s*\d{0,10}\.?\d{0,9}\s*>)?\]"
_CALLER = r"(?: ?\[\s*[TC]\d+\])?"  # CONFIG_PRINTK_CALLER
_ISO = r"(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?)"
_MONTH_DAY = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s{1,2}\d{1,2}"
_BSD = rf"(?P<bsd>{_MONTH_DAY}(?: \d{{4}})? \d\d:\d\d:\d\d(?:\.\d{{1,9}})?)"
_DAY = (
    rf"\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<day>{_MONTH_DAY} \d\d:\d\d:\d\d \d{{4}})"
    r"(?:\s*<\s*\d{0,10}\.?\d{0,9}\s*>)?\]"
)
# dmesg -H and -e: the minute, or the time since the line before; neither gives the time.
_RELATIVE = r"\[(?:[A-Z][a-z]{2}\s?\d{1,2} \d\d:\d\d|\s*\+\d{1,10}\.\d{1,9})\]"
# journalctl -o short-full: the zone is a name, and only one name is unambiguous.
_FULL = (
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) (?P<full>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)"
    r" (?P<zone>[A-Z]{2,5}|[+-]\d{2,4})"
)
_HOST = r"[\w.:-]*[\w.-]"
_PRI = r"(?:<(?P<pri>\d{1,3})>)?"
# rsyslog keeps the kernel's own stamp after the tag, journald removes it.
_AFTER_TAG = rf"(?:{_MONO}{_CALLER}\s*)?"

#: The forms, most frequent first. A prefix must match one of them completely.
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"{_PRI}(?:kern\s*:\w+\s*:\s*)?{_MONO}{_CALLER}\s+",  # dmesg, dmesg -r, dmesg -x
        rf"{_PRI}(?:{_BSD}|{_ISO}|{_DAY}|(?P<unix>\d{{9,11}}\.\d{{1,9}})) {_HOST} kernel: ?{_AFTER_TAG}",
        # dmesg -T, dmesg --time-format iso, dmesg -H
        rf"{_PRI}(?:kern\s*:\w+\s*:\s*)?(?:{_DAY}|\[?{_ISO}\]?|{_RELATIVE}){_CALLER}\s+",
        rf"{_PRI}(?:{_HOST} )?kernel: ?{_AFTER_TAG}",  # the time cut off, or kept elsewhere
        # BusyBox's syslogd, or a syslog without the host
        rf"{_PRI}{_BSD} (?:(?:{_HOST} )?kern\.\w{{3,7}} )?kernel: ?{_AFTER_TAG}",
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
    """Cuts the prefix off. None if no driver line starts here, or if another program than the kernel wrote
    it."""
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
    if line[:at] == " " and content.startswith(_CODED):
        return Prefix(content)  # rsyslog's property `msg` keeps the blank after the tag
    if not before:
        return Prefix(content, continues=True)
    for form in _FORMS:
        if match := form.fullmatch(before):
            return _prefix(content, match.groupdict())
    return None


def one_line(record: str) -> str:
    """A record with its inner line ends in the form of /dev/kmsg, `\\x0a`: the text after one is not a
    separate line, whatever a process wrote there. rsyslog writes them as `#012`."""
    record = record.replace("#012", "\n").strip("\r\n")
    return record.replace("\r\n", "\n").replace("\n", "\\x0a")


def clean(line: str) -> str:
    """The line without its end, without colours, and without rsyslog's words around a repeated message."""
    if "\x1b" in line:
        line = COLOURS.sub("", line)
    line = one_line(line)
    if "message repeated" in line and (match := _REPEATED.fullmatch(line)):
        line = match["before"] + match["said"]
    return line


def possible_prefixes(line: str) -> Iterator[Prefix]:
    """For a line that may begin anywhere: each way to cut off a matching prefix.

    The whole line is one of them, so patterns must match from its first letter.
    """
    line = clean(line)
    if _CONTROL.search(line):
        return
    for form in _FORMS:
        if (match := form.match(line)) and (
            prefix := _prefix(line[match.end() :].strip(), match.groupdict())
        ):
            yield prefix


def _prefix(content: str, parts: dict[str, str | None]) -> Prefix | None:
    priority = parts.get("pri") or parts.get("kmsg_pri")
    if priority and int(priority) not in _KERNEL_PRIORITIES:
        return None
    seq = parts.get("seq")
    stamp = parts.get("mono")
    if micros := parts.get("mono_us"):  # as dmesg prints it, so that both routes give one identity
        stamp = f"{int(micros) // 1_000_000}.{int(micros) % 1_000_000:06d}"
    at, local = _moment(parts)
    dated = parts.get("iso") or parts.get("full") or parts.get("bsd") or parts.get("day") or parts.get("unix")
    return Prefix(content, stamp or dated, at, local, int(seq) if seq else None)


def _moment(parts: dict[str, str | None]) -> tuple[datetime | None, datetime | None]:
    """(the time, the same without a zone): at most one of the two is known."""
    try:
        if unix := parts.get("unix"):
            return datetime.fromtimestamp(float(unix), UTC), None
        if iso := parts.get("iso"):
            moment = datetime.fromisoformat(iso.replace(",", "."))
            return (moment.astimezone(UTC), None) if moment.tzinfo else (None, moment)
        if full := parts.get("full"):
            moment = datetime.fromisoformat(full)
            return (moment.replace(tzinfo=UTC), None) if parts["zone"] == "UTC" else (None, moment)
        if day := parts.get("day"):
            return None, datetime.strptime(" ".join(day.split()), "%b %d %H:%M:%S %Y")  # noqa: DTZ007
        if bsd := parts.get("bsd"):
            # Few programs write a year. 1904 means "unknown": it has a 29 February.
            month, day, *year, clock = bsd.partition(".")[0].split()
            words = f"{month} {day} {clock} {year[0] if year else NO_YEAR}"
            return None, datetime.strptime(words, "%b %d %H:%M:%S %Y")  # noqa: DTZ007
    except (ValueError, OverflowError):
        return None, None  # a date that does not exist (30 February): the line still counts
    return None, None


#: The year of `stamp_local` when the stamp names none.
NO_YEAR = 1904


# --- kernel log ---------------------------------------------------------------------------------------------


class ParsedLine(msgspec.Struct, frozen=True, kw_only=True):
    """One recognised line.

    `content` is the line without its prefix, `stamp` the time stamp as in the prefix, `stamp_at` its exact
    time (None if its zone is unknown and it matters), `seq` the kernel's sequence number if the prefix has
    one. `pci` is in the form `0000:9b:00`. `data` holds fields of this kind only, see `Observation.data`;
    `follow_up` in it marks a line that belongs to another line's event.
    """

    kind: ObservationKind
    content: str
    text: str
    code: int | None = None
    pci: str | None = None
    link: int | None = None
    switch: str | None = None
    nic: str | None = None
    stamp: str | None = None
    stamp_at: datetime | None = None
    #: The stamp as a date without zone: only good for "certainly long ago".
    stamp_local: datetime | None = None
    seq: int | None = None
    data: dict[str, Any] = {}

    @property
    def follow_up(self) -> bool:
        return bool(self.data.get("follow_up"))


_BDF = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"

# Shortened logs give a PCI address without its domain: 0 is meant.
_SHORT = r"(?P<pci>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2})(?:\.[0-7])?"

_XID = re.compile(
    rf"NVRM: Xid\s+\((?:PCI:)?{_SHORT}(?:\s+GPU-I:(?P<gi>\d{{1,3}}))?(?:\s+GPU-CI:(?P<ci>\d{{1,3}}))?\):\s*"
    r"(?P<code>\d{1,5})(?:,\s*(?P<body>.*))?$"
)
# A process name is at most 15 characters in the kernel, and may contain commas, colons and brackets: relevant
# text is therefore parsed from the end, where no user writes.
_PROCESS = re.compile(r"pid=(?P<pid>\d+|'?<?unknown>?'?)(?:,\s*|$)(?:name=(?P<name>.{0,64}?)(?:,\s+|$))?")
_CAUSED_BY = re.compile(r"caused by previous Xid (\d{1,5})\.?\s*$")
_ACTION = re.compile(
    r"recovery action changed(?: from (?:0x(?P<old>[0-9a-fA-F]+) ?)?(?:\((?P<old_words>[^()]*)\))?)?"
    r" to (?:0x(?P<new>[0-9a-fA-F]+)(?: \((?P<new_words>[^()]*)\))?|\((?P<words_alone>[^()]*)\))\.?\s*$"
)
#: What remains of such a line in reports: only the action.
_ACTION_ALONE = re.compile(r"\(?(?P<new_words>[A-Za-z0-9 ]{4,40})\)?\.?\s*$")
_RESET_FLAGS = re.compile(r"RST: (Yes|No), D-RST: (Yes|No)\.?\s*$")
_GPC = re.compile(r"\(GPC (\d+), TPC (\d+)(?:, SM (\d+))?\)")
_XID74 = re.compile(r"on link (?P<link>\d+)\s*\((?P<registers>[0-9a-fA-Fx, ]+)\)\.?\s*$")
# The catalogue names some units twice, as `TLW_RX/TLW_RX_PIPE0`; a line that was cut lacks its bracket.
_NVLINK5 = re.compile(
    r"(?:^|,\s)(?P<unit>[A-Za-z]\w*(?:/\w+)?(?: \w+)?)\s+(?P<word>Fatal|Non-?fatal)\s+(?P<cross>XC[01])"
    r"\s+i(?P<instance>\d+)\s+Link\s+(?P<link>-?\d+)\s*\((?P<words>[0-9a-fA-Fx ]+)\)?\s*$"
)
_NVLINK5_XIDS = range(144, 151)
#: A link's number has no more digits.
LINK_DIGITS = 3

_SXID = re.compile(
    rf"nvidia-nvswitch(?P<switch>\d{{1,3}}): SXid\s+\((?:PCI:)?{_SHORT}\):\s*(?P<code>\d{{5}})"
    r"(?:,\s*(?P<text>.*))?$"
)
_SXID_WORD = re.compile(r"(Fatal|Non-fatal|Nonfatal|Correctable)\b")
_SXID_LINK = re.compile(r"\bLink (\d+)\b")
_SXID_MORE = re.compile(r"Severity \d+ Engine instance |Data \{")

_IDENTITY = re.compile(rf"NVRM: GPU at PCI:{_BDF}: (?P<uuid>GPU-[0-9a-fA-F-]{{36}})$")
_LOST = re.compile(rf"NVRM: GPU (?:at )?(?:PCI:)?{_SHORT}:? (?:GPU )?has fallen off the bus\.?$")
# The fabric manager's own log: no line of the kernel, but none that a user's `logger` could make either.
_FABRIC = re.compile(
    rf"\[(?P<stamp>[A-Z][a-z]{{2}} \d\d \d{{4}} \d\d:\d\d:\d\d)\] \[[A-Z]+\] \[tid \d+\] detected NVSwitch "
    rf"(?P<word>fatal|non-fatal) error (?P<code>\d{{5}}) on (?:fid|NodeId) \d+ on NVSwitch pci "
    rf"bus id {_BDF} physical id (?P<switch>\d+) port (?P<port>\d+)\.?$"
)

# A GPU's loss reported over several lines, matched completely in the driver's own words: a user can get a
# program's name into a kernel line (`NAME[pid]: segfault at … in FILE[…]`), so text found within a line
# proves nothing. The line that states the loss is the event by itself; with its neighbours (`parse_batch`),
# or if all are one record, it also gets the address.
_PCI_ID = r"\(PCI ID: [0-9a-fA-F]{4}:[0-9a-fA-F]{4}\)"
_SAYS = (
    r"(?:fallen off the bus and is not responding to commands\.?"
    r"|installed in this system is not supported by the)"
)
_RELEASE = r"(?:the )?NVIDIA [0-9.]+ driver release\.?"
#: A line's end within one record, as shown by /dev/kmsg.
_END = r" ?\\x0aNVRM: "
_LOST_FIRST = re.compile(
    rf"NVRM: The NVIDIA GPU {_BDF}(?: {_PCI_ID})?"
    rf"(?P<says>(?:{_END}{_PCI_ID} installed in this system has)?{_END}{_SAYS}(?:{_END}{_RELEASE})?)?$"
)
_LOST_MIDDLE = re.compile(rf"NVRM: (?:(?:{_PCI_ID} )?installed in this system has|{_RELEASE})$")
_LOST_SAYS = re.compile(rf"NVRM: {_SAYS}$")
#: The most lines between the first line of such a message and the one that states the loss.
_LOST_REACH = 4


def parse_line(line: str, book: LineBook = NO_LINES) -> ParsedLine | None:
    """One line, with or without a prefix. None: not recognised. Never raises."""
    prefix = split_prefix(line)
    found = None if prefix is None else _driver_line(prefix)
    if found is None and (shapes := book.candidates(clean(line).strip())):
        found = _shaped(line, shapes)
    if found is None and "detected NVSwitch" in line:
        found = _fabric_manager(line)
    return found


def _driver_line(prefix: Prefix) -> ParsedLine | None:
    content = prefix.content
    if prefix.continues:
        return _rest_of_loss(prefix)
    if content.startswith("NVRM: Xid"):
        return _xid(prefix)
    if content.startswith("nvidia-nvswitch"):
        return _sxid(prefix)
    return _gpu_line(prefix)


def parse_batch(lines: Sequence[str], book: LineBook = NO_LINES) -> list[ParsedLine | None]:
    """Lines of one node in order; one result per line. Joins a GPU's loss that spans three lines."""
    parsed = [parse_line(line, book) for line in lines]
    for index, first in enumerate(parsed):
        if first is None or not first.data.get("opens_loss"):
            continue
        for later in range(index + 1, min(index + 1 + _LOST_REACH, len(parsed))):
            other = parsed[later]
            if other is None or other.kind is not ObservationKind.gpu_lost or other.pci:
                continue
            if not other.follow_up or other.data.get("says_loss"):
                words = other.content.removeprefix("NVRM: ")
                parsed[later] = msgspec.structs.replace(
                    other,
                    pci=first.pci,
                    content=f"{first.content} {words}",
                    stamp=first.stamp or other.stamp,
                    data={},
                )
                break
    return parsed


def normal_pci(address: str) -> str | None:
    """`00000000:9B:00.0` -> `0000:9b:00`; None if it is not a PCI address."""
    match = re.fullmatch(rf"(?:PCI:)?{_BDF}", address.strip())
    return _pci(match["pci"]) if match else None


@functools.lru_cache(maxsize=16_384)
def _pci(address: str) -> str:
    """The address from a match of `_BDF` or `_SHORT`."""
    *domain, bus, device = address.lower().split(":")
    return f"{int(domain[0], 16) if domain else 0:04x}:{bus}:{device}"


def _line(prefix: Prefix, kind: ObservationKind, **fields: Any) -> ParsedLine:
    return ParsedLine(
        kind=kind,
        content=prefix.content,
        stamp=prefix.stamp,
        stamp_at=prefix.stamp_at,
        stamp_local=prefix.stamp_local,
        seq=prefix.seq,
        **fields,
    )


def _xid(prefix: Prefix) -> ParsedLine | None:
    match = _XID.match(prefix.content)
    if match is None:
        return None
    code = int(match["code"])
    data: dict[str, Any] = {}
    if match["gi"]:
        data["gpu_instance"] = int(match["gi"])
    if match["ci"]:
        data["compute_instance"] = int(match["ci"])
    text = match["body"] or ""
    process = _PROCESS.match(text)
    if process:
        text = text[process.end() :]
        if process["pid"].isdigit():
            data["pid"] = int(process["pid"])
        if process["name"] and process["name"] != "<unknown>":
            data["process"] = process["name"]
    link = _xid_details(code, text, data)
    return _line(
        prefix,
        ObservationKind.xid,
        code=code,
        pci=_pci(match["pci"]),
        link=link,
        text=text.strip(),
        data=data,
    )


def _xid_details(code: int, text: str, data: dict[str, Any]) -> int | None:
    """Adds the details in this Xid's text to `data`; returns the NVLink number if the text names one."""
    if code in _NVLINK5_XIDS:
        return _nvlink5(text, data)
    if code == 74 and (match := _XID74.search(text)):
        data["registers"] = _numbers(match["registers"].replace(",", " "))
        return _link(match["link"])
    if code == 45 and (match := _CAUSED_BY.search(text)):
        data["caused_by"] = int(match[1])
    elif code == 154:
        _recovery_action(text, data)
    elif match := _RESET_FLAGS.search(text):
        data["rst"], data["d_rst"] = match[1] == "Yes", match[2] == "Yes"
    elif code == 13 and (match := _GPC.search(text)):
        data["gpc"], data["tpc"] = int(match[1]), int(match[2])
        if match[3]:
            data["sm"] = int(match[3])
    return None


def _recovery_action(text: str, data: dict[str, Any]) -> None:
    if match := _ACTION.search(text):
        data["recovery_words"] = match["new_words"] or match["words_alone"] or ""
        if match["new"]:
            data["recovery_action"] = int(match["new"], 16)
    elif match := _ACTION_ALONE.match(text):
        data["recovery_words"] = match["new_words"].strip()


def _nvlink5(text: str, data: dict[str, Any]) -> int | None:
    match = _NVLINK5.search(text)
    if match is None:
        return None
    data["unit"] = match["unit"]
    data["fatal_word"] = match["word"].replace("-", "")
    data["cross_contained"] = match["cross"] == "XC1"
    data["words"] = _numbers(match["words"])
    return _link(match["link"])


def _link(text: str) -> int | None:
    """None for -1, which means no link, and for numbers that no GPU or switch has."""
    return int(text) if text.isdecimal() and len(text) <= LINK_DIGITS else None


def _numbers(text: str) -> list[int]:
    """`0x0 0x10000` -> [0, 65536]; empty if a word is not a number, or does not fit into a 32-bit
    register."""
    words = text.split()
    if all(re.fullmatch(r"(?:0x)?[0-9a-fA-F]{1,8}", word) for word in words):
        return [int(word, 16) for word in words]
    return []


def _sxid(prefix: Prefix) -> ParsedLine | None:
    match = _SXID.match(prefix.content)
    if match is None:
        return None
    text = (match["text"] or "").strip()
    data: dict[str, Any] = {}
    if _SXID_MORE.match(text):
        data["follow_up"] = True
    if word := _SXID_WORD.match(text):
        data["fatal_word"] = word[1].replace("Nonfatal", "Non-fatal")
    link = _SXID_LINK.search(text)
    return _line(
        prefix,
        ObservationKind.sxid,
        code=int(match["code"]),
        pci=_pci(match["pci"]),
        link=_link(link[1]) if link else None,
        switch=f"nvswitch{match['switch']}",
        text=text,
        data=data,
    )


def _gpu_line(prefix: Prefix) -> ParsedLine | None:
    content = prefix.content
    if match := _IDENTITY.match(content):
        uuid = match["uuid"]
        return _line(
            prefix, ObservationKind.gpu_identity, pci=_pci(match["pci"]), text=uuid, data={"uuid": uuid}
        )
    text = content.removeprefix("NVRM: ").strip()
    lost = ObservationKind.gpu_lost
    if match := _LOST.match(content):
        return _line(prefix, lost, pci=_pci(match["pci"]), text=text)
    if match := _LOST_FIRST.match(content):
        pci = _pci(match["pci"])
        if match["says"]:
            return _line(prefix, lost, pci=pci, text=text)
        return _line(prefix, lost, pci=pci, text=text, data={"follow_up": True, "opens_loss": True})
    if _LOST_SAYS.match(content):
        return _line(prefix, lost, text=text)
    if _LOST_MIDDLE.match(content):
        return _line(prefix, lost, text=text, data={"follow_up": True})
    return None


def _rest_of_loss(prefix: Prefix) -> ParsedLine | None:
    """An indented line: `dmesg` and `journalctl` indent the text after a line end within one record.

    A file name may contain a line end too, so such a line is no event by itself: it only counts after the
    first line of a GPU's loss, which only the driver can write.
    """
    text = prefix.content.removeprefix("NVRM: ")
    if _LOST_SAYS.match(prefix.content):
        data = {"follow_up": True, "says_loss": True}
    elif _LOST_MIDDLE.match(prefix.content):
        data = {"follow_up": True}
    else:
        return None
    return _line(prefix, ObservationKind.gpu_lost, text=text, data=data)


# --- lines without a code ---------------------------------------------------------------------------------


def _shaped(line: str, shapes: Sequence[tuple[str, Pattern]]) -> ParsedLine | None:
    """A line that one of the shapes matches completely."""
    for prefix in possible_prefixes(line):
        content = prefix.content
        if len(content) > CONTENT_MAX:
            continue
        for name, pattern in shapes:
            if match := pattern.fullmatch(encodable(content)):
                groups = {key: value for key, value in match.groupdict().items() if value}
                pci = groups.get("pci")
                return _line(
                    prefix,
                    ObservationKind.kernel_line,
                    pci=normal_pci(pci) if pci else None,
                    nic=groups.get("nic"),
                    text=content,
                    data={"name": name, **groups},
                )
    return None


def _fabric_manager(line: str) -> ParsedLine | None:
    """The fabric manager's report of an NVSwitch error: the same event as the driver's SXid."""
    match = _FABRIC.match(clean(line).strip())
    if match is None:
        return None
    try:
        local = datetime.strptime(match["stamp"], "%b %d %Y %H:%M:%S")  # noqa: DTZ007
    except ValueError:
        local = None  # a date that does not exist: the line still counts
    return ParsedLine(
        kind=ObservationKind.sxid,
        content=match[0],
        code=int(match["code"]),
        pci=_pci(match["pci"]),
        link=int(match["port"]),
        switch=f"nvswitch-id{match['switch']}",
        stamp=match["stamp"],
        stamp_local=local,
        text=match[0].rpartition("] ")[2],
        data={"fatal_word": match["word"].capitalize(), "fabric_manager": True},
    )
