"""`healer import` over what real programs write here: Slurm 22.05 and 24.11, rsyslog, systemd's journal."""

import errno
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from healer.commands import Failed
from healer.commands.import_history import files_of
from healer.embedded.embedded_slurm import RealSlurm
from tests.support import slurm, trixie
from tests.support.forked import run
from tests.support.processes import clean_environ, descendants, name_of
from tests.support.rsyslog import Rsyslog
from tests.support.slurm import clean, hands, real_slurm, sbatch  # noqa: F401 - a fixture
from tests.support.wait import wait_until

HEALER = Path(__file__).parents[3] / ".venv" / "bin" / "healer"
REMOTE = "/lib/systemd/systemd-journal-remote"
#: Lines of a source that is read now are of now.
NOW = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
XID = "NVRM: Xid (PCI:0000:9b:00): 79, pid=1, name=a, GPU has fallen off the bus."


def healer(*words: str | Path) -> Any:
    """The JSON that the command prints, every rule automatic."""
    done = run([*map(str, words), "--json"], clean_environ(HEALER_MODE="auto", TZ="UTC"), timeout=120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def changes(recording: Path, kind: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in recording.read_text().splitlines()]
    return [
        row | {"shown_s": datetime.fromisoformat(entry["at"]).timestamp()}
        for entry in entries
        if entry["route"] == f"slurm/{kind}"
        for row in entry["body"].get("changed", [])
    ]


@pytest.mark.slurm
@pytest.mark.parametrize("cluster", [slurm.started, trixie.started], ids=["22.05", "24.11"])
def test_drains_and_jobs_of_a_real_slurm(cluster: Callable[[], RealSlurm], tmp_path: Path) -> None:
    site = cluster()
    begin = site.slurmctld_log.stat().st_size
    done_s: dict[str, float] = {}

    def timed(name: str, *command: str) -> None:
        site.run(*command)
        done_s[name] = time.time()

    quick = sbatch(site, "-w", "gpu0001", script="exit 3")
    long = sbatch(site, "-w", "gpu0002,gpu0003", "-N2", gpus=8)
    scheduler = hands(site)
    try:
        wait_until(lambda: site.run("squeue", "-h", "-j", long, "-o", "%T").strip() == "RUNNING", 30)
        ended = ("FAILED", "COMPLETED")
        wait_until(lambda: (job := scheduler.job(quick)) is not None and job.state in ended, 30)
        timed("drain", "scontrol", "update", "NodeName=gpu0005", "State=DRAIN", "Reason=fan 4711")
        timed("requeue", "scontrol", "requeue", long)
        time.sleep(1.2)
        timed("resume", "scontrol", "update", "NodeName=gpu0005", "State=RESUME")
        timed("out", "scontrol", "update", "NodeName=gpu0006", "State=DRAIN", "Reason=nvlink")
        (tmp_path / "slurmctld.log").write_bytes(site.slurmctld_log.read_bytes()[begin:])
        (tmp_path / "sinfo.txt").write_text(site.run("sinfo", "-R"))
        (tmp_path / "nodes.txt").write_text(site.run("scontrol", "show", "node"))
    finally:
        clean(site, [quick, long])

    recording = tmp_path / "past.jsonl"
    names = ("slurmctld.log", "sinfo.txt", "nodes.txt")
    report = healer("import", *(tmp_path / name for name in names), "--output", recording)
    assert [source["kind"] for source in report["sources"]] == ["slurmctld", "sinfo-R", "nodes"]
    assert [source["skipped"] for source in report["sources"]] == [{}, {}, {}]
    assert report["nodes"] == site.nodes

    drained, back = [row for row in changes(recording, "nodes") if row["name"] == "gpu0005"]
    assert (drained["state"], drained["reason"], drained["gpus"]) == (["IDLE", "DRAIN"], "fan 4711", 8)
    assert drained["shown_s"] == pytest.approx(done_s["drain"], abs=1.5)
    assert back["state"] == ["IDLE"]
    assert back["shown_s"] == pytest.approx(done_s["resume"], abs=1.5)
    out = [row for row in changes(recording, "nodes") if row["name"] == "gpu0006"]
    assert out[-1]["reason_user"] == "root"
    jobs = changes(recording, "jobs")
    assert [row["state"] for row in jobs if row["id"] == quick] == ["RUNNING", "FAILED"]
    lives = [row for row in jobs if row["id"] == long]
    assert [(row["state"], row["restarts"]) for row in lives][:2] == [("RUNNING", 0), ("PENDING", 1)]
    assert lives[0]["nodes"] == ["gpu0002", "gpu0003"]
    assert lives[1]["shown_s"] == pytest.approx(done_s["requeue"], abs=1.5)

    document = healer("replay", recording)
    opened = {incident["root"]["node"]: incident for incident in document["incidents"]}
    assert opened["gpu0005"]["rule"] == opened["gpu0006"]["rule"] == "person-drain"
    at_s = datetime.fromisoformat(opened["gpu0005"]["opened"]).timestamp()
    assert at_s == pytest.approx(done_s["drain"], abs=1.5)


TEMPLATES = ("RSYSLOG_TraditionalFileFormat", "RSYSLOG_FileFormat", "RSYSLOG_SyslogProtocol23Format")


def test_kernel_lines_from_each_rsyslog_template_are_imported(scratch: Path) -> None:
    """The kernel line is found with each of three templates; a line of a user's program is not."""
    relay = Rsyslog(scratch, "http://127.0.0.1:9", "none")
    files = [scratch / f"{name}.log" for name in TEMPLATES]
    actions = [
        f'action(type="omfile" file="{file}" template="{name}")\n'
        for file, name in zip(files, TEMPLATES, strict=True)
    ]
    relay.conf.write_text("".join([relay.conf.read_text(), *actions]))
    try:
        relay.start()
        relay.kernel(f"3,1,150000001,-;{XID}")
        relay.logger("-t", "nvidia", XID)
        wait_until(lambda: all(f.exists() and f.read_text().count("Xid") == 2 for f in files), 30)
    finally:
        relay.stop()
        relay.close()
    for file in files:
        report = healer("import", file, "--output", scratch / "past.jsonl")
        (source,) = report["sources"]
        assert (source["kind"], source["signals"]) == ("syslog", 1), file.read_text()
        assert list(source["skipped"]) == ["not written by the kernel itself"]
        document = healer("replay", scratch / "past.jsonl")
        assert [incident["rule"] for incident in document["incidents"]] == ["gpu-lost"]


def test_kernel_lines_from_each_journalctl_format_are_imported(tmp_path: Path) -> None:
    record = (
        "__REALTIME_TIMESTAMP=1763640000000000\n__MONOTONIC_TIMESTAMP=150000001\n"
        "_BOOT_ID=0b11d014168544bda6ed5fc0bc1c44ae\n_MACHINE_ID=11111111111111111111111111111111\n"
        "_HOSTNAME=gpu0001.site.example\n_SOURCE_MONOTONIC_TIMESTAMP=150000001\n"
    )
    kernel = f"{record}_TRANSPORT=kernel\nSYSLOG_FACILITY=0\nSYSLOG_IDENTIFIER=kernel\nMESSAGE={XID}\n\n"
    forged = f"{record}_TRANSPORT=syslog\n_PID=7\nSYSLOG_IDENTIFIER=kernel\nMESSAGE={XID}\n\n"
    file = tmp_path / "node.journal"
    subprocess.run([REMOTE, "-o", str(file), "-"], input=(kernel + forged).encode(), check=True, timeout=60)
    digests = []
    for form in ("json", "export"):
        printed = tmp_path / f"printed.{form}"
        with printed.open("wb") as out:
            subprocess.run(["journalctl", f"--file={file}", "-o", form], stdout=out, check=True, timeout=60)
        report = healer("import", printed, "--output", tmp_path / "past.jsonl")
        (source,) = report["sources"]
        assert (source["kind"], source["signals"], source["plain"]) == (f"journal-{form}", 1, 1)
        (incident,) = healer("replay", tmp_path / "past.jsonl")["incidents"]
        assert (incident["root"]["node"], incident["opened"]) == ("gpu0001", "2025-11-20T12:00:00Z")
        digests.append(incident["id"])
    assert digests[0] == digests[1]


def test_standard_input_and_wrong_use(tmp_path: Path) -> None:
    line = f"{NOW} gpu0001 kernel: {XID}\n"
    environ = clean_environ() | {"HEALER_MODE": "auto"}
    words = ["import", "-", "--as", "syslog", "--output", str(tmp_path / "r.jsonl")]
    done = run(words, environ, given=line)
    assert done.returncode == 0 and "1 signal, " in done.stdout
    for wrong, said in (
        (["import", "-", "--as", "nonsense", "--output", "r"], "not one of syslog"),
        (["import", str(tmp_path / "missing"), "--output", "r"], "cannot be read"),
        (["import", "-", "--time-zone", "Mars", "--output", "r"], "not a time zone"),
        (["import", "-", "--output", str(tmp_path / "no" / "r")], "is not a folder"),
        (["import", "-", "--output", str(tmp_path)], f"{tmp_path} cannot be written: Is a directory"),
    ):
        done = run(wrong, environ)
        assert done.returncode != 0 and said in " ".join(done.stderr.split()), done.stderr
    assert os.listdir(tmp_path) == ["r.jsonl"]


def test_standard_input_beside_large_files_and_a_pipe(tmp_path: Path) -> None:
    """Large files are read by processes of their own, which have no standard input."""
    environ = clean_environ() | {"HEALER_MODE": "auto"}
    large = tmp_path / "messages"
    large.write_text(f"{NOW} gpu0002 cron: {'x' * 200}\n" * 40_000)
    words = ["import", "-", str(large), "--as", "syslog", "--output", str(tmp_path / "r.jsonl")]
    done = run(words, environ, given=f"{NOW} gpu0001 kernel: {XID}\n")
    assert done.returncode == 0 and "1 line, 1 signal, " in done.stdout, done.stdout
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    done = run(["import", str(pipe), "--output", str(tmp_path / "p")], environ, timeout=60)
    assert done.returncode == 1 and "not a regular file" in " ".join(done.stderr.split())


def test_an_import_of_nothing_keeps_the_existing_recording(tmp_path: Path) -> None:
    recording, log, other = tmp_path / "past.jsonl", tmp_path / "messages", tmp_path / "notes"
    log.write_text(f"{NOW} gpu0001 kernel: {XID}\n")
    healer("import", log, "--output", recording)
    before = recording.read_bytes()
    other.write_text("buy milk\n")
    done = run(["import", str(other), "--output", str(recording)], clean_environ())
    assert done.returncode == 1 and "recognised nothing" in done.stderr
    assert "past.jsonl" not in done.stdout and recording.read_bytes() == before
    assert sorted(os.listdir(tmp_path)) == ["messages", "notes", "past.jsonl"]


def test_a_killed_import_goes_on(tmp_path: Path) -> None:
    """kill -9 while two processes read; the second start gives the bytes of one that nothing interrupted."""
    (tmp_path / "logs").mkdir()
    for number in range(2):
        lines = f"{NOW} gpu000{number} cron: {'x' * 200}\n" * 20_000 + f"{NOW} gpu0001 kernel: {XID}\n"
        (tmp_path / "logs" / f"{number}").write_text(lines)
    words = ["import", tmp_path / "logs", "--output"]
    healer(*words, tmp_path / "whole.jsonl")
    environ = clean_environ() | {"HEALER_MODE": "auto", "TZ": "UTC"}
    killed = subprocess.Popen([HEALER, *words, tmp_path / "r.jsonl"], env=environ, stdout=subprocess.DEVNULL)
    work = tmp_path / ".import-r.jsonl"
    # Before, kill -9 may hit a process that makes a semaphore, which then stays in /dev/shm.
    wait_until(lambda: len(reading_for(killed.pid)) == 2, 60, every_s=0.01)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "r.jsonl").exists() and work.is_dir()
    healer(*words, tmp_path / "r.jsonl")
    assert (tmp_path / "r.jsonl").read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not work.exists()


def reading_for(importer: int) -> list[int]:
    """The processes in which it reads."""
    return [pid for pid in descendants(importer) if "spawn_main" in name_of(pid)]


@contextmanager
def import_at_work(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An import of 80 files, of which a few are read."""
    (folder / "logs").mkdir()
    for number in range(80):
        (folder / "logs" / f"{number}").write_text(f"{NOW} gpu0001 kernel: {XID}\n" * 1500)
    environ = clean_environ() | {"HEALER_MODE": "auto", "TZ": "UTC"}
    words = [HEALER, "import", folder / "logs", "--output", folder / "r.jsonl"]
    with subprocess.Popen(words, env=environ, start_new_session=True, stderr=subprocess.PIPE) as process:
        wait_until(lambda: len(read_already(folder)) > 4, 60)
        yield process


def read_already(folder: Path) -> list[Path]:
    return list((folder / ".import-r.jsonl").glob("*.read"))


@pytest.mark.parametrize("whole_group", [True, False])
def test_an_interrupted_import_ends_at_once(tmp_path: Path, whole_group: bool) -> None:
    """Ctrl-C reaches the processes that read too, `kill -INT` only the first."""
    with import_at_work(tmp_path) as process:
        (os.killpg if whole_group else os.kill)(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130 and b"Traceback" not in said
    assert len(read_already(tmp_path)) < 40


def test_a_reader_that_was_killed_is_said(tmp_path: Path) -> None:
    with import_at_work(tmp_path) as process:
        task = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        os.kill(int(task.read_text().split()[-1]), signal.SIGKILL)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 1 and b"Traceback" not in said
    assert b"was killed" in said and read_already(tmp_path)


def test_an_import_into_its_own_folder_reads_nothing_that_it_wrote(tmp_path: Path) -> None:
    (tmp_path / "messages").write_text(f"{NOW} gpu0001 kernel: {XID}\n")
    (tmp_path / ".import-r.jsonl").mkdir(mode=0o700)
    (tmp_path / ".import-r.jsonl" / "000000.read").write_bytes(b"of an import that was interrupted")
    for _ in range(2):
        done = healer("import", tmp_path, "--output", tmp_path / "r.jsonl")
        assert [Path(source["source"]).name for source in done["sources"]] == ["messages"]


def test_what_is_no_file_in_a_folder_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A link to a folder is not followed, as it may lead back; the rest cannot be read twice."""
    folder = tmp_path / "logs"
    folder.mkdir()
    (folder / "messages").write_text("")
    (folder / "same").symlink_to("messages")
    assert files_of(str(folder), tmp_path / "r") == [str(folder / "messages"), str(folder / "same")]
    assert capsys.readouterr().err == ""
    (folder / "gpu0001").mkdir()
    os.mkfifo(folder / "gpu0001" / "pipe")
    (folder / "loop").symlink_to(".")
    (folder / "nowhere").symlink_to("gone")
    (folder / "zero").symlink_to("/dev/zero")
    assert files_of(str(folder), tmp_path / "r") == [str(folder / "messages"), str(folder / "same")]
    assert capsys.readouterr().err == (
        f"{folder}: 4 entries are left out, as they are no files: gpu0001/pipe, loop, nowhere, zero\n"
    )


def test_a_folder_without_files_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert files_of(str(tmp_path), tmp_path / "r") == []
    assert capsys.readouterr().err == f"{tmp_path}: no files\n"


def test_a_folder_without_rights_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rglob` says nothing of it. Root may read all, so the system's answer is played."""
    (tmp_path / "gpu0002").mkdir()
    scandir = os.scandir

    def without_rights(path: Any) -> Any:
        if Path(path).name == "gpu0002":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", without_rights)
    with pytest.raises(Failed, match="gpu0002 cannot be read: Permission denied"):
        files_of(str(tmp_path), tmp_path / "r")


def test_the_report_as_html_pdf_and_json(tmp_path: Path) -> None:
    log = tmp_path / "messages"
    log.write_text(f"{NOW} gpu0001 kernel: {XID}\n{NOW} gpu0002 cron: x\n")
    recording = tmp_path / "past.jsonl.zst"
    healer("import", log, "--output", recording)
    document = healer("report", recording, "--output", tmp_path / "report.pdf")
    assert [answer["word"] for answer in document["answers"]] == ["unneeded"]
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF-")
    healer("report", recording, "--output", tmp_path / "report.html")
    assert XID in (tmp_path / "report.html").read_text()
    missing = tmp_path / "no" / "report.html"
    done = run(["report", str(recording), "--output", str(missing)], clean_environ())
    assert done.returncode == 1 and f"{missing} cannot be written: No such file" in done.stderr
    (tmp_path / "empty.jsonl").write_text("")
    done = run(["report", str(tmp_path / "empty.jsonl")], clean_environ())
    assert done.returncode == 1 and "empty" in done.stderr
