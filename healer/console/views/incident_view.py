"""One incident as its page, its report and lists show it; what is left for a person, most pressing first."""

from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from healer import model
from healer.console import words
from healer.console.views import Shown
from healer.console.views.buttons import (
    Button,
    acknowledge_button,
    may_act,
    may_respond,
    nothing_bars,
    quiet_buttons,
    resume_button,
    review_buttons,
    run_buttons,
)
from healer.console.views.fleet_view import VERDICT_RANK
from healer.console.views.runs_view import asks, run_row, steps
from healer.console.views.timeline_view import timeline
from healer.console.words import listed, plain
from healer.engine.records import IncidentRecord
from healer.incidents.impact import loss_text, total_loss_text
from healer.incidents.incident_verdict import certainty_text, place, ruled_out_text
from healer.model import (
    ENDED_RUN_STATES,
    AnswerKind,
    Component,
    Incident,
    IncidentVerdict,
    Role,
    Run,
    RunState,
    SlurmJob,
    SlurmNode,
    StepEvent,
    Verb,
)
from healer.model.incident import Similarity
from healer.model.slurm import SLURM, is_ours
from healer.ports.answers import RunRecord, Standing
from healer.text import Said, joined, name_some, quoted, say, unstopped

#: What a step does, where its name is that.
_VERBS = frozenset(Verb)


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is left for a person. `tone` is ask, warn, bad or plain."""

    tone: str
    text: str
    detail: str = ""
    buttons: tuple[Button, ...] = ()


def left_for_you(
    detail: IncidentRecord,
    node: SlurmNode | None,
    role: Role,
    now: datetime,
    bars: Callable[[Run], Said | None] = nothing_bars,
) -> list[Left]:
    incident = detail.incident
    left = [found for run in detail.runs if (found := _asked(run, detail, role, now, bars)) is not None]
    if incident.known_bad_in_service and incident.is_open:
        left.append(
            Left(
                tone="bad",
                text=_known_bad(incident),
                detail=say(
                    "console.incident_new_jobs_may_come_there", why_in_service=_why_in_service(detail)
                ),
            )
        )
    if incident.owner and incident.is_open:
        left.append(_owned(incident, incident.owner, now))
    left += _return(detail, node, role)
    if not may_respond(role):
        return left
    if incident.is_open and not incident.acknowledged_by:
        acknowledge = (acknowledge_button(incident),)
        left.append(
            Left(
                tone="plain",
                text=say("console.incident_not_acknowledged"),
                buttons=acknowledge,
            )
        )
    if not incident.is_open and incident.review is None:
        left.append(
            Left(
                tone="plain",
                text=say("console.incident_was_this_true_fault"),
                detail=say("console.incident_answer_counts_for_precision_rule", rule=incident.rule),
                buttons=tuple(review_buttons(incident)),
            )
        )
    return left


def _asked(
    record: RunRecord, detail: IncidentRecord, role: Role, now: datetime, bars: Callable[[Run], Said | None]
) -> Left | None:
    """What the run wants from a person; None if it continues, or has ended."""
    run = record.run
    if run.shadow or run.state in ENDED_RUN_STATES or not (asks(run) or run.state is RunState.held):
        return None
    row = run_row(run, now)
    return Left(
        tone="bad" if run.state is RunState.stuck else "ask" if asks(run) else "warn",
        text=say("console.incident_run_is", title=row.title, word=quoted(row.word)),
        detail=row.why or _held_why(record, detail),
        buttons=run_buttons(run, role, bars),
    )


def _owned(incident: Incident, owner: str, now: datetime) -> Left:
    age = joined(("", words.ago(incident.owner_since, now)), "space") if incident.owner_since else ""
    if owner == SLURM.name:
        text = say("console.incident_slurm_itself_took_out", node=incident.root.node, age=age)
        then = say("console.incident_person_may_have_healer_test")
    else:
        text = say("console.incident_drained_owns", owner=owner, node=incident.root.node, age=age)
        then = say("console.incident_healer_never_lifts_drain_others")
    return Left(tone="plain", text=text, detail=then)


def _known_bad(incident: Incident) -> str:
    bad = incident.bad_nodes
    if len(bad) == 1:
        return say("console.incident_known_bad_still_service", bad=bad[0])
    return say("console.incident_nodes_are_known_bad_still", bad=len(bad), names=name_some(bad, 5))


def _why_in_service(detail: IncidentRecord) -> str:
    stuck = any(run.run.state is RunState.stuck and not run.run.shadow for run in detail.runs)
    return (
        say("console.incident_healer_could_not_drain")
        if stuck
        else say("console.incident_guard_keeps_healer_from_draining")
    )


def _return(detail: IncidentRecord, node: SlurmNode | None, role: Role) -> list[Left]:
    """healer's own drain is in place and no run works on the node: it waits for a person."""
    incident = detail.incident
    busy = any(_works(run) for run in detail.runs)
    if node is None or busy or not node.drain or not is_ours(node.reason):
        return []
    if f"inc:{incident.short_id}" not in node.reason:
        return []
    return [
        Left(
            tone="ask",
            text=say("console.incident_stays_drained_until_repaired", name=node.name),
            detail=(
                say("console.incident_healer_goes_with_repair_by")
                if any(run.run.wake_at is not None and not run.run.shadow for run in detail.runs)
                else say("console.incident_resume_when_healer_then_watches")
            ),
            buttons=(resume_button(incident, node.name),) if may_act(role) else (),
        )
    ]


def _works(record: RunRecord) -> bool:
    """A run that continues by itself. One that waits on the drained node may be taken over."""
    run = record.run
    return not run.shadow and run.state not in {*ENDED_RUN_STATES, RunState.waiting}


def _held_why(run: RunRecord, detail: IncidentRecord) -> str:
    """The run's own last message, else that of the guard that holds it."""
    if run.log and run.log[-1].text:
        return run.log[-1].text
    decisions = [
        decision
        for decision in (*detail.decisions, *run.decisions)
        if decision.run in (None, run.run.id) and decision.guard
    ]
    for decision in reversed(decisions):
        for answer in decision.answers:
            if answer.guard is decision.guard:
                return say("console.incident_guard", guard=answer.guard.value, why=answer.why)
        return decision.why
    return ""


#: What a similar incident shares with this one.
SAME_WORDS = {same.value: say(f"console.same_{same}") for same in Similarity}


def affected(parts: tuple[Component, ...], show: int = 8) -> str:
    """`gpu0015 GPU 0 to 3, gpu0016 and 60 more`: one entry per node, its GPUs together."""
    gpus: dict[str, set[int]] = {}
    for part in parts:
        found = gpus.setdefault(part.node or str(part), set())
        if part.gpu is not None:
            found.add(part.gpu)
    named = [
        say("console.incident_gpu", name=name, numbers=words.numbers(sorted(found))) if found else name
        for name, found in gpus.items()
    ]
    return name_some(named, show)


#: Nodes and jobs that the page names; a fault of the fleet has a thousand.
NODES_SHOWN = 8
JOBS_SHOWN = 50


def verdict_view(verdict: IncidentVerdict) -> Shown:
    """`nodes` are names with their verdict; `why` and `ruled_out` sentences; `retest` what decides for
    good."""
    worst_first = sorted(verdict.nodes.items(), key=lambda pair: (-VERDICT_RANK[pair[1]], pair[0]))
    return Shown(
        sentence=verdict.sentence,
        sure=certainty_text(verdict.certainty),
        cause=verdict.cause.value,
        nodes=tuple((name, verdict_.value) for name, verdict_ in worst_first[:NODES_SHOWN]),
        more_nodes=max(0, len(worst_first) - NODES_SHOWN),
        why=verdict.why,
        ruled_out=tuple(ruled_out_text(ruled_out) for ruled_out in verdict.set_aside),
        retest=verdict.retest.text if verdict.retest else "",
    )


def view_incident(
    detail: IncidentRecord,
    standing: Standing | None,
    role: Role,
    now: datetime,
    *,
    me: str = "",
    bars: Callable[[Run], Said | None] = nothing_bars,
) -> Shown:
    """`standing` gives Slurm's view of the node and of the jobs; without it they stay unknown. `me`: who
    looks at the page."""
    incident = detail.incident
    snapshot = standing.snapshot if standing else None
    node = snapshot.nodes.get(incident.root.node) if snapshot and incident.root.node else None
    hit = {impact.job: impact for impact in incident.hit}
    jobs = tuple(
        _job(job, snapshot.jobs if snapshot else {}, detail.runs, hit.get(job))
        for job in sorted(incident.jobs_hit)[:JOBS_SHOWN]
    )
    return Shown(
        incident=incident,
        place=place(incident.root),
        since=incident.opened,
        verdict=verdict_view(detail.verdict),
        jobs=jobs,
        more_jobs=max(0, len(incident.jobs_hit) - JOBS_SHOWN),
        lost=total_loss_text(incident.hit),
        jobs_note=_jobs_note(incident, has_runs=bool(detail.runs)),
        runs=tuple(
            Shown(row=run_row(run.run, now), steps=tuple(steps(run.run, run.log, incident.opened)))
            for run in detail.runs
        ),
        left=tuple(left_for_you(detail, node, role, now, bars)),
        quiet=tuple(quiet_buttons(incident, role, standing.open_incidents if standing else (), me=me)),
        slurm=node,
        affected=affected(incident.affected),
    )


def _jobs_note(incident: Incident, *, has_runs: bool) -> str:
    if incident.jobs_hit_final:
        return say("console.incident_listed_after_drain_was_read")
    if incident.jobs_hit and has_runs:  # without a run no drain will make it final
        return say("console.incident_best_guess_so_far_list")
    return ""


def _job(
    job: str, in_slurm: Mapping[str, SlurmJob], runs: tuple[RunRecord, ...], hit: model.JobHit | None
) -> Shown:
    """A job that the incident hit, as Slurm knows it now; of one that it no longer knows all but the id may
    be empty. `gpus` it held when it was hit, and its lost work, in words; `done`, `outcome` and `owner_note`:
    what runs did to it by their logs, and the notice to its owner in Slurm."""
    done = sentence = owner_note = ""
    for run in runs:
        for entry in run.log:
            if not (entry.step.endswith(f":{job}") or run.run.job == job):
                continue
            if entry.data.get("verb") == Verb.notify:
                owner_note = (
                    say("console.incident_owner_notified_in_slurm")
                    if entry.event is StepEvent.done
                    else entry.text
                )
            elif entry.text or not done:
                step = entry.step.partition(":")[0]
                named = say(f"words.verb_{step}") if step in _VERBS else quoted(step)
                done, sentence = joined((named, quoted(entry.event.value)), "space"), entry.text
    if sentence and owner_note:
        sentence = say("words.stopped", text=unstopped(sentence))  # another sentence follows
    shown = in_slurm.get(job)
    state = "+".join((shown.state, *shown.flags)) if shown else ""
    if shown and shown.reason and shown.state == "PENDING":
        state = f"{state} ({shown.reason})"
    nodes = words.counted(len(shown.nodes), "node") if shown and shown.nodes else ""
    return Shown(
        id=job,
        is_in_slurm=shown is not None,
        name=shown.name if shown else "",
        user=shown.user if shown else hit.user if hit else "",
        partition=shown.partition if shown else "",
        state=state,
        nodes=words.bracketed(nodes, name_some(shown.nodes, 3)) if shown and nodes else "",
        restarts=shown.restarts if shown else 0,
        gpus=words.counted(hit.gpus, "gpu") if hit and hit.gpus else "",
        lost=loss_text(hit) if hit else "",
        done=done,
        outcome=sentence,
        owner_note=owner_note,
    )


def incident_row(incident: Incident, asking: Mapping[str, Run], now: datetime) -> Shown:
    """`asking`: incident id -> the run that wants a person."""
    run = asking.get(incident.id)
    left, tone = "", "plain"
    if run is not None:
        row = run_row(run, now)
        left, tone = words.labelled(run.playbook, row.word), row.tone
    elif incident.known_bad_in_service and incident.is_open:
        left, tone = say("console.fleet_known_bad_service"), "bad"
    elif incident.owner and incident.is_open:
        left = say("console.incident_owned_by", owner=incident.owner)
    elif incident.is_open and incident.acknowledged_by:
        left = say("console.incident_acknowledged_by", acknowledged_by=incident.acknowledged_by)
    elif not incident.is_open and incident.review:
        left = incident.review.value.replace("_", " ")
    elif not incident.is_open:
        left = say("console.incident_review")
    return Shown(
        incident=incident,
        place=place(incident.root),
        jobs=name_some(incident.jobs_hit, 2),
        left=left,
        tone=tone,
    )


def report(detail: IncidentRecord, now: datetime, translate: Callable[[str], str] = str) -> str:
    """The incident in Markdown. `translate`: to the language of the request."""
    incident = detail.incident
    closed = say("console.no")
    if incident.closed:
        closed = words.labelled(words.utc(incident.closed), incident.closed_why or "")
    similar = [
        f"{other.opened:%Y-%m-%d} {translate(place(other.root))}: {translate(other.ended)}"
        for other in detail.similar
    ]
    verdict = verdict_view(detail.verdict)
    jobs = joined(incident.jobs_hit, "comma") or say("console.none")
    severity = say(
        "console.incident_severity_cause",
        severity=incident.severity.value,
        state=quoted(incident.state.value),
        sure=verdict.sure,
        cause=quoted(verdict.cause),
    )
    lost = total_loss_text(incident.hit) or say("console.incident_not_known")
    lines = [
        f"# {plain(translate(incident.title))}: {translate(place(incident.root))}",
        "",
        plain(translate(verdict.sentence)),
        "",
        translate(say("console.incident_incident_cluster", id=incident.id, cluster=incident.cluster)),
        translate(say("console.incident_rule_fault", rule=incident.rule, fault=incident.fault)),
        translate(severity),
        plain(translate(say("console.incident_opened_closed", at=words.utc(incident.opened), closed=closed))),
        translate(say("console.incident_jobs_hit", jobs_hit=jobs)),
        translate(say("console.incident_lost", total_loss_text=lost)),
        translate(say("console.incident_report_made", at=words.utc(now))),
        *listed(say("console.incident_why"), verdict.why, translate),
        *listed(say("console.incident_set_aside"), verdict.ruled_out, translate),
        *listed(say("console.incident_similar"), similar, translate),
        "",
        translate(say("console.incident_timeline_utc")),
        "",
    ]
    lines += _timeline_lines(detail, translate)
    return "\n".join(lines) + "\n"


def _timeline_lines(detail: IncidentRecord, translate: Callable[[str], str]) -> list[str]:
    lines: list[str] = []
    for row in timeline(detail):
        if row.day:
            lines += [f"### {translate(row.day)}", ""]
        lines.append(
            f"- `{row.clock}` ({translate(row.offset)}) {translate(row.kind)}: {plain(translate(row.text))}"
        )
        if row.line:
            lines += ["", "      " + row.line.replace("\n", " "), ""]
        if row.detail:
            lines.append(f"  {plain(row.detail if row.typed else translate(row.detail))}")
        lines += [
            f"  - {answer.guard}: {translate(answer.kind.value)}. {plain(translate(answer.why))}"
            for answer in row.guards
            if answer.kind is not AnswerKind.allow
        ]
    return lines
