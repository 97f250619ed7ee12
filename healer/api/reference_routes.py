"""What nodes of each kind should be: taken from a good node when a person says so, shown, forgotten."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from healer.api.access import Operator, Viewer, confine, named_cluster
from healer.api.documents import answers
from healer.api.request_fields import Id, Reason, Text, Word, once
from healer.api.responses import answer
from healer.api.services import Services, services_of
from healer.model import Reference, differences, merged_facts, node_kind
from healer.ports.request_errors import Conflict, NotFound

router = APIRouter(tags=["acting"])


class ReferenceList(msgspec.Struct, frozen=True, kw_only=True):
    """By kind; empty: nothing is compared."""

    cluster: str
    items: list[Reference]


class Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """`before` is what the reference takes the place of. `differ` are nodes of the kind that are not like it,
    by what they have otherwise; `silent` is how many told nothing of what it holds. A dry run is not stored.
    """

    reference: Reference
    before: Reference | None
    differ: dict[str, dict[str, str]]
    silent: int
    stored: bool


class LearnBody(Reason):
    """`kind` is the node's GPU model unless another one is meant; `cluster` may be left out where there is
    one."""

    node: Word
    kind: Word | None = None
    cluster: Word | None = None
    reason: Text = "no reason given"
    dry_run: bool = False


@router.get("/references", responses=answers(ReferenceList, "what nodes of each kind should be"))
def references(request: Request, caller: Viewer, cluster: Annotated[str | None, Query()] = None) -> Response:
    """Driver, firmware, BIOS and settings of good nodes, with which all nodes of their kind are compared."""
    services = services_of(request)
    named = named_cluster(services, caller, cluster)
    confine(request, caller, cluster=named)
    return answer(request, ReferenceList(cluster=named, items=services.queries.nodes.references(named)))


@router.post(
    "/references",
    responses=answers(Learnt, "a dry run: what would be taken, and which nodes differ")
    | answers(Learnt, "taken", 201),
    status_code=201,
)
def learn(request: Request, caller: Operator, body: LearnBody) -> Response:
    """Takes what a good node told of itself as the reference of its kind, in place of the one before."""
    services = services_of(request)
    cluster = named_cluster(services, caller, body.cluster)
    confine(request, caller, cluster=cluster)
    taken = _learnt(services, cluster, body, caller.name)
    if body.dry_run:
        return answer(request, taken)

    def act(identity: str) -> Response:
        services.controls.learn(taken.reference, reason=body.reason, request=identity)
        return answer(request, msgspec.structs.replace(taken, stored=True), 201)

    return once(request, caller, body, act)


def _learnt(services: Services, cluster: str, body: LearnBody, by: str) -> Learnt:
    snapshot = services.queries.clusters.snapshots().get(cluster)
    shown = snapshot.nodes.get(body.node) if snapshot is not None else None
    if snapshot is None or shown is None:
        raise NotFound(f"Slurm knows no node {body.node} in the cluster {cluster}")
    told = {one.node: one.facts for one in services.queries.nodes.inventories(cluster)}
    facts = merged_facts(shown, told.get(body.node))
    if not facts:
        raise Conflict(f"{body.node} told nothing of itself yet: no driver, no firmware, no settings")
    kind = (body.kind or node_kind(shown.gpu_model)).lower()
    reference = Reference(
        cluster=cluster,
        kind=kind,
        node=body.node,
        at=services.clock.now(),
        by=by,
        facts=facts,
        figures=services.queries.nodes.measured(cluster, body.node),
    )
    others = {
        name: merged_facts(node, told.get(name))
        for name, node in sorted(snapshot.nodes.items())
        if node_kind(node.gpu_model) == kind
    }
    differ = {name: otherwise for name, own in others.items() if (otherwise := differences(own, reference))}
    before = {one.kind: one for one in services.queries.nodes.references(cluster)}.get(kind)
    silent = sum(facts.keys().isdisjoint(own) for own in others.values())
    return Learnt(reference=reference, before=before, differ=differ, silent=silent, stored=False)


@router.delete(
    "/references/{cluster}/{kind}", responses=answers(Reference, "the reference that was forgotten")
)
def forget(
    request: Request,
    caller: Operator,
    cluster: Id,
    kind: Id,
    body: Reason | None = None,
) -> Response:
    """Nodes of this kind are compared no more; incidents of their drift end."""
    services = services_of(request)
    confine(request, caller, cluster=cluster)
    known = {one.kind: one for one in services.queries.nodes.references(cluster)}.get(kind)
    if known is None:
        raise NotFound(f"there is no reference for {kind} in the cluster {cluster}")
    words = body or Reason(reason="no reason given")

    def act(identity: str) -> Response:
        services.controls.forget_reference(known, by=caller.name, reason=words.reason, request=identity)
        return answer(request, known)

    return once(request, caller, words, act)
