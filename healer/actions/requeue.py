"""Requeue: restarts a job exactly once and lets Slurm start it immediately, with a spare for its lost node.

Fenced by the restart count, which is in the list of jobs hit: a job with a higher count has already been
restarted, by healer or Slurm. `requeue Incomplete` does nothing to a job that is not running. Tasks of an
array are separate jobs; a heterogeneous job is restarted as a whole, by its leader.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Literal

from healer.actions import release, spares
from healer.actions.ask_node import check_restart
from healer.actions.base import (
    Action,
    Again,
    Context,
    Done,
    Failed,
    Result,
    Skipped,
    read_back,
    read_job,
    restarts_known,
)
from healer.actions.waits import MOMENT_S
from healer.decisions import proposal_of
from healer.decisions.book_mismatch import is_begin_chosen
from healer.decisions.comments import wish_of
from healer.decisions.consent import is_agreed
from healer.incidents.impact import crashed_among, moments_of
from healer.incidents.second_look import LookResult
from healer.model import LogEntry, SlurmJob, StepEvent, Verb
from healer.model.slurm import is_ours
from healer.ports.scheduling import NotAvailable, SchedulerRefused, SchedulerUnavailable
from healer.text import Said, said_by, say

LOOK_AGAIN_S = 1.0
#: How often, and for how long, a node without a clear answer is asked again before its own report counts.
ASKS_AGAIN_S, ASKED_FOR = 5.0, timedelta(seconds=20)
#: Work saved on a signal counts as long as a checkpoint.
SAVED_FOR = timedelta(seconds=MOMENT_S)


def save_first(ctx: Context, job: SlurmJob) -> Again | None:
    """Signals the job to save its work, once; None if there is nothing (more) to wait for.

    A signal without an answer counts as sent: the job gets its time, and no second signal. It is sent again
    only if a worker dies between the signal and its log entry, or if the saved work is outdated because a
    guard or a person held the restart for hours.
    """
    signalled, now = _signal_entry(ctx), ctx.tools.now()
    if signalled is not None and now < signalled.at and _until(signalled.data) > signalled.at:
        return _grant_again(ctx, job, signalled)
    if signalled is not None and _until(signalled.data) > now:
        return _waits(ctx, signalled.text, signalled.data)
    wish = wish_of(job)
    if not wish.signal or _is_saved(ctx):
        return None
    until = now + timedelta(seconds=wish.grace_s)
    clock = f"{until:%H:%M:%S}"
    text = say("actions.requeue_signalled", job=job.title, signal=wish.signal, until=clock)
    ctx.fence()
    try:
        ctx.tools.scheduler.signal(job.id, wish.signal)
    except SchedulerUnavailable as error:
        if not error.sent:
            raise
        why = said_by(error)
        text = say(
            "actions.requeue_maybe_signalled", job=job.title, signal=wish.signal, until=clock, error=why
        )
    except (NotAvailable, SchedulerRefused) as error:
        text = say("actions.requeue_not_signalled", job=job.title, error=said_by(error))
        return Again(text, 0, data={"signal": wish.signal, "until": ctx.tools.now().isoformat()})
    return _waits(ctx, text, {"signal": wish.signal, "until": until.isoformat()})


def save_deadline(ctx: Context) -> datetime | None:
    """When the time for saving ends; None if no signal was sent."""
    signalled = _signal_entry(ctx)
    return _until(signalled.data) if signalled is not None else None


def _signal_entry(ctx: Context) -> LogEntry | None:
    """The last signal of this step."""
    sent = (entry for entry in reversed(ctx.log) if entry.step == ctx.part and entry.data.get("signal"))
    return next(sent, None)


def _is_saved(ctx: Context) -> bool:
    """The job has got its signal, and the work that it saved is not outdated."""
    until = save_deadline(ctx)
    return until is not None and ctx.tools.now() - until <= SAVED_FOR


def _until(data: dict[str, str]) -> datetime:
    return datetime.fromisoformat(data["until"])


def _waits(ctx: Context, text: Said, data: dict[str, str]) -> Again:
    until = _until(data)
    left_s = (until - ctx.tools.now()).total_seconds()
    return Again(text, min(LOOK_AGAIN_S, left_s), since=until, data=data)


def _grant_again(ctx: Context, job: SlurmJob, signalled: LogEntry) -> Again:
    """The clock was set back since the signal: the end of the job's time is too far ahead by as much, and
    what is left of it is unknown. It gets that time again, and no second signal."""
    until = ctx.tools.now() + (_until(signalled.data) - signalled.at)
    given = {"signal": signalled.data["signal"], "until": until.isoformat()}
    text = say("actions.requeue_clock_back", job=job.title, signal=given["signal"], until=f"{until:%H:%M:%S}")
    return _waits(ctx, text, given)


#: Slurm's error numbers (facts, d.4) for jobs that can never be restarted.
_NEVER = frozenset({2037, 2039, 2107})
_PENDING = 2024

#: The step that requeued a job does not wait for one that has been COMPLETING for longer than this.
ENDS_WITHIN = timedelta(seconds=30)


def read_job_or_leader(ctx: Context) -> SlurmJob:
    """The job of this step; for a component of a heterogeneous job its leader (2107)."""
    job = read_job(ctx, leader=True)
    restarts_known(ctx)
    return job


def is_restarted(ctx: Context, job: SlurmJob) -> bool:
    return job.restarts > (ctx.restarts or 0)


def is_stuck(ctx: Context, job: SlurmJob, since: datetime | None = None) -> bool:
    """The job does not end on some node, for example because of a hanging epilog: a later step frees the
    node."""
    began = max(ctx.began_at, since) if since is not None else ctx.began_at
    return "COMPLETING" in job.flags and ctx.tools.now() - began > ENDS_WITHIN


#: What was done to the job, as in the text keys `actions.requeue_word_`.
Word = Literal["requeued", "revived"]


def restart_result(ctx: Context, job: SlurmJob, word: Word) -> Result | None:
    """The result after the restart: done once only the scheduler's order keeps the job from starting; None:
    not yet."""
    name, done = job.title, say(f"actions.requeue_word_{word}")
    if "REVOKED" in {job.state, *job.flags}:
        where = ", ".join(cluster for cluster in (*job.siblings, job.origin) if cluster)
        where = where or say("actions.requeue_another_cluster")
        return Done(say("actions.requeue_elsewhere", job=name, word=done, where=where))
    if job.state == "RUNNING":
        return Done(
            say("actions.requeue_runs", job=name, word=done, nodes=_named(job.nodes), restarts=job.restarts),
            {"restarts": job.restarts, "nodes": list(job.nodes), "state": job.state},
        )
    if job.state == "PENDING" and "COMPLETING" not in job.flags:
        if release.is_put_back(ctx, job) or release.missing(ctx, job):
            return None
        return Done(
            _why_pending(job, done), {"restarts": job.restarts, "state": job.state, "reason": job.reason}
        )
    if is_stuck(ctx, job, save_deadline(ctx)):
        text = say("actions.requeue_ends_first", job=name, word=done, nodes=_named(job.nodes))
        return Done(text, {"restarts": job.restarts, "state": job.state})
    if job.state in {"PENDING", "COMPLETING"} or job.active:
        return None
    return Done(
        say("actions.requeue_restarted", job=name, state=job.state),
        {"restarts": job.restarts, "state": job.state},
    )


def _named(nodes: Sequence[str]) -> str:
    """`gpu0001, gpu0002, gpu0003 and 125 more`"""
    first, more = ", ".join(nodes[:3]), len(nodes) - 3
    return say("actions.requeue_nodes_more", nodes=first, n=more) if more > 0 else first


def _why_pending(job: SlurmJob, done: Said) -> Said:
    name, restarts = job.title, job.restarts
    if job.held_by:
        return say("actions.requeue_stays_held", job=name, word=done, restarts=restarts, who=job.held_by)
    if is_begin_chosen(job) and job.eligible_at is not None:
        until = f"{job.eligible_at:%Y-%m-%d %H:%M}"
        return say("actions.requeue_begins", job=name, word=done, restarts=restarts, until=until)
    if not job.reason and not job.dependency:
        return say("actions.requeue_starts", job=name, word=done, restarts=restarts)
    reason = job.reason or say("actions.requeue_scheduling")
    text = say("actions.requeue_waits", job=name, word=done, restarts=restarts, reason=reason)
    if not job.dependency:
        return text
    return say("actions.requeue_depends", text=text, dependency=job.dependency)


def put_back(ctx: Context, word: Word, effect: Callable[[Context, SlurmJob], Result | None]) -> Result | None:
    """Requeues the job by `effect`, once, and then brings it to its start.

    The cap counts each life of a job once, by the job's id. So a run with another name for the job, or about
    a life that never existed, is skipped: the cap would not count what it does.
    """
    job, life = read_job_or_leader(ctx), ctx.restarts or 0
    if job.id != ctx.job or job.restarts < life:
        given = {"job": ctx.job, "life": life, "known": job.id, "restarts": job.restarts}
        return Skipped(say("actions.requeue_no_such_life", **given))
    try:
        return _bring_to_start(ctx, job) if is_restarted(ctx, job) else effect(ctx, job)
    except SchedulerRefused as error:
        if error.code in _NEVER:
            why = say(f"actions.requeue_never_{error.code}")
            text = say(
                "actions.requeue_never", job=job.title, word=say(f"actions.requeue_word_{word}"), why=why
            )
            return Skipped(text, {"code": error.code})
        return None if error.code == _PENDING else Failed(said_by(error), final=error.no_right)
    except SchedulerUnavailable:
        return None  # unknown whether it happened: read it back


def _bring_to_start(ctx: Context, job: SlurmJob) -> Result | None:
    """The next effect on a requeued job; none before it has left COMPLETING."""
    if job.state != "PENDING" or "COMPLETING" in job.flags:
        return None
    step = release.keep_off(ctx, job) or _spare(ctx, job)
    if step is not None:
        return step
    if release.is_put_back(ctx, job):
        ctx.fence()
        ctx.tools.scheduler.start_now(job.id)
    return None


def _spare(ctx: Context, job: SlurmJob) -> Again | None:
    """Only a run that took a node out has lost one; a requeue of a single job has not."""
    return spares.hand_over(ctx, job, ctx.node) if ctx.item is not None else None


def _probe_requeue(ctx: Context) -> Result | None:
    agreed = ctx.item in ctx.run.input.get("restart", {})
    begun = any(entry.event is StepEvent.started for entry in ctx.lines)  # the restart may be this step's own
    return _look(ctx, may_be_ours=begun or not agreed)


def _look(ctx: Context, *, may_be_ours: bool = True) -> Result | None:
    job = read_job_or_leader(ctx)
    if is_restarted(ctx, job):
        if may_be_ours:
            return restart_result(ctx, job, "requeued")
        return Skipped(say("actions.requeue_not_this_life", job=job.title))
    if is_stuck(ctx, job, save_deadline(ctx)):
        return Skipped(say("actions.requeue_ends_not", job=job.title), {"crashed": True})
    if job.active:
        return None
    if job.state == "PENDING":
        return Skipped(say("actions.requeue_pending", job=job.title))
    return Skipped(
        say("actions.requeue_ended", job=job.title, state=job.state),
        {"state": job.state, "crashed": job.crashed},
    )


def _requeue(ctx: Context, job: SlurmJob) -> Result | None:
    if "COMPLETING" in job.flags:
        return None
    if ctx.item is not None and not _still_ours(ctx):
        return Skipped(say("actions.requeue_given_back", node=ctx.node, job=job.title))
    if (left := _node_denies(ctx, job)) is not None:
        return left
    if (saves := save_first(ctx, job)) is not None:
        return saves
    ctx.fence()
    ctx.tools.scheduler.requeue(job.id)
    return None


def _node_denies(ctx: Context, job: SlurmJob) -> Again | Skipped | None:
    """Why the job keeps running: other parts reported that a fault has ended its work, but the node denies
    that or has not answered yet. After `ASKED_FOR` without a clear answer, the node's own earlier report
    counts, as it does where there is no way to ask (law 2). A restart that its owner or a person agreed to
    needs no such look."""
    rules, incident = ctx.tools.claim_rules, ctx.incident
    if rules is None or incident is None or _is_saved(ctx):
        return None
    asked = proposal_of(ctx.run, Verb.requeue, incident, job=ctx.job, restarts=ctx.restarts)
    if asked.by is not None or is_agreed(asked) or not (asked.fatal or asked.unusable):
        return None
    seen = check_restart(ctx, job, incident, rules())
    why = {"job": job.title, "text": seen.text}
    if seen.result is LookResult.denied:
        return Skipped(say("actions.requeue_not_seen", **why))
    if seen.result is LookResult.unknown and ctx.tools.now() - ctx.began_at < ASKED_FOR:
        return Again(say("actions.requeue_looks_first", **why), ASKS_AGAIN_S)
    return None


def _still_ours(ctx: Context) -> bool:
    """healer's drain of the jobs' node is still in place: a person may have returned it."""
    node = ctx.tools.scheduler.node(ctx.node)
    return node.drain and is_ours(node.reason)


def _verify_requeue(ctx: Context) -> Result:
    text = say("actions.requeue_under_way", job=ctx.job)
    return _look(ctx) or Again(text, 0.25, since=save_deadline(ctx))


REQUEUE = Action(
    probe=_probe_requeue, do=lambda ctx: put_back(ctx, "requeued", _requeue), verify=_verify_requeue
)


def _probe_revive(ctx: Context) -> Result | None:
    job = read_job_or_leader(ctx)
    if is_restarted(ctx, job):
        return restart_result(ctx, job, "revived")
    if job.crashed and _by_the_fault(ctx, job):
        return None
    if job.crashed:
        return Skipped(say("actions.revive_not_the_fault", job=job.title, state=job.state))
    if is_stuck(ctx, job):
        return Skipped(say("actions.revive_ends_not", job=job.title))
    if "COMPLETING" in job.flags:
        return Again(say("actions.revive_completing", job=job.title), 1.0)
    if job.unfinished:
        return Skipped(say("actions.revive_nothing", job=job.title, state=job.state))
    return Skipped(say("actions.revive_ended", job=job.title, state=job.state), {"state": job.state})


def _by_the_fault(ctx: Context, job: SlurmJob) -> bool:
    """The fault crashed the job; a person's request for this job needs no check."""
    if ctx.incident is None or ctx.item is None:
        return True
    return bool(crashed_among([job], ctx.incident.root, moments_of(ctx.incident)))


def _revive(ctx: Context, job: SlurmJob) -> Result | None:
    if job.crashed:
        ctx.fence()
        ctx.tools.scheduler.revive(job.id)
    return None


REVIVE = Action(
    probe=_probe_revive,
    do=lambda ctx: put_back(ctx, "revived", _revive),
    verify=read_back(_probe_revive, lambda ctx: say("actions.revive_under_way", job=ctx.job), 0.25),
)
