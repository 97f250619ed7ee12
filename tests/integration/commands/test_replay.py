"""`healer replay --json`: standard output is one document and nothing else."""

import json
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from pathlib import Path

import cramjam
import pytest

from healer.recordings.recording_folder import RecordingFolder, lines_of
from healer.sim.sim_clock import SimClock
from tests.support.forked import run
from tests.support.processes import clean_environ

pytestmark = pytest.mark.heavy

ROOT = Path(__file__).parents[3]

LINES = [
    {
        "at": "2026-11-20T03:00:00Z",
        "route": "slurm/nodes",
        "body": {"cluster": "pod1", "nodes": [{"name": "a1"}]},
    },
    {"at": "2026-11-20T03:00:01Z", "route": "signals/heartbeat", "body": {"cluster": "pod1", "node": "b1"}},
    {"at": "2026-11-20T03:00:02Z", "route": "signals/of-tomorrow", "body": {}},
]


def test_warnings_are_not_part_of_the_document() -> None:
    given = "".join(json.dumps(line) + "\n" for line in LINES)
    done = run(["replay", "-", "--json"], clean_environ(), given=given)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "incidents": [],
        "merged": [],
        "actions": [],
        "held": [],
        "differences": [],
    }
    assert "signals rejected" in done.stderr
    assert "signals/of-tomorrow" in done.stderr


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b'{"at": "0001-01-01T00:00:00+23:59", "route": "clock"}', "1 is not a plausible year"),
        (b'{"at": "9999-12-31T23:59:59Z", "route": "clock"}', "9999 is not a plausible year"),
        (b'{"at": "2026-11-20T03:00:03Z", "route": "//[x"}', "Invalid IPv6 URL"),
        (b'{"at": "2026-11-20T03:00:03Z", "route": "clock", "body": "\xff"}', "not UTF-8"),
    ],
)
def test_a_line_that_is_no_entry_is_named(tmp_path: Path, line: bytes, why: str) -> None:
    """Of a plain file, a packed one, and standard input."""
    raw = "".join(json.dumps(line) + "\n" for line in LINES).encode() + line + b"\n"
    plain, packed = tmp_path / "r.jsonl", tmp_path / "r.jsonl.zst"
    plain.write_bytes(raw)
    packed.write_bytes(bytes(cramjam.zstd.compress(raw)))
    for file in (plain, packed):
        done = healer("replay", file)
        assert (done.returncode, done.stderr.splitlines()[-1]) == (1, f"healer: {file}, line 4: {why}")
    with plain.open("rb") as given:
        command = [ROOT / ".venv/bin/healer", "replay", "-"]
        done = subprocess.run(command, stdin=given, capture_output=True, text=True, check=False)
    assert f"line 4: {why}" in done.stderr and "Traceback" not in done.stderr


def healer(*args: str | Path, given: str = "", **environ: str) -> subprocess.CompletedProcess[str]:
    environ = clean_environ(HEALER_MODE="auto", HEALER_SETTLE_S="0.5", **environ)
    return run([*map(str, args)], environ, given=given, timeout=120)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as the recorder leaves it, of a run on a real Slurm."""
    folder = tmp_path_factory.mktemp("recordings")
    lines = [json.loads(line) for line in (ROOT / "tests/recordings/lost-gpu.jsonl").read_text().splitlines()]
    clock = SimClock(datetime.fromisoformat(lines[0]["at"]))
    made = RecordingFolder(folder, max_bytes=10**9, max_age=timedelta(days=1), now=clock.now)
    for line in lines:
        clock.set(datetime.fromisoformat(line["at"]))
        made.begun()
        made.write(json.dumps(line).encode(), clock.now(), line["route"])
    made.close()
    return folder


@pytest.fixture(scope="module")
def milder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The shipped rules, but a lost GPU is only looked at."""
    folder = tmp_path_factory.mktemp("site") / "rules"
    shutil.copytree(ROOT / "rules", folder)
    file = folder / "policies.yaml"
    text = file.read_text()
    assert "- name: gpu-lost\n" in text
    file.write_text(text.replace("- name: gpu-lost\n", "- name: gpu-lost\n  mode: shadow\n"))
    return folder


def test_a_folder_replays_as_the_file_that_it_was_made_of(recorded: Path) -> None:
    whole = healer("replay", ROOT / "tests/recordings/lost-gpu.jsonl", "--json")
    assert healer("replay", recorded, "--json").stdout == whole.stdout
    assert json.loads(whole.stdout)["actions"]


def test_standard_input_is_cut_as_a_file_is(recorded: Path) -> None:
    file = ROOT / "tests/recordings/lost-gpu.jsonl"
    opened = json.loads(healer("replay", file, "--json").stdout)["incidents"][0]["opened"]
    before = (datetime.fromisoformat(opened) - timedelta(seconds=5)).isoformat()
    for option in ("--since", "--until"):
        args = ("--json", option, before)
        cut = healer("replay", file, *args).stdout
        assert healer("replay", "-", *args, given=file.read_text()).stdout == cut, option
    assert json.loads(cut)["incidents"] == []


def test_a_pipe_is_replayed_as_its_file_is(tmp_path: Path) -> None:
    file, pipe = ROOT / "tests/recordings/lost-gpu.jsonl", tmp_path / "pipe"
    os.mkfifo(pipe)
    twice = healer("replay", pipe, "--against", "shipped")
    assert twice.returncode == 2 and "only once" in " ".join(twice.stderr.replace("│", " ").split())
    with ThreadPoolExecutor(1) as threads:
        written = threads.submit(pipe.write_bytes, file.read_bytes())
        done = healer("replay", pipe, "--json")
        written.result()
    assert json.loads(done.stdout)["incidents"]
    assert done.stdout == healer("replay", file, "--json").stdout


def test_two_rule_sets_side_by_side_and_the_status_for_ci(recorded: Path, milder: Path) -> None:
    side = ("replay", recorded, "--rules", milder, "--against", "shipped")
    done = healer(*side, "--json", "--fail-on", "new-actions")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    gone = [(one["action"], one["held"]["guard"]) for one in found["actions"]["lost"] if one["held"]]
    assert ("drain", "mode") in gone
    assert found["span"]["cluster"]
    lost, any_ = (healer(*side, "--fail-on", kind) for kind in ("lost", "any"))
    assert (lost.returncode, any_.returncode) == (3, 3)
    assert "Missing actions" in lost.stdout and "held there by mode" in lost.stdout
    same = healer("replay", recorded, "--against", "shipped", "--fail-on", "any")
    assert (same.returncode, same.stdout) == (0, "No difference.\n")


def test_failed_comparison_exits_with_a_status_of_its_own(
    recorded: Path, milder: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "rules"
    shutil.copytree(milder, broken)
    (broken / "policies.yaml").write_text("- name: 7\n")
    wrong = healer("replay", recorded, "--against", broken, "--fail-on", "any")
    assert (wrong.returncode, wrong.stdout) == (1, "")
    assert "policies.yaml:1" in wrong.stderr
    twice = healer("replay", "-", "--against", "shipped", "--fail-on", "any")
    assert twice.returncode == 2
    assert "only once" in " ".join(twice.stderr.replace("│", " ").split())


def test_a_replay_that_finds_nothing_says_so_and_of_what_time(recorded: Path, tmp_path: Path) -> None:
    """Otherwise a quiet month looks like a folder without recordings."""
    quiet = tmp_path / "quiet.jsonl"
    quiet.write_text("".join(json.dumps(line) + "\n" for line in LINES[:1]))
    words = (
        "Nothing was found from 2026-11-20 03:00:00 UTC to 2026-11-20 03:00:00 UTC: no incident, no action.\n"
    )
    assert healer("replay", quiet).stdout == words
    for where in ([tmp_path / "none"], [recorded, "--since", "1h"]):
        (tmp_path / "none").mkdir(exist_ok=True)
        done = healer("replay", *where)
        assert done.stdout == "Nothing is recorded in this time: nothing was replayed.\n", done.stderr


def test_a_comparison_of_nothing_is_no_agreement(recorded: Path, tmp_path: Path) -> None:
    side = ("--against", "shipped", "--fail-on", "any")
    for where in ([tmp_path], [recorded, "--since", "1h"]):  # an empty folder, and after the last entry
        done = healer("replay", *where, *side)
        assert (done.returncode, done.stdout) == (1, "")
        assert "nothing to compare" in done.stderr


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--fail-on", "any"], "needs --against"),
        (["--against", "shipped", "--fail-on", "all"], "new-actions, lost, any"),
        (["--since", "yesterday"], "a time with a zone"),
        (["--until", "2026-11-20T03:00:00"], "a time with a zone"),
    ],
)
def test_invalid_options_are_refused_with_the_reason(recorded: Path, args: list[str], why: str) -> None:
    done = healer("replay", recorded, *args)
    assert done.returncode == 2
    assert why in " ".join(done.stderr.replace("│", " ").split())


def test_a_simulation_recorded_under_a_packed_name_is_packed(tmp_path: Path) -> None:
    packed, plain = tmp_path / "r.jsonl.zst", tmp_path / "r.jsonl"
    for file in (packed, plain):
        done = healer("simulate", "rack-power", "--alone", "--days", "0.02", "--record", file)
        assert done.returncode == 0, done.stderr
    assert "".join(f"{line}\n" for line in lines_of(packed)) == plain.read_text() != ""
    assert healer("replay", packed).returncode == 0


def test_recordings_are_listed_with_their_span_and_size(recorded: Path) -> None:
    listed = json.loads(healer("recordings", "--json", HEALER_RECORDING=str(recorded)).stdout)
    assert listed["on"] is True
    assert sum(one["lines"] for one in listed["files"]) == sum(
        count for one in listed["files"] for count in one["routes"].values()
    )
    words = healer("recordings", HEALER_RECORDING=str(recorded)).stdout
    assert "-events.jsonl.zst" in words and "slurm/nodes" in words
    assert "not set" in healer("recordings").stdout
