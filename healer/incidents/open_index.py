"""Which open incidents are about a node, a job or a place."""

from collections import defaultdict
from collections.abc import Collection

from healer.model import Component, Incident


class OpenIndex:
    """Ids by node, job and root: in a storm each finding would else be compared with every incident."""

    def __init__(self) -> None:
        self._order: dict[str, int] = {}
        self._by_node: dict[str, set[str]] = defaultdict(set)
        self._by_job: dict[str, set[str]] = defaultdict(set)
        self._by_root: dict[Component, set[str]] = defaultdict(set)

    def put(self, before: Incident | None, incident: Incident) -> None:
        """`before` is the same incident as it was put last."""
        self._order.setdefault(incident.id, len(self._order))
        if before is not None and before.is_open:
            for names in self._of(before):
                names.discard(incident.id)
        if incident.is_open:
            for names in self._of(incident):
                names.add(incident.id)

    def find(self, node: str | None, jobs: Collection[str], root: Component | None) -> list[str]:
        """Ids of the open incidents of any of these, in the order in which they were first put."""
        found = set(self._by_node.get(node, ())) if node else set()
        found.update(*(self._by_job.get(job, ()) for job in jobs))
        if root is not None:
            found |= self._by_root.get(root, set())
        return sorted(found, key=self._order.__getitem__)

    def _of(self, incident: Incident) -> list[set[str]]:
        own = [self._by_root[incident.root], *(self._by_job[job] for job in incident.jobs_hit)]
        return [*own, self._by_node[incident.root.node]] if incident.root.node else own
