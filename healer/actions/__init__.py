"""The verbs a step may use: look, do, verify, undo. Nothing is done because a call returned 0."""

from collections.abc import Mapping
from types import MappingProxyType

from healer.actions import checks, drain, nodes, requeue, resume, tell, waits
from healer.actions.base import Action, Again, Context, Done, Failed, Result, Skipped
from healer.model import Verb

#: What `do:` may name.
VERBS: Mapping[Verb, Action] = MappingProxyType(
    {
        Verb.drain: drain.ACTION,
        Verb.resume: resume.ACTION,
        Verb.requeue: requeue.ACTION,
        Verb.restart_service: nodes.RESTART_SERVICE,
        Verb.diagnose: nodes.DIAGNOSE,
        Verb.ticket: tell.TICKET,
        Verb.notify: tell.NOTIFY,
    }
)

#: What `check:` may name.
CHECKS: Mapping[str, Action] = MappingProxyType(
    {
        "jobs_hit": checks.JOBS_HIT,
        "node_answers": checks.NODE_ANSWERS,
        "still_slow": checks.STILL_SLOW,
        "fabric_state": nodes.FABRIC_STATE,
    }
)

#: What `wait:` may name.
WAITS: Mapping[str, Action] = MappingProxyType(
    {"job_end_or_checkpoint": waits.MOMENT, "empty": waits.EMPTY, "repair": waits.REPAIR}
)

__all__ = ["CHECKS", "VERBS", "WAITS", "Action", "Again", "Context", "Done", "Failed", "Result", "Skipped"]
