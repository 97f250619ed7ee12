"""Runs: their steps as one row each, and what a run wants from a person."""

from datetime import datetime

import msgspec

from healer.console import words
from healer.console.views import Shown
from healer.decisions import waits_for_second
from healer.model import ENDED_RUN_STATES, AnswerKind, Decision, LogEntry, Run, RunState, StepEvent
from healer.playbooks import UNDO, entries_by_step
from healer.ports.answers import RunRecord
from healer.text import Said, joined, quoted, say

RUN_WORDS = {state: state.value for state in RunState} | {
    RunState.waiting_approval: say("console.runs_waits_for_approval"),
    RunState.held: say("console.runs_held_by_guard"),
}

EVENT_WORDS = {event: event.value for event in StepEvent} | {
    StepEvent.waiting: "waits",
    StepEvent.retry: say("console.runs_tries_again"),
}


def steps(run: Run, log: tuple[LogEntry, ...], start: datetime) -> list[Shown]:
    """In the order in which the steps first appear, the log of each folded into one row. `start` is what
    offsets count from; `took` is empty while the step has not ended."""
    over = run.state in ENDED_RUN_STATES
    rows: list[Shown] = []
    for key, entries in entries_by_step(log).items():
        first, last = entries[0], entries[-1]
        ended = last.event not in (StepEvent.started, StepEvent.waiting, StepEvent.held, StepEvent.retry)
        # A run that was rolled back or taken over leaves such a step behind: nothing waits in it any more.
        left = over and last.event in (StepEvent.waiting, StepEvent.retry)
        text = next((entry.text for entry in reversed(entries) if entry.text), "")
        rows.append(
            Shown(
                key=key,
                name=_name(key),
                event=StepEvent.skipped if left else last.event,
                word=say("console.runs_not_finished") if left else EVENT_WORDS[last.event],
                attempt=max(entry.attempt for entry in entries),
                at=first.at,
                offset=words.offset(first.at, start),
                took=words.span((last.at - first.at).total_seconds()) if ended and last is not first else "",
                text=text,
            )
        )
    return rows


def log_rows(log: tuple[LogEntry, ...]) -> list[Shown]:
    """Each entry, and its day where that is another than of the entry before."""
    days = ["", *(words.day(entry.at) for entry in log)]
    return [
        Shown(entry=entry, day=day if day != before else "")
        for entry, before, day in zip(log, days, days[1:], strict=False)
    ]


def _name(key: str) -> Said:
    """The names of a playbook's steps are in no language."""
    if key == UNDO:
        return say("console.runs_take_back")
    head, _, step = key.partition(":")
    return say("console.runs_take_back_step", step=step) if head == UNDO else quoted(key)


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run for a list or the top of its page. `target` is the node or `job 4711`."""

    run: Run
    title: str
    target: str
    word: str
    tone: str
    why: str
    asks: bool


def target(run: Run) -> str:
    return run.node or (say("console.runs_job", job=run.job) if run.job else run.cluster)


def title_of(run: Run) -> Said:
    return joined((run.playbook, target(run)), "space")


_TONES = {
    RunState.stuck: "bad",
    RunState.waiting_approval: "ask",
    RunState.proposed: "ask",
    RunState.held: "warn",
    RunState.running: "live",
    RunState.waiting: "live",
    RunState.done: "good",
}


def run_row(run: Run, now: datetime) -> RunRow:
    word = quoted(RUN_WORDS[run.state])
    return RunRow(
        run=run,
        title=title_of(run),
        target=target(run),
        word=say("console.runs_shadow", word=word) if run.shadow else word,
        tone=_TONES.get(run.state, "plain"),
        why=why(run, now),
        asks=asks(run),
    )


def asks(run: Run) -> bool:
    """A person must do something before this run continues (a held run may continue by itself)."""
    return not run.shadow and (
        run.state in (RunState.waiting_approval, RunState.proposed, RunState.stuck)
        or waits_for_second(run)
        or (run.state is RunState.waiting and bool(run.question))
    )


def why(run: Run, now: datetime) -> str:
    """One sentence: what the run waits for. Empty if it waits for nothing."""
    if run.question and run.state is not RunState.done:
        return run.question
    if run.state is RunState.waiting_approval:
        if run.approve_until is None:
            return say("console.runs_waits_until_person_approves")
        if run.approve_until <= now:
            return say("console.runs_time_approve_ended_healer_does", at=words.utc(run.approve_until))
        return say(
            "console.runs_can_be_approved_until",
            at=words.utc(run.approve_until),
            ago=words.ago(run.approve_until, now),
        )
    if run.state is RunState.proposed:
        return say("console.runs_only_suggestion_rule_mode", rule=run.rule, mode=quoted(run.mode.value))
    if run.state is RunState.waiting and run.wake_at:
        return say("console.runs_looks_again", ago=words.ago(run.wake_at, now))
    return ""


def guards_summary(decision: Decision) -> str:
    """`16 guards asked: slots holds` or `16 guards asked, all allow`."""
    if not decision.answers:
        return ""
    against = [answer for answer in decision.answers if answer.kind is not AnswerKind.allow]
    asked = say("console.runs_asked", counted=words.counted(len(decision.answers), "guard"))
    if not against:
        return say("console.runs_all_allow", asked=asked)
    answers = [
        say(f"console.guard_{answer.kind}s", guard=say(f"words.guard_{answer.guard}")) for answer in against
    ]
    return say("words.labelled", label=asked, text=joined(answers, "comma"))


def last_decision(detail: RunRecord) -> Decision | None:
    return detail.decisions[-1] if detail.decisions else None
