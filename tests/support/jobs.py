"""Jobs on a bad node of the simulated Slurm: what the tests of every kind of job share."""

from typing import Any

import msgspec

from healer.decisions.comments import remark_in
from healer.model import GuardSettings, LogEntry, Run, RunState, SlurmJob
from healer.ports.scheduling import SchedulerUnavailable
from healer.sim.sim_slurm import SimScheduler
from tests.support.loop import LOST, Site, name, rules_in, shipped

NODE = name(1)
OPT_IN = "healer:requeue"


def guards(**fields: Any) -> GuardSettings:
    return msgspec.structs.replace(shipped().guards, **fields)


def site_of(nodes: int = 10, *, settings: GuardSettings | None = None, **options: Any) -> Site:
    return Site(nodes, rules=rules_in(guards=settings or shipped().guards), **options)


def job_of(site: Site, job: str) -> SlurmJob:
    found = site.slurm.job(job)
    assert found is not None
    return found


def lose(site: Site, seconds: float = 30, node: int = 1) -> Run:
    """The node's GPU is lost; its run, once it has done all it can for the jobs."""
    site.run_for(seconds, *site.say(node, LOST))
    (run,) = [one for one in site.runs if one.node == name(node)]
    assert run.state is RunState.waiting, run.question
    return run


def last(site: Site, run: Run, step: str) -> LogEntry:
    return site.log(run.id, step)[-1]


def owner_notice(site: Site, job: str) -> str:
    """What the owner reads in the job's admin comment."""
    return remark_in(job_of(site, job).admin_comment).text


class Lacking:
    """A Slurm in which some calls fail."""

    def __init__(self, slurm: SimScheduler, error: Exception, *calls: str) -> None:
        self.slurm, self.error, self.calls, self.name = slurm, error, calls, "lacking"

    def __getattr__(self, call: str) -> Any:
        if call in self.calls:
            return self._fail
        return getattr(self.slurm, call)

    def _fail(self, *_: object, **__: object) -> None:
        raise self.error


class Unheard:
    """A Slurm that does what some calls ask, and whose answer to them never comes."""

    def __init__(self, slurm: SimScheduler, *calls: str) -> None:
        self.slurm, self.calls, self.name = slurm, calls, "unheard"

    def __getattr__(self, call: str) -> Any:
        does = getattr(self.slurm, call)
        if call not in self.calls:
            return does

        def unheard(*given: Any, **named: Any) -> None:
            does(*given, **named)
            raise SchedulerUnavailable("no answer in 4 s")

        return unheard
