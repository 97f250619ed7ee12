"""Packed bodies, for every route: one function, and never more unpacked than its caller allows.

A sender packs once: `Content-Encoding` is gzip, zstd, or nothing. A list of them (a pack within a pack) is
refused by name, so a bomb inside a bomb is never opened.
"""

import zlib

import cramjam
import numpy as np
from numpy.typing import NDArray
from starlette.datastructures import Headers

from healer.api.problems import Problem

#: What a body may be packed as; the names are HTTP's.
PACKINGS = ("gzip", "zstd")
_PLAIN = frozenset({"", "identity"})
_ALIASES = {"x-gzip": "gzip"}  # RFC 9110, 8.4.1.3

#: gzip is fed so much at once: what lies behind the end of a member is copied, once for each member.
_PIECE = 64 * 1024
#: And unpacked in steps of so much.
_STEP = 1024 * 1024
#: Members of one gzip body. Senders write one; log shippers that append write some.
MEMBERS_MAX = 1000


def encoding_of(headers: Headers) -> str:
    """`Content-Encoding` as one word in small letters, all its lines together; `identity` without one."""
    text = ", ".join(headers.getlist("content-encoding")).strip().lower()
    return "identity" if text in _PLAIN else _ALIASES.get(text, text)


def check_encoding(encoding: str) -> None:
    """Raises Problem 415, before a body is read that nobody could unpack."""
    if encoding not in {"identity", *PACKINGS}:
        named = encoding[:50]
        why = "more than one packing" if "," in encoding else "not understood"
        raise Problem(415, f"Content-Encoding {named}: {why}; send it plain, or as gzip or zstd")


def unpacked(raw: bytes, encoding: str, limit: int) -> bytes:
    """The body of at most `limit` bytes; no more than that is ever unpacked.

    Raises Problem: 413 beyond the limit, 415 for another packing, 400 for what is not what it says.
    """
    check_encoding(encoding)
    if encoding == "identity":
        if len(raw) > limit:
            raise too_large(limit)
        return raw
    room = np.empty(limit + 1, np.uint8)  # pages that nobody writes to cost nothing
    size, why = _gunzip(raw, room) if encoding == "gzip" else _unzstd(raw, room)
    if not why and size <= limit:
        return room[:size].tobytes()
    del room  # else it would live as long as the error's traceback
    if why:
        raise Problem(400, f"the body is not {encoding}: {why}")
    raise too_large(limit)


def too_large(limit: int) -> Problem:
    return Problem(413, f"the body is larger than {limit} bytes", headers={"Connection": "close"})


def _gunzip(raw: bytes, room: NDArray[np.uint8]) -> tuple[int, str]:
    """RFC 1952: one member or several. (bytes written to `room`, why it is not gzip); full means too many."""
    size = place = members = 0
    piece = b""
    unpacker = None
    while size < len(room):
        if unpacker is None:
            if place == len(raw):
                break
            members += 1
            if members > MEMBERS_MAX:
                return size, f"it has more than {MEMBERS_MAX} members"
            unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        if not piece:
            piece = raw[place : place + _PIECE]
            place += len(piece)
        try:
            part = unpacker.decompress(piece, min(_STEP, len(room) - size))
        except zlib.error as error:
            return size, str(error)
        if not part and not piece and not unpacker.eof:
            break  # nothing goes in, nothing comes out
        room[size : size + len(part)] = np.frombuffer(part, np.uint8)
        size += len(part)
        piece = unpacker.unconsumed_tail
        if unpacker.eof:
            place -= len(unpacker.unused_data)
            piece, unpacker = b"", None
    ended = size == len(room) or (unpacker is None and members > 0)
    return size, "" if ended else "it ends too early"


def _unzstd(raw: bytes, room: NDArray[np.uint8]) -> tuple[int, str]:
    """RFC 8878: one frame or several, with or without their sizes. As `_gunzip`.

    The decoder writes into the room it is given, and refuses frames that want a window of over 128 MiB.
    """
    if not raw:
        return 0, "it is empty"
    try:
        return cramjam.zstd.decompress_into(raw, room.data), ""
    except cramjam.DecompressionError as error:
        # The room's end is told only by these words; were they to change, the body would be refused as 400.
        return (len(room), "") if "whole buffer" in str(error) else (0, str(error))
