"""The verdict on an incident: nodes, cause and certainty, in one sentence, and why. Pure.

It is computed from the incident and the rules alone, so that the same incident has the same verdict wherever
it is read, and changes can be found by comparing the incident before and after.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from healer.incidents.certainty import (
    has_ended_work,
    independent_senses,
    is_proven_unusable,
    senses_text,
    unproven_senders,
)
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
    worst_verdict,
)
from healer.model.faults import Trait, code_of, fault_is, once
from healer.text import NO_WORDS, Said, joined, quoted, reworded, say, unstopped

#: Maximum length of the sentence: pagers cut off longer ones.
LONGEST = 200

#: The prefix of a line's title: `Xid 79: `, `SXid 20034 on NVSwitch 2: `.
_TITLE_HEAD = re.compile(r"^S?Xid \d+(?: on [^:,]+)?(?:, link \d+)?: ")
#: A title that is a clause about the part itself: the place replaces its subject.
_SUBJECT = re.compile(
    r"^(?:An? |The )?(GPU|node|NVSwitch|NVLink|switch|job) (?=(?:has|is|was|does|did|cannot|could|fell|"
    r"failed|stopped|answers|offers|waits|went|goes|moves|draws|stays|takes|asks|receives|throws|computes|"
    r"multiplies|works|tells|gives)\b)",
    re.IGNORECASE,
)
#: First words that keep their capital within a sentence, besides words with another capital (`RoCE`).
_NAMES = frozenset({"Slurm", "Prometheus", "Lustre"})
#: Titles without a verb: `GPU memory above its limit`, `GPU page fault (MMU)`.
_BARE = re.compile(r"^GPU (?=[a-z\d])")

#: The title by `healer.detection.readings` for a code without a row.
_NOT_LISTED = "detection.in_no_catalogue"
#: Its titles for a code, and for a code with `text`.
_WITH_HEAD = frozenset({"detection.xid", "detection.told"})

#: Remedies that a sentence about a node names: those that end its time out of service, and those that it may
#: wait for.
_UNTIL = frozenset(
    {
        Remedy.restart_service,
        Remedy.reset_gpu_when_idle,
        Remedy.drain_then_reset,
        Remedy.reboot_node,
        Remedy.power_cycle,
        Remedy.replace,
    }
)
_MAY_WAIT = _UNTIL | {Remedy.requeue_job}


def certainty_text(certainty: float) -> Said:
    """`certain`, `very likely, 95%`, `likely, 80%`, `unsure, 50%`."""
    if certainty >= 0.98:
        return say("incidents.sure_certain")
    word = "very_likely" if certainty >= 0.9 else "likely" if certainty >= 0.7 else "unsure"
    return say(f"incidents.sure_{word}", percent=100 * certainty)


def place(root: Component, *, pci_of: str = "device") -> Said:
    """`GPU 3 of gpu0017`, `NVSwitch 2 of gpu0005`, `gpu0009`, `switch leaf-3`, `pdu-r01`, `job 4711`.
    `pci_of`: the word (device or gpu) for a part of which only the address is known."""
    part, whole = _part(root, pci_of), _whole(root)
    return say("incidents.part_of", part=part, whole=whole) if part else whole


def _part(root: Component, pci_of: str) -> Said:
    if root.gpu is not None:
        return say("incidents.gpu", gpu=root.gpu)
    if root.link is not None and root.switch:
        return say("incidents.switch_link", switch=root.switch, link=root.link)
    if root.link is not None:
        return say("incidents.nvlink", link=root.link)
    if root.nic:
        return quoted(root.nic)
    if root.switch and root.node:
        return quoted(root.switch)
    if root.pci:
        return say(f"incidents.at_pci_{pci_of}", pci=root.pci)
    return quoted(root.part) if root.part and root.device else NO_WORDS


def _whole(root: Component) -> Said:
    if root.node:
        return quoted(root.node)
    if root.switch:
        return say("incidents.switch", switch=root.switch)
    if root.device:
        return quoted(root.device)
    if root.job:
        return say("incidents.job", job=root.job)
    return say("incidents.cluster", cluster=root.cluster)


def sentence_of(incident: Incident, certainty: float) -> Said:
    """At most 200 characters: what is broken, how certain, what follows, and which jobs it hit if there is
    room."""
    if incident.fault_class is FaultClass.unknown and incident.is_open and code_of(incident.fault):
        return _unknown(incident)
    sure = joined(filter(None, (code_of(incident.fault), certainty_text(certainty))), "comma")
    whole = _subject(incident)
    heads = [whole, reworded(whole, whole[: whole.find(": ", whole.find(": ") + 2)])]
    if whole.count(": ") < 2:
        heads = [whole]
    room = LONGEST - len(sure) - len("… ().")
    if len(whole) > room:
        heads = [reworded(whole, f"{whole[:room].rstrip()}…")]
    return _first_that_fits(heads, sure, [_follows(incident), NO_WORDS], _jobs(incident))


def _first_that_fits(heads: list[Said], sure: Said, follows: list[Said], jobs: list[Said]) -> Said:
    """The first combination that fits; jobs are the last to be dropped, the full head is the first."""
    for tail in follows:
        for hit in jobs:
            for head in heads:
                sentence = _sentence(capitalised(head), sure, [part for part in (tail, hit) if part])
                if len(sentence) <= LONGEST:
                    return sentence
    return _sentence(capitalised(heads[-1]), sure, [])


def _sentence(head: Said, sure: Said, follows: list[Said]) -> Said:
    if not follows:
        return say("incidents.verdict", what=head, sure=sure)
    return say("incidents.verdict_follows", what=head, sure=sure, follows=joined(follows, "semicolon"))


def capitalised(text: Said) -> Said:
    """The text with a capital letter, unless it begins with a name."""
    first = text.partition(" ")[0]
    return reworded(text, text[:1].upper() + text[1:]) if first.isalpha() else text


def _unknown(incident: Incident) -> Said:
    code, where, title = code_of(incident.fault), _where(incident), incident.title
    if _has_key(title, _NOT_LISTED):
        head = say("incidents.not_listed", code=code, where=where)
    else:
        head = say("incidents.left_open", code=code, where=where, title=_without_head(title))
    watched = say("incidents.watched", what=head)
    if len(watched) <= LONGEST:
        return watched
    short = head if len(head) < LONGEST else reworded(head, f"{head[: LONGEST - 2]}…")
    return say("incidents.sentence", what=short)


def _has_key(part: Any, key: str) -> bool:
    """Whether the text contains a sentence of this key. Parts that were read from the store are mappings."""
    if isinstance(part, list):
        return any(_has_key(item, key) for item in part)
    if isinstance(part, Mapping):
        name, args = part.get("key"), part.get("args", {})
    else:
        name, args = getattr(part, "key", ""), getattr(part, "args", {})
    return name == key or any(_has_key(value, key) for value in args.values())


def _without_head(title: str) -> Said:
    """The title without its code."""
    found = _TITLE_HEAD.match(title)
    if found is None:
        return quoted(title)
    sentence, rest = quoted(title), title[found.end() :]
    text = sentence.args.get("text") if sentence.key in _WITH_HEAD else None
    if isinstance(text, Mapping):  # read from the store
        return Said(rest, text.get("key", ""), text.get("args", {}))
    return reworded(text or rest, rest)


def _where(incident: Incident) -> Said:
    """The place in words. Xids are about GPUs, even if only the address is known."""
    root = incident.root
    of_gpu = code_of(incident.fault).startswith("Xid") or fault_is(incident.fault, Trait.of_one_gpu)
    if of_gpu and _is_node(root):
        gpus = len({part.pci for part in incident.affected if part.node == root.node and part.pci})
        if gpus > 1:
            return say("incidents.gpus_of", n=gpus, node=root.node)
        return say("incidents.a_gpu_of", node=root.node)
    return place(root, pci_of="gpu" if of_gpu else "device")


def _is_node(root: Component) -> bool:
    """The component is a whole node."""
    return root.node is not None and not root.pci and not _part(root, "device")


def _subject(incident: Incident) -> Said:
    """Where, and what: `GPU 3 of gpu0017 fell off the bus`, `gpu0009: memory above its limit`.

    English joins them into one clause, without the title's subject or capital; other languages use the whole
    title.
    """
    where, title = _where(incident), _without_head(incident.title)
    title = unstopped(title) if title.endswith(".") else title
    what, root = " ".join(title.split()).rstrip("."), incident.root
    named = root.node or root.device or root.switch or root.job
    if named and re.search(rf"\b{re.escape(named)}\b", what):
        return reworded(title, what)
    found = _SUBJECT.match(what)
    of_gpus = where.key in ("incidents.gpus_of", "incidents.a_gpu_of")
    if found and (found[1].lower() in _kinds(incident) or (of_gpus and found[1] == "GPU")):
        return say("incidents.place_does", where=where, does=what[found.end() :], title=title)
    return say("incidents.place_has", where=where, what=_lower(_BARE.sub("", what)), title=title)


def uncapitalised(text: str) -> Said:
    """The text without its initial capital, unless that belongs to a name."""
    return reworded(text, _lower(text))


def _lower(text: str) -> str:
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


_NOT_THE_NODE = frozenset({Cause.application, Cause.storage, Cause.fabric, Cause.maintenance})


def _follows(incident: Incident) -> Said:
    if incident.merged_into is not None:
        return say("incidents.explained_by", incident=incident.merged_into[:8])
    if not incident.is_open and incident.closed_why:
        return say("incidents.over_because", why=uncapitalised(incident.closed_why))
    if not incident.is_open:
        return say("incidents.over")
    blamed = worst_verdict(incident.nodes.values())
    remedy = next((rung for rung in incident.remedy if rung in REMEDY_LADDER), Remedy.none)
    if incident.cause is Cause.maintenance or blamed is Verdict.healthy:
        if incident.cause in _NOT_THE_NODE:
            return say(f"incidents.not_the_node_{incident.cause}")
        return NO_WORDS if incident.root.node else say("incidents.no_node_blamed")
    if blamed is Verdict.isolate:
        return _out(incident, remedy)
    if blamed is not Verdict.suspect:
        return say("incidents.watches")
    return say(f"incidents.may_wait_{remedy}" if remedy in _MAY_WAIT else "incidents.may_wait")


def _out(incident: Incident, remedy: Remedy) -> Said:
    number = len(incident.nodes)
    node = say("incidents.its_nodes", n=number) if number != 1 else say("incidents.the_node")
    until = say(f"incidents.until_{remedy}" if remedy in _UNTIL else "incidents.until_looked")
    unusable = incident.unusable
    return say("incidents.unusable_until" if unusable else "incidents.no_jobs_until", node=node, until=until)


def _jobs(incident: Incident) -> list[Said]:
    """The jobs whose work ended with the fault and that it makes restart, and, if only one node is blamed,
    that the job's other nodes are healthy; then shorter forms."""
    lost = [hit for hit in incident.hit if hit.ended_at is not None]
    how = "lost"
    if has_ended_work(incident):
        how = "crashed_restart" if incident.is_open else "crashed"
    if len(lost) > 1:
        counted = say(f"incidents.fate_{how}", who=say("incidents.jobs_counted", n=len(lost)))
        names = joined((hit.job for hit in lost), "comma")
        named = say(f"incidents.fate_{how}", who=say("incidents.jobs_named", jobs=names))
        return [*([named] if len(lost) <= _JOBS_NAMED else []), counted, NO_WORDS]
    if lost:
        text = say(f"incidents.fate_{how}", who=_job(lost[0]))
        others = _others(lost[0], incident)
        return [joined((text, others), "semicolon") if others else text, text, NO_WORDS]
    running = [hit for hit in incident.hit if hit.basis is HitBasis.runs_on]
    if len(running) != 1 or running[0].job == incident.root.job:
        return [NO_WORDS]
    lost_data = incident.is_open and fault_is(incident.fault, Trait.contained)
    return [
        say("incidents.job_lost_data" if lost_data else "incidents.job_runs_on", job=running[0].job),
        NO_WORDS,
    ]


def _job(hit: JobHit) -> Said:
    if hit.gpus > 1:
        return say("incidents.ranks_of_job", n=hit.gpus, job=hit.job)
    return say("incidents.one_job", job=hit.job)


def _others(hit: JobHit, incident: Incident) -> Said:
    blamed = sum(verdict is not Verdict.healthy for verdict in incident.nodes.values())
    if hit.nodes < 2 or blamed != 1:
        return NO_WORDS
    return say("incidents.others_well", n=hit.nodes - 1) if hit.nodes > 2 else say("incidents.other_well")


#: Confidence of incidents that an earlier version opened without one.
_DEFAULT_CONFIDENCE = 0.8
#: Highest certainty for a code that no catalogue explains.
_UNEXPLAINED_AT_MOST = 0.5
#: Highest certainty for a program's error: the vendor's rule of thumb, because hardware faults may look the
#: same.
_APPLICATION_AT_MOST = 0.8
#: Highest certainty if only alerts of other systems report the fault.
_ALERT_AT_MOST = 0.6
#: Highest certainty if only a relay reports the fault.
_RELAYED_AT_MOST = 0.6
#: Highest certainty if the node itself denies the fault.
_DENIED_AT_MOST = 0.1
#: The most jobs that a sentence names; beyond that it gives their number.
_JOBS_NAMED = 3
#: How many lines and figures are quoted, and the maximum length of each.
_LINES = 4
_LINE_LENGTH = 240


def verdict_of(incident: Incident, rules: Ruleset, model: str = "") -> IncidentVerdict:
    """`model`: the GPU model of the root's node, if known; its re-test may differ."""
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
    """The stored verdict with updated counts; computed if an earlier version stored none."""
    if not kept:
        return verdict_of(incident, rules)
    return msgspec.structs.replace(kept[-1].verdict, set_aside=list_ruled_out(incident, rules))


def verdict_sentence(incident: Incident) -> Said:
    """Only the verdict's sentence: the beginning of a page or a ticket."""
    return sentence_of(incident, certainty_of(incident))


#: Fields that the verdict depends on, except counts and the latest reporter.
_INPUTS = (
    "nodes", "cause", "rule", "fault", "fault_class", "title", "root", "remedy", "unusable", "confidence",
    "hit", "jobs_hit", "evidence", "state", "closed_why", "set_aside",
)  # fmt: skip


def changed_verdict(
    before: Incident | None, after: Incident, rules: Ruleset, model_of: Callable[[str], str] = lambda _: ""
) -> IncidentVerdict | None:
    """The verdict, if it is worth a row of its own; increased counts alone are not.

    A storm changes counts thousands of times, and nothing is computed for them. `model_of` returns the GPU
    model of a node, empty if unknown.
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
    """0..1, two digits: the confidence of the surest finding; each further sense that agrees halves the
    doubt.

    A certainly unusable node (law 2) gives 1. Unexplained codes, faults that only other systems report, and
    errors of programs are never certain.
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
    """The senses that have ever reported it."""
    return independent_senses({evidence.sense for evidence in (*incident.heard, *incident.evidence)})


# --- why ---------------------------------------------------------------------------------------------------


def _why(incident: Incident, rules: Ruleset) -> Iterator[Said]:
    """Lines and figures, then the senses that agree, then the catalogue and the rule, each with its
    source."""
    senses = _senses(incident)
    yield from (_evidence_text(item) for item in _quoted_evidence(incident))
    if len(senses) > 1:
        agreed = senses_text(senses)
        yield say("incidents.agree", senses=reworded(agreed, f"{agreed[:1].upper()}{agreed[1:]}"))
    yield from _catalogue(incident, rules)
    yield from _rule(incident, rules)
    if senders := unproven_senders(incident):
        yield say("incidents.only_relay", sender=senders[0])
    denied = next((evidence.denied for evidence in incident.evidence if evidence.denied), None)
    if denied is not None and is_denied(incident):
        yield say("incidents.node_denies", why=denied)
    if is_proven_unusable(incident) and incident.is_open:
        yield say("incidents.surely_unusable")


def _quoted_evidence(incident: Incident) -> list[Evidence]:
    """The first evidence, the first of each sense, and the first fatal one; never the newest, which changes
    with every line."""
    found: dict[tuple[Sense, bool, str], Evidence] = {}
    for evidence in incident.evidence:
        found.setdefault((evidence.sense, evidence.fatal, evidence.text), evidence)
    first = sorted(found.values(), key=lambda item: (item is not incident.evidence[0], not item.fatal))
    senses = {item.sense for item in first[:_LINES]}
    more = [item for item in first[_LINES:] if item.sense not in senses]
    return [*first[:_LINES], *more[:2]]


def _evidence_text(evidence: Evidence) -> Said:
    words = quoted(evidence.line) or evidence.text
    cut = words if len(words) <= _LINE_LENGTH else f"{words[: _LINE_LENGTH - 1]}…"
    text, time = reworded(words, " ".join(cut.split())), f"{evidence.at:%H:%M:%S}"
    if evidence.component.node and evidence.component.node in words:
        return say(f"incidents.saw_{evidence.sense}", time=time, text=text)
    where = str(evidence.component)
    return say(f"incidents.seen_of_{evidence.sense}", where=where, time=time, text=text)


def _entry(fault: str, rules: Ruleset) -> tuple[str, CatalogueEntry] | None:
    """The catalogue's row of a fault and its file; None if there is none."""
    word, _, number = code_of(fault).partition(" ")
    rows = {"Xid": rules.xids, "SXid": rules.sxids}.get(word, {})
    entry = rows.get(int(number)) if number else None
    return (f"{word.lower()}.yaml", entry) if entry is not None else None


def _catalogue(incident: Incident, rules: Ruleset) -> Iterator[Said]:
    if fault_is(incident.fault, Trait.driver_ask):
        ask = next((rule for rule in rules.recovery_actions.values() if rule.fault == incident.fault), None)
        if ask is not None:
            yield say("incidents.driver_asks", text=quoted(ask.text), row=ask.code)
        return
    found = _entry(incident.fault, rules)
    if found is None:
        return
    file, entry = found
    other = next((row for row in entry.by_model if row.text and row.text in incident.title), None)
    yield _row(code_of(incident.fault), file, entry)
    if other is not None:
        text, source = quoted(other.text or ""), quoted(other.source)
        yield say("incidents.row_of_model", text=text, source=source, file=file, row=entry.code)
    elif entry.fault_class is not incident.fault_class:
        yield say("incidents.line_makes_it", kind=_class(incident.fault_class))


def _row(code: str, file: str, entry: CatalogueEntry) -> Said:
    row = say(
        "incidents.row",
        code=code,
        name=entry.name,
        kind=_class(entry.fault_class),
        text=quoted(entry.text),
        source=quoted(entry.source),
        file=file,
        row=entry.code,
    )
    note = (entry.note or "").partition(". ")[0].rstrip(".")
    return say("incidents.row_noted", row=row, note=quoted(note)) if entry.note else row


def _class(fault_class: FaultClass) -> Said:
    return say(f"words.class_{fault_class}")


def _rule(incident: Incident, rules: Ruleset) -> Iterator[Said]:
    rule = rules.by_name.get(incident.rule)
    if rule is None:
        return
    measured = next((entry for entry in rules.detection if entry.name == rule.name), None)
    alert = next((entry for entry in rules.alerts if entry.name == rule.name), None)
    source = measured.source if measured else alert.source if alert else "policies.yaml"
    named = {"rule": rule.name, "title": quoted(rule.title), "source": source}
    when = " ".join(measured.when.split()) if measured else ""
    yield say("incidents.rule_when", when=when, **named) if measured else say("incidents.rule", **named)


# --- what was ruled out, and the re-test -------------------------------------------------------------------


def ruled_out_text(entry: RuledOut) -> Said:
    """`1,203 × Xid 45: teardown of job 4711 after Xid 95`"""
    if entry.count > 1:
        return say("incidents.ruled_out_times", n=entry.count, what=entry.what, why=entry.why)
    return capitalised(say("incidents.ruled_out", what=entry.what, why=entry.why))


def list_ruled_out(incident: Incident, rules: Ruleset) -> tuple[RuledOut, ...]:
    """The ruled-out entries, and findings that were only counted: 1,203 × Xid 45."""
    listed = {entry.what for entry in incident.set_aside}
    counted = (_counted(fault, count, incident, rules) for fault, count in sorted(incident.counted.items()))
    return (*incident.set_aside, *(entry for entry in counted if entry.what not in listed))


def _counted(fault: str, count: int, incident: Incident, rules: Ruleset) -> RuledOut:
    found = _entry(fault, rules)
    teardown = found is not None and found[1].teardown
    after = quoted(code_of(incident.fault)) or reworded(incident.title, incident.title.partition(": ")[0])
    jobs = joined(incident.jobs_hit[:3], "comma")
    if teardown and jobs:
        why = say("incidents.teardown_of_job", jobs=jobs, after=after)
    else:
        why = say("incidents.teardown" if teardown else "incidents.follows_from", after=after)
    return RuledOut(at=incident.opened, what=quoted(code_of(fault) or fault), why=why, count=count)


def _retest(incident: Incident, rules: Ruleset, model: str) -> Retest | None:
    """The test that decides between transient and permanent; None if none is defined."""
    fault = once(incident.fault)
    ladder = ladder_for(rules, fault, incident.fault_class, model)
    return ladder.retest if ladder is not None else None
