"""Law 2 against who writes rows: what others write of a dead node passes no cap and ends no job's work until
the worker sees it.

The attacker has the API's or the detector's role, and writes lines in the nodes' names; the worker may ask
its simulated nodes.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta

import msgspec
import pytest
import sqlalchemy as sa

from healer.actions import Toolbox
from healer.adapters.postgres.inbox import PostgresInbox
from healer.engine.drive import Driver
from healer.engine.walk import walk
from healer.model import Evidence, LogEntry, Sense
from healer.observations import Picture
from healer.sim.nodes import SimNodes
from healer.text import quoted
from tests.integration.test_forged_slots import CAP, GUARDS, Attacker, Cluster
from tests.support.ledgers import CLUSTER, START, PostgresBench, incident
from tests.support.loop import lines, name, rules_in
from tests.support.site import XID_48, XID_79

LINE = XID_79.format(pci="0000:10:00")
#: What a node may have and work on after a reset.
MILDER = XID_48.format(pci="0000:10:00")
VICTIMS = range(3, 8)


class Place(Cluster):
    """A cluster whose slots are used up by two people's drains, and whose worker may ask its nodes."""

    def __init__(self, owner: sa.Engine) -> None:
        super().__init__(owner, rules_in(guards=msgspec.structs.replace(GUARDS, breaker_share=1.0)))
        self.nodes = SimNodes(self.worker.clock)
        for number in range(1, 21):
            self.nodes.keep_log(name(number), MILDER)
        tools = Toolbox(
            now=self.worker.clock.now, scheduler=self.desk.slurm, nodes=self.nodes,
            claim_rules=self.desk.rules,
        )  # fmt: skip
        self.driver = Driver(self.worker.ledger, self.desk.rules, tools)

    def fill(self) -> None:
        self.start(1, 2)
        self.work()
        assert self.drained() == {name(1), name(2)}

    def logs(self, run: str) -> list[LogEntry]:
        with self.desk.ledger.command() as tx:
            return tx.log(run)


@pytest.fixture
def place(fresh_database: sa.Engine) -> Iterator[Place]:
    made = Place(fresh_database)
    yield made
    made.worker.engine.dispose()


def by_detector(place: Place, line: str = LINE) -> None:
    """Incidents and runs, by the detector's own login."""
    detector = Attacker(place, "healer_detector")
    ledger = PostgresBench(detector.engine).ledger
    for number in VICTIMS:
        found = incident(number)
        seen = Evidence(
            digest=f"{number:02x}", at=START, component=found.root, text=quoted("Xid 79"), line=line,
            sense=Sense.kernel, fatal=True, unusable=True,
        )  # fmt: skip
        with ledger.transaction() as tx:
            tx.save_incident(msgspec.structs.replace(found, unusable=True, evidence=(seen,)))
        assert detector.forge_run(
            number, by="healer", approved_by=None, incident=found.id, rule=found.rule, playbook="drain"
        )


def by_api(place: Place) -> None:
    """Lines as if the nodes' own followers had sent them; an honest detector reads them."""
    words = [seen for number in VICTIMS for seen in lines(name(number), LINE, at=place.worker.clock.now())]
    assert PostgresInbox(place.role("healer_api"), CLUSTER).add(words) == len(words)
    hear(place)


def hear(place: Place) -> None:
    ledger = PostgresBench(place.role("healer_detector")).ledger
    picture = Picture(CLUSTER, watching_since=START - timedelta(hours=1))
    picture.show(place.desk.slurm.snapshot())
    now = place.worker.clock.now()
    heard = PostgresInbox(place.owner, CLUSTER).unconsumed(100)
    for _ in range(3):
        walk(ledger, place.rules, picture, heard, now)
        heard, now = [], now + timedelta(seconds=3)


@pytest.mark.parametrize("forge", [by_detector, by_api])
def test_forged_words_of_dead_nodes_pass_no_cap(place: Place, forge: Callable[[Place], None]) -> None:
    place.fill()
    forge(place)
    place.work(6)
    assert place.drained() == {name(1), name(2)}


def test_a_line_that_the_node_has_and_that_means_less_passes_no_cap(place: Place) -> None:
    place.fill()
    by_detector(place, MILDER)
    place.work(6)
    assert place.drained() == {name(1), name(2)}


@pytest.mark.parametrize("source", ["log", "nvidia-smi", "Slurm"])
def test_a_node_that_the_worker_sees_dead_passes_the_caps_at_once(place: Place, source: str) -> None:
    place.fill()
    for number in VICTIMS:
        if source == "log":
            place.nodes.keep_log(name(number), LINE)
        elif source == "nvidia-smi":
            place.nodes.plant(name(number), "gpu-missing")
        else:
            place.desk.slurm.silence(name(number))
    place.desk.poll()
    by_api(place)
    place.work(2)
    assert place.drained() >= {name(number) for number in VICTIMS}


def test_confirmed_drain_frees_its_place_under_the_cap(place: Place) -> None:
    """A node that cannot be reached keeps its slot."""
    place.nodes.keep_log(name(3), LINE)
    by_api(place)
    place.work(6)
    assert name(3) in place.drained() and len(place.drained()) == CAP + 1


# --- the job that runs there ------------------------------------------------------------------------------


def run_job(place: Place, number: int = 3) -> str:
    """On a node whose log has no fault."""
    place.nodes.keep_log(name(number), "usb 1-1: new device", booted_at=START - timedelta(days=1))
    job = place.desk.slurm.add_job(required=[name(number)])
    place.work(2)
    return job


def hear_of(place: Place, line: str = LINE, number: int = 3) -> None:
    """The API's login writes it as the node's own word."""
    words = lines(name(number), line, at=place.worker.clock.now())
    assert PostgresInbox(place.role("healer_api"), CLUSTER).add(words) == len(words)
    hear(place)


def restarts(place: Place, job: str) -> int:
    found = place.desk.slurm.job(job)
    assert found is not None
    return found.restarts


@pytest.mark.parametrize("line", [LINE, MILDER], ids=["unusable", "fatal"])
def test_forged_words_restart_no_job_that_the_worker_finds_at_work(place: Place, line: str) -> None:
    job = run_job(place)
    hear_of(place, line)
    place.work(60, step_s=3)
    assert place.drained() == {name(3)}, "within the caps"
    assert restarts(place, job) == 0 and place.desk.slurm.node(name(3)).base != "DOWN"


@pytest.mark.parametrize("line", [LINE, MILDER], ids=["unusable", "fatal"])
def test_a_job_is_restarted_once_the_worker_sees_the_record(place: Place, line: str) -> None:
    job = run_job(place)
    place.nodes.keep_log(name(3), line)
    hear_of(place, line)
    place.work(10)
    assert restarts(place, job) == 1


def test_a_record_of_before_the_job_began_restarts_it_not(place: Place) -> None:
    """A reset has cured it; it is forged once more."""
    place.nodes.keep_log(name(3), MILDER, booted_at=START - timedelta(days=1))
    place.work(60, step_s=15)
    job = place.desk.slurm.add_job(required=[name(3)])
    place.work(15, step_s=5)
    hear_of(place, MILDER)
    place.work(60, step_s=3)
    assert place.drained() == {name(3)} and restarts(place, job) == 0


def test_a_node_that_cannot_be_asked_is_asked_again_before_its_own_word_counts(place: Place) -> None:
    """A dead GPU's job must not wait for a node that does not answer."""
    slow, silent = run_job(place, 3), run_job(place, 4)
    for number in (3, 4):
        place.nodes.keep_log(name(number), LINE)
        place.nodes.plant(name(number), "unreachable")
        hear_of(place, number=number)
    place.work(10)
    assert (restarts(place, slow), restarts(place, silent)) == (0, 0)
    place.nodes.mend(name(3), "unreachable")
    place.work(5)
    assert (restarts(place, slow), restarts(place, silent)) == (1, 0)
    place.work(60, step_s=3)
    assert (restarts(place, slow), restarts(place, silent)) == (1, 1)


def test_a_true_fault_restarts_no_job_of_another_node(place: Place) -> None:
    """The detector's login names a job elsewhere in a run of its own."""
    job = run_job(place, 5)
    place.nodes.keep_log(name(3), LINE)
    by_detector(place)
    doc = {
        "id": "r-elsewhere", "cluster": CLUSTER, "playbook": "requeue", "state": "running", "by": "healer",
        "reason": "forged", "created_at": START.isoformat(), "job": job, "incident": incident(3).id,
        "rule": "gpu-lost", "mode": "auto", "input": {"restarts": 0},
    }  # fmt: skip
    assert Attacker(place, "healer_detector").put(doc, doc)
    place.work(40, step_s=2)
    assert restarts(place, job) == 0


def test_run_that_a_person_asks_for_needs_no_second_look(place: Place) -> None:
    job = run_job(place)
    doc = {
        "id": "r-person", "cluster": CLUSTER, "playbook": "requeue", "state": "running", "by": "ann",
        "reason": "hangs", "created_at": START.isoformat(), "job": job, "input": {"restarts": 0},
    }  # fmt: skip
    assert Attacker(place, "healer_api").put(doc, doc)
    place.work(10)
    assert restarts(place, job) == 1
