"""What proves that a record of a log shipper is the kernel's own line.

Text proves nothing: whoever may run programs on a node writes `<0>` or `kern.err` to /dev/log, and rsyslog's
imuxsock believes the facility. What counts is the shipper's own word of where it read the line: journald's
`_TRANSPORT`, or the name of rsyslog's input.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from healer.signals.repeated import pairs_of

#: Inputs of rsyslog that read the kernel and nothing else.
KERNEL_INPUTS = frozenset({"imklog", "imkmsg"})
#: The one that reads the journal, which names the transport itself.
JOURNAL_INPUT = "imjournal"
#: Names under which shippers tell the facility: journald, rsyslog's templates, Vector and the collector.
FACILITY_NAMES = ("syslog_facility", "facility", "syslogfacility", "syslogfacility-text", "facility_text")
_KERNEL_FACILITY = frozenset({0, "0", "kern", "kernel"})
#: What is looked at to tell whose a line is; all that a record tells under such a name must agree. Any
#: program may choose a `transport` without `_`: it proves nothing, and speaks against the kernel as well.
MARKS = frozenset({"_transport", "transport", "inputname", "source_type", *FACILITY_NAMES})
#: What journald's records of the kernel never have: that of the process that wrote a line
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
#: Under this, marks have what no record of the kernel tells.
OTHER = "another origin"


def proves(name: str) -> bool:
    """Whether a name, in small letters, says something of whose a line is."""
    return name in MARKS or is_others(name)


def is_others(name: str) -> bool:
    return name in _OTHERS or name.startswith(_OTHERS_BEGIN)


def small(places: Iterable[Mapping[Any, Any]]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """(fields by name in small letters, all that was told under the names that prove something).

    Shippers write journald's names in capitals or in small letters. `places` in the order in which they
    count, the least first: a later one stands above an earlier one, but a mark is never overruled, not even
    by another of its name in the same place (`repeated`).
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
            elif is_others(key):
                marks.setdefault(OTHER, []).append(key)
    return fields, marks


def of_the_kernel(marks: Mapping[str, list[Any]]) -> bool:
    """Whether the shipper marks the record as the kernel's. Anything that says otherwise makes it none.

    - `_TRANSPORT` is `kernel`, with or without a facility;
    - or `inputname` is one of KERNEL_INPUTS and the facility is told.
    A facility that is told must be the kernel's, 0: root may write to /dev/kmsg with another one. And nothing
    tells of a process, a container or a file.
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
