"""The verbs a step may use: look, do, verify, undo. Nothing is done because a call returned 0."""

from collections.abc import Mapping
from types import MappingProxyType

from healer.actions import checks, drain, requeue, resume, tell
from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped
from healer.model import Verb

#: What `do:` may name.
VERBS: Mapping[Verb, Action] = MappingProxyType(
    {
        Verb.drain: drain.ACTION,
        Verb.resume: resume.ACTION,
        Verb.requeue: requeue.ACTION,
        Verb.ticket: tell.TICKET,
        Verb.notify: tell.NOTIFY,
    }
)

#: What `check:` and `wait:` may name.
CHECKS: Mapping[str, Action] = MappingProxyType(
    {"jobs_hit": checks.JOBS_HIT, "node_answers": checks.NODE_ANSWERS, "repair": checks.REPAIR}
)

__all__ = ["CHECKS", "VERBS", "Action", "Again", "Context", "Done", "Failed", "Result", "Skipped"]
