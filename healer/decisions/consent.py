"""Guards over consent: the job's consent, the rule's mode, a person's approval, other people's reservations;
and the promotion of rules to auto.

The first runs of a new rule wait for a person, and mode auto needs proof. A mode from the files or
HEALER_MODE was set by a person and needs no proof; a mode set at run time does. Demotion is always possible,
and so is the return to the mode of the files.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from healer.decisions.comments import KEEP, OPT_IN, SWAP, restart_consent, wish_of
from healer.decisions.node_facts import (
    allow,
    hold,
    job_of,
    node_of,
    parts_of,
    refuse,
    rides,
    settings_of,
    unknown_node,
)
from healer.decisions.sweeps import spares
from healer.model import (
    IRREVERSIBLE_VERBS,
    RESTARTING_VERBS,
    Answer,
    GateFacts,
    Guard,
    Mode,
    Playbook,
    PromotionPolicy,
    Proof,
    Proposal,
    Reservation,
    Ruleset,
    Run,
    RunState,
    SlurmJob,
    SlurmNode,
    Trial,
    Verb,
)
from healer.model.gate import CLOCKS_DIFFER
from healer.model.grants import OWNED
from healer.model.person_names import count_people
from healer.model.slurm import is_our_reservation, is_ours, our_reservation
from healer.text import Said, at, joined, say

#: DOWN without a person: the node's jobs must all have been completing for this long (law 8).
STUCK_FOR = timedelta(seconds=30)


def irreversible(proposal: Proposal, facts: GateFacts, now: datetime) -> Answer:
    """Guard `irreversible`: one person in every mode, and a second one besides the requester unless the node
    is drained and empty. A time-out never approves."""
    if proposal.verb is Verb.down and (why := _why_down_takes_nothing(proposal, facts, now)):
        return allow(Guard.approval, why)
    # A service account is not a person: its request needs a person, like healer's own.
    people = {name for name in (proposal.by, proposal.approved_by) if name and OWNED not in name}
    asked = proposal.by is not None and proposal.by in people
    needed = 2 if asked and not _drained_and_empty(proposal, facts) else 1
    counted = count_people(people)
    if counted >= needed:
        why = say("decisions.agreed_by", people=joined(sorted(people), "and"))
        return allow(Guard.approval, why, used=counted, limit=needed)
    verb = say(f"words.verb_{proposal.verb}")
    if not people:
        return hold(Guard.approval, say("decisions.needs_person", verb=verb), used=0, limit=needed)
    why = say("decisions.needs_second", verb=verb, who=proposal.by)
    return hold(Guard.approval, why, used=counted, limit=needed)


def cannot_be_undone(playbook: Playbook) -> bool:
    """Whether the requester may never approve the run, whatever rules/access.yaml allows."""
    # DOWN that only frees a node needs one person; the gate checks any other DOWN when the run gets there.
    never_alone = IRREVERSIBLE_VERBS - {Verb.down}
    return any(step.do in never_alone for step in playbook.steps)


#: What a person's run waits for that another person has to approve before it begins.
_SECOND_TO_BEGIN = frozenset(
    {"decisions.needs_second", "decisions.needs_person", "decisions.duty_needs_second"}
)


def waits_for_second(run: Run) -> bool:
    """A run that a person requested, and that another person has to approve before it begins."""
    if run.state is not RunState.held or run.approved_by is not None or run.question is None:
        return False
    return run.question.key in _SECOND_TO_BEGIN


def _why_down_takes_nothing(proposal: Proposal, facts: GateFacts, now: datetime) -> Said | None:
    """Why DOWN ends no work: healer drained the node, and its jobs are all completing or gone.

    `proposal.stuck_since` comes from the run's log; a snapshot taken after it must still show the same.
    """
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None or not (node.drain and is_ours(node.reason)):
        return None
    jobs = facts.snapshot.jobs_on(node.name)
    if any("COMPLETING" not in job.flags for job in jobs):
        return None
    if not jobs and not node.busy:
        return say("decisions.drained_no_job", node=node.name)
    since, now = proposal.stuck_since, facts.earlier(now)
    if not jobs or since is None or now - since < STUCK_FOR or facts.snapshot.taken_at <= since:
        return None
    stuck_s = (now - since).total_seconds()
    return say("decisions.drained_jobs_stuck", node=node.name, stuck_s=stuck_s)


def _drained_and_empty(proposal: Proposal, facts: GateFacts) -> bool:
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return False
    return node.drain and not node.busy and not facts.snapshot.jobs_on(node.name)


#: Verbs that stop or slow every program on the node, so the node must be empty. Restarting the fabric manager
#: ends the NVLink traffic of all jobs, and tests take whole GPUs.
_NEEDS_EMPTY = frozenset({Verb.reset_gpu, Verb.reboot, Verb.restart_service, Verb.diagnose, Verb.reserve})


def consent(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `consent`: law 8, for jobs. What Slurm itself refuses also binds a person's request."""
    if proposal.verb in RESTARTING_VERBS or proposal.verb is Verb.shrink:
        return _of_job(proposal, facts, rules)
    if proposal.verb in _NEEDS_EMPTY or proposal.empties:
        return _needs_empty(proposal, facts)
    return allow(Guard.consent, say("decisions.no_consent_needed"))


def _of_job(proposal: Proposal, facts: GateFacts, rules: Ruleset) -> Answer:
    job = job_of(proposal, facts)
    if facts.snapshot is None:
        return hold(Guard.consent, say("decisions.job_no_picture", job=proposal.job))
    if job is None:
        return _answer_unseen_job(proposal, facts, facts.snapshot.taken_at)
    return _shrink(job, proposal) if proposal.verb is Verb.shrink else _restart(job, proposal, facts, rules)


def _restart(job: SlurmJob, proposal: Proposal, facts: GateFacts, rules: Ruleset) -> Answer:
    if why := why_not_restartable(job):
        return refuse(Guard.consent, why)
    if proposal.by is not None:
        return allow(Guard.consent, say("decisions.asks_for_it", who=proposal.by))
    if any(wish_of(part).keep for part in parts_of(proposal, facts)):
        return refuse(Guard.consent, say("decisions.left_to_owner", job=job.id, word=KEEP))
    if proposal.one_word and proposal.verb is Verb.requeue and not is_agreed(proposal):
        return refuse(Guard.consent, say("decisions.relay_against_node", job=job.id))
    if why := restart_consent(job, settings_of(rules, facts.cluster).consent):
        return allow(Guard.consent, why)
    if proposal.node is None and proposal.approved_by is not None:
        return allow(Guard.consent, say("decisions.approved_for_job", who=proposal.approved_by, job=job.id))
    if proposal.agreed_by is not None:
        return allow(Guard.consent, say("decisions.agreed_for_job", who=proposal.agreed_by, job=job.id))
    if job.no_kill:
        return refuse(Guard.consent, say("decisions.no_kill", job=job.id))
    if proposal.verb is Verb.requeue and (proposal.unusable or proposal.fatal):
        cause = "unusable" if proposal.unusable else "fatal"
        return allow(Guard.consent, say(f"decisions.requeue_{cause}", job=job.id))
    return refuse(Guard.consent, say("decisions.did_not_agree", job=job.id, word=OPT_IN))


def _shrink(job: SlurmJob, proposal: Proposal) -> Answer:
    """Only the job's own opt-in gives up a node, no matter who asks: a person cannot know that the job will
    continue."""
    if proposal.node not in job.nodes:
        return allow(Guard.consent, say("decisions.swap_has_left", job=job.id, node=proposal.node))
    if why := why_not_without(job, proposal.node):
        return refuse(Guard.consent, why)
    wish = wish_of(job)
    return allow(
        Guard.consent,
        say("decisions.swap_agrees", job=job.id, word=f"{SWAP}{wish.least}"),
        used=len(job.nodes) - 1,
        limit=wish.least,
    )


def why_not_without(job: SlurmJob, node: str) -> Said | None:
    """Why the job keeps this node until it is restarted; None: it agreed to continue without it, and Slurm
    can remove it."""
    wish = wish_of(job)
    if wish.keep:
        return say("decisions.left_to_owner", job=job.id, word=KEEP)
    if not wish.least:
        return say("decisions.did_not_agree", job=job.id, word=f"{SWAP}N")
    if not job.batch or job.het_job or job.state != "RUNNING" or job.flags:
        return say("decisions.swap_not_running", job=job.id)
    if len(job.nodes) - 1 < wish.least:
        return say("decisions.swap_no_spare", job=job.id, nodes=len(job.nodes), least=wish.least)
    if node == job.nodes[0]:
        return say("decisions.swap_batch_host", job=job.id, node=node)
    return None


def is_agreed(proposal: Proposal) -> bool:
    """A person consented to this very restart. The approval of a run on a job covers its restart; the
    approval of a run on a node covers no job."""
    on_job = proposal.node is None and proposal.approved_by is not None
    return on_job or proposal.agreed_by is not None


def why_not_restartable(job: SlurmJob) -> Said | None:
    """Why Slurm refuses to restart this job, and what its owner can do; None if Slurm allows it."""
    if "REVOKED" in {job.state, *job.flags}:
        where = ", ".join(cluster for cluster in (*job.siblings, job.origin) if cluster)
        return say("decisions.is_a_copy", job=job.id, where=where or say("decisions.another_cluster"))
    if not job.batch:
        return say("decisions.not_by_sbatch", job=job.id)
    if not job.requeue:
        # The id of an array's last task means the whole array to Slurm.
        name = job.title if job.array_job else job.leader
        return say("decisions.asks_no_requeue", job=job.id, name=name)
    return None


def _answer_unseen_job(proposal: Proposal, facts: GateFacts, taken_at: datetime) -> Answer:
    """The answer for a job that the snapshot does not show: the snapshot is older than the job, or the job
    ended and Slurm forgot it.

    The jobs of a drained node are older than its drain, and the job that a person names is older than their
    run. So a snapshot taken after that shows them and their owners, and the hold ends with it. A job that no
    such snapshot shows is over, and the step of a person's run says so.
    """
    when, job = at(taken_at), proposal.job
    slot = facts.held.get(proposal.node or "")
    since = proposal.begun_at if proposal.by is not None else None
    if slot is not None:
        since = slot.drained_at or slot.granted_at
    if since is not None and taken_at < since + CLOCKS_DIFFER:
        return hold(Guard.consent, say("decisions.unseen_newer", when=when, job=job))
    if proposal.by is not None:
        return allow(Guard.consent, say("decisions.unseen_asked", when=when, job=job, who=proposal.by))
    return refuse(Guard.consent, say("decisions.unseen_gone", when=when, job=job))


def _needs_empty(proposal: Proposal, facts: GateFacts) -> Answer:
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.consent, proposal, facts)
    jobs = facts.snapshot.jobs_on(node.name)
    if jobs or node.busy:
        return hold(Guard.consent, _still_on(jobs, node.name), used=len(jobs))
    if proposal.verb is Verb.diagnose and (kept := our_reservation(facts.snapshot, node.name)):
        why = say("decisions.takes_tests", node=node.name, name=kept.name)
        return allow(Guard.consent, why, used=0)
    if not node.drain and not (node.base == "DOWN" and is_ours(node.reason)):  # so a reboot leaves it
        return hold(Guard.consent, say("decisions.not_drained_yet", node=node.name))
    return allow(Guard.consent, say("decisions.drained_empty", node=node.name), used=0)


def _still_on(jobs: list[SlurmJob], node: str) -> Said:
    if not jobs:
        return say("decisions.work_still_on", node=node)
    shown = ", ".join(job.id for job in jobs[:3])
    if len(jobs) > 3:
        return say("decisions.more_still_on", jobs=shown, more=len(jobs) - 3, node=node)
    return say("decisions.jobs_still_on", jobs=shown, node=node, count=len(jobs))


def mode(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `mode`: how far the rule may go by itself. A person's request has no rule."""
    if proposal.by is not None:
        return allow(Guard.mode, say("decisions.person_asks", who=proposal.by))
    current = facts.modes.get(proposal.rule, proposal.mode)
    if proposal.ride:
        return allow(Guard.mode, say(f"decisions.answered_{current}"))
    rule = proposal.rule or "(none)"
    if current is Mode.off:
        return refuse(Guard.mode, say("decisions.rule_off", rule=rule))
    if current is Mode.shadow:
        return hold(Guard.mode, say("decisions.rule_shadow", rule=rule))
    if current is Mode.suggest and not proposal.approved_by:
        return hold(Guard.mode, say("decisions.rule_suggest", rule=rule))
    return allow(Guard.mode, say(f"decisions.mode_is_{current}", rule=rule))


def approval(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `approval`: mode approve needs one person, and so do the first runs of a new rule. Irreversible
    verbs have their own guard."""
    if proposal.verb in IRREVERSIBLE_VERBS:
        return irreversible(proposal, facts, now)
    if proposal.by is not None:
        if not proposal.approved_by and rules.access.needs_second(proposal.playbook):
            why = say("decisions.duty_needs_second", playbook=proposal.playbook, who=proposal.by)
            return hold(Guard.approval, why, used=1, limit=2)
        return allow(Guard.approval, _asks_is_approval(proposal, rules))
    if proposal.approved_by:
        return allow(Guard.approval, say("decisions.approved_by", who=proposal.approved_by))
    if proposal.doubt:
        why = say("decisions.person_decides", doubt=proposal.doubt)
        return hold(Guard.approval, why, used=0, limit=1)
    if proposal.ride:
        return allow(Guard.approval, say("decisions.no_approval_needed"))
    current = facts.modes.get(proposal.rule, proposal.mode)
    if current is Mode.approve:
        why = say("decisions.waits_for_approval", rule=proposal.rule)
        return hold(Guard.approval, why, used=0, limit=1)
    if current is Mode.auto and (trial := trial_of(proposal, facts, rules)):
        return hold(Guard.approval, trial_text(trial), used=0, limit=1)
    return allow(Guard.approval, say("decisions.no_approval_needed"))


def _asks_is_approval(proposal: Proposal, rules: Ruleset) -> Said:
    playbook = rules.playbooks.get(proposal.playbook or "")
    if playbook is not None and cannot_be_undone(playbook):
        return say("decisions.asks_is_approval_yet", who=proposal.by, playbook=playbook.name)
    return say("decisions.asks_is_approval", who=proposal.by)


def reserved(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `reserved`: for a job the spares, for a node the reservation that needs it.

    A node with a fatal fault is of no use to a reservation, so none keeps it; a slow or ageing node stays. A
    person who names it in a request, or approved it, may take it.
    """
    if proposal.verb in RESTARTING_VERBS:
        return spares(proposal, facts, rules, now)
    node = node_of(proposal, facts)
    if facts.snapshot is None or node is None:
        return unknown_node(Guard.reserved, proposal, facts)
    kept = _reservation_of(node, facts, rules, now)
    if kept is None:
        return allow(Guard.reserved, say("decisions.not_reserved", node=node.name))
    here = [facts.snapshot.nodes[name] for name in kept.nodes if name in facts.snapshot.nodes]
    standing = sum(member.in_service for member in here)
    figures: dict[str, Any] = {
        "name": kept.name,
        "all": len(kept.nodes),
        "standing": standing,
        "node": node.name,
    }
    share: dict[str, Any] = {"limit": len(kept.nodes), "used": standing}
    if rides(proposal, facts) or not node.in_service:
        return allow(Guard.reserved, say("decisions.reserved_out", **figures), **share)
    if proposal.unusable or proposal.fatal:
        return allow(Guard.reserved, say("decisions.reserved_no_use", **figures), **share)
    if person := proposal.by or proposal.approved_by:
        return allow(Guard.reserved, say("decisions.reserved_taken", who=person, **figures), **share)
    return hold(Guard.reserved, say("decisions.reserved_stays", **figures), frees_at=kept.until, **share)


def _reservation_of(node: SlurmNode, facts: GateFacts, rules: Ruleset, now: datetime) -> Reservation | None:
    """The reservation that needs this node now or soon; of several, the one that ends last.

    Maintenance (guard `maintenance`), healer's tests and the spares do not count.
    """
    spares = settings_of(rules, facts.cluster).spares
    reservations = facts.snapshot.reservations.values() if facts.snapshot else ()
    standing = [
        reservation
        for reservation in reservations
        if node.name in reservation.nodes
        and not reservation.maintenance
        and not is_our_reservation(reservation)
        and not (spares is not None and reservation.name == spares.reservation)
        and not reservation.replaces
        and reservation.is_soon(now)
    ]
    last = datetime.max.replace(tzinfo=now.tzinfo)
    return max(standing, key=lambda reservation: (reservation.until or last, reservation.name), default=None)


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


def trial_text(trial: Trial) -> Said:
    """The guard's sentence: `Rule gpu-lost is new or changed since …: a person approves 3 more runs.`"""
    kind, _, name = trial.name.partition("/")
    return say(f"decisions.trial_{kind}", name=name, since=at(trial.since), count=trial.left)


def promotion_obstacle(proof: Proof, earn: PromotionPolicy) -> Said | None:
    """What keeps the rule from mode auto, in one sentence; None if nothing does."""
    if proof.judged < earn.incidents:
        return say("decisions.too_few_judged", judged=proof.judged, needed=earn.incidents)
    if proof.precision is not None and proof.precision < earn.precision:
        return say(
            "decisions.too_few_right",
            right=proof.right,
            judged=proof.judged,
            precision=proof.precision,
            needed=earn.precision,
        )
    return None


def demotion_reason(mode: Mode, proof: Proof, earn: PromotionPolicy) -> Said | None:
    """Why a rule in mode auto must ask again; None if it may stay.

    Its newest incidents include more false alarms than the required precision allows in the full number: a
    rule that was wrong twice in its first three need not complete thirty.
    """
    at_best = (earn.incidents - proof.wrong) / earn.incidents
    if mode is not Mode.auto or at_best >= earn.precision:
        return None
    return say("decisions.asks_first_now", wrong=proof.wrong, judged=proof.judged)
