"""Audit records and the timeline of an incident as rows: their words first, the rest behind one press."""

import json
from collections.abc import Iterator
from datetime import UTC, date, datetime

import msgspec

from healer.console import words
from healer.console.views import Shown
from healer.console.views.runs_view import EVENT_WORDS, guards_summary, title_of
from healer.engine.records import IncidentRecord
from healer.model import Answer, AuditRecord, Component, Decision, Incident, LogEntry, Outcome, StepEvent
from healer.ports.answers import ChannelDelivery
from healer.text import joined, quoted, say

#: The keys that say in words what happened, best first.
_WORDS = ("text", "reason", "why", "title", "note")


def audit_row(record: AuditRecord, cluster: str) -> Shown:
    """`words` is the record's own sentence; `rest` the other values, as JSON where they are no text; `link`
    the page about the subject (empty where there is none), `name` how the subject is shown."""
    data = {key: value for key, value in record.data.items() if value is not None}
    first = next((key for key in _WORDS if isinstance(data.get(key), str) and data[key]), None)
    words = str(data.pop(first)) if first else ""
    rest = tuple(
        (key, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for key, value in data.items()
        # A value that the row says already is only noise here; the export has every byte.
        if str(value) not in words and not record.subject.endswith(f"/{value}")
    )
    kind, _, name = record.subject.partition("/")
    pages = {"incident": "/incidents/", "run": "/runs/", "node": f"/nodes/{cluster}/"}
    last = name.rsplit("/", 1)[-1]
    return Shown(
        record=record,
        words=words,
        rest=rest,
        link=pages[kind] + last if kind in pages and last else "",
        name=f"{kind}/{name[:8]}" if kind in ("incident", "run") else record.subject,
    )


#: Audit verbs that the timeline already shows from better sources (decisions, run logs, notes, messages).
_SHOWN_ELSEWHERE = ("decision.", "step.", "note.", "incident.note", "message.", "finding.", "evidence.")
#: Of healer's own records only these; the rest repeats the runs' logs.
_OWN = ("incident.",)

_BAD_EVENTS = (StepEvent.failed, StepEvent.held)


class TimelineRow(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` is evidence, finding, verdict, decision, step, person, healer or message; `line` is in mono."""

    at: datetime
    kind: str
    tone: str
    text: str
    clock: str = ""
    offset: str = ""
    day: str = ""
    line: str = ""
    detail: str = ""
    summary: str = ""
    guards: tuple[Answer, ...] = ()
    open: bool = False
    #: `detail` was typed by a person: it is not translated.
    typed: bool = False


def timeline(detail: IncidentRecord) -> list[TimelineRow]:
    """Oldest first; rows of the same millisecond keep the order evidence, finding, verdict, decision,
    step, others."""
    rows = [*_seen(detail), *_judged(detail), *_decided(detail), *_done(detail), *_words(detail)]
    rows.sort(key=lambda row: row.at)
    start = detail.incident.opened
    shown: list[TimelineRow] = []
    today: date | None = None
    for row in rows:
        this_day = row.at.astimezone(UTC).date()
        shown.append(
            msgspec.structs.replace(
                row,
                clock=words.clock_ms(row.at),
                offset=words.offset(row.at, start),
                day=words.day(row.at) if this_day != today else "",
            )
        )
        today = this_day
    return shown


def _seen(detail: IncidentRecord) -> Iterator[TimelineRow]:
    for evidence in detail.incident.evidence:
        late = ""
        if evidence.arrived_at is not None:
            late_s = (evidence.arrived_at - evidence.at).total_seconds()
            late = say("console.timeline_arrived_later", span=words.span(late_s)) if late_s >= 0.001 else ""
        text = _with_place(evidence.component, evidence.text)
        yield TimelineRow(
            at=evidence.at, kind="evidence", tone="plain", text=text, line=evidence.line, detail=late
        )
    for finding in detail.findings:
        sure = (
            say("console.timeline_surely_unusable")
            if finding.unusable
            else say("console.timeline_confidence", confidence=finding.confidence)
        )
        lines = words.counted(len(finding.evidence), "evidence")
        yield TimelineRow(
            at=finding.arrived_at,
            kind="finding",
            tone="plain",
            text=say(
                "console.timeline_on", fault=finding.fault, of=_with_place(finding.component, finding.text)
            ),
            detail=say(
                "console.timeline_rule",
                rule=finding.rule,
                fault_class=quoted(finding.fault_class.value),
                sure=sure,
                lines=lines,
            ),
        )


def _judged(detail: IncidentRecord) -> Iterator[TimelineRow]:
    """Each verdict whose sentence differs from the one before it."""
    before = ""
    for verdict in detail.verdicts:
        sentence = verdict.verdict.sentence
        if sentence != before:
            yield TimelineRow(at=verdict.at, kind="verdict", tone="plain", text=sentence)
        before = sentence


def _with_place(component: Component, text: str) -> str:
    """With the place before it, unless the text begins with it, as that of a device does."""
    if component.device and text.startswith(component.device):
        return text
    return words.labelled(str(component), text)


def _decided(detail: IncidentRecord) -> Iterator[TimelineRow]:
    decisions: list[Decision] = list(detail.decisions)
    listed = {(decision.at, decision.run, decision.why) for decision in decisions}
    for run in detail.runs:
        decisions += [
            decision for decision in run.decisions if (decision.at, decision.run, decision.why) not in listed
        ]
    for decision in decisions:
        kept = decision.outcome in (Outcome.held, Outcome.refused)
        head, outcome = _subject(decision), say(f"console.outcome_{decision.outcome}")
        yield TimelineRow(
            at=decision.at,
            kind="decision",
            tone="warn" if kept else "plain",
            text=words.labelled(head, outcome) if head else outcome,
            detail=decision.why,
            summary=guards_summary(decision),
            guards=decision.answers,
            open=kept,
        )


def _subject(decision: Decision) -> str:
    """`drain gpu0017`, `requeue job 4711`, the playbook, or empty."""
    proposal = decision.proposal
    if proposal is None:
        return decision.playbook or ""
    where = say("console.runs_job", job=proposal.job) if proposal.job else proposal.node
    return joined(filter(None, (quoted(proposal.verb.value), where)), "space")


def _folded(log: tuple[LogEntry, ...]) -> list[tuple[LogEntry, int]]:
    """Each entry with the number of its repeats: a wait that polls every second is one row."""
    folded: list[tuple[LogEntry, int]] = []
    for entry in log:
        if folded and entry.event in (StepEvent.waiting, StepEvent.held):
            before, count = folded[-1]
            if (before.step, before.event, before.text) == (entry.step, entry.event, entry.text):
                folded[-1] = (before, count + 1)
                continue
        folded.append((entry, 1))
    return folded


def _done(detail: IncidentRecord) -> Iterator[TimelineRow]:
    for run in detail.runs:
        shadow = say("console.timeline_shadow_nothing_touched") if run.run.shadow else ""
        for entry, count in _folded(run.log):
            attempt = say("console.timeline_attempt", attempt=entry.attempt) if entry.attempt > 1 else ""
            again = say("console.timeline_looked_times", times=count) if count > 1 else ""
            step = joined((entry.step, quoted(EVENT_WORDS[entry.event])), "space")
            text = joined(filter(None, (step, attempt, shadow)), "nothing")
            yield TimelineRow(
                at=entry.at,
                kind="step",
                tone="bad" if entry.event in _BAD_EVENTS else "plain",
                text=words.labelled(title_of(run.run), text) if len(detail.runs) > 1 else text,
                detail=joined(filter(None, (entry.text, again)), "nothing"),
            )


def _words(detail: IncidentRecord) -> Iterator[TimelineRow]:
    for note in detail.notes:
        yield TimelineRow(
            at=note.at,
            kind="person",
            tone="person",
            text=say("console.timeline_wrote", by=note.by),
            detail=note.text,
            typed=True,
        )
    yield from (_record(record, detail.incident) for record in detail.records if _is_shown(record))
    for sent in detail.messages:
        parts = [say(f"console.delivery_{sent.state}"), sent.reference, sent.error]
        if sent.channels:
            parts = [] if sent.state == "listed" else parts
            parts += [_delivery_words(delivery) for delivery in sent.channels]
        kind = "page" if sent.message.page else sent.kind
        failed = sent.error or any(delivery.error and delivery.state != "sent" for delivery in sent.channels)
        yield TimelineRow(
            at=sent.at,
            kind="message",
            tone="bad" if failed else "plain",
            text=say(f"console.timeline_{kind}_of", title=sent.message.title),
            detail=joined(filter(None, parts), "stop"),
        )


def _delivery_words(delivery: ChannelDelivery) -> str:
    state = say(f"console.message_{delivery.state}")
    if delivery.error and delivery.state != "sent":
        state = words.bracketed(state, delivery.error)
    return words.labelled(delivery.channel, state)


def _is_shown(record: AuditRecord) -> bool:
    by_person = record.actor != "healer"
    return not record.verb.startswith(_SHOWN_ELSEWHERE) and (by_person or record.verb.startswith(_OWN))


def _record(record: AuditRecord, incident: Incident) -> TimelineRow:
    ours = record.actor == "healer"
    reason = str(record.data.get("reason") or record.data.get("why") or "")
    # A record has plain text; the incident has the same as a sentence.
    sentences: dict[str, str] = {
        sentence: sentence for sentence in (incident.title, incident.closed_why) if sentence
    }
    return TimelineRow(
        at=record.at,
        kind="healer" if ours else "person",
        tone="plain" if ours else "person",
        text=words.labelled(record.actor, record.verb.replace(".", " ").replace("_", " ")),
        detail=sentences.get(reason, reason),
        typed=not ours and bool(record.data.get("reason")),
    )
