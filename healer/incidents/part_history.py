"""The fault history of a part: the walk records it, and finds faults that have cleared, repeat too often, or
mean more in combination."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from hashlib import sha256

import msgspec

from healer.detection.readings import Line, Reading, gpu_model
from healer.incidents.impact import crashed_among, jobs_of
from healer.model import (
    HARDWARE,
    REMEDY_LADDER,
    Combination,
    Component,
    Evidence,
    FaultBurst,
    FaultClass,
    Finding,
    GoneAfter,
    Incident,
    Ladder,
    Observation,
    ObservationKind,
    Remedy,
    Repeat,
    Ruleset,
    Same,
    Sense,
    SlurmSnapshot,
)
from healer.model.faults import (
    ASKS_NOTHING,
    REBOOTED,
    REPEATS,
    REPLACED,
    SERVER_AWAY,
    SERVER_BACK,
    Trait,
    fault_is,
    fits,
)
from healer.observations import Picture
from healer.observations.fault_history import ONE_MOMENT, SETTLED, Key, Noted
from healer.observations.picture import Allocations
from healer.text import NO_WORDS, Said, joined, quoted, say


def rung_of(remedy: tuple[Remedy, ...]) -> Remedy:
    """The remedy on the ladder; `none` if there is none."""
    return next((rung for rung in remedy if rung in REMEDY_LADDER), Remedy.none)


def asks_for_more(remedy: tuple[Remedy, ...], than: Remedy) -> bool:
    """Whether it asks for a higher rung than this one; a ticket alone asks for the highest."""
    rung = rung_of(remedy)
    asked = Remedy.replace if rung is Remedy.none and Remedy.ticket in remedy else rung
    return REMEDY_LADDER.index(asked) > REMEDY_LADDER.index(than)


def model_on(rules: Ruleset, picture: Picture, node: str) -> str:
    """The node's GPU model by `rules/gpu_models.yaml`, else by Slurm; empty if unknown."""
    shown = picture.slurm_node(node)
    return gpu_model(rules.gpu_models, shown) or (shown.gpu_model if shown is not None else "")


def _is_for(models: tuple[str, ...], model: str) -> bool:
    return not models or fits(model, models)


def ladder_for(rules: Ruleset, fault: str, fault_class: FaultClass, model: str = "") -> Ladder | None:
    for rule in rules.ladders:
        if rule.classes and fault_class not in rule.classes:
            continue
        if fits(fault, rule.faults) and _is_for(rule.models, model):
            return rule
    return None


def repeats_for(rules: Ruleset, fault: str, model: str) -> list[Repeat]:
    """The first entry for each scope of a node: one GPU, one unit of it, the whole node."""
    found: dict[str, Repeat] = {}
    for rule in rules.escalations.repeats:
        if (
            rule.same not in found
            and fits(fault, rule.faults)
            and rule.place is None
            and _is_for(rule.models, model)
        ):
            found[rule.same] = rule
    return list(found.values())


def describe_fault(rules: Ruleset, fault: str) -> Said:
    """`Xid 43: …`: the code and its catalogue text; for other faults the title."""
    kind, _, code = fault.partition("-")
    entries = rules.xids if kind == "xid" else rules.sxids if kind == "sxid" else {}
    entry = entries.get(int(code)) if code.isdecimal() else None
    label = fault_label(rules, fault)
    return say("incidents.fault", label=label, text=quoted(entry.text)) if entry is not None else label


def fault_label(rules: Ruleset, fault: str) -> Said:
    """The name of a fault for people: `Xid 13`, or its rule's title."""
    kind, _, code = fault.partition("-")
    if code.isdigit() and kind in ("xid", "sxid"):
        return quoted(f"{'Xid' if kind == 'xid' else 'SXid'} {code}")
    ask = next((action for action in rules.recovery_actions.values() if action.fault == fault), None)
    if ask is not None:
        return say("incidents.driver_ask", words=quoted(ask.words))
    rule = rules.by_name.get(fault)
    return quoted(rule.title if rule is not None else fault)


#: Measurements and checks are reported repeatedly while a fault lasts: that is one event.
_SENSES = frozenset({Sense.metrics, Sense.hook})
_INVENTORIES = frozenset({ObservationKind.heartbeat, ObservationKind.gpu_inventory})
#: The most clients of servers that are remembered.
SERVERS_KEPT = 100_000


JobsAndUsers = tuple[tuple[str, ...], tuple[str, ...]]


def record_walk(
    rules: Ruleset,
    picture: Picture,
    batch: Sequence[Observation],
    lines: Sequence[Line],
    findings: Sequence[Finding],
) -> None:
    """Records a walk. `lines`: the current lines of `batch`."""
    _record_identities(picture, batch)
    people = _Occupants(picture.slurm, picture.allocations)
    order = {seen.digest: place for place, seen in enumerate(batch)}
    faults = [(seen, reading) for seen, reading in lines if reading is not None]
    for seen, reading in sorted(
        faults, key=lambda pair: (pair[0].arrived_at, pair[0].event_at, order.get(pair[0].digest, 0))
    ):
        _record_line(rules, picture, seen, reading, people)
    for finding in findings:
        # A gauge holds the last Xid without a count, so it does not count for repeats.
        gauge = fault_is(finding.fault, Trait.coded)
        sensed = (
            bool(finding.evidence)
            and finding.evidence[0].sense in _SENSES
            and not (finding.evidence_only or gauge)
        )
        if (
            (sensed or finding.fault == REBOOTED)
            and finding.fault_class in HARDWARE
            and finding.component.device is None
        ):
            _record_finding(picture, finding, people)


def part_of(picture: Picture, where: Component) -> str:
    """The history's name of the component's part."""
    address = picture.node(where.node).gpus.address(where.gpu) if where.node else None
    return picture.history.part(where, address)


class _Occupants:
    """The jobs and users on a part, cached for a walk."""

    def __init__(self, slurm: SlurmSnapshot | None, allocations: Allocations) -> None:
        self.slurm, self.allocations = slurm, allocations
        self._known: dict[Component, JobsAndUsers] = {}

    def at(self, where: Component, at: datetime, job: str | None = None) -> JobsAndUsers:
        """(jobs, users): the job that the line names, else those that Slurm shows there, else the one that
        was there at that time and has ended since."""
        if self.slurm is None or where.node is None:
            return ((job,), ()) if job else ((), ())
        if job is not None:
            shown = self.slurm.jobs.get(job)
            return (job,), ((shown.user,) if shown is not None and shown.user else ())
        place = Component(cluster=where.cluster, node=where.node, gpu=where.gpu, pci=where.pci)
        if place not in self._known:
            jobs, certain = jobs_of(self.slurm, place, one_gpu=True)
            if not jobs:
                jobs = crashed_among(self.slurm.failed_on(where.node), place, (at,))
            if not certain and len(jobs) > 1:
                jobs = []
            ids, users = (job_.leader for job_ in jobs), (job_.user for job_ in jobs if job_.user)
            self._known[place] = tuple(dict.fromkeys(ids)), tuple(dict.fromkeys(users))
        if self._known[place][0]:
            return self._known[place]
        ended = self.allocations.ended_on(where.node, at, where.gpu)
        if len(ended) != 1:
            return (), ()
        shown = self.slurm.jobs.get(next(iter(ended)))
        return tuple(ended), ((shown.user,) if shown is not None and shown.user else ())


def _record_identities(picture: Picture, batch: Sequence[Observation]) -> None:
    """Records which GPU is where: by others than the node itself, only where it has named none."""
    for seen in batch:
        node = seen.component.node
        if node is None:
            continue
        state = picture.node(node)
        is_own = not seen.relayed_by and seen.kind is not ObservationKind.gpu_inventory
        if seen.kind is ObservationKind.gpu_identity:
            pci, uuid = seen.component.pci, str(seen.data.get("uuid", ""))
            if pci and uuid and not state.is_history(seen) and (is_own or not state.gpus.is_named(pci)):
                at = state.moment(seen.event_at, seen.arrived_at)
                picture.history.identify(node, pci, uuid, at, seen.boot_id)
        elif seen.kind in _INVENTORIES and not state.is_of_old_boot(seen):
            for gpu in seen.data.get("gpus") or ():
                pci, uuid, serial = (str(gpu.get(name) or "") for name in ("pci", "uuid", "serial"))
                if pci and (is_own or not state.gpus.is_named(pci)):
                    picture.history.identify(node, pci, uuid, seen.arrived_at, seen.boot_id, serial)


def _record_line(
    rules: Ruleset, picture: Picture, seen: Observation, reading: Reading, people: _Occupants
) -> None:
    where = seen.component
    if where.node is None:
        return
    if reading.server is not None:
        _record_server(picture, reading, where.node, seen.arrived_at)
    job, at = (
        seen.data.get("job") or where.job,
        picture.node(where.node).moment(seen.event_at, seen.arrived_at),
    )
    jobs, users = people.at(where, at, str(job) if job else None)
    new = Noted(
        node=where.node,
        part=part_of(picture, where),
        fault=reading.fault,
        fault_class=reading.fault_class,
        at=at,
        component=where,
        boot_id=seen.boot_id,
        jobs=jobs,
        users=users,
        unit=_unit(seen),
    )
    picture.history.note(new)
    ask = rules.ask_for(reading.asked)
    if (
        ask is not None and ask.fault != reading.fault
    ):  # RST or D-RST in another line is the same request as Xid 154
        picture.history.note(
            msgspec.structs.replace(new, fault=ask.fault, fault_class=ask.fault_class, unit="")
        )


def _record_server(picture: Picture, reading: Reading, node: str, at: datetime) -> None:
    """Records a client's latest report on whether a server is unreachable."""
    name = reading.server or ""
    if reading.fault == SERVER_AWAY:
        picture.servers_back.pop((name, node), None)
    elif reading.fault == SERVER_BACK:
        picture.servers_back[name, node] = at
        if len(picture.servers_back) > SERVERS_KEPT:
            del picture.servers_back[next(iter(picture.servers_back))]


def _unit(seen: Observation) -> str:
    if seen.component.link is not None:
        return f"link {seen.component.link}"
    gpc, tpc = seen.data.get("gpc"), seen.data.get("tpc")
    return f"GPC {gpc} TPC {tpc}" if gpc is not None and tpc is not None else ""


def _record_finding(picture: Picture, finding: Finding, people: _Occupants) -> None:
    where = finding.component
    if where.node is None:
        return
    node, (jobs, users) = picture.node(where.node), people.at(where, finding.arrived_at)
    picture.history.note(
        Noted(
            node=where.node,
            part=part_of(picture, where),
            fault=finding.fault,
            fault_class=finding.fault_class,
            at=finding.arrived_at,
            component=where,
            boot_id=node.boot if finding.fault == REBOOTED else node.boot_id,
            jobs=jobs,
            users=users,
            unit=f"link {where.link}" if where.link is not None else "",
            measured=True,
        )
    )


#: How long a node with another GPU may run before that is reported.
STARTS_WITHIN = timedelta(minutes=5)
_ENDED_BY_BOOT = frozenset({GoneAfter.reset, GoneAfter.boot})


class Cleared(msgspec.Struct, frozen=True, kw_only=True):
    """Why a fault is over. `at`: the time of the sign. `proven`: the fault cannot have outlived it; otherwise
    a test decides. `seen`: the part must be seen again. `replaced`: by another part. `done`: the highest
    remedy that must have been carried out."""

    why: Said
    at: datetime
    proven: bool = True
    seen: bool = False
    replaced: bool = False
    done: Remedy = Remedy.none


def is_cleared_already(rules: Ruleset, picture: Picture, finding: Finding) -> bool:
    """A line that arrives after its withdrawal, so that it opens nothing."""
    where = finding.component
    if where.node is None or not finding.evidence or not finding.evidence[0].line:
        return False
    hardware = finding.fault_class in HARDWARE
    if not hardware and not any(fits(finding.fault, rule.faults) for rule in rules.escalations.cancels):
        return False  # teardowns have no withdrawal
    at = picture.node(where.node).moment(finding.at, finding.arrived_at)
    part = part_of(picture, where)
    late = FaultBurst(
        cluster=where.cluster,
        node=where.node,
        part=part,
        fault=finding.fault,
        fault_class=finding.fault_class,
        began_at=at,
        last_at=_as_recorded(picture.history.of(where.node, part, finding.fault), at),
        pci=where.pci,
    )
    found = _withdrawn(rules, picture, part, late)
    if (found is not None and found.proven) or _is_settled(picture, part, late):
        return True
    return _is_of_replaced_gpu(picture, part, late)


def _is_of_replaced_gpu(picture: Picture, part: str, late: FaultBurst) -> bool:
    """A line of the GPU that was at this address before another one replaced it.

    It belongs to the new GPU if it is of the present boot, or if it is younger than both the old GPU's last
    line and the start of the time before the new one's first report in which the new one may already have
    run.
    """
    swapped = picture.history.of(late.node, part, REPLACED)
    if not swapped or late.pci is None:
        return False
    noted = picture.history.of(late.node, part, late.fault)
    boot = next((burst.boot_id for burst in noted if burst.began_at <= late.last_at <= burst.last_at), None)
    if boot is not None and boot == picture.node(late.node).boot_id:
        return False
    others = (
        burst for key, burst in picture.history.on(late.node) if key[0] != part and burst.pci == late.pci
    )
    last_line_at = max((burst.last_at for burst in others), default=None)
    at, since = late.last_at, swapped[-1].began_at
    return at < since - STARTS_WITHIN or (last_line_at is not None and at <= last_line_at < since)


def note_settled(picture: Picture, incident: Incident, by: str, at: datetime) -> None:
    """Records that a person resolved the incident: earlier lines of its fault that arrive late open nothing,
    but count for repeats."""
    root = incident.root
    if root.node is None:
        return
    noted = Noted(
        node=root.node,
        part=part_of(picture, root),
        fault=f"{SETTLED}{incident.fault}",
        fault_class=FaultClass.informational,
        at=at,
        component=root,
        users=(by,),
    )
    picture.history.note(noted)


def _is_settled(picture: Picture, part: str, burst: FaultBurst) -> bool:
    settled = picture.history.of(burst.node, part, f"{SETTLED}{burst.fault}")
    return any(burst.last_at <= resolved.last_at for resolved in settled)


def _as_recorded(bursts: Sequence[FaultBurst], at: datetime) -> datetime:
    """The time as recorded: the history moves lines of the same moment slightly apart."""
    return next((burst.last_at for burst in bursts if at <= burst.last_at < at + ONE_MOMENT), at)


def find_cleared(rules: Ruleset, picture: Picture, part: str, burst: FaultBurst) -> Cleared | None:
    """Why the fault is over; None: it may still be present."""
    return (
        _replaced(picture, part, burst)
        or _withdrawn(rules, picture, part, burst)
        or _booted(rules, picture, burst)
    )


def _replaced(picture: Picture, part: str, burst: FaultBurst) -> Cleared | None:
    """Another GPU took its place. A GPU that only moved to another slot of the node still has its fault."""
    if burst.pci is None:
        return None
    now = picture.history.gpu_at(burst.node, burst.pci)
    if now is None or now == burst.part:
        return None
    swaps = picture.history.of(burst.node, now, REPLACED)
    if not swaps or swaps[-1].last_at <= burst.last_at:
        return None
    why = say("incidents.other_gpu", pci=burst.pci, gpu=now)
    gone = not picture.history.has_gpu(burst.node, part)
    done = Remedy.replace if gone else Remedy.none
    return Cleared(why=why, at=swaps[-1].last_at, proven=gone, replaced=gone, done=done)


def _withdrawn(rules: Ruleset, picture: Picture, part: str, burst: FaultBurst) -> Cleared | None:
    def later(by: str) -> datetime | None:
        bursts = picture.history.of(burst.node, part, by)
        return bursts[-1].last_at if bursts and bursts[-1].last_at > burst.last_at else None

    for cancel in rules.escalations.cancels:
        if fits(burst.fault, cancel.faults) and (at := later(cancel.by)) is not None:
            if _keeps_returning(rules, picture, part, burst):
                return None
            done = Remedy.drain_then_reset if cancel.by == ASKS_NOTHING else Remedy.none
            return Cleared(why=quoted(cancel.text), at=at, done=done)
    if burst.fault_class in HARDWARE and (at := later(ASKS_NOTHING)) is not None:
        ladder = ladder_of_burst(rules, picture, burst)
        proven = ladder is not None and ladder.gone_after is GoneAfter.reset
        why = say("incidents.asks_nothing")
        return Cleared(why=why, at=at, proven=proven, done=Remedy.drain_then_reset)
    return None


def _booted(rules: Ruleset, picture: Picture, burst: FaultBurst) -> Cleared | None:
    node = picture.node(burst.node)
    at = _booted_since(picture, burst)
    if at is None:
        return None
    ladder = ladder_of_burst(rules, picture, burst)
    gone_after = ladder.gone_after if ladder is not None else GoneAfter.test
    cleared = Cleared(why=say("incidents.booted_anew"), at=at, done=Remedy.reboot_node)
    if gone_after in _ENDED_BY_BOOT:
        return cleared
    wanted = gone_after is GoneAfter.seen
    if wanted and burst.pci and node.boot_id and node.gpus.is_seen(burst.pci, node.boot_id):
        return msgspec.structs.replace(cleared, why=say("incidents.booted_gpu_seen"))
    return msgspec.structs.replace(cleared, proven=False, seen=wanted)


def _booted_since(picture: Picture, burst: FaultBurst) -> datetime | None:
    """When the node booted after the fault, as far as known."""
    node = picture.node(burst.node)
    booted_at, heard = node.booted_at, node.boot_heard_at
    if burst.boot_id is not None and node.boot_id is not None:
        is_later = burst.boot_id != node.boot_id and heard is not None and heard >= burst.last_at
        if is_later:
            return booted_at or heard
        unheard = picture.unheard_boot(burst.node)
        return unheard if unheard is not None and unheard > burst.last_at else None
    return booted_at if booted_at is not None and booted_at > burst.last_at else None


def ladder_of_burst(rules: Ruleset, picture: Picture, burst: FaultBurst) -> Ladder | None:
    return ladder_for(rules, burst.fault, burst.fault_class, model_on(rules, picture, burst.node))


def apply_history(
    rules: Ruleset,
    picture: Picture,
    batch: Sequence[Observation],
    lines: Sequence[Line],
    findings: Sequence[Finding],
    now: datetime,
) -> list[Finding]:
    """Records a walk; returns its findings, without those that have already cleared, and with those that
    follow from history. An application error that became a repeat is evidence of the repeat."""
    picture.history.begin()
    record_walk(rules, picture, batch, lines, findings)
    kept = [finding for finding in findings if not is_cleared_already(rules, picture, finding)]
    found: dict[tuple[str, str, str], Finding] = {}
    more: list[Finding] = []
    for key, burst in picture.history.touched:
        model = model_on(rules, picture, burst.node)
        for entry in repeats_for(rules, burst.fault, model):
            if (repeat := _find_repeat(rules, picture, entry, key, burst, now)) is not None:
                found.setdefault((burst.node, *key), repeat)
        more += _find_combinations(rules, picture, key, burst, now)
    left = []
    for finding in kept:
        where = (finding.component.node or "", part_of(picture, finding.component), finding.fault)
        repeat = found.get(where) if finding.component.node and finding.fault_class not in HARDWARE else None
        if repeat is None:
            if not _is_sign(rules, finding):
                left.append(finding)
        else:
            found[where] = msgspec.structs.replace(repeat, evidence=(*repeat.evidence, *finding.evidence))
    return [*left, *found.values(), *more]


def _is_sign(rules: Ruleset, finding: Finding) -> bool:
    """The finding is only a sign: it is recorded, and only its rate may be a fault."""
    rule = rules.by_name.get(finding.rule)
    return rule is not None and rule.sign


# --- repeats ---------------------------------------------------------------------------------------------


def _find_repeat(
    rules: Ruleset, picture: Picture, entry: Repeat, key: Key, burst: FaultBurst, now: datetime
) -> Finding | None:
    if not _counts(picture, entry, key[0], burst):
        return None
    for rate in entry.rates:
        bursts = _counted_bursts(picture, entry, key, burst, burst.last_at - rate.within)
        jobs = {job for other in bursts for job in other.jobs}
        users = {user for other in bursts for user in other.users}
        lines = (
            sum(_lines_since(other, burst.last_at - rate.within) for other in bursts) if rate.lines else 0.0
        )
        enough = len(jobs) >= entry.jobs and len(users) >= entry.users
        if enough and len(bursts) >= rate.bursts and lines >= rate.lines:
            figures = say("incidents.lines", n=lines) if rate.lines else _figures(bursts, jobs, users)
            text = say(
                "incidents.repeat",
                fault=fault_label(rules, burst.fault),
                where=_place(entry, burst),
                figures=figures,
                hours=rate.within_h,
            )
            name = (burst.node, key[0], burst.fault, str(burst.began_at))
            whole_node = entry.same is Same.node
            where = Component(cluster=burst.cluster, node=burst.node) if whole_node else _at(burst)
            return history_finding(entry, where, burst, text, name=name, now=now)
    return None


def _lines_since(burst: FaultBurst, since: datetime) -> float:
    """The number of lines of a burst after `since`, if they came evenly."""
    lasted, after = burst.last_at - burst.began_at, burst.last_at - since
    return burst.count * min(1.0, after / lasted) if lasted else float(burst.count)


def _keeps_returning(rules: Ruleset, picture: Picture, part: str, burst: FaultBurst) -> bool:
    """Its rate is a fault, so that a line reporting its end does not end it."""
    entries = repeats_for(rules, burst.fault, model_on(rules, picture, burst.node))
    key = part, burst.fault
    return any(
        _find_repeat(rules, picture, entry, key, burst, burst.last_at) is not None for entry in entries
    )


def _counted_bursts(
    picture: Picture, entry: Repeat, key: Key, burst: FaultBurst, since: datetime
) -> list[FaultBurst]:
    """The bursts since then that count together with this one, including it."""
    part = None if entry.same is Same.node else key[0]
    history, found = picture.history, []
    had = history.on(burst.node) if part is None else history.of_part(burst.node, part)
    for (where, fault), other in had:
        alike = fits(fault, entry.faults) if entry.together else fault == burst.fault
        if not alike or other.last_at < since or other.began_at > burst.last_at:
            continue
        if _is_repaired(picture, part, other):
            continue
        if entry.same is Same.unit and other.units != burst.units:
            continue
        if entry.one_boot and other.boot_id != burst.boot_id:
            continue
        if _counts(picture, entry, where, other):
            found.append(other)
    return found


def _is_repaired(picture: Picture, part: str | None, burst: FaultBurst) -> bool:
    """The node was tested or repaired since. Not true for a GPU that had been replaced by then: it still has
    its faults, wherever it is now. `part`: None if the node as a whole counts."""
    cleared = picture.node(burst.node).cleared_at
    if cleared is None or burst.last_at > cleared:
        return False
    now = picture.history.gpu_at(burst.node, burst.pci) if burst.pci and part is not None else None
    if now is None or now == part:
        return True
    swaps = picture.history.of(burst.node, now, REPLACED)
    return not any(burst.last_at < swap.began_at <= cleared for swap in swaps)


def _counts(picture: Picture, entry: Repeat, part: str, burst: FaultBurst) -> bool:
    """The burst counts: no worse fault explains it, and its job did not have it elsewhere."""
    if entry.same is Same.unit and len(burst.units) != 1:
        return False
    if entry.alone and not picture.history.is_alone(part, burst):
        return False
    return not picture.history.is_explained(burst)


def _place(entry: Repeat, burst: FaultBurst) -> Said:
    if entry.same is Same.node:
        return quoted(burst.node)
    return (
        joined((_gpu(burst), _unit_text(burst.units[0])), "space") if entry.same is Same.unit else _gpu(burst)
    )


def _unit_text(unit: str) -> Said:
    """A unit in words, as named by `_unit`."""
    word, _, number = unit.partition(" ")
    return say("incidents.link", link=number) if word == "link" else quoted(unit)


def _gpu(burst: FaultBurst) -> Said:
    if burst.gpu is not None:
        return say("incidents.gpu", gpu=burst.gpu)
    return say("incidents.gpu", gpu=burst.pci) if burst.pci else quoted(burst.part or burst.node)


def _figures(bursts: Sequence[FaultBurst], jobs: set[str], users: set[str]) -> Said:
    """The jobs and users; the number of bursts is added if it differs, or if the jobs are unknown."""
    times = say("incidents.times", n=len(bursts)) if len(bursts) != len(jobs) else NO_WORDS
    if not jobs:
        return times
    in_jobs = say("incidents.in_jobs", count=len(jobs))
    of_users = say("incidents.of_users", count=len(users)) if users else NO_WORDS
    return joined(filter(None, (times, in_jobs, of_users)), "nothing")


# --- combinations ----------------------------------------------------------------------------------------


def _find_combinations(
    rules: Ruleset, picture: Picture, key: Key, burst: FaultBurst, now: datetime
) -> list[Finding]:
    found = []
    for entry in rules.escalations.combinations:
        group_of_burst = next((group for group in entry.faults if fits(burst.fault, group)), None)
        if group_of_burst is None:
            continue
        parts = [
            _nearest_burst(picture, entry, key, burst, group)
            for group in entry.faults
            if group is not group_of_burst
        ]
        if None in parts:
            continue
        all_of = [burst, *(part for part in parts if part is not None)]
        names = sorted(fault_label(rules, other.fault) for other in all_of)
        begun = sorted(str(other.began_at) for other in all_of)
        text = say("incidents.combination", faults=joined(names, "and"), where=_gpu(burst))
        name = (burst.node, key[0], *begun)
        found.append(history_finding(entry, _at(burst), burst, text, name=name, now=now))
    return found


def _nearest_burst(
    picture: Picture, entry: Combination, key: Key, burst: FaultBurst, group: tuple[str, ...]
) -> FaultBurst | None:
    """The newest near burst of these faults on the part; None if there is none."""
    near = [
        other
        for (_, fault), other in picture.history.on(burst.node, key[0])
        if fits(fault, group)
        and other.began_at - entry.within <= burst.last_at
        and burst.began_at <= other.last_at + entry.within
    ]
    return max(near, key=lambda burst: burst.last_at, default=None)


def _at(burst: FaultBurst) -> Component:
    return Component(cluster=burst.cluster, node=burst.node, gpu=burst.gpu, pci=burst.pci)


def history_finding(
    entry: Repeat | Combination,
    where: Component,
    burst: FaultBurst,
    text: Said,
    *,
    name: Sequence[str],
    now: datetime,
) -> Finding:
    """`text`: the figures; `name`: identifies the event."""
    named = ("history", entry.name, burst.cluster, *name)
    evidence = Evidence(
        digest=sha256("|".join(named).encode()).hexdigest(),
        at=burst.last_at,
        component=where,
        text=say("incidents.history_finding", text=text, title=quoted(entry.title)),
        sense=Sense.history,
        arrived_at=now,
    )
    return Finding.from_evidence(
        evidence,
        rule=entry.name,
        fault=f"{REPEATS}{burst.fault}" if isinstance(entry, Repeat) else entry.name,
        fault_class=entry.fault_class,
        title=text,
        confidence=1.0,
    )
