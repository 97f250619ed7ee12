"""Silence is checked again only once a node may have fallen silent: the same is found as by looking at
each moment."""

import random
from datetime import timedelta

import pytest

from healer.detection import WalkInput
from healer.detection.silence import silence_findings
from healer.model import Component, Observation, ObservationKind, SlurmNode, SlurmSnapshot, Topology
from healer.observations import Picture
from tests.support.loop import CLUSTER, START, name, shipped

NODES = 12


def beat(node: str, second: int) -> Observation:
    at = START + timedelta(seconds=second)
    return Observation(
        digest=f"{node}|{second}",
        kind=ObservationKind.heartbeat,
        component=Component(cluster=CLUSTER, node=node),
        event_at=at,
        arrived_at=at,
    )


@pytest.mark.parametrize("seed", range(4))
def test_skipped_looks_at_silence_change_no_finding(seed: int) -> None:
    drawn = random.Random(seed)
    picture, looks = Picture(CLUSTER, watching_since=START), 0
    shown = {name(number): SlurmNode(name=name(number), state=("IDLE",)) for number in range(NODES)}
    from_until = {one: sorted(drawn.sample(range(600), 2)) for one in shown}
    counts: list[int] = []
    for second in range(600):
        if drawn.random() < 0.01:  # some node goes out by plan, or comes back
            one = drawn.choice(sorted(shown))
            state = ("IDLE", "MAINTENANCE") if drawn.random() < 0.5 else ("IDLE",)
            shown = shown | {one: SlurmNode(name=one, state=state)}
        beats = [
            beat(one, second)
            for index, (one, (first, last)) in enumerate(from_until.items())
            if first <= second <= last and second % 10 == index % 10
        ]
        now = START + timedelta(seconds=second)
        picture.show(SlurmSnapshot(cluster=CLUSTER, taken_at=now, nodes=shown))
        picture.update(beats, Topology())
        looks += picture.silence.all_heard is None or not picture.silence.all_heard.holds(shown, now)
        found = silence_findings(WalkInput(shipped(), picture, now))
        kept, picture.silence.all_heard = picture.silence.all_heard, None
        assert silence_findings(WalkInput(shipped(), picture, now)) == found
        picture.silence.all_heard = kept
        counts.append(len(found))
    assert max(counts) > 0
    assert counts.count(0) > 50
    assert looks < 590
