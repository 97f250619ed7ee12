"""One simulation from its first moment to its last: time leaps from one thing that is due to the next."""

from collections.abc import Callable, Iterable
from datetime import datetime

from healer.sim.fleet.site import Site

#: So many times at one moment; more is a loop that does not end.
_AT_ONE_MOMENT = 1000


def play(
    site: Site, after: Iterable[Callable[[], None]] = (), progress: Callable[[float], None] | None = None
) -> None:
    """Until the scenario's end. `after` is called after each moment, `progress` with the share done."""
    after = tuple(after)
    mender, end, total = site.mender, site.end, site.scenario.days
    site.slurm.tick()
    again = 0
    while True:
        site.agenda.do_due(site.now)
        site.settle()
        mender.turn()
        site.settle()
        for look in after:
            look()
        if progress is not None:
            progress((site.now - site.scenario.start).total_seconds() / 86_400 / total)
        then = _next(site)
        again = again + 1 if then <= site.now else 0
        if again > _AT_ONE_MOMENT:
            raise RuntimeError(f"time stands still at {site.now}")
        if then >= end:
            break
        if then > site.now:
            site.clock.set(then)
            site.slurm.tick()
    site.clock.set(end)
    site.slurm.tick()
    site.settle()
    site.work.close(end)


def _next(site: Site) -> datetime:
    dues = (site.agenda.next(), site.slurm.next_due(), site.mender.due(), site.ready_at())
    return max(site.now, min((due for due in dues if due is not None), default=site.end))
