"""A node that is not what it was: replay learns the levels from the recording itself, and finds it."""

from datetime import timedelta

import msgspec
import pytest

from healer.detection.level_shift import DRIFTED
from healer.model import Mode
from healer.observations import Picture
from healer.recordings.recording import Entry
from healer.sim.fleet_steps import Pace
from healer.sim.replay_samples import RecordedSamples
from healer.sim.replay_signals import COLUMNAR, Refused
from healer.sim.sim_clock import SimClock
from healer.sim.sim_slurm import SimScheduler
from healer.sim.sim_telemetry import SimTelemetry
from tests.support.loop import CLUSTER, START, name, rules_in

pytestmark = pytest.mark.heavy

NODES = 8
#: Six hours are learnt, then the clock of one GPU falls. Looks as rare as a point of 15 minutes lets them be.
LEARN_S, SEEN_S, LOOK_S = 6.5 * 3600, 1.75 * 3600, 100


def test_only_the_shift_after_hours_of_learning_is_found() -> None:
    clock = SimClock(START)
    slurm = SimScheduler(CLUSTER, clock, NODES)
    slurm.add_job(name="pretrain", nodes=NODES)
    shown = slurm.snapshot()
    sensors = SimTelemetry(CLUSTER, list(shown.nodes), start=START, seed=5, pace=Pace(checkpoint_every=20))
    sensors.show(shown)
    picture = Picture(CLUSTER, watching_since=START)
    samples = RecordedSamples(CLUSTER, rules_in(Mode.auto), lambda _cluster, _node: True, START, Refused())
    blamed: set[str] = set()
    while clock.now() < START + timedelta(seconds=LEARN_S + SEEN_S):
        clock.advance(LOOK_S)
        if clock.now() == START + timedelta(seconds=LEARN_S):
            sensors.plant("clock-low", name(3), 5)
        sent = msgspec.json.encode(sensors.advance(clock.now()).metrics)
        samples.take(Entry(at=clock.now(), route=COLUMNAR, query={}, raw=sent))
        picture.show(msgspec.structs.replace(shown, taken_at=clock.now()))
        sensed = samples.tick(picture, clock.now())
        assert sensed is not None
        blamed |= {one.component.node or "" for one in sensed.findings if one.fault == DRIFTED}
    assert blamed == {name(3)}
