"""`POST /enroll`: a node or a job identifies itself by a munge credential and gets a token.

What a node proves: root of some machine with this cluster's munge key made the credential, less than five
minutes ago, for this very purpose, and its munged reports the address under which Slurm knows that node.
A person with root and the key can impersonate any node to Slurm as well; this is no protection against that.

What a job proves: its user made the credential, as above but on any machine of the cluster, and Slurm shows
that user's job running. Its token only allows step times and checkpoints of that job.
"""

import hashlib
import ipaddress
import json
import re
import socket
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from pydantic import StringConstraints
from starlette.responses import Response

from healer.api.access import Access, is_named_in, named_cluster
from healer.api.client_certificates import CERTIFICATE, foreign_node
from healer.api.db_health import Fleet
from healer.api.documents import answers
from healer.api.door import Door
from healer.api.problems import Problem
from healer.api.request_fields import Body, Word
from healer.api.responses import answer
from healer.api.services import services_of
from healer.api.site_address import client_address
from healer.model import Role, SlurmJob, SlurmNode, SlurmSnapshot
from healer.ports.callers import Caller, Credential, CredentialRefused
from healer.text import Said, joined, said_by, say

router = APIRouter(tags=["signals"])
PURPOSE = "healer enroll"
JOB_PURPOSE = "healer enroll job"
FRESH = timedelta(minutes=5)
#: What a credential made for a purpose identifies.
_ABOUT = {PURPOSE: "node", JOB_PURPOSE: "job"}
_NONCE = re.compile(r"[0-9a-f]{32,64}")
Resolve = Callable[[str], Iterable[str]]


MungeCredential = Annotated[
    str, StringConstraints(strip_whitespace=True, max_length=8192, pattern=r"^MUNGE:[A-Za-z0-9+/=]+:$")
]


class EnrollBody(Body):
    """`credential` is what `munge` printed for {"for": "healer enroll", "node", "nonce", "cluster"?}, or for
    {"for": "healer enroll job", "job", "nonce", "cluster"?}."""

    credential: MungeCredential
    cluster: Word | None = None


class EnrolledView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`cluster`, and `node` or `job`, are Slurm's names of the sender; the token is bound to them."""

    token: str
    cluster: str
    expires_at: datetime
    node: str | None = None
    job: str | None = None


@router.post("/enroll", responses=answers(EnrolledView, "the token, shown this once", 201), status_code=201)
def enroll(request: Request, body: EnrollBody) -> Response:
    """Gives a node or a job a token for its munge credential. It may only write signals of that node, or step
    times and checkpoints of that job."""
    services = services_of(request)
    door: Door = request.app.state.door
    peer = client_address(request.scope)
    door.check(peer)
    try:
        with door:
            # Each cluster's munge has its own key: a credential that it decodes was made on a machine of that
            # cluster.
            cluster = named_cluster(services, None, body.cluster)
            credential = services.credentials(cluster).decode(body.credential)
            view = _enrolled(request, cluster, credential, peer)
    except CredentialRefused as error:
        door.refused(peer)
        raise Problem(403, say("api.credential_refused", why=said_by(error))) from None
    except Problem as problem:
        if problem.status == 403:
            door.refused(peer)
            _record_refusal(request, peer, problem.detail)
        raise
    return answer(request, view, 201)


def _enrolled(request: Request, cluster: str, credential: Credential, peer: str) -> EnrolledView:
    """The token for the maker of this credential. Raises Problem 403 with the reason."""
    services = services_of(request)
    payload = _payload(credential)
    snapshot = _snapshot(request, cluster, payload)
    now = services.clock.now()
    if "job" in payload:
        job = _job(snapshot, payload["job"], credential.uid)
        made = services.tokens.enroll_job(
            cluster, job.id, nodes=len(job.nodes), nonce=payload["nonce"],
            by=f"munge, {job.user or credential.uid} at {credential.host}", now=now,
        )  # fmt: skip
        return EnrolledView(token=made.token, job=job.id, cluster=cluster, expires_at=made.expires_at)
    node = _node(snapshot, payload["node"], credential.host, peer)
    if (why := foreign_node(request.scope.get(CERTIFICATE, ()), node.name)) is not None:
        raise Problem(403, why)
    by = f"munge, root at {credential.host}"
    proven = _shows_token(request, cluster, node.name, now)
    made = services.tokens.enroll(cluster, node.name, nonce=payload["nonce"], by=by, now=now, proven=proven)
    return EnrolledView(token=made.token, node=node.name, cluster=cluster, expires_at=made.expires_at)


def _shows_token(request: Request, cluster: str, node: str, now: datetime) -> bool:
    """Whether the request carries a token of this node that is in force: the same installation renews it. Any
    root of the cluster can make a node's credential, and none of them has its token."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return False
    secret = token.strip()
    caller = services_of(request).tokens.by_token(hashlib.sha256(secret.encode()).digest(), now)
    if caller is None or not caller.sealed or not is_named_in(secret, caller):
        return False
    return (caller.cluster, caller.node) == (cluster, node)


def _snapshot(request: Request, cluster: str, payload: Mapping[str, str]) -> SlurmSnapshot:
    """Slurm's snapshot of the credential's cluster. Raises Problem 503 before the first, 403 for another."""
    fleet: Fleet = request.app.state.fleet
    services = services_of(request)
    snapshot = fleet.snapshots().get(cluster)
    if snapshot is None and cluster in (services.cluster, *services.clusters):
        raise Problem(503, say("api.not_asked_yet"), headers={"Retry-After": "2"})
    if snapshot is None or (services.clusters and cluster not in services.clusters):
        raise Problem(403, say("api.enroll_cluster", cluster=cluster))
    if payload.get("cluster") not in (None, "", cluster):
        raise Problem(403, say("api.enroll_cluster_key", cluster=payload["cluster"]))
    return snapshot


def _node(snapshot: SlurmSnapshot, name: str, host: str, peer: str) -> SlurmNode:
    """Slurm's node of that name, on which the credential was made."""
    node = named(snapshot, name)
    if node is None:
        raise Problem(403, say("api.enroll_no_node", node=name))
    why = wrong_host(host, peer, node, snapshot.nodes, addresses)
    if why is not None:
        raise Problem(403, why)
    return node


def _job(snapshot: SlurmSnapshot, name: str, uid: int) -> SlurmJob:
    """That user's running job. One that the snapshot does not show yet may be seconds old: 409, try again."""
    job = snapshot.jobs.get(name)
    if job is None or not job.active:
        raise Problem(409, say("api.enroll_no_job", job=name), headers={"Retry-After": "3"})
    if job.uid != uid:
        raise Problem(403, say("api.enroll_job_user", job=name, uid=uid))
    return job


def _payload(credential: Credential) -> dict[str, str]:
    """The credential's `nonce`, and `node` or `job`."""
    if abs(credential.decoded_at - credential.encoded_at) > FRESH:
        raise Problem(403, say("api.enroll_old"))
    try:
        read = json.loads(credential.payload)
    except (ValueError, RecursionError):  # any user of a node can write the payload
        read = None
    payload = read if isinstance(read, dict) else {}
    about = _ABOUT.get(str(payload.get("for")))
    if (
        about is None
        or not all(isinstance(payload.get(name), str) for name in (about, "nonce"))
        or not isinstance(payload.get("cluster", ""), str)
        or not _NONCE.fullmatch(payload["nonce"])
    ):
        raise Problem(403, say("api.enroll_purpose"))
    if about == "node" and credential.uid != 0:
        raise Problem(403, say("api.enroll_not_root", uid=credential.uid))
    return {name: payload[name] for name in (about, "nonce", "cluster") if name in payload}


def named(snapshot: SlurmSnapshot, name: str) -> SlurmNode | None:
    """The node of that name, else the only one on a host of that name."""
    if name in snapshot.nodes:
        return snapshot.nodes[name]
    on_host = [node for node in snapshot.nodes.values() if node.hostname == name]
    return on_host[0] if len(on_host) == 1 else None


def wrong_host(
    host: str, peer: str, node: SlurmNode, nodes: Mapping[str, SlurmNode], resolve: Resolve
) -> Said | None:
    """Why a credential made at `host` is not of `node`; None if it is.

    Many a munged reports 127.0.0.1 or 127.0.1.1 (its host's name in /etc/hosts), which every machine has;
    then the address counts from which the request came. A loopback address identifies a node only where
    NodeAddr itself is that address. Two nodes at one address cannot be distinguished.
    """
    address = _address(node)
    others = (other for other in nodes.values() if other is not node)
    twin = next((other.name for other in others if _address(other) == address), None)
    if twin is not None:
        return say("api.enroll_twin", node=node.name, twin=twin, address=address)
    origin = peer if _loopback(host) and host != address else host
    names = dict.fromkeys((address, node.hostname or node.name, node.name))
    of_node = {address} | {ip for name in names for ip in resolve(name) if not _loopback(ip)}
    if origin in of_node:
        return None
    expected = joined(sorted(of_node - {address}) or [address], "comma")
    at_origin = say("api.enroll_at", host=host)
    where = at_origin if origin == host else say("api.enroll_at_from", host=host, origin=origin)
    return say("api.enroll_origin", where=where, node=node.name, expected=expected)


def _address(node: SlurmNode) -> str:
    return node.address or node.name


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def addresses(name: str) -> list[str]:
    """IPv4 addresses of a host: munge knows no others."""
    try:
        found = socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)
        return [str(sockaddr[0]) for *_, sockaddr in found]
    except (OSError, UnicodeError):
        return []


def _record_refusal(request: Request, peer: str, why: Said) -> None:
    access: Access = request.app.state.access
    caller = Caller(id="enroll", name=f"enrolment from {peer}", role=Role.signals)
    access.refusals.note(caller, "POST /api/v1/enroll", why)
