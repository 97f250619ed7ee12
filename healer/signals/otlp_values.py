"""OTLP's attributes and values, in protobuf and in JSON -> plain Python. opentelemetry-proto 1.x.

A value is text, a number, true or false, bytes, a list, or a map; maps and lists may hold others, bounded.
"""

import base64
import binascii
from collections.abc import Iterable
from struct import unpack_from
from typing import Any

import msgspec

from healer.signals.protobuf import FIXED64, LENGTH, VARINT, Torn, fields, varint
from healer.signals.rejects import map_of
from healer.signals.values import float_of, int_of
from healer.text import say

#: Limits: nesting of maps and lists, and values per record.
DEPTH_MAX, VALUES_MAX = 8, 2048
#: Limit on the scopes of one resource in protobuf: the position of each is kept until its resource is read.
SCOPES_MAX = 100_000


class TooDeep(Torn):
    """Values nested beyond DEPTH_MAX, or more than VALUES_MAX of them."""

    def __init__(self) -> None:
        super().__init__(say("signals.value_too_deep", depth=DEPTH_MAX, most=VALUES_MAX))


class _Budget:
    __slots__ = ("left",)

    def __init__(self) -> None:
        self.left = VALUES_MAX

    def spend(self, depth: int) -> None:
        self.left -= 1
        if self.left < 0 or depth > DEPTH_MAX:
            raise TooDeep


# --- protobuf --------------------------------------------------------------------------------------------


def attributes(data: bytes, spans: Iterable[tuple[int, int]]) -> dict[str, Any]:
    """The KeyValues at `spans`; reads no more than the limit. Raises Torn."""
    budget = _Budget()
    return map_of([_pair(data, start, stop, budget, 0) for start, stop in spans])


def any_value(data: bytes, start: int, end: int) -> Any:
    """An AnyValue. Raises Torn."""
    return _value(data, start, end, _Budget(), 0)


def _pair(data: bytes, start: int, end: int, budget: _Budget, depth: int) -> tuple[str, Any]:
    budget.spend(depth)
    name, value = "", None
    for field, kind, _, begin, stop in fields(data, start, end):
        if kind == LENGTH and field == 1:
            name = text(data[begin:stop])
        elif kind == LENGTH and field == 2:
            value = _value(data, begin, stop, budget, depth)
    return name, value


def _value(data: bytes, start: int, end: int, budget: _Budget, depth: int) -> Any:
    budget.spend(depth)
    value: Any = None
    for field, kind, _, begin, stop in fields(data, start, end):
        if field == 1 and kind == LENGTH:
            value = text(data[begin:stop])
        elif field == 2 and kind == VARINT:
            value = data[begin] != 0
        elif field == 3 and kind == VARINT:
            number, _ = varint(data, begin, stop)
            value = number - ((number >> 63) << 64)
        elif field == 4 and kind == FIXED64:
            (value,) = unpack_from("<d", data, begin)
        elif field == 5 and kind == LENGTH:
            inner = fields(data, begin, stop)
            value = [
                _value(data, b, s, budget, depth + 1) for f, k, _, b, s in inner if (f, k) == (1, LENGTH)
            ]
        elif field == 6 and kind == LENGTH:
            inner = fields(data, begin, stop)
            value = map_of(
                [_pair(data, b, s, budget, depth + 1) for f, k, _, b, s in inner if (f, k) == (1, LENGTH)]
            )
        elif field == 7 and kind == LENGTH:
            value = data[begin:stop]
    return value


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


# --- JSON ------------------------------------------------------------------------------------------------
# In protobuf's JSON `null` is the same as a field that is left out, whatever the field (ProtoJSON).


class JsonValue(msgspec.Struct, rename="camel", gc=False):
    """AnyValue as protobuf's JSON writes it: 64-bit numbers may be text."""

    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    array_value: "JsonValues | None" = None
    kvlist_value: "JsonPairs | None" = None
    bytes_value: str | None = None


class JsonPair(msgspec.Struct, gc=False):
    key: str | None = None
    value: JsonValue | None = None


class JsonValues(msgspec.Struct, gc=False):
    values: list[JsonValue] | None = None


class JsonPairs(msgspec.Struct, gc=False):
    values: list[JsonPair] | None = None


def json_attributes(pairs: list[JsonPair] | None) -> dict[str, Any]:
    """Raises Torn."""
    return _plain_pairs(pairs, _Budget(), 0)


def json_value(value: JsonValue | None) -> Any:
    """Raises Torn."""
    return _plain(value, _Budget(), 0)


def _plain_pairs(pairs: list[JsonPair] | None, budget: _Budget, depth: int) -> dict[str, Any]:
    return map_of([(pair.key or "", _plain(pair.value, budget, depth)) for pair in pairs or ()])


def _plain(value: JsonValue | None, budget: _Budget, depth: int) -> Any:
    budget.spend(depth)
    if value is None:
        return None
    if value.kvlist_value is not None:
        return _plain_pairs(value.kvlist_value.values, budget, depth + 1)
    if value.array_value is not None:
        return [_plain(item, budget, depth + 1) for item in value.array_value.values or ()]
    if value.bytes_value is not None:
        try:
            return base64.b64decode(value.bytes_value, validate=True)
        except (binascii.Error, ValueError):
            raise Torn("bytesValue: not base64") from None
    if value.int_value is not None:
        return parse_int64(value.int_value)
    if value.double_value is not None:
        return parse_double(value.double_value)
    return value.string_value if value.string_value is not None else value.bool_value


def parse_int64(number: int | str | None) -> int:
    """A 64-bit integer, possibly as text; None (left out) is 0. Raises Torn."""
    if number is None:
        return 0
    try:
        found = number if isinstance(number, int) else int_of(number) if len(number) <= 20 else None
    except ValueError:
        found = None
    if found is None or not -(2**63) <= found < 2**64:
        raise Torn(say("signals.not_int64"))
    return found


def parse_double(number: float | str) -> float:
    """A number, possibly as text: `NaN`, `Infinity`. Raises Torn."""
    try:
        return float(number) if isinstance(number, int | float) else float_of(number[:64])
    except (ValueError, OverflowError):
        raise Torn("not a number") from None


# --- answers ---------------------------------------------------------------------------------------------


def message(rejected: int, why: str) -> bytes:
    """ExportLogsServiceResponse and ExportMetricsServiceResponse, which are alike: empty if everything is
    stored, else the number that is not, and why."""
    if not rejected:
        return b""
    partial_success = b"\x08" + _varint(rejected) + _second_text(why)
    return b"\x0a" + _varint(len(partial_success)) + partial_success


def status(code: int, why: str) -> bytes:
    """google.rpc.Status."""
    return b"\x08" + _varint(code) + _second_text(why)


def _second_text(words: str) -> bytes:
    """Field 2 of a message, a text."""
    raw = words.encode("utf-8", "replace")
    return _varint(2 << 3 | LENGTH) + _varint(len(raw)) + raw


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])
