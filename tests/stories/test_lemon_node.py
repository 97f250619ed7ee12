"""A lemon by its score is put before a person: nothing is taken; other faults of the node stand beside it."""

from collections.abc import Iterable

from healer.detection.lemons import LEMON_NODE, Lemons
from healer.model import Component, Detections, Incident, LemonScore, Mode, NodeRecord, RunState
from healer.observations.job_marks import JobMarks
from tests.support.looks import look
from tests.support.loop import CLUSTER, DEGRADED, name
from tests.support.slow import SlowSite

NODE = name(1)
WHERE = Component(cluster=CLUSTER, node=NODE)


class LemonSite(SlowSite):
    """One node has had four faults of four kinds today."""

    def tick_lemons(self) -> Detections:
        faults = tuple((self.now, f"xid-{code}") for code in (48, 63, 79, 94))
        past = [NodeRecord(node=NODE, faults=faults)]

        def keep(found: Iterable[LemonScore], _: object) -> None:
            self.scores = list(found)

        self.walk()  # so that Slurm's picture is known
        lemons = Lemons(CLUSTER, JobMarks(), lambda *_: past, keep)
        sensed = lemons.tick(look(self.now, slurm=self.picture.slurm))
        self.tick(sensed.findings)
        return sensed

    def of(self, rule: str) -> Incident | None:
        return next((one for one in self.open_incidents if one.rule == rule), None)


def test_a_person_is_asked_and_nothing_is_taken_even_where_all_else_is_automatic() -> None:
    site = LemonSite()
    assert site.tick_lemons().findings
    site.pass_time(30)
    incident = site.of(LEMON_NODE)
    assert incident is not None and incident.severity == "P3"
    runs = [one for one in site.ledger.tables.runs.values() if one.incident == incident.id]
    assert [(one.playbook, one.state, one.shadow) for one in runs] == [("lemon", RunState.proposed, False)]
    assert runs[0].mode is Mode.suggest
    assert not site.node(1).drain
    assert site.audited("node.drained") == 0


def test_fault_of_the_node_stays_beside_it() -> None:
    site = LemonSite()
    site.tick_lemons()
    site.walk(*site.say(1, DEGRADED))
    site.pass_time(5)
    rules = {one.rule for one in site.open_incidents}
    assert LEMON_NODE in rules and len(rules) == 2
