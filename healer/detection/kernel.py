"""Kernel lines -> findings, by the catalogues. Pure. Who is to blame for what is not decided here."""

from collections.abc import Mapping, Sequence

import msgspec

from healer.detection.generations import driver_major, gpu_model, row_of
from healer.detection.match import rule_for
from healer.detection.tables import link_down_reason, nvlink_row, xid74_reading
from healer.model import (
    Cause,
    Component,
    Evidence,
    FaultClass,
    Finding,
    Observation,
    ObservationKind,
    Remedy,
    Ruleset,
    Sense,
    SlurmNode,
)

#: A kernel line is a fact; what is unsure is the meaning of a code that no catalogue explains.
CERTAIN = 1.0
UNEXPLAINED = 0.5


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one line means: the fault's name and class, and a sentence for people.

    `remedy`, `cause`, `follows`, `beside` as in `Finding`; `server`: what stands elsewhere and is the root.
    """

    fault: str
    fault_class: FaultClass
    text: str
    unusable: bool = False
    teardown: bool = False
    asked: str | None = None
    explained: bool = True
    remedy: Remedy | None = None
    cause: Cause | None = None
    follows: bool = False
    beside: bool = False
    server: str | None = None


def findings(
    rules: Ruleset, observations: Sequence[Observation], nodes: Mapping[str, SlurmNode] | None = None
) -> list[Finding]:
    """One finding per line that names a fault which a rule takes. Other kinds of observation give none.

    `nodes` as Slurm shows them: what a code means may differ by GPU model and driver.
    """
    found = []
    for seen in observations:
        shown = nodes.get(seen.component.node or "") if nodes else None
        reading = read(rules, seen, shown)
        if reading is None:
            continue
        rule = rule_for(rules, reading.fault, reading.fault_class)
        if rule is not None:
            found.append(_finding(rule.name, reading, seen))
    return found


def read(rules: Ruleset, seen: Observation, shown: SlurmNode | None = None) -> Reading | None:
    """What a line means by the catalogues. None: it names no fault (identity, heartbeat, follow-up)."""
    if seen.data.get("follow_up"):
        return None
    if seen.kind is ObservationKind.gpu_lost:
        text = (
            "GPU fell off the bus" if "fallen off the bus" in seen.text else "GPU missing: it did not start"
        )
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


def _finding(rule: str, reading: Reading, seen: Observation) -> Finding:
    job = seen.data.get("job") or seen.component.job
    evidence = Evidence(
        digest=seen.digest,
        at=seen.event_at,
        component=seen.component,
        text=reading.text,
        sense=Sense.kernel,
        line=seen.line,
        arrived_at=seen.arrived_at,
        job=str(job) if job else None,
    )
    root, affected = seen.component, ()
    if reading.server is not None:
        root = Component(cluster=seen.component.cluster, device=reading.server)
        affected = (seen.component,)
    return Finding(
        rule=rule,
        fault=reading.fault,
        fault_class=reading.fault_class,
        component=root,
        affected=affected,
        at=seen.event_at,
        arrived_at=seen.arrived_at,
        text=reading.text,
        confidence=CERTAIN if reading.explained else UNEXPLAINED,
        evidence=(evidence,),
        unusable=reading.unusable,
        teardown=reading.teardown,
        jobs=(str(job),) if job else (),
        asked=reading.asked,
        follows=reading.follows,
        remedy=reading.remedy,
        cause=reading.cause,
        beside=reading.beside,
    )


# --- lines without a code -------------------------------------------------------------------------------


def _line(rules: Ruleset, seen: Observation) -> Reading | None:
    entry = rules.kernel_lines.by_name.get(seen.data.get("name", ""))
    if entry is None:
        return None  # it was stored when the rules named such a line
    told = ", ".join(str(seen.data[name]) for name in ("nic", "device", "process") if name in seen.data)
    server = seen.data.get("server")
    return Reading(
        fault=entry.fault,
        fault_class=entry.fault_class,
        text=f"{entry.text}: {server or told}" if server or told else entry.text,
        remedy=entry.remedy,
        cause=entry.cause,
        beside=not entry.opens,
        server=server,
    )


# --- Xid -------------------------------------------------------------------------------------------------


def _xid(rules: Ruleset, seen: Observation, code: int, shown: SlurmNode | None) -> Reading:
    entry = rules.xids.get(code)
    if entry is None:
        text = f"Xid {code}: in no catalogue. {seen.text}".rstrip()
        return Reading(fault=f"xid-{code}", fault_class=FaultClass.unknown, text=text, explained=False)
    if code == 154 and (asked := _driver_asks(rules, seen)):
        return asked
    entry = row_of(entry, gpu_model(rules.gpu_models, shown))
    reading = Reading(
        fault=f"xid-{code}",
        fault_class=entry.fault_class,
        text=f"Xid {code}: {entry.text}",
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
        return msgspec.structs.replace(reading, text=f"{reading.text} (Xid {cause})")
    if seen.data.get("rst"):
        return _now_fatal(reading, "reset", "the driver asks for a GPU reset")
    if seen.data.get("d_rst"):
        text = f"{reading.text}; the driver asks to drain and then reset the GPU"
        return msgspec.structs.replace(reading, asked="drain_and_reset", text=text)
    return reading


def _now_fatal(reading: Reading, asked: str, why: str) -> Reading:
    """The driver's own word is stronger than the catalogue's."""
    text = f"{reading.text}; {why}"
    return msgspec.structs.replace(reading, fault_class=FaultClass.fatal, asked=asked, text=text)


def _driver_asks(rules: Ruleset, seen: Observation) -> Reading | None:
    """Xid 154 by its number, or by its words where a driver prints none, or one that is not known. None: an
    unknown action."""
    action, words = seen.data.get("recovery_action"), str(seen.data.get("recovery_words", ""))
    ask = rules.driver_asks.get(action) if action is not None else None
    if ask is None:
        said = words.strip().casefold()
        ask = next((one for one in rules.driver_asks.values() if one.words.casefold() == said), None)
    if ask is None:
        return None
    return Reading(
        fault=ask.fault,
        fault_class=ask.fault_class,
        text=f"Xid 154: {ask.text}",
        asked=ask.asked,
        remedy=ask.remedy,
        cause=ask.cause,
    )


def _nvlink5(rules: Ruleset, seen: Observation, code: int, reading: Reading, driver: int | None) -> Reading:
    unit, words = str(seen.data["unit"]), seen.data.get("words") or []
    link = "" if seen.component.link is None else f", link {seen.component.link}"
    text = f"{reading.text}: {unit}{link}"
    reason = link_down_reason(unit, words)
    if reason is not None:
        text += f", reason {reason}"
    row = nvlink_row(rules.nvlink5, code, unit, words, driver)
    if row is None:
        fatal = seen.data.get("fatal_word") == "Fatal"
        return msgspec.structs.replace(
            reading,
            fault_class=FaultClass.fatal if fatal else FaultClass.degraded,
            text=f"{text} ({seen.data.get('fatal_word')} by its line; in no table)",
            # The Xid's own remedy is that of its usual rows; the word stands above it here too.
            remedy=Remedy.drain_then_reset if fatal else Remedy.reset_gpu_when_idle,
        )
    mild = row.fault_class is not FaultClass.fatal
    return msgspec.structs.replace(
        reading,
        fault_class=row.fault_class,
        text=f"{text} ({row.note})" if row.note else text,
        # The Xid's own remedy is that of its worst rows.
        remedy=row.remedy or (Remedy.reset_gpu_when_idle if mild else Remedy.drain_then_reset),
        cause=row.cause or reading.cause,
        follows=row.follows,
    )


def _xid74(rules: Ruleset, seen: Observation, reading: Reading) -> Reading:
    link = "" if seen.component.link is None else f", link {seen.component.link}"
    fault_class, notes = xid74_reading(rules.xid74, seen.data.get("registers") or [])
    text = f"{reading.text}{link}" + (f" ({'; '.join(notes)})" if notes else "")
    return msgspec.structs.replace(reading, fault_class=fault_class or reading.fault_class, text=text)


# --- SXid ------------------------------------------------------------------------------------------------


def _sxid(rules: Ruleset, seen: Observation, code: int) -> Reading:
    entry = rules.sxids.get(code)
    word = seen.data.get("fatal_word")
    known = entry.fault_class if entry else FaultClass.unknown
    if word == "Fatal" or (entry and entry.always_fatal):
        fault_class = FaultClass.fatal
    elif word is None:
        fault_class = known
    elif word == "Correctable":
        fault_class = FaultClass.informational
    else:  # Non-fatal: no worse than degraded, whatever the catalogue says
        fault_class = FaultClass.degraded if known is FaultClass.fatal else known
    switch = f" on {seen.component.switch}" if seen.component.switch else ""
    link = "" if seen.component.link is None else f", link {seen.component.link}"
    text = entry.text if entry else f"in no catalogue. {seen.text}".rstrip()
    return Reading(
        fault=f"sxid-{code}",
        fault_class=fault_class,
        text=f"SXid {code}{switch}{link}: {text}",
        explained=entry is not None or word == "Fatal",
        # Where the word stands above the row: each fatal one asks for a new fabric, each milder for nothing.
        remedy=entry.remedy
        if entry and fault_class is known
        else Remedy.reboot_node
        if fault_class is FaultClass.fatal
        else Remedy.none,
        cause=entry.cause if entry else None,
    )
