"""`healer-hook` as slurmd runs it: what it sends, and that only a permit or a listed fault fails it."""

import ast
import fcntl
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any
from unittest import mock
from xml.etree import ElementTree

import msgspec
import pytest

from healer.signals.hook_reports import HookReport
from tests.support.hooks import (
    FATAL,
    HOOK,
    LOST,
    MOUNTS,
    PROMISED_S,
    TOKEN,
    Healer,
    HookNode,
    check_of,
    life,
    smi,
    unused_url,
    with_process,
)
from tests.support.processes import clean_environ
from tests.support.wait import wait_until

pytestmark = pytest.mark.heavy

PERMIT = {"verdict": "isolate", "may_refuse": True, "reason": "Xid 79: GPU fell off the bus"}


@pytest.fixture
def healer() -> Iterator[Healer]:
    with Healer() as one:
        yield one


@pytest.fixture
def node(tmp_path: Path, healer: Healer) -> HookNode:
    return HookNode(tmp_path, healer.url)


def well(done: subprocess.CompletedProcess[str]) -> bool:
    return done.returncode == 0 and not done.stderr


# --- what it sends ---------------------------------------------------------------------------------------


def test_report_describes_the_node_and_the_job_life(node: HookNode, healer: Healer) -> None:
    node.kernel(FATAL)
    node.port(state="1: DOWN", downed=3)
    done = node.run("epilog", environ=life(4711, 2))
    assert well(done) and not done.stdout
    ((path, headers, (report,)),) = healer.requests
    assert path == "/api/v1/signals/hooks/epilog"
    assert headers["Authorization"] == f"Bearer {TOKEN}"
    assert (report["node"], report["job"], report["restarts"], report["id"]) == (
        "gpu0001",
        "4711",
        2,
        "4711.2",
    )
    assert [line["line"] for line in report["kernel"]] == [FATAL]
    assert report["host"]["procs_blocked"] == 1 and report["host"]["root_readonly"] == 0
    assert report["host"]["root_size_bytes"] >= report["host"]["root_available_bytes"] > 0
    assert report["ports"]["mlx5_0/1"] == {
        "link_downed": 3,
        "node_infiniband_state_id": 1,
        "node_infiniband_physical_state_id": 5,
        "node_infiniband_rate_bytes_per_second": 5e10,
    }


def test_kernel_lines_are_sent_once_per_boot(node: HookNode, healer: Healer) -> None:
    node.kernel(FATAL)
    node.run("epilog")
    node.kernel(LOST)
    node.run("epilog")
    node.boot("00000000-0000-4000-8000-000000000002")
    node.run("prolog")
    sequences = [[line["seq"] for line in report["kernel"]] for report in healer.reports]
    assert sequences == [[1], [2], [1, 2]]


def test_line_written_to_the_kernel_log_by_a_program_is_not_sent(node: HookNode, healer: Healer) -> None:
    node.kernel(LOST, priority=11)
    node.run("prolog")
    assert healer.reports[0]["kernel"] == [] and check_of(healer.reports[0], "gpu-lost") == ""


def test_a_slurm_that_names_each_life_of_a_job_names_the_report(node: HookNode, healer: Healer) -> None:
    named = {"SLURM_JOB_ID": "4711", "SLURM_JOB_RESTART_COUNT": "0", "SLURM_JOB_SLUID": "s1F2E3D4C5B6"}
    node.run("epilog", environ=named)
    node.run("epilog", environ=named)
    assert [report["id"] for report in healer.reports] == ["s1F2E3D4C5B6"] * 2


def test_a_later_job_of_the_same_number_has_reports_of_its_own(node: HookNode, healer: Healer) -> None:
    """slurmctld counts from the first number again when it lost its state, or after the last one."""
    earlier = life(4711, 0) | {"SLURM_JOB_START_TIME": "1772160331"}
    later = life(4711, 0) | {"SLURM_JOB_START_TIME": "1772162000"}
    for environ in (earlier, earlier, later):
        node.run("epilog", environ=environ)
    assert [report["id"] for report in healer.reports] == [
        "4711.0.1772160331",
        "4711.0.1772160331",
        "4711.0.1772162000",
    ]


def test_without_a_restart_count_two_lives_are_never_taken_for_one(node: HookNode, healer: Healer) -> None:
    node.run("prolog", environ={"SLURM_JOB_ID": "4711"})
    node.run("prolog", environ={"SLURM_JOB_ID": "4711"})
    first, second = healer.reports
    assert first["id"] != second["id"] and "restarts" not in first


def test_nvidia_smi_output_is_sent_and_missing_gpus_fail_a_check(node: HookNode, healer: Healer) -> None:
    node.program("usr/bin/nvidia-smi", smi("a", "b"))
    node.settings["HEALER_HOOK_GPUS"] = "3"
    node.run("prolog")
    (report,) = healer.reports
    assert report["nvidia_smi"].count("<gpu id=") == 2
    assert check_of(report, "gpu-count") == "2 of 3 GPUs"


def test_what_is_said_beside_nvidia_smis_output_does_not_spoil_it(node: HookNode, healer: Healer) -> None:
    """healer reads XML alone: the loader's or the driver's warning around it would cost all samples."""
    before = "ERROR: ld.so: object 'libjemalloc.so' from /etc/ld.so.preload cannot be preloaded: ignored."
    after = "WARNING: infoROM is corrupted at gpu 0000:5E:00.0"
    node.program("usr/bin/nvidia-smi", f'echo "{before}" >&2\n{smi("a", "b")}\necho "{after}" >&2\nexit 14')
    node.run("prolog")
    (report,) = healer.reports
    assert len(ElementTree.fromstring(report["nvidia_smi"]).findall("gpu")) == 2


def test_file_systems_are_judged_where_the_site_needs_them_writable(node: HookNode, healer: Healer) -> None:
    node.put("proc/mounts", "overlay / overlay ro 0 0\n/dev/vdb /scratch xfs ro,noatime 0 0\n")
    node.run("prolog")
    node.settings["HEALER_HOOK_WRITABLE"] = "/tmp, /scratch"
    node.run("prolog")
    unjudged, judged = healer.reports
    assert unjudged["host"]["root_readonly"] == 1, "a node without disks is so by design"
    assert check_of(unjudged, "fs-readonly") is None
    assert check_of(judged, "fs-readonly") == "/scratch cannot be written"


@pytest.mark.parametrize("named", ["/scratch/", "/scratch/jobs", "//scratch"])
def test_a_folder_is_judged_by_the_file_system_that_holds_it(
    node: HookNode, healer: Healer, named: str
) -> None:
    node.put("proc/mounts", "overlay / overlay rw 0 0\n/dev/vdb /scratch xfs ro,noatime 0 0\n")
    node.settings["HEALER_HOOK_WRITABLE"] = f"{named}, /scratchy"
    node.run("prolog")
    assert check_of(healer.reports[0], "fs-readonly") == f"{named} cannot be written"


def test_healer_takes_a_report_of_many_file_systems_that_fail_at_once(node: HookNode, healer: Healer) -> None:
    """As when their storage is away: one check too long would lose the whole report, kernel lines too."""
    mounts = [f"/lustre/project-{number:03d}/scratch" for number in range(40)]
    node.put("proc/mounts", MOUNTS + "".join(f"s {mount} lustre ro 0 0\n" for mount in mounts))
    for mount in mounts:
        (node.root / mount[1:]).mkdir(parents=True)
    node.settings["HEALER_HOOK_WRITABLE"] = ",".join(mounts)
    node.kernel(FATAL)
    assert well(node.run("epilog"))
    report = msgspec.convert(healer.reports[0], HookReport)
    failed = {check.name: check.text for check in report.checks}
    assert failed["fs-readonly"].startswith(mounts[0]) and len(report.kernel) == 1


def test_only_the_health_check_looks_at_each_process(node: HookNode, healer: Healer) -> None:
    for pid, state in ((7, "D"), (8, "D"), (9, "S")):
        node.put(f"proc/{pid}/stat", f"{pid} (a b) c) {state} 1 1")
    node.run("prolog")
    node.run("health-check")
    assert [report["host"]["procs_blocked"] for report in healer.reports] == [1, 2]


def test_a_large_report_is_packed(node: HookNode, healer: Healer) -> None:
    node.program("usr/bin/nvidia-smi", smi("a", extra="<pad>" + "x" * 30_000 + "</pad>"))
    node.run("prolog")
    _, headers, (report,) = healer.requests[0]
    assert headers["Content-Encoding"] == "gzip" and int(headers["Content-Length"]) < 5_000
    assert len(report["nvidia_smi"]) > 30_000


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: fallen of[13080]: segfault at 0 ip 0000561a39cfd132 sp 00007ffc8e5adf70 error 6 in NVRM: "
        "fallen off the bus and is not responding to commands[1132,5607b4bcd000+1000] likely on CPU 1",
        "a[7]: segfault at 0 ip 0 sp 0 error 6 in " + LOST + "[1132,5607b4bcd000+1000]",
        "a[7]: segfault in x\\x0a" + LOST,
        "NVRM: Xid (PCI:0000:9b:00): 31, pid=7, name=fallen off the , Ch 1, GPU has fallen off the bus.",
    ],
)
def test_a_program_that_is_named_like_a_fault_loses_no_gpu(node: HookNode, healer: Healer, line: str) -> None:
    node.kernel(line)
    node.run("prolog")
    assert check_of(healer.reports[0], "gpu-lost") == ""


@pytest.mark.parametrize(
    "line",
    [
        LOST,
        "NVRM: GPU 0000:18:00.0: GPU has fallen off the bus.",
        "NVRM: fallen off the bus and is not responding to commands.",
        "NVRM: The NVIDIA GPU 0000:18:00.0\\x0aNVRM: (PCI ID: 10de:26b5) installed in this system has"
        "\\x0aNVRM: fallen off the bus and is not responding to commands.",
    ],
)
def test_each_form_in_which_the_driver_says_it_loses_the_gpu(
    node: HookNode, healer: Healer, line: str
) -> None:
    node.kernel(line)
    node.run("prolog")
    assert check_of(healer.reports[0], "gpu-lost")


def test_a_log_that_was_not_read_to_its_end_lost_no_gpu_and_kept_none(node: HookNode, healer: Healer) -> None:
    """A storm has more lines than one report: a check that passed would end what its first lines opened."""
    node.kernel(*[f"NVRM: Xid (PCI:0000:9b:00): 45, number {number}" for number in range(600)], LOST)
    node.run("prolog")
    node.run("prolog")
    assert [check_of(report, "gpu-lost") for report in healer.reports] == [
        None,
        "a GPU fell off the bus since boot",
    ]
    assert sum(len(report["kernel"]) for report in healer.reports) == 601


@pytest.mark.parametrize("end", ["</process_name></process_info></processes></gpu></nvidia_smi_log>", ""])
def test_a_processs_name_in_nvidia_smi_is_no_lost_gpu(node: HookNode, healer: Healer, end: str) -> None:
    said = "<nvidia_smi_log><gpu id='0'><processes><process_info><process_name>train GPU is lost"
    node.program("usr/bin/nvidia-smi", f'echo "{said}{end}"')
    node.run("prolog")
    assert check_of(healer.reports[0], "gpu-lost") == ""


@pytest.mark.parametrize(
    "name",
    [
        "</processes>GPU is lost<processes>",
        "<processes></processes>GPU is lost<processes>",
        "</processes></gpu><gpu id='9'><uuid>GPU is lost</uuid><processes>",
    ],
)
def test_a_process_named_like_the_output_of_nvidia_smi_says_nothing(
    node: HookNode, healer: Healer, name: str
) -> None:
    """nvidia-smi prints names as they are: a user may write XML into it."""
    node.settings["HEALER_HOOK_GPUS"] = "1"
    node.program("usr/bin/nvidia-smi", with_process(name))
    node.run("prolog")
    assert [check_of(healer.reports[0], one) for one in ("gpu-lost", "gpu-count")] == ["", None]
    assert healer.reports[0]["nvidia_smi"] == ""


def test_names_of_processes_are_not_sent(node: HookNode, healer: Healer) -> None:
    """One that is no XML would make healer refuse the whole output."""
    node.program("usr/bin/nvidia-smi", with_process("a&b<c"))
    node.run("prolog")
    sent = ElementTree.fromstring(healer.reports[0]["nvidia_smi"])
    assert sent.findtext("gpu/uuid") == "GPU-a" and sent.find("gpu/processes") is None


def test_lost_gpu_in_nvidia_smi_output_becomes_a_failed_check(node: HookNode, healer: Healer) -> None:
    node.program("usr/bin/nvidia-smi", smi("a", extra="<gpu id='b'><uuid>GPU is lost</uuid></gpu>"))
    node.run("prolog")
    assert check_of(healer.reports[0], "gpu-lost") == "nvidia-smi: a GPU is lost"


def test_the_site_may_name_its_node_and_slurmd_names_it_first(node: HookNode, healer: Healer) -> None:
    node.settings["HEALER_NODE"] = "gpu0007"
    node.run("prolog", environ={"SLURMD_NODENAME": ""})
    node.run("prolog")
    assert [report["node"] for report in healer.reports] == ["gpu0007", "gpu0001"]


# --- the site's own health check ---------------------------------------------------------------------------


def test_nhc_is_a_probe_that_may_not_drain(node: HookNode, healer: Healer, tmp_path: Path) -> None:
    said = "ERROR:  nhc:  Health check failed:  check_fs_free:  /tmp has only 1% free"
    seen = tmp_path / "seen"
    nhc = node.program(
        "nhc", f'echo "$* $MARK_OFFLINE" > {seen}\necho "node on its way"\necho "{said}"\nexit 1'
    )
    assert well(node.run("health-check", "--probe", str(nhc)))
    assert check_of(healer.reports[0], "probe") == said
    assert seen.read_text() == "MARK_OFFLINE=0 DETACHED_MODE=0 0\n"


@pytest.mark.parametrize(
    ("script", "verdict"),
    [("exit 0", ""), ("echo disk is gone; exit 2", "disk is gone"), ("exit 1", None), ("exec /nosuch", None)],
)
def test_a_program_that_says_nothing_or_cannot_run_is_no_verdict(
    node: HookNode, healer: Healer, script: str, verdict: str | None
) -> None:
    program = node.program("check", script)
    node.settings["HEALER_HOOK_PROBE"] = str(program)
    node.run("health-check")
    assert check_of(healer.reports[0], "probe") == verdict


def test_the_sites_program_runs_in_the_health_check_alone(node: HookNode, healer: Healer) -> None:
    node.settings["HEALER_HOOK_PROBE"] = str(node.program("check", "echo no; exit 1"))
    node.run("prolog")
    assert check_of(healer.reports[0], "probe") is None


# --- what fails it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("hook", "status"), [("prolog", 1), ("epilog", 1), ("health-check", 0)])
def test_a_permit_fails_a_prolog_and_an_epilog_and_no_health_check(
    node: HookNode, healer: Healer, hook: str, status: int
) -> None:
    healer.answer = PERMIT
    done = node.run(hook)
    assert done.returncode == status
    assert done.stdout == ("healer-hook: Xid 79: GPU fell off the bus\n" if status else "")


@pytest.mark.parametrize("answer", [True, False])
def test_expedited_requeue_is_served_by_an_epilog_that_fails_exactly_when_it_is_permitted(
    node: HookNode, healer: Healer, answer: bool
) -> None:
    node.kernel(LOST)
    healer.answer = PERMIT | {"may_refuse": answer}
    assert node.run("epilog", environ={"SLURM_JOB_ID": "7"}).returncode == int(answer)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"true",
        b'{"may_refuse": "true"}',
        b'{"reason": "may_refuse: true"}',
        b'["may_refuse", true]',
        b'{"may_refuse": true',
        b"\xff\x00 true",
        {"verdict": "isolate", "may_refuse": False, "reason": '"may_refuse":true'},
    ],
)
def test_answer_without_a_clear_permit_does_not_fail_the_hook(
    node: HookNode, healer: Healer, answer: Any
) -> None:
    healer.answer = answer
    assert well(node.run("epilog"))


def test_a_page_of_a_proxys_with_status_202_has_not_taken_the_report(node: HookNode, healer: Healer) -> None:
    healer.answer, healer.kind = b"<html>Prove that you are a browser</html>", "text/html"
    done = node.run("epilog", environ=life(4711, 0))
    assert done.returncode == 0 and "answered 202, but not as healer does" in done.stdout
    healer.answer = PERMIT | {"may_refuse": False}
    node.run("epilog", environ=life(4712, 0))
    assert [one["job"] for one in healer.reports] == ["4711", "4711", "4712"]


@pytest.mark.parametrize("status", [200, 204, 301, 400, 401, 404, 413, 429, 500, 503])
def test_another_answer_than_a_report_taken_fails_nothing_and_keeps_the_report(
    node: HookNode, healer: Healer, status: int
) -> None:
    healer.answer, healer.status, healer.kind = PERMIT, status, "text/html"
    done = node.run("epilog")
    assert done.returncode == 0 and str(status) in done.stdout
    assert len(node.spooled) == 1


def test_a_spool_that_others_may_read_keeps_reports_and_no_one_else_can_block_it(
    node: HookNode, healer: Healer
) -> None:
    """As `mkdir` makes a folder: its names are no secret, its files are root's alone."""
    node.spool.mkdir(mode=0o755)
    node.spool.chmod(0o755)
    healer.status = 503
    assert node.run("epilog").returncode == 0
    (report,) = node.spool.glob("*.json")
    assert report.stat().st_mode & 0o777 == 0o600
    healer.status = 202
    folder = os.open(node.spool, os.O_RDONLY)  # as any user of the node may open it
    fcntl.flock(folder, fcntl.LOCK_EX)
    node.run("prolog")
    os.close(folder)
    assert node.spooled == []
    assert {name.stat().st_mode & 0o077 for name in node.spool.iterdir()} <= {0}


def test_what_waits_is_sent_from_a_disk_that_has_become_read_only(node: HookNode, healer: Healer) -> None:
    """Such a disk is a fault, and what waits on it may say why."""
    healer.status = 503
    node.run("epilog")
    healer.status = 202
    healer.requests.clear()
    inner = f'mount --bind {node.spool} {node.spool} && mount -o remount,bind,ro {node.spool} && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", inner, "sh", *node.command("prolog")]
    subprocess.run(command, env={**clean_environ(), "SLURMD_NODENAME": "gpu0001"}, check=True, timeout=60)
    assert [[one["hook"] for one in reports] for _, _, reports in healer.requests] == [["epilog", "prolog"]]


@pytest.mark.parametrize("mode", [0o770, 0o777])
def test_a_spool_that_others_may_write_is_not_used(node: HookNode, healer: Healer, mode: int) -> None:
    node.spool.mkdir()
    node.spool.chmod(mode)
    healer.status = 503
    done = node.run("epilog")
    assert done.returncode == 0 and str(node.spool) in done.stdout
    assert list(node.spool.iterdir()) == []


def test_a_report_that_healer_will_never_take_is_not_sent_again(node: HookNode, healer: Healer) -> None:
    healer.status = 422
    assert node.run("epilog").returncode == 0
    assert node.spooled == []


@pytest.mark.parametrize(
    ("listed", "status"), [("", 0), ("fs-full", 0), ("gpu-lost", 1), ("fs-full,gpu-lost", 1)]
)
def test_away_only_a_certain_fault_that_the_site_listed_fails_it(
    node: HookNode, listed: str, status: int
) -> None:
    node.settings |= {"HEALER_URL": unused_url(), "HEALER_HOOK_FAIL_CLOSED": listed}
    node.kernel(LOST)
    done = node.run("prolog")
    assert done.returncode == status
    assert done.stdout.count("\n") == 1
    assert node.spooled[0].get("refused") == ("gpu-lost" if status else None)
    assert node.run("health-check").returncode == 0


def test_a_drain_by_a_listed_fault_is_reported_though_its_first_report_was_refused(
    node: HookNode, healer: Healer
) -> None:
    """Else healer takes it for Slurm's own, and never returns the node."""
    healer.status = 422
    node.settings["HEALER_HOOK_FAIL_CLOSED"] = "gpu-lost"
    node.kernel(LOST)
    assert node.run("prolog", environ=life(4711, 0)).returncode == 1
    (kept,) = node.spooled
    assert (kept["refused"], kept["job"], "kernel" in kept) == ("gpu-lost", "4711", False)
    healer.status = 202
    assert well(node.run("health-check"))
    later = msgspec.convert(healer.reports[1], HookReport)
    assert later.hook == "prolog" and later.refused in {check.name for check in later.checks if check.text}
    assert node.spooled == []


def test_a_gpu_that_was_lost_earlier_in_this_boot_still_counts(node: HookNode, healer: Healer) -> None:
    node.kernel(LOST)
    node.settings["HEALER_HOOK_FAIL_CLOSED"] = "gpu-lost"
    assert node.run("epilog").returncode == 0, "healer answered: its word counts, and no local one"
    assert "refused" not in healer.reports[0]
    node.settings["HEALER_URL"] = unused_url()
    assert node.run("prolog").returncode == 1


def test_uncertain_fault_cannot_be_listed(node: HookNode) -> None:
    node.settings |= {"HEALER_URL": unused_url(), "HEALER_HOOK_FAIL_CLOSED": "xid,procs_blocked"}
    node.kernel(FATAL)
    assert node.run("prolog").returncode == 0


# --- when things hang --------------------------------------------------------------------------------------


def test_an_api_that_hangs_holds_no_job_up(node: HookNode, healer: Healer) -> None:
    healer.hangs = True
    done = node.run("prolog")  # ends in time, or TimeoutExpired
    assert done.returncode == 0 and done.stdout.startswith("healer-hook: 127.0.0.1:")
    assert len(node.spooled) == 1


def test_a_second_address_of_healer_is_asked_where_the_first_is_silent(healer: Healer) -> None:
    """A name may have an address of IPv6 that nothing listens at, or those of two machines."""
    loader = SourceFileLoader("healer_hook", str(HOOK))
    spec = spec_from_loader("healer_hook", loader)
    assert spec is not None
    hook = module_from_spec(spec)
    loader.exec_module(hook)
    port, silent = healer.server.server_port, int(unused_url().rpartition(":")[2])
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", at)) for at in (silent, port)]
    request = b"POST / HTTP/1.0\r\nContent-Length: 2\r\n\r\n[]"
    with mock.patch.object(hook._socket, "getaddrinfo", lambda *_: found):
        answer = hook.exchange("http", f"healer:{port}", None, request, time.monotonic() + 3)
    assert answer.startswith(b"HTTP/1.0 202")


def test_an_nvidia_smi_that_hangs_is_left_out_and_nothing_of_it_stays(node: HookNode, healer: Healer) -> None:
    pids = node.root / "pids"
    node.program("usr/bin/nvidia-smi", f"trap '' TERM\nsleep 60 & echo $! $$ > {pids}\nwait")
    assert well(node.run("epilog"))
    assert healer.reports[0]["nvidia_smi"] == ""
    alive = [pid for pid in pids.read_text().split() if _runs(pid)]
    assert alive == []


def test_no_second_nvidia_smi_is_started_beside_one_that_cannot_be_ended(
    node: HookNode, healer: Healer
) -> None:
    """It leaves the process group that is killed: to the hook that is what hanging in the kernel is."""
    pids = node.root / "pids"
    script = (
        "import os, time\nif os.fork() == 0:\n    os.setpgid(0, 0)\n    time.sleep(30)\n    os._exit(0)\n"
        f"open({str(pids)!r}, 'a').write(str(os.getpid()) + ' ')\ntime.sleep(0.1)\n"
        "os.setpgid(0, int(open('/proc/self/task/%d/children' % os.getpid()).read().split()[0]))\n"
        "time.sleep(30)\n"
    )
    node.put("smi.py", script)
    node.program("usr/bin/nvidia-smi", f"exec {sys.executable} {node.root}/smi.py")
    for _ in range(3):
        assert well(node.run("prolog"))
    (pid,) = pids.read_text().split()
    os.killpg(os.getpgid(int(pid)), signal.SIGKILL)
    wait_until(lambda: not _runs(pid), what="it has ended")
    node.run("prolog")
    started = pids.read_text().split()
    assert len(started) == 2, "once that one is gone it is asked again"
    os.killpg(os.getpgid(int(started[1])), signal.SIGKILL)


def _runs(pid: str) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] not in "ZX"


def test_hanging_probe_cannot_delay_the_hook_and_a_listed_fault_still_counts(
    node: HookNode, healer: Healer
) -> None:
    healer.hangs = True
    node.kernel(LOST)
    node.program("usr/bin/nvidia-smi", "exec sleep 60")
    node.settings["HEALER_HOOK_FAIL_CLOSED"] = "gpu-lost"
    assert node.run("prolog").returncode == 1


def test_reader_of_the_hook_output_waits_for_no_child(node: HookNode, healer: Healer) -> None:
    # slurmd reads until the pipe closes; a program that left the process group may live on.
    node.program("usr/bin/nvidia-smi", "setsid sleep 30 &\nexec sleep 30")
    done = node.run("epilog")
    assert well(done)


# --- where it runs -----------------------------------------------------------------------------------------


def test_it_needs_no_environment_no_streams_and_no_folder(
    node: HookNode, healer: Healer, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    close = (
        "import os, sys\nos.chdir(sys.argv[1]); os.rmdir(sys.argv[1])\nfor fd in (0, 1, 2): os.close(fd)\n"
    )
    close += "os.execve(sys.argv[2], sys.argv[2:], {})"
    command = [sys.executable, "-c", close, str(gone), *node.command("prolog")]
    assert subprocess.run(command, check=False, timeout=PROMISED_S + 5).returncode == 0
    assert healer.reports[0]["node"] == os.uname().nodename.partition(".")[0]


def test_a_missing_or_wrong_setting_is_one_line_and_no_failure(tmp_path: Path) -> None:
    node = HookNode(tmp_path, "ftp://nowhere")
    done = node.run("prolog")
    assert done.returncode == 0 and done.stdout == "healer-hook: HEALER_URL is no web address\n"
    done = node.run(
        "prolog", "--conf", "/nosuch/hook.conf", environ={"HEALER_HOOK_SPOOL": str(tmp_path / "spool")}
    )
    assert done.returncode == 0 and "/nosuch/hook.conf" in done.stdout
    assert node.run("nosuch").returncode == 0


def test_the_token_is_never_printed_nor_kept(node: HookNode) -> None:
    node.settings["HEALER_URL"] = unused_url()
    done = node.run("prolog")
    assert TOKEN not in done.stdout + done.stderr + str(node.spooled)


def test_a_program_that_cannot_be_read_by_this_python_is_no_bad_node(node: HookNode, tmp_path: Path) -> None:
    broken = tmp_path / "healer-hook"
    broken.write_text(HOOK.read_text() + "\nthis is no Python\n")
    broken.chmod(0o755)
    assert node.run("prolog", hook_file=broken).returncode == 0


def test_the_file_is_python_3_6_of_the_standard_library_and_calls_nothing_of_slurms() -> None:
    source = HOOK.read_text()
    tree = ast.parse(source, feature_version=(3, 6))
    imported = {
        name.name
        for one in ast.walk(tree)
        if isinstance(one, ast.Import | ast.ImportFrom)
        for name in one.names
    }
    assert imported <= {
        "_json", "_signal", "_socket", "fcntl", "json", "os", "re", "select", "socket", "ssl", "sys", "time",
        "zlib",
    }  # fmt: skip
    assert not any(word in source for word in ("scontrol", "squeue", "sinfo"))


def test_health_check_sends_the_hardware_inventory(node: HookNode, healer: Healer) -> None:
    node.put("proc/sys/kernel/osrelease", "6.8.0-60-generic\n")
    node.put("sys/class/dmi/id/bios_version", "1.4.2\n")
    for card, firmware in (("mlx5_0", "28.39.1002"), ("mlx5_1", "28.38.1000"), ("mlx5_2", "28.39.1002")):
        node.put(f"sys/class/infiniband/{card}/fw_ver", firmware + "\n")
        node.put(f"sys/class/infiniband/{card}/device/net/ib{card[-1]}/mtu", "4092\n")
        node.put(f"sys/class/infiniband/{card}/ports/1/state", "4: ACTIVE\n")
    node.run("health-check")
    node.run("prolog")
    whole, short = healer.reports
    assert whole["inventory"] == {
        "kernel": "6.8.0-60-generic",
        "bios": "1.4.2",
        "nic_firmware": "28.38.1000, 28.39.1002",
        "mtu": "4092",
    }
    assert "inventory" not in short


def test_nvidia_smi_answer_is_sent(node: HookNode, healer: Healer) -> None:
    node.program("usr/bin/nvidia-smi", smi("a", "b"))
    node.run("health-check")
    assert healer.reports[0]["host"]["nvidia_smi_answers"] == 1


def test_an_nvidia_smi_that_fails_and_ends_does_not_hang(node: HookNode, healer: Healer) -> None:
    node.program("usr/bin/nvidia-smi", "exit 9")
    node.run("health-check")
    assert healer.reports[0]["host"]["nvidia_smi_answers"] == 1
