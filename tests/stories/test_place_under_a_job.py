"""A place that is out under a job takes no node of it: a node is judged by its job's stop where it alone has
lost something."""

import random
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
import pytest

from healer.detection.tick import Senses
from healer.model import BreakerState, Observation, SlurmJob
from healer.signals.step_times import step_batches
from healer.signals.translate import Translator
from healer.signals.wire import kernel_log_observations
from healer.sim.sim_slurm import sim_nodes
from healer.sim.sim_telemetry import SimTelemetry
from healer.sim.stores import MemoryColumns
from tests.support.loop import CLUSTER, LOST, Site, beat, name, rules_in

pytestmark = pytest.mark.heavy

NODES, GPUS, LEAF, STEP_S = 12, 2, 6, 5
#: Usual pauses of the job are known by then.
BEGIN_S = 150
LINK = "mlx5_core 0000:5c:00.0 ib0: Link down"
DISK = "EXT4-fs (nvme0n1p2): Remounting filesystem read-only"
DOWN, UP = 1, 4


class Loss(NamedTuple):
    """Seconds from the start. `line`: the kernel's; it comes at the end where the node is `silent`."""

    at: float
    until: float
    line: str = LINK
    silent: bool = False

    def holds(self, second: float) -> bool:
        return self.at <= second < self.until


class Story:
    """Two leaf switches, a job on `job`, and nodes that lose something; the job stops with the first loss,
    its ranks wait for those of `late`."""

    def __init__(
        self, losses: Mapping[str, Loss], job: Sequence[str], late: str, *, placed: bool = True
    ) -> None:
        self.losses, self._late = losses, late
        fleet = [
            msgspec.structs.replace(node, gpus=GPUS, switch=f"leaf{index // LEAF}" if placed else "")
            for index, node in enumerate(sim_nodes(NODES))
        ]
        guards = msgspec.structs.replace(rules_in().guards, min_service_share=0.3)
        self.site = Site(fleet, rules=rules_in(guards=guards))
        self.names = [node.name for node in fleet]
        self._job = self.site.slurm.add_job(nodes=len(job), gpus=GPUS, required=job, comment="healer:requeue")
        self._nodes = list(job)
        self._sensors = SimTelemetry(CLUSTER, self.names, start=self.site.now, gpus=GPUS)
        self._sensors.quiet = True
        book = MemoryColumns()
        self._senses = Senses(CLUSTER, self.site.rules, book)
        self._translator = Translator(self.site.rules.catalogue, book, CLUSTER)
        self._silent: set[str] = set()
        self._spoken: set[str] = set()
        self.drained: set[str] = set()
        self._second = 0

    @property
    def life(self) -> SlurmJob:
        return self.site.slurm.snapshot().jobs[self._job]

    def is_stopped(self) -> bool:
        """Whether the circuit breaker opened: of twelve nodes three with one fault are a storm."""
        return self.site.ledger.tables.breaker.state is not BreakerState.closed

    def play(self, seconds: int) -> set[str]:
        """Nodes that were ever drained, but for a local file system's own word."""
        for second in range(self._second, self._second + seconds, STEP_S):
            self._fail(second)
            self._turn(second)
            rules = {run.id: run.rule for run in self.site.runs}
            slots = self.site.ledger.tables.slots.values()
            self.drained |= {slot.node for slot in slots if rules[slot.run] != "host-unfit"}
            self.site.clock.advance(STEP_S)
        self._second += seconds
        return self.drained

    def _fail(self, second: int) -> None:
        silent = {node for node, loss in self.losses.items() if loss.silent and loss.holds(second)}
        for node in sorted(silent - self._silent):
            self.site.slurm.silence(node)
        for node in sorted(self._silent - silent):
            self.site.slurm.answer(node)
        self._silent = silent
        if any(loss.at <= second for loss in self.losses.values()) and self.life.restarts == 0:
            first = self._nodes.index(self._late) * GPUS
            self._sensors.hang(self._job, range(first, first + GPUS), stopped=True)

    def _turn(self, second: int) -> None:
        site, now = self.site, self.site.now
        site.look()
        self._sense(second)
        said = [
            line
            for node, loss in self.losses.items()
            if loss.at <= second and node not in self._silent | self._spoken
            for line in self._say(node, loss.line)
        ]
        self._spoken |= {node for node, loss in self.losses.items() if loss.at <= second} - self._silent
        beats = [beat(node, now) for node in self.names if second % 10 == 0 and node not in self._silent]
        picture = site.picture
        sensed = self._senses.tick(picture.slurm, now, picture.watched, dict(picture.node_reports))
        site.walk(*said, *beats, sensed=sensed)
        site.drive()

    def _say(self, node: str, line: str) -> list[Observation]:
        now = self.site.now
        entry = {"line": line, "time": now.isoformat()}
        body = {"cluster": CLUSTER, "node": node, "entries": [entry]}
        book = self.site.rules.kernel_lines
        said = kernel_log_observations(body, lambda *_: True, now, cluster=CLUSTER, book=book)
        return list(said.observations)

    def _sense(self, second: int) -> None:
        shown, now = self.site.picture.slurm, self.site.now
        assert shown is not None
        self._sensors.show(shown)
        sent = self._sensors.advance(now)
        bodies = [body for body in sent.metrics if body["node"] not in self._silent]
        for body in bodies:
            loss = self.losses.get(body["node"])
            down = loss is not None and loss.line == LINK and loss.holds(second)
            for index, port in enumerate(body["ports"].values()):
                port["node_infiniband_state_id"] = DOWN if down and index == 0 else UP
        for body in sent.step_times:
            body["samples"] = [one for one in body["samples"] if one["node"] not in self._silent]
        steps = [body for body in sent.step_times if body["samples"]]
        measured = self._translator.columnar(msgspec.json.encode(bodies), lambda *_: True, now)
        batches = step_batches(msgspec.json.encode(steps), lambda *_: True, now, cluster=CLUSTER).batches
        self._senses.take(measured.reports, batches, shown, now)


LEAF0 = [name(number) for number in range(1, LEAF + 1)]
ALL = [name(number) for number in range(1, NODES + 1)]


@pytest.mark.parametrize(
    ("line", "within_s"),
    [
        (LINK, 90),
        (DISK, 60),
        ("XFS (nvme1n1): xfs_do_force_shutdown(0x2) called from line 1196. Shutting down filesystem", 60),
        ("nvme nvme4: Disabling device after reset failure: -19", 60),
        ("EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#1_DIMM#0", 60),
        ("MCE: Killing python3:4242 due to hardware memory corruption fault at 7f2b8c000000", 60),
    ],
)
def test_a_node_that_alone_lost_something_is_drained_and_its_job_restarted(line: str, within_s: int) -> None:
    story = Story({name(2): Loss(BEGIN_S, 900, line)}, ALL[:8], name(2))
    story.play(BEGIN_S + within_s)
    assert {slot.node for slot in story.site.ledger.tables.slots.values()} == {name(2)}
    assert story.life.restarts == 1


@pytest.mark.parametrize("placed", [True, False])
def test_a_leaf_that_is_away_loses_no_node_though_the_ranks_wait_for_one(placed: bool) -> None:
    """Also where its place is not known: the losses of the job's nodes came together."""
    story = Story({node: Loss(BEGIN_S, 500) for node in LEAF0}, ALL, name(1), placed=placed)
    assert story.play(600) == set()


def test_of_a_leaf_that_is_away_a_job_may_have_one_node() -> None:
    story = Story({node: Loss(BEGIN_S, 500) for node in LEAF0}, [name(1), *ALL[LEAF:]], name(1))
    assert story.play(600) == set()


@pytest.mark.parametrize("until", [BEGIN_S + 15, 400])
def test_a_node_that_speaks_while_its_neighbours_are_silent_is_not_judged_alone(until: int) -> None:
    """The others of its rack are missed only after half a minute, and may be back soon after."""
    losses = {node: Loss(BEGIN_S, until + 40, silent=True) for node in LEAF0[1:]}
    story = Story({name(1): Loss(BEGIN_S, 900, DISK), **losses}, ALL, name(1))
    assert story.play(until + 120) == set()


@pytest.mark.parametrize("dies", [False, True])
def test_a_member_that_is_silent_while_others_only_lost_their_ports(dies: bool) -> None:
    """Their kernels' lines are ten minutes old before they are back: their ports are still down."""
    losses = {node: Loss(BEGIN_S, 1000) for node in LEAF0}
    losses[name(3)] = Loss(BEGIN_S, 9999 if dies else 1010, silent=True)
    story = Story(losses, ALL, name(1))
    assert story.play(1000) == set()
    assert story.play(400) == ({name(3)} if dies else set())


def test_report_of_the_first_returning_node_belongs_to_the_outage() -> None:
    losses = {node: Loss(BEGIN_S, 300.0 + 20 * index, silent=True) for index, node in enumerate(LEAF0)}
    losses[name(1)] = losses[name(1)]._replace(line=DISK)
    assert Story(losses, ALL, name(1)).play(600) == set()


@pytest.mark.parametrize("seed", range(16))
def test_outages_of_any_order_take_only_the_node_that_died_in_them(seed: int) -> None:
    drawn = random.Random(seed)
    members = drawn.sample(LEAF0, drawn.randint(2, LEAF))
    spread, back, silent = drawn.choice([0, 5, 25]), drawn.choice([0, 5, 60]), drawn.random()
    lasts = drawn.uniform(40, 400)
    losses = {
        node: Loss(
            BEGIN_S + drawn.uniform(0, spread),
            BEGIN_S + spread + lasts + drawn.uniform(0, back),
            drawn.choice([LINK, LINK, DISK]),
            drawn.random() < silent,
        )
        for node in members
    }
    dead = drawn.choice([None, drawn.choice(members)])
    if dead is not None:
        losses[dead] = losses[dead]._replace(line=LOST)
    job = [*drawn.sample(members, drawn.randint(1, len(members))), *ALL[LEAF:]]
    story = Story(losses, job, job[0])
    assert story.play(int(BEGIN_S + spread + lasts + back + 200)) <= {dead}, losses
    if dead is not None and not story.is_stopped():
        assert story.drained == {dead}
