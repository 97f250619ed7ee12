"""The one gate: every guard that applies to a proposal answers, in the order of `GUARDS`; all answers are
stored.

Every guard is `(proposal, facts, rules, now) -> Answer`. It reads nothing else, never raises on missing data
(an unknown is a hold with its reason) and returns the figure it compared. This module has the guards for
people's orders, the Slurm snapshot and history; `consent`, `capacity` and `sweeps` have the others.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta

import msgspec

from healer.decisions import capacity, consent
from healer.decisions.node_facts import (
    allow,
    hold,
    job_of,
    matches,
    node_of,
    parts_of,
    planned_window,
    refuse,
    settings_of,
    settings_of_job,
    settings_of_node,
    unknown_node,
)
from healer.decisions.sweeps import sweep
from healer.model import (
    JOB_VERBS,
    NODE_REMOVING,
    RESTARTING_VERBS,
    RETURNING_VERBS,
    SLOT_GUARDS,
    Answer,
    AnswerKind,
    BreakerState,
    GateFacts,
    Guard,
    NodeStatus,
    Outcome,
    Pause,
    Proposal,
    Remedy,
    RemedyUse,
    RequeueUse,
    Ruleset,
    Slot,
    SlurmJob,
    SlurmNode,
    Verb,
)
from healer.model.gate import permit_for
from healer.model.slurm import is_ours, our_reservation, slurm_kind
from healer.text import NO_WORDS, Said, at, quoted, say


def pause(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `pause`: holds every request, including a person's; a pause must be ended by name first."""
    standing = _active_pauses(proposal, facts, now)
    if not standing:
        return allow(Guard.pause, say("decisions.no_pause"))
    ends = [active.until for active in standing]
    frees_at = max((end for end in ends if end is not None), default=None) if all(ends) else None
    return hold(Guard.pause, _paused(standing), used=len(standing), limit=0, frees_at=frees_at)


def _paused(standing: Sequence[Pause]) -> Said:
    first, more = standing[0], len(standing) - 1
    name = first.name
    what = (
        say(f"decisions.in_scope_{first.scope}", name=name) if name else say(f"decisions.scope_{first.scope}")
    )
    if more:
        return say("decisions.paused_more", what=what, who=first.by, reason=first.reason, more=more)
    return say("decisions.paused", what=what, who=first.by, reason=first.reason)


def is_paused(proposal: Proposal, facts: GateFacts, now: datetime) -> bool:
    return bool(_active_pauses(proposal, facts, now))


def _active_pauses(proposal: Proposal, facts: GateFacts, now: datetime) -> list[Pause]:
    return [active for active in facts.pauses if concerns_proposal(active, proposal, facts, now)]


def concerns_proposal(paused: Pause, proposal: Proposal, facts: GateFacts, now: datetime) -> bool:
    """Whether this pause holds the proposal."""
    if paused.until is not None and paused.until <= facts.earlier(now):
        return False
    if paused.cluster and paused.cluster != proposal.cluster:
        return False
    node, jobs = node_of(proposal, facts), parts_of(proposal, facts)
    match paused.scope:
        case "all":
            return True
        case "cluster":
            return (paused.name or paused.cluster) == proposal.cluster
        case "partition":
            partitions = node.partitions if node else ()
            # A pending job may name several: `a,b`.
            return paused.name in partitions or any(paused.name in job.partition.split(",") for job in jobs)
        case "node":
            of_job = proposal.node is None and any(paused.name in job.nodes for job in jobs)
            return paused.name == proposal.node or of_job
        case "rule":
            return paused.name == proposal.rule
        case "playbook":
            return paused.name == proposal.playbook
    # A scope that this version does not know also holds.
    return True


def stale(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `stale`: actions fail closed. An old Slurm snapshot holds every request, including a person's."""
    limit_s = settings_of(rules, facts.cluster).stale_s
    if facts.snapshot is None:
        return hold(Guard.stale, say("decisions.no_picture"), limit=limit_s)
    age_s = (now - facts.snapshot.taken_at).total_seconds()
    if age_s > limit_s:
        why = say("decisions.picture_old", age_s=age_s, limit_s=limit_s)
        return hold(Guard.stale, why, limit=limit_s, used=age_s)
    if age_s < -limit_s:
        why = say("decisions.picture_ahead", ahead_s=-age_s)
        return hold(Guard.stale, why, limit=limit_s, used=age_s)
    why = say("decisions.picture_fresh", age_s=max(0.0, age_s))
    return allow(Guard.stale, why, limit=limit_s, used=age_s)


def ownership(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `ownership`, law 5: a person's drain is theirs, healer lifts only its own, and a person's resume
    of healer's drain is a veto."""
    node = node_of(proposal, facts)
    if node is None:
        return unknown_node(Guard.ownership, proposal, facts)
    if proposal.verb in RETURNING_VERBS:
        return _may_return(node, facts)
    if foreign := _why_not_ours(node, proposal, facts):
        return refuse(Guard.ownership, foreign)
    if proposal.by is None:
        vetoes = [veto for veto in facts.vetoes if veto.node == node.name and veto.until > facts.earlier(now)]
        if vetoes:
            last = max(vetoes, key=lambda veto: veto.until)
            why = say("decisions.vetoed", who=last.by, node=node.name, until=at(last.until))
            return hold(Guard.ownership, why, used=1, limit=0, frees_at=last.until)
    return allow(Guard.ownership, say("decisions.not_held", node=node.name))


def _why_not_ours(node: SlurmNode, proposal: Proposal, facts: GateFacts) -> Said | None:
    """Why healer may not replace the node's reason in Slurm; None if it may."""
    if not node.held or is_ours(node.reason):
        return None
    slurms_own = slurm_kind(node.reason) is not None or (not node.reason and not node.drain)
    if not slurms_own:
        who = node.reason_by or say("decisions.somebody")
        reason = node.reason or say("decisions.without_reason")
        return say("decisions.taken_by_person", node=node.name, who=who, reason=reason)
    # Slurm's own DOWN ends by itself when the node registers, so healer's drain on top of it takes no
    # capacity. Slurm's own DRAIN stays, unless a permitted hook caused it, or a person or an adopting
    # playbook asks.
    ours = proposal.adopts or permit_for(node, facts.permits) is not None
    if node.drain and proposal.by is None and not ours:
        return say("decisions.drained_by_slurm", node=node.name, reason=node.reason)
    return None


def _may_return(node: SlurmNode, facts: GateFacts) -> Answer:
    if node.held and is_ours(node.reason):
        return allow(Guard.ownership, say("decisions.drained_by_us", node=node.name))
    if not node.held and (kept := our_reservation(facts.snapshot, node.name)):
        return allow(Guard.ownership, say("decisions.out_for_tests", node=node.name, name=kept.name))
    slot = facts.held.get(node.name)
    if not node.held and slot is not None:
        # The Slurm snapshot may be older than healer's drain; the step itself reads the node again before it
        # acts.
        return allow(Guard.ownership, say("decisions.held_by_us", node=node.name, run=slot.run))
    if not node.held:
        return refuse(Guard.ownership, say("decisions.not_drained", node=node.name))
    who = node.reason_by or say("decisions.somebody_else")
    if slurm_kind(node.reason):
        who = say("decisions.slurm_itself")
    reason = node.reason or say("decisions.no_reason_given")
    return refuse(Guard.ownership, say("decisions.not_ours_to_lift", node=node.name, who=who, reason=reason))


def protected(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `protected`: the site's lists of what healer never touches, at anyone's request: nodes, and jobs
    by QOS."""
    if proposal.verb in JOB_VERBS:
        return _protected_jobs(proposal, parts_of(proposal, facts), facts, rules)
    node = node_of(proposal, facts)
    if node is None:
        return unknown_node(Guard.protected, proposal, facts)
    lists = (settings_of(rules, facts.cluster), *settings_of_node(rules, facts.cluster, node))
    for pattern in (pattern for settings in lists for pattern in settings.protected):
        if matches(pattern, node):
            return refuse(Guard.protected, say("decisions.protected_by", node=node.name, pattern=pattern))
    if proposal.verb in _ENDS_JOBS and facts.snapshot is not None:
        return _protected_jobs(proposal, facts.snapshot.jobs_on(node.name), facts, rules)
    return allow(Guard.protected, say("decisions.not_protected", what=node.name))


#: Verbs that take a node without waiting for its jobs. A drain lets them run; all others need an empty node.
_ENDS_JOBS = frozenset({Verb.down, Verb.power_cycle})


def _protected_jobs(proposal: Proposal, jobs: Sequence[SlurmJob], facts: GateFacts, rules: Ruleset) -> Answer:
    for job in jobs:
        lists = (settings_of(rules, facts.cluster), settings_of_job(rules, facts.cluster, job))
        named = (qos.lower() for settings in lists for qos in settings.protected_qos)
        if job.qos.lower() in named:  # Slurm stores QOS names in lower case, however a site writes them
            return refuse(Guard.protected, say("decisions.qos_protected", job=job.id, qos=job.qos))
    return allow(Guard.protected, say("decisions.not_protected", what=proposal.job or proposal.node))


def maintenance(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `maintenance`: planned work is no fault, and healer waits for its end. A person who names the
    node may continue."""
    node = node_of(proposal, facts)
    if node is None:
        return unknown_node(Guard.maintenance, proposal, facts)
    moments = (now, facts.read_at or now)  # a clock that is ahead must not end it, nor one behind delay it
    windows = (planned_window(rules, facts.cluster, node, moment, facts.snapshot) for moment in moments)
    window = next(filter(None, windows), None)
    if window is None and proposal.by is None and _needs_power(proposal, node, facts):
        why = say("decisions.switched_off", node=node.name, state="+".join(node.state))
        return hold(Guard.maintenance, why, used=1, limit=0)
    begins = not proposal.ride and proposal.by is None and proposal.approved_by is None
    if window is None and begins and node.starting:  # a fault from before may end with this boot
        why = say("decisions.starts", node=node.name, state="+".join(node.state))
        return hold(Guard.maintenance, why, used=1, limit=0)
    if window is None:
        return allow(Guard.maintenance, say("decisions.no_work_planned", node=node.name))
    planned = quoted(window.why)
    if proposal.by is not None:
        why = say("decisions.work_planned_asked", node=node.name, why=planned, who=proposal.by)
        return allow(Guard.maintenance, why)
    why = say("decisions.work_planned", node=node.name, why=planned)
    return hold(Guard.maintenance, why, used=1, limit=0, frees_at=window.until)


#: What only Slurm does, or what it wakes the node for.
_WITHOUT_POWER = frozenset({Verb.drain, Verb.down, Verb.reserve})


def _needs_power(proposal: Proposal, node: SlurmNode, facts: GateFacts) -> bool:
    """Power saving has switched off a node that is out of service, and no healer job wakes it."""
    if node.status is not NodeStatus.power_saving or proposal.verb in _WITHOUT_POWER:
        return False
    return proposal.verb is not Verb.diagnose or our_reservation(facts.snapshot, node.name) is None


def within_span(moments: list[datetime], now: datetime, span: timedelta) -> list[datetime]:
    """The moments later than `now - span`, oldest first."""
    return sorted(moment for moment in moments if moment > now - span)


# --- earlier actions -------------------------------------------------------------------------------------


DAY = timedelta(hours=24)
#: After the last root of a storm. A first wave of remedies often looks healthy before the second (law 10).
COOLDOWN = timedelta(minutes=10)
_REBOOTS = frozenset({Remedy.reboot_node, Remedy.power_cycle})


def breaker(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `breaker`: while open, nothing that healer starts takes capacity away; while half-open, one
    canary may.

    A named person passes, because people also examine the storm and reset the breaker.
    """
    state = facts.breaker
    if state.state is BreakerState.closed:
        return allow(Guard.breaker, say("decisions.breaker_closed"), used=0)
    roots = len({root.node for root in state.roots})
    if proposal.by is not None:
        why = say(f"decisions.breaker_asked_{state.state}", who=proposal.by)
        return allow(Guard.breaker, why, used=roots)
    if proposal.ride and proposal.verb in RESTARTING_VERBS:
        # The node is already out: a held job would only sit on a dead GPU, and law 3 stops new removals.
        return allow(Guard.breaker, say("decisions.node_out_already"), used=roots)
    if state.state is BreakerState.open:
        why = say("decisions.breaker_open", why=state.why or say("decisions.a_storm"))
        return hold(Guard.breaker, why, used=roots)
    if state.canary is None:
        return allow(Guard.breaker, say("decisions.may_be_canary"), used=0, limit=1)
    if state.canary == proposal.run:
        return allow(Guard.breaker, say("decisions.is_canary"), used=1, limit=1)
    why = say("decisions.waits_for_canary", run=state.canary)
    return hold(Guard.breaker, why, used=1, limit=1)


def cooldown(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `cooldown`: nothing new starts within 10 minutes of a storm's last root, even if the canary
    worked."""
    if facts.breaker.state is not BreakerState.closed or not facts.breaker.roots:
        return allow(Guard.cooldown, say("decisions.no_storm"))
    over = max(root.at for root in facts.breaker.roots) + COOLDOWN
    if over <= facts.earlier(now):
        return allow(Guard.cooldown, say("decisions.cooldown_over", when=at(over)))
    if proposal.by is not None or proposal.ride:
        return allow(Guard.cooldown, say("decisions.cooldown_asked", until=at(over)))
    return hold(Guard.cooldown, say("decisions.cooldown", until=at(over)), frees_at=over)


#: Both reset the GPU, so neither is above the other on the ladder.
_RESETS = frozenset({Remedy.reset_gpu_when_idle, Remedy.drain_then_reset})


def repairs_of(facts: GateFacts, node: str) -> list[RemedyUse]:
    """Resets and boots of the node, which end what its kernel reported before."""
    return [use for use in facts.remedies if use.node == node and use.remedy in _RESETS | _REBOOTS]


def tries_of(facts: GateFacts, node: str, remedy: Remedy) -> list[RemedyUse]:
    """Uses of this remedy on the node; the two kinds of GPU reset count as one."""
    same = _RESETS if remedy in _RESETS else {remedy}
    return [use for use in facts.remedies if use.node == node and use.remedy in same]


def repeat_span(facts: GateFacts, rules: Ruleset, node: str) -> timedelta:
    """How long a remedy is not repeated on the node."""
    settings = settings_of_node(rules, facts.cluster, facts.slurm_node(node))
    return max(each.repeat for each in settings)


def repeat(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `repeat`, law 10: a remedy is not repeated on a node within `repeat_h`; healer escalates to the
    next one on the ladder."""
    if proposal.node is None or proposal.remedy is Remedy.none:
        return allow(Guard.repeat, say("decisions.no_repeat"))
    if proposal.ride and proposal.verb is Verb.drain:
        # Every remedy begins with a drain, and this run's remedy was chosen when it began.
        return allow(Guard.repeat, say("decisions.remedy_chosen"))
    span = repeat_span(facts, rules, proposal.node)
    tried = [
        use.at
        for use in tries_of(facts, proposal.node, proposal.remedy)
        # A later step of the same run is the same attempt.
        if not (proposal.ride and use.incident == proposal.incident)
    ]
    last = within_span(tried, facts.earlier(now), span)
    hours = span.total_seconds() / 3600
    name, node = proposal.remedy.value, proposal.node
    if not last:
        why = say("decisions.not_tried", remedy=name, node=node, hours=hours)
        return allow(Guard.repeat, why, limit=1, used=0)
    frees_at, when = last[-1] + span, at(last[-1])
    if proposal.by is not None:
        why = say("decisions.tried_asked", remedy=name, node=node, when=when, hours=hours, who=proposal.by)
        return allow(Guard.repeat, why, limit=1, used=len(last))
    why = say("decisions.tried", remedy=name, node=node, when=when, hours=hours)
    return hold(Guard.repeat, why, limit=1, used=len(last), frees_at=frees_at)


def reboot_cap(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `reboot_cap`: reboots and power cycles of one node in 24 h, at anyone's request."""
    if proposal.verb not in {Verb.reboot, Verb.power_cycle}:
        return allow(Guard.reboot_cap, say("decisions.reboots_nothing"))
    if proposal.granted:
        return allow(Guard.reboot_cap, say("decisions.reboot_granted"))
    node = node_of(proposal, facts)
    limit = min(settings.reboots_per_node for settings in settings_of_node(rules, facts.cluster, node))
    boots = [use.at for use in facts.remedies if use.node == proposal.node and use.remedy in _REBOOTS]
    used = within_span(boots, facts.earlier(now), DAY)
    return _daily_cap(Guard.reboot_cap, proposal.node, used, limit)


def _daily_cap(guard: Guard, name: str | None, used: list[datetime], limit: int) -> Answer:
    """`name`: the node or job; `used`: the uses of the last 24 h, oldest first."""
    why = say(f"decisions.times_{guard}", name=name, count=len(used), limit=limit)
    if len(used) >= limit:
        frees_at = used[len(used) - limit] + DAY if limit > 0 else None
        return refuse(guard, why, limit=limit, used=len(used), frees_at=frees_at)
    return allow(guard, why, limit=limit, used=len(used))


def requeue_cap(proposal: Proposal, facts: GateFacts, rules: Ruleset, now: datetime) -> Answer:
    """Guard `requeue_cap`: requeues of one job in 24 h, at anyone's request. A requeue at the present restart
    count is not counted."""
    limit = settings_of_job(rules, facts.cluster, job_of(proposal, facts)).requeues_per_job
    uses = [
        use.at
        for use in facts.requeues
        if use.job == proposal.job and (proposal.restarts is None or use.restarts != proposal.restarts)
    ]
    return _daily_cap(Guard.requeue_cap, proposal.job, within_span(uses, facts.earlier(now), DAY), limit)


# --- all guards in order, the guards of each verb, and the verdict


GuardFunction = Callable[[Proposal, GateFacts, Ruleset, datetime], Answer]

#: In order of precedence: people's orders, a fresh snapshot, the node's owner, history, capacity, and last
#: how far the rule may go by itself. So `mode` and `approval` are named only if nothing else holds.
GUARDS: tuple[tuple[Guard, GuardFunction], ...] = (
    (Guard.pause, pause),
    (Guard.stale, stale),
    (Guard.ownership, ownership),
    (Guard.protected, protected),
    (Guard.maintenance, maintenance),
    (Guard.consent, consent.consent),
    (Guard.breaker, breaker),
    (Guard.cooldown, cooldown),
    (Guard.repeat, repeat),
    (Guard.reboot_cap, reboot_cap),
    (Guard.requeue_cap, requeue_cap),
    (Guard.floor, capacity.floor),
    (Guard.slots, capacity.slots),
    (Guard.hourly, capacity.hourly),
    (Guard.rack, capacity.rack),
    (Guard.switch, capacity.switch),
    (Guard.partition, capacity.partition),
    (Guard.reserved, consent.reserved),
    (Guard.sweep, sweep),
    (Guard.mode, consent.mode),
    (Guard.approval, consent.approval),
)

_ALL = frozenset(Guard)
#: Takes a node out of service, or stops what runs on it.
_NODE_OUT = _ALL - {Guard.requeue_cap, Guard.sweep}
#: Takes work from a job; the node's slot is judged separately.
_JOB = frozenset(
    {
        Guard.pause, Guard.stale, Guard.protected, Guard.consent, Guard.breaker, Guard.cooldown,
        Guard.requeue_cap, Guard.reserved, Guard.mode, Guard.approval,
    }
)  # fmt: skip
#: Returns a node: breaker, caps and mode do not apply (law 3).
_BACK = frozenset({Guard.pause, Guard.stale, Guard.ownership})
#: Asked when the node is taken; a run that only begins has not taken anything.
_ROOM = SLOT_GUARDS | {Guard.floor, Guard.reserved}
_CONSENT = frozenset({Guard.consent})
#: Asked once per return: halfway through, the node no longer shows the drain that the return was granted for.
_ONCE = frozenset({Guard.ownership})
#: Work on a node, or on a pending job, that takes no capacity.
_TOUCH = frozenset(
    {
        Guard.pause, Guard.stale, Guard.ownership, Guard.protected, Guard.maintenance, Guard.repeat,
        Guard.mode, Guard.approval,
    }
)  # fmt: skip
#: Work on a node that would end or slow its jobs: the node must be drained and empty.
_TOUCH_EMPTY = _TOUCH | {Guard.consent}
#: healer's own job on an idle node, which yields to every other. It has a setting of its own, so rules for it
#: need no promotion.
_SWEEP = frozenset(
    {
        Guard.pause, Guard.stale, Guard.ownership, Guard.protected, Guard.maintenance, Guard.breaker,
        Guard.cooldown, Guard.sweep,
    }
)  # fmt: skip
#: The nodes of an ended job are tested by halves. Each node is also judged as in a sweep.
_BISECT = frozenset({Guard.pause, Guard.stale, Guard.breaker, Guard.cooldown, Guard.mode, Guard.approval})
#: Only reads something on a node.
_LOOK = frozenset({Guard.pause, Guard.protected, Guard.mode, Guard.approval})
_TOUCH_JOB = frozenset({Guard.pause, Guard.stale, Guard.mode, Guard.approval})
#: Messages to people: neither a pause nor the breaker holds them.
_NOTIFY = frozenset({Guard.mode, Guard.approval})
#: A comment for a job's owner in Slurm: only a pause holds it.
_NOTIFY_IN_SLURM = frozenset({Guard.pause})

ASKED: dict[Verb, frozenset[Guard]] = {
    Verb.drain: _NODE_OUT,
    Verb.down: _NODE_OUT,
    Verb.reserve: _NODE_OUT,
    Verb.reset_gpu: _NODE_OUT,
    Verb.reboot: _NODE_OUT,
    Verb.power_cycle: _NODE_OUT,
    Verb.shrink: _JOB - {Guard.requeue_cap, Guard.reserved},
    Verb.requeue: _JOB,
    Verb.revive: _JOB,
    Verb.cancel: _JOB - {Guard.requeue_cap, Guard.reserved},
    Verb.resume: _BACK,
    Verb.undrain: _BACK,
    Verb.restart_service: _TOUCH_EMPTY,
    Verb.diagnose: _TOUCH_EMPTY,
    Verb.reroute: _TOUCH,
    Verb.site_command: _TOUCH_EMPTY,
    Verb.collect: _LOOK,
    Verb.sweep: _SWEEP,
    Verb.bisect: _BISECT,
    Verb.release: _TOUCH_JOB,
    Verb.exclude: _TOUCH_JOB,
    Verb.tidy: _TOUCH_JOB,
    Verb.ticket: _NOTIFY,
    Verb.notify: _NOTIFY,
}


#: Verbs that need the node's slot.
SLOT_VERBS = frozenset(verb for verb, asked in ASKED.items() if Guard.slots in asked)


class JudgeResult(msgspec.Struct, frozen=True, kw_only=True):
    """`outcome` is act, held or refused; `guard` is the guard that held or refused it, `why` its sentence."""

    outcome: Outcome
    answers: tuple[Answer, ...]
    guard: Guard | None = None
    why: Said = NO_WORDS

    @property
    def answer(self) -> Answer | None:
        """The answer of the guard that held or refused it; None if none did."""
        return next((answer for answer in self.answers if answer.guard is self.guard), None)


def judge(
    proposal: Proposal,
    facts: GateFacts,
    rules: Ruleset,
    now: datetime,
    only: Collection[Guard] = frozenset(Guard),
) -> JudgeResult:
    """Any refusal refuses, else any hold holds, else act; the first of its kind is named. `only`: the guards
    to ask."""
    in_slurm = proposal.verb is Verb.notify and proposal.job is not None
    asked = (
        _NOTIFY_IN_SLURM if in_slurm else ASKED[proposal.verb] - (_ROOM if proposal.begins else frozenset())
    )
    if proposal.begins and proposal.verb in RESTARTING_VERBS:
        asked -= _CONSENT  # nothing is restarted yet, and a person may still consent for the job
    if proposal.granted and proposal.verb in RETURNING_VERBS:
        asked -= _ONCE
    answers = tuple(
        _unless_unusable(function(proposal, facts, rules, now), proposal)
        for guard, function in GUARDS
        if guard in asked and guard in only
    )
    for kind, outcome in ((AnswerKind.refuse, Outcome.refused), (AnswerKind.hold, Outcome.held)):
        for answer in answers:
            if answer.kind is kind:
                return JudgeResult(outcome=outcome, answers=answers, guard=answer.guard, why=answer.why)
    return JudgeResult(outcome=Outcome.act, answers=answers, why=say("decisions.all_allow"))


def _unless_unusable(answer: Answer, proposal: Proposal) -> Answer:
    """Law 2: a certainly unusable node is exempt from the slot caps, and from no other guard; the figures
    stay."""
    if not proposal.passes_caps or answer.guard not in SLOT_GUARDS or answer.kind is AnswerKind.allow:
        return answer
    # Without a snapshot there is no figure to compare: the proposal stays held, as in `stale`.
    if answer.limit is None:
        return answer
    return msgspec.structs.replace(
        answer, kind=AnswerKind.allow, why=say("decisions.cap_does_not_bind", why=answer.why), frees_at=None
    )


def after_grant(facts: GateFacts, proposal: Proposal, run: str, now: datetime) -> GateFacts:
    """The facts with this proposal granted, for the next proposal of the same transaction."""
    changed: dict[str, object] = {}
    if proposal.verb in SLOT_VERBS and proposal.node:
        changed["running"] = {**facts.running, proposal.node: run}
        if not proposal.begins and proposal.node not in facts.held:
            slot = Slot(
                cluster=proposal.cluster,
                node=proposal.node,
                incident=proposal.incident,
                run=run,
                granted_at=now,
                unusable=proposal.passes_caps,
            )
            changed["slots"] = (*facts.slots, slot)
            if not proposal.passes_caps:
                changed["granted"] = (*facts.granted, now)
    if proposal.verb in RESTARTING_VERBS and proposal.job:
        use = RequeueUse(
            job=proposal.job, restarts=proposal.restarts or 0, at=now, incident=proposal.incident
        )
        if all((earlier.job, earlier.restarts) != (use.job, use.restarts) for earlier in facts.requeues):
            changed["requeues"] = (*facts.requeues, use)
    if takes_canary(facts, proposal):
        changed["breaker"] = msgspec.structs.replace(facts.breaker, canary=run)
    return msgspec.structs.replace(facts, **changed)


def takes_canary(facts: GateFacts, proposal: Proposal) -> bool:
    """This run becomes the half-open breaker's canary if granted; `after_grant` returns the breaker to
    store."""
    return (
        facts.breaker.state is BreakerState.half_open
        and facts.breaker.canary is None
        and proposal.by is None
        and not proposal.begins
        and proposal.verb in NODE_REMOVING
    )
