"""The verdict on an incident: nodes, cause, certainty, in one sentence, and why. Pure.

It is computed from the incident and the rules alone, so that the same incident has the same verdict wherever
it is read, and changes can be seen from the incident before and after.
"""

import re
from collections.abc import Callable, Iterator, Sequence

import msgspec

from healer.incidents.certainty import is_proven_unusable, unproven_senders
from healer.incidents.growth import has_ended_work, independent_senses, senses_text
from healer.incidents.part_history import ladder_for
from healer.incidents.second_look import is_denied
from healer.model import (
    REMEDY_LADDER,
    CatalogueEntry,
    Cause,
    Component,
    Evidence,
    FaultClass,
    HitBasis,
    Incident,
    IncidentVerdict,
    JobHit,
    Remedy,
    Retest,
    RuledOut,
    Ruleset,
    Sense,
    Verdict,
    VerdictAt,
)
from healer.model.faults import Trait, code_of, fault_is, once

#: Longest sentence: a pager cuts longer ones.
LONGEST = 200

#: The head of a line's title: `Xid 79: `, `SXid 20034 on NVSwitch 2: `.
_TITLE_HEAD = re.compile(r"^S?Xid \d+(?: on [^:,]+)?(?:, link \d+)?: ")
#: A title that is a clause about the part itself: its subject is replaced by the place.
_SUBJECT = re.compile(
    r"^(?:An? |The )?(GPU|node|NVSwitch|NVLink|switch|job) (?=(?:has|is|was|does|did|cannot|could|fell|"
    r"failed|stopped|answers|offers|waits|went|goes|moves|draws|stays|takes|asks|receives|throws|computes|"
    r"multiplies|works|tells|gives)\b)",
    re.IGNORECASE,
)
#: First words that keep their capital within a sentence, besides those with another capital (`RoCE`).
_NAMES = frozenset({"Slurm", "Prometheus", "Lustre"})
#: The same without a verb: `GPU memory above its limit`, `GPU page fault (MMU)`.
_BARE = re.compile(r"^GPU (?=[a-z\d])")

#: What `healer.detection.reported` says of a code without a row.
_NOT_LISTED = "in no catalogue"

_UNTIL = {
    Remedy.restart_service: "its service is restarted",
    Remedy.reset_gpu_when_idle: "the GPU is reset",
    Remedy.drain_then_reset: "the GPU is reset",
    Remedy.reboot_node: "it is rebooted",
    Remedy.power_cycle: "it is power-cycled",
    Remedy.replace: "the part is replaced",
}
_MAY_WAIT = {
    Remedy.requeue_job: "it may wait: the job can be requeued",
    Remedy.restart_service: "it may wait for a restart of the service",
    Remedy.reset_gpu_when_idle: "it may wait until the GPU is idle and reset",
    Remedy.drain_then_reset: "it may wait until the node is empty and the GPU reset",
    Remedy.reboot_node: "it may wait for a reboot",
    Remedy.power_cycle: "it may wait for a power cycle",
    Remedy.replace: "the part is to be replaced",
}


def certainty_text(certainty: float) -> str:
    """`certain`, `very likely, 95 %`, `likely, 80 %`, `unsure, 50 %`."""
    if certainty >= 0.98:
        return "certain"
    word = "very likely" if certainty >= 0.9 else "likely" if certainty >= 0.7 else "unsure"
    return f"{word}, {certainty:.0%}".replace("%", " %")


def place(root: Component) -> str:
    """`GPU 3 of gpu0017`, `NVSwitch 2 of gpu0005`, `gpu0009`, `switch leaf-3`, `pdu-r01`, `job 4711`."""
    part = ""
    if root.gpu is not None:
        part = f"GPU {root.gpu}"
    elif root.link is not None:
        part = f"{root.switch} link {root.link}" if root.switch else f"NVLink {root.link}"
    elif root.nic:
        part = root.nic
    elif root.switch and root.node:
        part = root.switch
    elif root.pci:
        part = f"the device at {root.pci}"
    elif root.part and root.device:
        part = root.part
    whole = root.node or (f"switch {root.switch}" if root.switch else "") or root.device or ""
    if not whole:
        whole = f"job {root.job}" if root.job else f"cluster {root.cluster}"
    return f"{part} of {whole}" if part else whole


def sentence_of(incident: Incident, certainty: float) -> str:
    """At most 200 characters: what is broken, how sure, what follows, whom it hit if there is room."""
    if incident.fault_class is FaultClass.unknown and incident.is_open and code_of(incident.fault):
        return _first_that_fits([_unknown(incident)], ["healer watches it and asks you once"], [""])
    sure = ", ".join(part for part in (code_of(incident.fault), certainty_text(certainty)) if part)
    whole = _subject(incident)
    short = whole[: whole.find(": ", whole.find(": ") + 2)] if whole.count(": ") > 1 else whole
    heads = [f"{head} ({sure})" for head in (whole, short)]
    room = LONGEST - len(sure) - len("… ().")
    if len(whole) > room:
        heads = [f"{whole[:room].rstrip()}… ({sure})"]
    return _first_that_fits(heads, [_follows(incident), ""], _jobs(incident))


def _first_that_fits(heads: list[str], follows: list[str], jobs: list[str]) -> str:
    """The first combination that fits: the jobs are dropped last, the whole head first."""
    for tail in follows:
        for hit in jobs:
            for head in heads:
                text = "; ".join(part for part in (head, tail, hit) if part)
                if len(text) < LONGEST:
                    return f"{capitalised(text)}."
    head = heads[-1]
    return f"{capitalised(head if len(head) < LONGEST else f'{head[: LONGEST - 2]}…')}."


def capitalised(text: str) -> str:
    """The text with a capital, unless it begins with a name."""
    return text[:1].upper() + text[1:] if text.partition(" ")[0].isalpha() else text


def _unknown(incident: Incident) -> str:
    code, where = code_of(incident.fault), _where(incident)
    if _NOT_LISTED in incident.title:
        return f"No catalogue knows {code} on {where}"
    return f"The catalogue leaves open what {code} on {where} means ({_TITLE_HEAD.sub('', incident.title)})"


def _where(incident: Incident) -> str:
    """The place in words. Xids are about GPUs, also where only the address is known."""
    root, where = incident.root, place(incident.root)
    of_gpu = code_of(incident.fault).startswith("Xid") or fault_is(incident.fault, Trait.of_one_gpu)
    if of_gpu and root.node and place(root) == root.node and incident.root.pci is None:
        gpus = len({part.pci for part in incident.affected if part.node == root.node and part.pci})
        return f"{gpus} GPUs of {root.node}" if gpus > 1 else f"a GPU of {root.node}"
    return where.replace("the device at ", "the GPU at ") if of_gpu else where


def _subject(incident: Incident) -> str:
    """Where, and what: `GPU 3 of gpu0017 fell off the bus`, `gpu0009: memory above its limit`."""
    where = _where(incident)
    what = " ".join(_TITLE_HEAD.sub("", incident.title).split()).rstrip(".")
    root = incident.root
    named = root.node or root.device or root.switch or root.job
    if named and re.search(rf"\b{re.escape(named)}\b", what):
        return what
    found = _SUBJECT.match(what)
    of_gpus = where.endswith(f"GPUs of {named}") or where == f"a GPU of {named}"
    if found and (found[1].lower() in _kinds(incident) or (of_gpus and found[1] == "GPU")):
        return f"{where} {what[found.end() :]}"
    return f"{where}: {uncapitalised(_BARE.sub('', what))}"


def uncapitalised(text: str) -> str:
    """The text without its capital, unless that is a name's."""
    first = text.partition(" ")[0]
    name = first in _NAMES or (len(first) > 1 and not first[1:].islower())
    return text if name else text[:1].lower() + text[1:]


def _kinds(incident: Incident) -> set[str]:
    """What the root is, in the words of titles."""
    root = incident.root
    part = {
        "gpu": root.gpu is not None or root.pci is not None,
        "nvlink": root.link is not None,
        "nvswitch": root.switch is not None and root.node is not None,
        "switch": root.part is None and (root.device or root.switch) is not None and root.node is None,
        "job": root.job is not None and root.node is None,
    }
    kinds = {kind for kind, so in part.items() if so}
    return kinds or ({"node"} if root.node and not root.nic else set())


_NOT_THE_NODE = {
    Cause.application: "the job's own doing: no hardware is blamed",
    Cause.storage: "not the nodes, but the storage that they wait for",
    Cause.fabric: "not the nodes, but what they share",
    Cause.maintenance: "planned work: nothing is done",
}


def _follows(incident: Incident) -> str:
    if incident.merged_into is not None:
        return f"explained by incident {incident.merged_into[:8]}"
    if not incident.is_open:
        return f"over: {uncapitalised(incident.closed_why)}" if incident.closed_why else "it is over"
    blamed = max(incident.nodes.values(), key=list(Verdict).index, default=Verdict.healthy)
    remedy = next((rung for rung in incident.remedy if rung in REMEDY_LADDER), Remedy.none)
    if incident.cause is Cause.maintenance or blamed is Verdict.healthy:
        no_node = "" if incident.root.node else "no node is blamed"
        return _NOT_THE_NODE.get(incident.cause, no_node)
    if blamed is Verdict.isolate:
        node = "the node" if len(incident.nodes) == 1 else f"its {len(incident.nodes)} nodes"
        may = "cannot be used" if incident.unusable else "should take no jobs"
        return f"{node} {may} until {_UNTIL.get(remedy, 'a person has looked')}"
    return _MAY_WAIT.get(remedy, "it may wait") if blamed is Verdict.suspect else "healer watches it"


def _jobs(incident: Incident) -> list[str]:
    """The jobs whose work ended with the fault and that it makes restart, and that other nodes of the job are
    well where only one is blamed; then shorter forms."""
    lost = [hit for hit in incident.hit if hit.ended_at is not None]
    restart = " and must restart" if incident.is_open else ""
    how = f"crashed with it{restart}" if has_ended_work(incident) else "lost work by it"
    if len(lost) > 1:
        named = [f"jobs {', '.join(hit.job for hit in lost)} {how}"] if len(lost) <= _JOBS_NAMED else []
        return [*named, f"{len(lost)} jobs {how}", ""]
    if lost:
        text = f"{_job(lost[0])} {how}"
        return [text + _others(lost[0], incident), text, ""]
    running = [hit for hit in incident.hit if hit.basis is HitBasis.runs_on]
    lone = len(running) == 1 and running[0].job != incident.root.job
    if lone and incident.is_open and fault_is(incident.fault, Trait.contained):
        return [f"job {running[0].job} lost data and must restart", ""]
    return [f"job {running[0].job} runs on", ""] if lone else [""]


def _job(hit: JobHit) -> str:
    return f"{hit.gpus} ranks of job {hit.job}" if hit.gpus > 1 else f"job {hit.job}"


def _others(hit: JobHit, incident: Incident) -> str:
    blamed = sum(verdict is not Verdict.healthy for verdict in incident.nodes.values())
    if hit.nodes < 2 or blamed != 1:
        return ""
    return f"; its other {f'{hit.nodes - 1} nodes are' if hit.nodes > 2 else 'node is'} well"


#: Confidence of incidents that an earlier version opened without one.
_DEFAULT_CONFIDENCE = 0.8
#: Highest certainty of a code that no catalogue explains.
_UNEXPLAINED_AT_MOST = 0.5
#: Highest certainty of a program's error: the vendor's rule of thumb, as hardware may look the same.
_APPLICATION_AT_MOST = 0.8
#: Highest certainty where only alerts of other systems report the fault.
_ALERT_AT_MOST = 0.6
#: Of what a relay says alone.
_RELAYED_AT_MOST = 0.6
#: Of what the node itself denies.
_DENIED_AT_MOST = 0.1
#: The most jobs that a sentence names; of more it says how many.
_JOBS_NAMED = 3
#: How many lines and figures are quoted, and the longest of each.
_LINES = 4
_LINE_LENGTH = 240


def verdict_of(incident: Incident, rules: Ruleset, model: str = "") -> IncidentVerdict:
    """`model`: the GPU model of the root's node, where it is known: its re-test may differ."""
    certainty = certainty_of(incident)
    return IncidentVerdict(
        nodes=dict(sorted(incident.nodes.items())),
        cause=incident.cause,
        certainty=certainty,
        sentence=sentence_of(incident, certainty),
        why=tuple(_why(incident, rules)),
        set_aside=list_ruled_out(incident, rules),
        retest=_retest(incident, rules, model),
    )


def newest_verdict(kept: Sequence[VerdictAt], incident: Incident, rules: Ruleset) -> IncidentVerdict:
    """The stored verdict with later counts; computed if an earlier version stored none."""
    if not kept:
        return verdict_of(incident, rules)
    return msgspec.structs.replace(kept[-1].verdict, set_aside=list_ruled_out(incident, rules))


def verdict_sentence(incident: Incident) -> str:
    """The verdict's sentence alone: what a page or a ticket begins with."""
    return sentence_of(incident, certainty_of(incident))


#: Fields that the verdict depends on, except counts and the latest reporter.
_INPUTS = (
    "nodes", "cause", "rule", "fault", "fault_class", "title", "root", "remedy", "unusable", "confidence",
    "hit", "jobs_hit", "evidence", "state", "closed_why", "set_aside",
)  # fmt: skip


def changed_verdict(
    before: Incident | None, after: Incident, rules: Ruleset, model_of: Callable[[str], str] = lambda _: ""
) -> IncidentVerdict | None:
    """The verdict, where it is worth a row of its own; a count that only grew is none.

    A storm changes counts alone, thousands of times: then nothing is reckoned. `model_of` gives the GPU model
    of a node, empty where it is not known.
    """
    if before is not None and not _may_differ(before, after):
        return None
    model = model_of(after.root.node) if after.root.node else ""
    verdict = verdict_of(after, rules, model)
    if before is None or _without_counts(verdict_of(before, rules, model)) != _without_counts(verdict):
        return verdict
    return None


def _may_differ(before: Incident, after: Incident) -> bool:
    if any(getattr(before, name) != getattr(after, name) for name in _INPUTS):
        return True
    return before.counted.keys() != after.counted.keys() or _senses(before) != _senses(after)


def _without_counts(verdict: IncidentVerdict) -> IncidentVerdict:
    ruled_out = tuple(msgspec.structs.replace(entry, count=1) for entry in verdict.set_aside)
    return msgspec.structs.replace(verdict, set_aside=ruled_out)


def certainty_of(incident: Incident) -> float:
    """0..1, two digits: the surest finding; each further sense that agrees halves the doubt.

    Surely unusable (law 2) is 1. Unexplained codes, faults that only other systems report, and errors of
    programs are never certain.
    """
    if is_proven_unusable(incident):
        return 1.0
    senses = _senses(incident)
    doubt = 1 - (_DEFAULT_CONFIDENCE if incident.confidence is None else incident.confidence)
    sure = 1 - doubt * 0.5 ** max(0, len(senses) - 1)
    if incident.fault_class is FaultClass.unknown:
        sure = min(sure, _UNEXPLAINED_AT_MOST)
    if incident.fault_class is FaultClass.application or incident.cause is Cause.application:
        sure = min(sure, _APPLICATION_AT_MOST)
    if senses == (Sense.alert,):
        sure = min(sure, _ALERT_AT_MOST)
    if unproven_senders(incident):
        sure = min(sure, _DENIED_AT_MOST if is_denied(incident) else _RELAYED_AT_MOST)
    return round(sure, 2)


def _senses(incident: Incident) -> tuple[Sense, ...]:
    """The senses that ever reported it."""
    return independent_senses({evidence.sense for evidence in (*incident.heard, *incident.evidence)})


# --- why ---------------------------------------------------------------------------------------------------


def _why(incident: Incident, rules: Ruleset) -> Iterator[str]:
    """Lines and figures, then the senses that agree, then the catalogue and the rule, each with its
    source."""
    senses = _senses(incident)
    yield from (_evidence_text(item) for item in _speaking(incident))
    if len(senses) > 1:
        agreed = senses_text(senses)
        yield f"{agreed[:1].upper()}{agreed[1:]} agree"
    yield from _catalogue(incident, rules)
    yield from _rule(incident, rules)
    if senders := unproven_senders(incident):
        yield f"Only the relay {senders[0]} says so: it is not the node's own word (law 2)"
    if is_denied(incident):
        denied = next(evidence.denied for evidence in incident.evidence if evidence.denied)
        yield f"The node itself denies it: {denied}"
    if is_proven_unusable(incident) and incident.is_open:
        yield "Surely unusable: it is no capacity any more, so the caps on slots do not bind (law 2)"


def _speaking(incident: Incident) -> list[Evidence]:
    """The first evidence, the first of each sense, and the first fatal one; never the newest, which changes
    with every line."""
    found: dict[tuple[Sense, bool, str], Evidence] = {}
    for evidence in incident.evidence:
        found.setdefault((evidence.sense, evidence.fatal, evidence.text), evidence)
    first = sorted(found.values(), key=lambda item: (item is not incident.evidence[0], not item.fatal))
    senses = {item.sense for item in first[:_LINES]}
    more = [item for item in first[_LINES:] if item.sense not in senses]
    return [*first[:_LINES], *more[:2]]


def _evidence_text(evidence: Evidence) -> str:
    text = evidence.line or evidence.text
    cut = text if len(text) <= _LINE_LENGTH else f"{text[: _LINE_LENGTH - 1]}…"
    where = "" if evidence.component.node and evidence.component.node in text else f" of {evidence.component}"
    return f"{_SENSE_TITLES[evidence.sense]}{where}, {evidence.at:%H:%M:%S} UTC: {' '.join(cut.split())}"


_SENSE_TITLES = {
    Sense.kernel: "Kernel line",
    Sense.metrics: "Metrics",
    Sense.step_times: "Step times",
    Sense.forest: "Model of its class",
    Sense.silence: "Silence",
    Sense.slurm: "Slurm's view",
    Sense.hook: "The node's own check",
    Sense.alert: "Alert of another system",
    Sense.history: "healer's own record",
}


def _entry(fault: str, rules: Ruleset) -> tuple[str, CatalogueEntry] | None:
    """The catalogue's row of a fault and its file; None without one."""
    word, _, number = code_of(fault).partition(" ")
    rows = {"Xid": rules.xids, "SXid": rules.sxids}.get(word, {})
    entry = rows.get(int(number)) if number else None
    return (f"{word.lower()}.yaml", entry) if entry is not None else None


def _catalogue(incident: Incident, rules: Ruleset) -> Iterator[str]:
    if fault_is(incident.fault, Trait.driver_ask):
        ask = next((rule for rule in rules.recovery_actions.values() if rule.fault == incident.fault), None)
        if ask is not None:
            yield f"The driver's own word wins over every catalogue: {ask.text} (xid154.yaml, row {ask.code})"
        return
    found = _entry(incident.fault, rules)
    if found is None:
        return
    file, entry = found
    other = next((row for row in entry.by_model if row.text and row.text in incident.title), None)
    note = f" {entry.note.partition('. ')[0].rstrip('.')}." if entry.note else ""
    yield (
        f"{code_of(incident.fault)} ({entry.name}) is {entry.fault_class}: {entry.text}. "
        f"{entry.source}; {file}, row {entry.code}.{note}"
    )
    if other is not None:
        yield f"On this GPU model: {other.text} ({other.source}; {file}, row {entry.code})"
    elif entry.fault_class is not incident.fault_class:
        yield f"What this line itself says makes it {incident.fault_class}"


def _rule(incident: Incident, rules: Ruleset) -> Iterator[str]:
    rule = rules.by_name.get(incident.rule)
    if rule is None:
        return
    measured = next((entry for entry in rules.detection if entry.name == rule.name), None)
    alert = next((entry for entry in rules.alerts if entry.name == rule.name), None)
    source = measured.source if measured else alert.source if alert else "policies.yaml"
    when = f": {' '.join(measured.when.split())}" if measured else ""
    yield f"Rule {rule.name}, {rule.title}{when} ({source})"


# --- what was ruled out, and the re-test -------------------------------------------------------------------


def ruled_out_text(entry: RuledOut) -> str:
    """`1,203 × Xid 45: teardown of job 4711 after Xid 95`"""
    times = f"{entry.count:,} × " if entry.count > 1 else ""
    return capitalised(f"{times}{entry.what}: {entry.why}")


def list_ruled_out(incident: Incident, rules: Ruleset) -> tuple[RuledOut, ...]:
    """The ruled-out entries, and findings that were only counted: 1,203 × Xid 45."""
    listed = {entry.what for entry in incident.set_aside}
    counted = (_counted(fault, count, incident, rules) for fault, count in sorted(incident.counted.items()))
    return (*incident.set_aside, *(entry for entry in counted if entry.what not in listed))


def _counted(fault: str, count: int, incident: Incident, rules: Ruleset) -> RuledOut:
    found = _entry(fault, rules)
    teardown = found is not None and found[1].teardown
    after = code_of(incident.fault) or incident.title.partition(": ")[0]
    jobs = ", ".join(incident.jobs_hit[:3])
    if teardown and jobs:
        why = f"teardown of job {jobs} after {after}"
    elif teardown:
        why = f"teardown after {after}"
    else:
        why = f"follows from {after}"
    return RuledOut(at=incident.opened, what=code_of(fault) or fault, why=why, count=count)


def _retest(incident: Incident, rules: Ruleset, model: str) -> Retest | None:
    """The test that decides between transient and permanent; None if none is defined."""
    fault = once(incident.fault)
    ladder = ladder_for(rules, fault, incident.fault_class, model)
    return ladder.retest if ladder is not None else None
