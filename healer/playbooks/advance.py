"""`advance`: from a run's log to its next intent. Pure: the log alone tells where a run stands."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

import msgspec

from healer.model import LogEntry, Playbook, Step, StepEvent

#: Pause before attempt n+1: 1 s, 2 s, 4 s …, at most this.
BACK_OFF_MAX_S = 60.0

_OVER = frozenset({StepEvent.done, StepEvent.skipped})


class Do(msgspec.Struct, frozen=True, kw_only=True):
    """Do this step now. `fresh` is False when it was started before: look first whether it is done."""

    step: Step
    key: str
    item: str | None
    attempt: int
    fresh: bool


class Sleep(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to do before `until`; None: until somebody or something wakes the run."""

    until: datetime | None
    key: str
    why: str


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Stuck: a person must answer. `question` says exactly where it stands."""

    key: str
    question: str


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """This step's `when` is not met: note it, and go on."""

    step: Step
    key: str
    why: str


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    why: str


Intent = Do | Sleep | Ask | Skip | Finish


def advance(playbook: Playbook, log: Sequence[LogEntry], now: datetime) -> Intent:
    """The next intent of a run with this log.

    Steps go in order. A step `for_each` has one part per job of the list that the step `check: jobs_hit`
    wrote; a part that waits does not keep the others back.
    """
    last = {entry.step: entry for entry in log}
    over = next((one for one in last.values() if one.event in _OVER and one.data.get("ends_run")), None)
    if over is not None:
        return Finish(why=over.text)
    for step in playbook.steps:
        if step.when is not None and not _is_met(step.when, last):
            if step.id not in last:
                return Skip(step=step, key=step.id, why=f"only when {step.when.replace('.', ' ')}")
            continue
        intents = [_part(step, key, item, last.get(key), now) for key, item in _parts(step, log)]
        ready = next((one for one in intents if isinstance(one, Do)), None)
        if ready is not None:
            return ready
        asks = next((one for one in intents if isinstance(one, Ask)), None)
        if asks is not None:
            return asks
        sleeps = [one for one in intents if isinstance(one, Sleep)]
        if sleeps:
            timed = [one for one in sleeps if one.until is not None]
            return min(timed, key=lambda one: one.until or now) if timed else sleeps[0]
    return Finish(why="all steps are done")


def _is_met(when: str, last: Mapping[str, LogEntry]) -> bool:
    """Whether the step named before the dot ended as the word after it says."""
    step, _, wanted = when.partition(".")
    return outcome(last.get(step)) == wanted


def outcome(last: LogEntry | None) -> str | None:
    """`passed` or `failed` by the step's last entry; None while it has not ended, and when it was skipped.

    `failed` is an answer: it was looked, and it is not well. A step that could not be done asks a person.
    """
    if last is None or last.event is not StepEvent.done:
        return None
    return "failed" if last.data.get("passed") is False else "passed"


def stuck_at(playbook: Playbook, log: Sequence[LogEntry], now: datetime) -> list[str]:
    """The keys of all parts that ask a person: what a retry begins again."""
    last = {entry.step: entry for entry in log}
    parts = [(step, key, item) for step in playbook.steps for key, item in _parts(step, log)]
    return [key for step, key, item in parts if isinstance(_part(step, key, item, last.get(key), now), Ask)]


def _parts(step: Step, log: Sequence[LogEntry]) -> list[tuple[str, str | None]]:
    if step.for_each is None:
        return [(step.id, None)]
    return [(f"{step.id}:{job}", job) for job in JOB_LISTS[step.for_each](log)]


def jobs_hit(log: Sequence[LogEntry]) -> dict[str, int]:
    """Jobs that were at work when the list was taken, with their restart counts then."""
    return _listed(log, "jobs")


def jobs_crashed(log: Sequence[LogEntry]) -> dict[str, int]:
    """Jobs that a fault had ended before anything was done for them: when the list was taken, or by the time
    that their requeue came."""
    known = jobs_hit(log)
    late = {
        job: known[job]
        for entry in log
        if entry.data.get("crashed") and (job := entry.step.partition(":")[2]) in known
    }
    return _listed(log, "crashed") | late


def jobs_all(log: Sequence[LogEntry]) -> dict[str, int]:
    return jobs_hit(log) | jobs_crashed(log)


#: What `for_each` may name.
JOB_LISTS = {"jobs_hit": jobs_hit, "jobs_crashed": jobs_crashed, "jobs_all": jobs_all}


def _listed(log: Sequence[LogEntry], name: str) -> dict[str, int]:
    for entry in reversed(log):
        if entry.event is StepEvent.done and "jobs" in entry.data:
            return {str(job): int(restarts) for job, restarts in entry.data.get(name, {}).items()}
    return {}


def _part(step: Step, key: str, item: str | None, last: LogEntry | None, now: datetime) -> Intent | None:
    """What this part wants; None when it is over."""
    if last is None:
        return Do(step=step, key=key, item=item, attempt=1, fresh=True)
    if last.event in _OVER:
        return None
    if last.event is StepEvent.retry:
        return Do(step=step, key=key, item=item, attempt=1, fresh=False)
    if last.event is StepEvent.started:
        return Do(step=step, key=key, item=item, attempt=last.attempt, fresh=False)
    if last.event in {StepEvent.waiting, StepEvent.held}:
        return _waiting(step, key, item, last, now)
    if last.event is StepEvent.failed:
        return _failed(step, key, item, last, now)
    return Ask(key=key, question=f"Step {key} was {last.event}: {last.text}")


def _waiting(step: Step, key: str, item: str | None, last: LogEntry, now: datetime) -> Intent:
    wake = last.data.get("wake_at")
    if wake is None:
        return Sleep(until=None, key=key, why=last.text)
    until = datetime.fromisoformat(wake)
    if until > now:
        return Sleep(until=until, key=key, why=last.text)
    return Do(step=step, key=key, item=item, attempt=last.attempt, fresh=False)


def _failed(step: Step, key: str, item: str | None, last: LogEntry, now: datetime) -> Intent:
    if last.attempt > step.retries or last.data.get("final"):
        title = step.title or step.id
        return Ask(
            key=key,
            question=f"{title} did not work after {last.attempt} attempt(s): {last.text} "
            "Mend it and retry, or cancel.",
        )
    back_off_s = min(BACK_OFF_MAX_S, 2.0 ** (last.attempt - 1))
    until = last.at + timedelta(seconds=back_off_s)
    if until > now:
        return Sleep(until=until, key=key, why=f"attempt {last.attempt} failed: {last.text}")
    return Do(step=step, key=key, item=item, attempt=last.attempt + 1, fresh=False)
