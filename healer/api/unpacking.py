"""Packed bodies, for every route: one function, and never more unpacked than its caller allows.

A sender packs once: `Content-Encoding` is gzip, zstd, or nothing. A list of them (a pack within a pack) is
refused by name, so a bomb inside a bomb is never opened.
"""

import zlib

import cramjam
import numpy as np
from starlette.datastructures import Headers

from healer.api.problems import Problem

#: What a body may be packed as; the names are HTTP's.
PACKINGS = ("gzip", "zstd")
_PLAIN = frozenset({"", "identity"})
_ALIASES = {"x-gzip": "gzip"}  # RFC 9110, 8.4.1.3

#: gzip is fed so much at once: what lies behind the end of a member is copied, once for each member.
_PIECE = 64 * 1024
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
    return _gunzipped(raw, limit) if encoding == "gzip" else _unzstd(raw, limit)


def too_large(limit: int) -> Problem:
    return Problem(413, f"the body is larger than {limit} bytes", headers={"Connection": "close"})


def _gunzipped(raw: bytes, limit: int) -> bytes:
    """RFC 1952: one member or several."""
    parts: list[bytes] = []
    size = place = members = 0
    unpacker = None
    while place < len(raw) or (unpacker is not None and unpacker.unconsumed_tail):
        if unpacker is None:
            members += 1
            if members > MEMBERS_MAX:
                raise Problem(400, f"the body is gzip of more than {MEMBERS_MAX} members")
            unpacker = zlib.decompressobj(16 + zlib.MAX_WBITS)
        piece = unpacker.unconsumed_tail
        if not piece:
            piece = raw[place : place + _PIECE]
            place += len(piece)
        try:
            parts.append(unpacker.decompress(piece, limit + 1 - size))
        except zlib.error as error:
            raise Problem(400, f"the body is not gzip: {error}") from None
        size += len(parts[-1])
        if size > limit:
            raise too_large(limit)
        if unpacker.eof:
            place -= len(unpacker.unused_data)
            unpacker = None
    if unpacker is not None or not members:
        raise Problem(400, "the body is not gzip: it ends too early")
    return b"".join(parts)


def _unzstd(raw: bytes, limit: int) -> bytes:
    """RFC 8878: one frame or several, with or without their sizes.

    The decoder writes into room of a fixed size, of which untouched pages cost nothing, and refuses frames
    that want a window of more than 128 MiB.
    """
    if not raw:
        raise Problem(400, "the body is not zstd: it is empty")
    room = np.empty(limit + 1, np.uint8)
    try:
        size = cramjam.zstd.decompress_into(raw, room.data)
    except cramjam.DecompressionError as error:
        # The room's end is told only by these words; were they to change, the body would be refused as 400.
        if "whole buffer" in str(error):
            raise too_large(limit) from None
        raise Problem(400, f"the body is not zstd: {error}") from None
    if size > limit:
        raise too_large(limit)
    return room[:size].tobytes()
