"""A run forged in the database passes no guard: the worker asks the gate at the step itself.

The attacker has the API's or the detector's role; PostgreSQL, its roles and the worker's driver are the real
ones. What the API's role gives for a person's order (mode, approval, pauses, breaker) is one.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import sqlalchemy as sa

from healer.model import Guard, Mode, ObservationKind, RunState
from healer.model.gate import Breaker, BreakerState, Root
from healer.model.rules import GuardSettings
from tests.integration.test_forged_slots import Attacker, Cluster
from tests.support.ledgers import CLUSTER, START, slot
from tests.support.loop import name, rules_in

PROTECTED = name(9)
SETTINGS = GuardSettings(
    max_nodes=2, max_share=1.0, share_per_hour=1.0, rack_share=1.0, partition_share=1.0,
    min_service_share=0.0, protected=(PROTECTED,), requeues_per_job=1,
)  # fmt: skip


@pytest.fixture
def cluster(fresh_database: sa.Engine) -> Iterator[Cluster]:
    made = Cluster(fresh_database, rules_in(guards=SETTINGS))
    yield made
    made.worker.engine.dispose()


def paused(cluster: Cluster) -> None:
    pause = (
        "INSERT INTO pauses (id, scope, name, by, reason, since) VALUES ('p', 'node', :node, 'a', 'x', :at)"
    )
    with cluster.owner.begin() as conn:
        conn.execute(sa.text(pause), {"node": name(1), "at": START})


def stale(cluster: Cluster) -> None:
    cluster.desk.poll = lambda: None  # type: ignore[method-assign]
    cluster.desk.clock.advance(120)
    cluster.worker.clock.advance(120)


def of_a_person(cluster: Cluster) -> None:
    cluster.desk.slurm.person_drain(name(1), "a new fan", "carol")


def full(cluster: Cluster) -> None:
    with cluster.desk.ledger.transaction() as tx:
        for number in (11, 12):
            tx.grant_slot(slot(number, run=f"r-{number}", drained_at=START))
            cluster.desk.slurm.drain(name(number), "healer:x inc:00000000 x")


def storm(cluster: Cluster) -> None:
    root = Root(node=name(12), rule="gpu-lost", at=START, incident="i")
    breaker = Breaker(cluster=CLUSTER, state=BreakerState.open, since=START, roots=(root,))
    with cluster.desk.ledger.transaction() as tx:
        tx.lock_gate()
        tx.save_breaker(breaker)


def busy(cluster: Cluster) -> None:
    cluster.desk.slurm.add_job(required=[name(1)])


def asks_first(cluster: Cluster) -> None:
    cluster.rules = rules_in(Mode.approve, guards=SETTINGS)


def nothing(cluster: Cluster) -> None:
    pass


BY_HEALER = {"by": "healer", "rule": "gpu-lost", "approved_by": None}
#: Guard -> what holds, and the run that is written by (role): the node 1 is never taken for it.
CASES: dict[str, tuple[Callable[[Cluster], None], str, dict[str, Any], tuple[str, ...]]] = {
    "pause": (paused, "drain", {}, ("healer_api", "healer_detector")),
    "stale": (stale, "drain", {}, ("healer_api", "healer_detector")),
    "ownership": (of_a_person, "drain", {}, ("healer_api",)),
    "protected": (nothing, "drain", {"node": PROTECTED}, ("healer_api", "healer_detector")),
    "slots": (full, "drain", {}, ("healer_api", "healer_detector")),
    "breaker": (storm, "drain", {}, ("healer_detector",)),
    "approval": (asks_first, "drain", {"rule": "none", "mode": "auto"}, ("healer_detector",)),
}


@pytest.mark.parametrize(
    ("guard", "role"), [(guard, role) for guard, (*_, roles) in CASES.items() for role in roles]
)
def test_a_forged_run_is_held_by(cluster: Cluster, guard: str, role: str) -> None:
    prepare, playbook, fields, _ = CASES[guard]
    cluster.desk.poll()
    prepare(cluster)
    before = cluster.drained()
    given = {"playbook": playbook} | (BY_HEALER if role == "healer_detector" else {}) | fields
    node = str(fields.get("node", name(1)))
    assert Attacker(cluster, role).forge_run(int(node[3:]), **given)
    cluster.work()
    assert cluster.drained() == before
    [decision] = [found for found in cluster.desk.decisions() if found.run == f"r-forged-{int(node[3:])}"]
    assert decision.guard is Guard(guard), decision.why


def test_a_forged_run_of_healers_own_ends_at_a_persons_node(cluster: Cluster) -> None:
    """They took the node out, so they are asked nothing."""
    cluster.desk.poll()
    of_a_person(cluster)
    before = cluster.drained()
    assert Attacker(cluster, "healer_detector").forge_run(1, playbook="drain", **BY_HEALER)
    cluster.work()
    assert cluster.drained() == before
    assert cluster.desk.state("r-forged-1") is RunState.done


def ask(cluster: Cluster, role: str, number: int, **fields: Any) -> None:
    """A forged run on a job."""
    row = {"id": f"r-job-{number}", "playbook": "requeue"}
    doc = row | {"cluster": "pod1", "state": "running", "by": "root", "reason": "x", "mode": "auto"}
    assert Attacker(cluster, role).put(row, doc | {"created_at": START.isoformat()} | fields)


def restarts(cluster: Cluster, job: str) -> int:
    found = cluster.desk.slurm.job(job)
    assert found is not None
    return found.restarts


@pytest.mark.parametrize("life", [0, 7], ids=["the first life", "a life to come"])
def test_requeue_cap_holds_for_any_restart_count(cluster: Cluster, life: int) -> None:
    """Requeues of one life count once: a life that the job never had must not make each of them the first."""
    job = cluster.desk.slurm.add_job(required=[name(1)])
    for number in range(4):
        ask(cluster, "healer_api", number, job=job, input={"restarts": life})
        cluster.work(150, step_s=15)
    assert restarts(cluster, job) == (1 if life == 0 else 0)


def test_array_task_is_one_job_under_any_name(cluster: Cluster) -> None:
    last = cluster.desk.slurm.add_job(required=[name(1)], array=1)
    cluster.desk.poll()
    task = cluster.desk.slurm.snapshot().jobs[last]
    names = (task.id, f"{task.array_job}_{task.array_task}")
    for number, alias in enumerate(names):
        ask(cluster, "healer_api", number, job=alias, input={"restarts": number})
        cluster.work(150, step_s=15)
    assert restarts(cluster, last) == SETTINGS.requeues_per_job


def test_the_detector_writes_no_person_s_word(cluster: Cluster) -> None:
    """Mode, approval and breaker are for what healer itself begins: only a person passes them."""
    detector = Attacker(cluster, "healer_detector")
    assert not detector.forge_run(1)
    assert not detector.forge_run(1, by="healer")  # approved
    assert not detector.forge_run(1, by="healer", approved_by=None, input={"restart": {"4711": 0}})
    assert detector.forge_run(1, by="healer", approved_by=None)
    for change in ("'{by}', '\"ann\"'", "'{approved_by}', '\"ann\"'", "'{input}', '{\"restart\": {}}'"):
        assert not detector.writes(f"UPDATE runs SET doc = jsonb_set(doc, {change})")
    assert detector.writes("UPDATE runs SET doc = jsonb_set(doc, '{state}', '\"running\"')")
    [run] = cluster.start(2)
    assert cluster.desk.state(run) is RunState.running, "a person's own, by the API"


@pytest.mark.parametrize("role", ["healer_detector", "healer_worker"])
def test_an_open_breaker_is_reset_through_the_api_alone(cluster: Cluster, role: str) -> None:
    """The breaker binds what the detector forges."""
    storm(cluster)
    to = "UPDATE gate SET breaker = jsonb_set(breaker, '{{state}}', '\"{}\"')"
    for state in ("closed", "half_open"):
        assert not Attacker(cluster, role).writes(to.format(state))
    assert Attacker(cluster, role).writes("UPDATE gate SET breaker = breaker"), "it gathers further roots"
    assert Attacker(cluster).writes(to.format("half_open"))
    assert Attacker(cluster, role).writes(to.format("closed")), "the canary did well"


def test_the_scraper_writes_measurements_alone(cluster: Cluster) -> None:
    """No line in a node's name, and no person's command."""
    put = (
        "INSERT INTO inbox (cluster, kind, node, digest, arrived_at, doc) "
        "VALUES ('pod1', :kind, 'gpu0001', decode(md5(:kind), 'hex'), now(), '{}')"
    )
    kinds = {
        str(kind): Attacker(cluster, "healer_scraper").writes(put, kind=kind) for kind in ObservationKind
    }
    assert {kind for kind, written in kinds.items() if written} == {"inventory", "gpu_inventory"}
