"""Heartbeats of a recording by the short way: what the decoder of the API makes of them, and nothing else."""

from datetime import timedelta
from typing import Any

import msgspec
import pytest

from healer.model import Observation
from healer.recordings.recording import Entry
from healer.signals import wire
from healer.sim.replay_signals import HEARTBEAT, Beats
from tests.support.loop import CLUSTER, START, name

BOOT = "0F1E2D3C4B5A69788796A5B4C3D2E1F0"


def known(cluster: str, node: str) -> bool:
    return cluster == CLUSTER and node in {name(1), name(2), name(3)}


def entry(body: Any, seconds: float = 0) -> Entry:
    at = START + timedelta(seconds=seconds)
    return Entry(at=at, route=HEARTBEAT, query={}, raw=msgspec.json.encode(body))


def words(told: list[Observation] | tuple[Observation, ...] | None) -> list[dict[str, Any]]:
    """All but the digest."""
    return [msgspec.structs.asdict(one) | {"digest": ""} for one in told or ()]


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
    told = entry(body)
    short = Beats(CLUSTER, START).plain(told, known)
    long = wire.heartbeat_observations(told.body, known, told.at, cluster=CLUSTER)
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
def test_what_says_more_or_is_wrong_is_left_to_the_api_s_own_decoder(body: Any) -> None:
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
