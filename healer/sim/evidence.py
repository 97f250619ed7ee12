"""Collected files in memory: for simulation and tests."""

import hashlib

from healer.model import EvidenceFile
from healer.ports.evidence_book import EvidenceBroken


class MemoryEvidence:
    """`healer.ports.evidence_book.EvidenceBook`."""

    def __init__(self) -> None:
        self._pieces: dict[str, dict[int, bytes]] = {}
        self._finished: dict[str, EvidenceFile] = {}

    def stored(self, file: str) -> int:
        return len(self._joined(file))

    def add(self, file: EvidenceFile, start: int, data: bytes) -> None:
        if file.id not in self._finished:
            self._pieces.setdefault(file.id, {}).setdefault(start, data)

    def finish(self, file: EvidenceFile) -> None:
        if hashlib.sha256(self._joined(file.id)).hexdigest() != file.bundle.sha256:
            self._pieces.pop(file.id, None)
            raise EvidenceBroken(f"The bytes of {file.id} are not those that {file.node} told of: dropped.")
        self._finished.setdefault(file.id, file)

    def files(self, *, incident: str | None = None, run: str | None = None) -> list[EvidenceFile]:
        fits = (one for one in self._finished.values() if one.incident == incident or incident is None)
        return sorted((one for one in fits if run in (None, one.run)), key=lambda one: (one.at, one.id))

    def file(self, file: str) -> EvidenceFile | None:
        return self._finished.get(file)

    def content(self, file: str) -> bytes:
        return self._joined(file) if file in self._finished else b""

    def _joined(self, file: str) -> bytes:
        pieces = self._pieces.get(file, {})
        return b"".join(pieces[start] for start in sorted(pieces))
