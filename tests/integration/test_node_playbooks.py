"""The playbooks for nodes on a real Slurm: tested in a reservation, rebooted, freed; a race that was lost."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from healer.actions import Toolbox
from healer.adapters.bmc.redfish import Redfish
from healer.adapters.system_clock import SystemClock
from healer.engine.drive import Driver
from healer.engine.walk import walk
from healer.model import Depth, Mode, Remedy, Ruleset, Run, RunState, StepEvent, Validation
from healer.observations import Picture
from healer.sim.memory_ledger import MemoryLedger
from tests.integration.benches import RealBench, job_of, running, wait_for
from tests.support.loop import CLUSTER, equip, rules_in
from tests.support.redfish import redfish
from tests.support.sim_bmc import CYCLE_S
from tests.support.tls import certificates
from tests.support.wait import wait_until

pytestmark = pytest.mark.slurm

#: The command line on 22.05, and slurmrestd of 24.11 with the command line behind it.
EACH = pytest.mark.parametrize("bench", ["cli", "rest-24.11"], indirect=True)
FIRST = pytest.mark.parametrize("bench", ["cli"], indirect=True)


#: The simulated nodes of these tests have GPUs and no nvidia-smi: this replaces the shipped check.
LOOK = "#!/bin/sh\necho healer-result gpu_count $SLURM_GPUS_ON_NODE\necho healer-says all there\n"


class Workplace:
    """The shipped playbooks on a real Slurm, with the ledger in memory and real time."""

    def __init__(
        self,
        bench: RealBench,
        scheduler: Any = None,
        *,
        look: str = LOOK,
        pair: str = "",
        speed: str = "",
        **rules: Any,
    ) -> None:
        self.bench = bench
        shipped = rules_in()
        depth = Depth(tests=("gpus", "versions"), limit_s=60)
        full = msgspec.structs.replace(depth, pair=("pair",))
        together = Depth(tests=("pair", "speed"), limit_s=60)
        self.rules: Ruleset = rules_in(
            Mode.auto,
            scripts={
                "gpus": look,
                "versions": shipped.scripts["versions"],
                "pair": pair or shipped.scripts["pair"],
                "speed": speed or shipped.scripts["speed"],
            },
            validation=Validation(
                depths={"soft": depth, "full": full, "together": together}, otherwise="soft"
            ),
            **rules,
        )
        self.clock = SystemClock()
        self.ledger = MemoryLedger(CLUSTER, self.clock)
        self.picture = Picture(CLUSTER, watching_since=self.clock.now())
        tools = Toolbox(
            now=self.clock.now,
            scheduler=scheduler or bench.scheduler,
            picture=lambda: self.ledger.snapshot,
        )
        self.driver = Driver(self.ledger, lambda: self.rules, tools)

    def look(self) -> None:
        snapshot = self.bench.scheduler.snapshot()
        self.picture.show(snapshot)
        self.ledger.snapshot = snapshot

    def ask(self, playbook: str, node: str | None = None, *, job: str | None = None, **inputs: str) -> str:
        run = Run(
            id="r0a1b2c3d4e5f",
            cluster=CLUSTER,
            playbook=playbook,
            state=RunState.held,
            by="ann",
            reason="because",
            created_at=self.clock.now(),
            node=node,
            job=job,
            rule=playbook,
            input={"inputs": inputs} if inputs else {},
        )
        with self.ledger.transaction() as tx:
            tx.create_run(run)
        return run.id

    def step(self) -> None:
        self.look()
        walk(self.ledger, self.rules, self.picture, self.ledger.take_commands(), self.clock.now())
        for run in self.ledger.due_runs(self.clock.now()):
            self.driver.drive(run)

    def until(self, so: Callable[[], bool], what: str, timeout_s: float = 60) -> None:
        def there() -> bool:
            self.step()
            return so()

        wait_until(there, timeout_s, what=what, every_s=0.2)

    def ends(self, run: str, state: RunState, timeout_s: float = 60) -> None:
        def there() -> bool:
            found = self.ledger.tables.runs[run]
            assert found.state is not RunState.stuck or state is RunState.stuck, found.question
            return found.state is state

        self.until(there, f"the run is {state}", timeout_s)

    def done(self, run: str) -> list[str]:
        return [one.step for one in self.ledger.tables.log[run] if one.event is StepEvent.done]


@pytest.fixture
def site(bench: RealBench) -> Iterator[Workplace]:
    yield Workplace(bench)


@EACH
def test_node_that_passes_its_tests_returns_without_an_earlier_visit(site: Workplace) -> None:
    node = site.bench.free()[0]
    run = site.ask("validate", node)
    site.until(lambda: "reserve" in site.done(run), "the node accepts only tests")
    theirs = site.bench.submit(node)
    site.ends(run, RunState.done)
    assert site.bench.scheduler.snapshot().reservations == {}
    wait_for(site.bench, theirs, "RUNNING")
    returned = next(
        one.at
        for one in site.ledger.tables.log[run]
        if (one.step, one.event) == ("resume", StepEvent.started)
    )
    began = job_of(site.bench, theirs).start_at
    assert began is not None and began >= returned.replace(microsecond=0)
    assert site.ledger.tables.vetoes == []
    (test,) = (one for one in site.ledger.tables.log[run] if one.data.get("results"))
    gpus = str(site.bench.scheduler.node(node).gpus)
    assert (test.data["tests"], test.data["results"]["gpu_count"]) == (
        {"gpus": "passed", "versions": "untested"},
        gpus,
    )
    assert test.data["says"]["gpus"] == "all there"


@EACH
def test_full_tests_borrow_an_idle_node_that_stays_in_service(site: Workplace) -> None:
    node = site.bench.free()[0]
    run = site.ask("validate", node, depth="full")
    site.ends(run, RunState.done)
    (data,) = (one.data for one in site.ledger.tables.log[run] if one.data.get("partners"))
    (partner,) = data["partners"]
    assert partner != node and data["passed"] is True
    assert (data["tests"]["pair"], data["says"]["pair"].count(partner[-4:])) == ("passed", 1)
    assert site.bench.scheduler.node(partner).in_service
    assert {one.node for one in site.ledger.tables.granted} == {node}, "the partner's slot was not requested"


@EACH
def test_a_job_that_wants_the_partner_gets_it_and_another_is_borrowed(bench: RealBench) -> None:
    site = Workplace(bench, pair="#!/bin/sh\nsleep 8\n")
    node = bench.free()[0]
    run = site.ask("validate", node, depth="full")

    def both() -> list[str]:
        jobs = bench.scheduler.snapshot().jobs.values()
        found = (job.nodes for job in jobs if node in job.nodes and len(job.nodes) == 2 and job.active)
        return [one for one in next(found, ()) if one != node]

    site.until(lambda: bool(both()), "the two are tested together")
    (first,) = both()
    theirs = bench.submit(first)
    site.until(lambda: job_of(bench, theirs).state == "RUNNING", "their job runs", timeout_s=20)
    site.ends(run, RunState.done)
    partners = [one.data["partners"] for one in site.ledger.tables.log[run] if one.data.get("partners")]
    assert first not in partners[0]


#: Each node reports its own figure; the slowest is that of the group, as the shipped `speed` has it.
SPEED = """\
#!/bin/sh
told=$(srun --overlap --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 \
    sh -c '[ "$SLURMD_NODENAME" = {slow} ] && echo 560 || echo 700')
[ "$(printf '%s\\n' "$told" | grep -c .)" -eq "$SLURM_JOB_NUM_NODES" ] || exit 77
echo "healer-result gemm_tflop_per_s $(printf '%s\\n' "$told" | sort -n | head -n 1)"
"""


@EACH
def test_the_slow_one_of_a_jobs_nodes_is_found_by_halves_after_its_end(bench: RealBench) -> None:
    nodes = bench.free(4)
    site = Workplace(bench, speed=SPEED.format(slow=nodes[2]))
    job = running(bench, *nodes)
    run = site.ask("bisect", job=job)
    site.until(lambda: bool(site.ledger.tables.log.get(run)), "the tests wait for its end")
    assert [one.id for one in bench.scheduler.jobs_on(nodes[0])] == [job]
    bench.finish(job)
    site.ends(run, RunState.done, timeout_s=120)
    (entry,) = (one for one in site.ledger.tables.log[run] if "slow" in one.data)
    assert (entry.data["slow"], entry.data["passed"]) == ([nodes[2]], False), entry.text
    assert len([one for one in site.ledger.tables.log[run] if one.data.get("group")]) == 4
    site.step()
    (incident,) = site.ledger.tables.incidents.values()
    assert (incident.fault, incident.root.node) == ("node-test:together", nodes[2])
    assert all(bench.scheduler.node(one).in_service for one in nodes)
    assert not site.ledger.tables.granted and bench.scheduler.snapshot().reservations == {}


@EACH
def test_a_node_that_fails_is_drained_when_its_reservation_ends(bench: RealBench) -> None:
    site = Workplace(bench, look="#!/bin/sh\necho healer-says one is gone\nexit 3\n")
    node = bench.free()[0]
    run = site.ask("validate", node)
    site.ends(run, RunState.waiting)
    shown = bench.scheduler.node(node)
    assert shown.drain and shown.reason.startswith("healer:validate inc:r0a1b2c3")
    assert bench.scheduler.snapshot().reservations == {}
    (test,) = (
        one for one in site.ledger.tables.log[run] if one.step == "test" and one.event is StepEvent.done
    )
    assert test.data["passed"] is False and str(test.data["exit_code"]).startswith("3")
    assert (test.data["tests"], test.data["says"]) == ({"gpus": "failed"}, {"gpus": "one is gone"})


@FIRST
def test_a_stuck_epilog_is_freed_by_down_and_its_job_keeps_its_end(bench: RealBench) -> None:
    """Trap: else the job would stay COMPLETING for ever, and the node never be empty."""
    site = Workplace(bench)
    node = bench.free()[0]
    bench.epilog_sticks(node)
    job = running(bench, node)
    bench.finish(job)
    run = site.ask("reboot-validate", node)
    site.until(lambda: "free" in site.done(run), "the node is freed", timeout_s=90)
    shown = bench.scheduler.node(node)
    assert shown.base == "DOWN" and shown.drain and shown.reason.startswith("healer:")
    ended = job_of(bench, job)
    assert (ended.active, ended.restarts, ended.state) == (False, 0, "COMPLETED")


def the_test_is_over(site: Workplace, run: str, theirs: str) -> bool:
    """Whether the test of the node has ended. Until then a user's job waits, and does not get the node."""
    state = job_of(site.bench, theirs).state
    ended = "test" in site.done(run)
    assert ended or state == "PENDING"
    return ended


@FIRST
def test_a_reboot_is_proven_by_the_nodes_own_boot_and_the_node_returns_tested(bench: RealBench) -> None:
    site = Workplace(bench)
    node = bench.free()[0]
    before = bench.scheduler.node(node).boot_at
    run = site.ask("reboot-validate", node)
    site.until(lambda: bench.hooks.asked_to_boot(node), "Slurm asks the node to boot")
    theirs = bench.submit(node)
    bench.cluster.boot_node(node)
    site.until(lambda: the_test_is_over(site, run, theirs), "the test has ended")
    site.ends(run, RunState.done)
    after = bench.scheduler.node(node).boot_at
    assert before is not None and after is not None and after > before
    assert len(site.ledger.tables.remedies) == 1
    wait_for(bench, theirs, "RUNNING")


@FIRST
def test_a_power_cycle_by_redfish_is_proven_by_the_boot_and_the_node_returns_tested(
    bench: RealBench, tmp_path: Path
) -> None:
    """A boot that Slurm did not ask for: our drain survives it, and no job starts before the tests."""
    signed = certificates(tmp_path)
    with redfish(signed.authority, signed.server) as bmcs:
        site = Workplace(bench)
        equip(site.driver, bmc=Redfish(bmcs.settings()))
        node = bench.free()[0]
        before = bench.scheduler.node(node).boot_at
        run = site.ask("power-cycle", node)
        site.until(lambda: bool(bmcs.resets), "the BMC is asked")
        theirs = bench.submit(node)
        bmcs.advance(CYCLE_S)
        bench.cluster.boot_node(node)
        site.until(lambda: the_test_is_over(site, run, theirs), "the test has ended")
        site.ends(run, RunState.done)
        assert bmcs.resets == [(node, "PowerCycle")] and bmcs.complaints == []
    after = bench.scheduler.node(node).boot_at
    assert before is not None and after is not None and after > before
    assert [use.remedy for use in site.ledger.tables.remedies] == [Remedy.power_cycle]
    wait_for(bench, theirs, "RUNNING")


@FIRST
def test_pitfall_02_reason_overwritten_in_a_race_is_restored(bench: RealBench) -> None:
    class Racing:
        """Ann drains between healer's look and its drain, and a poll falls into that instant."""

        raced = False

        def __getattr__(self, call: str) -> Any:
            return getattr(bench.scheduler, call)

        def drain(self, node: str, reason: str) -> None:
            if not self.raced:
                self.raced = True
                bench.person_drain(node, "PSU 2")
                site.look()
            bench.scheduler.drain(node, reason)

    site = Workplace(bench, Racing())
    node = bench.free()[0]
    run = site.ask("drain", node)
    site.ends(run, RunState.stuck)
    shown = bench.scheduler.node(node)
    assert shown.drain and shown.reason == "PSU 2"
    assert "first (PSU 2)" in (site.ledger.tables.runs[run].question or "")
    assert site.ledger.tables.slots == {}
