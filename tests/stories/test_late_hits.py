"""A job that only a later fault of an incident hits is requeued too, and once."""

import pytest

from tests.stories.test_replay import Row, actions, clock, job, jobs, kernel, nodes, played, row
from tests.support.loop import CLUSTER, name

pytestmark = pytest.mark.heavy

ADDRESSES = [f"0000:{bus}:00" for bus in ("18", "2a", "3a", "5d", "9b", "ab", "ba", "db")]


def lost(at: float, gpu: int) -> Row:
    return kernel(at, 1, f"NVRM: Xid (PCI:{ADDRESSES[gpu]}): 79, pid=1, name=a, GPU has fallen off the bus.")


def inventory() -> Row:
    gpus = [{"index": index, "pci": pci} for index, pci in enumerate(ADDRESSES)]
    return row(1, "signals/heartbeat", {"cluster": CLUSTER, "node": name(1), "boot_id": "b1", "gpus": gpus})


def requeued(*rows: Row) -> list[str | None]:
    ordered = sorted((nodes(), *rows), key=lambda one: one["at"])
    return [one for verb, _, one in actions(played(*ordered)) if verb == "requeue"]


SHARED = jobs(0, *(job(str(number), name(1), gpus={name(1): [number]}) for number in range(4)))
HALVES = jobs(0, *(job(str(h), name(1), gpus={name(1): list(range(4 * h, 4 * h + 4))}) for h in range(2)))


def test_a_second_gpu_of_a_shared_node_hits_the_job_on_it_too() -> None:
    assert requeued(inventory(), SHARED, lost(10, 0), lost(100, 2), clock(300)) == ["0", "2"]


def test_gpu_reported_again_requeues_no_job_twice() -> None:
    rows = (lost(100, 2), lost(200, 2), lost(300, 0))
    assert requeued(inventory(), SHARED, lost(10, 0), *rows, clock(900)) == ["0", "2"]


def test_gpus_lost_one_by_one_hit_every_job_though_none_can_be_identified() -> None:
    """The map of addresses to indices is unknown: five lost GPUs are more than either job can do without."""
    gone = [lost(10 + 30 * gpu, gpu) for gpu in range(8)]
    assert requeued(HALVES, *gone, clock(900)) == ["0", "1"]


def test_a_job_on_a_healthy_gpu_of_the_node_goes_on() -> None:
    assert requeued(inventory(), SHARED, lost(10, 0), lost(100, 6), clock(300)) == ["0"]


def test_later_application_error_hits_no_job() -> None:
    later = kernel(100, 1, f"NVRM: Xid (PCI:{ADDRESSES[2]}): 31, pid=7, name=p, MMU Fault")
    assert requeued(inventory(), SHARED, lost(10, 0), later, clock(300)) == ["0"]
