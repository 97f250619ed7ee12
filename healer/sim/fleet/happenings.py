"""What happens at the site besides nodes that fail by themselves: planned stops, lines that mean nothing, and
what a scenario plants by hand."""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

import numpy as np

from healer.model import Component, Observation, ObservationKind, Reference
from healer.signals.identity import digest_of
from healer.sim.fleet.healing import Healer
from healer.sim.fleet.scenario import BadScenario, Happening
from healer.sim.fleet.schedule import DAY_S, Fault
from healer.sim.fleet.site import CLUSTER, Site
from healer.sim.fleet.ways import INNOCENT, TEARDOWN
from healer.sim.senders import PCI

NEW_DRIVER = "590.48.01"
STORAGE_LINE = "nfs: server 10.1.2.3 not responding, still trying"
#: Under a brown-out of the storage steps wait for data.
STORAGE_SLOWER = 1.4
#: Lines of a storm come within so many seconds.
STORM_S = 20.0


class Happenings:
    """Notes in the site's agenda all that the scenario plants. `FIRST` numbers the faults of it."""

    FIRST = 1_000_000

    def __init__(self, site: Site) -> None:
        self.site = site
        self._rng = np.random.default_rng([site.seed, 7])
        self._number = self.FIRST
        self._plan_stops()
        self._innocent()
        for one in site.scenario.happenings:
            do = _KINDS.get(one.what)
            if do is None:
                raise BadScenario(f"nothing happens as {one.what!r}; there are {', '.join(_KINDS)}")
            at = site.scenario.start + timedelta(hours=one.at_h)
            do(self, one, at)

    def _moments(self, count: int) -> list[datetime]:
        seconds = self._rng.uniform(0, self.site.scenario.days * DAY_S, count)
        return [self.site.scenario.start + timedelta(seconds=one) for one in sorted(seconds.tolist())]

    def _plan_stops(self) -> None:
        scenario = self.site.scenario
        for at in self._moments(round(scenario.planned_stops_per_day * scenario.days)):
            self.site.agenda.at(at, self._stop)

    def _stop(self) -> None:
        site = self.site
        site.stop_planned(site.later(site.scenario.planned_stop_min * 60))

    def _innocent(self) -> None:
        scenario = self.site.scenario
        count = int(self._rng.poisson(scenario.telemetry.innocent_per_day * scenario.days))
        for at in self._moments(count):
            node = self.site.names[int(self._rng.integers(scenario.nodes))]
            line = INNOCENT[int(self._rng.integers(len(INNOCENT)))].format(
                pci=PCI[int(self._rng.integers(8))]
            )
            self.site.agenda.at(at, self._says(node, line))

    def _says(self, node: str, line: str) -> Callable[[], None]:
        return lambda: self.site.mender.said(node, line)

    # --- by hand ---

    def _fault(self, node: str, way: str, at: datetime, **changed: object) -> Fault:
        self._number += 1
        drawn = self.site.chance.draw(self._number, at, node, way=way, because="planted")
        return replace(drawn, **changed)  # type: ignore[arg-type]

    def fault(self, one: Happening, at: datetime) -> None:
        """Nodes of the large job, one after the other from `place` on, fail in the same way at once."""
        for node in self._nodes(one):
            self.site.expect(self._fault(node, one.way, at))

    def passing(self, one: Happening, at: datetime) -> None:
        """The same, and after `minutes` all is well again by itself: power or a switch is back."""
        nodes = self._nodes(one)
        for node in nodes:
            self.site.expect(self._fault(node, one.way, at, took=True, again_s=None))

        def back() -> None:
            for node in nodes:
                self.site.mend(node)

        self.site.agenda.at(at + timedelta(minutes=one.minutes), back)

    def storm(self, one: Happening, at: datetime) -> None:
        """A GPU falls off the bus, and the end of the job is told by Xid 45 from everywhere."""
        (root, *others) = self._nodes(one)
        self.site.expect(self._fault(root, one.way, at))
        for number, node in enumerate(others):
            late = timedelta(seconds=1 + STORM_S * number / max(1, len(others)))
            for gpu in PCI:
                self.site.agenda.at(at + late, self._says(node, TEARDOWN.format(pci=gpu)))

    def storage(self, one: Happening, at: datetime) -> None:
        """The file server does not answer: nodes say so, and steps wait for their data."""

        def begin() -> None:
            self.site.shared_slow = STORAGE_SLOWER, "storage"
            for node in self._nodes(one):
                self.site.mender.said(node, STORAGE_LINE)

        def over() -> None:
            self.site.shared_slow = 1.0, "none"
            for node in self._nodes(one):
                self.site.mender.said(node, "nfs: server 10.1.2.3 OK")

        self.site.agenda.at(at, begin)
        self.site.agenda.at(at + timedelta(minutes=one.minutes), over)

    def controller_away(self, one: Happening, at: datetime) -> None:
        self._switch(at, one.minutes, lambda healer, away: setattr(healer.controller, "away", away))

    def deaf(self, one: Happening, at: datetime) -> None:
        """What brings the signals breaks: nothing arrives, and all nodes are well."""
        self._switch(at, one.minutes, lambda healer, deaf: setattr(healer, "deaf", deaf))

    def _switch(self, at: datetime, minutes: float, turn: Callable[[Healer, bool], None]) -> None:
        healer = self.site.mender
        if not isinstance(healer, Healer):
            return  # the others hear and act by no way that could break

        def set_to(on: bool) -> Callable[[], None]:
            def do() -> None:
                turn(healer, on)
                healer.wake()

            return do

        self.site.agenda.at(at, set_to(True))
        self.site.agenda.at(at + timedelta(minutes=minutes), set_to(False))

    def driver(self, one: Happening, at: datetime) -> None:
        """A roll-out: node after node tells another driver than the good one's."""
        healer = self.site.mender
        if not isinstance(healer, Healer):
            return
        nodes = self._nodes(one)
        good = {"driver": "580.65.06"}
        healer.ledger.tables.references["h100"] = Reference(
            kind="h100", cluster=CLUSTER, node=self.site.names[0], by="ann", at=self.site.now, facts=good
        )
        for number, node in enumerate(nodes):
            late = timedelta(minutes=one.minutes * number / max(1, len(nodes)))
            self.site.agenda.at(at + late, self._tells(healer, node, {"driver": NEW_DRIVER}))

    def _tells(self, healer: Healer, node: str, facts: dict[str, str]) -> Callable[[], None]:
        def do() -> None:
            now = self.site.now
            told = Observation(
                digest=digest_of("inventory", node, now.isoformat()),
                kind=ObservationKind.inventory,
                component=Component(cluster=CLUSTER, node=node),
                event_at=now,
                arrived_at=now,
                data={"facts": facts},
            )
            healer.hear([told])
            healer.wake()

        return do

    def _nodes(self, one: Happening) -> list[str]:
        """`place`: a rack, a switch, or the first node; `nodes`: how many from there on, 0: all of it."""
        shown = self.site.snapshot().nodes.values()
        here = [node.name for node in shown if one.place in {node.rack, node.switch, node.name}]
        if not here:
            raise BadScenario(f"{one.what}: the fleet has no rack, switch or node {one.place!r}")
        if one.nodes:
            first = self.site.names.index(here[0])
            here = self.site.names[first : first + one.nodes]
        return here


_KINDS: dict[str, Callable[[Happenings, Happening, datetime], None]] = {
    "fault": Happenings.fault,
    "passing-fault": Happenings.passing,
    "xid45-storm": Happenings.storm,
    "storage-brownout": Happenings.storage,
    "controller-away": Happenings.controller_away,
    "signals-lost": Happenings.deaf,
    "driver-rollout": Happenings.driver,
}
