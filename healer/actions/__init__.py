"""`VERBS` and the other actions of steps: probe, do, verify, undo. A call that returned 0 proves nothing."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from types import MappingProxyType

import msgspec

from healer.actions import (
    ask_node,
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
    spares,
    swap,
    sweep,
    tell_people,
    tidy,
    under_test,
    waits,
)
from healer.actions.base import (
    Action,
    Again,
    Context,
    Done,
    Failed,
    Result,
    Silent,
    Skipped,
    StepClaim,
    Toolbox,
    Unread,
)
from healer.model import SlurmCall, Step, Verb
from healer.playbooks.advance import GOES_ON_WITHOUT
from healer.text import joined, say

#: Actions for `do:`.
VERBS: Mapping[Verb, Action] = MappingProxyType(
    {
        Verb.drain: drain.DRAIN,
        Verb.undrain: drain.UNDRAIN,
        Verb.resume: drain.RESUME,
        Verb.down: drain.DOWN,
        Verb.reboot: power.REBOOT,
        Verb.power_cycle: power.POWER_CYCLE,
        Verb.reserve: under_test.RESERVE,
        Verb.shrink: swap.SHRINK,
        Verb.requeue: requeue.REQUEUE,
        Verb.revive: requeue.REVIVE,
        Verb.release: release.ACTION,
        Verb.tidy: tidy.TIDY,
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


def _read_only(verify: Mapping[str, Callable[[Context], Result]]) -> Mapping[str, Action]:
    """Read-only actions, by their names in playbooks."""
    return MappingProxyType({name: Action(verify=look, effect=False) for name, look in verify.items()})


#: Actions for `check:`.
CHECKS = _read_only(
    {
        "jobs_hit": checks.list_jobs,
        "jobs_left": drain.jobs_left,
        "node_answers": checks.node_answers,
        "still_silent": checks.still_silent,
        "still_slow": checks.still_slow,
        "fabric_state": node_work.fabric_state,
        "link_counters": site_command.link_counters,
        "history": checks.history,
        "hung": hang.hung,
        "stacks": hang.stacks,
        "spare_ready": spares.spare_ready,
        "spare_inside": swap.spare_inside,
        "memory_health": node_work.memory_health,
        "second_look": ask_node.second_look,
        "power_state": power.power_state,
    }
)

#: Actions for `wait:`.
WAITS = _read_only(
    {
        "job_end_or_checkpoint": waits.job_end_or_checkpoint,
        "job_end": waits.job_end,
        "checkpoint": waits.checkpoint,
        "job_runs": waits.job_runs,
        GOES_ON_WITHOUT: swap.goes_on_without,
        "lifted": checks.lifted,
        "time": waits.time,
        "approval": waits.approval,
        "empty": checks.empty,
        "told_out": checks.reports_ended,
        "reached": checks.reached,
        "repair": waits.repair,
    }
)

#: The calls that change Slurm, by verb.
_CALLS: Mapping[Verb, tuple[SlurmCall, ...]] = MappingProxyType(
    {
        Verb.drain: (SlurmCall.drain,),
        Verb.undrain: (SlurmCall.undrain,),
        Verb.resume: (SlurmCall.resume,),
        Verb.down: (SlurmCall.down,),
        Verb.reboot: (SlurmCall.reboot,),
        Verb.reserve: (SlurmCall.reserve, SlurmCall.resume, SlurmCall.unreserve),
        Verb.shrink: (SlurmCall.shrink,),
        Verb.requeue: (SlurmCall.requeue, SlurmCall.start_now),
        Verb.revive: (SlurmCall.revive, SlurmCall.start_now),
        Verb.sweep: (SlurmCall.submit, SlurmCall.cancel),
        Verb.bisect: (SlurmCall.submit, SlurmCall.cancel),
    }
)


def calls_of(step: Step) -> tuple[SlurmCall, ...]:
    """The calls that an adapter must support for this step. If it does not, the step asks a person."""
    if step.do is Verb.diagnose and (step.input.get("script") or step.input.get("depth")):
        return (SlurmCall.submit,)
    return _CALLS.get(step.do, ()) if step.do is not None else ()


#: Checks that `probe` and `verify` of a step may add to those of its verb; they change nothing.
_EXTRA_CHECKS = _read_only(
    {"fabric_state": node_work.fabric_state, "node_answers": checks.node_answers, "job_works": hang.job_works}
)
_LOOK_AGAIN_S = 2.0


def action_of(step: Step) -> Action:
    """The action of a step, with the extra checks of its `probe` and `verify`."""
    if step.do is None:
        return CHECKS[step.check] if step.check is not None else WAITS[step.wait or ""]
    if step.probe is None and step.verify is None:
        return VERBS[step.do]
    return _with_checks(VERBS[step.do], step.probe, step.verify)


@lru_cache(maxsize=256)
def _with_checks(action: Action, probe: str | None, verify: str | None) -> Action:
    def looks(ctx: Context) -> Result | None:
        seen = _EXTRA_CHECKS[probe].verify(ctx) if probe is not None else None
        if isinstance(seen, Skipped):  # must not be done, which is different from already done
            return seen
        if seen is not None and _passes(seen):
            return Done(say("actions.passes_already", check=probe), {"probe": probe})
        found = action.probe(ctx)
        return found and also(found, ctx)

    def also(found: Result, ctx: Context) -> Result:
        if verify is None or not isinstance(found, Done) or found.data.get("passed") is False:
            return found
        seen = _EXTRA_CHECKS[verify].verify(ctx)
        if _passes(seen):
            return msgspec.structs.replace(found, text=joined([found.text, seen.text], "semicolon"))
        if isinstance(seen, Failed):
            return seen
        text = say("actions.passes_not_yet", text=found.text, check=verify, seen=seen.text)
        return Again(text, _LOOK_AGAIN_S)

    def does(ctx: Context) -> Result | None:
        found = action.do(ctx)
        return found and also(found, ctx)

    def reads_back(ctx: Context) -> Result:
        return also(action.verify(ctx), ctx)

    return msgspec.structs.replace(action, probe=looks, do=does, verify=reads_back)


def _passes(seen: Result) -> bool:
    return isinstance(seen, Done) and seen.data.get("passed") is not False
