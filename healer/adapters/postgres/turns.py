"""What the walk takes next of the inbox: each node's rows in their order, and no node's before all others'.

By id alone, a node that floods its own events would hold up everybody's until all of them are walked.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

import sqlalchemy as sa

from healer.adapters.postgres.tables import inbox

#: Of a full batch, so much may be one node's while others wait.
SHARE = 10
#: Looks for others behind floods; so many nodes that flood one behind the other are told apart.
_LOOKS = 8
#: Ids are given before the commit: a row may become visible behind so many later ones.
_SLACK = 20_000

COLUMNS = (inbox.c.id, inbox.c.cluster, inbox.c.kind, inbox.c.digest, inbox.c.arrived_at, inbox.c.doc)


class Turns:
    """For one reader of one cluster."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        #: Up to this id only `_floods` have rows that wait, but for those that became visible very late.
        self._looked, self._floods = 0, frozenset[str]()

    def take(self, conn: sa.Connection, limit: int) -> Sequence[sa.Row]:
        """At most `limit` rows that wait, by id. Where more wait than that, a node has `limit / SHARE` of
        them at most, unless there are not enough others."""
        found = self._oldest(conn, limit)
        share = max(1, limit // SHARE)
        if len(found) < limit:
            self._looked, self._floods = 0, frozenset()
            return found
        floods = _over(found, share)
        if not floods:
            return found
        if not floods >= self._floods:
            self._looked = 0  # what was passed over belongs to others now
        last = conn.execute(sa.select(sa.func.max(inbox.c.id))).scalar() or 0
        rows = {row.id: row for row in found}
        for _ in range(_LOOKS):
            others = self._oldest(conn, limit, floods, self._looked)
            rows |= {row.id: row for row in others}
            more = _over(others, share) - floods
            if not more or len(others) < limit:
                break
            floods |= more
        first = min((row.id for row in rows.values() if row.node not in floods), default=last + 1)
        self._looked, self._floods = max(0, min(first - 1, last - _SLACK)), frozenset(floods)
        return _in_turn([rows[one] for one in sorted(rows)], share, limit)

    def _oldest(
        self, conn: sa.Connection, limit: int, without: Iterable[str] = (), after: int = 0
    ) -> Sequence[sa.Row]:
        wanted = (
            sa.select(*COLUMNS, inbox.c.node)
            .where(inbox.c.cluster == self._cluster, inbox.c.consumed_at.is_(None), inbox.c.id > after)
            .order_by(inbox.c.id)
            .limit(limit)
        )
        if nodes := sorted(without):
            wanted = wanted.where(sa.or_(inbox.c.node.is_(None), inbox.c.node.not_in(nodes)))
        return conn.execute(wanted).all()


def _over(rows: Sequence[sa.Row], share: int) -> set[str]:
    counts = Counter(row.node for row in rows if row.node is not None)
    return {node for node, count in counts.items() if count > share}


def _in_turn(rows: Sequence[sa.Row], share: int, limit: int) -> list[sa.Row]:
    """By id: the first `share` of each node, then what else there is room for."""
    taken: Counter[str] = Counter()
    first: list[sa.Row] = []
    rest: list[sa.Row] = []
    for row in rows:
        taken[row.node] += row.node is not None
        (first if row.node is None or taken[row.node] <= share else rest).append(row)
    chosen = first[:limit]
    return sorted([*chosen, *rest[: limit - len(chosen)]], key=lambda row: row.id)
