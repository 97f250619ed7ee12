"""Which interfaces are taken for hardware."""

import pytest

from healer.signals.ports import NO_PORT, PORTS_MAX, TOO_MANY, VIRTUAL, Ports, wrong_port


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
def test_what_is_no_name_of_a_port(name: str) -> None:
    assert wrong_port(name) == NO_PORT


def test_ports_of_a_node_are_bounded_and_its_first_stay() -> None:
    ports = Ports()
    names = [f"eth{number}" for number in range(PORTS_MAX + 1)]
    assert ports.wrong(("pod1", "a"), [*names, "lo"]) == {names[-1]: TOO_MANY, "lo": VIRTUAL}
    assert ports.wrong(("pod1", "a"), names[:-1]) == {}
    assert ports.wrong(("pod1", "b"), names[-1:]) == {}
