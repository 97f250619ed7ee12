"""Objects of a list in one large JSON document, one after the other, without the document in memory."""

import re
from collections.abc import Iterable, Iterator

from healer.importing.tally import Tally
from healer.text import say

#: The largest object that is kept: a job with thousands of steps is some MiB.
OBJECT_BYTES = 16 << 20
#: Strings, also one that has not ended yet, and braces.
_TOKEN = re.compile(rb'"(?:[^"\\]|\\.)*"?|[{}]', re.DOTALL)


def objects(pieces: Iterable[bytes], name: str, tally: Tally) -> Iterator[bytes]:
    """The objects of the list `name` at the top of the document, or one level below it; without a name, of
    the list that the document is."""
    begin = re.compile(rb'"' + name.encode() + rb'"\s*:\s*\[' if name else rb"\[")
    held, scan = b"", _Scan()
    for piece in pieces:
        held += piece
        if not scan.inside:
            match = begin.search(held)
            if match is None:
                held = held[-256:]
                continue
            held, scan.inside = held[match.end() :], True
        found, held = scan.take(held)
        yield from found
        if scan.ended:
            return
        if len(held) > OBJECT_BYTES:
            tally.skip(say("importing.long_object", mib=OBJECT_BYTES >> 20), held[:100])
            held = scan.drop(held)
            if len(held) > OBJECT_BYTES:  # one text
                return
    if held.strip():
        tally.skip(say("importing.cut_document"), held[:100])


class _Scan:
    """Where the scan is: in which depth, and how far."""

    def __init__(self) -> None:
        self.inside = self.ended = self._dropping = False
        self._depth = self._start = self._place = 0

    def drop(self, held: bytes) -> bytes:
        """The object in which the scan is, is left out. Returns what is left of `held`."""
        left, self._place, self._dropping = held[self._place :], 0, True
        return left

    def take(self, held: bytes) -> tuple[list[bytes], bytes]:
        """(whole objects, what is left of `held`)."""
        found: list[bytes] = []
        place, start = self._place, self._start
        for match in _TOKEN.finditer(held, place):
            if not self._depth and b"]" in held[place : match.start()]:
                self.ended = True
                return found, b""
            token = match[0]
            if token.startswith(b'"') and match.end() == len(held):
                break
            place = match.end()
            if token == b"{":
                if not self._depth:
                    start = match.start()
                self._depth += 1
            elif token == b"}":
                self._depth -= 1
                if not self._depth:
                    if not self._dropping:
                        found.append(held[start:place])
                    start, self._dropping = place, False
        if not self._depth:
            self.ended = b"]" in held[place:]
        if not self._depth or self._dropping:
            start = place
        self._place, self._start = place - start, 0
        return found, b"" if self.ended else held[start:]
