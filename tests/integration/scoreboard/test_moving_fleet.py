"""The fleet whose nodes change jobs: features as in production; what moved for itself is found."""

from datetime import timedelta

import msgspec
import numpy as np
import pytest

from benchmarks import unusual
from benchmarks._scoreboard import moving_fleet
from benchmarks._scoreboard.fleet import CLUSTER, GPUS, JOB_NODES, NODES, PORTS, RULES, START
from benchmarks._scoreboard.moving_fleet import Deal, Moving, against_peers, dealt, measured, smoothed
from healer.detection.features import NAMES, OWN_NAMES, SAMPLE_S, NodeFeatures
from healer.model import Scope, SlurmJob, SlurmNode, SlurmSnapshot, Topology
from healer.observations.telemetry_windows import Telemetry
from healer.rulebook.ruleset import load
from healer.signals.translate import Translator
from healer.sim.fleet_steps import rfc3339
from healer.sim.planted_faults import no_effects
from healer.sim.sim_telemetry import FleetMetrics
from healer.sim.stores import MemoryColumns

pytestmark = pytest.mark.heavy

SEED, SAMPLES = 5, 14
NEVER = (10**9, 0)


def test_features_are_those_that_production_makes() -> None:
    """The same sensors through JSON, translator, windows and NodeFeatures; a new job half-way."""
    deals = [
        Deal(begin, np.random.default_rng(begin).permutation(NODES), np.full(NODES, clock))
        for begin, clock in ((0, 0.97), (7, 0.95))
    ]
    reckoned = smoothed(against_peers(measured(SEED, SAMPLES, deals, {}, NEVER), deals))
    rules, book = load(RULES), MemoryColumns()
    translator = Translator(rules.catalogue, book, CLUSTER)
    telemetry, features = Telemetry(CLUSTER, rules.catalogue, rules.gpu_models), NodeFeatures()
    fleet = FleetMetrics(
        [str(row // moving_fleet.RACK_NODES) for row in range(NODES)],
        gpus=GPUS,
        ports=PORTS,
        start=START.timestamp(),
        chance=np.random.default_rng([SEED, 23]),
    )
    effects, names = no_effects(NODES, GPUS, PORTS), [f"gpu{row:04}" for row in range(NODES)]
    for number in range(SAMPLES):
        now = START + timedelta(seconds=SAMPLE_S * (number + 1))
        if (deal := next((one for one in deals if one.begin == number), None)) is not None:
            effects.clock[:] = deal.clocks[:, np.newaxis]
            telemetry.show(picture(names, deal, now), Topology(), now)
        fleet.advance(now.timestamp(), np.ones((NODES, GPUS)), effects)
        bodies = [
            {"cluster": CLUSTER, "node": name, "time": rfc3339(now.timestamp()), **body}
            for name, body in zip(names, fleet.bodies(effects), strict=True)
        ]
        sent = translator.columnar(msgspec.json.encode(bodies), lambda _cluster, _node: True, now)
        telemetry.update(sent.reports, book)
        features.sample(telemetry, now)
        order = [telemetry.rows_of(name, Scope.node)[0] for name in names]
        made = features.matrix(now)[order]
        # A sensor with one value for all is known here, and known there.
        assert np.array_equal(np.isnan(made), np.isnan(reckoned[number])), number
        assert np.nanmax(np.abs(np.nan_to_num(made) - np.nan_to_num(reckoned[number]))) < 0.01, number
    assert np.isfinite(reckoned[-1]).mean() > 0.5


def picture(names: list[str], deal: Deal, now) -> SlurmSnapshot:
    nodes = {name: SlurmNode(name=name, state=("ALLOCATED",), gpus=GPUS, gpu_model="h100") for name in names}
    jobs = {}
    for first in range(0, NODES, JOB_NODES):
        held = tuple(sorted(names[row] for row in deal.order[first : first + JOB_NODES].tolist()))
        jobs[f"{deal.begin}-{first}"] = SlurmJob(id=f"{deal.begin}-{first}", state="RUNNING", nodes=held)
    return SlurmSnapshot(cluster=CLUSTER, taken_at=now, nodes=nodes, jobs=jobs)


def test_deals_cover_the_whole_time_and_each_has_all_nodes() -> None:
    deals = dealt(np.random.default_rng(1), 3000)
    assert deals[0].begin == 0
    assert deals[-1].begin < 3000
    for deal in deals:
        assert sorted(deal.order.tolist()) == list(range(NODES))
        assert len(set(deal.clocks.tolist())) == NODES // JOB_NODES


def fleet_of(faulty: dict[int, int], moved: float) -> Moving:
    """Noise, and nodes that move in a few features from their onset on."""
    random = np.random.default_rng(3)
    samples = moving_fleet.LEARN + moving_fleet.WATCH
    peers = 0.3 * random.normal(size=(samples, NODES, len(NAMES))).astype(np.float32)
    own = 0.1 * random.normal(size=(samples, NODES, len(OWN_NAMES))).astype(np.float32)
    own[:720] = np.nan
    for row, onset in faulty.items():
        own[moving_fleet.LEARN + onset :, row, :3] += moved
    drifted = np.zeros((moving_fleet.WATCH, NODES), bool)
    return Moving(peers, own, own, drifted, faulty, dict.fromkeys(faulty, 0))


@pytest.mark.parametrize("features", ["own past", "peers and own past"])
def test_node_that_deviates_alone_is_found_at_its_onset(
    features: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(moving_fleet, "WATCH", 300)
    monkeypatch.setattr(unusual, "WATCH", 300)
    given = fleet_of({4: 50, 9: 80}, 2.0)
    scored = unusual.scored(given, features)
    found = unusual.tally(given, scored.by_scorer["forest in force"] > 1)
    assert (found.events, found.found, found.precision) == (2, 2, 1.0)
    assert found.delay < 20
    threshold = unusual.budgeted([scored], "forest in force")
    assert unusual.pooled([scored], "forest in force", threshold).recall == 1
    assert unusual.pooled([scored], "forest in force", threshold).false_per_day <= unusual.BUDGET
