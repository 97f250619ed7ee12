"""What the recorder wrote of a fleet that measures, replayed: the same faults, the same node out."""

from datetime import datetime

import msgspec

from healer.model import Observation
from healer.recordings.recorder import Recorder
from healer.recordings.recording import read
from healer.sim.fleet_steps import Pace
from healer.sim.replaying import replay
from tests.support.fleet import Fleet
from tests.support.loop import name


class Recorded(Fleet):
    """A fleet with the recorder where the detector has it."""

    def __init__(self) -> None:
        super().__init__(16, jobs=(8,), pace=Pace(checkpoint_every=20), each_s=5.0)
        self.lines: list[bytes] = []
        self.recorder = Recorder(self, self.senses.book)

    def write(self, line: bytes, at: datetime, route: str, *, samples: bool = False) -> None:
        self.lines.append(line)

    def begun(self) -> bool:
        return not self.lines

    def _measure(self) -> list[Observation]:
        measured = super()._measure()
        self.recorder.note(measured, self.slurm.snapshot(), self.now)
        self.recorder.note_samples(*self.taken, self.now)
        return measured


def test_a_recorded_slow_node_is_found_and_taken_out_again() -> None:
    live = Recorded()
    live.run(300)
    live.sensors.plant("thermal-throttle", name(3), 5)
    live.run_until(lambda: bool(live.drained), 600)
    live.sensors.plant("nvlink-crc", name(12), 1)
    live.run(70)  # found, and not yet waited for: its reset may wait for the job
    document = replay(live.rules, read(line.decode() for line in live.lines))
    roots = [(one["rule"], one["root"]) for one in document["incidents"]]
    # In a replay the node's tests pass at once; the recorded job, still slow, is an incident without a node.
    found = {(rule, root["node"], root.get("gpu")) for rule, root in roots if "node" in root}
    own = [one for one in live.incidents if one.merged_into is None and one.root.node is not None]
    assert found == {(one.rule, one.root.node, one.root.gpu) for one in own}
    assert ("straggler", name(3), 5) in found
    drains = [one["node"] for one in document["actions"] if one["action"] == "drain"]
    assert drains == live.drained == [name(3)]
    requeues = [one["job"] for one in document["actions"] if one["action"] == "requeue"]
    assert requeues == live.jobs


def test_a_recording_of_a_fleet_stays_small() -> None:
    """Half an hour of 10,000 GPUs each 5 s fills the files that are kept: 3 kB for a node's 260 samples."""
    live = Recorded()
    live.run(300)
    samples = [line for line in live.lines if b'"signals/metrics"' in line]
    reports = sum(
        len(body) for line in samples if isinstance(body := msgspec.json.decode(line)["body"], list)
    )
    assert reports > 900
    assert sum(map(len, samples)) / reports < 3000
