"""The chain: the bytes of a record, the hash of a link, and what a checkpoint signs.

Formats (docs/audit.md shows them with an example):

- canonical record: UTF-8 JSON of `actor at cluster data id subject verb`, keys sorted, no spaces, times in
  RFC 3339 with six digits and `Z`;
- link: SHA-256 over `prev` (32 bytes), `seq` (8 bytes, big-endian) and the canonical record;
- first `prev` of a cluster: SHA-256 over `healer audit <cluster>`;
- checkpoint: Ed25519 over `healer audit checkpoint`, a newline, and canonical JSON of `at cluster hash seq`.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Protocol, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from healer.model import AuditRecord, Checkpoint
from healer.model.run import ChainLink

_encode = msgspec.json.Encoder(order="sorted").encode
_CHECKPOINT_PREFIX = b"healer audit checkpoint\n"


C = TypeVar("C", AuditRecord, Checkpoint)


class Signer(Protocol):
    """Holds the private key. `key` is the public one, 64 hex digits."""

    key: str

    def sign(self, data: bytes) -> bytes:
        """Ed25519, 64 bytes."""
        ...


def by_cluster(items: Iterable[C]) -> dict[str, list[C]]:
    """Records or checkpoints by their cluster, in their order."""
    found: dict[str, list[C]] = {}
    for item in items:
        found.setdefault(item.cluster, []).append(item)
    return found


def canonical(value: Any) -> bytes:
    """JSON with sorted keys and without spaces, UTF-8. Format times with `moment` first."""
    return _encode(value)


def moment(at: datetime) -> str:
    """RFC 3339, UTC, always six digits: `2026-11-20T03:00:00.000000Z`. ValueError for a time without a
    zone."""
    if at.tzinfo is not UTC:
        if at.tzinfo is None:
            raise ValueError(f"a time in an audit record needs a zone: {at.isoformat()}")
        at = at.astimezone(UTC)
    return at.isoformat(timespec="microseconds")[:-6] + "Z"


def record_bytes(record: AuditRecord) -> bytes:
    """The canonical form that is hashed. ValueError for a record that was not stored: it has no id yet."""
    if record.id is None:
        raise ValueError("an audit record is chained only after it was stored: it has no id")
    return _encode(
        {
            "actor": record.actor,
            "at": moment(record.at),
            "cluster": record.cluster,
            "data": record.data,
            "id": record.id,
            "subject": record.subject,
            "verb": record.verb,
        }
    )


def genesis(cluster: str) -> bytes:
    """The `prev` of the first link of this cluster."""
    return sha256(b"healer audit " + cluster.encode()).digest()


def link(prev: bytes, seq: int, record: AuditRecord) -> bytes:
    """The hash of the link at `seq` (from 1) that holds this record and follows `prev`."""
    return sha256(prev + seq.to_bytes(8, "big") + record_bytes(record)).digest()


def extend(cluster: str, seq: int, head: bytes, records: list[AuditRecord]) -> list[ChainLink]:
    """The links for these records, in order, after a chain that ends at `seq` with hash `head`."""
    links = []
    for record in records:
        seq += 1
        prev, head = head, link(head, seq, record)
        links.append(
            ChainLink(cluster=cluster, seq=seq, prev=prev, hash=head, record_id=record.id or 0, record=record)
        )
    return links


def checkpoint_bytes(cluster: str, seq: int, hash_hex: str, at: datetime) -> bytes:
    """What a checkpoint's signature covers."""
    return _CHECKPOINT_PREFIX + canonical(
        {"at": moment(at), "cluster": cluster, "hash": hash_hex, "seq": seq}
    )


def sign_checkpoint(signer: Signer, cluster: str, seq: int, head: bytes, at: datetime) -> Checkpoint:
    signature = signer.sign(checkpoint_bytes(cluster, seq, head.hex(), at))
    return Checkpoint(
        cluster=cluster, seq=seq, hash=head.hex(), at=at, key=signer.key, signature=signature.hex()
    )


def signature_holds(checkpoint: Checkpoint) -> bool:
    """Whether the checkpoint's own key signed it; whether that key is trusted is not checked here."""
    data = checkpoint_bytes(checkpoint.cluster, checkpoint.seq, checkpoint.hash, checkpoint.at)
    try:
        key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(checkpoint.key))
        key.verify(bytes.fromhex(checkpoint.signature), data)
    except (ValueError, InvalidSignature):
        return False
    return True
