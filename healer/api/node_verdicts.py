"""What the answer to a node's heartbeat says of that node: whether work should leave it.

It should where healer has drained the node for a fault and moves jobs at once. Where a playbook lets jobs run
to their end or to a checkpoint, a launcher that left would cost what the playbook spares.

Read once a second for the whole fleet, and only nodes that are out; a heartbeat is answered from memory.
"""

import msgspec

from healer.api.db_health import SharedRead
from healer.api.group_commit import NodeVerdict
from healer.api.request_preamble import Preamble
from healer.api.services import Services
from healer.playbooks.advance import moves_jobs_at_once
from healer.ports.callers import Caller
from healer.ports.transactions import OutOfService

#: What was read longer ago says nothing of now: the database is away.
OLD_S = 15.0


class NodeVerdicts:
    """For the event loop that serves the routes."""

    def __init__(self, services: Services, preamble: Preamble) -> None:
        self._services, self._preamble = services, preamble
        self._out = SharedRead(self._read, {})

    async def of(self, caller: Caller) -> NodeVerdict | msgspec.UnsetType:
        """The verdict for the node that the token is bound to; UNSET for other callers."""
        if not caller.node:
            return msgspec.UNSET
        found = (await self._out.current()).get((self._preamble.default_cluster(caller), caller.node))
        if self._out.age_s > OLD_S:
            return NodeVerdict(node=caller.node, state="unknown")
        if found is None:
            return NodeVerdict(node=caller.node, state="healthy")
        return NodeVerdict(
            node=caller.node,
            state="leave",
            incident=found.incident[:8],
            rule=found.rule,
            reason=str(found.title),
            at=found.at,
        )

    async def _read(self) -> dict[tuple[str, str], OutOfService]:
        found = await self._preamble.database.ask(self._services.hooks.out_of_service)
        playbooks = self._services.rules().playbooks
        return {
            (node.cluster, node.node): node
            for node in found
            if (plan := playbooks.get(node.playbook)) is not None and moves_jobs_at_once(plan, node.input)
        }
