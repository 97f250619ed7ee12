"""Order of work when several incidents wait: severity, size of the job hit, age."""

from collections.abc import Iterable

from healer.model import Incident, SlurmSnapshot, Urgency


def urgency_of(incident: Incident, snapshot: SlurmSnapshot | None) -> Urgency:
    shown = snapshot.jobs if snapshot is not None else {}
    sizes = [len(shown[job].nodes) for job in incident.jobs_hit if job in shown]
    sizes += [hit.nodes for hit in incident.hit]  # Slurm soon forgets jobs
    least = 1 if incident.jobs_hit else 0
    return Urgency(severity=incident.severity, size=max([least, *sizes]), since=incident.opened)


def by_urgency(incidents: Iterable[Incident], snapshot: SlurmSnapshot | None) -> list[Incident]:
    return sorted(incidents, key=lambda one: (*urgency_of(one, snapshot).order, one.id))
