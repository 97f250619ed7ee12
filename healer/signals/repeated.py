"""Maps of a sender in which one name may stand more than once, as JSON and protobuf allow.

A plain map tells the last value alone. Where a later word must not overrule an earlier one (`syslog`), all of
them are looked at.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Any


class Repeated(dict[Any, Any]):
    """A map of which some name stands more than once. `pairs`: all of it, in its order."""

    def __init__(self, pairs: Sequence[tuple[Any, Any]]) -> None:
        super().__init__(pairs)
        self.pairs = pairs


def map_of(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """The map of these pairs; a Repeated where a name stands more than once."""
    plain = dict(pairs)
    return plain if len(plain) == len(pairs) else Repeated(pairs)


def pairs_of(told: Mapping[Any, Any]) -> Collection[tuple[Any, Any]]:
    """All pairs that were told."""
    return told.pairs if isinstance(told, Repeated) else told.items()
