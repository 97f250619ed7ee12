"""What each verb, check and wait of a playbook does, in a line; docs/playbooks.md has the whole of it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

import msgspec

from healer.console import words
from healer.console.views.rules_view import RuleRow
from healer.console.views.runs_view import RUN_WORDS, RunRow, run_row
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


class VerbWords(NamedTuple):
    """`verified`: when the step is done; `undone`: what taking the run back does, empty where it stays."""

    does: str
    verified: str
    undone: str = ""


VERB_WORDS = {
    Verb.drain: VerbWords(
        "Sets DRAIN with healer's own reason.", "That reason is read back from Slurm.", "The drain is lifted."
    ),
    Verb.resume: VerbWords("Lifts healer's own drain, and only that.", "The node is in service."),
    Verb.undrain: VerbWords("Clears DRAIN and nothing else.", "The node is not drained any more."),
    Verb.reserve: VerbWords(
        "Reserves the node for healer's tests, then lifts the drain.",
        "Slurm shows the reservation, and the node answers.",
        "The node is drained again, and the reservation ends.",
    ),
    Verb.reboot: VerbWords(
        "Reboots the empty node through Slurm.",
        "It has another boot time, has registered, and is drained again.",
        "A reboot that still waits is taken back.",
    ),
    Verb.power_cycle: VerbWords(
        "Asks the node's BMC for a power cycle, once.", "It has booted since, and its power is on."
    ),
    Verb.down: VerbWords("Sets the drained node DOWN, so that stuck jobs end.", "No job holds the node."),
    Verb.requeue: VerbWords(
        "Requeues the job, and asks Slurm to start it.", "It runs again, or waits for its turn."
    ),
    Verb.revive: VerbWords(
        "Requeues a job that the fault has ended.", "It runs again, or waits for its turn."
    ),
    Verb.release: VerbWords("Takes back what healer kept a job off.", "It is read back from Slurm."),
    Verb.tidy: VerbWords("Takes away what healer left on the node.", "It is read back from Slurm."),
    Verb.reset_gpu: VerbWords("Resets the GPU on the empty node.", "The reset ended; it may have failed."),
    Verb.restart_service: VerbWords("Restarts a service on the empty node.", "The service is active."),
    Verb.diagnose: VerbWords("Runs the tests on the empty node.", "They ended; they may have failed."),
    Verb.collect: VerbWords(
        "Collects kernel log, nvidia-smi and bug report.", "All of it is here, with its checksum."
    ),
    Verb.sweep: VerbWords(
        "Tests the idle node by a job that yields.",
        "It ended; a test may have failed.",
        "Its job is cancelled.",
    ),
    Verb.bisect: VerbWords(
        "Tests halves of the job's nodes until the slow one is found.",
        "It came to a verdict.",
        "Its job is cancelled.",
    ),
    Verb.site_command: VerbWords("Starts a command of the site, once.", "It ended with 0 or 1."),
    Verb.ticket: VerbWords("Files a repair ticket, or notes in it.", "It stands in healer's list."),
    Verb.notify: VerbWords("Tells people.", "It stands in healer's list."),
}

CHECK_WORDS = {
    "jobs_hit": "Lists the jobs on the faulty GPU and those that it ended.",
    "jobs_left": "Looks whether jobs that cannot end are left on the node.",
    "node_answers": "Slurm reaches the node, and no new fault line came.",
    "still_silent": "The node is still silent, and Slurm does not reach it; else the run ends.",
    "still_slow": "Enough senses still agree that it is slow; else the run ends.",
    "fabric_state": "The NVLink fabric is up on every GPU.",
    "link_counters": "The link's error counters stand still.",
    "history": "Sums up what the node has had.",
    "hung": "Proves that the job's ranks hang in the same collective.",
    "stacks": "Reads where some processes of the job stand.",
    "spare_ready": "A spare node is free that fits; else the run ends.",
    "second_look": "The node itself says whether it is so what a relay says of it.",
    "memory_health": "Every GPU is there, and none waits for a memory repair.",
    "power_state": "The BMC says that the node is on.",
}

WAIT_WORDS = {
    "approval": "Waits until an operator approves.",
    "time": "Waits for a set time.",
    "job_end": "Waits until no job runs on the node.",
    "job_end_or_checkpoint": "Waits until its jobs end, or each has saved a durable checkpoint.",
    "reached": "Waits until Slurm reaches the node.",
    "checkpoint": "Waits until the job has saved a durable checkpoint.",
    "job_runs": "Waits until the job that was put back runs.",
    "lifted": "Waits until nobody else holds the node.",
    "empty": "Waits until the node is drained and empty.",
    "told_out": "Waits until nothing new is told of the fault, 15 min at most.",
    "repair": "Waits for the repair: a person's resume takes the run over.",
}


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
    return [
        entry(playbook, rules, runs, now)
        for playbook in sorted(playbooks, key=lambda playbook: playbook.name)
    ]


def entry(playbook: Playbook, rules: Sequence[RuleRow], runs: Sequence[Run], now: datetime) -> Entry:
    of_playbook = [run for run in runs if run.playbook == playbook.name]
    modes = Counter(row.mode for row in rules if row.rule.playbook == playbook.name)
    return Entry(
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


def fitting(found: Iterable[Entry], text: str) -> list[Entry]:
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
    parts = ["the node"] if verbs & NODE_REMOVING else []
    parts += ["a job's work"] if verbs & (REMOVING_VERBS - NODE_REMOVING) else []
    return " and ".join(parts)


def _person(playbook: Playbook) -> str:
    """What of it needs a person whatever the mode, by the titles of the steps. Not `down`: where nothing is
    at work on the node, it needs none."""
    asks = IRREVERSIBLE_VERBS - {Verb.down}
    waits = [_title(step) for step in playbook.steps if step.wait in _PEOPLE or step.do in asks]
    return "; ".join(waits)


def _title(step: Step) -> str:
    return step.title or step.id


def _ended(runs: Sequence[Run]) -> str:
    """`12 done, 1 stuck`; shadow runs are counted separately."""
    real = Counter(run.state for run in runs if not run.shadow)
    parts = [f"{real[state]} {RUN_WORDS[state]}" for state in RunState if real[state]]
    shadow = sum(run.shadow for run in runs)
    return ", ".join([*parts, f"{shadow} in shadow"] if shadow else parts)


def step_lines(playbook: Playbook) -> list[StepLine]:
    return [_line(step) for step in playbook.steps]


def _line(step: Step) -> StepLine:
    verb = VERB_WORDS.get(step.do) if step.do is not None else None
    word = str(step.do or step.check or step.wait or step.use or "")
    kind = "does" if step.do else "checks" if step.check else "waits" if step.wait else "uses"
    does = verb.does if verb else _lookup(step)
    verified = verb.verified if verb else ""
    if step.verify:
        verified = f"{verified} And {step.verify}: {CHECK_WORDS.get(step.verify, 'a check')}".strip()
    undone = "Stays." if verb and (step.undo == "keep" or not verb.undone) else verb.undone if verb else ""
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
        parts += [words.counted(step.retries + 1, "attempt")] if step.do else []
    if step.wait_s is not None:
        parts.append(f"asks a person after {words.span(step.wait_s)}")
    return ", ".join(parts) or "none"


def input_lines(inputs: Mapping[str, Input]) -> list[InputLine]:
    return [
        InputLine(
            name=name,
            help=given.help,
            accepts=", ".join(given.choices) or str(given.type),
            default="must be given"
            if given.required
            else ""
            if given.default is None
            else str(given.default),
        )
        for name, given in inputs.items()
    ]
