"""Starts and ends of heat, power and the driver's requests close each other: each pair of the rules."""

import pytest

from tests.stories.test_replay import clock, job, jobs, kernel, nodes, played
from tests.support.loop import name, rules_in

pytestmark = pytest.mark.heavy

GPU, OTHER_GPU = "NVRM: Xid (PCI:0000:13:00): ", "NVRM: Xid (PCI:0000:14:00): "
SWITCH, OTHER_SWITCH = (
    "nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): ",
    "nvidia-nvswitch1: SXid (PCI:0000:c5:00.0): ",
)
CPU = "mce: CPU3: Package temperature"
#: What ends it -> the line that begins it, the one that ends it, and the same of another part.
PAIRS = {
    "sxid-10005": (
        f"{SWITCH}10004, NVSWITCH Temperature 101C | TSENSE Warn Threshold 100C",
        f"{SWITCH}10005, NVSWITCH Temperature 95C | TSENSE Warn Threshold 100C",
        f"{OTHER_SWITCH}10005, NVSWITCH Temperature 95C | TSENSE Warn Threshold 100C",
    ),
    "sxid-28002": (
        f"{SWITCH}28001, OSFP Thermal Warn Activated",
        f"{SWITCH}28002, OSFP Thermal Warn Deactivated",
        f"{SWITCH}28004, OSFP Thermal Overt Deactivated",
    ),
    "sxid-28004": (
        f"{SWITCH}28003, OSFP Thermal Overt Activated",
        f"{SWITCH}28004, OSFP Thermal Overt Deactivated",
        f"{SWITCH}28002, OSFP Thermal Warn Deactivated",
    ),
    "host-cpu-cool": (
        f"{CPU} above threshold, cpu clock throttled (total events = 12)",
        f"{CPU}/speed normal",
        f"{OTHER_SWITCH}10005, NVSWITCH Temperature 95C | TSENSE Warn Threshold 100C",
    ),
    "xid-162": (
        f"{GPU}163, pid=1, name=a, PSHC disengaged",
        f"{GPU}162, pid=1, name=a, PSHC re-engaged",
        f"{OTHER_GPU}162, pid=1, name=a, PSHC re-engaged",
    ),
    "driver-asks-none": (
        f"{GPU}154, GPU recovery action changed from 0x0 (None) to 0x3 (Drain P2P)",
        f"{GPU}154, GPU recovery action changed from 0x3 (Drain P2P) to 0x0 (None)",
        f"{OTHER_GPU}154, GPU recovery action changed from 0x3 (Drain P2P) to 0x0 (None)",
    ),
}
CANCELS = {entry.by: entry for entry in rules_in().escalations.cancels}


def closed(*lines: tuple[float, str]) -> list[bool]:
    """Whether each incident has ended after two hours, under a job that no remedy may end."""
    document = played(
        nodes(), jobs(0, job("4711", name(1))), *(kernel(at, 1, line) for at, line in lines), clock(7200)
    )
    return [one["closed"] is not None for one in document["incidents"]]


def test_each_pair_of_the_rules_is_here() -> None:
    assert set(CANCELS) == set(PAIRS)


@pytest.mark.parametrize("by", PAIRS)
def test_the_end_closes_what_the_start_opened(by: str) -> None:
    start, end, _ = PAIRS[by]
    assert closed((60, start), (600, end)) == [True]


@pytest.mark.parametrize("by", PAIRS)
def test_without_its_end_it_stays_open(by: str) -> None:
    assert closed((60, PAIRS[by][0])) == [False]


@pytest.mark.parametrize("by", PAIRS)
def test_the_end_of_another_part_closes_nothing(by: str) -> None:
    start, _, other = PAIRS[by]
    assert closed((60, start), (600, other)) == [False]


@pytest.mark.parametrize("by", PAIRS)
def test_fault_that_starts_again_opens_another_incident(by: str) -> None:
    start, end, _ = PAIRS[by]
    assert closed((60, start), (600, end), (1800, start)) == [True, False]
