"""Order of work when several incidents wait: severity, size of the job hit, age."""

from collections.abc import Iterable

from healer.model import Incident


def by_urgency(incidents: Iterable[Incident]) -> list[Incident]:
    return sorted(incidents, key=lambda one: (one.severity, -len(one.jobs_hit), one.opened, one.id))
