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
from healer.text import joined, quoted, say


class VerbWords(NamedTuple):
    """`verified`: when the step is done; `undone`: what taking the run back does, empty where it stays."""

    does: str
    verified: str
    undone: str = ""


VERB_WORDS = {
    Verb.drain: VerbWords(
        say("console.playbooks_sets_drain_with_healer_own"),
        say("console.playbooks_reason_read_back_from_slurm"),
        say("console.playbooks_drain_lifted"),
    ),
    Verb.resume: VerbWords(
        say("console.playbooks_lifts_healer_own_drain_only"), say("console.playbooks_node_service")
    ),
    Verb.undrain: VerbWords(
        say("console.playbooks_clears_drain_nothing_else"), say("console.playbooks_node_not_drained_any_more")
    ),
    Verb.reserve: VerbWords(
        say("console.playbooks_reserves_node_for_healer_tests"),
        say("console.playbooks_slurm_shows_reservation_node_answers"),
        say("console.playbooks_node_drained_again_reservation_ends"),
    ),
    Verb.reboot: VerbWords(
        say("console.playbooks_reboots_empty_node_through_slurm"),
        say("console.playbooks_has_another_boot_time_has"),
        say("console.playbooks_reboot_still_waits_taken_back"),
    ),
    Verb.power_cycle: VerbWords(
        say("console.playbooks_asks_node_bmc_for_power"), say("console.playbooks_has_booted_since_power")
    ),
    Verb.down: VerbWords(
        say("console.playbooks_sets_drained_node_down_so"), say("console.playbooks_no_job_holds_node")
    ),
    Verb.requeue: VerbWords(
        say("console.playbooks_requeues_job_asks_slurm_start"),
        say("console.playbooks_runs_again_or_waits_for"),
    ),
    Verb.revive: VerbWords(
        say("console.playbooks_requeues_job_fault_has_ended"),
        say("console.playbooks_runs_again_or_waits_for"),
    ),
    Verb.release: VerbWords(
        say("console.playbooks_takes_back_what_healer_kept"), say("console.playbooks_read_back_from_slurm")
    ),
    Verb.tidy: VerbWords(
        say("console.playbooks_takes_away_what_healer_left"), say("console.playbooks_read_back_from_slurm")
    ),
    Verb.reset_gpu: VerbWords(
        say("console.playbooks_resets_gpu_empty_node"), say("console.playbooks_reset_ended_may_have_failed")
    ),
    Verb.restart_service: VerbWords(
        say("console.playbooks_restarts_service_empty_node"), say("console.playbooks_service_active")
    ),
    Verb.diagnose: VerbWords(
        say("console.playbooks_runs_tests_empty_node"), say("console.playbooks_they_ended_they_may_have")
    ),
    Verb.collect: VerbWords(
        say("console.playbooks_collects_kernel_log_nvidia_smi"),
        say("console.playbooks_all_here_with_checksum"),
    ),
    Verb.sweep: VerbWords(
        say("console.playbooks_tests_idle_node_by_job"),
        say("console.playbooks_ended_test_may_have_failed"),
        say("console.playbooks_job_cancelled"),
    ),
    Verb.bisect: VerbWords(
        say("console.playbooks_tests_halves_job_nodes_until"),
        say("console.playbooks_came_verdict"),
        say("console.playbooks_job_cancelled"),
    ),
    Verb.site_command: VerbWords(
        say("console.playbooks_starts_command_site_once"), say("console.playbooks_ended_with_0_or_1")
    ),
    Verb.ticket: VerbWords(
        say("console.playbooks_files_repair_ticket_or_notes"), say("console.playbooks_stands_healer_list")
    ),
    Verb.notify: VerbWords(
        say("console.playbooks_tells_people"), say("console.playbooks_stands_healer_list")
    ),
}

CHECK_WORDS = {
    "jobs_hit": say("console.playbooks_lists_jobs_faulty_gpu_those"),
    "jobs_left": say("console.playbooks_looks_whether_jobs_cannot_end"),
    "node_answers": say("console.playbooks_slurm_reaches_node_no_new"),
    "still_silent": say("console.playbooks_node_still_silent_slurm_does"),
    "still_slow": say("console.playbooks_enough_senses_still_agree_slow"),
    "fabric_state": say("console.playbooks_nvlink_fabric_up_every_gpu"),
    "link_counters": say("console.playbooks_link_error_counters_stand_still"),
    "history": say("console.playbooks_sums_up_what_node_has"),
    "hung": say("console.playbooks_proves_job_ranks_hang_same"),
    "stacks": say("console.playbooks_reads_where_some_processes_job"),
    "spare_ready": say("console.playbooks_spare_node_free_fits_else"),
    "second_look": say("console.playbooks_node_itself_says_whether_so"),
    "memory_health": say("console.playbooks_every_gpu_there_none_waits"),
    "power_state": say("console.playbooks_bmc_says_node"),
}

WAIT_WORDS = {
    "approval": say("console.playbooks_waits_until_operator_approves"),
    "time": say("console.playbooks_waits_for_set_time"),
    "job_end": say("console.playbooks_waits_until_no_job_runs"),
    "job_end_or_checkpoint": say("console.playbooks_waits_until_jobs_end_or"),
    "reached": say("console.playbooks_waits_until_slurm_reaches_node"),
    "checkpoint": say("console.playbooks_waits_until_job_has_saved"),
    "job_runs": say("console.playbooks_waits_until_job_was_put"),
    "lifted": say("console.playbooks_waits_until_nobody_else_holds"),
    "empty": say("console.playbooks_waits_until_node_drained_empty"),
    "told_out": say("console.playbooks_waits_until_nothing_new_told"),
    "repair": say("console.playbooks_waits_for_repair_person_resume"),
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


def step_lines(playbook: Playbook) -> list[StepLine]:
    return [_line(step) for step in playbook.steps]


def _line(step: Step) -> StepLine:
    verb = VERB_WORDS.get(step.do) if step.do is not None else None
    word = str(step.do or step.check or step.wait or step.use or "")
    kind = "does" if step.do else "checks" if step.check else "waits" if step.wait else "uses"
    does = verb.does if verb else _lookup(step)
    verified = verb.verified if verb else ""
    if step.verify:
        checked = CHECK_WORDS.get(step.verify, say("console.playbooks_check"))
        also = say("console.playbooks_and", verify=step.verify, checked=checked)
        verified = joined(filter(None, (verified, also)), "space")
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
    parts = [say("console.playbooks_only_when", when=step.when)] if step.when else []
    parts += [say("console.playbooks_not_where_passes", probe=step.probe)] if step.probe else []
    parts += [say("console.playbooks_once_for_each", for_each=step.for_each)] if step.for_each else []
    return joined(parts, "space")


def _limits(step: Step) -> str:
    """`10 min, 3 attempts`, `asks a person after 1 d`; a repair waits for ever."""
    if step.wait == "repair":
        return say("console.none")
    parts: list[str] = []
    if not step.wait:
        parts.append(words.span(step.timeout_s))
        parts += [words.counted(step.retries + 1, "attempt")] if step.do else []
    if step.wait_s is not None:
        parts.append(say("console.playbooks_asks_person_after", span=words.span(step.wait_s)))
    return joined(parts, "comma") or say("console.none")


def input_lines(inputs: Mapping[str, Input]) -> list[InputLine]:
    return [
        InputLine(
            name=name,
            help=given.help,
            accepts=", ".join(given.choices) or str(given.type),
            default=say("console.playbooks_must_be_given")
            if given.required
            else ""
            if given.default is None
            else quoted(str(given.default)),
        )
        for name, given in inputs.items()
    ]
