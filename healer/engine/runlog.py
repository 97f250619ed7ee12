"""The state of a step according to the run's log, and what a step writes to the log, the audit and the
detector."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec

from healer.actions.base import since_retry
from healer.decisions import SLOT_VERBS
from healer.model import (
    JOB_VERBS,
    REMEDY_LADDER,
    REMOVING_VERBS,
    AuditRecord,
    Command,
    CommandKind,
    Incident,
    LogEntry,
    Playbook,
    Remedy,
    Run,
    RunState,
    Step,
    StepEvent,
    Verb,
    audit_record,
)
from healer.playbooks.advance import UNUSABLE, Do, jobs_agreed, jobs_all, read_inputs
from healer.text import Said, quoted

_PAST = {
    Verb.drain: "node.drained",
    Verb.resume: "node.resumed",
    Verb.shrink: "job.shrunk",
    Verb.requeue: "job.requeued",
    Verb.revive: "job.revived",
    Verb.release: "job.released",
    Verb.tidy: "node.tidied",
    Verb.restart_service: "service.restarted",
    Verb.diagnose: "node.diagnosed",
    Verb.undrain: "node.undrained",
    Verb.down: "node.set_down",
    Verb.reboot: "node.rebooted",
    Verb.power_cycle: "node.power_cycled",
    Verb.reset_gpu: "gpu.reset",
    Verb.reserve: "node.reserved",
    Verb.collect: "evidence.collected",
    Verb.sweep: "node.swept",
    Verb.bisect: "job.bisected",
    Verb.site_command: "command.done",
}


def is_started(entries: Sequence[LogEntry], key: str, attempt: int | None = None) -> bool:
    """The step was granted; with `attempt`: in that attempt."""
    begun = (entry for entry in since_retry(entries, key) if entry.event is StepEvent.started)
    return any(attempt in {None, entry.attempt} for entry in begun)


def began_at(entries: Sequence[LogEntry], key: str) -> datetime | None:
    """When the step first started or waited; time for which a guard held it before that does not count."""
    begun = (StepEvent.started, StepEvent.waiting)
    return next((entry.at for entry in since_retry(entries, key) if entry.event in begun), None)


#: In the data of a wait that came before the step's effect: Slurm did not answer the look that precedes it.
BEFORE = "before_effect"


def is_asked(entries: Sequence[LogEntry], key: str, attempt: int) -> bool:
    """This attempt was made, and its outcome is pending."""
    waited = (entry for entry in since_retry(entries, key) if entry.event is StepEvent.waiting)
    return any(entry.attempt == attempt and not entry.data.get(BEFORE) for entry in waited)


def effect_key(run: Run, entries: Sequence[LogEntry], key: str) -> str:
    """The key of a step's effect: the same for every worker that takes over the run, but a new one after a
    retry."""
    retries = sum(entry.step == key and entry.event is StepEvent.retry for entry in entries)
    return f"{run.id}:{key}:{retries}"


def last_of(entries: Sequence[LogEntry], key: str) -> LogEntry | None:
    return next((entry for entry in reversed(entries) if entry.step == key), None)


def past_moment(playbook: Playbook, step: Step, entries: Sequence[LogEntry], now: datetime) -> Step | None:
    """An earlier step whose moment passed while a guard held this one, so that it must wait again."""
    moment = moment_of(playbook, step, entries)
    if moment is None:
        return None
    earlier, lasts = moment
    last = last_of(entries, earlier.id)
    return earlier if last is not None and now - last.at > lasts else None


def moment_of(playbook: Playbook, step: Step, entries: Sequence[LogEntry]) -> tuple[Step, timedelta] | None:
    """The earlier step of the run that waited for a good moment, and how long such a moment lasts."""
    before = [each.id for each in playbook.steps].index(step.id)  # by id, as its input may have changed
    for earlier in playbook.steps[:before]:
        last = last_of(entries, earlier.id)
        lasts = last.data.get("moment_s") if last is not None and last.event is StepEvent.done else None
        if lasts is not None:
            return earlier, timedelta(seconds=lasts)
    return None


def tested_at(playbook: Playbook, entries: Sequence[LogEntry]) -> datetime | None:
    """Since when the run trusts its node: the start of its tests, or a person's later retry."""
    tests = (began_at(entries, step.id) for step in playbook.steps if step.do is Verb.diagnose)
    began = [at for at in tests if at is not None]
    if not began:
        return None
    # A retry after the tests comes from a person; the retry for a missed moment comes before them.
    return max([*began, *(entry.at for entry in entries if entry.event is StepEvent.retry)])


def has_removed(entries: Sequence[LogEntry]) -> bool:
    """A removing step is done."""
    return any(
        entry.event is StepEvent.done and entry.data.get("verb") in REMOVING_VERBS for entry in entries
    )


def has_taken(playbook: Playbook, entries: Sequence[LogEntry]) -> bool:
    """A step that needs the node's slot was granted."""
    return any(step.do in SLOT_VERBS and is_started(entries, step.id) for step in playbook.steps)


def has_drained(entries: Sequence[LogEntry]) -> bool:
    return any(entry.event is StepEvent.done and entry.data.get("verb") == Verb.drain for entry in entries)


def has_reserved(entries: Sequence[LogEntry]) -> bool:
    """The node was, or may have been, reserved for tests: the step was granted."""
    granted = (StepEvent.started, StepEvent.done)
    return any(entry.event in granted and entry.data.get("verb") == Verb.reserve for entry in entries)


def is_proven(entries: Sequence[LogEntry]) -> bool:
    """The worker has seen for itself that the node is certainly unusable."""
    last = last_of(entries, UNUSABLE)
    return last is not None and bool(last.data.get("proven"))


def approver_of(playbook: Playbook, entries: Sequence[LogEntry]) -> str | None:
    """The last person who approved a step of the run; None if there is none."""
    asks = {step.id for step in playbook.steps if step.wait == "approval"}
    given = (entry for entry in reversed(entries) if entry.step in asks and entry.event is StepEvent.done)
    return next((str(entry.data["by"]) for entry in given if entry.data.get("by")), None)


def stuck_since(entries: Sequence[LogEntry]) -> datetime | None:
    """Since when the check `jobs_left` has seen all jobs on the node completing, if that is how it ended."""
    stuck = [entry for entry in entries if entry.event is StepEvent.done and "stuck_since" in entry.data]
    return datetime.fromisoformat(stuck[-1].data["stuck_since"]) if stuck else None


def would_have_removed(entries: Sequence[LogEntry]) -> bool:
    """A removing step of a shadow run was logged as done, without an effect."""
    return any(
        entry.event is StepEvent.done and entry.data.get("would") in REMOVING_VERBS for entry in entries
    )


def restarts_of(run: Run, item: str | None, entries: Sequence[LogEntry]) -> int | None:
    if item is not None:
        return (jobs_agreed(entries) | jobs_all(entries)).get(item)
    given = run.input.get("restarts")
    return int(given) if given is not None else None


def facts_of(run: Run, playbook: Playbook, incident: Incident | None) -> dict[str, str | int | bool]:
    """The present facts of the run by name, for conditions; unknown facts are left out."""
    found: dict[str, str | int | bool] = {}
    if incident is not None:
        found = {
            "severity": str(incident.severity),
            "fault_class": str(incident.fault_class),
            "verdict.cause": str(incident.cause),
        }
        chosen = run.input.get("remedy")
        asked = [Remedy(str(chosen))] if chosen else list(incident.remedy[:1])
        # Later evidence may ask for a higher remedy, which takes precedence.
        rungs = [remedy for remedy in (*asked, *incident.remedy) if remedy in REMEDY_LADDER]
        remedy = max(rungs, key=REMEDY_LADDER.index) if rungs and chosen else next(iter(asked), None)
        found |= {"verdict.remedy": str(remedy)} if remedy else {}
    given = run.input.get("inputs") or {}
    optional = {name: msgspec.structs.replace(spec, required=False) for name, spec in playbook.inputs.items()}
    book = msgspec.structs.replace(playbook, inputs=optional)
    inputs = read_inputs(book, {name: value for name, value in given.items() if name in playbook.inputs})
    return found | {f"input.{name}": value for name, value in inputs.items()}


def run_changed(
    run: Run,
    state: RunState,
    at: datetime,
    /,
    *,
    by: str | None = None,
    reason: str | None = None,
    **more: Any,
) -> Command:
    """The message to the detector about a run's new state. `by` and `reason` are those of the change, else of
    the run."""
    return Command(
        kind=CommandKind.run_changed,
        cluster=run.cluster,
        at=at,
        by=by if by is not None else run.by,
        incident=run.incident,
        reason=quoted(reason) if reason is not None else run.reason,
        data={"run": run.id, "playbook": run.playbook, "state": str(state), "beside": run.alongside, **more},
    )


def entry_of(
    run: Run, intent: Do, at: datetime, event: StepEvent, text: Said, data: Mapping[str, object] | None = None
) -> LogEntry:
    return LogEntry(
        run=run.id,
        at=at,
        epoch=run.epoch,
        step=intent.key,
        event=event,
        attempt=intent.attempt,
        text=text,
        data=dict(data or {}),
    )


def audit_of(run: Run, intent: Do, entry: LogEntry) -> AuditRecord | None:
    """The audit record of an effect or a refusal; None for checks and waits, which are only in the run's
    log."""
    if intent.step.do is None or entry.event in {StepEvent.started, StepEvent.waiting}:
        return None
    worked = entry.event is StepEvent.done and not run.shadow
    verb = _PAST.get(intent.step.do, f"{intent.step.do}.done") if worked else f"step.{entry.event}"
    job = intent.item or (run.job if intent.step.do in JOB_VERBS else None)
    subject = f"job/{job}" if job else f"node/{run.node}"
    about = {"run": run.id, "incident": run.incident, "step": entry.step, "text": entry.text}
    return audit_record(run.cluster, entry.at, run.by, verb, subject, **(about | entry.data))
