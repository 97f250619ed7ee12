"""Which GPU has which index: learned by node, and changes reported by node."""

from healer.signals.inventory import GpuNames, gpu_row
from healer.signals.series import Measured
from tests.support.measuring import NOW, Bench, gpu, known

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


def rows(gpus: GpuNames) -> list[dict[str, object]]:
    return [row for inventory in gpus.inventory([A], NOW) for row in inventory.data["gpus"]]


def test_serial_number_is_reported_once_and_follows_its_gpu() -> None:
    gpus = GpuNames()
    row = {"index": 0, "pci": "0000:18:00", "uuid": "GPU-a", "serial": "1650522005114"}
    gpus.learn(A, 0, "GPU-a", "0000:18:00", "1650522005114")
    assert rows(gpus) == [row]
    gpus.learn(A, 0, "GPU-a", "0000:18:00", "N/A")
    gpus.learn(A, 0, "GPU-a", "0000:18:00")
    assert rows(gpus) == []
    gpus.learn(A, 0, "GPU-b", "0000:18:00")
    assert rows(gpus) == [{"index": 0, "pci": "0000:18:00", "uuid": "GPU-b"}]


def test_changed_serial_number_is_reported_at_once() -> None:
    gpus = GpuNames()
    for serial in ("1650522005114", "1650522005115"):
        gpus.learn(A, 0, None, "0000:18:00", serial)
        assert [row["serial"] for row in rows(gpus)] == [serial]


def test_a_uuid_that_is_none_is_not_learned() -> None:
    """What is learned is stored as JSON, which in PostgreSQL holds no NUL."""
    gpus = GpuNames()
    for uuid in ("GPU\0a", "GPU a", "x" * 65, "\ud800"):
        gpus.learn(A, 0, uuid, "0000:18:00")
        assert gpus.index(A, uuid, None) is None
    (inventory,) = gpus.inventory([A], NOW)
    assert inventory.data["gpus"] == [{"index": 0, "pci": "0000:18:00", "uuid": ""}]


def test_heartbeat_names_gpus_of_samples_with_only_a_uuid_or_an_address() -> None:
    bench = Bench()
    by_uuid = b'DCGM_FI_DEV_ROW_REMAP_FAILED{UUID="GPU-66",hostname="gpu0002"} 1\n'
    by_address = b'DCGM_FI_DEV_GPU_TEMP{pci_bus_id="00000000:8B:00.0",hostname="gpu0002"} 41\n'

    def sent(body: bytes) -> Measured:
        return bench.translator.exposition(body, known, NOW, node="gpu0002")

    why = sent(by_uuid + by_address).unknown
    assert {one.why for one in why.values()} == {"its labels match no known GPU"}
    bench.translator.learn_gpus("gpu0002", [gpu_row(5, "0000:8b:00", "GPU-66", "")])
    (report,) = sent(by_uuid + by_address).reports
    assert bench.values(report) == {("row_remap_failed", gpu(5)): 1, ("gpu_temp_c", gpu(5)): 41}
    assert sent(b'DCGM_FI_DEV_ROW_REMAP_FAILED{UUID="GPU-67"} 1\n').samples == 0
