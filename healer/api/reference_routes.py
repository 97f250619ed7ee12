"""References: what nodes of each kind should be, learned from a good node on a person's command."""

from typing import Annotated

import msgspec
from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from healer.api.access import Operator, Viewer, allowed_cluster, confine
from healer.api.documents import answers
from healer.api.problems import not_in_slurm
from healer.api.request_fields import Id, Reason, Text, Word, once
from healer.api.responses import answer
from healer.api.services import Services, services_of
from healer.model import Reference, differences, merged_facts, node_kind
from healer.ports.request_errors import Conflict, NotFound
from healer.text import say

router = APIRouter(tags=["acting"])


class ReferenceList(msgspec.Struct, frozen=True, kw_only=True):
    """By kind; empty: nothing is compared."""

    cluster: str
    items: list[Reference]


class Learnt(msgspec.Struct, frozen=True, kw_only=True):
    """`before` is the reference that this one replaces. `differ`: nodes of the kind that differ -> the facts
    that differ; `silent` is how many reported none of its facts. A dry run is not stored.
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
    reason: Text = str(say("api.no_reason"))
    dry_run: bool = False


@router.get("/references", responses=answers(ReferenceList, "what nodes of each kind should be"))
def references(request: Request, caller: Viewer, cluster: Annotated[str | None, Query()] = None) -> Response:
    """Driver, firmware, BIOS and settings of good nodes, with which all nodes of their kind are compared."""
    name = allowed_cluster(request, caller, cluster)
    references = services_of(request).queries.nodes.references(name)
    return answer(request, ReferenceList(cluster=name, items=references))


@router.post(
    "/references",
    responses=answers(Learnt, "a dry run: what would be taken, and which nodes differ")
    | answers(Learnt, "taken", 201),
    status_code=201,
)
def learn(request: Request, caller: Operator, body: LearnBody) -> Response:
    """Takes the inventory of a good node as the reference of its kind, in place of the one before."""
    services, cluster = services_of(request), allowed_cluster(request, caller, body.cluster)
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
        raise NotFound(not_in_slurm(snapshot, "node", body.node, cluster))
    reported = {inventory.node: inventory.facts for inventory in services.queries.nodes.inventories(cluster)}
    facts = merged_facts(shown, reported.get(body.node))
    if not facts:
        raise Conflict(say("api.no_facts_reported", node=body.node))
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
        name: merged_facts(node, reported.get(name))
        for name, node in sorted(snapshot.nodes.items())
        if node_kind(node.gpu_model) == kind
    }
    differ = {name: differences(facts_there, reference) for name, facts_there in others.items()}
    before = {earlier.kind: earlier for earlier in services.queries.nodes.references(cluster)}.get(kind)
    silent = sum(facts.keys().isdisjoint(facts_there) for facts_there in others.values())
    return Learnt(
        reference=reference,
        before=before,
        differ={name: facts for name, facts in differ.items() if facts},
        silent=silent,
        stored=False,
    )


@router.delete(
    "/references/{cluster}/{kind}", responses=answers(Reference, "the reference that was forgotten")
)
def forget(request: Request, caller: Operator, cluster: Id, kind: Id, body: Reason | None = None) -> Response:
    """Nodes of this kind are compared no more; incidents of their drift end."""
    services = services_of(request)
    confine(request, caller, cluster=cluster)
    reference = {found.kind: found for found in services.queries.nodes.references(cluster)}.get(kind)
    words = body or Reason(reason=say("api.no_reason"))

    def act(identity: str) -> Response:
        if reference is None:
            why = say("api.no_reference", kind=kind, cluster=cluster)
            raise NotFound(why)
        services.controls.forget_reference(reference, by=caller.name, reason=words.reason, request=identity)
        return answer(request, reference)

    return once(request, caller, words, act)
