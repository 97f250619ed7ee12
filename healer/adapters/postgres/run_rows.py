"""What people's commands look up: the run, its playbook, the incident that is meant."""

import msgspec
import sqlalchemy as sa

from healer.adapters.postgres.tables import incidents, runs
from healer.model import GateFacts, Incident, Playbook, Ruleset, Run
from healer.ports.people_commands import RunRequest
from healer.ports.request_errors import Invalid, NotFound


def cluster_of(conn: sa.Connection, run: str) -> str:
    """Raises NotFound."""
    cluster = conn.execute(sa.select(runs.c.cluster).where(runs.c.id == run)).scalar()
    if cluster is None:
        raise NotFound(f"there is no run {run}")
    return cluster


def playbook_of(rules: Ruleset, request: RunRequest) -> Playbook:
    playbook = rules.playbooks.get(request.playbook)
    if playbook is None:
        raise NotFound(
            f"there is no playbook {request.playbook}; there are {', '.join(sorted(rules.playbooks))}"
        )
    wanted, other = ("node", "job") if playbook.target == "node" else ("job", "node")
    if getattr(request, wanted) is None:
        raise Invalid(wanted, f"{playbook.name} works on a {wanted}: name it")
    if getattr(request, other) is not None:
        raise Invalid(other, f"{playbook.name} works on a {wanted}, not on a {other}")
    return playbook


def run_of(conn: sa.Connection, run: str) -> Run:
    row = conn.execute(sa.select(runs.c.doc, runs.c.epoch).where(runs.c.id == run).with_for_update()).first()
    if row is None:
        raise NotFound(f"there is no run {run}")
    return msgspec.structs.replace(msgspec.convert(row.doc, Run), epoch=row.epoch)


def incident_named(conn: sa.Connection, name: str | None) -> Incident | None:
    if name is None:
        return None
    doc = conn.execute(sa.select(incidents.c.doc).where(incidents.c.id == name)).scalar()
    return msgspec.convert(doc, Incident) if doc else None


def incident_of(conn: sa.Connection, request: RunRequest, facts: GateFacts) -> Incident | None:
    """The incident that the request names, else the one whose slot the node holds."""
    if request.incident is not None:
        found = incident_named(conn, request.incident)
        if found is None:
            raise NotFound(f"there is no incident {request.incident}")
        return found
    slot = facts.held.get(request.node or "")
    return incident_named(conn, slot.incident) if slot else None
