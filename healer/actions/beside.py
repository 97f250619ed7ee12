"""Checks that a playbook sets beside a verb's own probe and read-back."""

from functools import lru_cache

import msgspec

from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped
from healer.actions.checks import NODE_ANSWERS
from healer.actions.hang import JOB_WORKS
from healer.actions.nodes import FABRIC_STATE
from healer.model import Step

#: What `probe` and `verify` of a step may name: they look at the node, and change nothing of the run.
BESIDE = {"fabric_state": FABRIC_STATE, "node_answers": NODE_ANSWERS, "job_works": JOB_WORKS}
LOOK_AGAIN_S = 2.0


def beside(action: Action, step: Step) -> Action:
    """The verb's action with the step's own `probe` and `verify`, where it has any."""
    if step.probe is None and step.verify is None:
        return action
    return _composed(action, step.probe, step.verify)


@lru_cache(maxsize=256)
def _composed(action: Action, probe: str | None, verify: str | None) -> Action:
    def looks(ctx: Context) -> Result | None:
        seen = BESIDE[probe].verify(ctx) if probe is not None else None
        if isinstance(seen, Skipped):  # it is not done at all, which is another thing than done
            return seen
        if seen is not None and _passes(seen):
            return Done(text=f"{probe} passes already: there is nothing to do", data={"probe": probe})
        found = action.probe(ctx)
        return _also(found, ctx) if isinstance(found, Done) else found

    def reads_back(ctx: Context) -> Result:
        return _also(action.verify(ctx), ctx)

    def does(ctx: Context) -> Result | None:
        found = action.do(ctx)
        return _also(found, ctx) if isinstance(found, Done) else found

    def _also(found: Result, ctx: Context) -> Result:
        if verify is None or not isinstance(found, Done) or found.data.get("passed") is False:
            return found
        seen = BESIDE[verify].verify(ctx)
        if _passes(seen):
            return msgspec.structs.replace(found, text=f"{found.text}; {seen.text}")
        if isinstance(seen, Failed):
            return seen
        return Again(text=f"{found.text}; {verify} does not pass yet: {seen.text}", after_s=LOOK_AGAIN_S)

    return msgspec.structs.replace(action, probe=looks, do=does, verify=reads_back)


def _passes(seen: Result) -> bool:
    return isinstance(seen, Done) and seen.data.get("passed") is not False
