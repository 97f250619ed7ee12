"""`VERBS`, what a step may do: look, do, verify, undo. Nothing is done because a call returned 0."""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType

import msgspec

from healer.actions import (
    bisect,
    checks,
    diagnose,
    drain,
    hang,
    node_work,
    power,
    release,
    requeue,
    site_command,
    sweep,
    tell_people,
    under_test,
)
from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped, StepClaim, Toolbox
from healer.model import SlurmCall, Step, Verb

#: What `do:` may name.
VERBS: Mapping[Verb, Action] = MappingProxyType(
    {
        Verb.drain: drain.DRAIN,
        Verb.undrain: drain.UNDRAIN,
        Verb.resume: drain.RESUME,
        Verb.down: drain.DOWN,
        Verb.reboot: power.REBOOT,
        Verb.power_cycle: power.POWER_CYCLE,
        Verb.reserve: under_test.RESERVE,
        Verb.requeue: requeue.REQUEUE,
        Verb.revive: requeue.REVIVE,
        Verb.release: release.ACTION,
        Verb.reset_gpu: node_work.RESET_GPU,
        Verb.restart_service: node_work.RESTART_SERVICE,
        Verb.diagnose: diagnose.DIAGNOSE,
        Verb.collect: node_work.COLLECT,
        Verb.sweep: sweep.SWEEP,
        Verb.bisect: bisect.BISECT,
        Verb.site_command: site_command.SITE_COMMAND,
        Verb.ticket: tell_people.TICKET,
        Verb.notify: tell_people.NOTIFY,
    }
)

#: What `check:` may name.
CHECKS: Mapping[str, Action] = MappingProxyType(
    {
        "jobs_hit": checks.JOBS_HIT,
        "jobs_left": drain.JOBS_LEFT,
        "node_answers": checks.NODE_ANSWERS,
        "still_silent": checks.STILL_SILENT,
        "still_slow": checks.STILL_SLOW,
        "fabric_state": node_work.FABRIC_STATE,
        "link_counters": site_command.LINK_COUNTERS,
        "history": checks.HISTORY,
        "hung": hang.HUNG,
        "stacks": hang.STACKS,
        "spare_ready": requeue.SPARE_READY,
        "memory_health": node_work.MEMORY_HEALTH,
        "power_state": power.POWER_STATE,
    }
)

#: What `wait:` may name.
WAITS: Mapping[str, Action] = MappingProxyType(
    {
        "job_end_or_checkpoint": checks.MOMENT,
        "job_end": checks.JOB_END,
        "checkpoint": checks.CHECKPOINT,
        "job_runs": checks.JOB_RUNS,
        "lifted": checks.LIFTED,
        "time": checks.TIME,
        "approval": checks.APPROVAL,
        "empty": checks.EMPTY,
        "told_out": checks.TOLD_OUT_WAIT,
        "reached": checks.REACHED,
        "repair": checks.REPAIR,
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


#: What `probe` and `verify` of a step may name beside its verb's own: they look, and change nothing.
_CHECKS_BESIDE = {
    "fabric_state": node_work.FABRIC_STATE,
    "node_answers": checks.NODE_ANSWERS,
    "job_works": hang.JOB_WORKS,
}
_LOOK_AGAIN_S = 2.0


def action_of(step: Step) -> Action:
    """What a step does, with its own `probe` and `verify` where it has any."""
    if step.do is None:
        return CHECKS[step.check] if step.check is not None else WAITS[step.wait or ""]
    if step.probe is None and step.verify is None:
        return VERBS[step.do]
    return _with_checks(VERBS[step.do], step.probe, step.verify)


@lru_cache(maxsize=256)
def _with_checks(action: Action, probe: str | None, verify: str | None) -> Action:
    def looks(ctx: Context) -> Result | None:
        seen = _CHECKS_BESIDE[probe].verify(ctx) if probe is not None else None
        if isinstance(seen, Skipped):  # it is not done at all, which is another thing than done
            return seen
        if seen is not None and _passes(seen):
            return Done(text=f"{probe} passes already: there is nothing to do", data={"probe": probe})
        found = action.probe(ctx)
        return found and also(found, ctx)

    def also(found: Result, ctx: Context) -> Result:
        if verify is None or not isinstance(found, Done) or found.data.get("passed") is False:
            return found
        seen = _CHECKS_BESIDE[verify].verify(ctx)
        if _passes(seen):
            return msgspec.structs.replace(found, text=f"{found.text}; {seen.text}")
        if isinstance(seen, Failed):
            return seen
        return Again(text=f"{found.text}; {verify} does not pass yet: {seen.text}", after_s=_LOOK_AGAIN_S)

    def does(ctx: Context) -> Result | None:
        found = action.do(ctx)
        return found and also(found, ctx)

    def reads_back(ctx: Context) -> Result:
        return also(action.verify(ctx), ctx)

    return msgspec.structs.replace(action, probe=looks, do=does, verify=reads_back)


def _passes(seen: Result) -> bool:
    return isinstance(seen, Done) and seen.data.get("passed") is not False


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
    "StepClaim",
    "Toolbox",
    "action_of",
    "calls_of",
]
