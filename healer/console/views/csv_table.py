"""The table behind a chart, as a file for a spreadsheet."""

import csv
import io
from collections.abc import Callable, Iterable, Sequence

from healer.model.shown import cell_text

_Cell = str | float | None


def csv_table(rows: Iterable[Sequence[_Cell]], translate: Callable[[str], str]) -> str:
    """Texts in the reader's language, numbers unrounded, None as an empty cell."""
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows(
        [cell_text(translate(cell)) if isinstance(cell, str) else cell for cell in row] for row in rows
    )
    return file.getvalue()
