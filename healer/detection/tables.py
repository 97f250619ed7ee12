"""Reading the two bit tables: NVLink5 lines (Xid 144-150) and the registers of Xid 74."""

from collections.abc import Sequence
from functools import lru_cache

from healer.model import FaultClass, NvlinkRow, Xid74Bits

#: Worst last. `application` and `unknown` do not occur in these tables.
_BADNESS = (FaultClass.informational, FaultClass.degraded, FaultClass.fatal)


#: The driver that laid out the first word anew.
_NEW_LAYOUT = 575
_LINK_DOWN = frozenset({"NETIR_LINK_EVT", "NETIR_LINK_DOWN"})


def nvlink_row(
    rows: Sequence[NvlinkRow], xid: int, unit: str, words: Sequence[int], driver: int | None = None
) -> NvlinkRow | None:
    """The first row that fits; None for a combination that nobody has written down.

    `driver`: its major number, None where nobody tells; then either layout of the first word counts.
    """
    if not words:
        return None
    status = words[1] if len(words) > 1 else 0
    named = set(unit.split("/"))
    for row in rows:
        if row.xid != xid or named.isdisjoint(row.units) or (row.status and status not in row.status):
            continue
        before, since = row.info
        layouts = (before, since) if driver is None else (since,) if driver >= _NEW_LAYOUT else (before,)
        if any((words[0] & mask) == value for mask, value in map(bit_pattern, layouts)):
            return row
    return None


def link_down_reason(unit: str, words: Sequence[int]) -> int | None:
    """Why a link went down, bits 25:20 of the first word; None where the line is about something else."""
    if not words or _LINK_DOWN.isdisjoint(unit.split("/")):
        return None
    return words[0] >> 20 & 0x3F


@lru_cache(maxsize=1024)
def bit_pattern(pattern: str) -> tuple[int, int]:
    """`----01…` (bit 31 first, `-` is any) -> (mask, value). Raises ValueError."""
    if len(pattern) != 32 or not set(pattern) <= set("01-"):
        raise ValueError("a bit pattern has 32 characters out of 0, 1 and -")
    mask = int("".join("0" if bit == "-" else "1" for bit in pattern), 2)
    return mask, int(pattern.replace("-", "0"), 2)


def xid74_reading(
    table: Sequence[Xid74Bits], registers: Sequence[int]
) -> tuple[FaultClass | None, tuple[str, ...]]:
    """(the class that the set bits make, what they mean). None: a bit that no row names, or none set."""
    classes: list[FaultClass] = []
    notes: list[str] = []
    complete = True
    for register, value in enumerate(registers):
        for bit in (bit for bit in range(32) if value >> bit & 1):
            row = next((row for row in table if row.register == register and bit in row.bits), None)
            if row is None:
                complete = False
                notes.append(f"register {register} bit {bit}: no published meaning")
            else:
                classes.append(row.fault_class)
                notes.append(row.text)
    if not complete or not classes:
        return None, tuple(dict.fromkeys(notes))
    return max(classes, key=_BADNESS.index), tuple(dict.fromkeys(notes))
