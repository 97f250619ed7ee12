"""healer-node as a process of its own, over programs that fail, hang and succeed late."""

import ast
import base64
import contextlib
import gzip
import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from threading import Barrier, Thread
from types import ModuleType
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.processes import living
from tests.support.stand_ins import HEALER_NODE, USER, StandIns
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

FM = "nvidia-fabricmanager"


@pytest.fixture
def node(tmp_path: Path) -> StandIns:
    return StandIns(tmp_path / "node")


def test_it_is_written_for_python_3_6_without_packages() -> None:
    tree = ast.parse(HEALER_NODE.read_text(), feature_version=(3, 6))
    names = {one.name for node in ast.walk(tree) if isinstance(node, ast.Import) for one in node.names}
    assert names == {
        "base64", "ctypes", "errno", "fcntl", "gzip", "hashlib", "json", "os", "re", "resource", "select",
        "signal", "stat", "subprocess", "sys", "syslog", "time", "xml.etree.ElementTree",
    }  # fmt: skip
    assert not [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]


# --- what is refused


@pytest.mark.parametrize(
    "words",
    [
        "", "reboot", "sh", "service-restart", "service-restart sshd", "service-restart slurmd slurmd",
        "service-restart slurmd;rm", "service-restart ../slurmd", "service-restart -H", "identify --help",
        "service-status nvidia-dcgm.service", "diagnose-start k 5", "diagnose-start k 3 -p",
        "diagnose-start ../../etc/x 3", "diagnose-start .hidden 1", "gpu-reset k 0", "gpu-reset k ALL",
        "gpu-reset k 00000000:10:00.9", "collect a/b", "collect-read k -1", "id=0123456789abcdef",
        "identify id=0123456789abcdef id=0123456789abcdef", "IDENTIFY", "job-stacks 0", "job-stacks -1",
        "second-look nvrm -", "second-look NVRM:Xid -", "second-look nvrmxidpci00",
        "second-look nvrmxidpci00 all",
        "job-stacks 4711;id", "job-stacks", "job-recorder 4711_3", "job-recorder 12345678901",
    ],
)  # fmt: skip
def test_commands_that_are_not_allowed_are_refused_and_logged(node: StandIns, words: str) -> None:
    node.refused(*words.split(), code="refused")
    assert [entry["event"] for entry in node.log()] == ["refused"]
    assert node.asked("systemctl") + node.asked("nvidia-smi") + node.asked("dcgmi") == []


@pytest.mark.parametrize(
    "asked",
    [
        "service-restart slurmd; rm -rf /", "service-restart slurmd\nrm -rf /", "service-restart\tslurmd",
        "service-restart  slurmd", " identify", "identify ", "$(id)", "`id`", "identify && id",
        "identify|id", "identify >x", "service-restart 'slurmd'", "identify\n", "identify\0id"[:8] + "\x01",
        "service-restart slurmd\r", "idéntify", "x" * 900, "--conf /tmp/x identify", "--as root identify",
        "scp -t /etc", "internal-sftp", "",
    ],
)  # fmt: skip
def test_a_forged_command_over_ssh_is_refused_and_logged(node: StandIns, asked: str) -> None:
    status, answer = node.run(SSH_ORIGINAL_COMMAND=asked, SSH_CONNECTION="192.0.2.7 4242 192.0.2.9 22")
    assert (status, answer["code"] in {"refused", "not-signed"}) == (126, True)
    (entry,) = node.log()
    assert (entry["event"], entry["from"], entry["as"]) == ("refused", "192.0.2.7", "test")
    assert entry["asked"] == asked[:800]
    assert node.asked("systemctl") + node.asked("nvidia-smi") == []


def test_over_ssh_the_clients_words_count_and_no_others(node: StandIns) -> None:
    node.refused("identify", code="refused", SSH_ORIGINAL_COMMAND=f"service-status {FM}")
    node.refused(code="refused")


def test_a_site_narrows_verbs_and_services_and_adds_its_own(node: StandIns) -> None:
    node.configure(VERBS="service-status service-restart", SERVICES="slurmd", SERVICES_ADD="site-agent")
    node.ask("service-restart", "site-agent")
    node.ask("service-restart", "slurmd")
    node.refused("service-restart", FM, code="refused")
    node.refused("identify", code="refused")


def test_settings_that_others_may_change_are_not_used(node: StandIns) -> None:
    node.conf.chmod(0o666)
    assert "can be changed by users other than root" in node.refused("identify", code="bad-config")
    node.configure(NONSENSE="1")
    assert "not a setting" in node.refused("identify", code="bad-config")


def test_node_changes_nothing_that_it_cannot_log(node: StandIns) -> None:
    node.configure(LOG=str(node.world / "nowhere" / "log"))
    node.refused("service-restart", FM, code="no-audit")
    assert node.restarts("") == 0
    node.ask("service-status", FM)  # to look is no change


def test_a_disk_that_cannot_be_written_stops_no_look(node: StandIns) -> None:
    """A node whose disk fails is one that healer has to look at."""
    node.kmsg("NVRM: Xid (PCI:0000:10:00): 79, GPU has fallen off the bus.")
    node.configure(STATE="/proc/no-such-folder", LOG="/proc/no-such-folder/log")
    assert node.ask("second-look", "nvrmxidpci00001000", "-")["records"]
    node.refused("diagnose-start", "k", "1", code="no-audit")


PIECES = [
    *"abc;|&$`'\"\\ \t\n\r\0<>(){}*?~#!-=/.:", "identify", "slurmd", "k", "1", "all", "--conf",
    "service-restart", "diagnose-start", "gpu-reset", "id=0123456789abcdef",
]  # fmt: skip
words_asked = st.tuples(
    st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=8), st.sampled_from(["", " "])
).map(lambda both: both[1].join(both[0]))


@given(words_asked)
def test_only_listed_commands_get_through(program: ModuleType, asked: str) -> None:
    with mock.patch.dict(os.environ, {}, clear=False):
        try:
            os.environ["SSH_ORIGINAL_COMMAND"] = asked
        except ValueError:
            return  # no environment can hold it
        try:
            program.request([], program.DEFAULTS)
        except program.Fault as fault:
            assert fault.code in program.REFUSALS
        else:
            raise AssertionError(f"{asked!r} was not signed")
        try:
            verb, arguments = program.parsed(asked.split(" "), program.DEFAULTS)
        except program.Fault as fault:
            assert fault.code == "refused"
            return
    assert " ".join([verb, *arguments]) == asked
    assert all(re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._:@-]*", word) for word in [verb, *arguments])


@pytest.fixture(scope="module")
def program() -> ModuleType:
    """healer-node as a module."""
    loader = SourceFileLoader("healer_node", str(HEALER_NODE))
    spec = spec_from_loader("healer_node", loader)
    assert spec is not None
    made = module_from_spec(spec)
    loader.exec_module(made)
    return made


def test_a_line_that_the_disk_takes_half_of_is_no_record(program: ModuleType, tmp_path: Path) -> None:
    """As on a disk that fills up: what changes the node is not done then."""
    log = program.Log(str(tmp_path / "log"), {})
    with mock.patch.object(program.syslog, "syslog"):  # that of the machine
        assert log.say("begins", verb="gpu-reset")
        with mock.patch.object(program.os, "write", lambda fd, line: len(line) // 2):
            assert not log.say("begins", verb="gpu-reset")


def test_calls_that_find_the_log_full_lose_nothing_of_it(program: ModuleType, tmp_path: Path) -> None:
    """The second one would rename the new log over the old one, or find none to rename and change nothing."""
    old, full, written = tmp_path / "log.1", "x" * 2000 + "\n", list[bool]()

    def call(start: Barrier) -> None:
        log = program.Log(str(tmp_path / "log"), {})
        start.wait()
        written.extend(log.say("begins") for _ in range(3))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with mock.patch.object(program.syslog, "syslog"), mock.patch.object(program, "LOG_BYTES", 1500):
            for _ in range(300):
                (tmp_path / "log").write_text(full)
                calls = [Thread(target=call, args=(start,)) for start in [Barrier(3)] * 3]
                for one in calls:
                    one.start()
                for one in calls:
                    one.join()
                assert old.read_text().startswith(full)
    finally:
        sys.setswitchinterval(interval)
    assert all(written) and len(written) == 300 * 9


# --- services


def test_restart_is_requested_and_reported(node: StandIns) -> None:
    node.plant("", "fabric-manager")
    assert node.ask("service-status", FM)["state"] == "failed"
    assert node.ask("service-restart", FM, "id=0123456789abcdef")["asked"] is True
    assert node.ask("service-status", FM)["active"] is True
    begun, done = (entry for entry in node.log() if entry["verb"] == "service-restart")
    assert (begun["event"], done["event"], begun["id"]) == ("begins", "done", "0123456789abcdef")
    assert begun["arguments"] == [FM] and "took_s" in done


def test_a_restart_that_takes_long_is_pending_until_it_is_over(node: StandIns) -> None:
    node.mode("systemctl", "late")
    node.ask("service-restart", FM)
    answer = node.ask("service-status", FM)
    assert (answer["active"], answer["pending"]) == (False, True)
    assert node.ask("service-restart", FM)["asked"] is False
    assert node.restarts("") == 1
    node.finish()
    wait_until(lambda: node.ask("service-status", FM)["active"], 10, what="it is active")


def test_a_restart_that_fails_says_why(node: StandIns) -> None:
    node.mode("systemctl", "refuse")
    assert "Job for nvidia-fabricmanager failed." in node.refused("service-restart", FM, code="failed")
    assert node.log()[-1]["code"] == "failed"


def test_missing_service_is_reported(node: StandIns) -> None:
    node.refused("service-status", "openibd", code="no-service")
    node.refused("service-restart", "openibd", code="no-service")
    assert node.restarts("") == 0


@pytest.mark.parametrize("mode", ["hang", "hang-deep"])
def test_hanging_command_is_killed_with_all_its_child_processes(node: StandIns, mode: str) -> None:
    node.mode("systemctl", mode)
    node.configure(SYSTEMCTL_S="0.5")
    assert "within 0.5 s" in node.refused("service-restart", FM, code="timed-out")
    assert len(node.pids("systemctl")) == (2 if mode == "hang-deep" else 1)
    wait_until(lambda: not living(node.pids("systemctl")), 10, what="all of it is dead")


def test_endless_output_is_cut_off(node: StandIns) -> None:
    node.mode("nvidia-smi", "flood")
    node.refused("identify", code="too-much")


def test_a_program_that_is_missing_is_named(node: StandIns) -> None:
    (node.bin / "dcgmi").unlink()
    assert node.refused("diagnose-start", "k", "1", code="missing").startswith("dcgmi is not installed")


# --- memory


def test_memory_figures_are_passed_through_unchanged(node: StandIns) -> None:
    first, second = node.ask("memory-state")["gpus"]
    assert (first["pci"], second["pci"]) == ("00000000:10:00.0", "00000000:11:00.0")
    reported = {name: first[name] for name in ("pending", "failed", "channel", "recovery")}
    assert reported == {"pending": "No", "failed": "No", "channel": "", "recovery": "None"}
    node.mode("nvidia-smi", "vague")
    assert node.ask("memory-state")["gpus"][0]["pending"] == "Unknown Error"


@pytest.mark.parametrize(
    ("name", "found"),
    [("a&b<c", ["0"]), ("</processes></gpu><gpu id='9'><minor_number>9</minor_number><processes>", None)],
)
def test_a_process_is_no_gpu_whatever_its_name(node: StandIns, name: str, found: list[str] | None) -> None:
    """nvidia-smi prints names as they are: a user may write XML into it, or what is none."""
    gpu = f"<gpu id='0'><minor_number>0</minor_number><processes>{name}</processes></gpu>"
    text = f"<nvidia_smi_log><attached_gpus>1</attached_gpus>{gpu}</nvidia_smi_log>"
    (node.bin / "nvidia-smi").write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    if found is None:
        assert "the name of a process" in node.refused("identify", code="failed")
    else:
        assert [gpu["minor"] for gpu in node.ask("identify")["gpus"]] == found


# --- a second look

XID = "NVRM: Xid (PCI:0000:10:00): 79, pid=4242, name=python3, GPU has fallen off the bus."
SAID = "nvrmxidpci0000100079"
GPU = "0000:10:00.0"


def test_it_finds_the_records_of_the_kernels_own_log(node: StandIns) -> None:
    node.kmsg("usb 1-1: new device", XID, "x" * 20)
    answer = node.ask("second-look", SAID, GPU)
    ((at_s, text),) = answer["records"]
    assert text == XID and 0 <= answer["up_s"] - at_s < 60
    assert answer["log_from_s"] == 0
    assert answer["gpu"] is None and node.asked("nvidia-smi") == [], "a record is enough"


@pytest.mark.parametrize(
    "record",
    [
        XID.replace("10:00", "11:00"),
        f"python3[7]: segfault at 0 in {XID}",
        f"x\\x0a{XID}",
    ],
)
def test_similar_kernel_record_does_not_confirm_the_reported_one(node: StandIns, record: str) -> None:
    node.kmsg(record)
    assert node.ask("second-look", SAID, "-")["records"] == []


def test_record_that_a_program_wrote_to_kmsg_confirms_nothing(node: StandIns) -> None:
    node.kmsg(XID, facility=1)
    answer = node.ask("second-look", SAID, "-")
    assert answer["records"] == [] and answer["log_from_s"] == 0


def test_of_a_flood_the_newest_records_are_returned(node: StandIns) -> None:
    node.kmsg(*(f"{XID} {number}" for number in range(5000)))
    assert [text[-4:] for _, text in node.ask("second-look", SAID, "-")["records"]] == [
        "4996", "4997", "4998", "4999",
    ]  # fmt: skip


def test_without_a_record_nvidia_smi_is_asked_for_the_gpu(node: StandIns) -> None:
    node.kmsg()
    node.has_gpu(GPU)
    node.kmsg("nothing of that kind")
    assert node.ask("second-look", SAID, GPU)["gpu"] == {"known": True, "reached": True, "text": ""}
    node.plant("", "gpu-missing")
    assert node.ask("second-look", SAID, GPU)["gpu"] == {"known": True, "reached": False, "text": ""}
    assert node.ask("second-look", SAID, "0000:77:00.0")["gpu"]["known"] is False


def test_nvidia_smi_may_name_the_lost_gpu_and_give_nothing_else(node: StandIns) -> None:
    node.kmsg("nothing of that kind")
    node.has_gpu(GPU)
    node.mode("nvidia-smi", "lost")
    gpu = node.ask("second-look", SAID, GPU)["gpu"]
    assert gpu["known"] is True and gpu["reached"] is False
    assert node.ask("second-look", SAID, "0000:11:00.0")["gpu"]["reached"] is None


@pytest.mark.parametrize("mode", ["fail", "hang"])
def test_a_driver_that_does_not_answer_says_nothing_of_the_gpu(node: StandIns, mode: str) -> None:
    node.configure(LOOK_SMI_S="0.5")
    node.kmsg("nothing of that kind")
    node.mode("nvidia-smi", mode)
    answer = node.ask("second-look", SAID, GPU)
    assert answer["gpu"]["reached"] is None and answer["gpu"]["text"]
    assert answer["log_from_s"] == 0


def test_node_reads_the_journal_when_kmsg_is_missing(node: StandIns) -> None:
    answer = node.ask("second-look", SAID, "-")
    assert answer["log_from_s"] is None and "journalctl is not installed" in answer["text"]
    entries = [
        {"MESSAGE": "Linux version 6.8.0", "_SOURCE_MONOTONIC_TIMESTAMP": "0", "SYSLOG_FACILITY": "0"},
        {"MESSAGE": XID, "_SOURCE_MONOTONIC_TIMESTAMP": "7000000", "SYSLOG_FACILITY": "1"},
        {"MESSAGE": XID, "_SOURCE_MONOTONIC_TIMESTAMP": "9500000"},
    ]
    (node.world / "entries").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    program = node.bin / "journalctl"
    program.write_text(f"#!/bin/sh\n/bin/cat {node.world}/entries\n")
    program.chmod(0o755)
    answer = node.ask("second-look", SAID, "-")
    assert (answer["log_from_s"], answer["records"]) == (0, [[9.5, XID]])


def _newest_of_the_kernel() -> str:
    """The text of this machine's newest record of the kernel's own that says something."""
    device = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    texts = []
    with contextlib.suppress(BlockingIOError):
        while True:
            head, _, text = os.read(device, 16384).partition(b"\n")[0].decode().partition(";")
            if int(head.split(",")[0]) < 8 and len(re.sub("[^a-z0-9]", "", text.lower())) >= 8:
                texts.append(text)
    os.close(device)
    return texts[-1]


def test_the_real_kernels_log_is_read_without_what_we_wrote(node: StandIns) -> None:
    """All readers of this machine's kernel log see the line too, so it shows no fault."""
    ours = f"healer's tests write this line, and it means nothing: {os.getpid()}"
    with open("/dev/kmsg", "w") as kmsg:
        kmsg.write(f"<0>{ours}\n")
    node.configure(DEV="/dev")
    answer = node.ask("second-look", re.sub("[^a-z0-9]", "", ours), "-")
    assert answer["records"] == [] and answer["log_from_s"] is not None
    began = time.clock_gettime(time.CLOCK_MONOTONIC)
    assert answer["log_from_s"] <= answer["up_s"] <= began
    kernels = _newest_of_the_kernel()
    found = node.ask("second-look", re.sub("[^a-z0-9]", "", kernels.lower())[:160], "-")["records"]
    assert kernels in [text for _, text in found]


# --- tests of the node


def test_tests_run_on_by_themselves_once_for_a_key(node: StandIns) -> None:
    assert node.ask("diagnose-start", "r1:test:0", "2")["started"] is True
    assert node.ask("diagnose-show", "r1:test:0")["state"] == "running"
    assert node.ask("diagnose-start", "r1:test:0", "2")["started"] is False
    node.finish()
    answer = node.ended("diagnose-show", "r1:test:0")
    assert (answer["state"], answer["exit"], answer["what"]) == ("finished", 0, {"level": "2"})
    assert "DCGM Diagnostic" in answer["output"]
    assert node.ask("diagnose-start", "r1:test:0", "2")["state"] == "finished"
    assert node.asked("dcgmi") == ["diag -r 2 -j"]
    assert [entry["event"] for entry in node.log() if entry["verb"] == "diagnose"] == ["ended"]


def test_each_key_starts_one_request(node: StandIns) -> None:
    node.ask("diagnose-start", "k", "2")
    node.finish()
    node.ended("diagnose-show", "k")
    node.refused("diagnose-start", "k", "3", code="refused")


def test_other_tests_wait_for_those_that_run(node: StandIns) -> None:
    node.ask("diagnose-start", "k1", "1")
    node.refused("diagnose-start", "k2", "1", code="busy")
    node.refused("gpu-reset", "k3", "all", code="busy")
    node.finish()
    node.ended("diagnose-show", "k1")
    node.ask("diagnose-start", "k2", "1")
    node.ended("diagnose-show", "k2")


def test_a_key_that_was_never_started_is_unknown(node: StandIns) -> None:
    node.refused("diagnose-show", "k", code="unknown-key")


def test_tests_that_hang_end_by_their_limit(node: StandIns) -> None:
    node.mode("dcgmi", "hang")
    node.configure(DIAGNOSE_S="0.3 1 1 1")
    node.ask("diagnose-start", "k", "1")
    answer = node.ended("diagnose-show", "k")
    assert (answer["state"], answer["code"]) == ("failed", "timed-out")


def test_tests_that_a_kill_cut_short_are_lost_and_begin_again(node: StandIns) -> None:
    node.ask("diagnose-start", "k", "1")
    wait_until(lambda: node.asked("dcgmi"), 10, what="dcgmi runs")
    for pid in keepers(node) | node.pids("dcgmi"):
        os.kill(pid, signal.SIGKILL)
    answer = node.ended("diagnose-show", "k")
    assert (answer["state"], answer["text"]) == ("lost", "interrupted: its process was killed")
    assert node.ask("diagnose-start", "k", "1")["started"] is True
    node.finish()
    assert node.ended("diagnose-show", "k")["attempt"] == 2


def test_a_program_that_outlived_its_keeper_still_counts_as_running(node: StandIns) -> None:
    node.ask("diagnose-start", "k", "1")
    wait_until(lambda: node.asked("dcgmi"), 10, what="dcgmi runs")
    (keeper,) = keepers(node)
    os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: not living({keeper}), 10, what="the keeper is gone")
    assert living(node.pids("dcgmi"))
    assert node.ask("diagnose-show", "k")["state"] == "running"
    assert node.ask("diagnose-start", "k", "1")["started"] is False
    node.finish()
    assert node.ended("diagnose-show", "k")["state"] == "lost"


def keepers(node: StandIns) -> set[int]:
    """The processes of this node's healer-node that run on by themselves."""
    found = set[int]()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if str(node.conf) in (entry / "cmdline").read_bytes().decode(errors="replace").split("\0"):
                found.add(int(entry.name))
    return found


def test_a_boot_ends_tests_and_nothing_is_made_of_them(node: StandIns) -> None:
    node.ask("diagnose-start", "k", "1")
    node.finish()
    node.ended("diagnose-show", "k")
    record = node.state / "diagnose" / "k.json"
    text = record.read_text().replace('"finished"', '"running"')
    now = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    record.write_text(text.replace(now, "00000000-0000-0000-0000-000000000000"))
    assert node.ask("diagnose-show", "k")["text"] == "interrupted: the node rebooted"


def test_only_the_latest_records_are_kept(node: StandIns) -> None:
    node.finish()
    folder = node.state / "collect"
    node.ask("collect", "first")
    node.ended("collect-show", "first")
    for number in range(55):
        (folder / f"k{number}.json").write_text("{}")
    os.utime(folder / "first.json", (1, 1))
    node.ask("collect", "last")
    node.ended("collect-show", "last")
    assert len(list(folder.glob("*.json"))) == 51
    assert not list(folder.glob("first.*"))


# --- GPUs


def test_identify_and_fabric_report_nvidia_smi_values(node: StandIns) -> None:
    answer = node.ask("identify")
    assert answer["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert (answer["driver"], len(answer["gpus"])) == ("570.124.06", 2)
    assert answer["gpus"][1] == {
        "pci": "00000000:11:00.0", "product": "NVIDIA H100 80GB HBM3", "serial": "1650000000001",
        "uuid": "GPU-00000001-aaaa-bbbb-cccc-0123456789ab", "minor": "1",
    }  # fmt: skip
    node.plant("", "fabric")
    fabric = node.ask("fabric-state")["gpus"][0]
    assert (fabric["state"], fabric["status"], fabric["clique"]) == ("Completed", "NVLink failure", "0")


class Holder:
    """A real process with a GPU's device open."""

    def __init__(self, node: StandIns, minor: int, name: str = "") -> None:
        rename = f"open('/proc/self/comm', 'w').write({name!r});" if name else ""
        code = f"{rename}f = open({str(node.dev / f'nvidia{minor}')!r}); print(1, flush=True); input()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None and self.process.stdout.readline()
        (node.proc / str(self.process.pid)).symlink_to(f"/proc/{self.process.pid}")

    def __enter__(self) -> int:
        return self.process.pid

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_a_gpu_that_a_process_holds_is_not_reset_and_it_is_named(node: StandIns) -> None:
    with Holder(node, 1, "train") as pid:
        assert node.ask("gpu-processes")["processes"] == [
            {"pid": pid, "command": "train", "uid": os.getuid(), "minors": ["1"], "service": None,
             "gpus": ["00000000:11:00.0"]}
        ]  # fmt: skip
        assert node.ask("gpu-processes")["unread"] == []
        text = node.refused("gpu-reset", "k", "0000:11:00.0", code="held")
        assert text == f"the GPU is in use by train ({pid}): nothing was reset"
        node.refused("gpu-reset", "k", "all", code="held")
        node.ask("gpu-reset", "k0", "00000000:10:00.0")  # the other one is free
        assert node.ended("gpu-reset-show", "k0")["passed"] is True
    node.ask("gpu-reset", "k", "all")
    assert node.ended("gpu-reset-show", "k")["passed"] is True
    resets = [words for words in node.asked("nvidia-smi") if "reset" in words]
    assert resets == ["--gpu-reset -i 00000000:10:00.0", "--gpu-reset"]


def test_a_gpu_is_held_by_a_process_whose_first_thread_has_ended(node: StandIns) -> None:
    """The kernel shows nothing open for the process then, and all of it for its other threads."""
    node.process(30, "trainer")
    thread = node.proc / "30" / "task" / "31" / "fd"
    thread.mkdir(parents=True)
    (thread / "5").symlink_to(node.dev / "nvidia1")
    assert [one["pid"] for one in node.ask("gpu-processes")["processes"]] == [30]
    node.refused("gpu-reset", "k", "0000:11:00.0", code="held")


def test_whose_open_files_cannot_be_read_is_named_and_no_gpu_is_reset(node: StandIns) -> None:
    """As in a container, whose first process is not root's own."""
    unreadable(node, 1, "tini")
    with Holder(node, 1, "train") as pid:
        answer = node.ask("gpu-processes")
        assert [one["pid"] for one in answer["processes"]] == [pid]
        assert [(one["pid"], one["command"]) for one in answer["unread"]] == [(1, "tini")]
        node.refused("gpu-reset", "k", "0000:11:00.0", code="held")
    text = node.refused("gpu-reset", "k", "0000:11:00.0", code="failed")
    assert "root may not read the open files of tini (1)" in text
    node.configure(PROC=str(node.world / "nothing"))
    node.refused("gpu-reset", "k", "all", code="failed")
    assert not [words for words in node.asked("nvidia-smi") if "reset" in words]


def unreadable(node: StandIns, pid: int, command: str) -> None:
    """A process with a folder of open files that cannot be listed, for root neither."""
    node.process(pid, command)
    (node.proc / str(pid) / "fd").rmdir()
    (node.proc / str(pid) / "fd").write_text("cannot be listed")


def test_gpu_with_a_recreated_device_file_is_still_held(node: StandIns) -> None:
    with Holder(node, 0, "train"):
        (node.dev / "nvidia0").unlink()
        node.refused("gpu-reset", "k", "00000000:10:00.0", code="held")
    node.refused("gpu-reset", "k", "00010000:10:00.0", code="no-gpu")


def test_a_daemon_that_holds_the_gpu_stops_for_the_reset_and_starts_again(node: StandIns) -> None:
    with Holder(node, 0, "nvidia-persiste") as pid:
        (node.world / "daemon.nvidia-persistenced").write_text(str(pid))
        node.ask("gpu-reset", "k", "all")
        answer = node.ended("gpu-reset-show", "k")
    assert (answer["passed"], answer["stopped"], answer["not_started"]) == (True, ["nvidia-persistenced"], [])
    assert not (node.world / "stopped.nvidia-persistenced").exists()


def test_a_reset_that_was_cut_short_leaves_no_daemon_stopped(node: StandIns) -> None:
    with Holder(node, 0, "nvidia-persiste") as pid:
        (node.world / "daemon.nvidia-persistenced").write_text(str(pid))
        node.mode("nvidia-smi", "stuck")
        node.ask("gpu-reset", "k", "all")
        wait_until(lambda: "--gpu-reset" in node.asked("nvidia-smi"), 20, what="the reset began")
        for each in [*keepers(node), *living(node.pids("nvidia-smi"))]:  # first who would tidy up
            os.kill(each, signal.SIGKILL)
    answer = node.ended("gpu-reset-show", "k")
    assert (answer["state"], answer["stopped"]) == ("lost", ["nvidia-persistenced"])
    assert (node.world / "stopped.nvidia-persistenced").exists()
    node.mode("nvidia-smi", "")
    assert node.ask("gpu-reset", "k", "all")["started"] is True
    assert node.ended("gpu-reset-show", "k")["passed"] is True
    assert not (node.world / "stopped.nvidia-persistenced").exists()


def test_a_process_that_only_bears_a_daemons_name_keeps_its_gpu(node: StandIns) -> None:
    with Holder(node, 0, "nv-hostengine"):
        node.ask("gpu-reset", "k", "all")
        answer = node.ended("gpu-reset-show", "k")
    assert (answer["state"], answer["code"]) == ("failed", "held")
    assert not [words for words in node.asked("nvidia-smi") if "reset" in words]
    assert not (node.world / "stopped.nvidia-dcgm").exists()


def test_a_reset_that_fails_is_no_success(node: StandIns) -> None:
    node.mode("nvidia-smi", "stays")
    node.ask("gpu-reset", "k", "all")
    answer = node.ended("gpu-reset-show", "k")
    assert (answer["passed"], answer["exit"]) == (False, 4) and "could not be reset" in answer["text"]
    node.refused("gpu-reset", "k2", "00000000:99:00.0", code="no-gpu")


# --- logs for a repair


def test_a_bundle_is_bounded_whole_and_without_secrets(node: StandIns) -> None:
    node.ask("collect", "k")
    answer = node.ended("collect-show", "k")
    assert [part["name"] for part in answer["parts"]] == ["dmesg", "nvidia-smi -q", "nvidia-bug-report.sh"]
    read = base64.b64decode(node.ask("collect-read", "k", "0")["data"])
    assert len(read) == answer["bytes"] and read == Path(answer["file"]).read_bytes()
    assert Path(answer["file"]).stat().st_mode & 0o777 == 0o600
    text = gzip.decompress(read).decode()
    assert "fallen off the bus" in text and "root=/dev/sda1" in text and "the end" in text
    for secret in ("s3cr3t", "hunter2", "abc.def", "AAAA"):
        assert secret not in text
    assert base64.b64decode(node.ask("collect-read", "k", "999999")["data"]) == b""


def test_a_part_that_fails_leaves_the_others(node: StandIns) -> None:
    node.mode("nvidia-bug-report.sh", "fail")
    (node.bin / "dmesg").unlink()
    node.ask("collect", "k")
    parts = node.ended("collect-show", "k")["parts"]
    assert "not installed" in parts[0]["text"] and "exited with 3" in parts[2]["text"]
    assert "text" not in parts[1]


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("export AWS_SECRET_ACCESS_KEY=abc/def+1", "abc/def"),
        ('"api_key": "0123456789"', "0123456789"),
        ("curl -H 'Authorization: Basic dXNlcjpwdw==' x", "dXNlcjpwdw"),
        ("mount -t cifs --password hunter2 //nas", "hunter2"),
        ("git clone https://bob:hunter2@git.example/x", "hunter2"),
        ("ghp_0123456789abcdefghij", "ghp_0123"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln", "eyJhbGci"),
        ("password: 'two words'", "two words"),
    ],
)
def test_secrets_are_taken_out(node: StandIns, line: str, secret: str) -> None:
    (node.bin / "dmesg").write_text(f"#!/bin/sh\ncat <<'END'\n{line}\nGPU stays\nEND\n")
    node.ask("collect", "k")
    answer = node.ended("collect-show", "k")
    text = gzip.decompress(Path(answer["file"]).read_bytes()).decode()
    assert secret not in text and "[removed]" in text and "GPU stays" in text


def test_logs_that_find_no_room_leave_the_rest_of_it(node: StandIns) -> None:
    """A limit on the size of files is in the place of a full disk."""
    (node.bin / "dmesg").write_text("#!/bin/sh\nhead -c 200000 /dev/urandom | base64\n")
    node.program.write_text(node.program.read_text().replace("exec ", "ulimit -f 32; exec ", 1))
    node.ask("collect", "k")
    assert node.ended("collect-show", "k")["state"] == "failed"
    assert sorted(path.name for path in (node.state / "collect").iterdir()) == ["k.json", "k.lock"]


def test_calls_at_once_are_bounded(node: StandIns) -> None:
    node.mode("systemctl", "hang")
    node.configure(SYSTEMCTL_S="30")
    command = [str(node.program), "--conf", str(node.conf), "service-status", FM]
    many = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(8)]
    try:
        wait_until(lambda: len(node.asked("systemctl")) == 8, 20, what="eight calls hang")
        node.refused("service-status", FM, code="busy")
    finally:
        for one in many:
            one.kill()
            one.wait()
        for pid in living(node.pids("systemctl")):
            os.kill(pid, signal.SIGKILL)


# --- a job that hangs

SLURM_V2 = "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0"


def test_the_stacks_of_a_job_are_those_of_its_own_processes(node: StandIns) -> None:
    node.process(10, "slurmstepd: [47", cgroup="/system.slice/slurmstepd.scope/job_4711/step_0/slurm")
    node.process(11, "python3", cgroup=SLURM_V2)
    node.process(12, "python3.11", cgroup=SLURM_V2)
    node.process(13, "pt_main_thread", cgroup="/slurm/uid_7/job_4711/step_0/task_1")
    node.process(14, "nvidia-smi", cgroup=SLURM_V2)
    node.process(20, "python3", cgroup=SLURM_V2.replace("4711", "47110"))
    node.process(21, "python3", cgroup="/user.slice")
    (node.proc / "13" / "fd" / "5").symlink_to(node.dev / "nvidia1")
    answer = node.ask("job-stacks", "4711")
    assert [one["pid"] for one in answer["processes"]] == [11, 12, 13, 14]
    assert [one["pid"] for one in answer["stacks"]] == [13, 11], "who holds a GPU is first"
    frames = ["wait (work.py:12)", "step (train.py:9)"]
    assert answer["stacks"][0]["threads"] == [{"name": "MainThread", "frames": frames}]
    assert node.asked("py-spy") == [f"dump --nonblocking --json --pid {pid}" for pid in (13, 11)]


def test_stacks_are_read_even_if_a_gpu_holder_is_unreadable(node: StandIns) -> None:
    node.process(11, "python3", cgroup=SLURM_V2)
    unreadable(node, 30, "secret")
    assert [one["pid"] for one in node.ask("job-stacks", "4711")["stacks"]] == [11]


def test_without_cgroups_slurm_lists_the_processes(node: StandIns) -> None:
    node.process(11, "python3")
    (node.world / "listed").write_text("11\n99\n-1\n")
    assert [one["pid"] for one in node.ask("job-stacks", "4711")["processes"]] == [11]
    assert node.asked("scontrol") == ["listpids 4711"]


def test_scontrol_is_asked_for_this_node_where_its_name_is_known(node: StandIns) -> None:
    """A machine may run the slurmd of several nodes: without a name scontrol finds the job on none."""
    node.process(11, "python3")
    (node.world / "listed").write_text("11\n")
    node.configure(NODE="gpu0007")
    node.ask("job-recorder", "4711")
    node.configure(NODE="gpu0007 gpu0008")
    node.ask("job-recorder", "4711")
    assert node.asked("scontrol") == ["listpids 4711 gpu0007", "listpids 4711"]


@pytest.mark.parametrize(
    ("mode", "says"),
    [("hang", "did not end within"), ("fail", "py-spy exited with 3"), ("flood", "printed more than")],
)
def test_failing_py_spy_is_reported(node: StandIns, mode: str, says: str) -> None:
    node.configure(PY_SPY_S="0.3" if mode == "hang" else "30")
    node.process(11, "python3", cgroup=SLURM_V2)
    node.mode("py-spy", mode)
    answer = node.ask("job-stacks", "4711")
    assert answer["stacks"] == [] and says in answer["text"]


def test_missing_py_spy_and_unknown_job_are_reported(node: StandIns) -> None:
    node.process(11, "python3", cgroup=SLURM_V2)
    (node.bin / "py-spy").unlink()
    assert "py-spy is not installed" in node.ask("job-stacks", "4711")["text"]
    answer = node.ask("job-stacks", "9")
    assert (answer["processes"], answer["text"]) == ([], "job 9 has no Python process on this node")


def test_the_recorders_files_of_this_life_of_the_job_are_carried(node: StandIns) -> None:
    place = node.world / "dumps"
    place.mkdir()
    node.configure(RECORDER=str(place / "nccl_trace_rank_"))
    node.process(11, "python3", cgroup=SLURM_V2, started_s=1000)
    for name, at in (("0", 2000), ("1", 500), ("12", 1500), ("x", 2000), ("3.tmp", 2000)):
        (place / f"nccl_trace_rank_{name}").write_bytes(name.encode() * 9)
        os.utime(place / f"nccl_trace_rank_{name}", (at, at))
        os.chown(place / f"nccl_trace_rank_{name}", USER, -1)
    (place / "secret").write_text("s3cret")
    (place / "nccl_trace_rank_4").symlink_to(place / "secret")
    os.mkfifo(place / "nccl_trace_rank_5")
    (place / "nccl_trace_rank_6").mkdir()
    with (place / "nccl_trace_rank_7").open("wb") as large:
        large.truncate(3 * 1024 * 1024)
    os.chown(place / "nccl_trace_rank_7", USER, -1)
    answer = node.ask("job-recorder", "4711")
    found = {one["rank"]: one for one in answer["dumps"]}
    assert sorted(found) == [0, 7, 12], "one is older than the job, the others are no files of the recorder"
    assert gzip.decompress(base64.b64decode(found[12]["data"])) == b"12" * 9
    assert (found[0]["at"], found[7]["bytes"], "data" in found[7]) == (2000, 3 * 1024 * 1024, False)
    assert [(one["util"], one["power"], one["limit"]) for one in answer["gpus"]] == [
        ("100 %", "182.41 W", "700.00 W")
    ] * 2
    assert answer["text"] == ""


def test_another_users_files_are_no_dumps(program: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "rank_0").write_text("mine")
    found = program.read_dumps(str(tmp_path / "rank_"), os.geteuid(), 0.0)
    assert [one["rank"] for one in found] == [0]
    assert program.read_dumps(str(tmp_path / "rank_"), os.geteuid() + 1, 0.0) == []


def test_a_group_that_a_user_made_holds_no_process_of_the_job(node: StandIns) -> None:
    """systemd lets each user make groups of any name below its own; what runs in them is of any user."""
    forged = "/user.slice/user-1000.slice/user@1000.service/slurmstepd.scope/job_4711/step_0/user/task_0"
    node.process(11, "python3", cgroup=SLURM_V2)
    node.process(12, "python3", cgroup=forged)
    node.process(13, "python3", cgroup="/docker/0a1b" + SLURM_V2)
    assert node.ask("job-recorder", "4711")["processes"] == 2
    assert [one["pid"] for one in node.ask("job-stacks", "4711")["processes"]] == [11, 13]


def test_the_files_are_read_as_the_jobs_own_user(node: StandIns) -> None:
    place = node.world / "dumps"
    place.mkdir()
    node.configure(RECORDER=str(place / "nccl_trace_rank_"))
    node.process(11, "python3", cgroup=SLURM_V2)
    for rank, mode in ((0, 0o600), (1, 0o000)):
        (place / f"nccl_trace_rank_{rank}").write_text("as pickled")
        (place / f"nccl_trace_rank_{rank}").chmod(mode)
        os.chown(place / f"nccl_trace_rank_{rank}", USER, -1)
    found = node.ask("job-recorder", "4711")["dumps"]
    assert [one["rank"] for one in found] == [0], "only root could read the other"


EXTERN = "/system.slice/slurmstepd.scope/job_4711/step_extern/user/task_special"


def test_slurms_own_step_is_no_process_of_the_jobs_program(node: StandIns) -> None:
    node.process(11, "sleep", cgroup=EXTERN)
    answer = node.ask("job-recorder", "4711")
    assert (answer["processes"], answer["counted"]) == (0, True)
    node.process(12, "python3", cgroup=SLURM_V2)
    assert node.ask("job-recorder", "4711")["processes"] == 1
    assert node.asked("scontrol") == [], "the cgroups say it"


@pytest.mark.parametrize(
    "other", ["/step_extern", "/job_4711/step_extern", "/user.slice/job_4711/step_extern"]
)
def test_a_group_that_a_user_made_hides_no_process_of_the_job(node: StandIns, other: str) -> None:
    """Of another hierarchy, or below the group of a container that its user may write."""
    node.process(11, "python3", cgroup=f"{SLURM_V2}\n1:name=systemd:/user.slice/user-1000.slice{other}")
    node.process(12, "python3", cgroup=f"{SLURM_V2}{other}")
    assert node.ask("job-recorder", "4711")["processes"] == 2


@pytest.mark.parametrize(
    ("program", "processes", "counted"),
    [
        (
            "echo 'PID JOBID STEPID LOCALID GLOBALID'; echo '11 4711 extern 0 0'; echo '12 4711 0 0 0'",
            1,
            True,
        ),
        ("echo 'scontrol: error: Job 4711 does not exist on this node.' >&2; exit 1", 0, True),
        # As 22.05 says it.
        ("echo 'JobId=4711 does not exist on node gpu0001.' >&2; exit 1", 0, True),
        (
            "echo 'scontrol: error: Domain socket directory /spool/a: No such file or directory' >&2;"
            " echo 'JobId=4711 does not exist on node a.' >&2; exit 1",
            0,
            False,
        ),
        ("echo 'scontrol: fatal: Unable to process configuration file' >&2; exit 1", 0, False),
        (None, 0, False),
    ],
)
def test_without_cgroups_only_slurms_own_answer_counts(
    node: StandIns, program: str | None, processes: int, counted: bool
) -> None:
    for pid in (11, 12):
        node.process(pid, "python3")
    scontrol = node.bin / "scontrol"
    scontrol.unlink()
    if program is not None:
        scontrol.write_text(f"#!/bin/sh\n{program}\n")
        scontrol.chmod(0o755)
    answer = node.ask("job-recorder", "4711")
    assert (answer["processes"], answer["counted"]) == (processes, counted)


def test_unknown_job_has_no_dumps_and_a_broken_nvidia_smi_is_reported(node: StandIns) -> None:
    answer = node.ask("job-recorder", "4711")
    assert (answer["dumps"], answer["text"], len(answer["gpus"])) == (
        [],
        "job 4711 has no process on this node",
        2,
    )
    node.process(11, "python3", cgroup=SLURM_V2)
    node.mode("nvidia-smi", "fail")
    answer = node.ask("job-recorder", "4711")
    assert answer["gpus"] == [] and "nvidia-smi -q exited with 3" in answer["text"]


def test_its_page_names_all_verbs_services_and_settings(program: ModuleType) -> None:
    text = (HEALER_NODE.parents[2] / "docs" / "nodes.md").read_text()
    names = [*program.VERBS, *program.DEFAULTS, *program.DEFAULTS["SERVICES"].split()]
    assert [one for one in names if not re.search(rf"`{re.escape(one)}(?![\w-])", text)] == []
