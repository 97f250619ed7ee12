"""`POST /signals/logs`: records of log shippers -> the kernel lines among them.

A record is an object as journalctl, Vector, Fluent Bit and rsyslog's templates print them, or one record of
the journal's export format. Only what its shipper marks as the kernel's counts (`is_kernel_record`); the
rest is counted as `not_kernel` and not read.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec

from healer.model import NO_LINES, LineBook
from healer.signals.kernel_log import one_line
from healer.signals.rejects import NOT_JSON, BadBody, BadEntry, check_marks, map_of, pairs_of
from healer.signals.wire import (
    ENTRIES_MAX,
    Accepted,
    HasNode,
    check_entries,
    entries_observations,
    slurm_name,
)
from healer.text import NO_WORDS, Said, said_by, say

# --- syslog -------------------------------------------------------------------------------------------------
# What proves that a record of a log shipper is the kernel's own line.
#
# Text proves nothing: anyone who runs programs on a node can write `<0>` or `kern.err` to /dev/log, and
# rsyslog's imuxsock trusts the facility. What counts is the source named by the shipper: journald's
# `_TRANSPORT`, or the name of rsyslog's input.

#: Inputs of rsyslog that read the kernel record by record. Not imklog: it reads /proc/kmsg, where a line end
#: within a record, such as one in the name of a file that crashed, begins a line of its own.
KERNEL_INPUTS = frozenset({"imkmsg"})
#: The input that reads the journal, which names the transport itself.
JOURNAL_INPUT = "imjournal"
#: Names that shippers use for the facility: journald, rsyslog's templates, Vector and the collector.
FACILITY_NAMES = ("syslog_facility", "facility", "syslogfacility", "syslogfacility-text", "facility_text")
_KERNEL_FACILITY = frozenset({0, "0", "kern", "kernel"})
#: Fields that show a line's origin; all values under one of these names must agree. Any program may choose a
#: `transport` without `_`: it proves nothing, but a value other than the kernel's still counts against it.
MARKS = frozenset({"_transport", "transport", "inputname", "source_type", *FACILITY_NAMES})
#: Fields that journald's kernel records never have: of the process that wrote a line
#: (systemd.journal-fields(7)), of a container's output, and of a file.
_OTHERS = frozenset(
    {
        "_pid", "_uid", "_gid", "_comm", "_exe", "_cmdline", "_cap_effective", "_audit_session",
        "_audit_loginuid", "_systemd_unit", "_systemd_user_unit", "_systemd_cgroup", "_systemd_slice",
        "_systemd_session", "_systemd_owner_uid", "_stream_id", "_line_break", "uid", "gid", "systemd_unit",
        "stream", "file", "filename", "log.iostream", "log.file.name", "log.file.path",
    }
)  # fmt: skip
_OTHERS_BEGIN = ("kubernetes", "container_")
#: Vector's name of the source that reads the journal.
_JOURNAL_SOURCE = "journald"
#: Collects the marks that no kernel record has.
OTHER = "another origin"


def is_origin_mark(name: str) -> bool:
    """Whether a field of this name, in lower case, says something about the origin of a line."""
    return name in MARKS or is_foreign_field(name)


def is_foreign_field(name: str) -> bool:
    return name in _OTHERS or name.startswith(_OTHERS_BEGIN)


def fields_and_marks(places: Iterable[Mapping[Any, Any]]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """(fields by lower-case name, all values of the names that show an origin).

    Shippers write journald's names in upper or lower case. `places` come in increasing priority: a later
    field overrides an earlier one, but a mark is never overridden, not even by another of its name in the
    same place (`Repeated`).
    """
    fields: dict[str, Any] = {}
    marks: dict[str, list[Any]] = {}
    for place in places:
        for name, value in pairs_of(place):
            key = str(name).lower()
            fields[key] = value
            if key in MARKS:
                # INPUTNAME is a field that any program may give to journald; rsyslog's own is small.
                mark = key if key != "inputname" or name == key else OTHER
                marks.setdefault(mark, []).append(value)
            elif is_foreign_field(key):
                marks.setdefault(OTHER, []).append(key)
    return fields, marks


def is_kernel_record(marks: Mapping[str, list[Any]]) -> bool:
    """Whether the shipper marks the record as the kernel's. Any contrary mark rules that out.

    - `_TRANSPORT` is `kernel`, with or without a facility;
    - or `inputname` is one of KERNEL_INPUTS and the facility is given.
    A given facility must be the kernel's, 0: root may write to /dev/kmsg with another one. And no field names
    a process, a container or a file.
    """
    transports, inputs = marks.get("_transport", []), marks.get("inputname", [])
    facilities = [value for name in FACILITY_NAMES for value in marks.get(name, ())]
    if OTHER in marks or any(value != _JOURNAL_SOURCE for value in marks.get("source_type", ())):
        return False
    if any(value != "kernel" for value in (*transports, *marks.get("transport", ()))):
        return False
    if any(isinstance(value, bool) or not _in(value, _KERNEL_FACILITY) for value in facilities):
        return False
    if any(value == JOURNAL_INPUT for value in inputs):
        return bool(transports) and all(value == JOURNAL_INPUT for value in inputs)
    if any(not _in(value, KERNEL_INPUTS) for value in inputs):
        return False
    return bool(transports) or (bool(inputs) and bool(facilities))


def _in(value: Any, words: frozenset[Any]) -> bool:
    return isinstance(value, str | int) and value in words


# --- journal ------------------------------------------------------------------------------------------------
# Records of systemd's journal: the export format as bytes, and the meaning of its fields for a kernel line.
#
# Formats: systemd's documents JOURNAL_EXPORT_FORMATS and systemd.journal-fields(7). Fields whose name begins
# with `_` come from journald itself: no client can set them.

#: Fields of one record; the journal itself takes at most 1,024.
FIELDS_MAX = 1024
_SIZE_BYTES = 8


def export_records(raw: bytes) -> Iterator[dict[str, Any]]:
    """Each record of a body in the export format: `NAME=value` lines, or NAME, eight bytes of size and the
    value as it is; an empty line ends a record.

    A value is text, or bytes where it is not UTF-8; of a repeated name it is a list. Raises BadBody where the
    bytes cannot be followed any more.
    """
    record: dict[str, Any] = {}
    place, size, fields = 0, len(raw), 0
    while place < size:
        end = raw.find(b"\n", place)
        if end < 0:
            raise BadBody(say("signals.journal_cut"))
        line, place = raw[place:end], end + 1
        if not line:
            if record:
                yield record
            record, fields = {}, 0
            continue
        fields += 1
        if fields > FIELDS_MAX:
            raise BadBody(say("signals.journal_fields", most=FIELDS_MAX))
        name, equals, value = line.partition(b"=")
        if not equals:
            stop = place + _SIZE_BYTES
            length = int.from_bytes(raw[place:stop], "little")
            place = stop + length + 1
            if place > size or raw[place - 1 : place] != b"\n":
                raise BadBody(say("signals.journal_length", name=repr(_text(name)[:64])))
            value = raw[stop : place - 1]
        _add(record, _text(name), _value(value))
    if record:
        yield record


def _add(record: dict[str, Any], name: str, value: str | bytes) -> None:
    if name not in record:
        record[name] = value
    elif isinstance(record[name], list):
        record[name].append(value)
    else:
        record[name] = [record[name], value]


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _value(raw: bytes) -> str | bytes:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return raw


def message_text(value: Any) -> str:
    """A message: text, or bytes in the form of `journalctl -o json` for non-UTF-8: a list of numbers.

    Raises BadEntry.
    """
    if isinstance(value, str):
        text = value
    elif isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
    elif isinstance(value, list) and all(isinstance(byte, int) and 0 <= byte < 256 for byte in value):
        text = bytes(value).decode("utf-8", "replace")
    elif isinstance(value, list):
        raise BadEntry(say("signals.two_messages"))
    else:
        raise BadEntry(say("signals.no_message"))
    return one_line(text)


def stamp_of(fields: Mapping[str, Any]) -> str:
    """The kernel's own stamp in the form of `dmesg`, with a trailing blank; empty if the record has none.

    `fields` have lower-case names. The stamp makes a line the same event by every route.
    """
    micros = number(fields.get("_source_monotonic_timestamp"))
    return "" if micros is None else f"[{micros // 1_000_000:5d}.{micros % 1_000_000:06d}] "


def number(value: Any) -> int | None:
    """A number of the journal, which writes them as text. None if it is not a number, or above 2^63."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else None


# --- logs ---------------------------------------------------------------------------------------------------

#: Objects and values of a large JSON body: an honest record has some 30.
OBJECTS_MAX, VALUES_MAX = 200_000, 3_000_000
_json = msgspec.json.Encoder().encode
_raws = msgspec.json.Decoder(list[msgspec.Raw]).decode
#: Names that shippers use, in small letters; the first that is there counts.
_HOSTS = ("_hostname", "hostname", "host", "host.name", "k8s.node.name", "node")
_MESSAGES = ("message", "msg", "log", "body")
_BOOTS = ("_boot_id", "boot_id")
_SEQS = ("sequnum", "seq")
_TIMES = ("time", "timestamp", "timereported", "timegenerated", "@timestamp", "date")
#: The journal's own times, µs since 1970.
_MICROS = ("_source_realtime_timestamp", "__realtime_timestamp")

#: Every name that is used here, in lower case.
_TELLING = frozenset(
    (*_HOSTS, *_MESSAGES, *_BOOTS, *_SEQS, *_TIMES, *_MICROS, "cluster", "_source_monotonic_timestamp")
)

#: The fields of a record, by place (a resource, a record, its body), in increasing priority.
Places = tuple[Mapping[Any, Any], ...]


class KernelRecords(msgspec.Struct, frozen=True, kw_only=True):
    """`accepted.unrecognised` counts kernel lines that are not about a fault; `not_kernel` counts records
    that their shipper does not mark as the kernel's. `nodes`: every (cluster, node) named by kernel lines."""

    accepted: Accepted
    not_kernel: int = 0
    nodes: frozenset[tuple[str, str]] = frozenset()
    example: Said = NO_WORDS


class Source:
    """The raw records of a JSON body: of a repeated name a decoder keeps only the last value."""

    def __init__(self, cut: Callable[[], Sequence[bytes | msgspec.Raw]]) -> None:
        self._cut = cut
        self._texts: Sequence[bytes | msgspec.Raw] | None = None

    def lost(self, index: int, decoded: Mapping[Any, Any]) -> bool:
        """Whether `decoded` may lack a value of the record."""
        # A dropped value takes its colon with it, and no colon is hidden unless a character is escaped by
        # number.
        text = self._text(index)
        return b"\\u" in text or text.count(b":") != _json(decoded).count(b":")

    def decode_all(self, index: int) -> dict[Any, Any]:
        """The record with every value, numbers as text; {} where it cannot be read again."""
        try:
            return json.loads(self._text(index), object_pairs_hook=map_of, parse_int=str, parse_float=str)
        except (ValueError, RecursionError):
            return {}

    def _text(self, index: int) -> bytes:
        if self._texts is None:
            self._texts = self._cut()
        return bytes(self._texts[index])


class Record(msgspec.Struct, frozen=True):
    """One record by its number in the request; `wrong` if it is not an object."""

    index: int
    places: Places = ()
    wrong: Said = NO_WORDS
    #: RFC 3339, where the form itself gives the time; the record's own time overrides it.
    time: str | None = None
    #: Set if `places` may have lost the first value of a repeated name.
    source: Source | None = None


def json_records(raw: bytes) -> list[Record]:
    """A list of objects, one object, or one on each line. Raises BadBody."""
    check_marks(raw, objects=(b"{", OBJECTS_MAX), lists=(b"[", OBJECTS_MAX), values=(b",", VALUES_MAX))
    try:
        body = msgspec.json.decode(raw)
    except NOT_JSON as error:
        if not raw.lstrip().startswith(b"{"):
            raise BadBody(say("signals.not_json", error=said_by(error))) from None
        return list(_lines(raw))
    items = body if isinstance(body, list) else [body]
    check_entries(len(items))
    source = Source((lambda: _raws(raw)) if isinstance(body, list) else lambda: [raw])
    return [record_of(index, item, source) for index, item in enumerate(items)]


def relevant_fields(fields: Mapping[Any, Any]) -> dict[Any, Any]:
    """The fields of a resource that matter for its records: it may have thousands of records, and each is
    processed with all of them."""
    kept: list[tuple[Any, Any]] = []
    other = False
    for name, value in pairs_of(fields):
        key = str(name).lower()
        if is_foreign_field(key):  # one of them is enough
            other, keeps = True, not other
        else:
            keeps = key in _TELLING or is_origin_mark(key)
        if keeps:
            kept.append((name, value))
    return map_of(kept)


def record_of(index: int, item: Any, source: Source | None = None) -> Record:
    if not isinstance(item, dict):
        return Record(index, wrong=say("signals.not_object"))
    return Record(index, (item,), source=source)


def _lines(raw: bytes) -> Iterator[Record]:
    """One object per line; blank lines are skipped. An index is a line's number, from 0."""
    check_entries(raw.count(b"\n"), noun="lines")
    decode = msgspec.json.Decoder().decode
    lines = raw.split(b"\n")
    source = Source(lambda: lines)
    for index, line in enumerate(lines):
        if not line.strip():
            continue
        try:
            yield record_of(index, decode(line), source)
        except NOT_JSON:
            yield Record(index, wrong=say("signals.line_not_json"))


def kernel_records(
    records: Iterable[Record],
    has_node: HasNode,
    now: datetime,
    *,
    cluster: str,
    node: str | None = None,
    book: LineBook = NO_LINES,
) -> KernelRecords:
    """The kernel lines among the records. `cluster` and `node` are defaults for records that name none.

    Raises BadBody for too many.
    """
    entries: list[tuple[int, dict[str, Any], Any]] = []
    nodes: set[tuple[str, str]] = set()
    wrong: list[tuple[int, Said]] = []
    not_kernel, example = 0, NO_WORDS
    for record in records:
        if len(entries) + len(wrong) >= ENTRIES_MAX:
            raise BadBody(say("signals.too_many_kernel_records", most=ENTRIES_MAX))
        if record.wrong:
            wrong.append((record.index, record.wrong))
            continue
        fields, marks = fields_and_marks(record.places)
        kernels, source = is_kernel_record(marks), record.source
        if kernels and source is not None and source.lost(record.index, record.places[0]):
            _, marks = fields_and_marks([source.decode_all(record.index)])
            kernels = is_kernel_record(marks)
        if not kernels:
            not_kernel += 1
            example = example or _marks_text(marks)
            continue
        try:
            outer, entry = kernel_entry(fields, record.time, has_node, cluster=cluster, node=node)
        except BadEntry as error:
            wrong.append((record.index, said_by(error)))
            continue
        nodes.add((outer["cluster"], outer["node"] or ""))
        entries.append((record.index, outer, entry))
    return KernelRecords(
        accepted=entries_observations(entries, has_node, now, wrong=wrong, book=book),
        not_kernel=not_kernel,
        nodes=frozenset(nodes),
        example=example,
    )


def _marks_text(marks: Mapping[str, list[Any]]) -> Said:
    shown = ", ".join(f"{name}={value!r}"[:60] for name, values in marks.items() for value in values[:2])
    return say("signals.marked_as", marks=shown) if shown else say("signals.unmarked")


def kernel_entry(
    fields: Mapping[str, Any], time: str | None, has_node: HasNode, *, cluster: str, node: str | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(around, entry) as the kernel-log route takes them. Raises BadEntry."""
    text = message_text(_first(fields, _MESSAGES))
    if "inputname" in fields:
        # rsyslog's msg begins with the blank between tag and text (RFC 3164).
        text = text.removeprefix(" ")
    where = _word(fields, ("cluster",)) or cluster
    host = _word(fields, _HOSTS) or node
    outer = {
        "cluster": where,
        "node": host and slurm_name(where, host, has_node),
        "boot_id": (_word(fields, _BOOTS) or "").strip() or None,
    }
    entry: dict[str, Any] = {"line": stamp_of(fields) + text, "time": _time(fields) or time}
    seq = number(_first(fields, _SEQS))
    if seq is not None:
        entry["seq"] = seq
    return outer, {name: value for name, value in entry.items() if value is not None}


def _first(fields: Mapping[str, Any], names: tuple[str, ...]) -> Any:
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def _word(fields: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    """Raises BadEntry if it is not a text."""
    value = _first(fields, names)
    if value is not None and not isinstance(value, str):
        raise BadEntry(say("signals.not_text", name=names[0]))
    return value or None


def _time(fields: Mapping[str, Any]) -> str | None:
    """Time of the record, RFC 3339; None if it gives none. Raises BadEntry."""
    micros = number(_first(fields, _MICROS))
    if micros is not None:
        return time_text(micros / 1e6)
    value = _first(fields, _TIMES)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return time_text(value)  # Fluent Bit: seconds since 1970
    return value if isinstance(value, str) and value else None


def time_text(seconds: float) -> str:
    """RFC 3339 of seconds since 1970. Raises BadEntry."""
    try:
        return datetime.fromtimestamp(float(seconds), UTC).isoformat()
    except (OverflowError, ValueError, OSError):
        raise BadEntry(say("signals.not_a_time")) from None
