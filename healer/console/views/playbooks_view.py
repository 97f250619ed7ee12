"""What each verb, check and wait of a playbook does, in a line; docs/playbooks.md has the whole of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from healer.console import words
from healer.console.views import Shown
from healer.console.views.runs_view import RUN_WORDS, run_row
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
from healer.text import joined, quoted, say

#: Verbs that an undo of the run undoes; the effects of the others stay.
UNDOES = frozenset({Verb.drain, Verb.reserve, Verb.reboot, Verb.sweep, Verb.bisect})
_LEVELS = {1: "responders", 2: "operators"}
#: Waits that only a person ends.
_PEOPLE = frozenset({"approval", "repair"})


def entries(
    playbooks: Iterable[Playbook], rules: Sequence[Shown], runs: Sequence[Run], now: datetime
) -> list[Shown]:
    """By name. `runs` are the newest of all, newest first."""
    return [
        entry(playbook, rules, runs, now)
        for playbook in sorted(playbooks, key=lambda playbook: playbook.name)
    ]


def entry(playbook: Playbook, rules: Sequence[Shown], runs: Sequence[Run], now: datetime) -> Shown:
    """`ended` is how those of the newest runs ended that are its own."""
    of_playbook = [run for run in runs if run.playbook == playbook.name]
    modes = Counter(row.mode for row in rules if row.rule.playbook == playbook.name)
    return Shown(
        name=playbook.name,
        title=playbook.title,
        target=playbook.target,
        starts=_LEVELS.get(playbook.level, "operators"),
        takes=takes(playbook),
        person=_person(playbook),
        rules=sum(modes.values()),
        modes=tuple((mode, modes[mode]) for mode in Mode if modes[mode]),
        ended=_ended(of_playbook),
        last=run_row(of_playbook[0], now) if of_playbook else None,
        runbook=playbook.runbook,
    )


def fitting(found: Iterable[Shown], text: str) -> list[Shown]:
    """Every word of `text` must be found in the name or the title."""
    wanted = text.lower().split()
    return [
        found_entry
        for found_entry in found
        if all(word in f"{found_entry.name} {found_entry.title}".lower() for word in wanted)
    ]


def takes(playbook: Playbook) -> str:
    """What of the cluster it takes: `the node`, `a job's work`, both, or nothing."""
    verbs = {step.do for step in playbook.steps if step.do is not None}
    parts = [say("console.playbooks_node")] if verbs & NODE_REMOVING else []
    parts += [say("console.playbooks_job_work")] if verbs & (REMOVING_VERBS - NODE_REMOVING) else []
    return joined(parts, "and")


def _person(playbook: Playbook) -> str:
    """What of it needs a person whatever the mode, by the titles of the steps. Not `down`: where nothing is
    at work on the node, it needs none."""
    asks = IRREVERSIBLE_VERBS - {Verb.down}
    waits = [_title(step) for step in playbook.steps if step.wait in _PEOPLE or step.do in asks]
    return joined(map(quoted, waits), "semicolon")


def _title(step: Step) -> str:
    return step.title or step.id


def _ended(runs: Sequence[Run]) -> str:
    """`12 done, 1 stuck`; shadow runs are counted separately."""
    real = Counter(run.state for run in runs if not run.shadow)
    parts = [
        say("console.playbooks_runs_in_state", count=real[state], state=quoted(RUN_WORDS[state]))
        for state in RunState
        if real[state]
    ]
    shadow = sum(run.shadow for run in runs)
    parts += [say("console.playbooks_shadow", shadow=shadow)] if shadow else []
    return joined(parts, "comma")


def step_lines(playbook: Playbook) -> list[Shown]:
    return [_line(step) for step in playbook.steps]


def _line(step: Step) -> Shown:
    """`limits` in words; `verified`, `undone` and `only` may be empty."""
    word = str(step.do or step.check or step.wait or step.use or "")
    kind = "does" if step.do else "checks" if step.check else "waits" if step.wait else "uses"
    does = verified = undone = ""
    if step.do:
        does, verified = say(f"console.verb_{step.do}"), say(f"console.verb_{step.do}_verified")
        stays = step.undo == "keep" or step.do not in UNDOES
        undone = "Stays." if stays else say(f"console.verb_{step.do}_undone")
    elif not step.use:
        does = say(f"console.check_{step.check}") if step.check else say(f"console.wait_{step.wait}")
    if step.verify:
        checked = say(f"console.check_{step.verify}")
        also = say("console.playbooks_and", verify=step.verify, checked=checked)
        verified = joined(filter(None, (verified, also)), "space")
    return Shown(
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


def _only(step: Step) -> str:
    parts = [say("console.playbooks_only_when", when=step.when)] if step.when else []
    parts += [say("console.playbooks_not_where_passes", probe=step.probe)] if step.probe else []
    parts += [say("console.playbooks_once_for_each", for_each=step.for_each)] if step.for_each else []
    return joined(parts, "space")


def _limits(step: Step) -> str:
    """`10 min, 3 attempts`, `asks a person after 1 d`; a repair has no limit."""
    if step.wait == "repair":
        return say("console.none")
    parts: list[str] = []
    if not step.wait:
        parts.append(words.span(step.timeout_s))
        parts += [words.counted(step.retries + 1, "attempt")] if step.do else []
    if step.wait_s is not None:
        parts.append(say("console.playbooks_asks_person_after", span=words.span(step.wait_s)))
    return joined(parts, "comma") or say("console.none")


def _as_in_yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def input_lines(inputs: Mapping[str, Input]) -> list[Shown]:
    return [
        Shown(
            name=name,
            help=given.help,
            accepts=", ".join(given.choices) or str(given.type),
            default=say("console.playbooks_must_be_given")
            if given.required
            else ""
            if given.default is None
            else quoted(_as_in_yaml(given.default)),
        )
        for name, given in inputs.items()
    ]
