"""The export: JSON Lines that another machine verifies without the database.

Line 1 is the header, then come the checkpoints, then every record by cluster and seq. In a record's line the
bytes of `record` are the bytes that were hashed: whoever formats them anew must keep to the canonical form.
"""

from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from healer.audit.chain import Link, canonical, moment, record_bytes
from healer.audit.verify import Report, examine
from healer.model import AuditRecord, Broken, Checkpoint

FORMAT = 1


class ExportError(ValueError):
    """This is no export that can be read. The text names the line."""


class Head(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The last link of a cluster when the export was made."""

    seq: int
    hash: str


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """`healer_audit` is the format's number, `clusters` the heads by name, `keys` the public keys (hex)."""

    healer_audit: int
    at: datetime
    clusters: dict[str, Head]
    keys: list[str] = []
    checkpoints: int = 0


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    seq: int
    cluster: str
    prev: str
    hash: str
    record_id: int
    record: AuditRecord | None


class _CheckpointLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    checkpoint: Checkpoint


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_checkpoint = msgspec.json.Decoder(_CheckpointLine).decode


def export_lines(header: Header, checkpoints: Iterable[Checkpoint], links: Iterable[Link]) -> Iterator[bytes]:
    """The whole export, line by line, each with its newline. `links` by cluster, then seq."""
    yield canonical(_plain(header)) + b"\n"
    for checkpoint in checkpoints:
        yield checkpoint_line(checkpoint)
    for at in links:
        yield _line(at)


def checkpoint_line(checkpoint: Checkpoint) -> bytes:
    """One checkpoint as in an export and in the checkpoint file, with its newline."""
    return canonical({"checkpoint": _plain(checkpoint)}) + b"\n"


def read_checkpoints(lines: Iterable[bytes]) -> list[Checkpoint]:
    """A checkpoint file. A line that a crash cut short is passed over; other bad lines are an ExportError."""
    found: list[Checkpoint] = []
    for number, line in enumerate(lines, 1):
        if not line.rstrip().endswith(b"}}"):
            continue
        try:
            found.append(_decode_checkpoint(line).checkpoint)
        except msgspec.MsgspecError as error:
            raise ExportError(f"line {number} of the checkpoint file cannot be read: {error}") from None
    return found


def verify_export(
    stream: Iterable[bytes],
    *,
    keys: Collection[str] | None = None,
    checkpoints: Iterable[Checkpoint] = (),
) -> Report:
    """Verifies an export by itself.

    `keys`: the public keys that may sign, known from elsewhere; without them only the header's count, and a
    forger with a key of his own goes unseen. `checkpoints`: signed heads kept elsewhere, to hold it against.
    Raises ExportError when the first line is no header; later bad lines are named among the broken places.
    """
    lines = enumerate(stream, 1)
    header = _header(next(lines, (1, b""))[1])
    trusted = frozenset(header.keys if keys is None else keys)
    bad: list[Broken] = []
    signed = [*checkpoints]
    rest = _take_checkpoints(lines, signed, bad)
    report = examine(_links(rest, bad), checkpoints=signed, keys=trusted)
    broken = [*bad, *report.broken]
    for cluster, head in header.clusters.items():
        if report.heads.get(cluster, 0) < head.seq:
            ends = report.heads.get(cluster, 0)
            what = f"the export ends at seq {ends}, but its header says seq {head.seq}: its end is cut off"
            broken.append(Broken(cluster=cluster, seq=head.seq, what=what))
    return msgspec.structs.replace(report, broken=broken)


def _header(line: bytes) -> Header:
    try:
        header = msgspec.json.decode(line, type=Header)
    except msgspec.MsgspecError as error:
        raise ExportError(f"line 1 is not the header of a healer audit export: {error}") from None
    if header.healer_audit != FORMAT:
        raise ExportError(f"line 1 says format {header.healer_audit}; this healer reads format {FORMAT}")
    return header


def _take_checkpoints(
    lines: Iterator[tuple[int, bytes]], signed: list[Checkpoint], bad: list[Broken]
) -> Iterator[tuple[int, bytes]]:
    """Moves the checkpoint lines into `signed`; gives back the lines behind them."""
    for number, line in lines:
        if not line.startswith(b'{"checkpoint":'):
            return _with_first((number, line), lines)
        try:
            signed.append(_decode_checkpoint(line).checkpoint)
        except msgspec.MsgspecError as error:
            bad.append(_unreadable(number, error))
    return lines


def _with_first(first: tuple[int, bytes], rest: Iterator[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
    yield first
    yield from rest


def _links(lines: Iterable[tuple[int, bytes]], bad: list[Broken]) -> Iterator[Link]:
    for number, line in lines:
        try:
            at = _decode_line(line)
            yield Link(
                cluster=at.cluster,
                seq=at.seq,
                prev=bytes.fromhex(at.prev),
                hash=bytes.fromhex(at.hash),
                record_id=at.record_id,
                record=at.record,
            )
        except (msgspec.MsgspecError, ValueError) as error:
            if line.strip():
                bad.append(_unreadable(number, error))


def _unreadable(number: int, error: Exception) -> Broken:
    return Broken(cluster="", seq=0, what=f"line {number} of the export cannot be read: {error}")


def _line(at: Link) -> bytes:
    record = b"null" if at.record is None else record_bytes(at.record)
    return b'{"cluster":%b,"hash":"%b","prev":"%b","record":%b,"record_id":%d,"seq":%d}\n' % (
        canonical(at.cluster),
        at.hash.hex().encode(),
        at.prev.hex().encode(),
        record,
        at.record_id,
        at.seq,
    )


def _plain(value: Header | Checkpoint) -> dict[str, Any]:
    fields = msgspec.structs.asdict(value)
    return {
        name: moment(item) if isinstance(item, datetime) else msgspec.to_builtins(item)
        for name, item in fields.items()
    }
