"""Which collective of a job stands, and who never came to it: from the recorder's dumps of its ranks. Pure.

Every member of a process group has to call the same collectives in the same order, so each has a number. The
lowest number that somebody waits in is where the group stands. Who has not come so far is missing; from whom
there is no dump nothing is known. A rank that is missing in one group because it waits in another is a
victim: the group whose missing ranks wait nowhere is the root.
"""

from collections import Counter
from collections.abc import Mapping

import msgspec

from healer.detection.flight_recorder import Entry, Group


class Stand(msgspec.Struct, frozen=True, kw_only=True):
    """One group that stands. `arrived` wait in collective `seq`, `missing` have not called it, `unheard` are
    members of whom no dump tells. `whole`: its members are known, and a dump of each is there. `differs`: by
    what they called instead, ranks that called something else under this number: the program's own error."""

    group: str
    seq: int
    op: str
    sizes: str = ""
    arrived: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    unheard: tuple[int, ...] = ()
    whole: bool = False
    differs: dict[str, tuple[int, ...]] = {}
    #: When the first of them called it, in ns since 1970.
    since_ns: int = 0


def stand_of(ranks: Mapping[int, Mapping[str, Group]]) -> Stand | None:
    """The root of what stands, by the dumps of these ranks; None: by them nobody waits for anybody."""
    names = dict.fromkeys(name for groups in ranks.values() for name in groups)
    stands = [one for name in names if (one := _stand(name, ranks)) is not None]
    waiting = {one.group: set(one.arrived) for one in stands}

    def is_victim(one: Stand) -> bool:
        elsewhere = set().union(*(there for name, there in waiting.items() if name != one.group))
        return not elsewhere.isdisjoint(one.missing)

    # A circle (each waits for the other) has no root: then it began where somebody has waited longest.
    roots = [one for one in stands if not is_victim(one)] or stands
    return min(roots, key=lambda one: (not one.missing, one.since_ns, one.group), default=None)


def _stand(name: str, ranks: Mapping[int, Mapping[str, Group]]) -> Stand | None:
    known = {rank: groups[name] for rank, groups in ranks.items() if name in groups}
    opened = {rank: group.open for rank, group in known.items() if group.open is not None}
    if not opened:
        return None
    seq = min(one.seq for one in opened.values())
    here = {rank: one for rank, one in opened.items() if one.seq == seq}
    told = set().union(*(group.ranks for group in known.values()))
    members = told or set(known)
    # A rank whose dump does not know the group may have made it later: nothing is known of it.
    heard = {rank for rank in members if rank in known and known[rank].enqueued is not None}
    arrived = {rank for rank in heard if (known[rank].enqueued or 0) >= seq}
    called = Counter(group.ops[seq] for group in known.values() if seq in group.ops)
    first = min(here.values(), key=lambda one: (-called[one.op], one.created_ns))
    return Stand(
        group=name,
        seq=seq,
        op=first.op,
        sizes=first.sizes,
        arrived=tuple(sorted(arrived)),
        missing=tuple(sorted(heard - arrived)),
        unheard=tuple(sorted(members - heard)),
        whole=bool(told) and heard == members,
        differs=_differs(seq, first, known),
        since_ns=min(one.created_ns for one in here.values()),
    )


def _differs(seq: int, first: Entry, known: Mapping[int, Group]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for rank, group in sorted(known.items()):
        op = group.ops.get(seq)
        if op is not None and op != first.op:
            found.setdefault(op, []).append(rank)
    return {op: tuple(ranks) for op, ranks in found.items()}


def said(stand: Stand, nodes: Mapping[int, str]) -> str:
    """One sentence: `nccl:all_reduce 812 of group 0 stands: rank 3 (gpu0001) never came, 7 wait`."""
    what = f"{stand.op} {stand.seq} of group {stand.group} stands"
    if stand.differs:
        others = "; ".join(f"{_named(ranks, nodes)} called {op}" for op, ranks in stand.differs.items())
        return f"{what}: {others} instead, so the program itself is wrong"
    unheard = f", of {len(stand.unheard)} nothing is known" if stand.unheard else ""
    if stand.missing:
        return f"{what}: {_named(stand.missing, nodes)} never came, {len(stand.arrived)} wait{unheard}"
    came = "all ranks came" if stand.whole else f"{len(stand.arrived)} ranks came"
    return f"{what}: {came}, and it does not end{unheard}"


def _named(ranks: tuple[int, ...], nodes: Mapping[int, str]) -> str:
    shown = ", ".join(f"{rank} ({nodes[rank]})" if rank in nodes else str(rank) for rank in ranks[:4])
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 else ""
    return f"{'ranks' if len(ranks) > 1 else 'rank'} {shown}{more}"
