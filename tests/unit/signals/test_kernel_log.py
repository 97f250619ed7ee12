"""Kernel lines verbatim from the field and from the driver's format strings."""
# ruff: noqa: E501 - log lines stand here as they came

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from healer.model import ObservationKind
from healer.signals.kernel_log import ParsedLine, normal_pci, parse_batch, parse_line

X = "NVRM: Xid (PCI:0000:9b:00): "


def parsed(line: str) -> ParsedLine:
    found = parse_line(line)
    assert found is not None, line
    return found


@pytest.mark.parametrize(
    ("line", "code", "pci", "data"),
    [
        (
            "NVRM: Xid (PCI:0000:9b:00): 119, pid=1240590, name=gpud, Timeout after 6s of waiting for RPC response"
            " from GPU4 GSP! Expected function 76 (GSP_RM_CONTROL) (0x20803032 0x58c).",
            119,
            "0000:9b:00",
            {"pid": 1240590, "process": "gpud"},
        ),
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05): 94, pid=7194, Contained: CE User Channel (0x9). RST: No, D-RST: No",
            94,
            "0000:01:00",
            {"pid": 7194, "gpu_instance": 5, "rst": False, "d_rst": False},
        ),
        (
            "NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:02): 43, pid=7194, name=a, Ch 00000001",
            43,
            "0000:01:00",
            {"pid": 7194, "process": "a", "gpu_instance": 5, "compute_instance": 2},
        ),
        (
            "NVRM: Xid (PCI:0000:01:00): 95, pid=7062, Uncontained: LTC TAG (0x2, 0x1). RST: Yes, D-RST: No",
            95,
            "0000:01:00",
            {"pid": 7062, "rst": True, "d_rst": False},
        ),
        (
            "NVRM: Xid (PCI:0000:dc:00): 45, pid=1818990, name=python3, Ch 00000001 caused by previous Xid 149",
            45,
            "0000:dc:00",
            {"pid": 1818990, "process": "python3", "caused_by": 149},
        ),
        # Driver 580 on an H200, as bad programs made it write.
        (
            "NVRM: Xid (PCI:0000:00:06): 43, pid=961, name=bad, channel 0x0000000a",
            43,
            "0000:00:06",
            {"pid": 961, "process": "bad"},
        ),
        (
            "NVRM: Xid (PCI:0000:00:06): 13, Graphics Exception: ESR 0x508730=0x500000f 0x508734=0x0 0x508728=0x1f81fb60",
            13,
            "0000:00:06",
            {},
        ),
        ("NVRM: Xid (0000:03:00): 14, Channel 00000001", 14, "0000:03:00", {}),
        ("NVRM: Xid (0000:B3:00.0): 14, Channel 00000001", 14, "0000:b3:00", {}),
        ("NVRM: Xid (PCI:00000000:9B:00.0): 79", 79, "0000:9b:00", {}),
        (
            "NVRM: Xid (PCI:0008:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
            154,
            "0008:01:00",
            {"recovery_action": 1, "recovery_words": "GPU Reset Required"},
        ),
        (
            "NVRM: Xid (PCI:0003:00:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal error detected on"
            " link 14(0x0, 0x0, 0x10000, 0x0, 0x0, 0x0, 0x0)",
            74,
            "0003:00:00",
            {"registers": [0, 0, 0x10000, 0, 0, 0, 0]},
        ),
        (
            "NVRM: Xid (PCI:0000:b5:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on"
            " (GPC 1, TPC 3, SM 0): Out Of Range Address",
            13,
            "0000:b5:00",
            {"gpc": 1, "tpc": 3, "sm": 0},
        ),
        (
            "NVRM: Xid (PCI:0000:10:1c): 63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to"
            " activate.",
            63,
            "0000:10:1c",
            {"pid": 1896},
        ),
        (
            X + "31, pid=4242, name=nvc:[driver], Ch 00000008",
            31,
            "0000:9b:00",
            {"pid": 4242, "process": "nvc:[driver]"},
        ),
        (X + "9999, brand new", 9999, "0000:9b:00", {}),
        ("NVRM: Xid (PCI:9b:00.0): 79, GPU has fallen off the bus.", 79, "0000:9b:00", {}),
        ("NVRM: Xid (9B:00): 79, GPU has fallen off the bus.", 79, "0000:9b:00", {}),
        (
            "NVRM: Xid (PCI:9b:00 GPU-I:03): 31, pid=<unknown>, name=<unknown>, Ch 1",
            31,
            "0000:9b:00",
            {"gpu_instance": 3},
        ),
        ("NVRM: Xid (PCI:0000:9b:00):79, GPU has fallen off the bus.", 79, "0000:9b:00", {}),
        (
            X + "154, GPU recovery action changed to (Node Reboot Required)",
            154,
            "0000:9b:00",
            {"recovery_words": "Node Reboot Required"},
        ),
        (
            X + "154, pid=1, name=a, (Node Reboot Required)",
            154,
            "0000:9b:00",
            {"pid": 1, "process": "a", "recovery_words": "Node Reboot Required"},
        ),
        (X + "154, Drain P2P.", 154, "0000:9b:00", {"recovery_words": "Drain P2P"}),
        (
            X
            + "154, severity=Fatal, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
            154,
            "0000:9b:00",
            {"recovery_action": 2, "recovery_words": "Node Reboot Required"},
        ),
    ],
)
def test_xid(line: str, code: int, pci: str, data: dict[str, Any]) -> None:
    found = parsed(line)
    assert (found.kind, found.code, found.pci, found.data) == (ObservationKind.xid, code, pci, data)


def test_text_is_what_follows_the_process() -> None:
    assert parsed(X + "43, pid=7, name=a b, Ch 00000001").text == "Ch 00000001"
    assert parsed(X + "79").text == ""


@pytest.mark.parametrize(
    "line",
    [
        X + "94, pid=7, name=RST: Yes, Contained: CE. RST: No, D-RST: No",
        X + "94, pid=7, name=x, RST: Yes, b, Contained: CE. RST: No, D-RST: No",
    ],
)
def test_a_process_name_cannot_speak_for_the_driver(line: str) -> None:
    assert parsed(line).data["rst"] is False


def test_nvlink5() -> None:
    found = parsed(
        "NVRM: Xid (PCI:0008:01:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 14 (0x0215c5c6 0x00000000 0x00000000"
        " 0x00000000 0x00000000 0x00000000)"
    )
    assert (found.code, found.link) == (149, 14)
    assert found.data["unit"] == "NETIR_LINK_EVT"
    assert found.data["fatal_word"] == "Fatal"
    assert found.data["cross_contained"] is False
    assert found.data["words"] == [0x0215C5C6, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("process", ["", "pid=12, name=python3, ", "pid='<unknown>', name=<unknown>, "])
@pytest.mark.parametrize("words", [4, 5, 6, 7])
def test_nvlink5_with_and_without_process(process: str, words: int) -> None:
    rest = " ".join(["0x04082907", "0x00000008", *["0x00000000"] * (words - 2)])
    found = parsed(
        f"NVRM: Xid (PCI:0000:3f:00): 145, {process}RLW_SRC_TRACK Nonfatal XC1 i0 Link -1 ({rest})"
    )
    assert found.link is None
    assert found.data["unit"] == "RLW_SRC_TRACK"
    assert found.data["cross_contained"] is True
    assert found.data["words"][:2] == [0x04082907, 8]
    assert len(found.data["words"]) == words


@pytest.mark.parametrize(
    ("line", "code", "switch", "pci", "link", "data"),
    [
        (
            "[6781753.400584] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
            20034, "nvswitch1", "0000:06:00", 48, {"fatal_word": "Fatal"},
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20001, Non-fatal, Link 07 TX Replay Error (First)",
            20001, "nvswitch0", "0000:06:00", 7, {"fatal_word": "Non-fatal"},
        ),
        (
            "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 11012, Correctable, Link 32 ECC limit",
            11012, "nvswitch0", "0000:06:00", 32, {"fatal_word": "Correctable"},
        ),
        ("nvidia-nvswitch0: SXid (PCI:0004:00:00.0): 26006, SOE HALTED", 26006, "nvswitch0", "0004:00:00", None, {}),
        (
            "nvidia-nvswitch3: SXid (PCI:0000:06:00.0): 10001, Fatal, PRI error, instance=2, chiplet=4",
            10001, "nvswitch3", "0000:06:00", None, {"fatal_word": "Fatal"},
        ),
        (
            "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Severity 1 Engine instance 60 Sub-engine instance 00",
            20034, "nvswitch2", "0000:07:00", None, {"follow_up": True},
        ),
        (
            "nvidia-nvswitch2: SXid (PCI:0000:07:00.0): 20034, Data {0x50610002, 0x10100030, 0x00000000}",
            20034, "nvswitch2", "0000:07:00", None, {"follow_up": True},
        ),
    ],
)  # fmt: skip
def test_sxid(line: str, code: int, switch: str, pci: str, link: int | None, data: dict[str, Any]) -> None:
    found = parsed(line)
    assert (found.kind, found.code, found.switch, found.pci) == (ObservationKind.sxid, code, switch, pci)
    assert (found.link, found.data) == (link, data)


def test_lost_in_one_line() -> None:
    found = parsed("NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.")
    assert (found.kind, found.pci, found.follow_up) == (ObservationKind.gpu_lost, "0000:18:00", False)


LOST = [
    "NVRM: The NVIDIA GPU 0000:18:00.0",
    "NVRM: (PCI ID: 10de:26b5) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
]
PROBE = [
    "NVRM: The NVIDIA GPU 0000:18:00.0 (PCI ID: 10de:2330)",
    "NVRM: installed in this system is not supported by the",
    "NVRM: NVIDIA 580.65.06 driver release.",
]


@pytest.mark.parametrize("lines", [LOST, PROBE])
def test_lost_in_three_lines_is_one_event_with_its_address(lines: list[str]) -> None:
    events = [one for one in parse_batch(lines) if one and not one.follow_up]
    assert [(one.kind, one.pci) for one in events] == [(ObservationKind.gpu_lost, "0000:18:00")]
    assert all(one is not None for one in parse_batch(lines))


def test_two_gpus_lost_in_a_row_keep_their_addresses() -> None:
    other = [line.replace("0000:18", "0000:2a") for line in LOST]
    events = [one for one in parse_batch([*LOST, *other]) if one and not one.follow_up]
    assert [one.pci for one in events] == ["0000:18:00", "0000:2a:00"]
    assert events[0].content != events[1].content


def test_lines_between_the_three_do_not_matter() -> None:
    events = [one for one in parse_batch([LOST[0], "usb 1-1: x", *LOST[1:]]) if one and not one.follow_up]
    assert [one.pci for one in events] == ["0000:18:00"]


def test_the_last_line_alone_is_an_event_without_address() -> None:
    found = parsed(LOST[2])
    assert (found.kind, found.pci, found.follow_up) == (ObservationKind.gpu_lost, None, False)


FELL = "NVRM: fallen off the bus and is not responding to commands"
XID_79 = X + "79, pid=1, name=a, GPU has fallen off the bus."
SEGFAULT = "segfault at 0 ip 0000561a39cfd132 sp 00007ffc8e5adf70 error 6"


@pytest.mark.parametrize(
    "said",
    [
        FELL,
        FELL + ".",
        XID_79,
        LOST[0],
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
        PROBE[1],
        "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 48 LTSSM Fault Up",
    ],
)
@pytest.mark.parametrize("form", [
    # As the kernel printed it for a program of any user: its name cut to 15 characters, and its file's name whole.
    "{comm}[13080]: " + SEGFAULT + " in {name}[1132,5607b4bcd000+1000] likely on CPU 1 (core 1, socket 0)",
    "{comm}[13080]: " + SEGFAULT + " in {name}[5607b4bcd000+1000]",
    " in {name}[5607b4bcd000+1000]",
    "traps: {comm}[77] trap int3 ip:401000 sp:7ffd0 error:0 in {name}[401000+1000]",
    "{comm} invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0",
    "{comm}: page allocation failure: order:0, mode:0xcc0(GFP_KERNEL), nodemask={name}",
    "Out of memory: Killed process 77 ({name}) total-vm:1kB, anon-rss:1kB",
    "process '{name}' launched '/tmp/{name}' with NULL argv: empty string added",
    'audit: type=1701 audit(1.2:3): auid=1 uid=1 ses=1 pid=77 comm="{comm}" exe="{name}" sig=11 res=1',
    "overlayfs: failed to resolve '{name}': -2",
    "EXT4-fs error (device sda1): htree_dirblock_to_tree:1: inode #2: comm {comm}: bad entry {name}",
    "{comm}[1]: segfault in a\\x0a{name}",
    "1,2,3,[9]: segfault at 0 ip 0 sp 0 error 6 in ;{name}",
])  # fmt: skip
def test_a_users_names_within_a_line_of_the_kernels_are_no_fault(form: str, said: str) -> None:
    line = form.format(comm=said[:15], name=said)
    for one in parse_batch([line, "[    3.400584] " + line, "4,7,3400584,-;" + line]):
        assert one is None or one.follow_up, line


def test_the_rest_of_a_loss_as_dmesg_indents_it_counts_behind_its_first_line_alone() -> None:
    indented = [f"[    5.060453] {LOST[0]}", *("               " + line for line in LOST[1:])]
    events = [one for one in parse_batch(indented) if one and not one.follow_up]
    assert [(one.kind, one.pci) for one in events] == [(ObservationKind.gpu_lost, "0000:18:00")]
    assert [one for one in parse_batch(indented[1:]) if one and not one.follow_up] == []
    assert parse_line("               " + XID_79) is None


@pytest.mark.parametrize("lines", [LOST, PROBE])
def test_a_loss_in_one_record_is_one_event(lines: list[str]) -> None:
    """/dev/kmsg shows a line's end within a record as \\x0a."""
    found = parsed("\\x0a".join(lines))
    assert (found.kind, found.pci, found.follow_up) == (ObservationKind.gpu_lost, "0000:18:00", False)


def test_identity() -> None:
    found = parsed("NVRM: GPU at PCI:0000:2b:00: GPU-0b11d014-1685-04bd-26ed-5fc0bc1c44ae")
    assert (found.kind, found.pci) == (ObservationKind.gpu_identity, "0000:2b:00")
    assert found.data["uuid"] == "GPU-0b11d014-1685-04bd-26ed-5fc0bc1c44ae"


@pytest.mark.parametrize(
    "line",
    [
        "",
        "NVRM: ",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:9b:00)",
        "NVRM: Xid (PCI:0000:9b:00): ",
        "NVRM: Xid (PCI:0000:9b:00): x79, a",
        "NVRM: Xid (PCI:0000:9b:00): 790000, a",
        "NVRM: Xid (PCI:zzzz:9b:00): 79, a",
        "NVRM: Xid (PCI:0000:9b): 79, a",
        "NVRM: Xid PCI:0000:9b:00: 79, a",
        "nvrm: xid (PCI:0000:9b:00): 79, a",
        "xid 79 gpu has fallen off the bus",
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  580.65.06",
        "NVRM: GPU 0000:18:00.0: RmInitAdapter failed! (0x62:0x40:2393)",
        "NVRM: this feature is not supported by the GPU",
        "nvidia-nvswitch0: open (major=510)",
        "nvidia-nvswitch0: SXid (PCI:0000:06:00.0): 200, Fatal, Link 1",
        "nvidia-nvswitch: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 1",
        "NVRM: Xid (PCI:0000:9b:00): 79, a\x00b",
        "NVRM: Xid (PCI:0000:9b:00): 79, \ud800",
    ],
)
def test_not_a_driver_line(line: str) -> None:
    assert parse_line(line) is None


def test_rsyslogs_blank_after_the_tag_is_no_indent() -> None:
    line = "NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus."
    assert parse_line(f" {line}") == parse_line(line) is not None
    assert parse_line(f"  {line}") is None


def test_a_record_with_line_ends_is_its_first_line() -> None:
    """Whatever a process wrote behind it, such as a file name that looks like a line of the driver."""
    for end in ("\n", "\r\n", "\\x0a"):
        record = (
            f"NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.{end}NVRM: Xid (PCI:0000:9b:00): 48"
        )
        line = parse_line(record)
        assert line is not None
        assert (line.code, line.text) == (
            79,
            "GPU has fallen off the bus.\\x0aNVRM: Xid (PCI:0000:9b:00): 48",
        )
    assert parse_line("systemd: a\nNVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.") is None


@given(st.text())
def test_garbage_is_none(text: str) -> None:
    assert parse_line(text) is None


_PIECES = st.sampled_from(
    ["NVRM: Xid (PCI:", "0000:9b:00", "): ", "79", "154", "149", "74", ", ", "pid=", "name=", "Link ", "(0x", ")",
     "nvidia-nvswitch0: SXid (PCI:", "[1.2] ", "<4>", "kernel: ", " to 0x", "RST: Yes", "GPU-I:", "Nov 20 03:00:00 "]
)  # fmt: skip


@given(st.lists(st.one_of(_PIECES, st.text(max_size=5)), max_size=20).map("".join))
def test_never_raises_and_a_found_line_is_whole(line: str) -> None:
    found = parse_line(line)
    assert found is None or found.content in line


@pytest.mark.parametrize(
    ("address", "normal"),
    [
        ("00000000:9B:00.0", "0000:9b:00"),
        ("0000:9b:00", "0000:9b:00"),
        ("PCI:0008:01:00", "0008:01:00"),
        ("00010000:01:00.0", "10000:01:00"),
        ("9b:00", None),
        ("", None),
    ],
)
def test_normal_pci(address: str, normal: str | None) -> None:
    assert normal_pci(address) == normal
