"""The record nobody can change unseen."""

from datetime import datetime
from typing import Any

import msgspec


class AuditRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who did what to what, when. `actor` is a person, a token's name or `healer`.

    `verb` is dotted and in the past tense: `incident.opened`, `run.started`, `node.drained`, `token.refused`.
    `subject` is what it is about: `node/gpu0001`, `incident/1f2e…`. `seq`, `prev` and `hash` are the place in
    the cluster's chain (hex SHA-256); None until sealed.
    """

    cluster: str
    at: datetime
    actor: str
    verb: str
    subject: str
    data: dict[str, Any] = {}
    id: int | None = None
    seq: int | None = None
    prev: str | None = None
    hash: str | None = None


def audit_record(
    cluster: str, at: datetime, actor: str, verb: str, subject: str, /, **data: Any
) -> AuditRecord:
    """A record as the work that it tells of writes it: not sealed yet."""
    return AuditRecord(cluster=cluster, at=at, actor=actor, verb=verb, subject=subject, data=data)


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The signed head of a chain: Ed25519 over `cluster`, `seq`, `hash` and `at`. Bytes in hex."""

    cluster: str
    seq: int
    hash: str
    at: datetime
    key: str
    signature: str


class Broken(msgspec.Struct, frozen=True, kw_only=True):
    """One place where a chain does not hold."""

    cluster: str
    seq: int
    what: str


class Link(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One place in a cluster's chain. `record` is None when the row it points to is gone."""

    cluster: str
    seq: int
    prev: bytes
    hash: bytes
    record_id: int
    record: AuditRecord | None
