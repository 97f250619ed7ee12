"""NCCL's flight recorder: what a rank's dump holds, read without believing it. Pure.

PyTorch dumps a pickle (protocol 2), or JSON. A dump is a user's file: it is never unpickled. Its opcodes are
walked with `pickletools`, and only those that make plain values are known; any that would import, call or
build something ends the reading. The fields are those of PyTorch's FlightRecorder, version 2.x; a dump of
torch 2.13 over gloo, made with two ranks, is among the tests.
"""

import pickletools
import re
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

#: A dump of 2,000 entries with their stack frames has about 600,000 opcodes.
MOST_OPCODES = 2_000_000
MOST_GROUPS = 64
MOST_RANKS = 4096


class RecorderError(ValueError):
    """This is no dump, or none that may be read. The text is one sentence."""


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One collective of a rank. `created_ns` since 1970, by its node's clock; `sizes` as `[[8, 3]]`."""

    seq: int
    op: str
    state: str
    sizes: str = ""
    created_ns: int = 0


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A process group as one rank knows it. `enqueued` and `completed` are numbers of its last collectives
    (-1: none); None where that cannot be told. `open`: the first that is not known to be over. `ops`: by
    number, of those that the dump still holds. `ranks` are its members; empty: not told."""

    enqueued: int | None
    completed: int | None
    open: Entry | None = None
    ops: dict[int, str] = {}
    ranks: tuple[int, ...] = ()


def read(data: bytes) -> dict[str, Group]:
    """The rank's process groups by name. Raises RecorderError."""
    told = _json(data) if data[:1] == b"{" else _pickle(data)
    if not isinstance(told, dict) or not isinstance(told.get("entries"), list):
        raise RecorderError("it holds no entries")
    config, status = _mapping(told, "pg_config"), _mapping(told, "pg_status")
    by_group: dict[str, list[Mapping[str, Any]]] = {}
    for one in told["entries"]:
        if isinstance(one, dict) and not one.get("is_p2p"):
            by_group.setdefault(_group(one), []).append(one)
    if len(by_group) > MOST_GROUPS:
        raise RecorderError(f"it holds more than {MOST_GROUPS} process groups")
    return {name: _made(name, entries, config, status) for name, entries in by_group.items()}


def _made(
    name: str, entries: list[Mapping[str, Any]], config: Mapping[str, Any], status: Mapping[str, Any]
) -> Group:
    known = _mapping(status, _text(entries[0].get("pg_id")))
    seqs = [_number(one.get("collective_seq_id"), -1) for one in entries]
    done = [_number(one.get("collective_seq_id"), -1) for one in entries if one.get("state") == "completed"]
    enqueued = max([*seqs, _number(known.get("last_enqueued_collective"), -1)])
    # The watchdog counts too, where the recorder itself saw no end.
    completed = max([*done, _number(known.get("last_completed_collective"), -1)])
    left = [one for one, seq in zip(entries, seqs, strict=True) if seq > completed]
    first = min(left, key=lambda one: _number(one.get("collective_seq_id"), -1), default=None)
    return Group(
        enqueued=enqueued if enqueued >= 0 else None,
        completed=completed,
        open=_entry(first) if first is not None else None,
        ops={seq: _text(one.get("profiling_name")) for one, seq in zip(entries, seqs, strict=True)},
        ranks=_ranks(name, entries[0], config),
    )


def _entry(one: Mapping[str, Any]) -> Entry:
    return Entry(
        seq=_number(one.get("collective_seq_id"), -1),
        op=_text(one.get("profiling_name")),
        state=_text(one.get("state")),
        sizes=_sizes(one.get("input_sizes")),
        created_ns=_number(one.get("time_created_ns"), 0),
    )


def _group(one: Mapping[str, Any]) -> str:
    named = one.get("process_group")
    if isinstance(named, list | tuple) and named:
        return _text(named[0])
    return _text(one.get("pg_id"))


def _ranks(name: str, entry: Mapping[str, Any], config: Mapping[str, Any]) -> tuple[int, ...]:
    """The members, where the dump tells them: `"[0, 1]"`. The default group's name may be missing there."""
    named = entry.get("process_group")
    default = isinstance(named, list | tuple) and any(part == "default_pg" for part in map(_text, named[:2]))
    told = _mapping(config, name) or (_mapping(config, "") if default else {})
    found = re.findall(r"\d{1,7}", _text(told.get("ranks"), MOST_RANKS * 9))
    return tuple(sorted({int(one) for one in found}))[:MOST_RANKS]


def _mapping(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}


def _text(value: object, most: int = 80) -> str:
    """Of plain words alone: a list that holds itself many times over would be endless as a text."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(_number(value, -1))
    return value[:most] if isinstance(value, str) else ""


def _sizes(value: object) -> str:
    found = value[:4] if isinstance(value, list | tuple) else ()
    each = [[_number(one, -1) for one in size[:8]] for size in found if isinstance(size, list | tuple)]
    return str(each) if each else ""


def _number(value: object, otherwise: int) -> int:
    """Numbers of the pickle, texts of the JSON."""
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
        raise RecorderError(f"it is no JSON: {error}") from error


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
    """The value that these opcodes stand for, made of plain values alone. Raises RecorderError."""
    stack: list[Any] = []
    memo: dict[int, object] = {}
    try:
        for number, (opcode, argument, _) in enumerate(pickletools.genops(data)):
            if number > MOST_OPCODES:
                raise RecorderError("it is too long")
            if opcode.name == "STOP":
                return stack.pop()
            _step(opcode.name, argument, stack, memo)
    except RecorderError:
        raise
    except Exception as error:  # whatever bytes of a stranger lead to
        raise RecorderError(f"it is no dump: {type(error).__name__}: {str(error)[:100]}") from error
    raise RecorderError("it ends too early")


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
            raise RecorderError("a name in it is no word")
        _of(stack, dict).update(zip(items[::2], items[1::2], strict=True))
    elif name not in ("PROTO", "FRAME"):
        raise RecorderError(f"it holds {name}, which makes more than a plain value: not read")


def _since_mark(stack: list[Any]) -> list[Any]:
    at = len(stack) - 1
    while stack[at] is not _MARK:
        at -= 1
    items = stack[at + 1 :]
    del stack[at:]
    return items


def _of(stack: list[Any], kind: type[Any]) -> Any:
    if not isinstance(stack[-1], kind):
        raise RecorderError("its opcodes do not fit each other")
    return stack[-1]


class Stall(msgspec.Struct, frozen=True, kw_only=True):
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


def find_stall(ranks: Mapping[int, Mapping[str, Group]]) -> Stall | None:
    """The root of what stands, by the dumps of these ranks; None: by them nobody waits for anybody."""
    names = dict.fromkeys(name for groups in ranks.values() for name in groups)
    stands = [one for name in names if (one := _stand(name, ranks)) is not None]
    waiting = {one.group: set(one.arrived) for one in stands}

    def is_victim(one: Stall) -> bool:
        elsewhere = set().union(*(there for name, there in waiting.items() if name != one.group))
        return not elsewhere.isdisjoint(one.missing)

    # A circle (each waits for the other) has no root: then it began where somebody has waited longest.
    roots = [one for one in stands if not is_victim(one)] or stands
    return min(roots, key=lambda one: (not one.missing, one.since_ns, one.group), default=None)


def _stand(name: str, ranks: Mapping[int, Mapping[str, Group]]) -> Stall | None:
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
    return Stall(
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


def describe_stall(stand: Stall, nodes: Mapping[int, str]) -> str:
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
