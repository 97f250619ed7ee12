"""What was collected on a node for people and their vendor: logs and reports in one compressed file."""

from datetime import datetime

import msgspec


class Bundle(msgspec.Struct, frozen=True, kw_only=True):
    """A collected file as it lies on its node. `sha256` is hex; `parts` says in words what is in it."""

    size_bytes: int
    sha256: str
    parts: tuple[str, ...] = ()


class EvidenceFile(msgspec.Struct, frozen=True, kw_only=True):
    """The same file, kept by healer: gzip of text. `id` follows from the run and its step."""

    id: str
    cluster: str
    node: str
    run: str
    name: str
    at: datetime
    bundle: Bundle
    incident: str | None = None
