"""The large job where it stands: what its ranks and GPUs show then, and windows that let healer see it.

A job is measured all the time; here only from the moment that it has stood for two minutes. What its nodes
had told by then is told late, in one go, with the times at which they would have told it.
"""

from collections.abc import Callable
from datetime import datetime
from enum import StrEnum

from healer.sim.fleet.schedule import Fault
from healer.sim.fleet.site import WATCHDOG_S, Site
from healer.sim.fleet.work import Spent

#: Whoever is restarted sooner needs no window.
STOOD_S = 120.0
#: So much of its steps is told from before; the pauses of a job are known by then.
HISTORY_S = 300.0
#: A window of a job that stands measures so finely for so long.
FINE_S = 300.0


class Ranks(StrEnum):
    works = "works"
    #: All but those of the broken node stand in a collective, and their clients say so.
    waits = "waits"
    #: No program is there to say anything: it ended, or has not come so far.
    rests = "rests"


def ranks_at(site: Site, at: datetime) -> Ranks:
    """What the ranks of the large job do: now, or `at` a moment since its last start."""
    fault = site.blocking()
    if fault is None:
        return Ranks.works if site.work.doing is Spent.kept else Ranks.rests
    stopped_s = (at - site.stops_at(fault)).total_seconds()
    if stopped_s < 0:
        return Ranks.works
    return Ranks.waits if stopped_s < _waits_s(site, fault) else Ranks.rests


def _waits_s(site: Site, fault: Fault) -> float:
    """So long the others wait: NCCL's watchdog ends them, or the launcher does once it misses one."""
    if fault.way.wrong_numbers:
        return 0.0  # its own check ends it
    return WATCHDOG_S if fault.way_name == "hang" else site.scenario.job.fails_s


class Stands:
    """Sees the large job stand. `look` after each moment; `opens` gets its fault, and since when it had
    worked."""

    def __init__(self, site: Site, opens: Callable[[Fault, datetime], None]) -> None:
        self._site, self._opens = site, opens
        self._worked_since: datetime | None = None

    def look(self) -> None:
        site = self._site
        if site.work.doing is Spent.kept:
            self._worked_since = self._worked_since or site.now
            return
        worked, self._worked_since = self._worked_since, None
        stood = self._stands()
        if worked is None or stood is None:
            return

        def still() -> None:
            fault = site.blocking()
            if fault is not None and self._stands() == stood:
                self._opens(fault, max(worked, site.later(-STOOD_S - HISTORY_S)))

        site.agenda.at(site.later(STOOD_S), still)

    def _stands(self) -> tuple[str, int] | None:
        """For the sake of which fault, and in which life of the job."""
        site = self._site
        fault = site.blocking() if site.work.doing is Spent.stands else None
        return (fault.id, site.snapshot().jobs[site.job].restarts) if fault is not None else None
