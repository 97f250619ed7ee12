"""Jobs that a run on their node may restart because a person agrees to it, as Slurm shows them now.

All of it reads Slurm itself: call it outside of a transaction. Raises Conflict where Slurm does not answer.
"""

from collections.abc import Sequence
from datetime import datetime

from healer.decisions import judge, restart_asked, with_restarts
from healer.model import GateFacts, Incident, Outcome, Playbook, Ruleset, Run, SlurmJob
from healer.playbooks import takes_restarts
from healer.ports.api_answers import RestartOffer
from healer.ports.request_errors import Conflict, Invalid
from healer.ports.slurm import Scheduler, SchedulerError, whole_job, whole_jobs


def agreed_restarts(
    scheduler: Scheduler, playbook: Playbook, node: str | None, named: Sequence[str]
) -> dict[str, int]:
    """The named jobs, each with the number of its restarts. `4711:0` is job 4711 before its first restart:
    refused once it has been restarted. Raises Invalid, Conflict."""
    if not named:
        return {}
    if node is None or not takes_restarts(playbook):
        raise Invalid("restart", f"{playbook.name} restarts no job that is named with it")
    here = {job.id: job for job in _jobs_on(scheduler, node)}
    found: dict[str, int] = {}
    for one in named:
        name, _, life = one.partition(":")
        if life and not (life.isascii() and life.isdecimal()):
            raise Invalid("restart", f"{one}: after the job comes how often it was restarted, as in 4711:0")
        job = here.get(name) or read_job(scheduler, name)
        if job is None or job.id not in here:
            raise Invalid("restart", f"job {name} does not run on {node}")
        if life and int(life) != job.restarts:
            raise Conflict(f"job {name} was restarted since you looked: it is another life of it, look again")
        found[job.id] = job.restarts
    return found


def offered_restarts(
    scheduler: Scheduler,
    run: Run,
    playbook: Playbook,
    incident: Incident | None,
    facts: GateFacts,
    *,
    rules: Ruleset,
    now: datetime,
) -> list[RestartOffer]:
    """Each job on the run's node, and what the guards say to its restart if `run.by` agrees to it."""
    if run.node is None or not takes_restarts(playbook):
        return []
    offers: list[RestartOffer] = []
    for job in _jobs_on(scheduler, run.node):
        agreed = with_restarts(run, {job.id: job.restarts}, run.by)
        verdict = judge(restart_asked(agreed, job.id, incident), facts, rules, now)
        offer = RestartOffer(
            job=job.id,
            restarts=job.restarts,
            name=job.name,
            user=job.user,
            nodes=len(job.nodes),
            possible=verdict.outcome is not Outcome.refused,
            why=verdict.why,
        )
        offers.append(offer)
    return offers


def read_job(scheduler: Scheduler, name: str) -> SlurmJob | None:
    """The job, a heterogeneous one as its leader; None where Slurm knows none of that name."""
    try:
        return whole_job(scheduler, name)
    except SchedulerError as error:
        raise Conflict(f"Slurm: {error}") from error


def _jobs_on(scheduler: Scheduler, node: str) -> list[SlurmJob]:
    """Jobs at work there, a heterogeneous one as its leader."""
    try:
        running = [job for job in scheduler.jobs_on(node) if "COMPLETING" not in job.flags]
        return whole_jobs(scheduler, running)
    except SchedulerError as error:
        raise Conflict(f"Slurm: {error}") from error
