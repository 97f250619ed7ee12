"""Whether a drain that Slurm itself made is ours: it came of a hook that was permitted to fail."""

from collections.abc import Iterable
from datetime import timedelta

from healer.model.gate import Permit
from healer.model.reasons import slurm_kind
from healer.model.slurm import SlurmJob
from healer.model.slurm_node import SlurmNode

#: Hooks whose failure drains the node, and the reason that Slurm gives then.
DRAINING_HOOKS = {"prolog": "prolog-error", "epilog": "epilog-error"}
#: Slurm notes whole seconds by its own clock, the permit is noted by ours.
_CLOCKS_DIFFER = timedelta(seconds=5)


def permit_for(node: SlurmNode, permits: Iterable[Permit]) -> Permit | None:
    """The permit by which Slurm itself drained the node, if that drain is ours.

    By the reason that Slurm gives, and its moment: a hook that failed by itself later is none.
    """
    kind = slurm_kind(node.reason) if node.drain else None
    if kind is None or node.reason_at is None:
        return None
    for permit in permits:
        told = permit.node == node.name and DRAINING_HOOKS.get(permit.hook) == kind
        if told and permit.at - _CLOCKS_DIFFER <= node.reason_at <= permit.until:
            return permit
    return None


def held_after_launch(job: SlurmJob) -> bool:
    """Slurm itself put the job back and holds it, because it could not be started (d.11 of the facts).

    The words are told with spaces or underscores; a hold that a person set has others.
    """
    said = f"{job.why} {job.reason}".replace("_", " ").lower()
    return job.state == "PENDING" and bool(job.held_by) and "launch failed requeued held" in said
