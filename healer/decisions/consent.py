"""Guards over consent: the job's, the rule's mode, the approval of a person; and promotion of rules to auto.

The first runs of a new rule wait for a person, and mode auto needs proof. A mode from the files or
HEALER_MODE was set by a person and needs no proof; one that is set while healer runs does. Demotion is always
possible, and so is the return to the mode of the files.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from healer.decisions.book_mismatch import CLOCKS_DIFFER
from healer.decisions.comments import KEEP, OPT_IN, restart_consent, wish_of
from healer.decisions.node_facts import allow, at, hold, job_of, node_of, refuse, settings_of, unknown_node
from healer.model import (
    IRREVERSIBLE_VERBS,
    RESTARTING_VERBS,
    Answer,
    GateFacts,
    Guard,
    Mode,
    PromotionPolicy,
    Proof,
    Proposal,
    Ruleset,
    SlurmJob,
    Trial,
    Verb,
)
from healer.model.slurm import is_ours, our_reservation

#: DOWN without a person: the node's jobs have all been completing for so long (law 8).
STUCK_FOR = timedelta(seconds=30)


def irreversible(proposal: Proposal, facts: GateFacts, now: datetime) -> Answer:
    """One person in every mode, and a second one besides the requester unless the node is drained and empty.
    A time-out never approves."""
    if proposal.verb is Verb.down and (why := _why_down_takes_nothing(proposal, facts, now)):
        return allow(Guard.approval, why)
    people = {person for person in (proposal.by, proposal.approved_by) if person}
    needed = 1 if proposal.by is None or _drained_and_empty(proposal, facts) else 2
    if len(people) >= needed:
        return allow(
            Guard.approval, f"Agreed by {' and '.join(sorted(people))}.", used=len(people), limit=needed
        )
    what = f"{proposal.verb} cannot be undone"
    if not people:
        return hold(Guard.approval, f"{what}: it needs a person.", used=0, limit=needed)
    why = f"{what}: beside {proposal.by} a second person must approve."
    return hold(Guard.approval, why, used=len(people), limit=needed)


def _why_down_takes_nothing(proposal: Proposal, facts: GateFacts, now: datetime) -> str | None:
    """Why DOWN stops no work: healer drained the node, and its jobs are all completing or gone.

    `proposal.stuck_since` comes from the run's log; a picture taken after it must still show the same.
    """
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None or not (node.drain and is_ours(node.reason)):
        return None
    jobs = facts.snapshot.jobs_on(node.name)
    if any("COMPLETING" not in job.flags for job in jobs):
        return None
    if not jobs and not node.busy:
        return f"healer drained {node.name}, and no job is on it."
    since = proposal.stuck_since
    if not jobs or since is None or now - since < STUCK_FOR or facts.snapshot.taken_at <= since:
        return None
    stuck_s = (now - since).total_seconds()
    return f"healer drained {node.name}, and its jobs have been completing for {stuck_s:.0f} s."


def _drained_and_empty(proposal: Proposal, facts: GateFacts) -> bool:
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return False
    return node.drain and not node.busy and not facts.snapshot.jobs_on(node.name)


#: Verbs that stop or slow every program on the node, which must be empty. A restarted fabric manager ends the
#: NVLink traffic of all jobs, and tests take whole GPUs.
_NEEDS_EMPTY = frozenset({Verb.reset_gpu, Verb.reboot, Verb.restart_service, Verb.diagnose, Verb.reserve})


def consent(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Law 8, for jobs. What Slurm itself refuses binds a person's request too."""
    if proposal.verb in RESTARTING_VERBS:
        return _restart(proposal, facts, rules)
    if proposal.verb in _NEEDS_EMPTY or proposal.empties:
        return _needs_empty(proposal, facts)
    return allow(Guard.consent, "No job's consent is needed.")


def _restart(proposal: Proposal, facts: GateFacts, rules: Ruleset) -> Answer:
    job = job_of(proposal, facts)
    if facts.snapshot is None:
        return hold(Guard.consent, f"Job {proposal.job}: There is no picture of Slurm yet.")
    if job is None:
        return _answer_unseen_job(proposal, facts, facts.snapshot.taken_at)
    if why := why_not_restartable(job):
        return refuse(Guard.consent, why)
    if proposal.by is not None:
        return allow(Guard.consent, f"{proposal.by} asks for it.")
    if wish_of(job).keep:
        return refuse(Guard.consent, f"The comment of job {job.id} says {KEEP}: it is left to its owner.")
    if proposal.one_word and proposal.verb is Verb.requeue and not _is_agreed(proposal):
        why = f"Only a relay's text is against the node of job {job.id}, which may still work: it runs on."
        return refuse(Guard.consent, why)
    if why := restart_consent(job, settings_of(rules, facts.cluster).consent):
        return allow(Guard.consent, why)
    if proposal.node is None and proposal.approved_by is not None:
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


def _is_agreed(proposal: Proposal) -> bool:
    """A person agreed to this very restart. The approval of a run on a job covers it; that of a run on a node
    covers no job."""
    on_job = proposal.node is None and proposal.approved_by is not None
    return on_job or proposal.agreed_by is not None


def why_not_restartable(job: SlurmJob) -> str | None:
    """Why Slurm refuses to restart this job, and what its owner can do; None if Slurm allows it."""
    if "REVOKED" in {job.state, *job.flags}:
        where = ", ".join(cluster for cluster in (*job.siblings, job.origin) if cluster) or "another cluster"
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


def _answer_unseen_job(proposal: Proposal, facts: GateFacts, taken_at: datetime) -> Answer:
    """The picture is older than the job, or the job ended and Slurm forgot it.

    The jobs of a drained node are older than its drain, so a picture taken after the drain shows them: the
    hold ends with the next picture. A person's request needs no picture: the step reads the job before it
    acts.
    """
    unseen = f"Slurm's picture of {at(taken_at)} does not show job {proposal.job}"
    if proposal.by is not None:
        return allow(Guard.consent, f"{unseen}; {proposal.by} asks for it.")
    slot = facts.held.get(proposal.node or "")
    if slot is not None and taken_at < (slot.drained_at or slot.granted_at) + CLOCKS_DIFFER:
        return hold(Guard.consent, f"{unseen}, and may be older than the job: the next one will tell.")
    return refuse(Guard.consent, f"{unseen}: it ended, or nobody can tell that it agreed.")


def _needs_empty(proposal: Proposal, facts: GateFacts) -> Answer:
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.consent, proposal, facts)
    jobs = facts.snapshot.jobs_on(node.name)
    if jobs or node.busy:
        return hold(
            Guard.consent, f"{_jobs_text(jobs)} still on {node.name}: it must be empty first.", used=len(jobs)
        )
    if proposal.verb is Verb.diagnose and (kept := our_reservation(facts.snapshot, node.name)):
        return allow(Guard.consent, f"{node.name} takes tests alone ({kept.name}) and is empty.", used=0)
    if not node.drain and not (node.base == "DOWN" and is_ours(node.reason)):  # so a reboot leaves it
        return hold(Guard.consent, f"{node.name} is not drained: a job could start meanwhile.")
    return allow(Guard.consent, f"{node.name} is drained and empty.", used=0)


def _jobs_text(jobs: list[SlurmJob]) -> str:
    if not jobs:
        return "Slurm shows work"
    shown = ", ".join(job.id for job in jobs[:3])
    more = f" and {len(jobs) - 3} more are" if len(jobs) > 3 else " are" if len(jobs) > 1 else " is"
    return f"{'Jobs' if len(jobs) > 1 else 'Job'} {shown}{more}"


def mode(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """How far the rule may go by itself. A person's request has no rule."""
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
    """Mode approve needs one person; so do the first runs of a new rule. Irreversible verbs have their
    own."""
    if proposal.verb in IRREVERSIBLE_VERBS:
        return irreversible(proposal, facts, now)
    if proposal.by is not None:
        return allow(Guard.approval, f"{proposal.by} asks: no further approval is needed.")
    if proposal.approved_by:
        return allow(Guard.approval, f"Approved by {proposal.approved_by}.")
    if proposal.doubt:
        return hold(Guard.approval, f"{proposal.doubt}: a person decides.", used=0, limit=1)
    if proposal.ride:
        return allow(Guard.approval, "No approval is needed.")
    current = facts.modes.get(proposal.rule, proposal.mode)
    if current is Mode.approve:
        return hold(Guard.approval, f"Rule {proposal.rule} waits for a person's approval.", used=0, limit=1)
    if current is Mode.auto and (trial := trial_of(proposal, facts, rules)):
        return hold(Guard.approval, trial_text(trial), used=0, limit=1)
    return allow(Guard.approval, "No approval is needed.")


# --- promotion ----------------------------------------------------------------------------------------------


def trial_of(proposal: Proposal, facts: GateFacts, rules: Ruleset) -> Trial | None:
    """The open trial of the proposal's rule or playbook. A run that began before the trial is not
    affected."""
    begun = proposal.begun_at
    open_trials = [trial for trial in facts.trials if begun is None or trial.since <= begun]
    return open_trial(proposal.rule, proposal.playbook, open_trials, rules)


def open_trial(rule: str, playbook: str | None, trials: Sequence[Trial], rules: Ruleset) -> Trial | None:
    """Of the trials of a rule and its playbook, the one with the most runs left; None if both are proven."""
    names = {f"rule/{rule}", f"playbook/{playbook}"}
    matching = (trial for trial in trials if trial.left > 0 and trial.name in names)
    return max(
        (trial for trial in matching if rules.texts.get(trial.name) == trial.digest),
        key=lambda trial: trial.left,
        default=None,
    )


def trial_text(trial: Trial) -> str:
    """The guard's sentence: `Rule gpu-lost is new or changed since …: a person approves 3 more runs.`"""
    kind, _, name = trial.name.partition("/")
    runs = f"{trial.left} more runs" if trial.left > 1 else "one more run"
    return f"{kind.capitalize()} {name} is new or changed since {at(trial.since)}: a person approves {runs}."


def promotion_obstacle(proof: Proof, earn: PromotionPolicy) -> str | None:
    """What keeps the rule from mode auto, in one sentence; None if nothing does."""
    if proof.judged < earn.incidents:
        return (
            f"{proof.judged} of {earn.incidents} incidents of it are judged that auto needs: review more of "
            "them, or set the mode in rules/"
        )
    if proof.precision is not None and proof.precision < earn.precision:
        return (
            f"{proof.right} of the last {proof.judged} incidents of it were true faults "
            f"({proof.precision:.2f}), auto needs {earn.precision:.2f}"
        )
    return None


def demotion_reason(mode: Mode, proof: Proof, earn: PromotionPolicy) -> str | None:
    """Why a rule in mode auto must ask again; None if it may stay.

    It had more false alarms among its newest incidents than the required precision allows in the full number:
    a rule that was wrong twice in its first three need not complete thirty.
    """
    allowed = (1 - earn.precision) * earn.incidents
    if mode is not Mode.auto or proof.wrong <= allowed:
        return None
    return f"{proof.wrong} of its last {proof.judged} judged incidents were false alarms: it asks first now"
