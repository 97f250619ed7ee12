"""What a token may not speak of is refused before anything is learned or numbered."""

import json

import pytest

from tests.support.measuring import NOW, Bench
from tests.support.measuring import known as known_here
from tests.support.pushing import message, snappy

MS = int(NOW.timestamp() * 1000)


class Foreign(Exception):
    pass


def bound(cluster: str, node: str) -> bool:
    """As the API asks for a token that is bound to gpu0001."""
    if not known_here(cluster, node):
        return False
    if node != "gpu0001":
        raise Foreign
    return True


LABELS = {"gpu": "5", "UUID": "GPU-aa", "pci_bus_id": "00000000:10:00.0", "Hostname": "gpu0002"}
GPUS = [{"index": 5, "pci": "0000:10:00", "uuid": "GPU-aa"}]
COLUMNAR = {"node": "gpu0002", "gpus": GPUS, "ports": {"eth0": {"net_carrier": 1}}, "host": {"load1": 1}}


@pytest.mark.parametrize("form", ["columnar", "exposition", "remote_write"])
def test_a_foreign_node_teaches_nothing(form: str) -> None:
    bench = Bench()
    with pytest.raises(Foreign):
        if form == "columnar":
            bench.translator.columnar(json.dumps(COLUMNAR).encode(), bound, NOW)
        elif form == "exposition":
            labels = ",".join(f'{name}="{value}"' for name, value in LABELS.items())
            bench.translator.exposition(
                f"DCGM_FI_DEV_GPU_TEMP{{{labels}}} 61\n".encode(), bound, NOW, node=None
            )
        else:
            sent = [({"__name__": "DCGM_FI_DEV_GPU_TEMP", **LABELS}, [(61.0, MS)])]
            bench.translator.remote_write(snappy(message(sent)), bound, NOW)
    by_address = b'DCGM_FI_DEV_SM_CLOCK{pci_bus_id="00000000:10:00.0"} 1\nnode_load1 1\n'
    honest = bench.translator.exposition(by_address, known_here, NOW, node="gpu0002")
    assert honest.inventory == []
    assert honest.unknown["DCGM_FI_DEV_SM_CLOCK"].why == "its labels match no known GPU"
    assert list(bench.book.columns(range(100))) == [1]  # the honest node's load alone


def test_a_foreign_node_is_refused_also_when_its_series_are_known() -> None:
    bench = Bench()
    sent = snappy(message([({"__name__": "node_load1", "node": "gpu0002"}, [(1.0, MS)])]))
    assert bench.translator.remote_write(sent, known_here, NOW).samples == 1
    with pytest.raises(Foreign):
        bench.translator.remote_write(sent, bound, NOW)


def test_inventory_of_a_refused_body_is_sent_with_the_next() -> None:
    bench = Bench()
    mine = {"node": "gpu0001", "gpus": GPUS}
    with pytest.raises(Foreign):
        bench.translator.columnar(json.dumps([mine, COLUMNAR]).encode(), bound, NOW)
    (inventory,) = bench.translator.columnar(json.dumps(mine).encode(), bound, NOW).inventory
    assert inventory.component.node == "gpu0001"
