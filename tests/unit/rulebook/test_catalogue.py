"""The signal catalogue: what ships is whole; whatever is wrong in a site's own is named by line."""

from pathlib import Path

import pytest

from healer.model import Catalogue, Combine, Scope, SignalKind
from healer.rulebook.signal_rules import read_catalogue
from healer.rulebook.source import Problem, Source
from tests.support.measuring import shipped

GOOD = """\
- name: a_temp_c
  unit: °C
  kind: gauge
  scope: gpu
  text: a temperature
  source: a test
"""


def read(tmp_path: Path, text: str) -> tuple[Catalogue, list[str]]:
    (tmp_path / "signals.yaml").write_text(text, encoding="utf-8")
    problems: list[Problem] = []
    catalogue = read_catalogue(Source(tmp_path / "signals.yaml", "signals.yaml", problems))
    return catalogue, [str(problem) for problem in problems]


def test_no_file_is_an_empty_catalogue() -> None:
    assert read_catalogue() == Catalogue()


def test_several_files_are_one_catalogue(tmp_path: Path) -> None:
    (tmp_path / "signals.yaml").write_text(GOOD, encoding="utf-8")
    (tmp_path / "signals-more.yaml").write_text(GOOD, encoding="utf-8")
    problems: list[Problem] = []
    names = ("signals.yaml", "signals-more.yaml")
    read_catalogue(*(Source(tmp_path / name, name, problems) for name in names))
    assert str(problems[0]) == "signals-more.yaml:1: the signal a_temp_c is listed twice"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        (
            ("scope: gpu", "scope: device"),
            "signals.yaml:1: device: `device` is required for signals of a device",
        ),
        (
            ("scope: gpu", "scope: gpu\n  device: switch"),
            "signals.yaml:5: device: `device` is required for signals of a device",
        ),
        (("source: a test", "source: a test\n  aliases: [{name: A, part: x}]"), "aliases: A names a part"),
    ],
)
def test_a_signal_of_a_device_says_of_which_kind(tmp_path: Path, change: tuple[str, str], wrong: str) -> None:
    _, problems = read(tmp_path, GOOD.replace(*change))
    assert len(problems) == 1
    assert wrong in problems[0]


def test_shipped_catalogue_has_every_scope_and_derived_slurm_signals() -> None:
    catalogue = shipped()
    assert len(catalogue.signals) >= 150
    assert {signal.scope for signal in catalogue.signals.values()} == {
        Scope.gpu, Scope.node, Scope.link, Scope.device, Scope.device_part,
    }  # fmt: skip
    slurm = [signal for signal in catalogue.signals.values() if signal.name.startswith("slurm_")]
    assert {"slurm_gpus", "slurm_cpus", "slurm_allocated", "slurm_gpus_allocated", "slurm_drained"} == {
        signal.name for signal in slurm
    }
    assert all(signal.derived and signal.name not in catalogue.arriving for signal in slurm)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR"),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", "DCGM_FI_DEV_PCIE_REPLAY_TOTAL"),
        ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_GPU_TEMP_CELSIUS"),
        ("DCGM_FI_DEV_MEMORY_TEMP", "DCGM_FI_DEV_MEMORY_TEMP_CELSIUS"),
        ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_BOARD_POWER_WATTS"),
        ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "DCGM_FI_DEV_ROW_REMAP_UNCORRECTABLE_TOTAL"),
        ("DCGM_FI_DEV_ROW_REMAP_FAILURE", "DCGM_FI_DEV_ROW_REMAP_FAILED"),
        ("DCGM_FI_DEV_GET_GPU_RECOVERY_ACTION", "DCGM_FI_DEV_GPU_RECOVERY_ACTION"),
        ("DCGM_FI_DEV_THRESHOLD_SRM", "DCGM_FI_DEV_SRAM_EXCEEDED"),
        ("DCGM_FI_DEV_NVSWITCH_FATAL_ERRORS", "DCGM_FI_DEV_SXID_FATAL_ERROR"),
    ],
)
def test_both_generations_of_dcgm_are_one_signal(old: str, new: str) -> None:
    assert shipped().arriving[old] == shipped().arriving[new]


def test_clock_event_reasons_are_those_of_nvml() -> None:
    assert shipped().signals["clock_event_reasons"].bits == {
        "gpu_idle": 0x1,
        "applications_clocks_setting": 0x2,
        "sw_power_cap": 0x4,
        "hw_slowdown": 0x8,
        "sync_boost": 0x10,
        "sw_thermal_slowdown": 0x20,
        "hw_thermal_slowdown": 0x40,
        "hw_power_brake_slowdown": 0x80,
        "display_clocks_setting": 0x100,
    }


def test_an_entry(tmp_path: Path) -> None:
    catalogue, problems = read(
        tmp_path,
        GOOD
        + """  aliases: [A_TEMP, {name: A_MILLI, scale: 0.001}, {name: UNIT, labels: {state: active}}]
  combine: max
  stale_s: 10
""",
    )
    assert problems == []
    signal = catalogue.signals["a_temp_c"]
    assert (signal.kind, signal.combine, signal.stale_s) == (SignalKind.gauge, Combine.max, 10)
    assert catalogue.arriving == {
        "a_temp_c": ("a_temp_c", 1),
        "A_TEMP": ("a_temp_c", 1),
        "A_MILLI": ("a_temp_c", 0.001),
    }


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("unit: °C", "unit: C"), "signals.yaml:2: unit: unknown unit 'C'"),
        (
            ("unit: °C", "unit: MHZ"),
            "signals.yaml:2: unit: unknown unit 'MHZ' (did you mean MHz?)",
        ),
        (
            ("kind: gauge", "kind: guage"),
            "signals.yaml:3: kind: 'guage' is not an allowed value (did you mean gauge?)",
        ),
        (
            ("kind: gauge", "kind: bits"),
            "signals.yaml:3: kind: `bits` is required for signals of kind bits, "
            "and not allowed for other kinds",
        ),
        (
            ("scope: gpu", "scope: job"),
            "signals.yaml:4: scope: must be gpu, node, link, device or device_part, not job",
        ),
        (
            ("name: a_temp_c", "name: A-Temp"),
            "signals.yaml:1: name: 'A-Temp' must consist of lowercase letters, digits and _, at most 64",
        ),
        (("text: a", "txt: a"), "signals.yaml:5: unknown field txt (did you mean text?)"),
        (
            ("source: a test", "words: {On: 1}\n  source: a"),
            "signals.yaml:6: words: only a signal of kind enum has words",
        ),
        (("source: a test", "stale_s: 0\n  source: a"), "signals.yaml:6: stale_s: must be above 0"),
        (
            ("source: a test", "aliases: [A B]\n  source: a"),
            "signals.yaml:6: aliases: 'A B' is not the name of a series",
        ),
        (
            ("source: a test", "aliases: ['A_{link}']\n  source: a"),
            "signals.yaml:6: aliases: A_{link} is about links, but the signal is not",
        ),
        (
            ("source: a test", "aliases: [A, A]\n  source: a"),
            "signals.yaml:6: A is already a name of a_temp_c",
        ),
        (
            ("source: a test", "derived: true\n  aliases: [A]\n  source: a"),
            "signals.yaml:7: aliases: a derived",
        ),
        (
            ("source: a test", "aliases: [{name: A, scale: 0}]\n  source: a"),
            "signals.yaml:6: aliases: a scale of 0",
        ),
        (
            ("kind: gauge", "kind: bits\n  bits: {x: 3}"),
            "signals.yaml:4: bits: x is 3, which is not a single bit",
        ),
    ],
)
def test_invalid_catalogue_entry_is_reported_with_its_line(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    _, problems = read(tmp_path, GOOD.replace(*change))
    assert problems
    assert problems[0].startswith(problem)


def test_two_signals_of_one_name_or_alias(tmp_path: Path) -> None:
    _, problems = read(tmp_path, GOOD + GOOD)
    assert problems[0] == "signals.yaml:7: the signal a_temp_c is listed twice"
    again = GOOD.replace("a_temp_c", "b_temp_c") + "  aliases: [a_temp_c]\n"
    _, problems = read(tmp_path, GOOD + again)
    assert problems == ["signals.yaml:13: a_temp_c is already a name of a_temp_c"]


def test_a_gpu_and_its_links_may_share_a_name(tmp_path: Path) -> None:
    link = GOOD.replace("a_temp_c", "nvlink_temp_c").replace("scope: gpu", "scope: link")
    _, problems = read(tmp_path, GOOD + "  aliases: [A]\n" + link + "  aliases: [A]\n")
    assert problems == []
