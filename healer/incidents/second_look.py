"""The second look (law 2): which text of a relay the node itself is asked about, what its answer proves, and
how that changes the incident. Pure.

An agreement is the node's own report. A denial makes the relay suspect. Any other answer changes nothing.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from functools import lru_cache
from typing import Any

import msgspec

from healer.incidents.certainty import limit_evidence, named_part, newest_reports, unproven_claims
from healer.model import Evidence, GpuSeen, Incident, NodeLook, ObservationKind, Sense, SenseReport
from healer.model.faults import SHOWN_BY_SMI, Trait, fault_is
from healer.signals.identity import digest_of
from healer.signals.kernel_log import parse_line, possible_prefixes
from healer.text import Said, from_stored, quoted, say

#: The playbook that asks a node about a relay's text.
SECOND_LOOK = "second-look"
#: A record this far from the time of the claim is about something else: old lines may be sent again.
NEAR = timedelta(minutes=2)
#: The clocks of a relay and of healer may differ by this much, and a relay may be late by this much.
CLOCKS = timedelta(seconds=60)
#: The most looks per incident; and when a denied claim that comes again is checked again, because it may be
#: true by then.
LOOKS_MOST, AGAIN_AFTER = 3, timedelta(minutes=10)
#: How much of the kernel's text the node is asked for, in lower-case letters and digits only.
OPENING_MOST, OPENING_LEAST = 160, 8
#: The part of a driver's line that says what happened to which device.
_CODED = re.compile(r"(?:NVRM: Xid|nvidia-nvswitch\d{1,3}: SXid)\s*\(.{0,80}?\):\s*\d{1,5}(?!\d)")
_LEFT_OUT = re.compile(r"[^a-z0-9]+")
_ESCAPED = re.compile(r"\\x0a|#0\d\d")


class LookResult(StrEnum):
    agreed = "agreed"
    denied = "denied"
    unknown = "unknown"


class LookAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of a look at a node. `text` is for people; `line` is the node's own record, at time
    `at`."""

    result: LookResult
    text: Said
    sense: Sense = Sense.kernel
    line: str = ""
    at: datetime | None = None


@lru_cache(maxsize=4096)
def opening_of(line: str) -> str:
    """The text that identifies the kernel record behind the line; empty if too little of it is left."""
    parsed = parse_line(line)
    content = parsed.content if parsed is not None else _without_prefix(line)
    coded = _CODED.match(content)
    words = coded[0].lower() if coded else _ESCAPED.split(content)[0]
    pci = parsed.pci if coded and parsed is not None else None
    if pci is not None and pci not in words:
        words = words.replace(pci.partition(":")[2], pci, 1)  # a shortened log omits the domain
    opening = plain_words(words)[:OPENING_MOST]
    return opening if len(opening) >= OPENING_LEAST else ""


def _without_prefix(line: str) -> str:
    return min((prefix.content for prefix in possible_prefixes(line)), key=len, default=line)


def plain_words(text: str) -> str:
    return _LEFT_OUT.sub("", text.lower())


# --- which claims ---


def claims_to_ask(incident: Incident) -> tuple[Evidence, ...]:
    """The next claims of a relay about the root's node to check with the node: lines with the same text, or
    figures. Empty if there are none, or all were checked already."""
    claims = [claim for claim in unproven_claims(incident) if not claim.look and question_of(incident, claim)]
    if not claims or len({claim.look for claim in incident.evidence if claim.look}) >= LOOKS_MOST:
        return ()
    asked = {question_of(incident, claim): claim for claim in incident.evidence if claim.look}
    new = [claim for claim in claims if _is_news(claim, asked.get(question_of(incident, claim)))]
    question = question_of(incident, new[0]) if new else ""
    return tuple(claim for claim in new if question_of(incident, claim) == question)


def question_of(incident: Incident, claim: Evidence) -> str:
    """The question to the node: how a line's record begins, or the measured fault; empty if it has no
    immediate answer."""
    if claim.line:
        return opening_of(claim.line)
    return incident.fault if claim.sense is Sense.metrics and incident.fault in SHOWN_BY_SMI else ""


def _is_news(claim: Evidence, asked: Evidence | None) -> bool:
    if asked is None:
        return True
    return (
        bool(asked.denied) and (claim.arrived_at or claim.at) - (asked.arrived_at or asked.at) >= AGAIN_AFTER
    )


def mark_asked(incident: Incident, claims: Sequence[Evidence], run: str) -> Incident:
    digests = {claim.digest for claim in claims}
    return _changed(incident, digests, look=run)


def is_asked(incident: Incident, runs: Collection[str]) -> bool:
    """One of these runs asks the node about claims of relays."""
    return any(claim.look in runs for claim in unproven_claims(incident))


def asked_by(incident: Incident, run: str) -> tuple[Evidence, ...]:
    """The claims that this run asks the node about; for a person's run, everything that no sense has proven
    so far."""
    by_run = tuple(claim for claim in incident.evidence if claim.look == run)
    return by_run or tuple(claim for claim in unproven_claims(incident) if question_of(incident, claim))[:1]


def is_denied(incident: Incident) -> bool:
    """The node itself denies all of the incident's opening evidence."""
    claims = unproven_claims(incident)
    denied = {question_of(incident, claim) for claim in incident.evidence if claim.denied}
    return bool(claims) and all(claim.denied or question_of(incident, claim) in denied for claim in claims)


# --- the node's answer


def says_gone(claim: Evidence) -> bool:
    """The claim says that the GPU is gone: the driver no longer reaches it."""
    parsed = parse_line(claim.line)
    if parsed is None:
        return False
    lost = parsed.kind is ObservationKind.xid and fault_is(f"xid-{parsed.code}", Trait.lost_gpu)
    return lost or parsed.kind is ObservationKind.gpu_lost


def judge_look(
    claim: Evidence, seen: NodeLook, now: datetime, repaired_at: datetime | None = None
) -> LookAnswer:
    """`now`: when the node answered, by healer's clock. `repaired_at`: the last reset or repair of the node;
    an earlier record says nothing about its present state."""
    booted_at = now - timedelta(seconds=seen.up_s)
    opening, where = opening_of(claim.line), quoted(claim.component.pci or "") or say("incidents.the_gpu")
    alike = [record for record in seen.records if opening_of(record.text) == opening]
    ends_s = (repaired_at - booted_at).total_seconds() if repaired_at is not None else 0.0
    records = [record for record in alike if record.at_s >= ends_s]
    for record in reversed(records):
        at = booted_at + timedelta(seconds=record.at_s)
        if min(abs(at - claim.at), abs(at - (claim.arrived_at or claim.at))) <= NEAR:
            text = say("incidents.log_has_it", record=record.text)
            return LookAnswer(result=LookResult.agreed, text=text, line=record.text, at=at)
    if seen.gpu is GpuSeen.lost:
        text = say("incidents.gpu_not_reached", gpu=where)
        return LookAnswer(result=LookResult.agreed, text=text, sense=Sense.hook, at=now)
    if booted_at + CLOCKS > claim.at:
        times = {"time": f"{claim.at:%H:%M:%S}", "boot": f"{booted_at:%H:%M:%S}"}
        return unknown_answer(say("incidents.before_boot", **times))
    if seen.gpu is GpuSeen.answers and says_gone(claim):
        return _denied(say("incidents.gpu_reached", gpu=where))
    if alike and not records and repaired_at is not None:
        return _denied(say("incidents.log_before_repair", time=f"{repaired_at:%H:%M:%S}"))
    if records:
        return unknown_answer(say("incidents.log_of_other_time"))
    if seen.log_from_s is None:
        return unknown_answer(say("incidents.log_unreadable"))
    if booted_at + timedelta(seconds=seen.log_from_s) + CLOCKS > claim.at:
        return unknown_answer(say("incidents.log_too_young"))
    return _denied(say("incidents.log_has_not"))


def judge_figures(fault: str, shown: Mapping[str, bool], now: datetime) -> LookAnswer:
    """`shown`: what nvidia-smi on the node shows now, by the names in `SHOWN_BY_SMI`."""
    kinds = SHOWN_BY_SMI.get(fault, ())
    if any(shown.get(kind) for kind in kinds):
        text = say("incidents.smi_shows_it")
        return LookAnswer(result=LookResult.agreed, text=text, sense=Sense.hook, at=now)
    if kinds and all(kind in shown for kind in kinds):
        return _denied(say("incidents.smi_shows_no_fault"))
    return unknown_answer(say("incidents.smi_does_not_report"))


def _denied(why: Said) -> LookAnswer:
    return LookAnswer(result=LookResult.denied, text=why)


def unknown_answer(why: Said) -> LookAnswer:
    return LookAnswer(result=LookResult.unknown, text=why)


# --- its effect on the incident ---


def after_look(incident: Incident, run: str, look: Mapping[str, Any], at: datetime) -> Incident:
    """The incident with a run's answer: the node's own evidence, or its denial. `at`: when the answer
    came."""
    answer = from_stored(look, LookAnswer)
    claims = [claim for claim in incident.evidence if claim.look == run]
    if not claims or answer.result is LookResult.unknown:
        return incident
    if answer.result is LookResult.denied:
        return _changed(incident, {claim.digest for claim in claims}, denied=answer.text)
    proof = Evidence(
        digest=digest_of("second-look", run),
        at=answer.at or at,
        component=claims[0].component,
        text=answer.text,
        sense=answer.sense,
        line=answer.line,
        arrived_at=at,
        job=claims[0].job,
        fatal=any(claim.fatal for claim in claims),
        unusable=any(claim.unusable for claim in claims),
    )
    if any(evidence.digest == proof.digest for evidence in incident.evidence):
        return incident
    report = SenseReport(sense=answer.sense, at=at, part=named_part(proof.component))
    return msgspec.structs.replace(
        incident,
        evidence=limit_evidence((*incident.evidence, proof)),
        evidence_count=incident.evidence_count + 1,
        heard=newest_reports((*incident.heard, report)),
    )


def _changed(incident: Incident, digests: Collection[str], **fields: str) -> Incident:
    evidence = tuple(
        msgspec.structs.replace(item, **fields) if item.digest in digests else item
        for item in incident.evidence
    )
    return msgspec.structs.replace(incident, evidence=evidence)
