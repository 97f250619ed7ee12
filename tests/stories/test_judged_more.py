"""More small recordings, each with what healer once said wrongly of it, and what is right."""

from typing import Any

import pytest

from healer.model.slurm_spelling import signed_reason, state_words
from healer.signals.kernel_log import parse_line
from tests.stories.test_judged import ASKS, BOTH, kernel_story, xid
from tests.stories.test_replay import clock, job, jobs, kernel, nodes, played, row
from tests.support.loop import CLUSTER, LOST, later, name

Row = dict[str, Any]


def only(document: dict[str, Any]) -> dict[str, Any]:
    (incident,) = document["incidents"]
    return incident


# --- forms of lines -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "prefix",
    [
        "[Nov20 03:00] ",  # dmesg -H
        "[  +0.000012] ",
        "kern  :err   : [Nov20 03:00] ",
        "[ 1234.567890 <    0.000000>] ",  # dmesg -d
        "[Fri Nov 20 03:00:05 2026 <    0.000012>] ",
        "[Fri Nov 20 03:00:05 2026] [T1234] ",  # with the caller
        "2026-11-20T03:00:05,123456+00:00 [ C12] ",
        "[ 1234.567890 <    0.000000 >] gpu0001 kernel: ",  # journalctl -o short-delta
        "<3>1 2026-11-20T03:00:05.003+00:00 gpu0001 kernel - - -  [ 1234.5678] ",  # rsyslog keeps a blank
        "Nov 20 03:00:05 gpu0001 kern.err kernel: [ 1234.567890] ",  # BusyBox
        "<3>Nov 20 03:00:05 kernel: ",
    ],
)
def test_a_kernel_line_behind_each_prefix(prefix: str) -> None:
    parsed = parse_line(prefix + LOST)
    assert parsed is not None and parsed.code == 79


@pytest.mark.parametrize(
    "prefix",
    [
        "Nov 20 03:00:05 gpu0001 user.err kernel: ",
        "[Nov20 03:00] python[7]: ",
        "[ +1.5 <x>] ",
        "<11>[ +0.1] ",
    ],
)
def test_malformed_kernel_prefix_is_not_accepted(prefix: str) -> None:
    assert parse_line(prefix + LOST) is None


@pytest.mark.parametrize(("action", "remedy"), [("0x1", "drain_then_reset"), ("0x2", "reboot_node")])
def test_the_driver_asks_by_its_number_alone(action: str, remedy: str) -> None:
    document = played(*kernel_story(xid(f"154, GPU recovery action changed from 0x0 to {action}")))
    assert (only(document)["rule"], only(document)["remedy"][0]) == ("driver-asks", remedy)


def test_unknown_action_needs_approval() -> None:
    document = played(*kernel_story(xid(ASKS.format("0x0 (None)", "0x7 (Something new)"))))
    assert (only(document)["rule"], document["actions"]) == ("xid-unknown", [])


def test_a_link_error_of_no_table_gets_the_remedy_of_its_word() -> None:
    words = "(0x3ff003ff 0x00000001 0x0 0x0 0x0 0x0)"
    fatal = only(played(*kernel_story(xid(f"144, SAW_MVB Fatal XC1 i2 Link -1 {words}"))))
    mild = only(played(*kernel_story(xid(f"150, MSE Nonfatal XC1 i2 Link -1 {words}"))))
    assert (fatal["severity"], fatal["remedy"]) == ("P1", ["drain_then_reset", "ticket"])
    assert (mild["severity"], mild["remedy"]) == ("P2", ["ticket"])


def test_errors_that_the_switch_corrected_open_no_incident() -> None:
    line = (
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 19084, Correctable, Link 20 AN1 Heartbeat Timeout Error"
    )
    assert played(*kernel_story(line))["incidents"] == []


# --- Slurm's words as its text shows them -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["DOWN*"], ("DOWN", "NOT_RESPONDING")),
        (["IDLE*+DRAIN"], ("IDLE", "NOT_RESPONDING", "DRAIN")),
        (["idle", "maint"], ("IDLE", "MAINTENANCE")),
        (["mix-"], ("MIXED", "PLANNED")),
        (["DRAINING@"], ("DRAIN", "REBOOT_REQUESTED")),
        (["IDLE", "SOMETHING_NEW"], ("IDLE", "SOMETHING_NEW")),
        (["*"], ("UNKNOWN", "NOT_RESPONDING")),
        ([], ("UNKNOWN",)),
    ],
)
def test_states_of_nodes(words: list[str], expected: tuple[str, ...]) -> None:
    parts = [part for word in words for part in word.split("+")]
    assert state_words(parts) == expected


def test_user_and_time_are_read_from_a_signed_reason() -> None:
    text, user, at = signed_reason("Kill task failed [root@1763607600]")
    assert (text, user, at and at.isoformat()) == ("Kill task failed", "root", "2025-11-20T03:00:00+00:00")
    assert signed_reason("Not responding [slurm@2026-11-20T03:01:00]") == ("Not responding", "slurm", None)
    assert signed_reason("disk [bay 3]") == ("disk [bay 3]", "", None)


def test_a_node_that_slurm_shows_with_a_star_does_not_answer() -> None:
    away = {"state": ["DOWN*"], "reason": "Not responding [slurm@2026-11-20T03:01:00]"}
    document = played(nodes(), BOTH, nodes(60, gpu0001=away), clock(300))
    assert (only(document)["rule"], only(document)["root"]["node"]) == ("node-offline", name(1))


def test_slurms_own_drain_is_known_with_its_signature() -> None:
    out = {"state": ["IDLE", "DRAIN"], "reason": "Kill task failed [root@2026-11-20T03:01:00]"}
    assert only(played(nodes(), nodes(60, gpu0001=out), clock(300)))["rule"] == "slurm-drain"


def test_planned_work_by_its_short_name() -> None:
    document = played(nodes(gpu0001={"state": ["MAINT"]}), kernel(10, 1, LOST), clock(300))
    assert (only(document)["severity"], only(document)["cause"]) == ("P3", "maintenance")
    assert document["actions"] == [] and document["held"][0]["guard"] == "maintenance"


# --- what belongs together ----------------------------------------------------------------------------------


def test_a_root_that_arrives_late_explains_what_happened_beside_it() -> None:
    """By its sender's clock it was before the errors; it arrives 50 s after them."""
    errors = [kernel(10 + at, at, xid("31, pid=7, name=python, MMU Fault")) for at in (1, 2)]
    body = {"cluster": CLUSTER, "node": name(2), "boot_id": "b1"}
    at = later(9).isoformat().replace("+00:00", "Z")
    late = row(60, "signals/kernel-log", body | {"entries": [{"line": LOST, "time": at}]})
    document = played(nodes(), BOTH, *errors, late, clock(200))
    assert (only(document)["rule"], only(document)["root"]["node"]) == ("gpu-lost", name(2))
    assert [one["rule"] for one in document["merged"]] == ["gpu-application"]


def test_an_error_long_before_another_fault_stays_the_applications() -> None:
    error = kernel(10, 1, xid("31, pid=7, name=python, MMU Fault"))
    document = played(nodes(), BOTH, error, kernel(90, 2, LOST), clock(200))
    assert [one["rule"] for one in document["incidents"]] == ["gpu-application", "gpu-lost"]


def test_a_wave_after_a_new_driver_names_the_driver_and_not_the_switch() -> None:
    """Ten of sixteen nodes under a switch got it, and those ten fail."""
    where = {name(at): {"switch": f"leaf{(at - 1) // 16}", "driver": "580.65"} for at in range(1, 41)}
    new = {node: fields | {"driver": "590.10"} for node, fields in list(where.items())[:10]}
    rows = [nodes(0, 40, **where), nodes(60, 40, **(where | new))]
    hangs = xid("119, pid=1, name=a, Timeout after 6s of waiting for RPC response from GPU4 GSP!")
    rows += [kernel(100 + 20 * at, at, hangs) for at in range(1, 11)]
    document = played(*rows, clock(600))
    (wave,) = [one for one in document["incidents"] if one["rule"] == "wave"]
    assert "590.10" in wave["verdict"]["sentence"] and wave["root"].get("switch") is None


def test_a_wave_under_one_switch_names_the_switch_where_no_version_changed() -> None:
    where = {name(at): {"switch": f"leaf{(at - 1) // 16}"} for at in range(1, 41)}
    lost = [kernel(10 + at / 10, at, LOST) for at in range(1, 11)]
    document = played(nodes(0, 40, **where), jobs(0, job()), *lost, clock(300))
    (wave,) = [one for one in document["incidents"] if one["rule"] == "wave"]
    assert wave["root"]["switch"] == "leaf0"


# --- one cause over several parts ---------------------------------------------------------------------------

BUSES = ("1b", "43", "52", "61", "9d", "c3", "d1", "df")


@pytest.mark.parametrize(
    ("rest", "words"),
    [
        ("79, GPU has fallen off the bus.", "8 GPUs of gpu0001 fell off the bus"),
        (
            "119, pid=1, name=a, Timeout after 6s of waiting for RPC response from GPU GSP!",
            "8 GPUs of gpu0001: GSP",
        ),
    ],
)
def test_the_same_of_all_gpus_of_a_node_is_the_nodes(rest: str, words: str) -> None:
    lines = [xid(rest, f"PCI:0000:{bus}:00".removeprefix("PCI:")) for bus in BUSES]
    incident = only(played(nodes(), BOTH, kernel(10, 1, *lines), clock(120)))
    assert incident["root"] == {"cluster": CLUSTER, "node": name(1)}
    assert {one["pci"] for one in incident["affected"]} == {f"0000:{bus}:00" for bus in BUSES}
    assert incident["verdict"]["sentence"].startswith(words)


def test_two_gpus_of_a_node_are_no_matter_of_its_board() -> None:
    lines = [xid("79, GPU has fallen off the bus.", f"0000:{bus}:00") for bus in BUSES[:2]]
    incident = only(played(nodes(), BOTH, kernel(10, 1, *lines), clock(120)))
    assert incident["root"]["pci"] == "0000:1b:00" and len(incident["affected"]) == 1


SAYS = "NVRM: fallen off the bus and is not responding to commands."


def test_a_loss_over_several_lines_that_came_apart() -> None:
    lines = [
        "NVRM: The NVIDIA GPU 0000:18:00.0",
        "NVRM: (PCI ID: 10de:26b5) installed in this system has",
        SAYS,
    ]
    rows = [kernel(10 + at, 1, line) for at, line in enumerate(lines)]
    incident = only(played(nodes(), BOTH, *rows, clock(120)))
    assert (incident["rule"], incident["root"]["pci"]) == ("gpu-lost", "0000:18:00")


def test_the_first_line_of_a_loss_speaks_of_no_later_one() -> None:
    rows = [kernel(10, 1, "NVRM: The NVIDIA GPU 0000:18:00.0"), kernel(60, 1, SAYS)]
    incident = only(played(nodes(), BOTH, *rows, clock(120)))
    assert "pci" not in incident["root"]
    assert incident["verdict"]["sentence"].startswith("A GPU of gpu0001 fell off the bus")


AWAY, BACK = "nfs: server filer1 not responding, still trying", "nfs: server filer1 OK"


def test_a_file_server_that_answers_all_its_clients_again_ends_its_incident() -> None:
    rows = [nodes(), kernel(10, 1, AWAY), kernel(11, 2, AWAY), kernel(40, 1, BACK), kernel(50, 2, BACK)]
    incident = only(played(*rows, clock(200)))
    assert incident["rule"] == "storage-away" and incident["closed"] == later(50).isoformat().replace(
        "+00:00", "Z"
    )


@pytest.mark.parametrize(
    "rows", [[kernel(40, 1, BACK)], [kernel(40, 1, BACK), kernel(41, 2, BACK, f"[ 99.5] {AWAY}")]]
)
def test_a_file_server_that_one_client_waits_for_is_still_away(rows: list[Row]) -> None:
    before = [nodes(), kernel(10, 1, AWAY), kernel(11, 2, AWAY)]
    assert only(played(*before, *rows, clock(200)))["closed"] is None


@pytest.mark.parametrize(
    "line",
    [
        xid("74, NVLink: fatal error detected on link 9999999999999999(0x0, 0x0, 0x1, 0x0, 0x0, 0x0, 0x0)"),
        "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 99999999999999999999 LTSSM Fault Up",
    ],
)
def test_a_link_that_no_part_has_is_none(line: str) -> None:
    parsed = parse_line(line)
    assert parsed is not None and parsed.link is None


# --- several causes on one node -----------------------------------------------------------------------------

READ_ONLY = "EXT4-fs (nvme0n1p2): Remounting filesystem read-only"
PENDING = xid("63, pid=1896, Row Remapper: New row marked for remapping, reset gpu to activate.")
CARD = "mlx5_core 0000:5e:00.0: poll_health:800: device's health compromised - reached miss count"


@pytest.mark.parametrize(
    ("first", "then", "rules"),
    [
        (PENDING, READ_ONLY, ["gpu-degraded", "host-unfit"]),
        (READ_ONLY, PENDING, ["host-unfit", "gpu-degraded"]),
        (LOST, READ_ONLY, ["gpu-lost", "host-unfit"]),
        (CARD, PENDING, ["nic-lost", "gpu-degraded"]),
        (PENDING, CARD, ["gpu-degraded", "nic-lost"]),
    ],
)
def test_a_gpu_a_card_and_a_disk_break_by_themselves(first: str, then: str, rules: list[str]) -> None:
    """Minutes apart: neither explains the other, and each has to be mended."""
    document = played(nodes(), BOTH, kernel(10, 1, first), kernel(310, 1, then), clock(600))
    assert [one["rule"] for one in document["incidents"]] == rules
    assert document["merged"] == []
    # What a reboot does not mend takes the node out once more.
    drains = 2 if (first, then) == (LOST, READ_ONLY) else 1
    assert [one["action"] for one in document["actions"]].count("drain") == drains


def test_a_card_and_a_gpu_that_go_at_once_have_one_cause() -> None:
    """What both hang on: a PCIe switch, the node's power."""
    document = played(nodes(), BOTH, kernel(10, 1, CARD), kernel(12, 1, LOST), clock(300))
    assert len(document["incidents"]) == 1


def test_a_panic_takes_all_of_its_node_in() -> None:
    panic = "Kernel panic - not syncing: Fatal exception"
    document = played(nodes(), BOTH, kernel(10, 1, PENDING), kernel(310, 1, panic), clock(600))
    assert [one["rule"] for one in document["incidents"]] == ["host-fatal"]


def test_job_with_an_unknown_restart_count_is_not_requeued_more_often() -> None:
    rows = [nodes(0, 60)]
    for at, first in ((0, 1), (4000, 4), (8000, 7)):
        where = [name(number) for number in range(first, first + 3)]
        rows += [jobs(at, job("4711", *where)), kernel(at + 10, first, LOST)]
    document = played(*rows, clock(9000))
    assert [one["action"] for one in document["actions"]].count("requeue") == 2
    assert [one["guard"] for one in document["held"]] == ["requeue_cap"]


# --- links -------------------------------------------------------------------------------------------------

BREAKS = xid("149, NETIR_LINK_EVT  Fatal   XC1 i0 Link 14 (0x0215c5c6 0x0 0x0 0x0 0x0 0x0)", "0008:01:00")
LOSES = xid(
    "145, RLW_SRC_TRACK Nonfatal XC1 i0 Link 10 (0x04082907 0x00000008 0x0 0x0 0x0 0x0)", "0008:01:00"
)
OVER_LINKS = jobs(0, job("4711", *(name(number) for number in range(1, 9))))


def test_a_loss_read_again_half_an_hour_later_by_its_stamp_alone_is_of_its_own_time() -> None:
    """The sender gives no time, and the job is over: the kernel's stamp and Slurm's BootTime show when."""
    boot = {"gpu_model": "gb200", "gpus": 4, "boot_at": later(-400_000).isoformat()}
    shown = nodes(**{name(number): boot for number in range(1, 21)})
    over = jobs(600, job("4711", *(name(number) for number in range(1, 9)), state="COMPLETED"))
    late = kernel(1900, 5, f"[400012.500000] {LOSES}")
    document = played(shown, OVER_LINKS, kernel(10, 1, f"[400010.000000] {BREAKS}"), over, late, clock(2200))
    assert [one["root"]["node"] for one in document["incidents"]] == [name(1)]


def linked(root_at: float) -> dict[str, Any]:
    shown = {name(number): {"gpu_model": "gb200", "gpus": 4} for number in range(1, 21)}
    others = [kernel(10 + number / 10, number, LOSES) for number in range(2, 9)]
    root = kernel(root_at, 1, BREAKS)
    rows = [root, *others] if root_at <= 10 else [*others, root]
    return played(nodes(0, 20, **shown), OVER_LINKS, *rows, clock(300))


@pytest.mark.parametrize("root_at", [10, 13])
def test_packets_that_peers_lost_follow_from_the_link_that_broke(root_at: float) -> None:
    """In any order."""
    incident = only(linked(root_at))
    assert (incident["rule"], incident["root"]["node"], incident["root"]["link"]) == (
        "gpu-fatal",
        name(1),
        14,
    )
    assert [one for one in incident["nodes"].items() if one[1] == "isolate"] == [(name(1), "isolate")]


def test_packets_lost_by_peers_are_reported_after_their_job_was_requeued_elsewhere() -> None:
    """What their job's end left behind says nothing of the nodes that it ran on."""
    shown = {name(number): {"gpu_model": "gb200", "gpus": 4} for number in range(1, 21)}
    others = [kernel(17 + number / 10, number, LOSES) for number in range(2, 9)]
    moved = jobs(14, job("4711", *(name(number) for number in range(9, 17)), restarts=1))
    document = played(nodes(0, 20, **shown), OVER_LINKS, kernel(10, 1, BREAKS), moved, *others, clock(300))
    assert only(document)["root"]["node"] == name(1)


def test_packets_lost_by_peers_follow_from_a_break_reported_half_an_hour_late() -> None:
    """Its node could not send before."""
    shown = {name(number): {"gpu_model": "gb200", "gpus": 4} for number in range(1, 21)}
    others = [kernel(10 + number / 10, number, LOSES) for number in range(2, 9)]
    body = {"cluster": CLUSTER, "node": name(1), "boot_id": "b1"}
    entry = {"line": BREAKS, "time": later(9).isoformat()}
    late = row(1800, "signals/kernel-log", body | {"entries": [entry]})
    document = played(nodes(0, 20, **shown), OVER_LINKS, *others, clock(300), late, clock(1900))
    left = [one for one in document["incidents"] if one["state"] != "resolved"]
    assert [one["root"]["node"] for one in left] == [name(1)]


def test_packets_lost_long_before_are_another_matter() -> None:
    assert len(linked(100)["incidents"]) == 2


# --- what waits for storage ---------------------------------------------------------------------------------

HUNG = "INFO: task python:1234 blocked for more than 120 seconds."


def test_processes_that_wait_for_a_file_server_blame_no_node() -> None:
    away = [kernel(10, number, AWAY) for number in range(1, 11)]
    hung = [kernel(140, number, HUNG) for number in range(1, 11)]
    incident = only(played(nodes(0, 40), BOTH, *away, *hung, clock(400)))
    assert (incident["rule"], incident["nodes"]) == ("storage-away", {})


def test_blocked_process_is_reported_without_storage_signals() -> None:
    document = played(nodes(), BOTH, kernel(10, 1, AWAY), kernel(140, 2, HUNG), clock(400))
    assert [one["rule"] for one in document["incidents"]] == ["storage-away", "host-degraded"]


def test_growing_wave_is_reported_at_its_current_size() -> None:
    """It began in one rack; nodes of four racks have it by now."""
    where = {name(at): {"rack": f"r{(at - 1) // 10}"} for at in range(1, 41)}
    hung = [kernel(10 + at / 10, at, HUNG) for at in range(1, 31)]
    incident = only(played(nodes(0, 40, **where), *hung, clock(300)))
    assert incident["rule"] == "wave" and incident["root"].get("device") is None
    assert incident["title"].startswith("30 nodes with host problem")


#: Lines of which the vendor says: ignore, and of the last three: report them.
IGNORED = (
    "92, pid=1, name=a, High single-bit ECC error rate",
    "144, SAW_MVB Nonfatal XC1 i0 Link 10 (0x00000421 0x00000001 0x0 0x0 0x0 0x0)",
    "146, TLW_RX Nonfatal XC1 i0 Link 10 (0x00000425 0x00000001 0x0 0x0 0x0 0x0)",
    "148, NVLPW_CTRL Nonfatal XC1 i0 Link 10 (0x00000421 0x00000001 0x0 0x0 0x0 0x0)",
)


@pytest.mark.parametrize("line", IGNORED)
def test_errors_that_the_vendor_ignores_propose_no_reset(line: str) -> None:
    document = played(*kernel_story(xid(line)))
    for one in document["incidents"]:
        assert not {"reset_gpu_when_idle", "drain_then_reset"} & set(one["remedy"])


def test_a_fault_that_asks_for_nothing_is_watched_and_one_that_asks_is_suspect() -> None:
    watched = only(played(*kernel_story(xid("163, link to be reset"))))
    asks = only(
        played(*kernel_story(xid("63, Row Remapper: New row marked for remapping, reset gpu to activate.")))
    )
    assert (watched["remedy"], watched["nodes"]) == (["none"], {name(1): "watch"})
    assert (asks["remedy"], asks["nodes"]) == (["reset_gpu_when_idle"], {name(1): "suspect"})
