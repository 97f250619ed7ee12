"""Values kept from the last tick equal freshly computed ones, to the last bit."""

from datetime import timedelta

import msgspec
import numpy as np
import pytest

from healer.detection.language.compile import Program
from healer.detection.language.truth_columns import NOTHING_KEPT, is_same
from healer.detection.measured import RuleEngine, _Rule
from healer.model import Mode, SlurmSnapshot
from healer.observations.telemetry_windows import Telemetry
from healer.signals.translate import Translator
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler
from healer.sim.sim_telemetry import SimTelemetry
from healer.sim.stores import MemoryColumns
from tests.support.looks import look
from tests.support.loop import CLUSTER, START, name, rules_in

pytestmark = pytest.mark.heavy

NODES, TICK_S, SAMPLE_S = 5, 10, 30
#: By seconds since the start: what is planted or mended, a job that starts, a node that is repaired.
PLANTED = {120: "thermal-throttle", 180: "ecc-uncorrectable", 240: "pcie-replays", 300: "sensor-gone"}
MENDED_S, JOB_S, REPAIRED_S, END_S = 420, 330, 450, 540


class Fleet:
    def __init__(self) -> None:
        self.clock = SimClock(START)
        self.slurm = SimScheduler(CLUSTER, self.clock, NODES)
        self.slurm.add_job(name="pretrain", nodes=3)
        self.rules = rules_in(Mode.auto)
        self.book = MemoryColumns()
        self.telemetry = Telemetry(CLUSTER, self.rules.catalogue, self.rules.gpu_models)
        self.translator = Translator(self.rules.catalogue, self.book, CLUSTER)
        names = list(self.shown.nodes)
        self.sensors = SimTelemetry(CLUSTER, names, start=START, seed=7)

    @property
    def shown(self) -> SlurmSnapshot:
        return self.slurm.snapshot()

    def step(self) -> int:
        self.clock.advance(TICK_S)
        now = self.clock.now()
        second = round((now - START).total_seconds())
        if second in PLANTED:
            self.sensors.plant(PLANTED[second], name(2), None if PLANTED[second] == "sensor-gone" else 3)
        if second == MENDED_S:
            self.sensors.mend()
        if second == JOB_S:
            self.slurm.add_job(name="eval", nodes=2)
        if second == REPAIRED_S:
            self.telemetry.forget(name(2), now - timedelta(seconds=TICK_S))
        self.sensors.show(self.shown)
        self.telemetry.show(self.shown, self.rules.topology, now)
        if second % SAMPLE_S == 0:
            raw = msgspec.json.encode(self.sensors.advance(now).metrics)
            measured = self.translator.columnar(raw, lambda *_: True, now)
            self.telemetry.update(measured.reports, self.book, now)
        return second


def forgetful(program: Program) -> None:
    for node in program._nodes.values():
        node.kept, node.nan = NOTHING_KEPT, (None, None)


def test_cached_conditions_equal_freshly_computed_ones_on_every_tick() -> None:
    fleet = Fleet()
    roots = [_Rule(one, fleet.rules.catalogue, None).when for one in fleet.rules.detection]
    keeps, forgets = Program(roots), Program(roots)
    taken_over = made = true = 0
    before: dict[int, object] = {}
    while fleet.step() < END_S:
        now = fleet.clock.now()
        forgetful(forgets)
        one, other = keeps.tick(fleet.telemetry, now), forgets.tick(fleet.telemetry, now)
        for root in roots:
            kept, fresh = one.truth(root), other.truth(root)
            assert is_same(fresh, kept), (now, root)
            taken_over += before.get(id(root)) is kept
            before[id(root)] = kept
            made += 1
            true += bool((kept == 2).any())
    assert true > 0
    assert taken_over > made // 2


def test_skipping_unchanged_conditions_gives_the_same_findings() -> None:
    fleet = Fleet()
    swift, thorough = (RuleEngine(fleet.rules.detection, fleet.rules.catalogue) for _ in range(2))
    findings = 0
    while fleet.step() < END_S:
        now = fleet.clock.now()
        if fleet.clock.now() == START + timedelta(seconds=REPAIRED_S):
            swift.forget(fleet.telemetry, name(2), now)
            thorough.forget(fleet.telemetry, name(2), now)
        forgetful(thorough.program)
        for one in thorough.rules:
            one.seen = None
        found = swift.tick(look(now, fleet.telemetry))
        assert found == thorough.tick(look(now, fleet.telemetry))
        findings += len(found.findings)
    assert findings > 0


def test_the_same_is_the_same_to_the_last_bit() -> None:
    nan = np.array([np.nan, 0.0])
    assert is_same(nan, nan.copy())
    assert not is_same(nan, np.array([np.nan, -0.0]))
    assert not is_same(nan, np.array([np.nan]))
    assert not is_same(np.array([0, 1]), np.array([0.0, 1.0]))
    assert is_same(2.5, 2.5)
    assert not is_same(None, None)
