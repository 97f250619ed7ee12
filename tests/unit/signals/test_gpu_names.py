"""Which GPU has which index: learned by node, and changes told by node."""

from healer.signals.gpu_names import GpuNames
from tests.unit.signals.measuring import NOW

A, B = ("pod1", "gpu0001"), ("pod1", "gpu0002")


def test_only_the_node_that_turned_out_otherwise_changed() -> None:
    gpus = GpuNames()
    one, two = gpus.changes(), gpus.changes()
    for where in (A, B):
        gpus.learn(where, 0, "GPU-a", "0000:18:00")
    assert (one, two) == (set(), set())
    gpus.learn(B, 3, "GPU-a", None)
    assert (one, two) == ({B}, {B})
    one.clear()
    assert (one, two) == (set(), {B})
    assert (gpus.index(A, "GPU-a", None), gpus.index(B, "GPU-a", None)) == (0, 3)


def test_a_uuid_that_is_none_is_not_learned() -> None:
    """What is learned is stored as JSON, which in PostgreSQL holds no NUL."""
    gpus = GpuNames()
    for uuid in ("GPU\0a", "GPU a", "x" * 65, "\ud800"):
        gpus.learn(A, 0, uuid, "0000:18:00")
        assert gpus.index(A, uuid, None) is None
    (told,) = gpus.inventory([A], NOW)
    assert told.data["gpus"] == [{"index": 0, "pci": "0000:18:00", "uuid": ""}]
