"""Which open incidents are about a node, a job, a place, a cable or a fault."""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable

from healer.incidents.same import JOB_SLOW
from healer.model import HARDWARE, Component, Incident, Sharing

#: So many of an incident's parts are looked at for the cables that they end.
_PARTS = 16


class OpenIndex:
    """Ids by what incidents are about: in a storm each finding would else be compared with every incident.

    `link_of`: the cable that a part of the cluster is an end of, None where there is none. `shares_of`: the
    places whose fault one of this name at this part may be.
    """

    def __init__(
        self,
        link_of: Callable[[Component], Hashable | None] = lambda _: None,
        shares_of: Callable[[str, Component], Iterable[tuple[Sharing, str]]] = lambda _, __: (),
    ) -> None:
        self._link_of, self._shares_of = link_of, shares_of
        self._order: dict[str, int] = {}
        self._keys: dict[str, frozenset[Hashable]] = {}
        self._ids: defaultdict[Hashable, set[str]] = defaultdict(set)
        self._found: dict[Hashable, list[str]] = {}

    def put(self, incident: Incident) -> None:
        """In the place of the same incident as it was put last."""
        self._order.setdefault(incident.id, len(self._order))
        keys = frozenset(self._of(incident)) if incident.is_open else frozenset()
        before = self._keys.get(incident.id, frozenset())
        if keys == before:
            return
        self._keys[incident.id] = keys
        self._found.clear()
        for key in before - keys:
            self._ids[key].discard(incident.id)
        for key in keys - before:
            self._ids[key].add(incident.id)

    def drop(self, name: str) -> None:
        """It was never told of."""
        for key in self._keys.pop(name, frozenset()):
            self._ids[key].discard(name)
        self._found.clear()

    def find(self, node: str | None, jobs: Collection[str], root: Component | None) -> list[str]:
        """Ids of the open incidents of any of these, in the order in which they were first put: of the node,
        of exactly this root or of its cable's other end; of jobs only those that blame no hardware."""
        keys: list[Hashable] = [("soft", job) for job in jobs]
        if node:
            keys.append(("node", node))
        if root is not None:
            keys += self._at(root)
        return self._sorted(tuple(keys))

    def hard(self, node: str | None, jobs: Collection[str]) -> list[str]:
        """Of hardware, of the node or of any of the jobs."""
        keys: list[Hashable] = [("hard", job) for job in jobs]
        return self._sorted((*keys, ("hard node", node)) if node else tuple(keys))

    def of_rule(self, rule: str) -> list[str]:
        return self._sorted((("rule", rule),))

    def of_fault(self, fault: str) -> list[str]:
        return self._sorted((("fault", fault),))

    def of_share(self, sharing: str, place: str) -> list[str]:
        return self._sorted((("share", sharing, place),))

    def _sorted(self, keys: tuple[Hashable, ...]) -> list[str]:
        """While nothing moves the same question has the same answer: a flood asks it 10,000 times."""
        known = self._found.get(keys)
        if known is None:
            found: set[str] = set()
            found.update(*(self._ids.get(key, ()) for key in keys))
            known = self._found[keys] = sorted(found, key=self._order.__getitem__)
        return known

    def _at(self, where: Component) -> list[Hashable]:
        link = self._link_of(where)
        return [("root", where), *([("link", link)] if link is not None else ())]

    def _of(self, incident: Incident) -> list[Hashable]:
        hard = incident.fault_class in HARDWARE and incident.fault != JOB_SLOW
        node, jobs = incident.root.node, incident.jobs_hit
        keys: list[Hashable] = [("root", incident.root), ("rule", incident.rule), ("fault", incident.fault)]
        keys += [("hard" if hard else "soft", job) for job in jobs]
        if node:
            keys.append(("node", node))
            if hard:
                keys.append(("hard node", node))
        parts = (incident.root, *incident.affected[:_PARTS])
        keys += [("link", link) for one in parts if (link := self._link_of(one)) is not None]
        shares = self._shares_of(incident.fault, incident.root)
        return [*keys, *(("share", sharing.name, place) for sharing, place in shares)]
