"""Playbooks for people: what each does step by step, who uses it, and how its last runs ended."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

import msgspec

from healer.console import words
from healer.console.views.rules import RuleRow
from healer.console.views.runs import RUN_WORDS, RunRow, run_row
from healer.console.views.step_words import CHECK_WORDS, VERB_WORDS, WAIT_WORDS
from healer.model import (
    IRREVERSIBLE_VERBS,
    NODE_REMOVING,
    REMOVING_VERBS,
    Input,
    Mode,
    Playbook,
    Run,
    RunState,
    Step,
    Verb,
)

_LEVELS = {1: "responders", 2: "operators"}
#: Waits that only a person ends.
_PEOPLE = frozenset({"approval", "repair"})


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One playbook in the list. `ended` is how those of the newest runs ended that are its own."""

    name: str
    title: str
    target: str
    starts: str
    takes: str
    person: str
    rules: int
    modes: tuple[tuple[Mode, int], ...]
    ended: str
    last: RunRow | None
    runbook: str


class StepLine(msgspec.Struct, frozen=True, kw_only=True):
    """One step. `limits` in words; `verified`, `undone` and `only` may be empty."""

    id: str
    title: str
    kind: str
    word: str
    does: str
    verified: str
    undone: str
    only: str
    limits: str
    takes: bool


class InputLine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    help: str
    accepts: str
    default: str


def entries(
    playbooks: Iterable[Playbook], rules: Sequence[RuleRow], runs: Sequence[Run], now: datetime
) -> list[Entry]:
    """By name. `runs` are the newest of all, newest first."""
    return [entry(one, rules, runs, now) for one in sorted(playbooks, key=lambda one: one.name)]


def entry(playbook: Playbook, rules: Sequence[RuleRow], runs: Sequence[Run], now: datetime) -> Entry:
    mine = [run for run in runs if run.playbook == playbook.name]
    modes = Counter(rule.mode for rule in rules if rule.playbook == playbook.name)
    return Entry(
        name=playbook.name,
        title=playbook.title,
        target=playbook.target,
        starts=_LEVELS.get(playbook.level, "operators"),
        takes=takes(playbook),
        person=_person(playbook),
        rules=sum(modes.values()),
        modes=tuple((mode, modes[mode]) for mode in Mode if modes[mode]),
        ended=_ended(mine),
        last=run_row(mine[0], now) if mine else None,
        runbook=playbook.runbook,
    )


def fitting(found: Iterable[Entry], text: str) -> list[Entry]:
    """Every word of `text` must be found in the name or the title."""
    wanted = text.lower().split()
    return [one for one in found if all(word in f"{one.name} {one.title}".lower() for word in wanted)]


def takes(playbook: Playbook) -> str:
    """What of the cluster it takes: `the node`, `a job's work`, both, or nothing."""
    verbs = {step.do for step in playbook.steps if step.do is not None}
    parts = ["the node"] if verbs & NODE_REMOVING else []
    parts += ["a job's work"] if verbs & (REMOVING_VERBS - NODE_REMOVING) else []
    return " and ".join(parts)


def _person(playbook: Playbook) -> str:
    """What of it needs a person whatever the mode, by the titles of the steps. Not `down`: where nothing is
    at work on the node, it needs none."""
    asks = IRREVERSIBLE_VERBS - {Verb.down}
    waits = [_title(one) for one in playbook.steps if one.wait in _PEOPLE or one.do in asks]
    return "; ".join(waits)


def _title(step: Step) -> str:
    return step.title or step.id


def _ended(runs: Sequence[Run]) -> str:
    """`12 done, 1 stuck`; shadow runs are told apart."""
    real = Counter(run.state for run in runs if not run.shadow)
    parts = [f"{real[state]} {RUN_WORDS[state]}" for state in RunState if real[state]]
    shadow = sum(run.shadow for run in runs)
    return ", ".join([*parts, f"{shadow} in shadow"] if shadow else parts)


def step_lines(playbook: Playbook) -> list[StepLine]:
    return [_line(step) for step in playbook.steps]


def _line(step: Step) -> StepLine:
    told = VERB_WORDS.get(step.do) if step.do is not None else None
    word = str(step.do or step.check or step.wait or step.use or "")
    kind = "does" if step.do else "checks" if step.check else "waits" if step.wait else "uses"
    does = told.does if told else _lookup(step)
    verified = told.verified if told else ""
    if step.verify:
        verified = f"{verified} And {step.verify}: {CHECK_WORDS.get(step.verify, 'a check')}".strip()
    undone = "Stays." if told and (step.undo == "keep" or not told.undone) else told.undone if told else ""
    return StepLine(
        id=step.id,
        title=_title(step),
        kind=kind,
        word=word,
        does=does,
        verified=verified,
        undone=undone,
        only=_only(step),
        limits=_limits(step),
        takes=step.do in REMOVING_VERBS,
    )


def _lookup(step: Step) -> str:
    return CHECK_WORDS.get(step.check or "") or WAIT_WORDS.get(step.wait or "") or ""


def _only(step: Step) -> str:
    parts = [f"Only when {step.when}."] if step.when else []
    parts += [f"Not where {step.probe} passes."] if step.probe else []
    parts += [f"Once for each of {step.for_each}."] if step.for_each else []
    return " ".join(parts)


def _limits(step: Step) -> str:
    """`10 min, 3 attempts`, `asks a person after 1 d`; a repair waits for ever."""
    if step.wait == "repair":
        return "none"
    parts: list[str] = []
    if not step.wait:
        parts.append(words.span(step.timeout_s))
        parts += [words.plural(step.retries + 1, "attempt")] if step.do else []
    if step.wait_s is not None:
        parts.append(f"asks a person after {words.span(step.wait_s)}")
    return ", ".join(parts) or "none"


def input_lines(inputs: Mapping[str, Input]) -> list[InputLine]:
    return [
        InputLine(
            name=name,
            help=one.help,
            accepts=", ".join(one.choices) or str(one.type),
            default="must be given" if one.required else "" if one.default is None else str(one.default),
        )
        for name, one in inputs.items()
    ]
