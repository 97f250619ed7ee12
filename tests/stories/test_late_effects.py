"""A root and its effects are one incident, however late either is reported and whatever became of the job."""

import pytest

from healer.model import Mode
from tests.stories.test_replay import Row, clock, job, jobs, kernel, nodes, played, row
from tests.support.loop import CLUSTER, later, name

pytestmark = pytest.mark.heavy

WORDS = " ".join(["0x04082907", "0x00000008", *["0x00000000"] * 4])
LOST_PACKETS = f"NVRM: Xid (PCI:0000:1b:00): 145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 10 ({WORDS})"
BROKEN = (
    "NVRM: Xid (PCI:0000:c3:00): 149, NETIR_LINK_EVT  Fatal   XC1 i0 Link 14 "
    "(0x0215c5c6 0x00000000 0x00000000 0x00000000 0x00000000 0x00000000)"
)
MEMBERS = (name(1), name(2), name(3), name(4))
RUNS = jobs(0, job("4711", *MEMBERS))
OVER = jobs(400, job("4711", *MEMBERS) | {"state": "COMPLETED"})
H = 3600.0


def reported(arrives: float, node: int, line: str, happened: float | None) -> Row:
    """By a follower; without `happened` it gives no time."""
    time = {} if happened is None else {"time": later(happened).isoformat().replace("+00:00", "Z")}
    body = {"cluster": CLUSTER, "node": name(node), "boot_id": "b1", "entries": [{"line": line, **time}]}
    return row(arrives, "signals/kernel-log", body)


def roots(*rows: Row) -> list[str]:
    recorded = sorted((nodes(), RUNS, OVER, *rows), key=lambda one: one["at"])
    return [one["root"]["node"] for one in played(*recorded, clock(2 * H))["incidents"]]


def test_packets_that_a_peer_lost_belong_to_the_broken_link_though_the_job_is_gone() -> None:
    late = [reported(1000 + 300 * peer, peer, LOST_PACKETS, 105 + peer) for peer in (2, 3, 4)]
    assert roots(reported(600, 1, BROKEN, 100), *late) == [name(1)]


@pytest.mark.parametrize("after_s", [1, 30, 119, 1800])
def test_a_broken_link_of_a_job_that_has_ended_takes_in_what_its_peers_lost(after_s: int) -> None:
    """However soon after the end of the job it is heard of."""
    over = jobs(107, job("4711", *MEMBERS) | {"state": "CANCELLED"})
    early = [reported(105.5, peer, LOST_PACKETS, 105) for peer in (2, 3)]
    recorded = sorted(
        (nodes(), RUNS, over, *early, reported(107 + after_s, 1, BROKEN, 104)), key=lambda one: one["at"]
    )
    assert [one["root"]["node"] for one in played(*recorded, clock(2 * H))["incidents"]] == [name(1)]


@pytest.mark.parametrize(("ended_s", "hit"), [(103.0, []), (107.0, ["4711"])])
def test_jobs_that_ended_before_a_fault_are_not_hit_by_it(ended_s: float, hit: list[str]) -> None:
    """By Slurm's own time of the end, which healer reads later."""
    over = jobs(110, job("4711", *MEMBERS) | {"state": "COMPLETED", "end_at": later(ended_s).isoformat()})
    rows = (nodes(), RUNS, over, reported(115, 1, BROKEN, 104), clock(130))
    (incident,) = played(*rows, mode=Mode.shadow)["incidents"]
    assert incident["jobs_hit"] == hit


def test_a_broken_link_that_is_heard_last_takes_in_what_its_peers_lost() -> None:
    early = [reported(600 + 300 * peer, peer, LOST_PACKETS, 105 + peer) for peer in (2, 3, 4)]
    assert roots(*early, reported(2700, 1, BROKEN, 100)) == [name(1)]


@pytest.mark.parametrize("lag", [20, 59])
def test_packets_are_lost_for_a_minute(lag: int) -> None:
    assert roots(reported(102, 1, BROKEN, 100), reported(1500, 2, LOST_PACKETS, 100 + lag)) == [name(1)]


def test_packets_lost_long_after_are_not_of_that_link() -> None:
    apart = roots(reported(102, 1, BROKEN, 100), reported(1500, 2, LOST_PACKETS, 300))
    assert apart == [name(1), name(2)]


def test_a_root_without_a_time_may_be_older_than_its_arrival() -> None:
    assert roots(reported(180, 1, BROKEN, None), reported(1500, 2, LOST_PACKETS, 104)) == [name(1)]


def test_a_root_with_a_time_of_its_own_is_no_older_than_that() -> None:
    apart = roots(reported(190, 1, BROKEN, 180), reported(1500, 2, LOST_PACKETS, 90))
    assert apart == [name(1), name(2)]


def test_a_job_on_other_gpus_of_the_node_does_not_tie_a_loss_to_a_root() -> None:
    """Two jobs share the peer: the packets were lost by the one that never met the broken link."""
    both = [
        job("1", name(1), name(2), gpus={name(1): [0], name(2): [1]}),
        job("2", name(2), gpus={name(2): [0]}),
    ]
    gpus = [{"index": 0, "pci": "0000:1b:00"}, {"index": 1, "pci": "0000:c3:00"}]
    known = row(1, "signals/heartbeat", {"cluster": CLUSTER, "node": name(2), "boot_id": "b1", "gpus": gpus})
    reports = (reported(102, 1, BROKEN, 100), reported(1500, 2, LOST_PACKETS, 105))
    over = jobs(400, *(one | {"state": "COMPLETED"} for one in both))
    rows = sorted((nodes(), jobs(0, *both), known, over, *reports, clock(2 * H)), key=lambda one: one["at"])
    assert [one["root"]["node"] for one in played(*rows)["incidents"]] == [name(1), name(2)]


def test_incident_that_the_vendor_ignores_proposes_nothing_and_closes() -> None:
    document = played(nodes(), RUNS, kernel(10, 1, LOST_PACKETS), clock(2 * H), clock(26 * H))
    (incident,) = document["incidents"]
    assert (incident["remedy"], incident["nodes"]) == (["none"], {name(1): "watch"})
    assert document["actions"] == []
    assert incident["closed"] is not None
