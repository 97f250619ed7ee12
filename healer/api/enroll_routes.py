"""`POST /enroll`: a node or a job proves by a munge credential who it is, and gets a token of its own.

What a node proves: root of some machine with this cluster's munge key made the credential, less than five
minutes ago, for this very purpose, and its munged calls itself by the address under which Slurm knows that
node. Who has the key as root can be anybody to Slurm as well; against such a person nothing here helps.

What a job proves: its own user made the credential, as above but on any machine of the cluster, and Slurm
shows that user's job at work. Its token tells step times and checkpoints of that job, its user's own things.
"""

import ipaddress
import json
import re
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from pydantic import StringConstraints
from starlette.responses import Response

from healer.api.access import Access
from healer.api.db_health import Fleet
from healer.api.documents import answers
from healer.api.problems import Problem, field_error
from healer.api.request_fields import Body, Word
from healer.api.responses import answer
from healer.api.services import services_of
from healer.model import Role, SlurmJob, SlurmNode, SlurmSnapshot
from healer.ports.callers import Caller, Credential, CredentialRefused
from healer.ports.request_errors import TooMany

router = APIRouter(tags=["signals"])
PURPOSE = "healer enroll"
JOB_PURPOSE = "healer enroll job"
FRESH = timedelta(minutes=5)
#: Credentials decoded at once, and refusals of one address in a minute; beyond that 429.
AT_ONCE = 4
REFUSALS_PER_MIN = 20
_ADDRESSES = 10_000
#: What a credential made for this purpose speaks of.
_ABOUT = {PURPOSE: "node", JOB_PURPOSE: "job"}
_NONCE = re.compile(r"[0-9a-f]{32,64}")
Resolve = Callable[[str], Iterable[str]]


class EnrollBody(Body):
    """`credential` is what `munge` printed for {"for": "healer enroll", "node", "nonce", "cluster"?}, or for
    {"for": "healer enroll job", "job", "nonce", "cluster"?}."""

    credential: Annotated[
        str, StringConstraints(strip_whitespace=True, max_length=8192, pattern=r"^MUNGE:[A-Za-z0-9+/=]+:$")
    ]
    cluster: Word | None = None


class EnrolledView(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """`cluster`, and `node` or `job`, are Slurm's names of who asked; the token speaks of them alone."""

    token: str
    cluster: str
    expires_at: datetime
    node: str | None = None
    job: str | None = None


class Door:
    """Keeps those who only try from costing much: few at once, and few refusals from one address."""

    def __init__(self) -> None:
        self._room = threading.BoundedSemaphore(AT_ONCE)
        self._lock = threading.Lock()
        self._refused: OrderedDict[str, list[float]] = OrderedDict()

    def __enter__(self) -> None:
        if not self._room.acquire(blocking=False):
            raise TooMany("many nodes enrol at this moment", 2)

    def __exit__(self, *_: object) -> None:
        self._room.release()

    def check(self, peer: str) -> None:
        with self._lock:
            if len(self._recent(peer)) >= REFUSALS_PER_MIN:
                raise TooMany(f"{peer} was refused {REFUSALS_PER_MIN} times within a minute", 60)

    def refused(self, peer: str) -> None:
        with self._lock:
            self._refused[peer] = [*self._recent(peer), time.monotonic()]
            self._refused.move_to_end(peer)
            while len(self._refused) > _ADDRESSES:
                self._refused.popitem(last=False)

    def _recent(self, peer: str) -> list[float]:
        now = time.monotonic()
        return [at for at in self._refused.get(peer, ()) if now - at < 60]


@router.post("/enroll", responses=answers(EnrolledView, "the token, shown this once", 201), status_code=201)
def enroll(request: Request, body: EnrollBody) -> Response:
    """Gives a node or a job a token of its own, for its munge credential. It may write signals of that node
    alone, or step times and checkpoints of that job alone."""
    services = services_of(request)
    door: Door = request.app.state.door
    peer = request.client.host if request.client else ""
    door.check(peer)
    try:
        with door:
            # Each cluster's munge has a key of its own: what it opens was made on a machine of that cluster.
            cluster = body.cluster or services.only
            if not cluster:
                raise field_error("cluster", f"name the cluster: one of {', '.join(services.clusters)}")
            told = services.credentials(cluster).decode(body.credential)
            view = _enrolled(request, cluster, told, peer)
    except CredentialRefused as error:
        door.refused(peer)
        raise Problem(403, f"the credential is refused: {error}") from None
    except Problem as problem:
        if problem.status == 403:
            door.refused(peer)
            _note(request, peer, problem.detail)
        raise
    return answer(request, view, 201)


def _enrolled(request: Request, cluster: str, told: Credential, peer: str) -> EnrolledView:
    """The token for who made this credential. Raises Problem 403 with the reason."""
    services = services_of(request)
    said = _payload(told)
    snapshot = _shown(request, cluster, said)
    now = services.clock.now()
    if "job" in said:
        job = _job(snapshot, said["job"], told.uid)
        made = services.tokens.enroll_job(
            cluster, job.id, nodes=len(job.nodes), nonce=said["nonce"],
            by=f"munge, {job.user or told.uid} at {told.host}", now=now,
        )  # fmt: skip
        return EnrolledView(token=made.token, job=job.id, cluster=cluster, expires_at=made.expires_at)
    node = _node(snapshot, said["node"], told.host, peer)
    by = f"munge, root at {told.host}"
    made = services.tokens.enroll(cluster, node.name, nonce=said["nonce"], by=by, now=now)
    return EnrolledView(token=made.token, node=node.name, cluster=cluster, expires_at=made.expires_at)


def _shown(request: Request, cluster: str, said: Mapping[str, str]) -> SlurmSnapshot:
    """What Slurm shows of the cluster that the credential is of."""
    fleet: Fleet = request.app.state.fleet
    services = services_of(request)
    snapshot = fleet.snapshots().get(cluster)
    if snapshot is None and cluster in (services.cluster, *services.clusters):
        raise Problem(503, "Slurm has not been asked yet which nodes there are", headers={"Retry-After": "2"})
    if snapshot is None or (services.clusters and cluster not in services.clusters):
        raise Problem(403, f"healer looks after no cluster {cluster} of this credential")
    if said.get("cluster") not in (None, "", cluster):
        raise Problem(403, f"healer knows no cluster {said['cluster']} by the key of this credential")
    return snapshot


def _node(snapshot: SlurmSnapshot, name: str, host: str, peer: str) -> SlurmNode:
    """Slurm's node of that name, which the credential was made on."""
    node = named(snapshot, name)
    if node is None:
        raise Problem(403, f"Slurm has no node {name}: set HEALER_NODE to the node's name in Slurm")
    why = wrong_host(host, peer, node, snapshot.nodes, addresses)
    if why is not None:
        raise Problem(403, why)
    return node


def _job(snapshot: SlurmSnapshot, name: str, uid: int) -> SlurmJob:
    """That user's job, at work. One that the picture does not show yet may be seconds old: 409, ask again."""
    job = snapshot.jobs.get(name)
    if job is None or not job.active:
        raise Problem(
            409, f"Slurm's picture shows no job {name} at work; a job that just began is in it soon",
            headers={"Retry-After": "3"},
        )  # fmt: skip
    if job.uid != uid:
        raise Problem(
            403, f"Slurm does not show the job {name} as one of user {uid}, who made the credential"
        )
    return job


def _payload(told: Credential) -> dict[str, str]:
    """What the credential says: `nonce`, and `node` or `job`."""
    if abs(told.decoded_at - told.encoded_at) > FRESH:
        raise Problem(403, "the credential is older than 5 minutes; each attempt needs a new one")
    try:
        read = json.loads(told.payload)
    except (ValueError, RecursionError):  # whoever has an account on a node writes the payload
        read = None
    said = read if isinstance(read, dict) else {}
    about = _ABOUT.get(str(said.get("for")))
    if (
        about is None
        or not all(isinstance(said.get(name), str) for name in (about, "nonce"))
        or not isinstance(said.get("cluster", ""), str)
        or not _NONCE.fullmatch(said["nonce"])
    ):
        raise Problem(403, "the credential was not made to enrol a node or a job")
    if about == "node" and told.uid != 0:
        raise Problem(403, f"the credential is of user {told.uid}: only root enrols its node")
    return {name: said[name] for name in (about, "nonce", "cluster") if name in said}


def named(snapshot: SlurmSnapshot, name: str) -> SlurmNode | None:
    """The node of that name, else the only one on a host of that name."""
    if name in snapshot.nodes:
        return snapshot.nodes[name]
    on_host = [one for one in snapshot.nodes.values() if one.hostname == name]
    return on_host[0] if len(on_host) == 1 else None


def wrong_host(
    host: str, peer: str, node: SlurmNode, nodes: Mapping[str, SlurmNode], resolve: Resolve
) -> str | None:
    """Why who made the credential at `host` is not `node`; None when it is.

    Many a munged takes itself for 127.0.0.1 or 127.0.1.1 (its host's name in /etc/hosts), which tells no
    machine from another; then the address counts from which the request came. A loopback address is a node's
    own only where NodeAddr itself is that address. Two nodes at one address cannot be told apart.
    """
    address = node.address or node.name
    twin = next((one.name for one in nodes.values() if one is not node and _at(one) == _at(node)), None)
    if twin is not None:
        return (
            f"Slurm gives {node.name} and {twin} the same address {address}, so a credential does not tell "
            "them apart: give this node a token by `healer token create --role signals --node`"
        )
    told = peer if _loopback(host) and host != address else host
    names = dict.fromkeys((address, node.hostname or node.name, node.name))
    own = {address} | {ip for name in names for ip in resolve(name) if not _loopback(ip)}
    if told in own:
        return None
    known = ", ".join(sorted(own - {address}) or [address])
    where = f"at {host}" if told == host else f"at {host} and was sent from {told}"
    return (
        f"the credential was made {where}, and Slurm's node {node.name} is {known}: mend NodeAddr or the "
        "name service, or start the node's munged with --origin"
    )


def _at(node: SlurmNode) -> str:
    return node.address or node.name


def _loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def addresses(name: str) -> list[str]:
    """IPv4 addresses of a host: munge knows no others."""
    try:
        return [str(one[4][0]) for one in socket.getaddrinfo(name, None, socket.AF_INET, socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []


def _note(request: Request, peer: str, why: str) -> None:
    access: Access = request.app.state.access
    caller = Caller(id="enroll", name=f"enrolment from {peer}", role=Role.signals)
    access.note_refusal(caller, "POST /api/v1/enroll", why)
