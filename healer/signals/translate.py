"""All wire forms of samples -> reports, with what one process learned of series so far."""

from datetime import datetime

from healer.model import Catalogue
from healer.ports import ColumnBook
from healer.signals.columnar import Columnar
from healer.signals.measured import Measured
from healer.signals.names import Names, Numbers
from healer.signals.wire import Known


class Translator:
    """One per process; not thread-safe. All it remembers is bounded. Made anew when the catalogue changes.

    Every method raises `wire.BadBody` when nothing of the body can be read, and nothing else.
    """

    def __init__(self, catalogue: Catalogue, book: ColumnBook, cluster: str) -> None:
        self.catalogue = catalogue
        names, numbers = Names(catalogue), Numbers(book)
        self._columnar = Columnar(names, numbers, cluster)

    def columnar(self, raw: bytes, known: Known, now: datetime) -> Measured:
        """`POST /signals/metrics`."""
        return self._columnar.take(raw, known, now)
