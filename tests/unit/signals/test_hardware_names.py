"""Which interfaces are taken for hardware."""

import pytest

from healer.signals.hardware_names import (
    NAMES_FREE,
    NAMES_MAX,
    NAMES_OF_NODE,
    NO_PORT,
    PORTS_MAX,
    TOO_MANY,
    TOO_MANY_NAMES,
    TOO_MANY_NEW,
    VIRTUAL,
    Ports,
    wrong_port,
)


@pytest.mark.parametrize(
    "name",
    [
        "mlx5_0/1",
        "mlx5_bond_0/1",
        "ib0",
        "ibp65s0",
        "bnxt_re0/1",
        "hfi1_0/1",
        "opap1s0",
        "eth0",
        "eno1",
        "enp3s0f0np0",
        "enP2p1s0",
        "ens1f1",
        "enx0c42a1b2c3d4",
        "bond0",
        "rdmap16s27/1",
        "rocep12s0f0/1",
        "irdma0/1",
        "efa_0/1",
        "hsn0",
        "em1",
    ],
)
def test_hardware(name: str) -> None:
    assert wrong_port(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "lo",
        "veth12ab34c",
        "eni12ab34cd56e",
        "azv1234abcd",
        "gke12ab34cd",
        "vnet0",
        "cilium_host",
        "docker0",
        "genev_sys_6081",
        "weave",
        "ovs-system",
        "cbr0",
        "br-12ab",
        "virbr0",
        "cali1",
        "flannel.1",
        "lxc12",
        "lxdbr0",
        "tap0",
        "tun0",
        "tunl0",
        "dummy0",
        "nodelocaldns",
        "cni0",
        "kube-ipvs0",
        "vxlan.calico",
    ],
)
def test_virtual(name: str) -> None:
    assert wrong_port(name) == VIRTUAL


@pytest.mark.parametrize("name", ["", "x1", "eth", "eth0.100", "mlx5_0/1/2", "mlx5_0/a", "eth0\n"])
def test_invalid_port_name_is_refused(name: str) -> None:
    assert wrong_port(name) == NO_PORT


def test_ports_of_a_node_are_bounded_and_its_first_stay() -> None:
    ports = Ports()
    names = [f"eth{number}" for number in range(PORTS_MAX + 1)]
    assert ports.wrong(("pod1", "a"), [*names, "lo"]) == {names[-1]: TOO_MANY, "lo": VIRTUAL}
    assert ports.wrong(("pod1", "a"), names[:-1]) == {}
    assert ports.wrong(("pod1", "b"), names[-1:]) == {}


def test_a_few_nodes_do_not_use_up_the_names_that_all_share() -> None:
    ports = Ports()
    for node in range(NAMES_MAX // PORTS_MAX):
        ports.wrong(("pod1", f"bad{node}"), [f"eth{node}x{number}" for number in range(PORTS_MAX)])
    assert ports.wrong(("pod1", "good"), ["mlx5_0/1"]) == {}


def test_node_adds_few_names_beyond_its_allowance_and_known_names_are_accepted() -> None:
    ports = Ports()
    for node in range(2):
        ports.wrong(("pod1", f"first{node}"), [f"eth{node}x{number}" for number in range(NAMES_FREE // 2)])
    new = [f"mlx5_{number}/1" for number in range(NAMES_OF_NODE + 4)]
    left = dict.fromkeys(new[NAMES_OF_NODE:], TOO_MANY_NEW)
    assert ports.wrong(("pod1", "a"), new) == left
    assert ports.wrong(("pod1", "a"), new) == left, "asked again it has no more"
    assert ports.wrong(("pod1", "b"), new) == {}
    assert ports.wrong(("pod1", "a"), new) == {}, "known now"


def test_names_of_a_cluster_are_bounded() -> None:
    ports, node = Ports(), 0
    while (
        TOO_MANY_NAMES not in ports.wrong(("pod1", f"n{node}"), [f"ib{node}x{n}" for n in range(4)]).values()
    ):
        node += 1
        assert node <= NAMES_MAX
    assert node * 4 >= NAMES_MAX - 4
