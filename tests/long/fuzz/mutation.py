# ruff: noqa: E501 - a table
"""Changed inputs: bytes flipped, cut, doubled, joined; numbers and words that are at the edge of something."""

import random
from collections.abc import Sequence

#: What often breaks readers: bounds of numbers, ends of strings, times, what PostgreSQL cannot hold.
WORDS = (
    b"0", b"-1", b"255", b"65536", b"2147483648", b"4294967296", b"9223372036854775808",
    b"18446744073709551616", b"9" * 400, b"9" * 5000, b"1e308", b"1e400", b"-1e400", b"5e-324", b"NaN", b"Infinity",
    b"-0.0", b"null", b"true", b"false", b"[]", b"{}", b'""', b'"\\u0000"', b'"\\ud800"', b"\x00", b"\xff\xfe",
    b"\xed\xa0\x80", b"\xc2\xb2", b"\xd9\xa3", b"\n", b"\r\n", b"\\", b'"', b"}", b"]", b"=", b",", b":", b" " * 300,
    b'"0001-01-01T00:00:00Z"', b'"9999-12-31T23:59:59.999999999-23:59"', b'"0001-01-01T00:00:00+23:59"',
    b'"2026-02-30T00:00:00Z"', b'"2026-11-20"', b"Feb 29 00:00:00", b"pod1", b"gpu0001", b"@leaf1", b"a" * 300,
    b"[" * 2000, b'{"a":' * 2000, b"\xff" * 10, b"\x80" * 12, b"\xff\xff\xff\xff\x0f",
)  # fmt: skip
#: Inputs of the fuzz are at most so long.
SIZE_MAX = 32 * 1024


def mutated(raw: bytes, others: Sequence[bytes], chance: random.Random) -> bytes:
    """One to eight changes of an input; at most SIZE_MAX bytes."""
    out = bytearray(raw)
    for _ in range(1 << chance.randrange(4)):
        _change(out, others, chance)
    return bytes(out[:SIZE_MAX])


def _change(out: bytearray, others: Sequence[bytes], chance: random.Random) -> None:
    at = chance.randrange(len(out) + 1)
    size = min(1 << chance.randrange(8), 1 + len(out) // 2)
    match chance.randrange(10):
        case 0 if out:
            out[min(at, len(out) - 1)] ^= 1 << chance.randrange(8)
        case 1 if out:
            out[min(at, len(out) - 1)] = chance.randrange(256)
        case 2:
            del out[at : at + size]
        case 3:
            out[at:at] = out[at : at + size]
        case 4:
            out[at:at] = chance.choice(WORDS)
        case 5:
            start, end = _token(out, at)
            out[start:end] = chance.choice(WORDS)
        case 6:
            other = chance.choice(others)
            begin = chance.randrange(len(other) + 1)
            out[at : at + size] = other[begin : begin + 1 + chance.randrange(200)]
        case 7:
            del out[at:]
        case 8:
            start, end = _token(out, at)
            out[start:end] = out[start:end] * (1 + chance.randrange(40))
        case _:
            out[at : at + size] = chance.randbytes(size)


def _token(out: bytearray, at: int) -> tuple[int, int]:
    """Where the word around a place begins and ends: letters, digits and what numbers hold."""
    start = end = min(at, len(out))
    while start > 0 and at - start < 64 and _of_a_word(out[start - 1]):
        start -= 1
    while end < len(out) and end - at < 64 and _of_a_word(out[end]):
        end += 1
    return start, end


def _of_a_word(byte: int) -> bool:
    return byte in b"+-._" or 48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122
