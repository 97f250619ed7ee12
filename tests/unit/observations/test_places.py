"""Where nodes stand: the site's file speaks first, and Slurm's own tree where the file is silent."""

from datetime import timedelta

import msgspec

from healer.model import Place, SlurmNode, SlurmSnapshot, Topology
from healer.observations.slurm_poll import Placing, with_places
from tests.support.loop import CLUSTER, START

TREE = {"n1": ("leaf1", "spine"), "n2": ("leaf1", "spine"), "n3": ("leaf2", "spine")}


def picture(**slurm_nodes: SlurmNode) -> SlurmSnapshot:
    nodes = {name: SlurmNode(name=name, state=("IDLE",)) for name in ("n1", "n2", "n3", "n4")}
    return SlurmSnapshot(cluster=CLUSTER, taken_at=START, nodes=nodes | slurm_nodes)


def test_the_file_wins_where_it_speaks_and_slurm_fills_the_rest() -> None:
    file = Topology(places={"n1": Place(rack="r1"), "n2": Place(switch="leaf9"), "n4": Place(switch="leaf4")})
    nodes = with_places(picture(), file, TREE).nodes
    locations = {name: (node.rack, node.switch, node.switches) for name, node in nodes.items()}
    assert locations == {
        "n1": ("r1", "leaf1", ("leaf1", "spine")),
        "n2": ("", "leaf9", ("leaf9",)),
        "n3": ("", "leaf2", ("leaf2", "spine")),
        "n4": ("", "leaf4", ("leaf4",)),
    }


def test_recorded_location_of_a_node_is_kept() -> None:
    slurm_node = SlurmNode(name="n1", state=("IDLE",), switch="leaf7", rack="r7")
    node = with_places(picture(n1=slurm_node), Topology(places={"n1": Place(rack="r1")}), TREE).nodes["n1"]
    assert (node.rack, node.switch) == ("r7", "leaf7")


def test_without_file_and_tree_the_picture_is_as_it_was() -> None:
    shown = picture()
    assert with_places(shown, Topology(), {}) is shown


def test_pitfall_21_an_unchanged_list_of_nodes_comes_out_as_the_same_one() -> None:
    file, placing, first = Topology(places={"n1": Place(rack="r1")}), Placing(), picture()
    one = placing.placed(first, file, TREE)
    later = msgspec.structs.replace(first, taken_at=START + timedelta(seconds=2))
    two = placing.placed(later, file, TREE)
    assert two.nodes is one.nodes
    assert two.taken_at == START + timedelta(seconds=2)
    moved = placing.placed(later, Topology(places={"n1": Place(rack="r2")}), TREE)
    assert moved.nodes["n1"].rack == "r2"
    assert placing.placed(picture(), file, {}).nodes["n3"].switch == ""


def test_a_block_of_slurms_is_a_domain_unless_the_file_says_another() -> None:
    blocks = {"n1": ("block:b1",), "n2": ("block:b1",)}
    file = Topology(places={"n2": Place(domain="nvl7", pdu="p1", row="w2")})
    nodes = with_places(picture(), file, blocks).nodes
    locations = {name: (one.domain, one.pdu, one.row, one.switch) for name, one in nodes.items()}
    assert locations == {
        "n1": ("b1", "", "", ""),
        "n2": ("nvl7", "p1", "w2", ""),
        "n3": ("", "", "", ""),
        "n4": ("", "", "", ""),
    }
