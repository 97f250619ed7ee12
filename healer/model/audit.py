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
