"""Cables of ibnetdiscover and LLDP -> places, switches and links; what is written can be read again."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.model import Peer, Place, Switch, Topology
from healer.rulebook.rule_checks import read_topology
from healer.rulebook.source import Problem, Source
from healer.topology import found as topology_found
from healer.topology import infiniband as topology_ib
from healer.topology import lldp as topology_lldp
from healer.topology.found import (
    Cable,
    Found,
    Unreadable,
    as_yaml,
    by_hand_first,
    changes,
    differences_to_slurm,
    merged,
    topology_of,
)
from healer.topology.infiniband import read_ibnetdiscover
from healer.topology.lldp import read_lldp
from tests.support.topology_samples import IB, LLDP_LINES, LLDP_MANY, LLDP_ONE, LLDPD_PRINTED, SPINE


def read_again(text: str, folder: Path) -> Topology:
    (folder / "topology-found.yaml").write_text(text, encoding="utf-8")
    problems: list[Problem] = []
    found = read_topology(Source(folder / "topology-found.yaml", "topology-found.yaml", problems))
    assert problems == []
    return found


# --- ibnetdiscover ---


def test_ibnetdiscover() -> None:
    found = read_ibnetdiscover(IB)
    assert found.cables == (
        Cable("leaf1", "1", "gpu0001", "HCA-1", False),
        Cable("leaf1", "2", "gpu0002", "mlx5_0", False),
        Cable("leaf1", "40", SPINE, "1", True),
        Cable("leaf2", "1", "gpu0001", "HCA-2", False),
        Cable("leaf2", "2", "gpu0002", "mlx5_10", False),
        Cable("leaf2", "40", SPINE, "2", True),
        Cable(SPINE, "1", "leaf1", "40", True),
        Cable(SPINE, "2", "leaf2", "40", True),
    )
    assert found.guids == {"leaf1": "0xb8cef60300112200", "leaf2": "0xb8cef60300112300", SPINE: SPINE}
    assert list(found.skipped.values()) == [1]


def test_chips_of_one_chassis_and_switches_of_one_name() -> None:
    head = 'Switch\t36 "S-{0:016x}"\t\t# "{1}" enhanced port 0 lid 1 lmc 0\n'
    chips = [head.format(1, "MF0;dir1:CS7500/L01/U1"), head.format(2, "MF0;dir1:CS7500/L02/U1")]
    assert set(read_ibnetdiscover("".join(chips)).guids) == {"dir1-L01-U1", "dir1-L02-U1"}
    same = [head.format(1, "leaf"), head.format(2, "leaf"), head.format(3, "other")]
    assert set(read_ibnetdiscover("".join(same)).guids) == {f"0x{1:016x}", f"0x{2:016x}", "other"}


@pytest.mark.parametrize(
    ("said", "peer"),
    [
        ("gpu0003 rocep24s0", ("gpu0003", "rocep24s0")),
        ("gpu0003 ibp24s0f1", ("gpu0003", "ibp24s0f1")),
        ("gpu0003 rail7", ("gpu0003", "rail7")),
        ("gpu0003 mlx5_bond_0", ("gpu0003", "mlx5_bond_0")),
        ("gpu0003 HCA-2", ("gpu0003", "HCA-2")),
        ("gpu0003", ("gpu0003", "9")),
    ],
)
def test_host_is_found_by_any_adapter_name(said: str, peer: tuple[str, str]) -> None:
    found = read_ibnetdiscover(adapter(said))
    assert [(one.peer, one.peer_port) for one in found.cables] == [peer]
    assert found.skipped == {}


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ("localhost mlx5_0", "still named localhost"),
        ("localhost.localdomain mlx5_0", "still named localhost"),
        ("(none) mlx5_0", "without a node name"),
        ("Mellanox Technologies Aggregation Node", "without a node name"),
        ("MT4129 ConnectX7", "without a node name"),
        ("MT4129 ConnectX7   Mellanox Technologies", "without a node name"),
    ],
)
def test_an_adapter_that_names_no_host_is_skipped_with_its_reason(said: str, why: str) -> None:
    found = read_ibnetdiscover(adapter(said))
    assert found.cables == ()
    ((reason, count),) = found.skipped.items()
    assert (why in reason, count) == (True, 1)


def adapter(said: str) -> str:
    """One switch with one adapter at its port 1, by its port 9."""
    return (
        'Switch\t36 "S-0000000000000001"\t\t# "leaf1" enhanced port 0 lid 1 lmc 0\n'
        f'[1]\t"H-0000000000000002"[9](0000000000000002)\t\t# "{said}" lid 10 4xNDR\n'
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "contains no switch"),
        ("hello\nworld\n", "contains no switch"),
        ('[1]\t"H-01"[1]\n', "line 1: a port before any switch"),
        ("x" * 20_000, "line 1: more than 16384 characters"),
    ],
)
def test_text_that_is_no_ibnetdiscover_output_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read_ibnetdiscover(text)


def test_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topology_ib, "CABLES_MAX", 3)
    with pytest.raises(Unreadable, match="more than 3 cables"):
        read_ibnetdiscover(IB)
    monkeypatch.setattr(topology_lldp, "CABLES_MAX", 1)
    with pytest.raises(Unreadable, match="more than 1 cables"):
        read_lldp(LLDP_LINES)
    for module, read in ((topology_ib, read_ibnetdiscover), (topology_lldp, read_lldp)):
        monkeypatch.setattr(module, "BYTES_MAX", 10)
        with pytest.raises(Unreadable, match="more than"):
            read(IB)


def _pieces(text: str) -> st.SearchStrategy[str]:
    """The text with some of its lines left out, cut, doubled or replaced."""
    lines = text.splitlines()
    line = st.one_of(
        st.sampled_from(lines), st.sampled_from(lines).map(lambda one: one[:-7]), st.text(max_size=60)
    )
    return st.lists(line, max_size=40).map("\n".join)


@given(st.one_of(_pieces(IB), st.text()))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        found = read_ibnetdiscover(text)
    except Unreadable:
        return
    again = topology_of(found)
    assert again == topology_of(found)
    assert sum(map(len, again.links.values())) <= len(found.cables)


_json = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.text(max_size=8), st.sampled_from(["eth0", "tor1"])
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "lldp",
                    "interface",
                    "chassis",
                    "port",
                    "id",
                    "name",
                    "value",
                    "type",
                    "descr",
                    "host",
                    "eth0",
                ]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=20,
)


@given(st.one_of(_json.map(lambda one: topology_lldp.msgspec.json.encode({"lldp": one}).decode()), st.text()))
def test_any_lldp_is_read_or_refused(text: str) -> None:
    try:
        found = read_lldp(text, "gpu0001")
    except Unreadable:
        return
    as_yaml(topology_of(found))


# --- LLDP ---


@pytest.mark.parametrize("form", sorted(LLDPD_PRINTED))
def test_cables_are_read_from_lldpd_output(form: str) -> None:
    found = read_lldp(LLDPD_PRINTED[form], "gpu0001")
    assert found.cables == (Cable("tor1", "sw1", "gpu0001", "ens1f0", False),)


def test_lldp_of_one_interface_of_several_and_of_many_hosts() -> None:
    assert read_lldp(LLDP_ONE, "gpu0001").cables == (
        Cable("tor1", "Ethernet1/1", "gpu0001", "ens1f0np0", False),
    )
    many = read_lldp(LLDP_MANY, "gpu0001")
    assert many.cables == (
        Cable("tor1", "Ethernet1/1", "gpu0001", "ens1f0np0", False),
        Cable("tor2", "49", "gpu0001", "ens1f1np1", False),
    )
    assert sum(many.skipped.values()) == 2
    assert read_lldp(LLDP_LINES).cables == (
        Cable("tor1", "Ethernet1/1", "gpu0001", "eth0", False),
        Cable("tor1", "Ethernet1/2", "gpu0002", "eth0", False),
    )


@pytest.mark.parametrize(
    ("port", "name"),
    [
        ({"id": {"type": "local", "value": "513"}, "descr": "et-0/0/1"}, "et-0/0/1"),
        ({"id": {"type": "local", "value": "513"}}, "513"),
        ({"id": {"type": "local", "value": "513"}, "descr": ""}, "513"),
        ({"id": {"type": "local", "value": "Eth1/1"}, "descr": "to gpu0001"}, "Eth1/1"),
        ({"id": {"type": "ifname", "value": "49"}, "descr": "to gpu0001"}, "49"),
    ],
    ids=["index", "alone", "empty", "local", "ifname"],
)
def test_interface_index_follows_its_description(port: dict[str, Any], name: str) -> None:
    document = {"lldp": {"interface": {"eth1": {"chassis": {"tor1": {}}, "port": port}}}}
    assert read_lldp(json.dumps(document), "gpu0001").cables == (
        Cable("tor1", name, "gpu0001", "eth1", False),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (LLDP_ONE, "does not name its host"),
        ("{}", "does not name its host"),
        ('{"host": "a"}', "`lldp` is missing"),
        ("{", "not JSON"),
        ('{"host": "a", "lldp": {}}\nx\n', "line 2: not JSON"),
        ('{"host": 1, "lldp": {}}', "does not name its host"),
    ],
)
def test_text_that_is_no_lldp_output_is_refused(text: str, why: str) -> None:
    with pytest.raises(Unreadable, match=why):
        read_lldp(text)


# --- what follows from cables ---


def test_levels_and_the_leaf_of_the_first_rail() -> None:
    topology = topology_of(read_ibnetdiscover(IB))
    assert topology.places == {"gpu0001": Place(switch="leaf1"), "gpu0002": Place(switch="leaf1")}
    assert topology.switches == {
        SPINE: Switch(guid=SPINE),
        "leaf1": Switch(guid="0xb8cef60300112200", above=(SPINE,)),
        "leaf2": Switch(guid="0xb8cef60300112300", above=(SPINE,)),
    }
    assert topology.behind("leaf2", "1") == ("gpu0001",)
    assert topology.behind("leaf2.pod1.example", "2") == ("gpu0002",)
    assert topology.behind("0xb8cef60300112300") == ("gpu0001", "gpu0002")
    assert topology.behind("leaf2", "40") == ()
    assert topology.behind("leaf9", "1") == ()


def test_mlx5_10_is_not_before_mlx5_2() -> None:
    cables = [Cable(f"leaf{number}", "1", "n1", f"mlx5_{number}", False) for number in (10, 2)]
    assert topology_of(Found(cables=tuple(cables))).places == {"n1": Place(switch="leaf2")}


def test_written_topology_is_read_back_unchanged(tmp_path: Path) -> None:
    topology = topology_of(read_ibnetdiscover(IB))
    text = as_yaml(topology)
    again = read_again(text, tmp_path)
    assert again == topology
    assert as_yaml(again) == text
    assert changes(topology, again) == []


def test_ports_with_a_slash_are_read_again(tmp_path: Path) -> None:
    cables = (Cable("tor1", "Ethernet1/1", "spine1", "Ethernet3/1", True),)
    topology = topology_of(Found(cables=cables))
    assert read_again(as_yaml(topology), tmp_path).links == {
        "tor1": {"Ethernet1/1": Peer("spine1", "Ethernet3/1")}
    }


def test_merging_keeps_what_the_new_input_does_not_speak_of() -> None:
    fabric, lldp = topology_of(read_ibnetdiscover(IB)), topology_of(read_lldp(LLDP_LINES))
    both = merged(fabric, lldp)
    assert set(both.links) == {"leaf1", "leaf2", SPINE, "tor1"}
    assert both.places["gpu0001"] == Place(switch="tor1"), "the newest word on a node's leaf"
    assert merged(both, lldp) == both


def test_topology_written_by_the_site_has_priority() -> None:
    hand = Topology(
        places={"gpu0001": Place(rack="r1", switch="mine"), "gpu0009": Place(pod="p")},
        links={"leaf1": {"1": Peer("gpu0042")}},
        gpu_pci={"h100": ("0000:18:00",)},
    )
    both = by_hand_first(hand, topology_of(read_ibnetdiscover(IB)))
    assert both.places["gpu0001"] == Place(rack="r1", switch="mine")
    assert both.places["gpu0002"] == Place(switch="leaf1")
    assert both.places["gpu0009"] == Place(pod="p")
    assert both.links["leaf1"]["1"] == Peer("gpu0042")
    assert both.links["leaf1"]["2"] == Peer("gpu0002", "mlx5_0")
    assert both.gpu_pci == hand.gpu_pci


def test_changes_are_listed_and_long_lists_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    before, after = topology_of(read_lldp(LLDP_LINES)), topology_of(read_ibnetdiscover(IB))
    listed = changes(before, after)
    assert "~ node gpu0001: leaf tor1 -> leaf leaf1" in listed
    assert "- cable tor1 Ethernet1/2: gpu0002 eth0" in listed
    assert "+ cable leaf1 40: 0xb8cef60300112400 1" in listed
    monkeypatch.setattr(topology_found, "_SHOWN", 1)
    assert "  and 9 more" in changes(before, after)


def test_differences_from_the_topology_of_slurm_are_listed() -> None:
    topology = topology_of(read_ibnetdiscover(IB))
    assert differences_to_slurm(topology, {"gpu0001": ("leaf2", "top"), "gpu0002": ("leaf1",)}) == []
    assert differences_to_slurm(topology, {"gpu0001": ("leaf7",), "gpu0003": ("leaf1",)}) == [
        "gpu0001: cables lead to leaf1, leaf2, Slurm says leaf7",
        "gpu0002: cables were found, but Slurm's tree does not list these nodes",
        "gpu0003: in Slurm's tree, but no cable was found",
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("switches: {a: {guid: abc}}", "topology.yaml:1: guid: 'abc' is not 0x and 16 hex digits"),
        ("switches: {a: {gud: 1}}", "unknown field gud"),
        ("links: {a: {1: 5}}", "a 1: expected what the port connects to"),
        ("links: {a: {1: /x}}", "a 1: expected what the port connects to"),
        ("link: {}", "unknown field link"),
    ],
)
def test_error_in_the_topology_file_is_named(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "topology.yaml").write_text(text, encoding="utf-8")
    problems: list[Problem] = []
    read_topology(Source(tmp_path / "topology.yaml", "topology.yaml", problems))
    assert len(problems) == 1
    assert why in str(problems[0])


def test_a_switch_that_is_named_by_hand_keeps_the_guid_that_was_found() -> None:
    found = Topology(switches={"leaf1": Switch(guid="0xe41d2d0300a1b2c3", above=("spine1",))})
    both = by_hand_first(Topology(switches={"leaf1": Switch(above=("spine9",))}), found)
    assert both.switches == {"leaf1": Switch(guid="0xe41d2d0300a1b2c3", above=("spine9",))}
