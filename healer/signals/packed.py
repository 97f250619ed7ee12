"""Samples as bytes, for rows of the store: small enough to stay inside the row, cheap both ways.

A block is one byte of version and the columns' bytes, transposed (all lowest bytes, then all second lowest,
...) and compressed with LZ4. Numbers of one kind share their high bytes, so transposing halves the size.
"""

import functools
from datetime import datetime

import cramjam
import msgspec
import numpy as np
from numpy.typing import NDArray

from healer.model.samples import Report, StepBatch

_VERSION = b"\x01"

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
_STEP_ROW_BYTES = sum(kind.itemsize for _, kind in _STEP_FIELDS)


class _StepHead(msgspec.Struct, array_like=True):
    restart: int
    nodes: list[str]
    n: int


class BadBlock(ValueError):
    """These bytes are no block of this version."""


def pack_report(report: Report) -> bytes:
    """About 1.4 kB for 240 samples."""
    return _VERSION + _compress(
        _transposed(report.columns.astype("<i4", copy=False)),
        _transposed(report.values.astype("<f8", copy=False)),
    )


def unpack_report(blob: bytes, *, cluster: str, node: str, at: datetime, arrived_at: datetime) -> Report:
    """Raises BadBlock."""
    raw = _decompress(blob)
    n, rest = divmod(len(raw), 12)
    if rest:
        raise BadBlock("a report's block has a wrong length")
    return Report(
        cluster=cluster,
        node=node,
        at=at,
        arrived_at=arrived_at,
        columns=_columns(raw[: 4 * n]),
        values=_restored(raw, 4 * n, n, np.dtype("<f8")),
    )


@functools.lru_cache(maxsize=2000)
def _columns(raw: bytes) -> NDArray[np.int32]:
    """Nodes tell the same columns again and again: one array for all of them, that nobody may write."""
    columns = _restored(raw, 0, len(raw) // 4, np.dtype("<i4"))
    columns.flags.writeable = False
    return columns


def pack_steps(batch: StepBatch) -> bytes:
    head = msgspec.msgpack.encode(_StepHead(batch.restart, list(batch.nodes), len(batch.rank)))
    arrays = [_transposed(getattr(batch, name).astype(kind, copy=False)) for name, kind in _STEP_FIELDS]
    return _VERSION + len(head).to_bytes(4, "little") + head + _compress(*arrays)


def unpack_steps(blob: bytes, *, cluster: str, job: str, arrived_at: datetime) -> StepBatch:
    """Raises BadBlock."""
    size = int.from_bytes(blob[1:5], "little")
    try:
        head = msgspec.msgpack.decode(blob[5 : 5 + size], type=_StepHead)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadBlock("step times without a readable head") from error
    raw = _decompress(blob[:1] + blob[5 + size :])
    if len(raw) != head.n * _STEP_ROW_BYTES:
        raise BadBlock("step times of a wrong length")
    arrays: dict[str, NDArray] = {}
    place = 0
    for name, kind in _STEP_FIELDS:
        arrays[name] = _restored(raw, place, head.n, kind)
        place += head.n * kind.itemsize
    return StepBatch(
        cluster=cluster,
        job=job,
        restart=head.restart,
        arrived_at=arrived_at,
        nodes=tuple(head.nodes),
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
