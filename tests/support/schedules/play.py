"""Plays one schedule from its seed and returns the outcome."""

from typing import NamedTuple

from healer.model import RunState
from tests.support.schedules.invariants import Watch
from tests.support.schedules.processes import Chances
from tests.support.schedules.world import World


class Played(NamedTuple):
    """`story`: a line for each thing that befell a process or was done to Slurm, with the simulated time."""

    seed: int
    kills: int
    stops: int
    points: int
    effects: int
    runs: int
    #: Runs that wait for a person's approval: in such a story nothing may be done.
    proposed: int
    breaches: list[str]
    story: list[str]


def play(seed: int, chances: Chances | None = None) -> Played:
    world = World(seed, chances=chances)
    watch = Watch(world)
    world.run(check=watch.tick)
    watch.settle()
    watch.end()
    hub = world.hub
    return Played(
        seed=seed,
        kills=hub.kills,
        stops=hub.stops,
        points=hub.points,
        effects=len(world.effects),
        runs=len(world.store.tables.runs),
        proposed=sum(run.state is RunState.waiting_approval for run in world.store.tables.runs.values()),
        breaches=watch.breaches,
        story=hub.story,
    )
