"""Heartbeats of a recording by the short way: what the decoder of the API makes of them, and nothing else."""

import random
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from healer.model import Observation
from healer.observations.silences import Settled
from healer.recordings.recording import Entry
from healer.signals import wire
from healer.sim.replay_signals import HEARTBEAT, Beats
from healer.sim.replaying import Replay
from tests.support.loop import CLUSTER, START, name, shipped

BOOT = "0F1E2D3C4B5A69788796A5B4C3D2E1F0"


def known(cluster: str, node: str) -> bool:
    return cluster == CLUSTER and node in {name(1), name(2), name(3)}


def entry(body: Any, seconds: float = 0) -> Entry:
    at = START + timedelta(seconds=seconds)
    return Entry(at=at, route=HEARTBEAT, query={}, raw=msgspec.json.encode(body))


def words(observed: list[Observation] | tuple[Observation, ...] | None) -> list[dict[str, Any]]:
    """All but the digest."""
    return [msgspec.structs.asdict(one) | {"digest": ""} for one in observed or ()]


@pytest.mark.parametrize(
    "body",
    [
        {"node": name(1)},
        {"node": name(1), "cluster": CLUSTER, "boot_id": BOOT},
        [{"node": name(number), "boot_id": f"b{number}"} for number in (3, 1, 2)],
        [],
    ],
)
def test_plain_beats_are_what_the_api_would_make_of_them(body: Any) -> None:
    row = entry(body)
    short = Beats(CLUSTER, START).plain(row, known)
    long = wire.heartbeat_observations(row.body, known, row.at, cluster=CLUSTER)
    assert short is not None
    assert words(short) == words(long.observations)


@pytest.mark.parametrize(
    "body",
    [
        {"node": name(1), "time": START.isoformat()},
        {"node": name(1), "gpus": [{"index": 0, "pci": "0000:9b:00"}]},
        {"node": name(1), "lost": 3},
        {"node": "gpu9999"},
        {"node": name(1), "cluster": "pod2"},
        {"node": name(1), "boot_id": "not one"},
        {"node": 7},
        [{"node": name(1)}, {"node": "no node's name"}],
        7,
    ],
)
def test_unusual_or_invalid_beats_are_left_to_the_decoder_of_the_api(body: Any) -> None:
    beats = Beats(CLUSTER, START)
    assert beats.plain(entry(body), known) is None
    assert beats.plain(entry({"node": name(1)}), known)  # nothing of it was taken for heard


def test_the_same_beat_once_more_is_none() -> None:
    beats = Beats(CLUSTER, START)
    assert beats.plain(entry([{"node": name(1)}, {"node": name(1)}, {"node": name(2)}]), known)
    assert beats.plain(entry({"node": name(1)}), known) == []
    assert beats.plain(entry({"node": name(1)}, 10), known)


def test_a_node_that_slurm_no_longer_shows_is_left_to_the_decoder_too() -> None:
    beats = Beats(CLUSTER, START)
    assert beats.plain(entry({"node": name(1)}), known)
    assert beats.plain(entry({"node": name(1)}, 10), lambda _cluster, _node: False) is None


# --- heartbeats that change nothing cost no walk ---


def recording(
    nodes: int, gaps: dict[int, tuple[float, float]], *, seconds: int = 3600, every_s: int = 10
) -> list[Entry]:
    """Heartbeats, and a recording's end; `gaps`: when a node sent nothing."""
    shown = [{"name": name(number), "state": ["IDLE"], "gpus": 8} for number in range(1, nodes + 1)]
    rows: list[tuple[float, str, Any]] = [
        (0, "slurm/nodes", {"cluster": CLUSTER, "nodes": shown}),
        (0, "slurm/jobs", {"cluster": CLUSTER, "jobs": []}),
        (seconds, "clock", None),
    ]
    for number in range(1, nodes + 1):
        begins, ends = gaps.get(number, (0.0, 0.0))
        beats = (number % 10 + float(beat) for beat in range(0, seconds, every_s))
        body = [{"cluster": CLUSTER, "node": name(number)}]
        rows += [(at, HEARTBEAT, body) for at in beats if not begins < at < ends]
    return [
        Entry(at=START + timedelta(seconds=at), route=route, query={}, raw=msgspec.json.encode(body))
        for at, route, body in sorted(rows, key=lambda row: row[0])
    ]


class Counted(Replay):
    """`alike`: it walks over each beat, as if any of them could change something."""

    def __init__(self, entries: list[Entry], *, alike: bool = False) -> None:
        super().__init__(shipped(), CLUSTER, entries[0].at)
        self.walks, self.alike = 0, alike
        self.feed(entries)
        self.document = self.finish()

    def _walk(self, seen: list[Observation]) -> None:
        self.walks += 1
        super()._walk(seen)
        if self.alike:
            self.settled = Settled(frozenset(), self.walked_at)


def found(replay: Counted) -> list[tuple[Any, ...]]:
    return [(one["rule"], one["root"], one["state"], one["title"]) for one in replay.document["incidents"]]


def opened(replay: Counted) -> list[datetime]:
    return [datetime.fromisoformat(one["opened"]) for one in replay.document["incidents"]]


def test_an_idle_hour_of_32_nodes_is_a_walk_a_minute_after_the_first() -> None:
    replayed = Counted(recording(32, {}))
    assert replayed.walks < 150
    assert replayed.document["incidents"] == []


def test_a_node_that_stays_silent_costs_a_walk_a_minute_in_the_end() -> None:
    """Its incident stays open."""
    day = 24 * 3600
    replayed = Counted(recording(4, {1: (600, day)}, seconds=day))
    (incident,) = replayed.document["incidents"]
    assert incident["closed"] is None
    assert replayed.walks < 2500


def test_an_hour_of_slow_senders_is_a_walk_a_minute_too() -> None:
    """Older than the least time after which a sender is missed, and still not late."""
    replayed = Counted(recording(8, {}, every_s=60))
    assert replayed.walks < 400
    assert replayed.document["incidents"] == []


@pytest.mark.parametrize("seed", range(4))
def test_short_replay_finds_silence_within_a_second_of_the_full_one(seed: int) -> None:
    draw = random.Random(seed)
    gaps = {}
    for number in draw.sample(range(1, 9), 3):
        begins = draw.uniform(200, 2500)
        gaps[number] = begins, begins + draw.uniform(15, 900)
    entries = recording(8, gaps)
    short, long = Counted(entries), Counted(entries, alike=True)
    assert short.walks < long.walks
    assert found(short) == found(long)
    assert all(abs(a - b) <= timedelta(seconds=1) for a, b in zip(opened(short), opened(long), strict=True))
