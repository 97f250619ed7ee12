"""Samples as bytes, for rows of the store: small enough to stay inside the row, and cheap to pack and unpack.

A block is one byte of version and the columns' bytes, transposed (all lowest bytes, then all second lowest,
...) and compressed with LZ4. Numbers of one kind share their high bytes, so transposing halves the size.
"""

import functools
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import NamedTuple

import cramjam
import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model.telemetry import UNNAMED_SENDER, Report, StepBatch

_VERSION = b"\x01"
#: Reports that are unpacked together: their data stays in the processor's cache.
_TOGETHER = 500
#: LZ4 expands one byte to at most this many.
_LZ4_MOST = 255

#: Fields of a `StepBatch` that are arrays, in the order of the block, with their types.
_STEP_FIELDS = (
    ("rank", np.dtype("<i4")),
    ("node", np.dtype("<i4")),
    ("gpu", np.dtype("<i4")),
    ("stage", np.dtype("<i4")),
    ("step", np.dtype("<i8")),
    ("at", np.dtype("<f8")),
    ("step_s", np.dtype("<f8")),
    ("compute_s", np.dtype("<f8")),
    ("comm_s", np.dtype("<f8")),
    ("data_s", np.dtype("<f8")),
    ("work", np.dtype("<f8")),
    ("loss", np.dtype("<f8")),
    ("grad_norm", np.dtype("<f8")),
)
_DOING = ("doing", np.dtype("<i1"))


class _StepHead(msgspec.Struct, array_like=True):
    restart: int
    nodes: list[str]
    n: int
    #: For rows of ranks in an unfinished step: one more byte each.
    open: bool = False
    #: Earlier versions stored no sender: it may be anyone.
    sent_by: str = UNNAMED_SENDER


class PackedReport(NamedTuple):
    """A row of the store."""

    node: str
    at: datetime
    arrived_at: datetime
    body: bytes
    relayed_by: str = ""


class BadBlock(ValueError):
    """These bytes are not a block of this version."""


def pack_report(report: Report) -> bytes:
    """About 1.4 kB for 240 samples."""
    return _VERSION + _compress(
        _transposed(report.columns.astype("<i4", copy=False)),
        _transposed(report.values.astype("<f8", copy=False)),
    )


def unpack_reports(cluster: str, rows: Sequence[PackedReport]) -> list[Report | BadBlock]:
    """In the order of the rows; BadBlock for an invalid one. Some hundred are unpacked together, and those
    with the same columns share them and the memory of their values."""
    found: list[Report | BadBlock] = []
    for first in range(0, len(rows), _TOGETHER):
        found += _unpacked(cluster, rows[first : first + _TOGETHER])
    return found


def _unpacked(cluster: str, rows: Sequence[PackedReport]) -> list[Report | BadBlock]:
    found: list[Report | BadBlock] = [BadBlock("not a readable block")] * len(rows)
    sizes: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        try:
            sizes.setdefault(_report_size(row.body), []).append(place)
        except BadBlock as error:
            found[place] = error
    for size, places in sizes.items():
        raw = np.empty((len(places), size), np.uint8)
        read = [_unpack_into(rows[place].body, target) for place, target in zip(places, raw, strict=True)]
        for columns, at in _alike(raw, np.flatnonzero(read)):
            same = raw if len(at) == len(raw) else raw[at]
            for number, values in zip(at.tolist(), _values(same, len(columns)), strict=True):
                node, sent_at, arrived_at, _, relayed_by = rows[places[number]]
                found[places[number]] = Report(
                    cluster, node, sent_at, arrived_at, columns, values, relayed_by
                )
    return found


def _report_size(blob: bytes) -> int:
    """The unpacked size of a report's block in bytes, from its header. Raises BadBlock."""
    if blob[:1] != _VERSION:
        raise BadBlock("not a block of version 1")
    size = int.from_bytes(blob[1:5], "little")
    if size > _LZ4_MOST * len(blob):
        raise BadBlock("not a readable block")
    if size % 12:
        raise BadBlock("a report's block has a wrong length")
    return size


def _unpack_into(blob: bytes, place: NDArray[np.uint8]) -> bool:
    """Whether it could be read. Twice as fast as unpacking into new bytes."""
    try:
        return cramjam.lz4.decompress_block_into(blob[1:], place.data) == len(place)
    except cramjam.DecompressionError:
        return False


def _alike(
    raw: NDArray[np.uint8], whole: NDArray[np.intp]
) -> Iterator[tuple[NDArray[np.int32], NDArray[np.intp]]]:
    """Columns, and which of the `whole` blocks have them. `raw` (k, size)."""
    if not len(whole):
        return
    heads = raw[:, : raw.shape[1] // 3]
    same = (heads[whole] == heads[whole[0]]).all(axis=1)
    yield _columns(heads[whole[0]].tobytes()), whole[same]
    others: dict[bytes, list[int]] = {}
    for number in whole[~same].tolist():
        others.setdefault(heads[number].tobytes(), []).append(number)
    for head, numbers in others.items():
        yield _columns(head), np.array(numbers)


def _values(raw: NDArray[np.uint8], n: int) -> NDArray[np.float64]:
    """(k, n) of k blocks with n columns."""
    transposed = raw[:, 4 * n :].reshape(len(raw), 8, n)
    values = np.empty((len(raw), n, 8), np.uint8)
    for byte in range(8):
        values[:, :, byte] = transposed[:, byte]
    return values.view("<f8").reshape(len(raw), n)


@functools.lru_cache(maxsize=2000)
def _columns(raw: bytes) -> NDArray[np.int32]:
    """Cached, because nodes send the same columns repeatedly: they share one read-only array."""
    columns = _restored(raw, 0, len(raw) // 4, np.dtype("<i4"))
    columns.flags.writeable = False
    return columns


def pack_steps(batch: StepBatch) -> bytes:
    is_open = batch.doing is not None
    head = msgspec.msgpack.encode(
        _StepHead(batch.restart, list(batch.nodes), len(batch.rank), is_open, batch.sent_by)
    )
    fields = (*_STEP_FIELDS, _DOING) if is_open else _STEP_FIELDS
    arrays = [_transposed(getattr(batch, name).astype(kind, copy=False)) for name, kind in fields]
    return _VERSION + len(head).to_bytes(4, "little") + head + _compress(*arrays)


def unpack_steps(blob: bytes, *, cluster: str, job: str, arrived_at: datetime) -> StepBatch:
    """Raises BadBlock."""
    size = int.from_bytes(blob[1:5], "little")
    try:
        head = msgspec.msgpack.decode(blob[5 : 5 + size], type=_StepHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBlock("step times without a readable head") from error
    raw = _decompress(blob[:1] + blob[5 + size :])
    fields = (*_STEP_FIELDS, _DOING) if head.open else _STEP_FIELDS
    if len(raw) != head.n * sum(kind.itemsize for _, kind in fields):
        raise BadBlock("step times of a wrong length")
    arrays: dict[str, NDArray] = {}
    place = 0
    for name, kind in fields:
        arrays[name] = _restored(raw, place, head.n, kind)
        place += head.n * kind.itemsize
    return StepBatch(
        cluster=cluster,
        job=job,
        restart=head.restart,
        arrived_at=arrived_at,
        nodes=tuple(head.nodes),
        sent_by=head.sent_by,
        **arrays,
    )


def _transposed(array: NDArray) -> bytes:
    return array.view(np.uint8).reshape(-1, array.dtype.itemsize).T.tobytes()


def _restored(raw: bytes, place: int, n: int, kind: np.dtype) -> NDArray:
    flat = np.frombuffer(raw, np.uint8, n * kind.itemsize, place)
    return np.ascontiguousarray(flat.reshape(kind.itemsize, n).T).reshape(-1).view(kind)


def _compress(*parts: bytes) -> bytes:
    return bytes(cramjam.lz4.compress_block(b"".join(parts)))


def _decompress(blob: bytes) -> bytes:
    if blob[:1] != _VERSION:
        raise BadBlock("not a block of version 1")
    try:
        return bytes(cramjam.lz4.decompress_block(blob[1:]))
    except cramjam.DecompressionError as error:
        raise BadBlock("not a readable block") from error
