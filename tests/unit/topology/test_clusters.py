"""Several clusters in one topology: what is named after a cluster is that cluster's alone."""

from pathlib import Path

from healer.model import Component, Topology
from healer.rulebook.rule_checks import read_topology
from healer.rulebook.source import Problem, Source

TWO = """\
places:
  "pod1/gpu[0001-0002]": {rack: r01}
  "pod2/gpu[0001-0002]": {rack: r51}
switches:
  pod1/leaf1: {guid: "0x0000000000000001"}
  pod2/leaf1: {guid: "0x0000000000000002"}
  pod2/leaf2: {}
links:
  pod1/leaf1: {"1": gpu0001/mlx5_0, "2": gpu0002/mlx5_0}
  pod2/leaf1: {"1": gpu0002/mlx5_0}
  pod2/leaf2: {"1": gpu0001/mlx5_0}
"""


def read(text: str, folder: Path) -> Topology:
    (folder / "topology.yaml").write_text(text, encoding="utf-8")
    problems: list[Problem] = []
    found = read_topology(Source(folder / "topology.yaml", "topology.yaml", problems))
    assert problems == []
    return found


def port(cluster: str, node: str) -> Component:
    return Component(cluster=cluster, node=node, nic="mlx5_0")


def test_nodes_and_switches_of_one_name_have_the_cables_of_their_own_cluster(tmp_path: Path) -> None:
    topology = read(TWO, tmp_path)
    one, two = topology.of("pod1"), topology.of("pod2")
    assert [one.leaf_of("gpu0001", "mlx5_0"), two.leaf_of("gpu0001", "mlx5_0")] == ["leaf1", "leaf2"]
    assert one.behind("leaf1") == ("gpu0001", "gpu0002")
    assert two.behind("leaf1", "1") == ("gpu0002",)
    assert two.behind("0x0000000000000002") == ("gpu0002",)
    leaf_port = Component(cluster="pod1", device="leaf1", part="1")
    assert one.link_of(leaf_port) == one.link_of(port("pod1", "gpu0001"))
    assert two.link_of(leaf_port) == two.link_of(port("pod2", "gpu0002"))
    assert (one.behind("r51"), two.behind("r51")) == ((), ("gpu0001", "gpu0002"))


def test_what_is_named_without_a_cluster_is_of_all_that_say_nothing_else(tmp_path: Path) -> None:
    text = """\
places: {"gpu0001,gpu0002": {rack: r01}, pod2/gpu0001: {rack: r51}}
links:
  leaf1: {"1": gpu0001/mlx5_0, "2": gpu0002/mlx5_0}
  pod2/leaf9: {"1": gpu0001/mlx5_0}
"""
    topology = read(text, tmp_path)
    one, two = topology.of("pod1"), topology.of("pod2")
    assert one.behind("leaf1") == ("gpu0001", "gpu0002") and one.behind("leaf9") == ()
    assert two.behind("leaf1") == ("gpu0002",) and two.behind("leaf9") == ("gpu0001",)
    assert two.leaf_of("gpu0001", "mlx5_0") == "leaf9"
    assert topology.of("pod1") is topology.of("pod1"), "made once: windows compare it by identity"


def test_without_a_named_cluster_nothing_is_created_again(tmp_path: Path) -> None:
    topology = read("links: {leaf1: {'1': gpu0001/mlx5_0}}\n", tmp_path)
    assert topology.of("pod1") is topology
