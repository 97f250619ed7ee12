"""What was collected on nodes: lists, and one file. For operators: logs tell more than pages do."""

from typing import Annotated

from fastapi import APIRouter, Request
from starlette.responses import Response

from healer.api.access import confine, need
from healer.api.answers import answer
from healer.api.documents import answers
from healer.api.reading import Id, services_of
from healer.model import AuditRecord, EvidenceFile, Role
from healer.ports.api_answers import Page
from healer.ports.callers import Caller
from healer.ports.request_errors import NotFound

router = APIRouter(tags=["reading"])

Operator = Annotated[Caller, need(Role.operator)]
_LISTED = answers(Page[EvidenceFile], "its files, oldest first")


@router.get("/incidents/{id}/evidence", responses=_LISTED)
def of_incident(request: Request, caller: Operator, id: Id) -> Response:
    """What was collected for an incident."""
    services = services_of(request)
    found = services.reads.incident(id)
    if found is None:
        raise NotFound(f"there is no incident {id}")
    confine(request, caller, cluster=found.cluster, node=found.root.node)
    return answer(request, Page(items=services.evidence.files(incident=found.id)))


@router.get("/runs/{id}/evidence", responses=_LISTED)
def of_run(request: Request, caller: Operator, id: Id) -> Response:
    """What a run collected; the way to the files of one without an incident."""
    services = services_of(request)
    found = services.reads.run_detail(id, services.rules())
    if found is None:
        raise NotFound(f"there is no run {id}")
    confine(request, caller, cluster=found.cluster, node=found.node)
    return answer(request, Page(items=services.evidence.files(run=found.id)))


@router.get("/evidence/{id}", response_class=Response)
def one(request: Request, caller: Operator, id: Id) -> Response:
    """One file: text, packed with gzip. Who took it stands in the audit."""
    services = services_of(request)
    found = services.evidence.file(id)
    if found is None:
        raise NotFound(f"there is no evidence {id}: it was never whole, or is too old")
    confine(request, caller, cluster=found.cluster, node=found.node)
    data = services.evidence.content(found.id)
    services.controls.audit(
        AuditRecord(
            cluster=found.cluster,
            at=services.clock.now(),
            actor=caller.name,
            verb="evidence.taken",
            subject=f"node/{found.node}",
            data={"evidence": found.id, "incident": found.incident, "run": found.run},
        )
    )
    headers = {"Content-Disposition": f'attachment; filename="{found.name}"', "Cache-Control": "no-store"}
    return Response(data, media_type="application/gzip", headers=headers)
