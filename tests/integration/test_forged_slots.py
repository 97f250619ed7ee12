"""Law 1 against who writes rows: the worker alone grants and frees slots, and counts by rows of its own.

The attacker has the API's or the detector's role in the database, and the worker has its own.
"""

import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import msgspec
import pytest
import sqlalchemy as sa
from sqlalchemy.exc import ProgrammingError

from healer.actions import Toolbox
from healer.adapters.postgres.roles import login_url
from healer.engine.drive import Driver
from healer.engine.permission import free_slots_of
from healer.model import Evidence, Incident, Ruleset, RunState, Sense, StepEvent
from healer.model.rules import GuardSettings
from healer.ports.request_errors import NotFound
from healer.text import quoted
from tests.support.api import save_incident
from tests.support.command_desk import Desk
from tests.support.ledgers import START, PostgresBench, incident, slot
from tests.support.loop import name, rules_in

CAP = 2
GUARDS = GuardSettings(
    max_nodes=CAP,
    max_share=1.0,
    share_per_hour=1.0,
    rack_share=1.0,
    partition_share=1.0,
    min_service_share=0.0,
)


class Cluster:
    """Twenty nodes, whose worker has the database's role of a worker and no other right."""

    def __init__(self, owner: sa.Engine, rules: Ruleset | None = None) -> None:
        self.owner, self.rules = owner, rules or rules_in(guards=GUARDS)
        self.desk = Desk(PostgresBench(owner), lambda: self.rules)
        self.worker = PostgresBench(self.role("healer_worker"))
        self.driver = Driver(
            self.worker.ledger, self.desk.rules, Toolbox(now=self.worker.clock.now, scheduler=self.desk.slurm)
        )

    def role(self, role: str) -> sa.Engine:
        return sa.create_engine(login_url(self.owner.url.render_as_string(hide_password=False), role))

    def work(self, seconds: int = 4, step_s: int = 1) -> None:
        """The workers' part, for so long."""
        for _ in range(0, seconds, step_s):
            self.desk.poll()
            free_slots_of(self.worker.ledger, self.worker.clock.now())
            for run in self.worker.ledger.due_runs(self.worker.clock.now()):
                self.driver.drive(run)
            self.desk.clock.advance(step_s)
            self.worker.clock.advance(step_s)

    def drained(self) -> set[str]:
        return {node.name for node in self.desk.slurm.snapshot().nodes.values() if node.drain}

    def start(self, *numbers: int) -> list[str]:
        return [self.desk.people.start(self.desk.ask(number=number)).id for number in numbers]


@pytest.fixture
def cluster(fresh_database: sa.Engine) -> Iterator[Cluster]:
    made = Cluster(fresh_database)
    yield made
    made.worker.engine.dispose()


_REFUSED = (
    "permission denied", "is written by the worker", "a run never becomes another", "is written by the API",
    "measurements alone",
)  # fmt: skip


class Attacker:
    """Code inside the API, by its login in the database."""

    def __init__(self, cluster: Cluster, role: str = "healer_api") -> None:
        self.engine = cluster.role(role)

    def writes(self, statement: str, **values: Any) -> bool:
        """Whether the database takes it."""
        try:
            with self.engine.begin() as conn:
                conn.execute(sa.text(statement), values)
        except ProgrammingError as error:
            assert any(word in str(error) for word in _REFUSED), error
            return False
        return True

    def forge_run(self, number: int, **fields: Any) -> bool:
        doc = {
            "id": f"r-forged-{number}", "cluster": "pod1", "playbook": "drain", "state": "running",
            "by": "root", "reason": "forged", "created_at": START.isoformat(), "node": name(number),
            "approved_by": "ann",
        }  # fmt: skip
        return self.put(doc, doc | fields)

    def put(self, row: dict[str, Any], doc: dict[str, Any]) -> bool:
        values = {name: row.get(name) for name in ("id", "node", "playbook")}
        put = (
            "INSERT INTO runs (id, cluster, playbook, node, state, shadow, created_at, doc) "
            "VALUES (:id, 'pod1', :playbook, :node, 'running', false, :at, CAST(:doc AS jsonb))"
        )
        return self.writes(put, **values, at=START, doc=json.dumps(doc))


_GRANT = (
    "INSERT INTO slots (cluster, node, run, unusable, granted_at) VALUES ('pod1', :node, :run, true, :at)",
    "UPDATE slots SET released_at = now()",
    "UPDATE slots SET drained_at = NULL, run = 'r-forged-3'",
    "DELETE FROM slots",
)


@pytest.mark.parametrize("role", ["healer_api", "healer_detector", "healer_scheduler", "healer_scraper"])
def test_no_part_but_the_worker_writes_a_slot(cluster: Cluster, role: str) -> None:
    attacker = Attacker(cluster, role)
    for statement in _GRANT:
        assert not attacker.writes(statement, node=name(3), run="r1", at=START)


def test_a_third_node_is_not_drained_for_a_slot_that_the_api_wrote(cluster: Cluster) -> None:
    cluster.start(1, 2)
    cluster.work()
    attacker = Attacker(cluster)
    for number in range(3, 8):
        attacker.forge_run(number)
        run, node = f"r-forged-{number}", name(number)
        for statement in _GRANT:
            attacker.writes(statement, node=node, run=run, at=START)
    cluster.work()
    assert cluster.drained() == {name(1), name(2)}


def test_a_run_that_is_written_as_ended_frees_no_slot_of_a_node_that_is_out(cluster: Cluster) -> None:
    """Its worker has no time to read its drain back, and its end is dated back."""
    runs = cluster.start(1, 2)
    attacker = Attacker(cluster)
    end = (
        "UPDATE runs SET state = 'cancelled', epoch = epoch + 1, ended_at = :at, "
        "doc = jsonb_set(doc, '{state}', '\"cancelled\"') WHERE id = ANY(:runs)"
    )

    def ends(where: str) -> None:
        if where == "done:drain":
            assert attacker.writes(end, runs=runs, at=START - timedelta(hours=1))

    cluster.driver.checkpoint = ends
    cluster.desk.poll()  # a picture from before the drains
    for run in runs:
        cluster.driver.drive(run)
    assert cluster.drained() == {name(1)}
    cluster.driver.checkpoint = lambda _: None
    free_slots_of(cluster.worker.ledger, cluster.worker.clock.now())
    for number in range(3, 8):
        attacker.forge_run(number)
    cluster.work(150, step_s=15)
    assert len(cluster.drained()) == CAP


def unusable() -> Incident:
    """Node 1 is surely unusable, by its own word."""
    seen = Evidence(
        digest="ab",
        at=START,
        component=incident().root,
        text=quoted("Xid 79"),
        sense=Sense.kernel,
        unusable=True,
    )
    return incident(unusable=True, evidence=(seen,))


def test_a_dead_node_s_incident_passes_no_caps_for_another_node(cluster: Cluster) -> None:
    with cluster.desk.ledger.transaction() as tx:
        tx.save_incident(unusable())
    cluster.start(2, 3)
    cluster.work()
    for number in range(4, 8):
        Attacker(cluster).forge_run(number, incident=unusable().id)
    cluster.desk.people.start(cluster.desk.ask(number=8, incident=unusable().id))
    cluster.work()
    assert cluster.drained() == {name(2), name(3)}


def test_an_incident_of_another_cluster_counts_for_no_node_of_this_one(cluster: Cluster) -> None:
    """Clusters number their nodes alike."""
    place = msgspec.structs.replace(unusable().root, cluster="pod2", node=name(4))
    seen = msgspec.structs.replace(unusable().evidence[0], component=place)
    far = msgspec.structs.replace(unusable(), id="f" * 32, cluster="pod2", root=place, evidence=(seen,))
    with cluster.owner.begin() as conn:
        save_incident(conn, far)
    cluster.start(2, 3)
    cluster.work()
    Attacker(cluster).forge_run(4, incident=far.id)
    cluster.work()
    assert cluster.drained() == {name(2), name(3)}
    with pytest.raises(NotFound):
        cluster.desk.people.start(cluster.desk.ask(number=5, incident=far.id))


@pytest.mark.parametrize(
    "fields",
    [{"cluster": "nowhere"}, {"id": "r-drain-1"}, {"node": name(9)}, {"playbook": "undrain"}],
    ids=lambda fields: next(iter(fields)),
)
def test_a_run_is_stored_as_what_its_document_says(cluster: Cluster, fields: dict[str, Any]) -> None:
    """Else its slot would be counted in another cluster, or it would not be the one run of its node."""
    assert not Attacker(cluster).forge_run(3, **fields)


def test_forged_runs_alone_come_to_the_cap_and_no_further(cluster: Cluster) -> None:
    attacker = Attacker(cluster)
    assert all(attacker.forge_run(number, beside=True) for number in range(1, 8))
    cluster.work()
    assert len(cluster.drained()) == CAP


@pytest.mark.parametrize(
    ("event", "data"),
    [
        ("started", {}),
        ("started", {"verb": "reserve"}),
        ("done", {"verb": "drain"}),
        ("done", {"verb": "diagnose", "passed": True}),
        ("done", {"stuck_since": START.isoformat()}),
        ("failed", {"verb": "drain", "final": True}),
    ],
)
def test_the_api_cannot_write_grants_or_results_of_a_step(
    cluster: Cluster, event: str, data: dict[str, Any]
) -> None:
    [run] = cluster.start(1)
    attacker = Attacker(cluster)

    def writes(column: str, **said: Any) -> bool:
        doc = {"run": run, "at": START.isoformat(), "epoch": 1, "step": "drain", **said}
        values = {"run": run, "at": START, "event": column, "doc": json.dumps(doc)}
        columns = "(run, at, step, event, doc) VALUES (:run, :at, 'drain', :event, CAST(:doc AS jsonb))"
        return attacker.writes(f"INSERT INTO run_log {columns}", **values)

    assert not writes(event, event=event, data=data)
    assert not writes("retry", event=event, data=data)
    assert writes("done", event="done", data={"by": "ann"}), "an approval"


def test_the_gate_s_row_stays_that_of_its_cluster(cluster: Cluster) -> None:
    """Its lock is the gate: another row would be another lock."""
    cluster.start(1)
    assert not Attacker(cluster).writes("UPDATE gate SET cluster = 'elsewhere'")
    assert not Attacker(cluster).writes("DELETE FROM gate")


# --- what the worker grants, it grants by the same rules as ever --------------------------------------------


def test_one_more_is_held_as_it_begins(cluster: Cluster) -> None:
    *_, third = cluster.start(1, 2, 3)
    assert cluster.desk.state(third) is RunState.held
    cluster.work(3)
    assert cluster.drained() == {name(1), name(2)}


def test_the_cap_holds_at_the_step_of_one_that_was_let_begin(cluster: Cluster) -> None:
    """What began over a minute ago and took nothing counts no more as if it had."""
    runs = cluster.start(1, 2)
    cluster.desk.clock.advance(70)
    cluster.worker.clock.advance(70)
    cluster.desk.poll()
    runs += cluster.start(3)
    assert cluster.desk.state(runs[-1]) is RunState.running
    cluster.work(3)
    assert len(cluster.drained()) == CAP
    (waits,) = [run for run in runs if cluster.desk.state(run) is RunState.running]
    with cluster.desk.ledger.command() as tx:
        (run, log) = tx.run(waits), tx.log(waits)
    assert run is not None and run.question is not None and "slots" in run.question
    assert [entry.event for entry in log if entry.step == "drain"] == [StepEvent.held], (
        "one line for a long hold"
    )


def test_a_slot_of_the_version_before_stays_valid(cluster: Cluster) -> None:
    """It was granted as its run began; the caps are full."""
    run, *_ = cluster.start(1)
    with cluster.desk.ledger.transaction() as tx:
        for number, holder in ((1, run), (2, "r-old-2"), (3, "r-old-3")):
            tx.grant_slot(slot(number, run=holder, drained_at=START if number > 1 else None))
    cluster.work()
    assert cluster.drained() == {name(1)}


def test_reconciling_frees_a_slot_by_the_worker(cluster: Cluster) -> None:
    """The node is in service, and no veto says who returned it: the detector was away."""
    with cluster.desk.ledger.transaction() as tx:
        tx.grant_slot(slot(1, run="r-gone", drained_at=START))
    cluster.desk.clock.advance(70)
    cluster.worker.clock.advance(70)
    cluster.desk.poll()
    (done,) = cluster.desk.reconciler().repair("pod1", by="ann", reason="left over", request="q1")
    assert done.run is not None
    cluster.work()
    assert cluster.desk.state(done.run) is RunState.done
    with cluster.desk.ledger.command() as tx:
        assert tx.read_gate().slots == ()
