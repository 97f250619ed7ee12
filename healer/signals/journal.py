"""Records of systemd's journal: the export format as bytes, and what its fields say of a kernel line.

Formats: systemd's documents JOURNAL_EXPORT_FORMATS and systemd.journal-fields(7). A field whose name begins
with `_` is journald's own word: no client can set one.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from healer.signals.rejects import BadBody, BadEntry

#: Fields of one record; the journal itself takes at most 1,024.
FIELDS_MAX = 1024
_SIZE_BYTES = 8


def export_records(raw: bytes) -> Iterator[dict[str, Any]]:
    """Each record of a body in the export format: `NAME=value` lines, or NAME, eight bytes of size and the
    value as it is; an empty line ends a record.

    A value is text, or bytes where it is no UTF-8. What stands twice is a list. Raises BadBody where the
    bytes cannot be followed any more.
    """
    record: dict[str, Any] = {}
    place, size, fields = 0, len(raw), 0
    while place < size:
        end = raw.find(b"\n", place)
        if end < 0:
            raise BadBody("the body ends within a field of the journal")
        line, place = raw[place:end], end + 1
        if not line:
            if record:
                yield record
            record, fields = {}, 0
            continue
        fields += 1
        if fields > FIELDS_MAX:
            raise BadBody(f"a record of the journal has more than {FIELDS_MAX} fields")
        name, equals, value = line.partition(b"=")
        if not equals:
            stop = place + _SIZE_BYTES
            length = int.from_bytes(raw[place:stop], "little")
            place = stop + length + 1
            if place > size or raw[place - 1 : place] != b"\n":
                raise BadBody(f"the field {_text(name)[:64]!r} of the journal is longer than the body")
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
    """A message: text, or bytes as `journalctl -o json` prints what is no UTF-8: a list of numbers.

    A line's end within one record becomes `\\x0a`, as /dev/kmsg shows it: what follows it is no line of its
    own. Raises BadEntry.
    """
    if isinstance(value, str):
        text = value
    elif isinstance(value, bytes):
        text = value.decode("utf-8", "replace")
    elif isinstance(value, list) and all(isinstance(one, int) and 0 <= one < 256 for one in value):
        text = bytes(value).decode("utf-8", "replace")
    elif isinstance(value, list):
        raise BadEntry("MESSAGE: more than one")
    else:
        raise BadEntry("MESSAGE: missing, or no text")
    return text.replace("\n", "\\x0a")


def stamp_of(fields: Mapping[str, Any]) -> str:
    """The kernel's own stamp as `dmesg` prints it, with a blank behind; empty where the record has none.

    `fields` have names in small letters. The stamp is what makes a line the same event by every route.
    """
    micros = number(fields.get("_source_monotonic_timestamp"))
    return "" if micros is None else f"[{micros // 1_000_000:5d}.{micros % 1_000_000:06d}] "


def number(value: Any) -> int | None:
    """A number of the journal, which writes them as text. None for what is none, or above 2^63."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 20:
        value = int(value)
    return value if type(value) is int and 0 <= value < 2**63 else None
