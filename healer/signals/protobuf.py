"""The part of protobuf's wire format that remote_write 1.0 needs: varints, fixed 64 bit, length-delimited."""

from collections.abc import Iterator

from healer.text import say

VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5


class Torn(ValueError):
    """These bytes are not a protobuf message."""


def varint(data: bytes, place: int, end: int) -> tuple[int, int]:
    """(value below 2^64, position after it)."""
    value = shift = 0
    while place < end:
        byte = data[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, place
        shift += 7
        if shift > 63:
            raise Torn(say("signals.varint_too_long"))
    raise Torn(say("signals.varint_cut"))


def fields(data: bytes, place: int, end: int) -> Iterator[tuple[int, int, int, int, int]]:
    """(field, wire type, where it starts with its tag, where its value starts, where it ends)."""
    while place < end:
        start = place
        tag, place = varint(data, place, end)
        kind = tag & 7
        if kind == LENGTH:
            size, place = varint(data, place, end)
            stop = place + size
        elif kind == VARINT:
            _, stop = varint(data, place, end)
        elif kind == FIXED64:
            stop = place + 8
        elif kind == FIXED32:
            stop = place + 4
        else:
            raise Torn(say("signals.wire_type", kind=kind))
        if stop > end or tag >> 3 == 0:
            raise Torn(say("signals.field_too_long"))
        yield tag >> 3, kind, start, place, stop
        place = stop
