"""Every row of every catalogue is reached by a line, and says what it says."""

import pytest

from healer.detection.readings import read
from healer.model import FaultClass, Observation, Ruleset
from healer.signals.wire import NodeBoot, kernel_text_observations
from tests.support.loop import CLUSTER, START, name, shipped

RULES = shipped()
#: They print more than their text, and that decides.
_DECODED = {74, *range(144, 151), 154}


def seen(line: str) -> Observation:
    parsed = kernel_text_observations(
        line, lambda *_: True, START, NodeBoot(CLUSTER, name(1)), book=RULES.kernel_lines
    )
    (one,) = parsed.observations
    return one


def bits(pattern: str) -> int:
    """The smallest word that fits a pattern of 32 characters."""
    return int(pattern.replace("-", "0"), 2)


def test_each_row_of_the_xids() -> None:
    for code, row in RULES.xids.items():
        reading = read(
            RULES, seen(f"NVRM: Xid (PCI:0000:9b:00): {code}, pid=1, name=a, what the driver says")
        )
        assert reading is not None, code
        assert reading.fault == f"xid-{code}"
        assert (reading.unusable, reading.teardown) == (row.unusable, row.teardown)
        if code not in _DECODED:
            assert reading.fault_class is row.fault_class


def test_each_row_of_the_sxids() -> None:
    for code, row in RULES.sxids.items():
        reading = read(
            RULES, seen(f"nvidia-nvswitch0: SXid (PCI:0000:06:00.0): {code:05}, what the switch says")
        )
        assert reading is not None, code
        assert reading.fault == f"sxid-{code}"
        assert reading.fault_class is (FaultClass.fatal if row.always_fatal else row.fault_class)


@pytest.mark.parametrize("ask", RULES.recovery_actions.values(), ids=lambda ask: ask.fault)
def test_each_recovery_action_is_read_by_number_and_by_words(ask: object) -> None:
    assert isinstance(ask, type(next(iter(RULES.recovery_actions.values()))))
    for now in (f"0x{ask.code:x} ({ask.words})", f"({ask.words})"):
        line = f"NVRM: Xid (PCI:0000:9b:00): 154, GPU recovery action changed from 0x9 (Other) to {now}"
        reading = read(RULES, seen(line))
        assert reading is not None
        assert (reading.fault, reading.fault_class, reading.asked) == (ask.fault, ask.fault_class, ask.asked)


@pytest.mark.parametrize("number", range(len(RULES.nvlink5)))
@pytest.mark.parametrize("layout", [0, 1], ids=["before-575", "since-575"])
def test_a_row_of_the_links(number: int, layout: int) -> None:
    """The first row that fits wins, so an earlier one may have it; then that one's word counts."""
    row = RULES.nvlink5[number]
    info = bits(row.info[layout]) | ((row.reason or 0) << 20)
    status = row.status[0] if row.status else 0
    words = f"(0x{info:08x} 0x{status:08x} 0x0 0x0 0x0 0x0)"
    line = f"NVRM: Xid (PCI:0000:9b:00): {row.xid}, {row.units[0]} Nonfatal XC0 i0 Link 3 {words}"
    reading = read(RULES, seen(line))
    assert reading is not None
    classes = {one.fault_class for one in RULES.nvlink5 if one.xid == row.xid and row.units[0] in one.units}
    assert reading.fault_class in classes
    assert "in no table" not in reading.text


@pytest.mark.parametrize("row", RULES.xid74, ids=lambda row: f"register-{row.register}-{row.bits[0]}")
def test_bits_of_xid_74(row: object) -> None:
    assert isinstance(row, type(RULES.xid74[0]))
    for bit in row.bits:
        registers = ", ".join(hex(1 << bit if at == row.register else 0) for at in range(7))
        line = f"NVRM: Xid (PCI:0000:9b:00): 74, NVLink: fatal error detected on link 4({registers})"
        reading = read(RULES, seen(line))
        assert reading is not None
        assert reading.fault_class is row.fault_class


def rows_with_models(rules: Ruleset) -> list[int]:
    return [code for code, row in rules.xids.items() if row.by_model]


def test_some_rows_differ_by_model() -> None:
    assert rows_with_models(RULES)
