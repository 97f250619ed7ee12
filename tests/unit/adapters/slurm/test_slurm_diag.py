"""Slurm's reports on slurmctld itself, and the tree of switches, as 22.05.8 and 24.11.5 print them."""

import msgspec
import pytest

from healer.adapters.slurm import parse_json, parse_text
from healer.adapters.slurm.parse_json import NotUnderstood, Queues, Server

SDIAG = """\
*******************************************************
sdiag output at Fri Nov 20 15:31:35 2026 (1795188695)
Data since      Fri Nov 20 15:31:04 2026 (1795188664)
*******************************************************
Server thread count:  3
RPC queue enabled:    0
Agent queue size:     17
Agent count:          2
Agent thread count:   4
DBD Agent queue size: 1200

Jobs submitted: 0
"""
TREE = """\
SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=gpu[0001-0002]
SwitchName=leaf2 Level=0 LinkSpeed=1 Nodes=gpu[0003-0004]
SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu[0001-0004] Switches=leaf[1-2]
SwitchName=other Level=0 LinkSpeed=1 Nodes=cpu1
"""


def test_queues_are_read_from_text_and_json() -> None:
    expected = Queues(threads=3, agent=17, dbd=1200)
    assert parse_text.queues(SDIAG) == expected
    statistics = {"server_thread_count": 3, "agent_queue_size": 17, "dbd_agent_queue_size": 1200, "x": {}}
    assert parse_json.queues(msgspec.json.encode({"statistics": statistics})) == expected


def test_missing_figure_is_none() -> None:
    assert parse_text.queues("sdiag output at\n") == Queues()
    assert parse_json.queues(b'{"statistics": {}}') == Queues()


def test_first_controller_that_is_up_answers() -> None:
    servers = parse_text.servers(
        "Slurmctld(primary) at ctl1 is DOWN\nSlurmctld(backup) at ctl2 is UP\n"
        "*****************************************\n** RESTORE SLURMCTLD DAEMON TO SERVICE **\n"
    )
    assert servers == [Server("ctl1", "primary", False), Server("ctl2", "backup", True)]
    assert parse_json.answering(servers) == servers[1]
    assert parse_json.answering(servers[:1]) is None


@pytest.mark.parametrize(
    "state",
    [
        {"ping": "UP"},  # v0.0.39
        {"pinged": "UP"},  # v0.0.40
        {"pinged": "UP", "responding": True, "latency": 943, "primary": True},  # v0.0.42
    ],
)
def test_ping_is_read_in_every_form(state: dict[str, object]) -> None:
    pings = [{"hostname": "ctl1", "mode": "backup1", **state}, {"hostname": "ctl2", "pinged": "DOWN"}]
    assert parse_json.servers(msgspec.json.encode({"pings": pings})) == [
        Server("ctl1", "backup", True),
        Server("ctl2", "primary", False),
    ]


def test_other_words_are_not_understood() -> None:
    for call in (
        lambda: parse_text.servers("hello"),
        lambda: parse_json.servers(b"{"),
        lambda: parse_json.queues(b"{}"),
        lambda: parse_text.switches("SwitchName=a Level=0 LinkSpeed=1 Nodes=n[1-2,4-3]"),
    ):
        with pytest.raises(NotUnderstood):
            call()


def test_switches_are_listed_leaf_first() -> None:
    assert parse_text.switches(TREE) == {
        "gpu0001": ("leaf1", "spine"),
        "gpu0002": ("leaf1", "spine"),
        "gpu0003": ("leaf2", "spine"),
        "gpu0004": ("leaf2", "spine"),
        "cpu1": ("other",),
    }


@pytest.mark.parametrize("text", ["", "No topology information available\n", "BlockName=b1 Nodes=gpu[1-4]\n"])
def test_without_a_tree_there_are_no_switches(text: str) -> None:
    assert parse_text.switches(text) == {}


def test_blocks_are_reported_as_such_and_their_aggregates_are_left_out() -> None:
    text = (
        "BlockName=b1 BlockIndex=0 Nodes=gpu[01-02] BlockSize=2\n"
        "BlockName=b2 BlockIndex=1 Nodes=gpu03 BlockSize=2\n"
        "AggregatedBlock=b[1-2] BlockIndex=2 Nodes=gpu[01-03] BlockSize=4\n"
    )
    assert parse_text.blocks(text) == {
        "gpu01": ("block:b1",),
        "gpu02": ("block:b1",),
        "gpu03": ("block:b2",),
    }
    assert parse_text.blocks("SwitchName=leaf1 Level=0 Nodes=gpu[1-2]\n") == {}
