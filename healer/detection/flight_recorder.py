"""NCCL's flight recorder: reads a rank's dump without trusting it. Pure.

PyTorch dumps a pickle (protocol 2), or JSON. A dump is a user's file, so it is never unpickled. Its opcodes
are read with `pickletools`, and only those that create plain values are accepted; any opcode that would
import, call or build something is an error. The fields are those of PyTorch's FlightRecorder, version 2.x; a
dump of torch 2.13 over gloo with two ranks is among the tests.
"""

import pickletools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any

import msgspec

from healer.text import Said, joined, name_some, say

#: A dump of 2,000 entries with their stack frames has about 600,000 opcodes.
MOST_OPCODES = 2_000_000
MOST_GROUPS = 64
MOST_RANKS = 4096


class RecorderError(ValueError):
    """The data is not a dump, or not one that may be read. The text is one sentence."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of a rank. `created_ns`: since 1970, by its node's clock; `sizes`: such as `[[8,
    3]]`."""

    seq: int
    op: str
    state: str
    sizes: str = ""
    created_ns: int = 0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as one rank knows it. `enqueued` and `completed`: numbers of its last collectives (-1:
    none; None: unknown). `open`: the first that is not known to be over. `ops`: operations by number, as far
    as the dump still holds them. `ranks`: its members; empty: unknown."""

    enqueued: int | None
    completed: int | None
    open: Entry | None = None
    ops: dict[int, str] = {}
    ranks: tuple[int, ...] = ()


def read(data: bytes) -> dict[str, Group]:
    """The rank's process groups by name. Raises RecorderError."""
    dump = _json(data) if data[:1] == b"{" else _pickle(data)
    if not isinstance(dump, dict) or not isinstance(dump.get("entries"), list):
        raise RecorderError(say("detection.dump_no_entries"))
    config, status = _mapping(dump, "pg_config"), _mapping(dump, "pg_status")
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for entry in dump["entries"]:
        if isinstance(entry, dict) and not entry.get("is_p2p"):
            by_group.setdefault(_group(entry), []).append(entry)
    if len(by_group) > MOST_GROUPS:
        raise RecorderError(say("detection.dump_many_groups", n=MOST_GROUPS))
    return {name: _made(name, entries, config, status) for name, entries in by_group.items()}


def _made(
    name: str, entries: list[Mapping[str, Any]], config: Mapping[str, Any], status: Mapping[str, Any]
) -> Group:
    counts = _mapping(status, _text(entries[0].get("pg_id")))
    seqs = [_number(entry.get("collective_seq_id"), -1) for entry in entries]
    by_seq = list(zip(seqs, entries, strict=True))
    done = [seq for seq, entry in by_seq if entry.get("state") == "completed"]
    enqueued = max([*seqs, _number(counts.get("last_enqueued_collective"), -1)])
    # The watchdog's count is used too, because the recorder itself may have missed an end.
    completed = max([*done, _number(counts.get("last_completed_collective"), -1)])
    first = min((item for item in by_seq if item[0] > completed), key=itemgetter(0), default=None)
    return Group(
        enqueued=enqueued if enqueued >= 0 else None,
        completed=completed,
        open=_entry(*first) if first is not None else None,
        ops={seq: _text(entry.get("profiling_name")) for seq, entry in by_seq},
        ranks=_ranks(name, entries[0], config),
    )


def _entry(seq: int, entry: Mapping[str, Any]) -> Entry:
    return Entry(
        seq=seq,
        op=_text(entry.get("profiling_name")),
        state=_text(entry.get("state")),
        sizes=_sizes(entry.get("input_sizes")),
        created_ns=_number(entry.get("time_created_ns"), 0),
    )


def _group(entry: Mapping[str, Any]) -> str:
    named = entry.get("process_group")
    if isinstance(named, list | tuple) and named:
        return _text(named[0])
    return _text(entry.get("pg_id"))


def _ranks(name: str, entry: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    """The members, if the dump holds them: `"[0, 1]"`. The default group's name may be missing there."""
    named = entry.get("process_group")
    default = isinstance(named, list | tuple) and any(part == "default_pg" for part in map(_text, named[:2]))
    group = _mapping(config, name) or (_mapping(config, "") if default else {})
    found = re.findall(r"\d{1,7}", _text(group.get("ranks"), MOST_RANKS * 9))
    return tuple(sorted({int(rank) for rank in found}))[:MOST_RANKS]


def _mapping(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: object, most: int = 80) -> str:
    """Plain words only: a list that contains itself many times would become an endless text."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(_number(value, -1))
    return value[:most] if isinstance(value, str) else ""


def _sizes(value: object) -> str:
    found = value[:4] if isinstance(value, list | tuple) else ()
    each = [[_number(part, -1) for part in size[:8]] for size in found if isinstance(size, list | tuple)]
    return str(each) if each else ""


def _number(value: object, otherwise: int) -> int:
    """Accepts the pickle's numbers and the JSON's texts."""
    if isinstance(value, bool):
        return otherwise
    if isinstance(value, int):
        return value if abs(value) < 1 << 63 else otherwise
    return int(value) if isinstance(value, str) and re.fullmatch(r"-?\d{1,19}", value) else otherwise


# --- its two forms ---


def _json(data: bytes) -> object:
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RecorderError(say("detection.dump_no_json", error=str(error))) from error


_MARK = object()
#: Opcodes that push their own argument.
_PLAIN = frozenset(
    {
        "BININT", "BININT1", "BININT2", "LONG1", "LONG4", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
        "BINFLOAT", "SHORT_BINBYTES", "BINBYTES",
    }
)  # fmt: skip
_EMPTY: Mapping[str, Callable[[], object]] = {
    "NONE": lambda: None, "NEWTRUE": lambda: True, "NEWFALSE": lambda: False,
    "EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_TUPLE": tuple, "MARK": lambda: _MARK,
}  # fmt: skip
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_KEPT = frozenset({"BINPUT", "LONG_BINPUT"})
_TAKEN = frozenset({"BINGET", "LONG_BINGET"})


def _pickle(data: bytes) -> object:
    """The value that these opcodes create, from plain values only. Raises RecorderError."""
    stack: list[Any] = []
    memo: dict[int, object] = {}
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number > MOST_OPCODES:
                raise RecorderError(say("detection.dump_too_long"))
            if opcode.name == "STOP":
                return stack.pop()
            _step(opcode.name, argument, stack, memo)
    except RecorderError:
        raise
    except Exception as error:  # untrusted bytes may raise anything
        why = f"{type(error).__name__}: {str(error)[:100]}"
        raise RecorderError(say("detection.dump_no_dump", error=why)) from error
    raise RecorderError(say("detection.dump_ends_early"))


def _step(name: str, argument: Any, stack: list[Any], memo: dict[int, object]) -> None:
    if name in _PLAIN:
        stack.append(argument)
    elif name in _EMPTY:
        stack.append(_EMPTY[name]())
    elif name in _KEPT:
        memo[argument] = stack[-1]
    elif name in _TAKEN:
        stack.append(memo[argument])
    elif name in _TUPLES:
        stack[-_TUPLES[name] :] = [tuple(stack[-_TUPLES[name] :])]
    elif name == "TUPLE":
        stack.append(tuple(_since_mark(stack)))
    elif name in ("APPEND", "APPENDS"):
        items = [stack.pop()] if name == "APPEND" else _since_mark(stack)
        _of(stack, list).extend(items)
    elif name in ("SETITEM", "SETITEMS"):
        items = [stack.pop() for _ in "kv"][::-1] if name == "SETITEM" else _since_mark(stack)
        if not all(isinstance(key, str | int) for key in items[::2]):
            raise RecorderError(say("detection.dump_no_word"))
        _of(stack, dict).update(zip(items[::2], items[1::2], strict=True))
    elif name not in ("PROTO", "FRAME"):
        raise RecorderError(say("detection.dump_opcode", name=name))


def _since_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _of(stack: list[Any], kind: type[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise RecorderError(say("detection.dump_opcodes"))
    return stack[-1]


class Stall(msgspec.Struct, frozen=True, kw_only=True):
    """One group that is stuck. `arrived` wait in collective `seq`, `missing` have not called it, `unheard`
    are members whose dumps do not show its state. `whole`: its members are known, and each has a dump.
    `differs`: ranks that called something else under this number, by what they called: the program's
    error."""

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


def find_stall(ranks: Mapping[int, Mapping[str, Group]]) -> Stall | None:
    """The root of what is stuck, according to the dumps of these ranks; None: no rank waits for another."""
    names = dict.fromkeys(name for groups in ranks.values() for name in groups)
    stalls = [stall for name in names if (stall := _stall(name, ranks)) is not None]
    waiting = {stall.group: set(stall.arrived) for stall in stalls}

    def is_victim(stall: Stall) -> bool:
        elsewhere = set().union(*(there for name, there in waiting.items() if name != stall.group))
        return not elsewhere.isdisjoint(stall.missing)

    # A cycle (each waits for the other) has no root: it began where a rank has waited longest.
    roots = [stall for stall in stalls if not is_victim(stall)] or stalls
    return min(roots, key=lambda stall: (not stall.missing, stall.since_ns, stall.group), default=None)


def _stall(name: str, ranks: Mapping[int, Mapping[str, Group]]) -> Stall | None:
    by_rank = {rank: groups[name] for rank, groups in ranks.items() if name in groups}
    opened = {rank: group.open for rank, group in by_rank.items() if group.open is not None}
    if not opened:
        return None
    seq = min(entry.seq for entry in opened.values())
    here = [entry for entry in opened.values() if entry.seq == seq]
    listed = set().union(*(group.ranks for group in by_rank.values()))
    members = listed or set(by_rank)
    # A rank whose dump lacks the group may have created it later: its state is unknown.
    heard = {rank for rank in members if rank in by_rank and by_rank[rank].enqueued is not None}
    arrived = {rank for rank in heard if (by_rank[rank].enqueued or 0) >= seq}
    called = Counter(group.ops[seq] for group in by_rank.values() if seq in group.ops)
    first = min(here, key=lambda entry: (-called[entry.op], entry.created_ns))
    return Stall(
        group=name,
        seq=seq,
        op=first.op,
        sizes=first.sizes,
        arrived=tuple(sorted(arrived)),
        missing=tuple(sorted(heard - arrived)),
        unheard=tuple(sorted(members - heard)),
        whole=bool(listed) and heard == members,
        differs=_differs(seq, first, by_rank),
        since_ns=min(entry.created_ns for entry in here),
    )


def _differs(seq: int, first: Entry, by_rank: Mapping[int, Group]) -> dict[str, tuple[int, ...]]:
    found: dict[str, list[int]] = {}
    for rank, group in sorted(by_rank.items()):
        op = group.ops.get(seq)
        if op is not None and op != first.op:
            found.setdefault(op, []).append(rank)
    return {op: tuple(ranks) for op, ranks in found.items()}


def describe_stall(stall: Stall, nodes: Mapping[int, str]) -> Said:
    """One sentence: `nccl:all_reduce 812 of group 0 is stalled: rank 3 (gpu0001) …`."""
    what = say("detection.stall", op=stall.op, seq=stall.seq, group=stall.group)
    if stall.differs:
        others = (
            say("detection.stall_called", ranks=_named(ranks, nodes), op=op)
            for op, ranks in stall.differs.items()
        )
        return say("detection.stall_differs", stall=what, others=joined(others, "semicolon"))
    came = len(stall.arrived)
    if stall.missing:
        missing = _named(stall.missing, nodes)
        text = say("detection.stall_missing", stall=what, ranks=missing, n=came)
    elif stall.whole:
        text = say("detection.stall_all_came", stall=what)
    else:
        text = say("detection.stall_some_came", stall=what, n=came)
    unheard = len(stall.unheard)
    return say("detection.stall_unheard", text=text, n=unheard) if unheard else text


def _named(ranks: tuple[int, ...], nodes: Mapping[int, str]) -> Said:
    names = [f"{rank} ({nodes[rank]})" if rank in nodes else str(rank) for rank in ranks]
    return say("detection.ranks", count=len(ranks), names=name_some(names, 4))
