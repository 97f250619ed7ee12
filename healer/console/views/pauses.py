"""The page of pauses: what stands, what it holds up, what stood before, and how to add one."""

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from healer.console import words
from healer.console.views.buttons import Button, InputField, may_act
from healer.console.views.standing import end_pause_button, pause_scope
from healer.decisions.guards import concerns
from healer.model import AuditRecord, GateFacts, Pause, Proposal, Role, Ruleset, Run, RunState, Verb
from healer.ports.callers import Session
from healer.ports.console_answers import Standing

_LASTS = (1, 4, 12, 24, 72, 168)
_USUAL_H = 4


class PauseRow(msgspec.Struct, frozen=True, kw_only=True):
    """A pause that stands. `holds` are runs that a guard holds and that it concerns."""

    pause: Pause
    scope: str
    holds: tuple[Run, ...]
    end: Button | None


class PastPause(msgspec.Struct, frozen=True, kw_only=True):
    """`ended` says how: who ended it and why, or that its time was over."""

    scope: str
    by: str
    reason: str
    since: datetime
    ended_at: datetime | None
    ended: str


def pause_rows(standing: Standing, session: Session, now: datetime) -> list[PauseRow]:
    """Oldest first, as they were set."""
    facts = GateFacts(cluster=standing.cluster, snapshot=standing.snapshot, breaker=standing.breaker)
    held = [run for run in standing.asking if _held(run)]
    return [
        PauseRow(
            pause=one,
            scope=pause_scope(one),
            holds=tuple(run for run in held if concerns(one, _next_step(run), facts, now)),
            end=end_pause_button(one, session),
        )
        for one in standing.pauses
    ]


def _held(run: Run) -> bool:
    """Before its first step, or at one of them."""
    return run.state is RunState.held or (run.state is RunState.running and bool(run.question))


def _next_step(run: Run) -> Proposal:
    """As the gate knows the run; which step it is makes no difference to a pause."""
    return Proposal(
        cluster=run.cluster,
        verb=Verb.drain,
        node=run.node,
        job=run.job,
        rule=run.rule,
        playbook=run.playbook,
    )


def past_pauses(records: Iterable[AuditRecord], stands: Sequence[Pause], now: datetime) -> list[PastPause]:
    """From records `pause.…`, newest first as they come: those that are over."""
    standing = {one.id for one in stands}
    ends: dict[str, AuditRecord] = {}
    found: list[PastPause] = []
    for record in records:
        name = record.subject.partition("/")[2]
        if record.verb == "pause.ended":
            ends.setdefault(name, record)
        elif record.verb == "pause.set" and name not in standing:
            found.append(_past(record, ends.get(name), now))
    return found


def _past(record: AuditRecord, end: AuditRecord | None, now: datetime) -> PastPause:
    pause = msgspec.convert({"id": "", "name": "", **record.data}, Pause)
    if end is not None:
        why = end.data.get("reason") or ""
        ended_at, ended = end.at, f"{end.actor}: {why}" if why else end.actor
    else:
        ended_at = pause.until if pause.until is not None and pause.until <= now else None
        ended = "its time was over" if ended_at else "nobody told"
    return PastPause(
        scope=pause_scope(pause),
        by=record.actor,
        reason=pause.reason,
        since=record.at,
        ended_at=ended_at,
        ended=ended,
    )


def add_buttons(
    standing: Standing, rules: Ruleset, role: Role, now: datetime, *, several: bool = False
) -> tuple[Button, ...]:
    """One for each scope; each asks for what it needs and nothing else. `several`: there are other clusters
    that this person may pause too."""
    if not may_act(role):
        return ()
    cluster = standing.cluster
    known = standing.snapshot.nodes.values() if standing.snapshot else ()
    partitions = sorted({name for node in known for name in node.partitions})
    choices: dict[str, Iterable[str]] = {
        "rule": rules.by_name,
        "playbook": sorted(rules.playbooks),
        "node": (),
        "partition": partitions,
    }
    return (
        _add(cluster, {"scope": "cluster", "name": cluster}, _until(now)),
        *((_add("all clusters", {"scope": "all"}, _until(now)),) if several else ()),
        *(
            _add(f"a {scope}", {"scope": scope, "cluster": cluster}, _which(scope, names), _until(now))
            for scope, names in choices.items()
        ),
    )


def _add(what: str, body: dict[str, str], *fields: InputField) -> Button:
    return Button(
        label=f"Pause {what}",
        action="/api/v1/pauses",
        title=f"Pause healer on {what}",
        effect="Within a second healer starts no step there that takes capacity away. It still detects and "
        "pages; runs that are at work stop before their next step.",
        body=body,
        inputs=fields,
        flat=True,
    )


def _which(scope: str, names: Iterable[str]) -> InputField:
    return InputField(
        name="name", help=words.sentence(scope), default="", required=True, choices=tuple(names)
    )


def _until(now: datetime) -> InputField:
    """Ends on whole minutes: the page is read anew every 20 s, and these with it."""
    start = now.astimezone(UTC).replace(second=0, microsecond=0) + timedelta(minutes=1)
    ends = [(hours, start + timedelta(hours=hours)) for hours in _LASTS]
    return InputField(
        name="until",
        help="Until",
        default=next(f"{end:%Y-%m-%dT%H:%MZ}" for hours, end in ends if hours == _USUAL_H),
        required=False,
        choices=(*(f"{end:%Y-%m-%dT%H:%MZ}" for _, end in ends), ""),
        labels=(
            *(f"{end:%a %H:%M} UTC, in {words.span(hours * 3600.0)}" for hours, end in ends),
            "somebody ends it",
        ),
    )
