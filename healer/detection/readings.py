"""The meaning of a kernel line according to the catalogues. Pure. Blame is decided elsewhere."""

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

import msgspec

from healer.model import (
    CatalogueEntry,
    Cause,
    FaultClass,
    GpuModel,
    NvlinkRow,
    Observation,
    ObservationKind,
    Remedy,
    Ruleset,
    SlurmNode,
    Xid74Bits,
)
from healer.text import Said, joined, quoted, say

_MAJOR = re.compile(r"(\d{3})\.")
_OF_ROW = ("text", "fault_class", "remedy", "cause", "unusable")


def gpu_model(models: Sequence[GpuModel], shown: SlurmNode | None) -> str | None:
    """The name in `gpu_models.yaml` of the node's GPUs, as named by Slurm or else by the node itself; the
    first entry that fits."""
    name = (shown.gpu_model or shown.gpu_name).lower() if shown is not None else ""
    if not name:
        return None
    fits = (model.name for model in models if any(fnmatchcase(name, glob.lower()) for glob in model.match))
    return next(fits, None)


def driver_major(shown: SlurmNode | None) -> int | None:
    """580 of `580.65.06`."""
    match = _MAJOR.match(shown.driver) if shown is not None else None
    return int(match[1]) if match else None


def row_of(entry: CatalogueEntry, model: str | None) -> CatalogueEntry:
    """The row, adapted to this GPU model."""
    if model is None:
        return entry
    for variant in entry.by_model:
        if any(fnmatchcase(model, glob) for glob in variant.models):
            given = {name: value for name in _OF_ROW if (value := getattr(variant, name)) is not None}
            return msgspec.structs.replace(entry, **given)
    return entry


#: In ascending order of severity. `application` and `unknown` do not occur in these tables.
_BADNESS = (FaultClass.informational, FaultClass.degraded, FaultClass.fatal)
#: The first driver with the new layout of the first word.
_NEW_LAYOUT = 575
_LINK_DOWN = frozenset({"NETIR_LINK_EVT", "NETIR_LINK_DOWN"})


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The meaning of one line: the fault's name and class, and a sentence for people.

    `remedy`, `cause`, `follows` as in `Finding`; `evidence_only`: opens no incident; `server`: the root, if
    that is another host."""

    fault: str
    fault_class: FaultClass
    text: Said
    unusable: bool = False
    teardown: bool = False
    asked: str | None = None
    explained: bool = True
    remedy: Remedy | None = None
    cause: Cause | None = None
    follows: bool = False
    evidence_only: bool = False
    server: str | None = None


class Line(NamedTuple):
    """An observation and its meaning; None: it names no fault."""

    seen: Observation
    reading: Reading | None


def read_all(
    rules: Ruleset, observations: Iterable[Observation], nodes: Mapping[str, SlurmNode] | None = None
) -> list[Line]:
    """Each observation with its reading.

    `nodes` as shown by Slurm: the meaning of a code may depend on GPU model and driver.
    """
    shown = nodes or {}
    return [Line(seen, read(rules, seen, shown.get(seen.component.node or ""))) for seen in observations]


def read(rules: Ruleset, seen: Observation, shown: SlurmNode | None = None) -> Reading | None:
    """The meaning of a line by the catalogues. None: it names no fault (identity, heartbeat, follow-up)."""
    if seen.data.get("follow_up"):
        return None
    if seen.kind is ObservationKind.gpu_lost:
        off_bus = "fallen off the bus" in seen.text  # the driver's words
        text = say("detection.gpu_off_bus" if off_bus else "detection.gpu_missing")
        return Reading(fault="gpu-lost", fault_class=FaultClass.fatal, text=text, unusable=True)
    if seen.kind is ObservationKind.kernel_line:
        return _line(rules, seen)
    if seen.code is None:
        return None
    if seen.kind is ObservationKind.xid:
        return _xid(rules, seen, seen.code, shown)
    if seen.kind is ObservationKind.sxid:
        return _sxid(rules, seen, seen.code)
    return None


# --- lines without a code -------------------------------------------------------------------------------


def _line(rules: Ruleset, seen: Observation) -> Reading | None:
    entry = rules.kernel_lines.by_name.get(seen.data.get("name", ""))
    if entry is None:
        return None  # stored when earlier rules named such a line
    parts = ", ".join(str(seen.data[name]) for name in ("nic", "device", "process") if name in seen.data)
    server = seen.data.get("server")
    head, where = quoted(entry.text), server or parts
    return Reading(
        fault=entry.fault,
        fault_class=entry.fault_class,
        text=say("detection.told", head=head, text=where) if where else head,
        remedy=entry.remedy,
        cause=entry.cause,
        evidence_only=not entry.opens,
        server=server,
    )


# --- Xid -------------------------------------------------------------------------------------------------


def _xid(rules: Ruleset, seen: Observation, code: int, shown: SlurmNode | None) -> Reading:
    entry = rules.xids.get(code)
    if entry is None:
        text = _with_words(say("detection.xid", code=code, text=say("detection.in_no_catalogue")), seen)
        return Reading(fault=f"xid-{code}", fault_class=FaultClass.unknown, text=text, explained=False)
    if code == 154 and (asked := _driver_asks(rules, seen)):
        return asked
    entry = row_of(entry, gpu_model(rules.gpu_models, shown))
    reading = Reading(
        fault=f"xid-{code}",
        fault_class=entry.fault_class,
        text=say("detection.xid", code=code, text=quoted(entry.text)),
        unusable=entry.unusable,
        teardown=entry.teardown,
        explained=entry.fault_class is not FaultClass.unknown,
        remedy=entry.remedy,
        cause=entry.cause,
    )
    if "unit" in seen.data:
        return _nvlink5(rules, seen, code, reading, driver_major(shown))
    if code == 74:
        return _xid74(rules, seen, reading)
    if code == 45 and (cause := seen.data.get("caused_by")):
        return msgspec.structs.replace(
            reading, text=say("detection.caused_by", text=reading.text, code=cause)
        )
    if seen.data.get("rst"):
        text = say("detection.asks_reset", text=reading.text)
        return _now_fatal(reading, "reset", text)
    if seen.data.get("d_rst"):
        text = say("detection.asks_drain", text=reading.text)
        return msgspec.structs.replace(reading, asked="drain_and_reset", text=text)
    return reading


def _with_words(text: Said, seen: Observation) -> Said:
    """The text, followed by the line's own words."""
    words = seen.text.rstrip()
    return joined((text, quoted(words)), "space") if words else text


def _now_fatal(reading: Reading, asked: str, text: Said) -> Reading:
    """The reading as fatal: the driver's own statement overrides the catalogue."""
    return msgspec.structs.replace(reading, fault_class=FaultClass.fatal, asked=asked, text=text)


def _driver_asks(rules: Ruleset, seen: Observation) -> Reading | None:
    """Xid 154, by its number, or by its words if a driver prints no number or an unknown one. None: an
    unknown action."""
    action, words = seen.data.get("recovery_action"), str(seen.data.get("recovery_words", ""))
    ask = rules.recovery_actions.get(action) if action is not None else None
    if ask is None:
        words = words.strip().casefold()
        ask = next((ask for ask in rules.recovery_actions.values() if ask.words.casefold() == words), None)
    if ask is None:
        return None
    return Reading(
        fault=ask.fault,
        fault_class=ask.fault_class,
        text=say("detection.xid", code=154, text=quoted(ask.text)),
        asked=ask.asked,
        remedy=ask.remedy,
        cause=ask.cause,
    )


def _nvlink5(rules: Ruleset, seen: Observation, code: int, reading: Reading, driver: int | None) -> Reading:
    unit, words = str(seen.data["unit"]), seen.data.get("words") or []
    text = _with_link(say("detection.told", head=reading.text, text=unit), seen)
    reason = link_down_reason(unit, words)
    if reason is not None:
        text = say("detection.with_reason", text=text, reason=reason)
    row = nvlink_row(rules.nvlink5, code, unit, words, driver)
    if row is None:
        fatal = seen.data.get("fatal_word") == "Fatal"
        return msgspec.structs.replace(
            reading,
            fault_class=FaultClass.fatal if fatal else FaultClass.degraded,
            text=say("detection.in_no_table", text=text, word=str(seen.data.get("fatal_word"))),
            # The Xid's own remedy is that of its usual rows; the line's word overrides it here too.
            remedy=_of_nvlink5(FaultClass.fatal if fatal else FaultClass.degraded),
        )
    return msgspec.structs.replace(
        reading,
        fault_class=row.fault_class,
        text=say("detection.noted", text=text, note=quoted(row.note)) if row.note else text,
        # The Xid's own remedy is that of its worst rows.
        remedy=row.remedy or _of_nvlink5(row.fault_class),
        cause=row.cause or reading.cause,
        follows=row.follows,
    )


def _with_link(text: Said, seen: Observation) -> Said:
    link = seen.component.link
    return text if link is None else say("detection.with_link", text=text, link=link)


def _of_nvlink5(fault_class: FaultClass) -> Remedy:
    """The remedy of a row that names none: if nothing is fatal, the vendor says to ignore and report it. If a
    reset is needed all the same, the driver requests it by Xid 154."""
    if fault_class is FaultClass.fatal:
        return Remedy.drain_then_reset
    return Remedy.ticket if fault_class is FaultClass.degraded else Remedy.none


def _xid74(rules: Ruleset, seen: Observation, reading: Reading) -> Reading:
    fault_class, notes = xid74_reading(rules.xid74, seen.data.get("registers") or [])
    text = _with_link(reading.text, seen)
    if notes:
        text = say("detection.noted", text=text, note=joined(notes, "semicolon"))
    return msgspec.structs.replace(reading, fault_class=fault_class or reading.fault_class, text=text)


# --- SXid ------------------------------------------------------------------------------------------------


def _sxid(rules: Ruleset, seen: Observation, code: int) -> Reading:
    entry = rules.sxids.get(code)
    word = seen.data.get("fatal_word")
    listed = entry.fault_class if entry else FaultClass.unknown
    if word == "Fatal" or (entry and entry.always_fatal):
        fault_class = FaultClass.fatal
    elif word is None:
        fault_class = listed
    elif word == "Correctable":
        fault_class = FaultClass.informational
    else:  # Non-fatal: at most degraded, whatever the catalogue says
        fault_class = FaultClass.degraded if listed is FaultClass.fatal else listed
    switch = seen.component.switch
    head = say("detection.sxid_on", code=code, switch=switch) if switch else say("detection.sxid", code=code)
    text = quoted(entry.text) if entry else _with_words(say("detection.in_no_catalogue"), seen)
    return Reading(
        fault=f"sxid-{code}",
        fault_class=fault_class,
        text=say("detection.told", head=_with_link(head, seen), text=text),
        explained=entry is not None or word == "Fatal",
        # If the word overrides the row: a fatal one asks for a new fabric, a milder one for nothing.
        remedy=entry.remedy
        if entry and fault_class is listed
        else Remedy.reboot_node
        if fault_class is FaultClass.fatal
        else Remedy.none,
        cause=entry.cause if entry else None,
    )


# --- bit tables: NVLink5 lines (Xid 144-150) and the registers of Xid 74 -----------------------------------


def nvlink_row(
    rows: Sequence[NvlinkRow], xid: int, unit: str, words: Sequence[int], driver: int | None = None
) -> NvlinkRow | None:
    """The first row that fits; None for an undocumented combination.

    `driver`: its major number, None if unknown; then either layout of the first word counts.
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
    """Why a link went down, bits 25:20 of the first word; None if the line is about something else."""
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
) -> tuple[FaultClass | None, tuple[Said, ...]]:
    """(the class given by the set bits, their meanings). None: a bit without a row, or none set."""
    classes: list[FaultClass] = []
    notes: list[Said] = []
    complete = True
    for register, value in enumerate(registers):
        for bit in (bit for bit in range(32) if value >> bit & 1):
            row = next((row for row in table if row.register == register and bit in row.bits), None)
            if row is None:
                complete = False
                notes.append(say("detection.unknown_bit", register=register, bit=bit))
            else:
                classes.append(row.fault_class)
                notes.append(quoted(row.text))
    if not complete or not classes:
        return None, tuple(dict.fromkeys(notes))
    return max(classes, key=_BADNESS.index), tuple(dict.fromkeys(notes))
