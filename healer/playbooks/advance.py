"""`advance`: from a run's log to its next intent. Pure: the log alone says where a run is.

What a person gives a playbook at its start is checked against its `inputs` here, and put where steps read it.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any

import msgspec

from healer.model import Input, InputType, LogEntry, Playbook, Step, StepEvent
from healer.playbooks.conditions import parse, reads, truth

#: Keys of a run's log that no step has: what the run knows, and that it is being undone.
BEGIN, UNDO = "begin", "undo"
#: In a line of the log: its step could not be done, and the steps behind it ask for that (`may_fail`).
GOES_ON = "goes_on"
#: The list of jobs whose restart a person agreed to with the run.
AGREED = "jobs_agreed"
#: Steps may not be called so.
RESERVED = frozenset({BEGIN, UNDO})

_OVER = frozenset({StepEvent.done, StepEvent.skipped})
_UNDONE = frozenset({StepEvent.undone, StepEvent.skipped})


class Do(msgspec.Struct, frozen=True, kw_only=True):
    """Do this step now. `fresh` is False when it was started before: look first whether it is done."""

    step: Step
    key: str
    item: str | None
    attempt: int
    fresh: bool


class Sleep(msgspec.Struct, frozen=True, kw_only=True):
    """Nothing to do before `until`; None: until a person or an event wakes the run."""

    until: datetime | None
    key: str
    why: str


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """Stuck: a person must answer. `question` says exactly where it is."""

    key: str
    question: str


class Skip(msgspec.Struct, frozen=True, kw_only=True):
    """This step's `when` is not met: note it, and go on."""

    step: Step
    key: str
    why: str


class Know(msgspec.Struct, frozen=True, kw_only=True):
    """Write down, at the key `begin`, what the run knows: conditions and inputs rest on that line alone."""


class Undo(msgspec.Struct, frozen=True, kw_only=True):
    """Take back what this step did; its key in the log is `undo:` and that of the step."""

    step: Step
    key: str
    item: str | None
    attempt: int


class Finish(msgspec.Struct, frozen=True, kw_only=True):
    why: str
    #: It was taken back.
    undone: bool = False


Intent = Do | Sleep | Ask | Skip | Finish | Know | Undo


def advance(playbook: Playbook, log: Sequence[LogEntry], now: datetime) -> Intent:
    """The next intent of a run with this log.

    Steps go in order. A step `for_each` has one part per job of the list that the step `check: jobs_hit`
    wrote; a part that waits does not keep the others back.
    """
    last = {entry.step: entry for entry in log}
    if UNDO in last:
        return undoing(playbook, log, now)
    over = next((one for one in last.values() if one.event in _OVER and one.data.get("ends_run")), None)
    if over is not None:
        return Finish(why=over.text)
    if asks_for_facts(playbook) and BEGIN not in last:
        return Know()
    knows = known(log)
    for step in playbook.steps:
        if step.when is not None and not is_met(step.when, last, knows):
            if step.id not in last or last[step.id].event is StepEvent.retry:
                return Skip(step=step, key=step.id, why=f"only when {step.when.replace('.', ' ')}")
            continue
        wanted = filled(step, knows)
        intents = [_part(wanted, key, item, last.get(key), now) for key, item in _parts(wanted, log)]
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


@lru_cache(maxsize=256)
def _asks_for_facts(steps: tuple[tuple[str | None, tuple[object, ...]], ...]) -> bool:
    return any((when and reads(parse(when))) or any(map(places_of, values)) for when, values in steps)


def asks_for_facts(playbook: Playbook) -> bool:
    """A condition, an input of a step or its list of jobs rests on what the run knows."""
    return takes_restarts(playbook) or _asks_for_facts(
        tuple((step.when, tuple(step.input.values())) for step in playbook.steps)
    )


def takes_restarts(playbook: Playbook) -> bool:
    """Whoever starts or approves a run of it may agree to the restart of jobs on the node."""
    return any(step.for_each == AGREED for step in playbook.steps)


def known(log: Sequence[LogEntry]) -> Mapping[str, Any]:
    """`severity`, `verdict.cause`, `input.x` … as they were when the run began or asked again."""
    return next((one.data["knows"] for one in reversed(log) if "knows" in one.data), {})


def is_met(when: str, last: Mapping[str, LogEntry], knows: Mapping[str, Any]) -> bool:
    """Surely true; `last` is the newest line of each step."""
    return truth(parse(when), lambda step: outcome(last.get(step)), knows) is True


def outcome(last: LogEntry | None) -> str | None:
    """`passed`, `failed` or `skipped` by the step's last entry; None while it has not ended.

    `failed` is an answer: it was looked, and it is not well. A step that could not be done asks a person,
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


def stuck_at(playbook: Playbook, log: Sequence[LogEntry], now: datetime) -> list[str]:
    """The keys of all parts that ask a person: what a retry begins again."""
    last = {entry.step: entry for entry in log}
    if UNDO in last:
        asked = undoing(playbook, log, now)
        return [asked.key] if isinstance(asked, Ask) else []
    parts = [(step, key, item) for step in playbook.steps for key, item in _parts(step, log)]
    return [key for step, key, item in parts if isinstance(_part(step, key, item, last.get(key), now), Ask)]


def from_here(playbook: Playbook, log: Sequence[LogEntry], step: str) -> list[str]:
    """The keys that begin again where a person lets a run go on from this step: its own, and those of all
    later steps that the log speaks of. What comes before stays. Raises ValueError where there is none."""
    ids = [one.id for one in playbook.steps]
    if step not in ids:
        raise ValueError(f"{playbook.name} has no step {step}; it has {', '.join(ids)}")
    later = ids[ids.index(step) :]
    keys = dict.fromkeys(one.step for one in log if one.step.partition(":")[0] in later)
    return list(keys)


def undoing(playbook: Playbook, log: Sequence[LogEntry], now: datetime) -> Undo | Sleep | Ask | Finish:
    """What was done, taken back from the last to the first; a step that was only begun may have been done."""
    last = {entry.step: entry for entry in log}
    kept: list[str] = []
    for step, key, item in reversed(touched(playbook, log)):
        own = f"{UNDO}:{key}"
        entry = last.get(own)
        if entry is None or entry.event in {StepEvent.started, StepEvent.retry}:
            attempt = entry.attempt if entry is not None else 1
            return Undo(step=step, key=own, item=item, attempt=attempt)
        if entry.event in _UNDONE:
            kept += [entry.text] if entry.event is StepEvent.skipped else []
            continue
        if entry.event is StepEvent.waiting:
            until = datetime.fromisoformat(entry.data["wake_at"])
            if until > now:
                return Sleep(until=until, key=own, why=entry.text)
            return Undo(step=step, key=own, item=item, attempt=entry.attempt)
        titled = msgspec.structs.replace(step, title=f"To take back {step.title or step.id}")
        paused = _failed(titled, own, item, entry, now)
        if isinstance(paused, Do):
            return Undo(step=step, key=own, item=item, attempt=paused.attempt)
        return paused
    why = last[UNDO].text
    return Finish(
        why=f"{why}. What stays: {'; '.join(kept)}" if kept else f"{why}. Nothing stays", undone=True
    )


def touched(playbook: Playbook, log: Sequence[LogEntry]) -> list[tuple[Step, str, str | None]]:
    """The parts of steps that changed something or may have, in the order of their first line."""
    steps = {step.id: step for step in playbook.steps if step.do is not None}
    last = {entry.step: entry for entry in log}
    begun = (one for one in log if one.event in {StepEvent.started, StepEvent.done})
    found: dict[str, tuple[Step, str, str | None]] = {}
    left = {key for key, one in last.items() if one.event is StepEvent.skipped}
    for one in begun:
        name, _, item = one.step.partition(":")
        if name in steps and one.step not in found and (one.step not in left or one.event is StepEvent.done):
            found[one.step] = (filled(steps[name], known(log)), one.step, item or None)
    return list(found.values())


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


def jobs_agreed(log: Sequence[LogEntry]) -> dict[str, int]:
    """Jobs whose restart a person agreed to as they started or approved the run, in the life that they agreed
    about: one that was restarted since has another."""
    told = {job: life for one in log for job, life in one.data.get("restart", {}).items()}
    now = jobs_all(log)
    return {str(job): int(life) for job, life in told.items() if now.get(job, life) == life}


#: What `for_each` may name.
JOB_LISTS = {
    "jobs_hit": jobs_hit,
    "jobs_crashed": jobs_crashed,
    "jobs_all": jobs_all,
    AGREED: jobs_agreed,
}


def _listed(log: Sequence[LogEntry], name: str) -> dict[str, int]:
    for entry in reversed(log):
        if entry.event is StepEvent.done and "jobs" in entry.data:
            return {str(job): int(restarts) for job, restarts in entry.data.get(name, {}).items()}
    return {}


def _part(step: Step, key: str, item: str | None, last: LogEntry | None, now: datetime) -> Intent | None:
    """What this part wants; None when it is over."""
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
    return Ask(key=key, question=f"Step {key} was {last.event}: {last.text}")


def _waiting(step: Step, key: str, item: str | None, last: LogEntry, now: datetime) -> Intent:
    wake = last.data.get("wake_at")
    if wake is None:
        return Sleep(until=None, key=key, why=last.text)
    until = datetime.fromisoformat(wake)
    if until > now:
        return Sleep(until=until, key=key, why=last.text)
    return Do(step=step, key=key, item=item, attempt=last.attempt, fresh=False)


def _failed(step: Step, key: str, item: str | None, last: LogEntry, now: datetime) -> Do | Sleep | Ask:
    if last.attempt > step.retries or last.data.get("final"):
        title = step.title or step.id
        return Ask(
            key=key,
            question=f"{title} did not work after {last.attempt} attempt(s): {last.text} "
            "Mend it and retry, or cancel.",
        )
    back_off_s = min(step.back_off_max_s, step.back_off_s * 2.0 ** min(last.attempt - 1, 30))
    until = last.at + timedelta(seconds=back_off_s)
    if until > now:
        return Sleep(until=until, key=key, why=f"attempt {last.attempt} failed: {last.text}")
    return Do(step=step, key=key, item=item, attempt=last.attempt + 1, fresh=False)


LONGEST_TEXT = 256
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_DURATION = re.compile(r"(\d{1,9})([smhd]?)")
_PLACE = re.compile(r"\{input\.(\w+)\}")


class InputInvalid(ValueError):
    """`name` is the input that is wrong."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def taken(playbook: Playbook, given: Mapping[str, Any]) -> dict[str, str | int | bool]:
    """All inputs of a run: what is given, else the default. A duration is whole seconds.

    Texts are read as their type says, so a command line may give all of them. Raises InputInvalid.
    """
    for name in given:
        if name not in playbook.inputs:
            known = ", ".join(playbook.inputs) or "it takes none"
            raise InputInvalid(name, f"{playbook.name} has no input {name} ({known})")
    found: dict[str, str | int | bool] = {}
    for name, spec in playbook.inputs.items():
        value = given.get(name)
        value = spec.default if value is None else value
        if value is not None:
            found[name] = value_of(name, spec, value)
        elif spec.required:
            raise InputInvalid(name, f"{playbook.name} needs {name}: {spec.help or spec.type}")
    return found


def value_of(name: str, spec: Input, value: Any) -> str | int | bool:
    """One value as its type says. Raises InputInvalid."""
    if spec.type is InputType.bool:
        if isinstance(value, bool):
            return value
        if value in ("true", "false"):
            return value == "true"
        raise InputInvalid(name, f"{name} has to be true or false")
    if spec.type is InputType.int:
        if isinstance(value, bool) or not re.fullmatch(r"-?\d{1,15}", str(value)):
            raise InputInvalid(name, f"{name} has to be a whole number")
        return int(value)
    if spec.type is InputType.duration:
        found = _DURATION.fullmatch(str(value)) if not isinstance(value, bool) else None
        if found is None:
            raise InputInvalid(name, f"{name} has to be a duration such as 90s, 10m, 2h or 1d")
        return int(found[1]) * _SECONDS[found[2] or "s"]
    if spec.type is InputType.choice:
        if value not in spec.choices:
            raise InputInvalid(name, f"{name} has to be one of {', '.join(spec.choices)}")
        return str(value)
    if not isinstance(value, str) or len(value) > LONGEST_TEXT or not value.isprintable():
        raise InputInvalid(name, f"{name} has to be one line of at most {LONGEST_TEXT} characters")
    return value


def places_of(value: Any) -> list[str]:
    """The inputs that a value of a step's `input` names."""
    return _PLACE.findall(value) if isinstance(value, str) else []


def only_place(value: Any) -> str | None:
    """`{input.x}` alone, which gives the input with its own type: x."""
    found = _PLACE.fullmatch(value) if isinstance(value, str) else None
    return found[1] if found is not None else None


def filled(step: Step, knows: Mapping[str, Any]) -> Step:
    """The step with `{input.x}` replaced. One that was not given, and has no default, is left out."""
    if not any(places_of(value) for value in step.input.values()):
        return step
    given = {name.removeprefix("input."): value for name, value in knows.items() if name.startswith("input.")}
    return msgspec.structs.replace(step, input=placed(step.input, given))


def placed(values: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """A step's `input` with its places filled; without values that are a place alone and not given."""
    found = {name: _placed(value, given) for name, value in values.items()}
    return {name: value for name, value in found.items() if value is not None}


def _placed(value: Any, given: Mapping[str, Any]) -> Any:
    if (place := only_place(value)) is not None:
        return given.get(place)
    return _PLACE.sub(lambda found: _text(given.get(found[1])), value) if isinstance(value, str) else value


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
