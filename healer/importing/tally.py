"""What was understood from one source, and what was skipped, with the first examples."""

from datetime import UTC, datetime

import msgspec

from healer.importing.local_stamps import is_time
from healer.model.shown import one_line
from healer.text import Said, say

#: Examples kept of each reason, and letters of each.
EXAMPLES, EXAMPLE_LETTERS = 3, 160
#: Different reasons kept; further ones are counted under the last.
REASONS = 50


class Skipped(msgspec.Struct):
    """Lines left out for one reason. `examples` are the first of them, as `FILE:NUMBER: LINE`."""

    count: int = 0
    examples: list[str] = []


class Tally(msgspec.Struct, kw_only=True):
    """One source. `lines` were read, or records: the last is the one that is being read. `signals` came of
    it: kernel lines, changes of nodes and jobs, samples. `plain` lines say nothing that healer looks for.
    `notes` are assumptions, such as the year."""

    source: str
    kind: str = ""
    lines: int = 0
    read_bytes: int = 0
    signals: int = 0
    plain: int = 0
    first: datetime | None = None
    last: datetime | None = None
    skipped: dict[Said, Skipped] = {}
    notes: list[Said] = []

    def skip(self, why: Said, example: str | bytes = "", count: int = 1, *, line: int | None = None) -> None:
        """`line`: the example's number, if it is not the line that is being read; 0: it has none."""
        if why not in self.skipped and len(self.skipped) >= REASONS:
            why = say("importing.other_reasons")
        found = self.skipped.setdefault(why, Skipped())
        found.count += count
        if example and len(found.examples) < EXAMPLES:
            text = example.decode("utf-8", "replace") if isinstance(example, bytes) else example
            number = self.lines if line is None else line
            place = one_line(f"{self.source}:{number}" if number else self.source)
            found.examples.append(f"{place}: {one_line(text[: 4 * EXAMPLE_LETTERS])[:EXAMPLE_LETTERS]}")

    def without_words(self) -> "Tally":
        """What was skipped, only in words of our own."""
        skipped: dict[Said, Skipped] = {}
        for why, its in self.skipped.items():
            is_ours = why.key and not any(isinstance(value, str) for value in why.args.values())
            skipped.setdefault(
                why if is_ours else say("importing.other_reasons"), Skipped()
            ).count += its.count
        return msgspec.structs.replace(self, skipped=skipped)

    def saw(self, at_us: int) -> None:
        """Extends the time span. What is no date does not count."""
        if not is_time(at_us):
            return
        at = datetime.fromtimestamp(at_us / 1e6, UTC)
        self.first = at if self.first is None else min(self.first, at)
        self.last = at if self.last is None else max(self.last, at)

    def note(self, text: Said) -> None:
        if text not in self.notes and len(self.notes) < REASONS:
            self.notes.append(text)
