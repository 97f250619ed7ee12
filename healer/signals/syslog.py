"""What proves that a record of a log shipper is the kernel's own line.

Text proves nothing: whoever may run programs on a node writes `<0>` or `kern.err` to /dev/log, and rsyslog's
imuxsock believes the facility. What counts is the shipper's own word of where it read the line: journald's
`_TRANSPORT`, or the name of rsyslog's input.
"""

from collections.abc import Iterable, Mapping
from typing import Any

#: Inputs of rsyslog that read the kernel and nothing else.
KERNEL_INPUTS = frozenset({"imklog", "imkmsg"})
#: The one that reads the journal, which names the transport itself.
JOURNAL_INPUT = "imjournal"
#: Names under which shippers tell the facility: journald, rsyslog's templates, Vector and the collector.
FACILITY_NAMES = ("syslog_facility", "facility", "syslogfacility", "syslogfacility-text", "facility_text")
_KERNEL_FACILITY = frozenset({0, "0", "kern", "kernel"})
#: What is looked at to tell whose a line is; all that a record tells under such a name must agree.
MARKS = frozenset({"_transport", "inputname", *FACILITY_NAMES})


def small(places: Iterable[Mapping[Any, Any]]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """(fields by name in small letters, all that was told under the names that prove something).

    Shippers write journald's names in capitals or in small letters. `places` in the order in which they
    count, the least first: a later one stands above an earlier one, but a mark is never overruled.
    """
    fields: dict[str, Any] = {}
    marks: dict[str, list[Any]] = {}
    for place in places:
        for name, value in place.items():
            key = str(name).lower()
            fields[key] = value
            if key in MARKS:
                marks.setdefault(key, []).append(value)
    return fields, marks


def of_the_kernel(marks: Mapping[str, list[Any]]) -> bool:
    """Whether the shipper marks the record as the kernel's. Anything that says otherwise makes it none.

    - `_TRANSPORT` is `kernel`, with or without a facility;
    - or `inputname` is one of KERNEL_INPUTS and the facility is told.
    A facility that is told must be the kernel's, 0: root may write to /dev/kmsg with another one.
    """
    transports, inputs = marks.get("_transport", []), marks.get("inputname", [])
    facilities = [value for name in FACILITY_NAMES for value in marks.get(name, ())]
    if any(value != "kernel" for value in transports):
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
