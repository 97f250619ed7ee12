"""Where files that were collected on nodes are kept."""

from typing import Protocol

from healer.model import EvidenceFile


class EvidenceBroken(Exception):
    """What was stored is not the file that the node told of. It is dropped."""


class EvidenceBook(Protocol):
    """Where collected files are kept, piece by piece. Raises LedgerAway. Readers see whole files alone."""

    def stored(self, file: str) -> int:
        """How many of its bytes are here; 0 for one that nobody began."""
        ...

    def add(self, file: EvidenceFile, start: int, data: bytes) -> None:
        """Stores one piece; the same piece again is nothing. Pieces come in their order."""
        ...

    def finish(self, file: EvidenceFile) -> None:
        """All pieces are here: from now on it is shown. Again is nothing. Raises EvidenceBroken."""
        ...

    def files(self, *, incident: str | None = None, run: str | None = None) -> list[EvidenceFile]:
        """The finished ones of an incident or a run, oldest first."""
        ...

    def file(self, file: str) -> EvidenceFile | None:
        """A finished one."""
        ...

    def content(self, file: str) -> bytes:
        """The bytes of a finished one."""
        ...
