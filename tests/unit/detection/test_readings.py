# ruff: noqa: E501 - log lines stand here as they came
"""Kernel lines -> findings, with the rules that ship. Expected values are the vendor's facts, written by hand."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from healer.detection import WalkInput, read_all
from healer.detection.readings import bit_pattern, nvlink_row, xid74_reading
from healer.detection.reported import line_findings
from healer.model import Component, FaultClass, Finding, Observation, ObservationKind, Ruleset
from healer.observations import Picture
from healer.rulebook.ruleset import load
from healer.signals.wire import NodeBoot, heartbeat_observations, kernel_text_observations

NOW = datetime(2026, 11, 20, 3, 0, tzinfo=UTC)
X = "NVRM: Xid (PCI:0000:9b:00): "


@pytest.fixture(scope="module")
def rules() -> Ruleset:
    return load(Path(__file__).parents[3] / "rules")


def observed(*lines: str) -> tuple[Observation, ...]:
    taken = kernel_text_observations("\n".join(lines), lambda _c, _n: True, NOW, NodeBoot("pod1", "gpu0001"))
    return taken.observations


def found_in(rules: Ruleset, seen: Iterable[Observation]) -> list[Finding]:
    return line_findings(WalkInput(rules, Picture("pod1", watching_since=NOW), NOW, read_all(rules, seen)))


def one(rules: Ruleset, line: str) -> Finding:
    found = found_in(rules, observed(line))
    assert len(found) == 1, line
    return found[0]


@pytest.mark.parametrize(
    ("code", "fault_class", "rule"),
    [
        (13, FaultClass.application, "gpu-application"),
        (31, FaultClass.application, "gpu-application"),
        (43, FaultClass.application, "gpu-application"),
        (45, FaultClass.application, "gpu-application"),
        (46, FaultClass.fatal, "gpu-fatal"),
        (48, FaultClass.fatal, "gpu-fatal"),
        (62, FaultClass.fatal, "gpu-fatal"),
        (63, FaultClass.degraded, "gpu-degraded"),
        (64, FaultClass.fatal, "gpu-remap-failed"),
        (74, FaultClass.fatal, "gpu-fatal"),
        (79, FaultClass.fatal, "gpu-lost"),
        (92, FaultClass.degraded, "gpu-degraded"),
        (94, FaultClass.degraded, "gpu-contained"),
        (95, FaultClass.fatal, "gpu-fatal"),
        (109, FaultClass.degraded, "gpu-no-new-jobs"),
        (119, FaultClass.fatal, "gpu-fatal"),
        (120, FaultClass.fatal, "gpu-fatal"),
        (140, FaultClass.fatal, "gpu-fatal"),
        (143, FaultClass.fatal, "gpu-fatal"),
        (158, FaultClass.fatal, "gpu-fatal"),
        (167, FaultClass.fatal, "gpu-fatal"),
        (173, FaultClass.fatal, "gpu-fatal"),
        (999, FaultClass.unknown, "xid-unknown"),
    ],
)
def test_important_codes(rules: Ruleset, code: int, fault_class: FaultClass, rule: str) -> None:
    found = one(rules, f"{X}{code}, pid=7, name=a, something")
    assert (found.fault, found.fault_class, found.rule) == (f"xid-{code}", fault_class, rule)


def test_only_a_certainly_missing_gpu_is_unusable(rules: Ruleset) -> None:
    assert {code for code, entry in rules.xids.items() if entry.unusable} == {64, 79}
    assert one(rules, "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.").unusable
    assert not one(rules, X + "48, pid=7, name=a, DBE").unusable


def test_teardowns(rules: Ruleset) -> None:
    assert {43, 45} <= {code for code, entry in rules.xids.items() if entry.teardown}
    assert one(rules, X + "45, pid=7, name=a, Ch 00000001 caused by previous Xid 79").teardown
    assert not one(rules, X + "13, pid=7, name=a, x").teardown


@pytest.mark.parametrize(
    ("action", "fault", "fault_class", "asked"),
    [
        ("0x1 (GPU Reset Required)", "driver-asks-reset", FaultClass.fatal, "reset"),
        ("0x2 (Node Reboot Required)", "driver-asks-reboot", FaultClass.fatal, "reboot"),
        ("0x3 (Drain P2P)", "driver-asks-drain-p2p", FaultClass.degraded, "drain_p2p"),
        ("0x4 (Drain and Reset)", "driver-asks-drain-and-reset", FaultClass.degraded, "drain_and_reset"),
        ("0x5 (Recover IMEX Domain)", "driver-asks-recover-imex", FaultClass.degraded, "recover_imex"),
        ("(Node Reboot Required)", "driver-asks-reboot", FaultClass.fatal, "reboot"),
        ("0x7 (Dance)", "xid-154", FaultClass.unknown, None),
    ],
)
def test_the_driver_asks(
    rules: Ruleset, action: str, fault: str, fault_class: FaultClass, asked: str | None
) -> None:
    found = one(rules, f"{X}154, GPU recovery action changed from 0x0 (None) to {action}")
    assert (found.fault, found.fault_class, found.asked) == (fault, fault_class, asked)


def test_the_driver_takes_its_ask_back(rules: Ruleset) -> None:
    line = X + "154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)"
    assert found_in(rules, observed(line)) == []


def test_the_drivers_answer_in_a_memory_error_wins(rules: Ruleset) -> None:
    line = X + "94, pid=7, name=a, Contained: CE User Channel (0x9). RST: {}, D-RST: {}"
    quiet, reset = one(rules, line.format("No", "No")), one(rules, line.format("Yes", "No"))
    later = one(rules, line.format("No", "Yes"))
    assert (quiet.fault_class, quiet.asked) == (FaultClass.degraded, None)
    assert (reset.fault_class, reset.asked) == (FaultClass.fatal, "reset")
    assert (later.fault_class, later.asked) == (FaultClass.degraded, "drain_and_reset")


@pytest.mark.parametrize(
    ("code", "word", "fault_class"),
    [
        (20034, "Fatal, Link 48 ", FaultClass.fatal),
        (20034, "Non-fatal, Link 48 ", FaultClass.degraded),
        (12020, "Non-fatal, Link 48 ", FaultClass.fatal),
        (11004, "Non-fatal, Link 48 ", FaultClass.fatal),
        (20001, "Non-fatal, Link 48 ", FaultClass.degraded),
        (20001, "Fatal, Link 48 ", FaultClass.fatal),
        (26006, "", FaultClass.fatal),
        (10004, "", FaultClass.degraded),
        (29999, "Fatal, Link 48 ", FaultClass.fatal),
        (29999, "Non-fatal, Link 48 ", FaultClass.unknown),
        (29999, "", FaultClass.unknown),
    ],
)
def test_sxid_word_against_catalogue(rules: Ruleset, code: int, word: str, fault_class: FaultClass) -> None:
    found = one(rules, f"nvidia-nvswitch0: SXid (PCI:0000:06:00.0): {code}, {word}text")
    assert (found.fault, found.fault_class) == (f"sxid-{code}", fault_class)


def test_every_code_is_taken_by_a_rule_unless_it_is_only_information(rules: Ruleset) -> None:
    for kind, catalogue in (("xid", rules.xids), ("sxid", rules.sxids)):
        for code, entry in catalogue.items():
            rule = rules.rule_for(f"{kind}-{code}", entry.fault_class)
            assert (rule is None) == (entry.fault_class is FaultClass.informational), (kind, code)


def test_nothing_but_a_fault_of_hardware_leads_to_action(rules: Ruleset) -> None:
    for code, entry in rules.xids.items():
        rule = rules.rule_for(f"xid-{code}", entry.fault_class)
        acts = {
            FaultClass.fatal,
            FaultClass.degraded,
        }  # the second at a good moment, or where a row says more
        assert (rule is not None and rule.playbook is not None) == (entry.fault_class in acts), code


def test_other_observations_give_nothing(rules: Ruleset) -> None:
    beat = heartbeat_observations({"node": "n"}, lambda _c, _n: True, NOW, cluster="pod1").observations
    lines = (
        "NVRM: GPU at PCI:0000:2b:00: GPU-0b11d014-1685-04bd-26ed-5fc0bc1c44ae",
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
    )
    command = Observation(
        digest="d",
        kind=ObservationKind.command,
        component=Component(cluster="pod1"),
        event_at=NOW,
        arrived_at=NOW,
    )
    assert len(observed(*lines)) == 3
    assert found_in(rules, (*beat, *observed(*lines), command)) == []


def test_a_fault_that_no_rule_takes_gives_nothing(rules: Ruleset) -> None:
    without = msgspec.structs.replace(
        rules, rules=tuple(rule for rule in rules.rules if rule.name != "gpu-lost")[:1]
    )
    assert found_in(without, observed(X + "79, x")) == []


def test_a_finding_carries_its_evidence_and_job(rules: Ruleset) -> None:
    (seen,) = observed(X + "79, pid=7, name=a, GPU has fallen off the bus.")
    seen = msgspec.structs.replace(seen, data={**seen.data, "job": "4711"})
    (found,) = found_in(rules, [seen])
    assert found.jobs == ("4711",)
    assert found.component == seen.component
    assert [(one.digest, one.line) for one in found.evidence] == [(seen.digest, seen.line)]
    assert (found.at, found.arrived_at, found.confidence) == (seen.event_at, NOW, 1.0)


def test_text_is_for_people(rules: Ruleset) -> None:
    assert one(rules, X + "79, x").text == "Xid 79: GPU fell off the bus"
    line = "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x00000000 0x00000000 0x00000000)"
    assert "link 14" in one(rules, line).text
    assert "other end" in one(rules, line).text


@pytest.mark.parametrize(
    ("unit", "words", "fault_class"),
    [
        ("RLW_SRC_TRACK", [0x04082907, 0x8], FaultClass.degraded),  # driver 575 and newer
        ("RLW_SRC_TRACK", [0b0011100010, 0x10], FaultClass.fatal),  # older driver
        ("RLW_RXPIPE", [0b0000110, 0x1], FaultClass.degraded),
        ("RLW_RXPIPE", [0b10000110, 0x1], FaultClass.fatal),  # promoted
        ("TREX", [0x04082907, 0x8], None),
        ("RLW_SRC_TRACK", [0x04082907, 0x3], None),
        ("RLW_SRC_TRACK", [], None),
    ],
)
def test_nvlink5_table(rules: Ruleset, unit: str, words: list[int], fault_class: FaultClass | None) -> None:
    row = nvlink_row(rules.nvlink5, 145, unit, words)
    assert (row.fault_class if row else None) is fault_class


def test_link_down_reasons_are_distinguished(rules: Ruleset) -> None:
    notes = {}
    for reason in (2, 35, 42):
        row = nvlink_row(rules.nvlink5, 149, "NETIR_LINK_EVT", [reason << 20 | 0b0010001, 0])
        assert row is not None
        notes[reason] = row.note
    assert "signal integrity" in notes[2]
    assert "switch cooling" in notes[35]
    assert "cables" in notes[42]


def test_bit_pattern() -> None:
    assert bit_pattern("-" * 30 + "01") == (3, 1)
    with pytest.raises(ValueError, match="32 characters"):
        bit_pattern("01")


@pytest.mark.parametrize(
    ("registers", "fault_class"),
    [
        ([0x1, 0, 0, 0, 0, 0, 0], FaultClass.informational),
        ([0x1, 0, 0x1, 0, 0, 0, 0], FaultClass.fatal),
        ([0x2, 0, 0, 0, 0, 0, 0], FaultClass.degraded),
        ([0, 0, 0x10000, 0, 0, 0, 0], FaultClass.fatal),
        ([0x1, 0x1, 0, 0, 0, 0, 0], None),
        ([0, 0, 0, 0, 0, 0, 0], None),
        ([], None),
    ],
)
def test_xid74_registers(rules: Ruleset, registers: list[int], fault_class: FaultClass | None) -> None:
    assert xid74_reading(rules.xid74, registers)[0] is fault_class
