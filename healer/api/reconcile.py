"""Drift between healer's book and Slurm: shown to everybody, repaired when a person asks."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from healer.api.access import confine, named_cluster, need
from healer.api.answers import answer
from healer.api.bodies import Reason, Word
from healer.api.documents import answers
from healer.api.once import once
from healer.api.reading import services_of
from healer.model import Role
from healer.model.drift import Drift, Reconciled
from healer.ports.callers import Caller

router = APIRouter(tags=["acting"])

Viewer = Annotated[Caller, need(Role.viewer)]
Operator = Annotated[Caller, need(Role.operator)]


class DriftList(msgspec.Struct, frozen=True, kw_only=True):
    """Empty where healer's book and Slurm agree."""

    cluster: str
    items: list[Drift]


class RepairList(msgspec.Struct, frozen=True, kw_only=True):
    """One answer for each drift that was there."""

    cluster: str
    items: list[Reconciled]


class RepairBody(Reason):
    """`cluster` may be left out where there is one."""

    cluster: Word | None = None


@router.get("/reconcile", responses=answers(DriftList, "where healer's book and Slurm do not agree"))
def drift(request: Request, caller: Viewer, cluster: Annotated[str | None, Query()] = None) -> Response:
    """What stands in Slurm and nobody works on, and what healer holds that Slurm does not show."""
    services = services_of(request)
    named = named_cluster(services, caller, cluster)
    confine(request, caller, cluster=named)
    return answer(request, DriftList(cluster=named, items=services.reconcile.drifts(named)))


@router.post("/reconcile", responses=answers(RepairList, "what came of each repair"))
def repair(request: Request, caller: Operator, body: RepairBody) -> Response:
    """Repairs what is healer's own: each through the gate and in the audit. A person's word is left alone."""
    services = services_of(request)
    named = named_cluster(services, caller, body.cluster)
    confine(request, caller, cluster=named)

    def act(identity: str) -> Response:
        done = services.reconcile.repair(named, by=caller.name, reason=body.reason, request=identity)
        return answer(request, RepairList(cluster=named, items=done))

    return once(request, caller, body, act)
