"""What `healer doctor` says of nodes that were not heard."""

from healer.bootstrap.doctor_checks import heard_of_nodes

NODES = {f"gpu{number:04d}" for number in range(1, 9)}


def test_all_heard_needs_no_word_more() -> None:
    found = heard_of_nodes("pod1", NODES, {("pod1", name) for name in NODES})
    assert (found.ok, found.repair) == (True, "")
    assert found.text == "8 of 8 nodes of pod1 reported in the last 15 min"


def test_those_not_heard_are_named_and_are_no_fault() -> None:
    """Another cluster's node of the same name does not count."""
    found = heard_of_nodes("pod1", NODES, {("pod1", "gpu0001"), ("pod2", "gpu0002")})
    assert found.ok and found.text.startswith("1 of 8 nodes of pod1")
    assert "silent: gpu0002, gpu0003, gpu0004, gpu0005, gpu0006, …" in found.text
    assert "healer node-package" in found.repair
