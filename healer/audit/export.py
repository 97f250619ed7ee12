"""The stored audit verified and exported, each in one snapshot; an export is verified without the database.

JSON Lines: line 1 is the header, then come the checkpoints, then every record by cluster and seq. In a
record's line the bytes of `record` are the bytes that were hashed: a program that reformats them must keep
the canonical form.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from datetime import UTC, datetime
from typing import Any

import msgspec

from healer.audit.chain import canonical, moment, record_bytes
from healer.audit.verify import Gap, Report, examine
from healer.model import AuditRecord, Broken, Checkpoint
from healer.model.run import ChainLink
from healer.model.vocabulary import UserError
from healer.ports.answers import AuditVerified
from healer.ports.audit_store import ChainReads, CheckpointFile
from healer.text import Said, said_by, say

FORMAT = 1


class ExportError(UserError):
    """The export cannot be read; the text names the line."""


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


class _Record(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """The hashed fields of a record. Any other field was never sealed, and would pass for a part of it."""

    actor: str
    at: datetime
    cluster: str
    data: dict[str, Any]
    id: int
    subject: str
    verb: str


class _Line(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    seq: int
    cluster: str
    prev: str
    hash: str
    record_id: int
    record: _Record | None


class _CheckpointLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    checkpoint: Checkpoint


_decode_line = msgspec.json.Decoder(_Line).decode
_decode_checkpoint = msgspec.json.Decoder(_CheckpointLine).decode


def export_lines(
    header: Header, checkpoints: Iterable[Checkpoint], links: Iterable[ChainLink]
) -> Iterator[bytes]:
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
    """The checkpoints of a file. A line cut short by a crash is skipped; other bad lines raise
    ExportError."""
    found: list[Checkpoint] = []
    for number, line in enumerate(lines, 1):
        if not line.rstrip().endswith(b"}}"):
            continue
        try:
            found.append(_decode_checkpoint(line).checkpoint)
        except ValueError as error:  # also texts that are not UTF-8
            raise ExportError(
                say("audit.line_checkpoint_file_cannot", number=number, why=said_by(error))
            ) from None
    return found


def verify_export(
    stream: Iterable[bytes], *, keys: Collection[str] | None = None, checkpoints: Iterable[Checkpoint] = ()
) -> Report:
    """Verifies an export without the database.

    `keys`: the public keys that may sign, from another source; without them the header's keys count, and a
    forger with a new key is not found. `checkpoints`: signed heads kept elsewhere, to compare with.
    Raises ExportError when the first line is no header; later bad lines are among the broken places.
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
            what = say("audit.export_cut", end=ends, header=head.seq)
            broken.append(Broken(cluster=cluster, seq=head.seq, what=what))
    return msgspec.structs.replace(report, broken=broken)


def _header(line: bytes) -> Header:
    try:
        header = msgspec.json.decode(line, type=Header)
    except ValueError as error:
        raise ExportError(say("audit.line_header_audit_export", why=said_by(error))) from None
    if header.healer_audit != FORMAT:
        raise ExportError(
            say("audit.line_says_format_reads", healer_audit=header.healer_audit, format=FORMAT)
        )
    return header


def _take_checkpoints(
    lines: Iterator[tuple[int, bytes]], signed: list[Checkpoint], bad: list[Broken]
) -> Iterator[tuple[int, bytes]]:
    """Moves the checkpoint lines into `signed`; returns the lines after them."""
    for number, line in lines:
        if not line.startswith(b'{"checkpoint":'):
            return itertools.chain([(number, line)], lines)
        try:
            signed.append(_decode_checkpoint(line).checkpoint)
        except ValueError as error:
            bad.append(_unreadable(number, error))
    return lines


def _links(lines: Iterable[tuple[int, bytes]], bad: list[Broken]) -> Iterator[ChainLink]:
    for number, line in lines:
        try:
            at = _decode_line(line)
            record = at.record and AuditRecord(**msgspec.structs.asdict(at.record))
            yield ChainLink(
                cluster=at.cluster,
                seq=at.seq,
                prev=bytes.fromhex(at.prev),
                hash=bytes.fromhex(at.hash),
                record_id=at.record_id,
                record=record,
            )
        except ValueError as error:
            if line.strip():
                bad.append(_unreadable(number, error))


def _unreadable(number: int, error: Exception) -> Broken:
    return Broken(cluster="", seq=0, what=say("audit.export_line", number=number, why=str(error)))


def _line(at: ChainLink) -> bytes:
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


# --- the audit of one installation


class Trail:
    """The audit of one installation: its database, checked with its keys and its checkpoint file.

    `keys`: public keys that may sign; empty (a part that runs on another machine): any key may.
    """

    def __init__(self, chain: ChainReads, keys: Callable[[], Collection[str]], file: CheckpointFile) -> None:
        self._chain, self._keys, self._file = chain, keys, file

    def report(self) -> Report:
        """Raises ExportError when the checkpoint file has a bad line."""
        # Read before the snapshot: a checkpoint is in the database before it is in the file.
        outside = read_checkpoints(self._file.lines())
        return report(self._chain, keys=self._keys() or None, outside=outside)

    def verify(self) -> AuditVerified:
        """The report in the form of the API's answer."""
        found = self.report()
        broken, gaps = list(found.broken), [gap_text(gap) for gap in found.gaps]
        return AuditVerified(ok=not broken, broken=broken, records=found.records, gaps=gaps)

    def export(self) -> Iterator[bytes]:
        """JSON Lines, streamed."""
        return export(self._chain)


def report(
    chain: ChainReads,
    *,
    keys: Collection[str] | None = None,
    outside: Iterable[Checkpoint] = (),
    where: Said | None = None,
) -> Report:
    """Verifies everything in one snapshot.

    `keys`: public keys that may sign (None: any). `outside`: signed heads kept outside the database, which
    reveal a database that was restored or cut short; `where` they are
    (None: in the checkpoint file).
    """
    with chain.snapshot() as seen:
        stored = seen.checkpoints()
        present = {(item.cluster, item.seq, item.signature) for item in stored}
        removed = [item for item in outside if (item.cluster, item.seq, item.signature) not in present]
        unsealed, late = seen.unsealed(), seen.never_sealed()
        found = examine(seen.links(), checkpoints=[*stored, *removed], unsealed=late, keys=keys)
    missing = [item for item in removed if not any(gap.covers(item) for gap in found.gaps)]
    broken = [*found.broken, *(_removed(item, where or say("audit.in_file")) for item in missing)]
    return msgspec.structs.replace(found, broken=broken, unsealed=unsealed)


def export(chain: ChainReads, *, at: datetime | None = None) -> Iterator[bytes]:
    """The export as JSON Lines, one snapshot, streamed. `at` goes into the header (default: now)."""
    with chain.snapshot() as seen:
        checkpoints = seen.checkpoints()
        header = Header(
            healer_audit=1,
            at=at or datetime.now(UTC),
            clusters={name: Head(seq=head.seq, hash=head.hash.hex()) for name, head in seen.heads().items()},
            keys=sorted({item.key for item in checkpoints}),
            checkpoints=len(checkpoints),
        )
        yield from export_lines(header, checkpoints, seen.links())


def gap_text(gap: Gap) -> Said:
    """One sentence."""
    restored = say(
        "audit.restored", cluster=gap.cluster, who=gap.by, at=moment(gap.restored_at),
        backup=moment(gap.backup_at),
    )  # fmt: skip
    if gap.lost:
        return say("audit.lost_up_to", restored=restored, head=gap.head, last=gap.lost)
    return say("audit.lost_after", restored=restored, head=gap.head)


def _removed(item: Checkpoint, where: Said) -> Broken:
    what = say("audit.removed", seq=item.seq, where=where)
    return Broken(cluster=item.cluster, seq=item.seq, what=what)
