"""What the members of an outage say they lost: a file server that only they miss is the outage's, their own
disk is not."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from healer.model import Mode
from healer.recordings.recording import read
from healer.sim.replaying import replay
from tests.support.loop import CLUSTER, START, name, rules_in

pytestmark = pytest.mark.heavy

LOST_S, BACK_S, END_S = 300, 720, 1500
NAMES = [name(number) for number in range(1, 13)]
MEMBERS = NAMES[:4]
AWAY, HERE = "nfs: server fs1 not responding, still trying", "nfs: server fs1 OK"
DISK = "EXT4-fs (nvme0n1p2): Remounting filesystem read-only"

Row = dict[str, object]


def row(at_s: float, route: str, body: object) -> Row:
    return {"at": (START + timedelta(seconds=at_s)).isoformat(), "route": route, "body": body}


def says(arrives_s: float, node: str, line: str, happened_s: float) -> Row:
    time = (START + timedelta(seconds=happened_s)).isoformat()
    body = {
        "cluster": CLUSTER,
        "node": node,
        "boot_id": f"{node}-b1",
        "entries": [{"line": line, "time": time}],
    }
    return row(arrives_s, "signals/kernel-log", body)


def outage(*lines: Row, jobs: Sequence[Row] = ()) -> dict[str, Any]:
    """A leaf switch with four nodes is away for seven minutes."""
    shown = [
        {"name": one, "state": ["IDLE"], "gpus": 8, "switch": "leaf1" if one in MEMBERS else "leaf2"}
        for one in NAMES
    ]
    rows = [row(0, "slurm/nodes", {"cluster": CLUSTER, "nodes": shown}), *jobs, *lines]
    for at_s in range(1, END_S, 15):
        there = [one for one in NAMES if one not in MEMBERS or not LOST_S < at_s < BACK_S]
        beats = [{"cluster": CLUSTER, "node": one, "boot_id": f"{one}-b1"} for one in there]
        rows.append(row(at_s, "signals/heartbeat", beats))
    rows.sort(key=lambda one: str(one["at"]))
    return replay(rules_in(Mode.auto), read(json.dumps(one) for one in rows))


def opened(document: dict[str, Any]) -> list[tuple[str, str | None]]:
    return sorted((one["rule"], one["root"].get("node")) for one in document["incidents"])


def drained(document: dict[str, Any]) -> set[str]:
    return {one["node"] for one in document["actions"] if one["action"] == "drain"}


def test_a_server_that_only_members_miss_belongs_to_their_outage() -> None:
    lines = [says(BACK_S + 5, one, AWAY, LOST_S + 60) for one in MEMBERS[:2]]
    back = [says(BACK_S + 20, one, HERE, BACK_S + 15) for one in MEMBERS[:2]]
    document = outage(*lines, *back)
    assert opened(document) == [("switch-silent", None)]
    assert drained(document) == set()


def test_so_does_one_that_a_member_missed_before_it_fell_silent() -> None:
    document = outage(says(LOST_S - 2, MEMBERS[0], AWAY, LOST_S - 3))
    assert opened(document) == [("switch-silent", None)]


def test_a_server_that_a_node_elsewhere_misses_too_is_away_itself() -> None:
    lines = [
        says(LOST_S + 200, NAMES[8], AWAY, LOST_S + 190),
        says(BACK_S + 5, MEMBERS[0], AWAY, LOST_S + 60),
    ]
    assert [rule for rule, _ in opened(outage(*lines))] == ["storage-away", "switch-silent"]


def test_a_local_disk_that_failed_in_the_outage_is_the_nodes_own() -> None:
    """No network takes a local file system away: the node is unfit, whatever its switch did."""
    document = outage(says(BACK_S + 5, MEMBERS[0], DISK, LOST_S + 60))
    assert opened(document) == [("host-unfit", MEMBERS[0]), ("switch-silent", None)]
    assert drained(document) == {MEMBERS[0]}


def test_so_is_one_that_failed_just_before_it() -> None:
    document = outage(says(LOST_S - 2, MEMBERS[0], DISK, LOST_S - 3))
    assert opened(document) == [("host-unfit", MEMBERS[0]), ("switch-silent", None)]
    assert drained(document) == {MEMBERS[0]}


@pytest.mark.parametrize(("node", "flaps"), [(MEMBERS[0], []), (NAMES[6], [("link-flaps-told", NAMES[6])])])
def test_a_members_link_that_drops_again_and_again_is_part_of_the_outage(
    node: str, flaps: list[tuple[str, str]]
) -> None:
    drops = [says(at_s + 1, node, "mlx5_core 0000:5e:00.0 ib0: Link down", at_s) for at_s in (310, 500, 690)]
    assert opened(outage(*drops)) == [*flaps, ("switch-silent", None)]
