"""Writes remote_write 1.0 as Prometheus does: labels sorted, zero values left out, snappy."""

import struct
from collections.abc import Iterable, Mapping

import cramjam

Series = tuple[Mapping[str, str], Iterable[tuple[float, int]]]


def varint(number: int) -> bytes:
    number &= 2**64 - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


def label(name: str, value: str) -> bytes:
    return field(1, field(1, name.encode()) + field(2, value.encode()))


def sample(value: float, at_ms: int) -> bytes:
    """Go leaves out what is zero; -0.0 is not."""
    encoded = b"" if struct.pack("<d", value) == bytes(8) else b"\x09" + struct.pack("<d", value)
    return field(2, encoded + (b"\x10" + varint(at_ms) if at_ms else b""))


def one(labels: Mapping[str, str], samples: Iterable[tuple[float, int]], rest: bytes = b"") -> bytes:
    """A TimeSeries as a field of the WriteRequest; `rest` are further fields of it."""
    content = b"".join(label(name, labels[name]) for name in sorted(labels))
    content += b"".join(sample(value, at) for value, at in samples)
    return field(1, content + rest)


def message(series: Iterable[Series]) -> bytes:
    return b"".join(one(labels, samples) for labels, samples in series)


def snappy(raw: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(raw))
