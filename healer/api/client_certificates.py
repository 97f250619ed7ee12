"""Certificates that nodes show (HEALER_TLS_CLIENT_CA): a node with one speaks of itself alone, whatever its
token allows."""

import asyncio

import msgspec
from starlette.types import Scope

from healer.model import Role
from healer.ports.callers import Caller
from healer.text import Said, say

#: Key of a request's scope for the names in its client's certificate.
CERTIFICATE = "healer.certificate"


def names_shown(transport: asyncio.BaseTransport) -> tuple[str, ...]:
    """The names in the client's certificate, each up to its first dot, which is Slurm's name of a node where
    the certificate has the host's, and as it is. Empty without a certificate."""
    shown = transport.get_extra_info("peercert")
    if not shown:
        return ()
    names = [name for kind, name in shown.get("subjectAltName", ()) if kind == "DNS"]
    common = [value for part in shown.get("subject", ()) for kind, value in part if kind == "commonName"]
    return tuple(form for name in (*names, *common) for form in (name.partition(".")[0], name))


def foreign_node(names: tuple[str, ...], node: str | None) -> Said | None:
    """Why a client with this certificate may not report about this node; None if it may, or has no
    certificate."""
    if not names or node is None or node in names:
        return None
    return say("api.client_certificates_of_another_node", name=names[-1][:100], node=node)


def bound(scope: Scope, caller: Caller) -> Caller:
    """A sender that shows a certificate is bound to its node. A relay speaks of many nodes, and a job's token
    is bound to its job."""
    names: tuple[str, ...] = scope.get(CERTIFICATE, ())
    if not names or caller.node or caller.job or caller.vouches or caller.role is not Role.signals:
        return caller
    return msgspec.structs.replace(caller, node=names[0])
