"""The verbs a step may use: look, do, verify, undo. Nothing is done because a call returned 0."""

from collections.abc import Mapping
from types import MappingProxyType

from healer.actions import (
    bisect,
    checks,
    collect,
    diagnose,
    down,
    drain,
    foreign,
    hang,
    job_waits,
    links,
    nodes,
    past,
    power,
    reboot,
    release,
    requeue,
    reset_gpu,
    resume,
    revive,
    site_command,
    spares,
    sweep,
    tell,
    under_test,
    waits,
)
from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped
from healer.model import SlurmCall, Step, Verb

#: What `do:` may name.
VERBS: Mapping[Verb, Action] = MappingProxyType(
    {
        Verb.drain: drain.ACTION,
        Verb.undrain: resume.UNDRAIN,
        Verb.resume: resume.RESUME,
        Verb.down: down.DOWN,
        Verb.reboot: reboot.ACTION,
        Verb.power_cycle: power.POWER_CYCLE,
        Verb.reserve: under_test.RESERVE,
        Verb.requeue: requeue.ACTION,
        Verb.revive: revive.ACTION,
        Verb.release: release.ACTION,
        Verb.reset_gpu: reset_gpu.RESET_GPU,
        Verb.restart_service: nodes.RESTART_SERVICE,
        Verb.diagnose: diagnose.DIAGNOSE,
        Verb.collect: collect.COLLECT,
        Verb.sweep: sweep.SWEEP,
        Verb.bisect: bisect.BISECT,
        Verb.site_command: site_command.SITE_COMMAND,
        Verb.ticket: tell.TICKET,
        Verb.notify: tell.NOTIFY,
    }
)

#: What `check:` may name.
CHECKS: Mapping[str, Action] = MappingProxyType(
    {
        "jobs_hit": checks.JOBS_HIT,
        "jobs_left": down.JOBS_LEFT,
        "node_answers": checks.NODE_ANSWERS,
        "still_silent": checks.STILL_SILENT,
        "still_slow": checks.STILL_SLOW,
        "fabric_state": nodes.FABRIC_STATE,
        "link_counters": links.LINK_COUNTERS,
        "history": past.HISTORY,
        "hung": hang.HUNG,
        "stacks": hang.STACKS,
        "spare_ready": spares.SPARE_READY,
        "memory_health": nodes.MEMORY_HEALTH,
        "power_state": power.POWER_STATE,
    }
)

#: What `wait:` may name.
WAITS: Mapping[str, Action] = MappingProxyType(
    {
        "job_end_or_checkpoint": waits.MOMENT,
        "job_end": waits.JOB_END,
        "checkpoint": job_waits.CHECKPOINT,
        "job_runs": job_waits.JOB_RUNS,
        "lifted": foreign.LIFTED,
        "time": waits.TIME,
        "approval": waits.APPROVAL,
        "empty": waits.EMPTY,
        "reached": checks.REACHED,
        "repair": waits.REPAIR,
    }
)

#: What a step asks of Slurm beside reading, by its verb.
_CALLS: Mapping[Verb, tuple[SlurmCall, ...]] = MappingProxyType(
    {
        Verb.drain: (SlurmCall.drain,),
        Verb.undrain: (SlurmCall.undrain,),
        Verb.resume: (SlurmCall.resume,),
        Verb.down: (SlurmCall.down,),
        Verb.reboot: (SlurmCall.reboot,),
        Verb.reserve: (SlurmCall.reserve, SlurmCall.resume, SlurmCall.unreserve),
        Verb.requeue: (SlurmCall.requeue, SlurmCall.start_now),
        Verb.revive: (SlurmCall.revive, SlurmCall.start_now),
        Verb.sweep: (SlurmCall.submit, SlurmCall.cancel),
        Verb.bisect: (SlurmCall.submit, SlurmCall.cancel),
    }
)


def calls_of(step: Step) -> tuple[SlurmCall, ...]:
    """What an adapter must be able to do for this step. Where it cannot, the step asks a person."""
    if step.do is Verb.diagnose and (step.input.get("script") or step.input.get("depth")):
        return (SlurmCall.submit,)
    return _CALLS.get(step.do, ()) if step.do is not None else ()


__all__ = [
    "CHECKS",
    "VERBS",
    "WAITS",
    "Action",
    "Again",
    "Context",
    "Done",
    "Failed",
    "Result",
    "Skipped",
    "calls_of",
]
