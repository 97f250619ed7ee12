"""Every published shape of a line is read, whatever precedes it; and no line makes a shape slow."""
# ruff: noqa: E501 - log lines stand here as they came

import time
from pathlib import Path
from typing import Any

import pytest

from healer.model import Cause, FaultClass, KernelLine, LineBook, Remedy
from healer.model.kernel_lines import begins_with_text
from healer.rulebook.line_rules import read_lines
from healer.rulebook.source import Problem, Source
from healer.signals.kernel_log import ParsedLine, parse_line

RULES = Path(__file__).parents[3] / "rules"


@pytest.fixture(scope="module")
def book() -> LineBook:
    problems: list[Problem] = []
    found = read_lines(Source(RULES / "kernel_lines.yaml", "kernel_lines.yaml", problems))
    assert not problems
    return found


def seen(line: str, book: LineBook) -> ParsedLine:
    found = parse_line(line, book)
    assert found is not None, line
    return found


GPU = "NVRM: Xid (PCI:0000:3f:00): "
WORDS = "0x0215c5c6 0x00000000 0x00000000 0x00000000"


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("NVRM: Xid (PCI:0000:41:00 GPU-I:03): 94, pid=81, Contained: CE User Channel (0x9). RST: No, D-RST: No", {"gpu_instance": 3, "rst": False}),
        ("NVRM: Xid (PCI:0000:41:00 GPU-I:03 GPU-CI:00): 13, pid=81, name=a, Graphics Exception", {"gpu_instance": 3, "compute_instance": 0}),
        ("NVRM: Xid (0000:41:00.0): 13, Graphics Exception", {}),
        ("NVRM: Xid (PCI:00000000:9B:00.0): 31, pid=5, name=nvc:[driver], Ch 00000008", {"process": "nvc:[driver]"}),
        (GPU + "31, pid='<unknown>', name=<unknown>, Ch 00000008", {}),
        (GPU + "45, pid=7, name=ray::Worker, Ch 0000001f caused by previous Xid 145", {"caused_by": 145, "process": "ray::Worker"}),
        (GPU + "95, pid=7, Uncontained: FBHUB. RST: Yes, D-RST: No", {"rst": True}),
        (GPU + "94, pid=7, name=a, Contained: SM (0x1). RST: No, D-RST: Yes", {"d_rst": True}),
        (GPU + "154, GPU recovery action changed from 0x0 (None) to 0x4 (Drain and Reset)", {"recovery_action": 4, "recovery_words": "Drain and Reset"}),
        (GPU + "154, GPU recovery action changed from 0x4 (Drain and Reset) to 0x1 (GPU Reset Required)", {"recovery_action": 1}),
        (GPU + "154, GPU recovery action changed from (None) to (Node Reboot Required)", {"recovery_words": "Node Reboot Required"}),
        (GPU + "74, pid=9, name=a, NVLink: fatal error detected on link 11(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)", {"registers": [0x10000, 0, 0, 0, 0, 0, 0]}),
        (GPU + f"149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 ({WORDS})", {"unit": "NETIR_LINK_EVT", "fatal_word": "Fatal"}),
        (GPU + f"149, NETIR_LINK_EVT/NETIR_LINK_DOWN Fatal XC0 i0 Link 09 ({WORDS} 0x0 0x0 0x0)", {"unit": "NETIR_LINK_EVT/NETIR_LINK_DOWN"}),
        (GPU + f"149, NETIR Fatal XC0 i0 Link -1 ({WORDS} 0x0 0x0)", {"unit": "NETIR"}),
        (GPU + f"145, pid=9, name=cache_mgr, RLW_SRC_TRACK Nonfatal XC1 i0 Link 03 ({WORDS} 0x0)", {"unit": "RLW_SRC_TRACK", "process": "cache_mgr", "cross_contained": True}),
        (GPU + "149, NETIR Fatal XC0 i0 Link -1 (0x00000006", {"unit": "NETIR", "words": [6]}),
    ],
)  # fmt: skip
def test_xids(book: LineBook, line: str, expected: dict[str, Any]) -> None:
    found = seen(line, book)
    assert expected.items() <= found.data.items()
    assert found.pci in {"0000:41:00", "0000:9b:00", "0000:3f:00"}


@pytest.mark.parametrize(
    ("text", "word", "link", "follows"),
    [
        ("20034, Fatal, Link 30 LTSSM Fault Up", "Fatal", 30, False),
        ("12028, Non-fatal, Link 32 egress non-posted PRIV error (First)", "Non-fatal", 32, False),
        ("11012, Correctable, Link 04 ingress header ECC limit", "Correctable", 4, False),
        ("22013, Non-fatal", "Non-fatal", None, False),
        ("26006, SOE HALTED", None, None, False),
        ("10004, thermal event", None, None, False),
        ("10003", None, None, False),
        ("20034, Severity 1 Engine instance 60 Sub-engine instance 00", None, None, True),
        ("20034, Data {0x00000000, 0x00000001}", None, None, True),
    ],
)
def test_sxids(book: LineBook, text: str, word: str | None, link: int | None, follows: bool) -> None:
    found = seen("nvidia-nvswitch2: SXid (PCI:0000:07:00.0): " + text, book)
    assert (found.data.get("fatal_word"), found.link, found.follow_up) == (word, link, follows)
    assert (found.code, found.switch, found.pci) == (int(text[:5]), "nvswitch2", "0000:07:00")


BEFORE = (
    "",
    "[ 6781.400584] ",
    "<4>[ 6781.400584] ",
    "[Fri Nov 20 03:00:00 2026] ",
    "Nov 20 03:00:00 gpu0001 kernel: ",
    "Nov  2 03:00:00 gpu0001 kernel: [ 6781.400584] ",
    "2026-11-20T03:00:00.123456+01:00 gpu0001 kernel: ",
    "4,1234,6781400584,-;",
    "kernel: ",
    "\x1b[32m[ 6781.400584] \x1b[0m\x1b[33m",
)
SAID = (
    GPU + "79, pid=1, name=a, GPU has fallen off the bus.",
    "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
    "NVRM: GPU 18:00.0: GPU has fallen off the bus.",
    "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
    "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x23:0x65:1438)",
    "mlx5_core 0000:5c:00.0: wait_func:1195:(pid 3322): QUERY_PAGES(0x107) timeout. Will cause a leak of a command resource",
    "mlx5_core 0000:5c:00.0: poll_health:819:(pid 0): device's health compromised - reached miss count",
    "EXT4-fs (md0): Remounting filesystem read-only",
    "Kernel panic - not syncing: Fatal exception in interrupt",
    "INFO: task jfsmount:136986 blocked for more than 120 seconds.",
    "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [python3:2254956]",
    "Memory cgroup out of memory: Killed process 99 (pt_main_thread) total-vm:1kB",
    "pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received: 0000:9b:00.0",
    "nfs: server 10.1.2.3 not responding, still trying",
    "Lustre: w-OST0003-osc-ffff9e8c: Connection to w-OST0003 (at 10.0.0.7@o2ib) was lost; in progress operations using this service will wait for recovery to complete",
)


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("after", ["", "\r\n", "  "])
def test_envelope_around_a_line(book: LineBook, before: str, after: str) -> None:
    for said in SAID:
        found = seen(before + said + after, book)
        assert found.content == said
        assert found.kind == seen(said, book).kind


#: As the memory controllers' drivers write them, with all that locates the cell.
MEMORY = (
    "memory read error on CPU_SrcID#1_MC#1_Chan#1_DIMM#0 (channel:1 slot:0 page:0x6e2419 offset:0x1c0 grain:32 syndrome:0x0 -  ",
    "err_code:0x0101:0x0091 socket:1 imc:1 rank:0 bg:1 ba:3 row:0x16a3d col:0x3f8)",
    "err_code:0x00a0:0x0091  SystemAddress:0x6e24191c0 ProcessorSocketId:0x1 MemoryControllerId:0x1 ChannelAddress:0x1b890640 "
    "ChannelId:0x1 RankAddress:0xdc48320 PhysicalRankId:0x1 DimmSlotId:0x0 Row:0x16a3d Column:0x3f8 Bank:0x3 BankGroup:0x1 "
    "ChipSelect:0x1 ChipId:0x0 retry_rd_err_log[0001a20d 00000000 00000001 0049d80d 00016a3d] correrrcnt[0001 0000 0000 0000 0000 0000 0000 0000])",
)  # fmt: skip


@pytest.mark.parametrize("place", MEMORY[1:], ids=["skylake", "sapphire-rapids"])
@pytest.mark.parametrize(("word", "name"), [("UE", "edac-uncorrected"), ("CE", "edac-corrected")])
def test_memory_error_with_its_whole_place(book: LineBook, word: str, name: str, place: str) -> None:
    assert seen(f"EDAC MC3: 1 {word} {MEMORY[0]}{place}", book).data["name"] == name


@pytest.mark.parametrize("word", ["Corrected", "Correctable"])
def test_corrected_pcie_error_in_the_words_of_each_kernel(book: LineBook, word: str) -> None:
    said = f"nvidia 0000:9b:00.0: PCIe Bus Error: severity={word}, type=Data Link Layer, (Transmitter ID)"
    found = seen(said, book)
    assert (found.data["name"], found.pci) == ("aer-corrected", "0000:9b:00")


@pytest.mark.parametrize("driver", ["nvidia", "mlx5_core", "bnxt_en", "ice", "i40e", "idpf", "ionic", "efa"])
@pytest.mark.parametrize(
    ("severity", "name"),
    [
        ("Correctable", "aer-corrected"),
        ("Uncorrectable (Non-Fatal)", "aer-nonfatal"),
        ("Uncorrectable (Fatal)", "aer-fatal-device"),
    ],
)
def test_pcie_error_of_each_card_of_the_fabric(book: LineBook, driver: str, severity: str, name: str) -> None:
    said = f"{driver} 0000:41:00.1: PCIe Bus Error: severity={severity}, type=Data Link Layer, (Receiver ID)"
    found = seen(said, book)
    assert (found.data["name"], found.pci) == (name, "0000:41:00")


@pytest.mark.parametrize(
    ("severity", "name"), [("(Fatal)", "aer-fatal-root"), ("(Non-Fatal)", "aer-nonfatal-root")]
)
def test_pcie_error_without_details_in_the_kernels_own_punctuation(
    book: LineBook, severity: str, name: str
) -> None:
    said = f"pcieport 0000:00:01.0: AER: Uncorrectable {severity} error message received from 0000:9b:00.0"
    for after in ("", " (no details found", " (no details found)"):
        found = seen(said + after, book)
        assert (found.data["name"], found.pci) == (name, "0000:9b:00")


def test_others_words_are_none_of_the_kernels(book: LineBook) -> None:
    for said in SAID:
        for before in ("Nov 20 03:00:00 gpu0001 alice: ", "<13>Nov 20 03:00:00 gpu0001 kernel: ", "I saw: "):
            assert parse_line(before + said, book) is None, before + said


def test_no_line_makes_a_shape_slow(book: LineBook) -> None:
    """Each shape's own letters, then what its repeats hold, and an end that fits nothing."""
    began = time.process_time()
    for said in SAID:
        for filler in ("0", ":", " ", "a", "0000:", "[a:1] ", "(pid 1): ", said):
            for length in (1000, 4000):
                parse_line(said[:24] + filler * (length // len(filler)) + said[24:] + "\u2603", book)
    # Far above what it takes, and far below what one shape that backtracks needs.
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("mlx5_core (?:a|\\w) failed|\\w+ lost", "begin with fixed text"),
        ("(?:a )?\\w+ failed", "begin with fixed text"),
        ("mlx5_core (?P<pid>a)(?P=pid)", "flags"),
        (".*unrecoverable error", "begin with fixed text"),
        ("mlx5_core (unclosed", "not a valid regular expression"),
        ("mlx5_core a{2000}", "not a valid regular expression: invalid repetition size"),
        ("mlx5_core (?P<colour>\\w)", "colour"),
        ("(?i)mlx5_core failed", "flags"),
    ],
)
def test_a_shape_that_cannot_be_used_is_named_by_its_line(tmp_path: Path, pattern: str, why: str) -> None:
    (tmp_path / "kernel_lines.yaml").write_text(
        f"- name: one\n  pattern: '{pattern}'\n  text: t\n  fault: some-fault\n  fault_class: degraded\n"
        "  component: nic\n  remedy: none\n  cause: unclear\n  source: s\n"
    )
    problems: list[Problem] = []
    found = read_lines(Source(tmp_path / "kernel_lines.yaml", "kernel_lines.yaml", problems))
    assert [(one.file, one.line) for one in problems] == [("kernel_lines.yaml", 2)]
    assert why in str(problems[0])
    assert not found.lines


@pytest.mark.parametrize("pattern", ["(?:a )?b", "a{0,3}b", "(?:(?:a|b).*)?c", r"\[x\]", "(?P<pid>a)|b"])
def test_a_pattern_that_begins_with_text_in_each_of_its_ways(pattern: str) -> None:
    assert begins_with_text(pattern)


def test_a_shape_that_backtracking_would_never_finish_is_matched(tmp_path: Path) -> None:
    one = KernelLine(
        name="one", pattern="mlx5_core (a+)+ failed", text="t", fault="f", fault_class=FaultClass.degraded,
        component="nic", remedy=Remedy.none, cause=Cause.unclear, source="s",
    )  # fmt: skip
    book = LineBook((one,))
    assert parse_line("mlx5_core " + "a" * 900, book) is None
    found = parse_line("mlx5_core " + "a" * 900 + " failed", book)
    assert found is not None and found.data["name"] == "one"


def test_half_a_surrogate_pair_is_a_letter_like_others(book: LineBook) -> None:
    assert seen(SAID[7] + "\r\n", book).content == SAID[7]
    assert parse_line(SAID[7] + "\ud800", book) is None


def test_application_line_may_begin_with_the_name_of_a_process(tmp_path: Path) -> None:
    (tmp_path / "kernel_lines.yaml").write_text(
        "- name: one\n  pattern: '[^ ]{1,16} gave up'\n  text: t\n  fault: some-fault\n"
        "  fault_class: application\n  component: app\n  remedy: none\n  cause: application\n  source: s\n"
    )
    problems: list[Problem] = []
    found = read_lines(Source(tmp_path / "kernel_lines.yaml", "kernel_lines.yaml", problems))
    assert not problems
    seen = parse_line("[    3.400584] python3 gave up", found)
    assert seen is not None
    assert seen.data["name"] == "one"
    assert parse_line("Nov 20 03:00:00 gpu0001 alice: python3 gave up", found) is None
