"""Guards over consent: the job's, the rule's mode, and the approval of a person."""

from datetime import datetime

from healer.decisions.answers import allow, at, hold, refuse
from healer.decisions.guards import unknown_node
from healer.decisions.irreversible import irreversible
from healer.decisions.places import job_of, node_of, settings_of
from healer.decisions.trials import trial_of, waits
from healer.decisions.wishes import KEEP, OPT_IN, agreed, wish_of
from healer.incidents.lifecycle import CLOCKS_DIFFER
from healer.model import (
    IRREVERSIBLE_VERBS,
    RESTARTING_VERBS,
    Answer,
    GateFacts,
    Guard,
    Mode,
    Proposal,
    Ruleset,
    SlurmJob,
    Verb,
)
from healer.model.reasons import is_ours
from healer.model.reserved import our_reservation

#: What stops or slows every program on the node: it must be empty. A restarted fabric manager ends the NVLink
#: work of all jobs, and tests take whole GPUs.
_NEEDS_EMPTY = frozenset({Verb.reset_gpu, Verb.reboot, Verb.restart_service, Verb.diagnose, Verb.reserve})


def consent(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Law 8, for jobs. Slurm's own word binds a person too: it would refuse the request anyway."""
    if proposal.verb in RESTARTING_VERBS:
        return _restart(proposal, facts, rules)
    if proposal.verb in _NEEDS_EMPTY or proposal.empties:
        return _empty(proposal, facts)
    return allow(Guard.consent, "No job's consent is needed.")


def _restart(proposal: Proposal, facts: GateFacts, rules: Ruleset) -> Answer:
    job = job_of(proposal, facts)
    if facts.snapshot is None:
        return hold(Guard.consent, f"Job {proposal.job}: There is no picture of Slurm yet.")
    if job is None:
        return _unseen(proposal, facts, facts.snapshot.taken_at)
    if why := impossible(job):
        return refuse(Guard.consent, why)
    if proposal.by is not None:
        return allow(Guard.consent, f"{proposal.by} asks for it.")
    if wish_of(job).keep:
        return refuse(Guard.consent, f"The comment of job {job.id} says {KEEP}: it is left to its owner.")
    if why := agreed(job, settings_of(rules, facts.cluster).consent):
        return allow(Guard.consent, why)
    if proposal.node is None and proposal.approved_by is not None:
        # A run on a job: what was approved is this very restart. One on a node says nothing of its jobs.
        return allow(Guard.consent, f"{proposal.approved_by} approved it for job {job.id}.")
    if proposal.agreed_by is not None:
        return allow(Guard.consent, f"{proposal.agreed_by} agreed to it for job {job.id}.")
    if job.no_kill:
        why = f"Job {job.id} runs with --no-kill: it goes on with its other nodes, and is not restarted."
        return refuse(Guard.consent, why)
    if proposal.verb is Verb.requeue and (proposal.unusable or proposal.fatal):
        cause = "its node is surely unusable" if proposal.unusable else "a fatal GPU fault ended its work"
        return allow(Guard.consent, f"Slurm may requeue job {job.id}, and {cause}.")
    why = f"Job {job.id} did not agree to this: its comment would have to say {OPT_IN}."
    return refuse(Guard.consent, why)


def impossible(job: SlurmJob) -> str | None:
    """Why Slurm would restart this job for nobody, and what its owner can do; None where it may."""
    if "REVOKED" in {job.state, *job.flags}:
        where = ", ".join(one for one in (*job.siblings, job.origin) if one) or "another cluster"
        return f"Job {job.id} is a copy that does not run here: its federation runs it on {where}."
    if not job.batch:
        return (
            f"Job {job.id} was not submitted by sbatch: Slurm cannot requeue it. "
            "Its owner ends it and starts it anew."
        )
    if not job.requeue:
        return (
            f"Job {job.id} asks not to be requeued (Requeue=0). Its owner submits it again, or allows it: "
            f"scontrol update JobId={job.id} Requeue=1."
        )
    return None


def _unseen(proposal: Proposal, facts: GateFacts, taken_at: datetime) -> Answer:
    """Either the picture is older than the job, or the job ended and Slurm forgot it.

    The jobs of a drained node are older than its drain: a picture taken after that would show them. So this
    hold ends with the next picture, and a job that is gone holds nothing up. A person's word needs no
    picture: the step reads the job itself before it acts, and Slurm refuses what cannot be requeued.
    """
    unseen = f"Slurm's picture of {at(taken_at)} does not show job {proposal.job}"
    if proposal.by is not None:
        return allow(Guard.consent, f"{unseen}; {proposal.by} asks for it.")
    slot = facts.held.get(proposal.node or "")
    if slot is not None and taken_at < (slot.drained_at or slot.granted_at) + CLOCKS_DIFFER:
        return hold(Guard.consent, f"{unseen}, and may be older than the job: the next one will tell.")
    return refuse(Guard.consent, f"{unseen}: it ended, or nobody can tell that it agreed.")


def _empty(proposal: Proposal, facts: GateFacts) -> Answer:
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.consent, proposal, facts)
    jobs = facts.snapshot.jobs_on(node.name)
    if jobs or node.busy:
        return hold(
            Guard.consent, f"{_names(jobs)} still on {node.name}: it must be empty first.", used=len(jobs)
        )
    if proposal.verb is Verb.diagnose and (kept := our_reservation(facts.snapshot, node.name)):
        return allow(Guard.consent, f"{node.name} takes tests alone ({kept.name}) and is empty.", used=0)
    if not node.drain and not (node.base == "DOWN" and is_ours(node.reason)):  # so a reboot leaves it
        return hold(Guard.consent, f"{node.name} is not drained: a job could start meanwhile.")
    return allow(Guard.consent, f"{node.name} is drained and empty.", used=0)


def _names(jobs: list[SlurmJob]) -> str:
    if not jobs:
        return "Slurm shows work"
    shown = ", ".join(job.id for job in jobs[:3])
    more = f" and {len(jobs) - 3} more are" if len(jobs) > 3 else " are" if len(jobs) > 1 else " is"
    return f"{'Jobs' if len(jobs) > 1 else 'Job'} {shown}{more}"


def mode(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """How far the rule may go by itself. A person's request has no rule to ask."""
    if proposal.by is not None:
        return allow(Guard.mode, f"{proposal.by} asks.")
    current = facts.modes.get(proposal.rule, proposal.mode)
    if proposal.ride:
        return allow(Guard.mode, f"Answered when the run began; the mode is {current} now.")
    rule = f"Rule {proposal.rule or '(none)'} is in mode {current}"
    if current is Mode.off:
        return refuse(Guard.mode, f"{rule}: it does nothing.")
    if current is Mode.shadow:
        return hold(Guard.mode, f"{rule}: it is only watched.")
    if current is Mode.suggest and not proposal.approved_by:
        return hold(Guard.mode, f"{rule}: a person starts it.")
    return allow(Guard.mode, f"{rule}.")


def approval(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Mode approve needs one person; what cannot be undone needs one whatever the mode, and a second one
    beside the requester unless the node is drained and empty. Time never approves.
    """
    if proposal.verb in IRREVERSIBLE_VERBS:
        return irreversible(proposal, facts, now)
    if proposal.by is not None:
        return allow(Guard.approval, f"{proposal.by} asks: no further approval is needed.")
    if proposal.approved_by:
        return allow(Guard.approval, f"Approved by {proposal.approved_by}.")
    if proposal.ride:
        return allow(Guard.approval, "No approval is needed.")
    current = facts.modes.get(proposal.rule, proposal.mode)
    if current is Mode.approve:
        return hold(Guard.approval, f"Rule {proposal.rule} waits for a person's approval.", used=0, limit=1)
    if current is Mode.auto and (trial := trial_of(proposal, facts, rules)):
        return hold(Guard.approval, waits(trial), used=0, limit=1)
    return allow(Guard.approval, "No approval is needed.")
