"""`advance`: from a run's log to its next intent. Pure: the log alone holds a run's state.

The values that a person gives a playbook are checked against its `inputs` here, and filled into its steps.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from healer.model import Input, InputType, LogEntry, Playbook, Step, StepEvent, Verb
from healer.model.gate import CLOCKS_DIFFER
from healer.playbooks.conditions import StepOutcome, parse, reads, text_of, truth
from healer.text import Said, joined, quoted, say

#: Keys of a run's log that are not steps: the facts of the run, the mark that it is being undone, and what
#: the worker itself saw of a certainly unusable node.
BEGIN, UNDO, UNUSABLE = "begin", "undo", "unusable"
#: In a log entry: the step failed, and the run continues because later steps ask for that (`may_fail`).
GOES_ON = "goes_on"
#: The list of jobs whose restart a person consented to with the run.
AGREED, HIT = "jobs_agreed", "jobs_hit"
#: The wait for the jobs on the node to end.
GOES_ON_WITHOUT = "goes_on_without"
_MOVES = frozenset({Verb.requeue, Verb.shrink})
#: Reserved ids: no step may have one.
RESERVED = frozenset({BEGIN, UNDO, UNUSABLE})

_OVER = frozenset({StepEvent.done, StepEvent.skipped})
_UNDONE = frozenset({StepEvent.undone, StepEvent.skipped})


class Do(msgspec.Struct, frozen=True, kw_only=True):
    """Do this step now. `fresh` is False if it was started before: check first whether it is done."""

    step: Step
    key: str
    item: str | None
    attempt: int
    fresh: bool


class Sleep(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to do before `until`; None: until a person or an event wakes the run."""

    until: datetime | None
    key: str
    why: Said


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Stuck: a person must answer. `question` says exactly where the run is."""

    key: str
    question: Said


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """The step's `when` is not met: log that, and continue."""

    step: Step
    key: str
    why: Said


class RecordFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Log the facts of the run under the key `begin`: conditions and inputs are read only from that entry."""


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """Undo this step; its key in the log is `undo:` and the step's key."""

    step: Step
    key: str
    item: str | None
    attempt: int


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    why: Said
    undone: bool = False


Intent = Do | Sleep | Ask | Skip | Finish | RecordFacts | Undo


def advance(playbook: Playbook, log: Sequence[LogEntry], now: datetime) -> Intent:
    """The next intent of a run with this log.

    Steps run in order. A step with `for_each` has one part per job of the list that the step `check:
    jobs_hit` wrote; a part that waits does not delay the others.
    """
    last = {entry.step: entry for entry in log}
    if UNDO in last:
        return undo_intent(playbook, log, now)
    over = next(
        (entry for entry in last.values() if entry.event in _OVER and entry.data.get("ends_run")), None
    )
    if over is not None:
        return Finish(why=over.text)
    if needs_facts(playbook) and BEGIN not in last:
        return RecordFacts()
    knows = run_facts(log)
    for step in playbook.steps:
        if step.when is not None and not is_met(step.when, last, knows):
            if step.id not in last or last[step.id].event is StepEvent.retry:
                return Skip(step=step, key=step.id, why=_only_when(step.when))
            continue
        wanted = fill_step(step, knows)
        intents = [_part(wanted, key, item, last.get(key), now) for key, item in _parts(wanted, log)]
        ready = next((intent for intent in intents if isinstance(intent, Do)), None)
        if ready is not None:
            return ready
        asks = next((intent for intent in intents if isinstance(intent, Ask)), None)
        if asks is not None:
            return asks
        sleeps = [sleep for sleep in intents if isinstance(sleep, Sleep)]
        if sleeps:
            timed = [sleep for sleep in sleeps if sleep.until is not None]
            return min(timed, key=lambda sleep: sleep.until or now) if timed else sleeps[0]
    return Finish(why=say("playbooks.all_done"))


def _only_when(when: str) -> Said:
    condition = parse(when)
    if isinstance(condition, StepOutcome) and text_of(condition) == when:
        return say(f"playbooks.only_when_{condition.word}", step=condition.step.replace(".", " "))
    return say("playbooks.only_when", condition=when.replace(".", " "))


@lru_cache(maxsize=256)
def _steps_need_facts(steps: tuple[tuple[str | None, tuple[object, ...]], ...]) -> bool:
    return any((when and reads(parse(when))) or any(map(placeholders, values)) for when, values in steps)


def needs_facts(playbook: Playbook) -> bool:
    """A condition, an input or the job list of some step uses the facts of the run."""
    return takes_restarts(playbook) or _steps_need_facts(
        tuple((step.when, tuple(step.input.values())) for step in playbook.steps)
    )


def takes_restarts(playbook: Playbook) -> bool:
    """A person who starts or approves such a run may consent to the restart of jobs on the node."""
    return any(step.for_each == AGREED for step in playbook.steps)


def moves_jobs_at_once(playbook: Playbook, inputs: Mapping[str, Any]) -> bool:
    """Whether the plan takes jobs off the node before it waits for anything except for them to end. Otherwise
    running jobs continue to their end, or to a checkpoint. `inputs`: those that the run was given."""
    knows = {f"input.{name}": field.default for name, field in playbook.inputs.items()}
    knows |= {f"input.{name}": value for name, value in inputs.items()}
    for step in playbook.steps:
        moves = step.do in _MOVES and step.for_each == HIT
        if moves and (step.when is None or is_met(step.when, {}, knows)):
            return True
        if step.wait is not None and step.wait != GOES_ON_WITHOUT:
            return False
    return False


def run_facts(log: Sequence[LogEntry]) -> Mapping[str, Any]:
    """`severity`, `verdict.cause`, `input.x` … as of the start of the run, or of its last update."""
    return next((entry.data["knows"] for entry in reversed(log) if "knows" in entry.data), {})


def is_met(when: str, last: Mapping[str, LogEntry], knows: Mapping[str, Any]) -> bool:
    """The condition is certainly true. `last`: the newest entry of each step."""
    return truth(parse(when), lambda step: outcome(last.get(step)), knows) is True


def outcome(last: LogEntry | None) -> str | None:
    """`passed`, `failed` or `skipped` by the step's last entry; None if it has not ended.

    `failed` is the result of a check that was made. A step that could not be carried out asks a person,
    unless it `may_fail`.
    """
    if last is None or not _is_over(last):
        return None
    if last.event is StepEvent.skipped:
        return "skipped"
    failed = last.event is StepEvent.failed or last.data.get("passed") is False
    return "failed" if failed else "passed"


def _is_over(last: LogEntry) -> bool:
    return last.event in _OVER or (last.event is StepEvent.failed and bool(last.data.get(GOES_ON)))


def stuck_keys(playbook: Playbook, log: Sequence[LogEntry], now: datetime) -> list[str]:
    """The keys of all parts that ask a person, which a retry restarts."""
    last = {entry.step: entry for entry in log}
    if UNDO in last:
        asked = undo_intent(playbook, log, now)
        return [asked.key] if isinstance(asked, Ask) else []
    parts = [(step, key, item) for step in playbook.steps for key, item in _parts(step, log)]
    return [key for step, key, item in parts if isinstance(_part(step, key, item, last.get(key), now), Ask)]


def entries_by_step(log: Sequence[LogEntry]) -> dict[str, list[LogEntry]]:
    """In the order in which the steps first appear; without what conditions rest on, which is no step."""
    found: dict[str, list[LogEntry]] = {}
    for entry in log:
        if entry.step != BEGIN:
            found.setdefault(entry.step, []).append(entry)
    return found


def keys_from_step(playbook: Playbook, log: Sequence[LogEntry], step: str) -> list[str]:
    """The keys that restart when a person continues a run from this step: its own, and those of all later
    steps in the log. Raises ValueError for an unknown step."""
    ids = [each.id for each in playbook.steps]
    if step not in ids:
        raise ValueError(say("playbooks.no_step", playbook=playbook.name, step=step, steps=", ".join(ids)))
    later = ids[ids.index(step) :]
    keys = dict.fromkeys(entry.step for entry in log if entry.step.partition(":")[0] in later)
    return list(keys)


def undo_intent(playbook: Playbook, log: Sequence[LogEntry], now: datetime) -> Undo | Sleep | Ask | Finish:
    """The next intent of an undo, from the last step to the first; a step that was only begun may have been
    done."""
    last = {entry.step: entry for entry in log}
    kept: list[Said] = []
    for step, key, item in reversed(parts_to_undo(playbook, log)):
        undo_key = f"{UNDO}:{key}"
        entry = last.get(undo_key)
        if entry is None or entry.event in {StepEvent.started, StepEvent.retry}:
            attempt = entry.attempt if entry is not None else 1
            return Undo(step=step, key=undo_key, item=item, attempt=attempt)
        if entry.event in _UNDONE:
            kept += [entry.text] if entry.event is StepEvent.skipped else []
            continue
        if entry.event is StepEvent.waiting:
            until = datetime.fromisoformat(entry.data["wake_at"])
            if _sleeps(entry, until, now):
                return Sleep(until=until, key=undo_key, why=entry.text)
            return Undo(step=step, key=undo_key, item=item, attempt=entry.attempt)
        title = say("playbooks.to_take_back", title=quoted(step.title or step.id))
        titled = msgspec.structs.replace(step, title=title)
        paused = _failed(titled, undo_key, item, entry, now)
        if isinstance(paused, Do):
            return Undo(step=step, key=undo_key, item=item, attempt=paused.attempt)
        return paused
    why = last[UNDO].text
    if kept:
        return Finish(why=say("playbooks.undone_but", why=why, kept=joined(kept, "semicolon")), undone=True)
    return Finish(why=say("playbooks.undone", why=why), undone=True)


def parts_to_undo(playbook: Playbook, log: Sequence[LogEntry]) -> list[tuple[Step, str, str | None]]:
    """The parts of steps that changed something, or may have, in the order of their first log entry."""
    steps = {step.id: step for step in playbook.steps if step.do is not None}
    last = {entry.step: entry for entry in log}
    begun = (entry for entry in log if entry.event in {StepEvent.started, StepEvent.done})
    found: dict[str, tuple[Step, str, str | None]] = {}
    left = {key for key, entry in last.items() if entry.event is StepEvent.skipped}
    for entry in begun:
        name, _, item = entry.step.partition(":")
        if (
            name in steps
            and entry.step not in found
            and (entry.step not in left or entry.event is StepEvent.done)
        ):
            found[entry.step] = (fill_step(steps[name], run_facts(log)), entry.step, item or None)
    return list(found.values())


def _parts(step: Step, log: Sequence[LogEntry]) -> list[tuple[str, str | None]]:
    if step.for_each is None:
        return [(step.id, None)]
    return [(f"{step.id}:{job}", job) for job in JOB_LISTS[step.for_each](log)]


def jobs_hit(log: Sequence[LogEntry]) -> dict[str, int]:
    """Jobs that were running when the list was made -> their restart counts then."""
    return _listed(log, "jobs")


def jobs_crashed(log: Sequence[LogEntry]) -> dict[str, int]:
    """Jobs that a fault ended before healer acted on them: when the list was made, or before their
    requeue."""
    hit = jobs_hit(log)
    late = {
        job: hit[job]
        for entry in log
        if entry.data.get("crashed") and (job := entry.step.partition(":")[2]) in hit
    }
    return _listed(log, "crashed") | late


def jobs_all(log: Sequence[LogEntry]) -> dict[str, int]:
    return jobs_hit(log) | jobs_crashed(log)


def jobs_agreed(log: Sequence[LogEntry]) -> dict[str, int]:
    """Jobs whose restart a person consented to with the run -> the restart count of that consent. A job that
    was restarted since is left out."""
    agreed = {job: count for entry in log for job, count in entry.data.get("restart", {}).items()}
    now = jobs_all(log)
    return {str(job): int(count) for job, count in agreed.items() if now.get(job, count) == count}


#: The lists that `for_each` may name.
JOB_LISTS = {HIT: jobs_hit, "jobs_crashed": jobs_crashed, "jobs_all": jobs_all, AGREED: jobs_agreed}


def _listed(log: Sequence[LogEntry], name: str) -> dict[str, int]:
    for entry in reversed(log):
        if entry.event is StepEvent.done and "jobs" in entry.data:
            return {str(job): int(restarts) for job, restarts in entry.data.get(name, {}).items()}
    return {}


def _part(step: Step, key: str, item: str | None, last: LogEntry | None, now: datetime) -> Intent | None:
    """The intent of this part; None when it is over."""
    if last is None:
        return Do(step=step, key=key, item=item, attempt=1, fresh=True)
    if _is_over(last):
        return None
    if last.event is StepEvent.retry:
        return Do(step=step, key=key, item=item, attempt=1, fresh=False)
    if last.event is StepEvent.started:
        return Do(step=step, key=key, item=item, attempt=last.attempt, fresh=False)
    if last.event in {StepEvent.waiting, StepEvent.held}:
        return _waiting(step, key, item, last, now)
    if last.event is StepEvent.failed:
        return _failed(step, key, item, last, now)
    question = say("playbooks.step_was", step=key, event=quoted(str(last.event)), text=last.text)
    return Ask(key=key, question=question)


def _waiting(step: Step, key: str, item: str | None, last: LogEntry, now: datetime) -> Intent:
    wake = last.data.get("wake_at")
    if wake is None:
        return Sleep(until=None, key=key, why=last.text)
    until = datetime.fromisoformat(wake)
    if _sleeps(last, until, now):
        return Sleep(until=until, key=key, why=last.text)
    return Do(step=step, key=key, item=item, attempt=last.attempt, fresh=False)


def _sleeps(last: LogEntry, until: datetime, now: datetime) -> bool:
    """Whether `until` has not come. An entry dated later than now was written by a clock that was ahead."""
    return now < until and last.at <= now + CLOCKS_DIFFER


def _failed(step: Step, key: str, item: str | None, last: LogEntry, now: datetime) -> Do | Sleep | Ask:
    if last.attempt > step.retries or last.data.get("final"):
        title = quoted(step.title or step.id)
        question = say("playbooks.did_not_work", title=title, count=last.attempt, text=last.text)
        return Ask(key=key, question=question)
    back_off_s = min(step.back_off_max_s, step.back_off_s * 2.0 ** min(last.attempt - 1, 30))
    until = last.at + timedelta(seconds=back_off_s)
    if _sleeps(last, until, now):
        why = say("playbooks.attempt_failed", attempt=last.attempt, text=last.text)
        return Sleep(until=until, key=key, why=why)
    return Do(step=step, key=key, item=item, attempt=last.attempt + 1, fresh=False)


LONGEST_TEXT = 256
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
#: A year: no moment of a run is further ahead.
LONGEST_S = 365 * 86400
_DURATION = re.compile(r"(\d{1,9})([smhd]?)")
_PLACE = re.compile(r"\{input\.(\w+)\}")


class InputInvalid(ValueError):
    """`name`: the invalid input."""

    def __init__(self, name: str, text: Said) -> None:
        super().__init__(text)
        self.name = name


def read_inputs(playbook: Playbook, given: Mapping[str, Any]) -> dict[str, str | int | bool]:
    """All inputs of a run: the given value, else the default. A duration is in whole seconds.

    Texts are parsed by the input's type, so that a command line can give any of them. Raises InputInvalid.
    """
    for name in given:
        if name not in playbook.inputs:
            takes = ", ".join(playbook.inputs) or say("playbooks.takes_none")
            wrong = say("playbooks.no_input", playbook=playbook.name, name=name, takes=takes)
            raise InputInvalid(name, wrong)
    found: dict[str, str | int | bool] = {}
    for name, spec in playbook.inputs.items():
        value = given.get(name)
        value = spec.default if value is None else value
        if value is not None:
            found[name] = read_value(name, spec, value)
        elif spec.required:
            help_ = quoted(spec.help or spec.type)
            raise InputInvalid(name, say("playbooks.needs", playbook=playbook.name, name=name, help=help_))
    return found


def read_value(name: str, spec: Input, value: Any) -> str | int | bool:
    """The value parsed by the input's type. Raises InputInvalid."""
    if spec.type is InputType.bool:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise InputInvalid(name, say("playbooks.not_bool", name=name))
    if spec.type is InputType.int:
        if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,15}", str(value)):
            raise InputInvalid(name, say("playbooks.not_int", name=name))
        return int(value)
    if spec.type is InputType.duration:
        found = _DURATION.fullmatch(str(value)) if not isinstance(value, bool) else None
        if found is None:
            raise InputInvalid(name, say("playbooks.not_duration", name=name))
        seconds = int(found[1]) * _SECONDS[found[2] or "s"]
        if seconds > LONGEST_S:
            raise InputInvalid(name, say("playbooks.duration_too_long", name=name))
        return seconds
    if spec.type is InputType.choice:
        if value not in spec.choices:
            choices = ", ".join(spec.choices)
            raise InputInvalid(name, say("playbooks.not_choice", name=name, choices=choices))
        return str(value)
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not value.isprintable():
        raise InputInvalid(name, say("playbooks.not_line", name=name, most=LONGEST_TEXT))
    return value


def placeholders(value: Any) -> list[str]:
    """Names of the inputs in a value of a step's `input`."""
    return _PLACE.findall(value) if isinstance(value, str) else []


def sole_placeholder(value: Any) -> str | None:
    """`x` for a value that is `{input.x}` alone, which keeps the input's type; else None."""
    found = _PLACE.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found is not None else None


def fill_step(step: Step, knows: Mapping[str, Any]) -> Step:
    """The step with `{input.x}` replaced; an unset input without a default is left out."""
    if not any(placeholders(value) for value in step.input.values()):
        return step
    given = {name.removeprefix("input."): value for name, value in knows.items() if name.startswith("input.")}
    return msgspec.structs.replace(step, input=fill_values(step.input, given))


def fill_values(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A step's `input` with its placeholders filled; without values that are only an unset placeholder."""
    found = {name: _fill_value(value, given) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def _fill_value(value: Any, given: Mapping[str, Any]) -> Any:
    if (place := sole_placeholder(value)) is not None:
        return given.get(place)
    return _PLACE.sub(lambda found: _text(given.get(found[1])), value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
