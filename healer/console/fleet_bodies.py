"""What the map draws, kept for a while in each version that pages have: they fetch what changed since."""

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from healer.console import language
from healer.console.views.colours import Colour, Told, bins, cells, kinds
from healer.console.views.fleet import NodeRow
from healer.model import Verdict
from healer.ports.console_answers import Standing

#: Versions that are kept, of all clusters and colours: a page that is further behind reads all anew.
_KEPT = 64

_encode = msgspec.json.Encoder().encode


class Body(NamedTuple):
    """One version. `whole` is the body of a page that has none; `cells` what changes are told from."""

    tag: str
    places: list[list[str]]
    cells: list[list[Any]]
    whole: bytes


class FleetBodies:
    def __init__(self, said: Callable[[str], str]) -> None:
        """`said`: a sentence in the language of the request."""
        self._said = said
        self._lock = threading.Lock()
        self._newest: dict[tuple[str, Colour, str], tuple[tuple[object, Told], Body]] = {}
        self._kept: OrderedDict[tuple[str, Colour, str], Body] = OrderedDict()

    def now(self, stands: Standing, rows: Sequence[NodeRow], colour: Colour, told: Told) -> Body:
        """Made anew only where the rows or what was measured are others than last time."""
        key = stands.cluster, colour, language.current.get()
        with self._lock:
            made = self._newest.get(key)
        if made is not None and made[0][0] is rows and made[0][1] == told:
            return made[1]
        body = _body(stands, rows, colour, told, self._said)
        with self._lock:
            self._newest[key] = (rows, told), body
            self._kept[stands.cluster, colour, body.tag] = body
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        return body

    def since(self, tag: str, stands: Standing, colour: Colour, body: Body) -> bytes | None:
        """What a page that has `tag` needs; None: that version is not known, or is of another fleet."""
        with self._lock:
            before = self._kept.get((stands.cluster, colour, tag))
        if before is None or before.places != body.places or len(before.cells) != len(body.cells):
            return None
        both = enumerate(zip(before.cells, body.cells, strict=True))
        changed = [[place, new] for place, (old, new) in both if old is not new and old != new]
        if any(before.cells[place][0] != new[0] for place, new in changed):
            return None
        return _encode({"tag": body.tag, "changed": changed})


def _body(
    stands: Standing, rows: Sequence[NodeRow], colour: Colour, told: Told, said: Callable[[str], str]
) -> Body:
    places, found = cells(rows, colour, told)
    tag = hashlib.sha256(_encode([places, found])).hexdigest()[:16]
    whole = {
        "cluster": stands.cluster, "tag": tag, "groups": places, "nodes": found,
        "bins": bins(colour, said), "kinds": kinds(said),
        "verdicts": {one.value: said(one.value) for one in Verdict},
    }  # fmt: skip
    return Body(tag, places, found, _encode(whole))
