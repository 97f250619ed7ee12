"""How certain an incident is: which senses report it, what they claim, and what proves it. Pure.

Two senses that fail independently are stronger evidence than one. Law 2: text sent by a relay may come from
anyone. A claim is proven by the node's own report, by what healer or Slurm saw, or by two independent senses.
The two must come from two senders, because one token may send text, figures and step times alike. An unproven
claim may take a node within the caps, but restarts no job that may still make progress.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime, timedelta

import msgspec

from healer.model import (
    EVIDENCE_FIRST,
    EVIDENCE_KEPT,
    Component,
    Evidence,
    FaultClass,
    Finding,
    Incident,
    Rule,
    Sense,
    SenseReport,
)
from healer.observations.figure_senders import names_in
from healer.text import Said, capital, joined, say

#: Senses that no relay can fake by text: one alone proves its claim.
_FIRST_HAND = frozenset({Sense.kernel, Sense.hook, Sense.slurm, Sense.silence, Sense.step_times})
#: Senses that are derived from other senses: only the first of them counts, and only if no other sense
#: reports.
CONCLUDED = (Sense.alert, Sense.history)
#: Senses that compare or interpret measurements; the others report events.
MEASURED = frozenset({Sense.metrics, Sense.step_times, Sense.forest, Sense.alert})
#: How often an incident records that its condition lasts: each record is a write.
NOTED_EVERY = timedelta(seconds=15)
#: Older reports do not count as present. A lasting condition is reported again every 5 min.
AGREE_WITHIN = timedelta(minutes=15)
#: How long a report of a node's own check counts as agreement with another sense.
CHECK_LASTS = timedelta(days=1)
#: An older tick over the fleet says nothing about the present.
LOOK_LASTS = timedelta(seconds=60)
#: The most reports that an incident keeps: one per sense and GPU, or node as a whole.
_HEARD_KEPT = 64


def independent_senses(senses: Collection[Sense]) -> tuple[Sense, ...]:
    """Of these, the senses that fail independently, in the order of `Sense`."""
    direct = tuple(sense for sense in Sense if sense in senses and sense not in CONCLUDED)
    return direct or tuple(sense for sense in CONCLUDED if sense in senses)[:1]


def add_reports(incident: Incident, finding: Finding) -> tuple[SenseReport, ...]:
    """The latest report of each sense, including this finding's; only reports about the root's own node
    count."""
    of_node = (evidence for evidence in finding.evidence if evidence.component.node == incident.root.node)
    more = [
        SenseReport(sense=evidence.sense, at=finding.arrived_at, part=named_part(evidence.component))
        for evidence in of_node
        if evidence.sense is not Sense.hook or finding.arrived_at - evidence.at <= CHECK_LASTS
    ]
    return newest_reports((*incident.heard, *more))


def is_news(incident: Incident, heard: Iterable[SenseReport]) -> bool:
    """Whether these reports are worth recording in the incident: a lasting condition is reported in every
    walk."""
    noted = {(report.sense, report.part): report.at for report in incident.heard}
    return any(
        (at := noted.get((report.sense, report.part))) is None or report.at - at >= NOTED_EVERY
        for report in heard
    )


def newest_reports(heard: Iterable[SenseReport]) -> tuple[SenseReport, ...]:
    """The latest report of each sense about each part."""
    last: dict[tuple[Sense, str], SenseReport] = {}
    for report in heard:
        earlier = last.get((report.sense, report.part))
        if earlier is None or report.at > earlier.at:
            last[report.sense, report.part] = report
    kept = sorted(last.values(), key=lambda report: (report.at, report.sense, report.part))
    return tuple(kept[-_HEARD_KEPT:])


def named_part(where: Component) -> str:
    return str(where.gpu) if where.gpu is not None else where.pci or ""


def last_heard(incident: Incident) -> datetime:
    return max((report.at for report in incident.heard), default=incident.opened)


def senses_of(incident: Incident, now: datetime) -> tuple[Sense, ...]:
    """The senses that recently reported the same part of the root's own node, in the order of `Sense`.

    Senses that name a GPU must name the same one; a sense that names none agrees with any. An alert counts
    only if no other sense reports: healer usually reads the same metric or line itself, and the same figure
    twice is no second sense. The same holds for healer's own history.
    """
    return _agreeing(_fresh(incident, now))


def _agreeing(heard: Sequence[SenseReport]) -> tuple[Sense, ...]:
    fresh = _counted(heard)
    found: set[Sense] = set()
    for part in sorted({report.part for report in fresh}):
        agreed = {report.sense for report in fresh if report.part in ("", part)}
        found = max(found, agreed, key=len)
    return tuple(sense for sense in Sense if sense in found)


def _fresh(incident: Incident, now: datetime) -> list[SenseReport]:
    if incident.root.node is None:
        return []
    return _near(incident.heard, now)


def _near(heard: Iterable[SenseReport], now: datetime) -> list[SenseReport]:
    return [report for report in heard if abs(now - report.at) <= AGREE_WITHIN]


def _counted(heard: Sequence[SenseReport]) -> list[SenseReport]:
    counted = independent_senses({report.sense for report in heard})
    return [report for report in heard if report.sense in counted]


def lacks_senses(incident: Incident, rule: Rule, now: datetime) -> bool:
    """Fewer senses agree than the rule needs: nothing is done for it, and it stops nothing."""
    return rule.senses > 1 and len(senses_of(incident, now)) < rule.senses


def agreed_at(incident: Incident, rule: Rule | None) -> datetime:
    """When as many senses agreed as the rule needs (None: one), by the evidence kept, and not before the
    incident was opened: a storm of second senses may come long after the first ones."""
    if rule is None or rule.senses <= 1 or incident.root.node is None:
        return incident.opened
    reports = [
        SenseReport(sense=item.sense, at=item.arrived_at or item.at, part=named_part(item.component))
        for item in _of_root(incident)
    ]
    for moment in sorted(report.at for report in reports):
        heard = [report for report in reports if report.at <= moment]
        if len(_agreeing(_near(heard, moment))) >= rule.senses:
            return max(moment, incident.opened)
    return incident.opened


def senses_text(senses: tuple[Sense, ...]) -> Said:
    """`metrics and step times`"""
    return joined((say(f"incidents.sense_{sense}") for sense in senses), "and")


def why_too_few_senses(incident: Incident, needed: int, now: datetime) -> Said:
    """Why nothing is done yet: how many senses are needed, and which have reported."""
    fresh = {report.sense for report in _counted(_fresh(incident, now))}
    reporting = tuple(sense for sense in Sense if sense in fresh)
    node, senses = incident.root.node, senses_text(reporting)
    agree = say("incidents.second_sense") if needed == 2 else say("incidents.more_senses", n=needed)
    if not reporting:
        return say("incidents.no_sense", node=node, agree=agree)
    if len(reporting) < needed:
        return say("incidents.few_senses", senses=senses, node=node, agree=agree)
    return say("incidents.other_gpus", senses=capital(senses), node=node, agree=agree)


def has_ended_work(incident: Incident) -> bool:
    """A fatal fault was reported, so the work on its GPU has ended. A measurement is only a level."""
    return any(evidence.fatal for evidence in incident.evidence)


def why_not_looked(incident: Incident, now: datetime) -> Said | None:
    """Why it is unknown whether the cause is still present; None for faults that are not measured."""
    if incident.ticked_at is None or abs(now - incident.ticked_at) <= LOOK_LASTS:
        return None
    return say("incidents.looked_last", time=f"{incident.ticked_at:%H:%M:%S}")


_RANK = {
    FaultClass.informational: 0,
    FaultClass.unknown: 1,
    FaultClass.application: 1,
    FaultClass.degraded: 2,
    FaultClass.fatal: 4,
}
#: Rank of a measured fatal level: below a reported fatal fault, which has ended the work.
_MEASURED_FATAL = 3


def mark_claims(finding: Finding) -> Finding:
    """The finding with its evidence marked by what it claims: fatal if a fatal fault was reported, which has
    ended the work on the GPU; and unusable if its component certainly cannot work."""
    fatal = finding.fault_class is FaultClass.fatal and finding.evidence[0].sense not in MEASURED
    if not (fatal or finding.unusable):
        return finding
    claims = tuple(
        msgspec.structs.replace(evidence, fatal=fatal, unusable=finding.unusable)
        for evidence in finding.evidence
    )
    return msgspec.structs.replace(finding, evidence=claims)


def rank_of_finding(finding: Finding) -> int:
    measured = finding.fault_class is FaultClass.fatal and finding.evidence[0].sense in MEASURED
    return _MEASURED_FATAL if measured else _RANK[finding.fault_class]


def rank_of(incident: Incident) -> int:
    opened_by = incident.evidence[0].sense if incident.evidence else None
    measured = opened_by in MEASURED and not has_ended_work(incident)
    fatal = incident.fault_class is FaultClass.fatal
    return _MEASURED_FATAL if fatal and measured else _RANK[incident.fault_class]


def is_proof(incident: Incident, finding: Finding) -> bool:
    """Whether the finding reports the same fault, or a worse one, at the same part."""
    same = finding.fault == incident.fault or rank_of_finding(finding) >= rank_of(incident)
    parts = {named_part(incident.root), named_part(finding.component)} - {""}
    return same and len(parts) < 2


def limit_evidence(evidence: tuple[Evidence, ...]) -> tuple[Evidence, ...]:
    """The first and the newest evidence; the return of the node depends on the last.

    The newest evidence of a sense that has no other is also kept, to preserve the agreement of senses. A
    relay's text never displaces the node's own report.
    """
    if len(evidence) <= EVIDENCE_KEPT:
        return evidence
    first, last = evidence[:EVIDENCE_FIRST], evidence[EVIDENCE_FIRST - EVIDENCE_KEPT :]
    heard = {_claim_of(item) for item in (*first, *last)}
    between = evidence[EVIDENCE_FIRST : EVIDENCE_FIRST - EVIDENCE_KEPT]
    lone = {_claim_of(item): item for item in between if _claim_of(item) not in heard}
    return (*first, *lone.values(), *last)


def _claim_of(item: Evidence) -> tuple[Sense, bool, bool, bool]:
    return item.sense, item.fatal, item.unusable, bool(item.relayed_by)


# --- law 2: what a claim of a dead node rests on


def is_proven_unusable(incident: Incident) -> bool:
    """The node is certainly unusable, and not only by one relay's text."""
    if not incident.unusable:
        return False
    claims = [evidence for evidence in _of_root(incident) if evidence.unusable]
    return bool(claims) and _is_proven(claims)


def is_proven_fatal(incident: Incident) -> bool:
    """A fatal fault has ended the work on its GPU, and not only by one relay's text."""
    claims = [evidence for evidence in incident.evidence if evidence.fatal]
    return bool(claims) and _is_proven(claims)


def is_newly_proven(before: Incident, incident: Incident) -> bool:
    """Jobs may be restarted for the incident from now on: only now is its node certainly unusable, or a claim
    about it proven."""
    if is_proven_unusable(incident) and not is_proven_unusable(before):
        return True
    claimed = any(evidence.fatal for evidence in before.evidence)
    return claimed and is_proven_fatal(incident) and not is_proven_fatal(before)


def unproven_senders(incident: Incident) -> tuple[str, ...]:
    """The relays on whose text alone the worst claim of the incident rests; empty if something else supports
    it, or if no relay is involved."""
    worst = [evidence for evidence in incident.evidence if evidence.fatal or evidence.unusable]
    claims = worst or list(incident.evidence)
    relays = {evidence.relayed_by for evidence in claims if evidence.relayed_by}
    return tuple(sorted(relays)) if relays and not _is_proven(claims) else ()


def unproven_claims(incident: Incident) -> list[Evidence]:
    """What relays say about the root's node, if the worst claim rests on their text alone."""
    of_root = list(_of_root(incident))
    by_rank = (
        [evidence for evidence in of_root if evidence.unusable],
        [evidence for evidence in of_root if evidence.fatal],
        of_root,
    )
    worst = next((claims for claims in by_rank if claims), [])
    relayed = [evidence for evidence in worst if evidence.relayed_by]
    return relayed if relayed and not _is_proven(worst) else []


def _of_root(incident: Incident) -> Iterator[Evidence]:
    node = incident.root.node
    return (evidence for evidence in incident.evidence if node is None or evidence.component.node == node)


def _is_proven(claims: list[Evidence]) -> bool:
    apart = [item for item in claims if not item.relayed_by]
    if len(apart) < len(claims):
        relays = _senders(*(evidence.relayed_by for evidence in claims))
        apart = [item for item in apart if not _may_overlap(_senders(item.sent_by), relays)]
    senses = {evidence.sense for evidence in apart} - set(CONCLUDED)
    return bool(senses & _FIRST_HAND) or len(senses) > 1


#: Used for a sender without a token name.
_UNNAMED = ""


def _senders(*names: str) -> frozenset[str]:
    """Each sender by the name of its token, without the id: all tokens of one name belong to one sender."""
    return frozenset(name.rpartition(" (")[0] for name in names_in(names))


def _may_overlap(senders: frozenset[str], others: frozenset[str]) -> bool:
    """One of the senders is, or may be, one of the others: an unnamed sender may be any of them."""
    return bool(senders and others) and bool(senders & others or _UNNAMED in senders | others)
